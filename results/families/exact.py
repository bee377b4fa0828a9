"""The exact coreset beside the regression on all images that it stands for.

    python results/families/exact.py mnist cifar10

adds a line to results/families/exact.jsonl for each data set and each kind of features: test accuracy of the ridge regression on all training images,
on ten images as they are and after 8 bits, on ten that were made for 8 bits, and on ten random real ones; seconds of both.
"""
import json, time
from pathlib import Path

from bpc_nb.core import Coreset, provenance
from bpc_nb.data import load
from bpc_nb.distill import configure, distill
from bpc_nb.evaluate import evaluate
from bpc_nb.lines import called_with

NETS = 'logistic', 'shallow', 'shallow:act=cosine'

def measured(name:str, net:str, ipc:int=1) -> dict:
    "A line"
    data, judge = load(name), dict(runs=1, evaluator='ridge')
    def timed(f):
        began = time.perf_counter()
        return f(), round(time.perf_counter() - began, 1)
    S, seconds = timed(lambda: distill('exact', data, ipc, net=net, progress=False))
    safe = distill('exact', data, ipc, net=net, pixels='8bit', progress=False)
    everything = Coreset(*data.train, transform=data.transform, init=S.init, meta=dict(net=net, r=configure('exact', name, ipc)['full']))
    whole, longer = timed(lambda: evaluate(everything, data, eight_bit=False, **judge))
    found, kept = evaluate(S, data, control=True, **judge), evaluate(safe, data, **judge)
    return dict(data=data.name, method='exact', ipc=ipc, net=net, whole=whole['accuracy_mean'], exact=found['accuracy_mean'], exact_8bit=found['accuracy_mean_8bit'],
                safe_8bit=kept['accuracy_mean_8bit'], random=found['accuracy_mean_random'], 
                pixels=[round(v.item(), 2) for v in S.pixels().aminmax()], seconds=dict(distill=seconds, whole=longer), made=provenance())

if __name__=='__main__':
    for name in called_with(__doc__):
        for net in NETS:
            line = measured(name, net)
            with open(Path(__file__).with_suffix('.jsonl'), 'a') as f: f.write(json.dumps(line) + '\n')
            print({k:v for k,v in line.items() if k!='made'})
