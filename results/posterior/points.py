"""Coresets of regressions whose posterior is known: how near their posterior is, against points and seconds

    python results/posterior/points.py [logistic poisson linear wide million example network]

Simulated rows, N = 10,000 with ten columns, five seeds of data and methods: random points with weights N/M, greedy weights (GIGA, of vectors from 500
draws), Coreset MCMC, PSVI with batches and with all rows, black-box PSVI and contrastive divergence. The truth is four long chains, and so is each
coreset's posterior; contrastive divergence is fitted to other draws, weighed in one pass. `wide` has fifty columns and 256 draws a step. `million` has a million rows and one seed, with the seconds
of chains on both; its truth is weighed draws, two independent sets of them. All seconds are of the processor. `example` is PSVI's own:
the mean of a Gaussian of 200 dimensions, 1,000 rows, ten trials. `network` has three hidden units and 200 rows, five seeds. What has a line in results/posterior/points.jsonl is not computed again.
"""
import json, time, warnings
from pathlib import Path

import torch

from bpc_nb.alive import black_box, coreset_mcmc
from bpc_nb.core import provenance, stream
from bpc_nb.lines import called_with
from bpc_nb.methods.giga import giga
from bpc_nb.models import MODELS, Model, Rows, laplace_of
from bpc_nb.points import cd_loss, contrastive, distances, psvi, psvi_loss, some_rows, white
from bpc_nb.small import contrastive_k, probabilities, small_net, wide_chains
from bpc_nb.toy import Gaussian, kl
from bpc_nb.truth import long_chains, weighed

LINES, D, N, SEEDS, STEPS = Path(__file__).parent/'points.jsonl', 10, 10_000, 5, 500
POINTS = dict(logistic=(1, 3, 10, 30, 100, 300, 1000), poisson=(30, 100, 1000), linear=(30, 100, 1000))
warnings.filterwarnings('ignore', message='labels: a plane separates|chains: R-hat') # R-hat is in the line

def lines() -> list: return [json.loads(l) for l in LINES.read_text().splitlines()] if LINES.exists() else []

def simulated(name:str, N:int, seed:int, D:int=D) -> Rows:
    g, m = stream(seed, 'simulated', name, N), MODELS[name]
    x = torch.randn(N, D, generator=g, dtype=torch.float64)
    theta = torch.randn(m.size(D, 0), generator=g, dtype=torch.float64)*(.3 if name=='poisson' else 1)
    return Rows(x, m.draw(theta, x, g))

def greedy(m, rows:Rows, M:int, seed:int) -> Rows:
    q = laplace_of(m, rows, torch.zeros(m.size(rows.x.shape[1], 0), dtype=torch.float64))
    L = torch.stack([m.log_lik(t, rows.x, rows.y) for t in q.draw(500, stream(seed, 'vectors'))], 1)
    w = giga((L - L.mean(1, keepdim=True))/500**.5, M)
    i = w.nonzero().squeeze(1)
    return Rows(rows.x[i], rows.y[i], w[i])

def ways(m, rows, M, seed, pos, **o) -> dict:
    N = len(rows.x)
    return {'random':lambda: some_rows(rows, M, stream(seed, 'start')), 'giga':lambda: greedy(m, rows, M, seed),
            'coreset-mcmc':lambda: coreset_mcmc(m, rows, M, steps=2*STEPS, seed=seed, batch=min(N, 10_000)), 'psvi':lambda: psvi(m, rows, M, seed=seed, **o),
            'psvi, all rows':lambda: psvi(m, rows, M, seed=seed, batch=N, **o), 'black box, all rows':lambda: black_box(m, rows, M, seed=seed, batch=N, **o),
            'cd':lambda: contrastive(m, rows, M, pos, seed=seed, **o)}

def add(row:dict):
    with open(LINES, 'a') as f: f.write(json.dumps(row | dict(made=provenance())) + '\n')
    print(row, flush=True)

def clocked(f) -> tuple: # what it gives, seconds of the processor
    began = time.process_time()
    return f(), round(time.process_time() - began, 2)

def study(name:str):
    m = MODELS[name]
    for seed in range(SEEDS):
        have = {(r['method'], r['points']) for r in lines() if (r['model'], r['seed'], r['rows'], r['columns'])==(name, seed, N, D)}
        if len(have)==7*len(POINTS[name]): continue
        rows = simulated(name, N, seed)
        c, long = clocked(lambda: long_chains(m, rows, draws=1000, seed=100 + seed))
        (fit, worth), weighing = clocked(lambda: weighed(m, rows, draws=4000, seed=seed))
        judge = c.pooled()
        for M in POINTS[name]:
            for way,f in ways(m, rows, M, seed, fit, steps=STEPS).items():
                if (way, M) in have: continue
                S, took = clocked(f)
                q = long_chains(m, S, draws=1000)
                add(dict(model=name, rows=N, columns=D, method=way, points=M, seed=seed, seconds=took, **distances(judge, q.pooled()), rhat=q.meta['rhat'],
                         floor=distances(judge, fit)['kl_gauss'],
                         truth=dict(rhat=c.meta['rhat'], ess=c.meta['ess'], seconds=long, weighing=weighing, worth=worth)))

def wide(columns:int=50, name:str='logistic'):
    m = MODELS[name]
    for seed in range(SEEDS):
        have = {(r['method'], r['points']) for r in lines() if (r['seed'], r['rows'], r['columns'])==(seed, N, columns)}
        if len(have)==8: continue
        rows = simulated(name, N, seed, columns)
        (fit, worth), (judge, _) = (weighed(m, rows, draws=8000, seed=s) for s in (seed, 100 + seed))
        floor = distances(judge, fit)['kl_gauss']
        for M in (100, 300):
            for way,f in {'random':lambda: some_rows(rows, M, stream(seed, 'start')), 'giga':lambda: greedy(m, rows, M, seed),
                          'psvi, all rows':lambda: psvi(m, rows, M, seed=seed, batch=N, steps=STEPS, samples=256),
                          'cd':lambda: contrastive(m, rows, M, fit, seed=seed, steps=STEPS, samples=256)}.items():
                if (way, M) in have: continue
                S, took = clocked(f)
                q = long_chains(m, S, draws=2000)
                add(dict(model=name, rows=N, columns=columns, method=way, points=M, seed=seed, seconds=took, **distances(judge, q.pooled()),
                         rhat=q.meta['rhat'], floor=floor, truth=dict(worth=worth)))

def million():
    name, big, M = 'logistic', 1_000_000, 100
    have = {r['method'] for r in lines() if r['rows']==big}
    if len(have)==4: return
    m, rows = MODELS[name], simulated(name, big, 0)
    (fit, worth), weighing = clocked(lambda: weighed(m, rows, draws=4000))
    judge = weighed(m, rows, draws=4000, seed=1)[0]
    _, chains = clocked(lambda: long_chains(m, rows, chains=2, draws=100, burn=50, progress=True))
    for way,f in ways(m, rows, M, 0, fit, steps=1000, lr=.03).items():
        if way in have or way not in ('random','psvi','coreset-mcmc','cd'): continue
        S, took = clocked(f)
        fine, (_, short) = long_chains(m, S, draws=1000), clocked(lambda: long_chains(m, S, chains=2, draws=100, burn=50))
        add(dict(model=name, rows=big, columns=D, method=way, points=M, seed=0, seconds=took, **distances(judge, fine.pooled()), rhat=fine.meta['rhat'],
                 chains=short, floor=distances(judge, fit), truth=dict(worth=worth, weighing=weighing, chains=chains)))

def example(d:int=200, N:int=1000, trials:int=10, steps:int=300, K:int=500):
    m = Model('mean', lambda t, x, y: x@t - (x**2).sum(1)/2 - t@t/2, lambda D, K: D, None, 'number') # -|x-t|^2/2
    def exactly(x, w): return Gaussian((w@x)/(1 + w.sum()), torch.eye(d, dtype=x.dtype)/(1 + w.sum()))
    def learned(rows, S, way, p, seed):
        u, v = S.x.clone().requires_grad_(), torch.zeros_like(S.w).requires_grad_()
        gen, opt = stream(seed, 'example', way), torch.optim.Adam([u, v], .1)
        for i in range(steps):
            for g in opt.param_groups: g['lr'] = .1*.01**max(0, (i/steps - .3)/.7)
            q, z = exactly(u.detach(), S.w*v.detach().exp()), white(torch.randn(K, d, generator=gen, dtype=u.dtype))
            neg, now = q.mean + z@torch.linalg.cholesky(q.cov).T, Rows(u, S.y, S.w*v.exp())
            opt.zero_grad()
            (psvi_loss(m, now, rows, neg, N, gen) if way=='psvi' else cd_loss(m, now, p.mean + z@torch.linalg.cholesky(p.cov).T, neg)).backward(); opt.step()
        return exactly(u.detach(), S.w*v.detach().exp())
    for seed in range(trials):
        have = {(r['method'], r['points']) for r in lines() if (r['model'], r['seed'])==('mean', seed)}
        x = torch.randn(N, d, generator=stream(seed, 'example', 'rows'), dtype=torch.float64) + 1
        rows, p = Rows(x, torch.zeros(N).double()), exactly(x, torch.ones(N).double())
        for M in (1, 10, 50, 200):
            S = some_rows(rows, M, stream(seed, 'start'))
            q0 = p.draw(500, stream(seed, 'vectors'))
            L = torch.stack([m.log_lik(t, x, rows.y) for t in q0], 1)
            for way,f in {'random':lambda: exactly(S.x, S.w), 'giga':lambda: exactly(x, giga((L - L.mean(1, keepdim=True))/500**.5, M)),
                          'psvi':lambda: learned(rows, S, 'psvi', p, seed), 'cd':lambda: learned(rows, S, 'cd', p, seed)}.items():
                if (way, M) in have: continue
                began = time.process_time(); q = f()
                add(dict(model='mean', rows=N, columns=d, method=way, points=M, seed=seed, seconds=round(time.process_time() - began, 2), kl_gauss=kl(p, q).item(),
                         kl_reverse=kl(q, p).item()))

def small(N:int=200):
    m, side = small_net(3), torch.linspace(-2, 2, 15).double()
    at = torch.cartesian_prod(side, side)
    def said(theta): return probabilities(m, theta, at)
    for seed in range(SEEDS):
        have = {(r['method'], r['points']) for r in lines() if (r['model'], r['seed'])==(m.name, seed)}
        if len(have)==10: continue
        g = stream(seed, 'corners')
        x = 4*torch.rand(N, 2, generator=g, dtype=torch.float64) - 2
        rows = Rows(x, torch.bernoulli((4*x[:,0]*x[:,1]).sigmoid(), generator=g))
        c, pos = (wide_chains(m, rows, at, draws=3000, burn=1000, seed=s) for s in (seed, 100 + seed)) # the judge's draws are not those that teach
        p, half, pos, eps = said(c.pooled()), [said(t.flatten(0, 1)).mean(0) for t in (c.theta[:4], c.theta[4:])], pos.pooled(), c.meta['eps']
        for M in (20, 50):
            for way,f in {'random':lambda: some_rows(rows, M, stream(seed, 'start')), 'psvi, all rows':lambda: psvi(m, rows, M, 2., 400, batch=N, seed=seed),
                          'cd':lambda: contrastive(m, rows, M, pos, 2., 400, seed=seed),
                          **{f"cd, {k} flight{'s'*(k > 1)}":lambda k=k: contrastive_k(m, rows, M, pos, eps, k, seed=seed) for k in (1, 4)}}.items():
                if (way, M) in have: continue
                S, took = clocked(f)
                q = wide_chains(m, S, at, draws=300, seed=seed)
                Q = said(q.pooled())
                add(dict(model=m.name, rows=N, columns=2, method=way, points=M, seed=seed, seconds=took, apart=(Q.mean(0) - p.mean(0)).abs().mean().item(),
                         width=(Q.std(0)/p.std(0)).mean().item(), rhat=q.meta['rhat'], halves=(half[0] - half[1]).abs().mean().item(), truth=c.meta['rhat']))

if __name__=='__main__':
    ALL = 'logistic','million','poisson','linear','wide','example','network'
    for name in called_with(__doc__, ALL) or ALL: dict(million=million, example=example, network=small, wide=wide).get(name, lambda: study(name))()
