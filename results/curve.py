"""How fast feature regression learns CIFAR-10, and what makes it fast.

    python results/curve.py [SECONDS]

adds a line to results/curve.jsonl for each way that has none yet: steps, seconds of the processor on one thread, without looks, and
accuracy on held-out images of the regression on networks that nothing has trained. Each of the others differs from the first in one thing.
"""
import json, sys, time
from pathlib import Path
from statistics import median

import torch

from bpc_nb.core import provenance
from bpc_nb.data import load
from bpc_nb.distill import distill

LINES = Path(__file__).with_suffix('.jsonl')
FIRST = dict(net='convnet:width=64', real=256, pool=0, average=.99, lr=.01, zca=True)
WAYS = {'whitened, fresh networks': {}, 'not whitened': dict(zca=False), 'a pool of ten': dict(pool=10)}

def curve(of:dict, limit:float, ipc:int=1) -> list: # [step, seconds, accuracy]
    "One run; a step's seconds are the median of all"
    o, rows, times = FIRST | of, [], []
    data = load('cifar10', zca=o.pop('zca'))
    def over(): # asked after every step
        times.append(time.process_time())
        return len(times) > 20 and len(times)*typical() > limit
    def typical(): return median(b - a for a,b in zip(times, times[1:]))
    distill('frepo', data, ipc, steps=100_000, every=100, select_evaluator='ridge', select_runs=2, progress=False, until=over,
            callback=lambda state, row: rows.append((state.step, row['accuracy_mean'])), **o)
    return [[n, round(n*typical(), 1), accuracy] for n,accuracy in rows]

if __name__=='__main__':
    torch.set_num_threads(1)
    limit = float(sys.argv[1]) if len(sys.argv) > 1 else 120.
    done = [json.loads(l) for l in LINES.read_text().splitlines()] if LINES.exists() else []
    for name,of in WAYS.items():
        if any(r['way']==name for r in done): continue
        row = dict(way=name, options=FIRST | of, data='cifar10', ipc=1, curve=curve(of, limit), made=provenance())
        with open(LINES, 'a') as f: f.write(json.dumps(row) + '\n')
        print(name, row['curve'][-1], flush=True)
