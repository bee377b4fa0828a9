"""Clients that send coresets once, beside clients that send weights round after round: accuracy of the server's network against bytes

    python results/uses/federated.py [digits mnist]

Five clients with two classes each, or all; five seeds of who has what on digits, three on MNIST. The step size of averaging is the best of three on
held-out images, for each spread of the classes. Narrower networks have weights of about the bytes of a union of coresets. A line is one way of one seed; what has a line in results/uses/federated.jsonl is not computed again.
"""
import json, time
from itertools import product
from pathlib import Path
from statistics import mean

import torch

from bpc_nb.core import provenance
from bpc_nb.data import load
from bpc_nb.distill import distill
from bpc_nb.evaluate import evaluate
from bpc_nb.federated import clients, federate, image_bytes, union, weight_bytes
from bpc_nb.lines import called_with
from bpc_nb.networks import network

EACH = 2, 10 # classes of a client
LINES, N, RATES = Path(__file__).parent/'federated.jsonl', 5, (.02, .05, .1)
SHORT, FEW = dict(n=6, epochs=3, part=.1, batch=128), dict(select_runs=1, select_protocol='dc')
NARROW = dict(digits={'convnet:width=2,depth=2':(1, 5), 'convnet:width=4,depth=2':(1, 2)}, mnist={}) # network -> rounds that are shown
CHOSEN = dict(random={}, herding=dict(features='pixels', select_runs=1))
SETTINGS = dict( # network, students' protocol, seeds, rounds, epochs of a round, images a class, options of what is learned
    digits=('convnet:width=16,depth=2', 'quick', 5, 40, 5, (1, 5), dict(
        dm=dict(steps=300, every=100), cd=dict(steps=200, every=100, lr=10., alpha=.2, T=5, k_max=10, width=.6, experts=dict(n=5, epochs=15)))),
    mnist=('convnet:width=16', 'dc', 3, 20, 1, (1, 10), dict(
        dm=dict(steps=200, every=100) | FEW,
        cd=dict(steps=120, every=60, lr=20., alpha=.1, L=20, T=2, k_max=1, width=.5, pairs=2, experts=SHORT) | FEW)))

def lines() -> list: return [json.loads(l) for l in LINES.read_text().splitlines()] if LINES.exists() else []

def missing(name:str, each:int, seed:int) -> set: # of (way, images a class)
    "What has no line yet"
    have = {(r['method'], r['ipc']) for r in lines() if (r['data'], r['each'], r['seed'])==(name, each, seed)}
    weights = {('weights', None), *((f'weights of {net}', None) for net in NARROW[name])}
    return (weights | {*product(CHOSEN | SETTINGS[name][-1], SETTINGS[name][-2])}) - have

def add(row:dict):
    with open(LINES, 'a') as f: f.write(json.dumps(row | dict(made=provenance())) + '\n')
    print({k:v for k,v in row.items() if k not in ('made','clients')}, flush=True)

def right(net, theta, s) -> float:
    with torch.no_grad(): return torch.cat([net.apply(theta, x).argmax(1) for x in s.x.split(1000)]).eq(s.y).float().mean().item()

if __name__=='__main__':
    asked = called_with(__doc__, SETTINGS) or SETTINGS
    left = {case:some for case in ((name, each, seed) for name in asked for each in EACH for seed in range(SETTINGS[name][2])) if (some := missing(*case))}
    if left: print(sum(map(len, left.values())), 'lines are not there yet', flush=True)
    for name in dict.fromkeys(case[0] for case in left):
        spec, protocol, seeds, rounds, epochs, sizes, learned = SETTINGS[name]
        data = load(name)
        net = network(spec, data.shape, data.K)
        for each in EACH:
            for seed in (s for s in range(seeds) if (name, each, s) in left):
                parts, todo = clients(data, N, each, seed), left[name, each, seed]
                common = dict(data=name, clients=N, each=each, seed=seed, net=spec)
                for of,shown in [(spec, [r for r in (1, 2, 5, 10, 20, 40) if r <= rounds]), *NARROW[name].items()]:
                    if ((way := 'weights' if of==spec else f'weights of {of}'), None) not in todo: continue
                    began, small = time.process_time(), network(of, data.shape, data.K)
                    runs = {lr:[*federate(small, parts, data, shown[-1], seed, epochs, lr)] for lr in RATES}
                    lr = max(RATES, key=lambda lr: mean(right(small, t, data.held) for t in runs[lr][-3:]))
                    add(common | dict(net=of, method=way, ipc=None, lr=lr, epochs=epochs, seconds=round((time.process_time() - began)/len(RATES), 1),
                                      rounds=[*shown], accuracy=[right(small, runs[lr][r-1], data.test) for r in shown],
                                      bytes=[weight_bytes(small, N, r) for r in shown]))
                for way,o in (CHOSEN | learned).items():
                    for ipc in sizes:
                        if (way, ipc) not in todo: continue
                        began = time.process_time()
                        sent = [distill(way, c, ipc, seed=seed, net=spec, progress=False, **o) for c in parts]
                        took = round(time.process_time() - began, 1)
                        r = evaluate(union(sent, data), data, 3, protocol, net=net, seed=seed)
                        add(common | dict(method=way, ipc=ipc, seconds=took, accuracy=r['accuracy_mean_8bit'], bytes=image_bytes(sent), protocol=protocol))
