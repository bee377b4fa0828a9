"""The title's claim: is the posterior given S close to the posterior given D?

    python results/posterior/title.py [digits mnist] [METHOD ...]

A narrow network, whose posterior given all of D chains of Hamiltonian Monte Carlo can draw from: on fold 0 of digits, and on a tenth of MNIST at 8x8 pixels. Each method
learns its coresets for this very network (named by arguments; none: all), and chains on them, under several energies, stand for q(theta | S). What has a line in
results/posterior/title.jsonl is not measured again. On digits a method learns by its recipe; on MNIST by the best of ten candidates on held-out images, whose lines
are in title_search.jsonl.
"""
import itertools, json, random, time
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import torch
from torch.func import grad_and_value, vmap

from bpc_nb.closeness import closeness, functions
from bpc_nb.core import Coreset, cache_folder, provenance, stream
from bpc_nb.data import Data, Split, load
from bpc_nb.distill import distill, recipe
from bpc_nb.energy import energy
from bpc_nb.evaluate import evaluate, examples_of, fit_of
from bpc_nb.fast import compiled
from bpc_nb.lines import called_with, lines
from bpc_nb.networks import network
from bpc_nb.predictive import mixing
from bpc_nb.samplers.chains import Chains, sample
from bpc_nb.samplers.hmc import Field, adapt, hmc
from bpc_nb.toy import Gaussian, kl

HERE = Path(__file__).parent
LINES, TRIED, NET, CHAINS = HERE/'title.jsonl', HERE/'title_search.jsonl', 'mlp:width=16', 4
ON_S = dict(steps=100, warm=60, n=120, burn=20) # flights
METHODS = ('random', 'k-center', 'cd', 'fkl', 'dc', 'dm', 'positive-only', 'rkl', 'frepo', 'dd', 'ld', 'vbpc', 'herding', 'cafe', 'wasserstein',
           'dsa', 'L=0')
EMPTY = {1: dict(L=0, lr=1., T=2, k_max=5, width=0.), 10: dict(L=0)} # images per class -> what the empty chain's own search changed in the recipe
CHOSEN, AXES = ('random','k-center','herding'), 5

EXPERTS, RATES = dict(n=20, epochs=20, part=1., batch=128), [1., .2, 4.]
JUDGED = dict(select_runs=[2], select_protocol=['dc']) # by the same students; looks are as a method's recipe for MNIST has them
DRAWN = JUDGED | dict(experts=[EXPERTS], T=[1, 3, 8], k_max=[5, 1, 10], steps=[300])
CHAIN = DRAWN | dict(L=[10, 30], alpha=[.08, .03, .2], lr=RATES)
SEARCH = { # values of a method's options; rates are lower than in a first trial of contrastive divergence by hand, where 4 to 100 were too high
    'cd': CHAIN | dict(width=[.3, 0., .1, .6]),
    'fkl': CHAIN | dict(width=[.01, .03, .1], samples=[10]),
    'positive-only': DRAWN | dict(lr=RATES, width=[.3, 0.]),
    'wasserstein': CHAIN | dict(lr=[1., 10., .1]),
    'rkl': JUDGED | dict(lr=RATES, L=[20], alpha=[.04, .1, .2], k_max=[10, 3], samples=[10], width=[.01, .03], steps=[300]),
    'dc': (BATCHES := dict(lr=[.1, .03, .3, 1., .01], real=[64, 256], steps=[60])),
    'dm': dict(lr=[1., .3, 3., 10., .1], real=[64, 256], steps=[1500]),
    'dsa': BATCHES,
    'cafe': dict(lr=[1., .1, .3, 10.], lr_net=[.01, .1], early=[.1, 1.], late=[2., 1.], steps=[40]),
    'L=0': DRAWN | dict(L=[0], lr=RATES, width=[.3, 0.])}
CANDIDATES = 10

class Study(NamedTuple):
    "What D is, how p(theta | D) is drawn from, and whose coresets stand for it"
    asked: dict     # of `load`
    prior: float    # lambda; .5 is a standard normal
    flights: dict
    methods: tuple
    sizes: tuple    # images per class
    seeds: tuple
    thin: int = 1   # every so many of the test and held-out images
    search: dict = {}
    energies: tuple = ('mean','sum','N','cool','cold')

STUDIES = dict(
    digits=Study(dict(fold=0), .5, dict(steps=200, warm=100, n=320, burn=20), METHODS, (10, 1), (0, 1, 2)),
    mnist=Study(dict(size=8, held_out=.9), 5., dict(steps=400, warm=150, n=420, burn=20), (*CHOSEN, *SEARCH), (10,), (0, 1), 10, SEARCH,
                ('sum','N','cool','cold'))) # digits showed that the mean does not serve

def data_of(name:str) -> Data:
    s, data = STUDIES[name], load(name, **STUDIES[name].asked)
    return data._replace(**{part:Split(*(t[::s.thin] for t in getattr(data, part))) for part in ('held','test')})

def energies(M:int, N:int) -> dict: # images of S and of D -> name -> (scale, temperature)
    "What exp(-E/temperature) may stand for: the mean that methods minimise, a likelihood, one as heavy as all data, cool and cold ones"
    return dict(mean=(1., 1.), sum=(float(M), 1.), N=(float(N), 1.), cool=(float(M), .1), cold=(float(M), .01))

def chains(net, S:Coreset, scale:float, prior:float, temperature:float, seed, steps:int, warm:int, n:int, burn:int) -> Chains:
    "Draws from exp(-(scale times the mean loss + the prior)/temperature)"
    E = energy(net.apply, fit_of(S))
    mean = compiled(vmap(grad_and_value(lambda theta: E(theta, S)))) # several times faster; once for all scales and coresets of a size
    def both(theta):
        slope, value = mean(theta)
        return scale*slope + 2*prior*theta, scale*value + prior*theta.square().sum(-1)
    def make(eps): return hmc(Field(both), eps, steps, temperature=temperature, jitter=.2)
    theta, gen = torch.stack([net.init(stream(seed, 'start', r)) for r in range(CHAINS)]), stream(seed, 'chains')
    eps, state = adapt(make, .01, theta, warm, gen)
    return sample(make(eps), state, n, gen, burn, eps=eps)

def asked(net, c:Chains, data, of) -> torch.Tensor: # -> probabilities (chains, draws, images, classes)
    F = functions(net, c.pooled(), data.test.x, of)
    return F.view(*c.theta.shape[:2], *F.shape[1:])

def mixed(F:torch.Tensor, y:torch.Tensor) -> dict: # F: from `asked`
    "Do the chains agree on the log likelihood of all test images, and on single ones?"
    right = F[..., torch.arange(len(y)), y].clamp(min=1e-12).log()
    each = sorted(r for i in range(0, len(y), 9) if (r := mixing(right[:,:,i])['rhat'])) # none where every draw says the same
    return dict(rhat=mixing(right.mean(-1))['rhat'], rhat_images=each[len(each)//2], rhat_images_90=each[9*len(each)//10])

def in_axes(P:torch.Tensor, Q:torch.Tensor) -> dict: # draws (D,N,K)
    "Gaussian fits of both in the main axes of p, and the distance of the means"
    flat = lambda F: F.flatten(1).double()
    mean = flat(P).mean(0)
    axes = torch.linalg.svd(flat(P) - mean, full_matrices=False).Vh[:AXES]
    p, q = (Gaussian(z.mean(0), z.T.cov() + 1e-9*torch.eye(AXES).double()) for z in ((flat(F) - mean)@axes.T for F in (P, Q)))
    apart = (P.mean(0) - Q.mean(0)).square().sum(-1).mean().sqrt().item()
    return dict(kl_forward=kl(p, q).item(), kl_reverse=kl(q, p).item(), means_apart=apart)

def add(path:Path, row:dict):
    with open(path, 'a') as f: f.write(json.dumps(row | dict(made=provenance())) + '\n')

def learner(method:str) -> str: return 'cd' if method=='L=0' else method

def searched(name:str, method:str, ipc:int, data:Data) -> dict:
    "Options of the candidate that is best on held-out images; every candidate leaves a line"
    values = STUDIES[name].search.get(method)
    if not values: return recipe('cd', 'digits', ipc) | EMPTY[ipc] if method=='L=0' else recipe(method, 'digits', ipc)
    first, *rest = [dict(zip(values, v)) for v in itertools.product(*values.values())]
    random.Random(0).shuffle(rest)
    candidates = first, *rest[:CANDIDATES-1]
    def seen(): return [r for r in lines(TRIED) if (r['data'], r['method'], r['ipc'])==(name, method, ipc) and r['options'] in candidates]
    for options in candidates:
        if options in [r['options'] for r in seen()]: continue
        began = time.process_time()
        try: S = distill(learner(method), data, ipc, net=NET, start='real', progress=False, **options)
        except ValueError as e: found = dict(held_out=0., step=0, failed=str(e)) # its loss was not finite
        else: found = dict(held_out=S.meta['held_out'], step=S.meta['step'])
        add(TRIED, dict(data=name, method=method, ipc=ipc, options=options) | found | dict(seconds=round(time.process_time() - began)))
        print(dict(method=method, options=options) | found, flush=True)
    return max(seen(), key=lambda r: r['held_out'])['options']

def whole(net, data, study:Study) -> torch.Tensor:
    "Draws of p(theta | D) as functions; made once"
    what = data.meta['checksum'], net.name, study.prior, study.flights, study.thin
    path = cache_folder()/f"title-{sha256(repr(what).encode()).hexdigest()[:12]}.pt"
    if not path.exists():
        S = Coreset(*data.train)
        torch.save(asked(net, chains(net, S, len(S.x), study.prior, 1., 'all', **study.flights), data, S.x), path)
    return torch.load(path)

def note(row:dict):
    add(LINES, row)
    print({k:round(v, 3) if isinstance(v, float) else v for k,v in row.items() if k in
           ('data','method','ipc','seed','energy','accuracy','accuracy_q','total_variation','agreement','rhat','kl_forward','seconds')}, flush=True)

def measure(name:str, methods):
    "All lines of one data set"
    study, data = STUDIES[name], data_of(name)
    net, y, of = network(NET, data.shape, data.K), data.test.y, dict(data=name, net=NET, prior=study.prior)
    P = whole(net, data, study)
    p = P.flatten(0, 1)
    if not any((r['data'], r['method'])==(name, 'all images') for r in lines(LINES)): # two chains against two others: the floor
        note(of | dict(method='all images', energy='sum', images=len(data.train.y)) | mixed(P, y)
             | closeness(P[:2].flatten(0, 1), P[2:].flatten(0, 1), y) | in_axes(P[:2].flatten(0, 1), P[2:].flatten(0, 1)))
    for seed in study.seeds:
        for ipc in study.sizes:
            for method in methods:
                have = {r['energy'] for r in lines(LINES) if (r['data'], r['method'], r.get('ipc'), r.get('seed'))==(name, method, ipc, seed)}
                if have >= {*study.energies}: continue
                given = searched(name, method, ipc, data) | dict(net=NET)
                if method not in CHOSEN: given['start'] = 'real' # a recipe may begin at chosen images
                S, began = distill(learner(method), data, ipc, seed=seed, progress=False, **given), time.process_time()
                accuracy = evaluate(S, data, 5, protocol='dc', net=net, eight_bit=False)['accuracy_mean']
                seen = examples_of(S, 'cpu')
                what = of | dict(method=method, ipc=ipc, seed=seed, images=len(S.x), accuracy=accuracy)
                for e,(scale,T) in energies(len(seen.x), len(data.train.y)).items():
                    if e in have or e not in study.energies: continue
                    Q = asked(net, chains(net, seen, scale, study.prior, T, (seed, e), **ON_S), data, seen.x)
                    q = Q.flatten(0, 1)
                    note(what | dict(energy=e, scale=scale, temperature=T) | mixed(Q, y) | closeness(p, q, y) | in_axes(p, q)
                         | dict(seconds=round(time.process_time() - began)))

if __name__=='__main__':
    words = called_with(__doc__, (*STUDIES, *METHODS), (LINES, TRIED))
    for name in [s for s in STUDIES if s in words] or STUDIES: measure(name, [m for m in METHODS if m in words] or STUDIES[name].methods)
