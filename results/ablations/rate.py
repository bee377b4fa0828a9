"""Students at the step size that trajectory matching has learned, beside students at the step size of their protocol

    python results/ablations/rate.py [folds]

One image per class of digits by the recipe of Wasserstein, on five folds, and random real images with it. Step sizes: that of the protocol, half of the
learned alpha (MTT's), and its quarter. A line is one fold, protocol and step size; a fold that was not finished begins anew.
"""
import json, math, time
from pathlib import Path

from bpc_nb.core import provenance
from bpc_nb.data import load
from bpc_nb.distill import distill
from bpc_nb.evaluate import PROTOCOLS, evaluate
from bpc_nb.grid import called_with

LINES = Path(__file__).parent/'rate.jsonl'

def lines() -> list: return [json.loads(l) for l in LINES.read_text().splitlines()] if LINES.exists() else []

if __name__=='__main__':
    for fold in range(int(*called_with(__doc__, int) or [5])):
        if any(r['fold']==fold for r in lines()): continue
        data, began = load('digits', fold=fold), time.process_time()
        S = distill('wasserstein', data, 1, seed=0, progress=False)
        learned, rows = round(time.process_time() - began, 1), []
        alpha = math.exp(S.meta['own']['log_alpha'][0])
        for protocol in ('quick','mtt'):
            for what,lr in (('protocol', PROTOCOLS[protocol]['lr']), ('alpha/2', alpha/2), ('alpha/4', alpha/4)):
                began = time.process_time()
                r = evaluate(S, data, 5, protocol, seed=0, control=True, eight_bit=False, lr=lr, progress=False)
                rows.append(dict(data='digits', method='wasserstein', ipc=1, fold=fold, protocol=protocol, what=what, lr=lr, alpha=alpha, step=S.meta['step'],
                                 net=r['net'], runs=r['runs'], accuracy_mean=r['accuracy_mean'], accuracy_mean_random=r['accuracy_mean_random'],
                                 nll_mean=r['nll_mean'], seconds=dict(distill=learned, evaluate=round(time.process_time() - began, 1)), made=provenance()))
                print({k:v for k,v in rows[-1].items() if k!='made'}, flush=True)
        with open(LINES, 'a') as f: f.write(''.join(json.dumps(r) + '\n' for r in rows))
