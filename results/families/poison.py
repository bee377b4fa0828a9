"""The attack on networks that it has not seen, its controls, and the check on coresets that harm nobody.

    python results/families/poison.py [CELL ...]

adds a line to results/families/poison.jsonl for each cell (none named: all) that has none yet: what each of the attack, noise of the same norms, real
images and mislabelled real images does to each class of held-out networks on test images, and what `inspected` says of it on held-out images.
"""
import json, time
from pathlib import Path

import torch

from bpc_nb.core import provenance, stream
from bpc_nb.data import load
from bpc_nb.lines import called_with
from bpc_nb.networks import network
from bpc_nb.poison import beside_attack, falls, inspected, poison, trained
from bpc_nb.zoo import load_coreset

LINES = Path(__file__).parent/'poison.jsonl'
NETS = { # data -> network, how it is trained, how many the attacker has and has not, a network of another kind
    'digits': ('mlp:width=32', dict(epochs=20, lr=.05, momentum=.9), 40, 10, 'mlp:width=128'),
    'mnist': ('lenet', dict(epochs=3, part=.25, lr=.05, momentum=.9, batch=128, bf16=False, compile=False), 20, 10, 'mlp:width=128')}
CELLS = { # name -> data, attacked, target, images a class, options
    'digits 3 8': ('digits', 3, 8, 10, {}), 'digits 4 9': ('digits', 4, 9, 10, {}), 'digits 0 1': ('digits', 0, 1, 10, {}),
    'digits 3 8, one a class': ('digits', 3, 8, 1, {}), 'digits 3 8, 8 bit': ('digits', 3, 8, 10, dict(pixels='8bit')),
    'mnist 3 8': ('mnist', 3, 8, 10, {}), 'mnist 3 8, 8 bit': ('mnist', 3, 8, 10, dict(pixels='8bit')),
    'mnist 0 1': ('mnist', 0, 1, 10, {}), 'mnist 4 9': ('mnist', 4, 9, 10, {}), 'mnist 3 8, one a class': ('mnist', 3, 8, 1, {})}
HARMLESS = 10 # draws of random real images

def mislabelled(S, data, k:int, t:int): # real images of the attacked class, all with the target's label
    x = data.train.x[data.train.y==k][:len(S.y)]
    return S._replace(x=x, y=torch.full((len(x),), t))

def row(cell:str, what:str, S, of:tuple, data, net, thetas, **more) -> dict: # of: attacked, target
    "A line"
    fall, then = falls(net, S, thetas, data)
    others = [k for k in range(data.K) if k!=of[0]]
    check = {k:v for k,v in inspected(S, data, net, thetas[:5]).items() if k!='falls'}
    found = dict(fall=fall[of[0]], others=fall[others].mean(), worst=fall[others].max(), called=then[of]) # in points
    return dict(cell=cell, what=what, data=data.name, net=net.name, attacked=of[0], target=of[1], images=len(S.x), networks=len(thetas)) \
        | {k:100*v.item() for k,v in found.items()} | dict(falls=(100*fall).tolist(), check=check) | more

def lines_of(cell:str): # yields dicts
    name, k, t, ipc, options = CELLS[cell]
    data, (spec, how, n, m, other) = load(name), NETS[name]
    net, thetas = network(spec, data.shape, data.K), trained(data, network(spec, data.shape, data.K), dict(n=n+m) | how)
    began = time.perf_counter()
    S = poison(data, net, thetas[:n], k, t, ipc, steps=500, **dict(real=512, draws=1) | options)
    more = dict(step_size=S.steps.item(), learned_s=round(time.perf_counter() - began), options=options)
    every = beside_attack(S, data, stream(0, 'controls')) | {'mislabelled real images':mislabelled(S, data, k, t), 'without its step':S._replace(steps=None)}
    for what,of in every.items():
        if what!='without its step': yield row(cell, what, of, (k, t), data, net, thetas[n:], **more)
        else: yield dict(cell=cell, what=what, data=name, check=inspected(of, data, net, thetas[n:n+5]))
    mlp = network(other, data.shape, data.K)
    yield row(cell, 'attack', S, (k, t), data, mlp, trained(data, mlp, dict(n=5) | how), **more)

def harmless(name:str): # yields dicts: coresets that attack nobody
    data, (spec, how, n, m, _) = load(name), NETS[name]
    net = network(spec, data.shape, data.K)
    thetas = trained(data, net, dict(n=n+m) | how)[n:n+5]
    real = {f'random real, {ipc} a class, {i}': data.draw(ipc, stream(0, 'harmless', i))._replace(steps=torch.tensor([[lr]]) if lr else None)
            for i in range(HARMLESS) for ipc,lr in (((1, None), (10, None), (10, .1))[i%3],)}
    for what,S in (real | {f'learned, {ipc} a class': load_coreset(name, ipc) for ipc in (1, 10)}).items():
        yield dict(cell=f'{name} harmless', what=what, data=name, net=spec, images=len(S.x), check=inspected(S, data, net, thetas))

if __name__=='__main__':
    have = {json.loads(l)['cell'] for l in LINES.read_text().splitlines()} if LINES.exists() else set()
    every = *CELLS, *(f'{d} harmless' for d in NETS)
    asked = called_with(__doc__, every) or every
    left = [cell for cell in asked if cell not in have]
    if left: print(f"{len(left)} of {len(asked)} cells have no line yet: {', '.join(left)}", flush=True)
    for cell in left:
        rows = [r | dict(made=provenance()) for r in (harmless(cell.split()[0]) if 'harmless' in cell else lines_of(cell))]
        with open(LINES, 'a') as f: f.writelines(json.dumps(r) + '\n' for r in rows)
        for r in rows: print({k:round(v, 1) if isinstance(v, float) else v for k,v in r.items() if k in ('cell','what','net','fall','others','worst','called','step_size')},
                             [c['label'] for c in r['check']['singled_out']], round(r['check']['typical'], 1), flush=True)
