"""What the rules of `bpc distill FOLDER` were chosen by: short runs, judged on held-out images alone.

    OMP_NUM_THREADS=1 python results/tools/rules.py [NAME ...]

adds a line to results/tools/rules.jsonl for each of VARIANTS, or for those that are named: held-out accuracy at every look, against seconds
of the processor, experts included where no earlier run has trained the same.
"""
import json, tempfile, time
from pathlib import Path

from bpc_nb.budget import options_for
from bpc_nb.core import provenance
from bpc_nb.data import load
from bpc_nb.distill import distill
from bpc_nb.lines import called_with

few = dict(batch=32, part=64*32/54_000) # 64 batches of 32 between two checkpoints
many = dict(batch=128, part=64*128/54_000)
VARIANTS = {
    'batches of 128, 6 experts':   dict(width=32, steps=400, every=100, alpha=.06, experts=many | dict(n=6)),
    'batches of 32, 6 experts':    dict(width=32, steps=300, every=100, alpha=.06, experts=few | dict(n=6)),
    'batches of 32, 24 experts':   dict(width=32, steps=300, every=100, alpha=.06, experts=few | dict(n=24)),
    'width 64, 6 experts':         dict(width=64, steps=200, every=100, alpha=.06, experts=few | dict(n=6)),
    'L 5':                         dict(width=32, steps=300, every=100, alpha=.06, L=5, experts=few | dict(n=24)),
    'L 5, alpha .2':               dict(width=32, steps=300, every=100, alpha=.2, L=5, experts=few | dict(n=24)),
    'L 10, alpha .12':             dict(width=32, steps=200, every=100, alpha=.12, L=10, experts=few | dict(n=24)),
    'alpha .15':                   dict(width=32, steps=200, every=100, alpha=.15, experts=few | dict(n=24)),
    'T 4':                         dict(width=32, steps=200, every=100, alpha=.06, T=4, k_max=2, experts=few | dict(n=24, epochs=5)),
    'L 10, k_max 1, T 3, 128':     dict(width=32, steps=400, every=100, alpha=.06, L=10, k_max=1, T=3, experts=many | dict(n=6)),
}
ten = dict(ipc=10, width=32, steps=100, every=25, select_runs=1, experts=dict(n=24)) # images a class
VARIANTS |= {
    'ten, as the rules say':  ten,
    'ten, L 18, alpha .2':    ten | dict(L=18, alpha=.2),
    'ten, L 18, T 2':         ten | dict(L=18, T=2, experts=dict(n=24, epochs=5)),
    'ten, lr 5':              ten | dict(lr=5.),
}

def tried(name:str, data, width:int, experts:dict, ipc:int=1, **options) -> dict:
    "A line: what was held out, against seconds"
    o = options_for('cd', data, ipc, width)
    o |= dict(experts=o['experts'] | experts) | options
    marks, began = [], time.process_time()
    def note(state, row): marks.append([round(time.process_time() - began), row['step'], round(100*row['accuracy_mean'], 1)])
    S = distill('cd', data, ipc, tempfile.mkdtemp(), progress=False, callback=note, **o)
    return dict(name=name, data=data.name, method='cd', ipc=ipc, width=width, options=options | dict(experts=experts), held_out=round(100*S.meta['held_out'], 1),
                step=S.meta['step'], looks=marks, made=provenance())

if __name__=='__main__':
    names = called_with(__doc__, VARIANTS) or VARIANTS
    data = load('mnist')
    for name in names:
        line = tried(name, data, **VARIANTS[name])
        with open(Path(__file__).with_suffix('.jsonl'), 'a') as f: f.write(json.dumps(line) + '\n')
        print(name, line['looks'])
