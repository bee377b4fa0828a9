"""The title's claim: is the posterior given S close to the posterior given D?

    python results/posterior/title.py [NAME ...]

On fold 0 of digits, with a narrow network, chains of Hamiltonian Monte Carlo on all training images stand for p(theta | D). Each method learns its coresets for this very
network (named by arguments; none: all), and chains on them, under several energies, stand for q(theta | S). What has a line in results/posterior/title.jsonl is not measured again.
"""
import json, time
from pathlib import Path

import torch

from bpc_nb.closeness import closeness, functions
from bpc_nb.core import Coreset, cache_folder, provenance, stream
from bpc_nb.data import load
from bpc_nb.distill import distill
from bpc_nb.energy import energy
from bpc_nb.evaluate import evaluate, examples_of, fit_of
from bpc_nb.grid import called_with
from bpc_nb.networks import network
from bpc_nb.predictive import mixing
from bpc_nb.samplers.chains import Chains, sample
from bpc_nb.samplers.hmc import adapt, hmc
from bpc_nb.toy import Gaussian, kl

HERE = Path(__file__).parent
LINES, NET, PRIOR, CHAINS = HERE/'title.jsonl', 'mlp:width=16', .5, 4 # the prior is a standard normal
ON_D, ON_S = dict(steps=200, warm=100, n=320, burn=20), dict(steps=100, warm=60, n=120, burn=20) # flights
METHODS = ('random', 'k-center', 'cd', 'fkl', 'dc', 'dm', 'positive-only', 'rkl', 'frepo', 'dd', 'ld', 'vbpc', 'herding', 'cafe', 'wasserstein')
SIZES, SEEDS, AXES = (10, 1), (0, 1, 2), 5

def energies(M:int, N:int) -> dict: # images of S and of D -> name -> (scale, temperature)
    "What exp(-E/temperature) may stand for: the mean that methods minimise, a likelihood, one as heavy as all data, cool and cold ones"
    return dict(mean=(1., 1.), sum=(float(M), 1.), N=(float(N), 1.), cool=(float(M), .1), cold=(float(M), .01))

def lines() -> list: return [json.loads(l) for l in LINES.read_text().splitlines()] if LINES.exists() else []

def chains(net, S:Coreset, scale:float, temperature:float, seed, steps:int, warm:int, n:int, burn:int) -> Chains:
    "Draws from exp(-(scale times the mean loss + the prior)/temperature)"
    E = energy(net.apply, fit_of(S), scale, PRIOR)
    def make(eps): return hmc(lambda theta: E(theta, S), eps, steps, temperature=temperature, jitter=.2)
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

def whole(net, data) -> torch.Tensor:
    "Draws of p(theta | D) as functions; made once"
    path = cache_folder()/f"title-{data.meta['checksum']}-{net.name.replace(':', '-')}-{ON_D['n']}-{ON_D['steps']}.pt"
    if not path.exists():
        S = Coreset(*data.train)
        torch.save(asked(net, chains(net, S, len(S.x), 1., 'all', **ON_D), data, S.x), path)
    return torch.load(path)

def note(row:dict):
    with open(LINES, 'a') as f: f.write(json.dumps(row | dict(net=NET, prior=PRIOR, made=provenance())) + '\n')
    print({k:round(v, 3) if isinstance(v, float) else v for k,v in row.items() if k in
           ('method','ipc','seed','energy','accuracy','accuracy_q','total_variation','agreement','rhat','kl_forward','seconds')}, flush=True)

if __name__=='__main__':
    methods = called_with(__doc__, METHODS) or METHODS
    data = load('digits', fold=0)
    net, y = network(NET, data.shape, data.K), data.test.y
    P = whole(net, data)
    p = P.flatten(0, 1)
    if not any(r['method']=='all images' for r in lines()): # two chains against two others: the floor
        note(dict(method='all images', energy='sum', images=len(data.train.y)) | mixed(P, y) | closeness(P[:2].flatten(0, 1), P[2:].flatten(0, 1), y)
             | in_axes(P[:2].flatten(0, 1), P[2:].flatten(0, 1)))
    for seed in SEEDS:
        for ipc in SIZES:
            for method in methods:
                have = {r['energy'] for r in lines() if (r['method'], r.get('ipc'), r.get('seed'))==(method, ipc, seed)}
                if have >= energies(1, 1).keys(): continue
                begin = dict(start='real') if method in ('cd','positive-only') else {} # as all others do; a recipe may begin at chosen images
                S, began = distill(method, data, ipc, seed=seed, net=NET, progress=False, **begin), time.process_time()
                accuracy = evaluate(S, data, 5, protocol='dc', net=net, eight_bit=False)['accuracy_mean']
                seen = examples_of(S, 'cpu')
                what = dict(method=method, ipc=ipc, seed=seed, images=len(S.x), accuracy=accuracy)
                for name,(scale,T) in energies(len(seen.x), len(data.train.y)).items():
                    if name in have: continue
                    Q = asked(net, chains(net, seen, scale, T, (seed, name), **ON_S), data, seen.x)
                    q = Q.flatten(0, 1)
                    note(what | dict(energy=name, scale=scale, temperature=T) | mixed(Q, y) | closeness(p, q, y) | in_axes(p, q)
                         | dict(seconds=round(time.process_time() - began)))
