"""A coreset beside minibatches: does it help stochastic gradients to sample the posterior given D?

    python results/posterior/minibatch.py [random dm cd]

The data, the network, its prior and the draws of p(theta | D) are those of title.py on MNIST. Chains of SGHMC follow the energy of all data, estimated in each
step from 120 or 20 images drawn anew from D; or from a coreset of 100 images that weighs rho of the data and 20 drawn anew that weigh the rest; or (rho = 1) from the
coreset alone. The arguments
name the sets; random real images are the control. Coresets are learned with the options that title_search.jsonl found. What has a line in results/posterior/minibatch.jsonl
is not measured again.
"""
import time
from pathlib import Path

import torch
from torch.func import grad_and_value, vmap

from bpc_nb.closeness import closeness
from bpc_nb.core import Coreset, stream
from bpc_nb.distill import distill
from bpc_nb.energy import energy
from bpc_nb.fast import compiled
from bpc_nb.lines import called_with, lines
from bpc_nb.networks import network
from bpc_nb.samplers.chains import sample
from bpc_nb.samplers.hmc import Field
from bpc_nb.samplers.sghmc import sghmc
from title import CHAINS, NET, STUDIES, add, asked, data_of, mixed, searched, whole

LINES, NAME, SETS = Path(__file__).parent/'minibatch.jsonl', 'mnist', ('random','dm','cd')
FRESH, RHO, EPS = (120, 20), (.1, .5, 1.), (.001, .002, .004) # images drawn anew in each step, the fewer beside a coreset of 100
LENGTHS = {2_000:(20, 5), 20_000:(200, 50)} # steps: states that are kept and dropped, a hundred steps apart

def estimate(E, D, S:Coreset|None, rho:float, B:int, prior:float, gen) -> Field: # B: images drawn anew
    "The energy of all data and its gradient, from a few images: new ones for each chain and step, and the coreset"
    N, M = len(D.y), 0 if S is None else len(S.x)
    mean = compiled(vmap(grad_and_value(lambda theta, x, y, w: E(theta, Coreset(x, y, w))), in_dims=(0, 0, 0, None)))
    w = torch.cat([torch.full((M,), rho/max(M, 1)), torch.full((B,), (1 - rho)/max(B, 1))])
    def both(theta):
        i = torch.randint(N, (len(theta), B), generator=gen)
        x, y = D.x[i], D.y[i]
        if S is not None: x, y = (torch.cat([s.expand(len(theta), *s.shape), d], 1) for s,d in ((S.x, x), (S.y, y)))
        slope, value = mean(theta, x, y, w)
        return N*slope + 2*prior*theta, N*value + prior*theta.square().sum(-1)
    return Field(both)

def run():
    study, data = STUDIES[NAME], data_of(NAME)
    net = network(NET, data.shape, data.K)
    p, E = whole(net, data, study).flatten(0, 1), energy(net.apply)
    sets = {m:distill(m, data, 10, progress=False, **(searched(NAME, m, 10, data) | dict(net=NET) | (dict(start='real') if m!='random' else {})))
            for m in called_with(__doc__, SETS) or SETS}
    ways = [*(('minibatch', None, 0., B) for B in FRESH), *((m, S, rho, min(FRESH)*(rho < 1)) for m,S in sets.items() for rho in RHO)]
    for way,S,rho,B in ways:
        for eps in EPS:
            for n,(states, burn) in LENGTHS.items():
                what = dict(data=NAME, method=way, rho=rho, fresh=B, eps=eps, steps=n)
                if any(all(r[k]==v for k,v in what.items()) for r in lines(LINES)): continue
                began, gen = time.process_time(), stream(0, 'minibatch', way, str(rho))
                theta = torch.stack([net.init(stream(0, 'start', r)) for r in range(CHAINS)])
                alg = sghmc(estimate(E, data.train, S, rho, B, study.prior, gen), eps, .1, steps=n//states)
                Q = asked(net, sample(alg, alg.init(theta), states, gen, burn), data, data.train.x[:1])
                found = closeness(p, Q.flatten(0, 1), data.test.y) | mixed(Q, data.test.y)
                add(LINES, what | found | dict(seconds=round(time.process_time() - began, 1)))
                print(what, round(found['total_variation'], 3), round(found['rhat'] or 0, 2), f"{time.process_time() - began:.0f} s", flush=True)

if __name__=='__main__': run()
