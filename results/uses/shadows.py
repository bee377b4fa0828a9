"""Who was in the training set? Sixty-four shadow runs of each method on digits, from random halves of the training images

    python results/uses/shadows.py [runs]

The likelihood ratio of the chapter on audits, for one image a class, begun at real images and at noise, and for ten random ones. Margins of finished
runs stay in runs/shadows, so that a stopped call goes on; a line is one method.
"""
import json, time
from pathlib import Path

import torch

from bpc_nb.audit import Judge, attacked, halves, margins
from bpc_nb.core import provenance, write_atomic
from bpc_nb.data import load
from bpc_nb.distill import distill
from bpc_nb.lines import called_with
from bpc_nb.metrics import accuracy
from bpc_nb.networks import network

HERE, KEPT = Path(__file__).parent, Path('runs/shadows')
LINES, NET, RUNS = HERE/'shadows.jsonl', 'convnet:width=16,depth=2', 64
CD = dict(steps=200, every=100, select_runs=1, lr=10., alpha=.2, T=5, k_max=10, width=.6, experts=dict(n=5, epochs=15))
WAYS = { # name -> method, images a class, options
    'random':('random', 1, {}), 'random, 10':('random', 10, {}),
    'herding':('herding', 1, dict(features='pixels', select_runs=1)), 'k-means':('k-means', 1, dict(select_runs=1)),
    'dm':('dm', 1, dict(steps=300, every=300, select_runs=1)), 'dm, noise':('dm', 1, dict(steps=300, every=300, select_runs=1, start='noise')),
    'cd':('cd', 1, CD), 'cd, noise':('cd', 1, CD | dict(start='noise'))}

def lines() -> list: return [json.loads(l) for l in LINES.read_text().splitlines()] if LINES.exists() else []

if __name__=='__main__':
    runs, data = int(*called_with(__doc__, int) or [RUNS]), load('digits')
    j = Judge(data, network(NET, data.shape, data.K), 3, 'quick', 0, 'cpu', {})
    KEPT.mkdir(parents=True, exist_ok=True)
    for name,(method, ipc, o) in WAYS.items():
        if any((r['name'], r['runs'])==(name, runs) for r in lines()): continue
        M, I, right, began = [], [], [], time.process_time()
        for r in range(runs):
            half, inside = halves(data, 0, r)
            path = KEPT/f'{name} {r}.pt'
            if not path.exists():
                p = j._replace(known={}).probs(distill(method, half, ipc, seed=r, net=NET, progress=False, **o), torch.cat([data.train.x, data.test.x])).mean(0)
                n = len(data.train.y)
                write_atomic(path, lambda tmp: torch.save((margins(p[:n], data.train.y), accuracy(p[n:], data.test.y)), tmp))
            m, a = torch.load(path)
            M.append(m); I.append(inside); right.append(a)
        each = torch.tensor(attacked(torch.stack(M), torch.stack(I)))
        row = dict(name=name, data='digits', method=method, ipc=ipc, runs=runs, net=NET, auc=each.mean().item(), error=each.std().item()/runs**.5,
                   accuracy=sum(right)/runs, seconds=round(time.process_time() - began), made=provenance())
        with open(LINES, 'a') as f: f.write(json.dumps(row) + '\n')
        print({k:v for k,v in row.items() if k!='made'}, flush=True)
