"""Coresets of regressions whose posterior is known: how near their posterior is, against points and seconds

    python results/points.py [logistic poisson linear million]

Simulated rows, N = 10,000 with ten columns, five seeds of data and methods: random points with weights N/M, greedy weights (GIGA, of vectors from 500
draws), PSVI and contrastive divergence, the last two with as many steps. The truth is four long chains, and so is each coreset's posterior. `million`
has a million rows and one seed, and the seconds of chains on both. What has a line in results/points.jsonl is not computed again.
"""
import json, sys, time, warnings
from pathlib import Path

import torch

from bpc_nb.core import Coreset, provenance, stream
from bpc_nb.methods.giga import giga
from bpc_nb.models import MODELS, Rows, laplace_of
from bpc_nb.points import contrastive, distances, psvi, some_rows
from bpc_nb.truth import long_chains

LINES, D, N, SEEDS, STEPS = Path(__file__).parent/'points.jsonl', 10, 10_000, 5, 1000
POINTS = 10, 30, 100, 300
warnings.filterwarnings('ignore', message='y: a plane separates|chains: R-hat') # R-hat is in the line

def lines() -> list: return [json.loads(l) for l in LINES.read_text().splitlines()] if LINES.exists() else []

def simulated(name:str, N:int, seed:int) -> Rows:
    g, m = stream(seed, 'simulated', name, N), MODELS[name]
    x = torch.randn(N, D, generator=g, dtype=torch.float64)
    theta = torch.randn(m.size(D, 0), generator=g, dtype=torch.float64)*(.3 if name=='poisson' else 1)
    return Rows(x, m.draw(theta, x, g))

def greedy(m, rows:Rows, M:int, seed:int) -> Rows:
    q = laplace_of(m, rows, torch.zeros(m.size(D, 0), dtype=torch.float64))
    L = torch.stack([m.log_lik(t, rows.x, rows.y) for t in q.draw(500, stream(seed, 'vectors'))], 1)
    w = giga((L - L.mean(1, keepdim=True))/500**.5, M)
    i = w.nonzero().squeeze(1)
    return Rows(rows.x[i], rows.y[i], w[i])

def ways(m, rows, M, seed, pos, **o) -> dict:
    return {'random':lambda: some_rows(rows, M, stream(seed, 'start')), 'giga':lambda: greedy(m, rows, M, seed),
            'psvi':lambda: psvi(m, rows, M, seed=seed, lr=.1, **o), 'psvi, all rows':lambda: psvi(m, rows, M, seed=seed, lr=.1, batch=len(rows.x), **o),
            'cd':lambda: contrastive(m, rows, M, pos, seed=seed, lr=.1, **o)}

def add(row:dict):
    with open(LINES, 'a') as f: f.write(json.dumps(row | dict(made=provenance())) + '\n')
    print(row, flush=True)

def study(name:str):
    m = MODELS[name]
    for seed in range(SEEDS):
        have = {(r['way'], r['points']) for r in lines() if (r['model'], r['seed'], r['rows'])==(name, seed, N)}
        if len(have)==5*len(POINTS): continue
        rows = simulated(name, N, seed)
        c = long_chains(m, rows, draws=500)
        pos, half = c.pooled(), c.pooled()[:1000]
        for M in POINTS:
            for way,f in ways(m, rows, M, seed, pos, steps=STEPS).items():
                if (way, M) in have: continue
                began = time.perf_counter(); S = f(); took = time.perf_counter() - began
                q = long_chains(m, S, draws=300)
                add(dict(model=name, rows=N, columns=D, way=way, points=M, seed=seed, seconds=round(took, 2), **distances(pos, q.pooled()), rhat=q.meta['rhat'],
                         floor=distances(half, pos[1000:])['kl_gauss'], truth=dict(rhat=c.meta['rhat'], ess=c.meta['ess'], seconds=round(c.meta['seconds'], 2))))

def million():
    name, big, M = 'logistic', 1_000_000, 100
    if any(r['rows']==big for r in lines()): return
    m, rows = MODELS[name], simulated(name, big, 0)
    c = long_chains(m, rows, chains=2, draws=300, burn=100, progress=True)
    for way,f in ways(m, rows, M, 0, c.pooled(), steps=STEPS).items():
        if way in ('giga','psvi, all rows'): continue
        began = time.perf_counter(); S = f(); took = time.perf_counter() - began
        q = long_chains(m, S, chains=2, draws=300, burn=100)
        add(dict(model=name, rows=big, columns=D, way=way, points=M, seed=0, seconds=round(took, 2), **distances(c.pooled(), q.pooled()), rhat=q.meta['rhat'],
                 chains=round(q.meta['seconds'], 2), truth=dict(rhat=c.meta['rhat'], ess=c.meta['ess'], seconds=round(c.meta['seconds'], 2))))

if __name__=='__main__':
    for name in sys.argv[1:] or ('logistic','million','poisson','linear'): million() if name=='million' else study(name)
