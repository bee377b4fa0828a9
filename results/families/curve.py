"""How fast feature regression learns, and what makes it fast.

    python results/families/curve.py [SECONDS]

adds a line to results/families/curve.jsonl for each way that has none yet: steps, seconds of the processor on one thread, without looks, and
accuracy on held-out images of the regression on networks that nothing has trained. Ways of one data set and size differ in what their names say.
"""
import json, time
from pathlib import Path
from statistics import median

import torch

from bpc_nb.core import provenance
from bpc_nb.data import load
from bpc_nb.distill import distill
from bpc_nb.lines import called_with

LINES = Path(__file__).with_suffix('.jsonl')
FIRST = dict(net='convnet:width=64', real=256, pool=0, average=.99, lr=.01, lr_targets=1e-3)
WAYS = { # (data, images a class) -> way -> options; in each of the others one thing is changed, or two
    ('cifar10', 1): {'whitened, fresh networks': dict(zca=True), 'not whitened': dict(zca=False), 'a pool of ten': dict(zca=True, pool=10),
                     'images 3x': dict(zca=True, lr=.03), 'images 3x, targets 10x': dict(zca=True, lr=.03, lr_targets=.01)},
    ('cifar10', 10): {'wide': dict(zca=True, net='convnet:width=128'),
                      'wide, images 3x, targets 10x': dict(zca=True, net='convnet:width=128', lr=.03, lr_targets=.01)},
    ('mnist', 1): {'rates of the recipe': {}},
    ('mnist', 10): {'rates of the recipe': {}, 'images 3x, targets 10x': dict(lr=.03, lr_targets=.01), 'targets 10x': dict(lr_targets=.01),
                    'images 10x, targets 10x': dict(lr=.1, lr_targets=.01), 'images 3x': dict(lr=.03)}}

def curve(name:str, ipc:int, of:dict, limit:float) -> list: # [step, seconds, accuracy]
    "One run; a step's seconds are the median of all"
    o, rows, times = FIRST | of, [], []
    data = load(name, zca=o.pop('zca', False))
    def over(): # asked after every step
        times.append(time.process_time())
        return len(times) > 20 and len(times)*typical() > limit
    def typical(): return median(b - a for a,b in zip(times, times[1:]))
    distill('frepo', data, ipc, steps=100_000, every=100, select_evaluator='ridge', select_runs=2, progress=False, until=over,
            callback=lambda state, row: rows.append((state.step, row['accuracy_mean'])), **o)
    return [[n, round(n*typical(), 1), accuracy] for n,accuracy in rows]

if __name__=='__main__':
    torch.set_num_threads(1)
    limit = float(*called_with(__doc__, float) or [120])
    done = [json.loads(l) for l in LINES.read_text().splitlines()] if LINES.exists() else []
    for (name,ipc),ways in WAYS.items():
        for way,of in ways.items():
            if any((r['data'], r['ipc'], r['name'])==(name, ipc, way) for r in done): continue
            row = dict(name=way, method='frepo', options=FIRST | of, data=name, ipc=ipc, curve=curve(name, ipc, of, limit), made=provenance())
            with open(LINES, 'a') as f: f.write(json.dumps(row) + '\n')
            print(name, ipc, way, row['curve'][-1], flush=True)
