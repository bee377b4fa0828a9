"""A generator with a learned curriculum, its ablations, and whom its samples serve: 16 images a class, 16 steps, 300 learning steps.

    python results/families/gtn.py [DATA ...]

adds a line to results/families/gtn.jsonl for each data set, ablation and seed that has none yet: students by the coreset's own steps on test images, on
its own network and on others, and students by protocol `dc` that are given its images alone; beside the latter random real images.
"""
import json, time
from itertools import product
from pathlib import Path

from bpc_nb.core import provenance
from bpc_nb.data import load
from bpc_nb.distill import distill
from bpc_nb.evaluate import evaluate
from bpc_nb.lines import called_with
from bpc_nb.metrics import Diverged

LINES = Path(__file__).parent/'gtn.jsonl'
OTHERS = dict(digits=['logistic','mlp:width=128','convnet:width=16,depth=2'], mnist=['logistic','mlp:width=32','lenet','convnet:width=16'])
ABLATIONS = { # name -> options of `gtn`
    'curriculum':{}, 'fixed latent vectors':dict(order='fixed'), 'shuffled batches':dict(order='batches'), 'all shuffled':dict(order='all'),
    'real images':dict(source='real'), 'pixels':dict(source='pixels')}

def judged(S, data, net:str|None, runs:int=3, **o) -> dict:
    "Accuracy of students on test images, or that they diverged"
    try: found = evaluate(S, data, runs, net=net, eight_bit=False, **o)
    except Diverged: return dict(net=net, diverged=True)
    return {k:found[k] for k in ('net','runs','protocol','epochs','accuracy_mean','accuracy_std','nll_mean','accuracy_mean_random') if k in found}

def line(name:str, what:str, seed:int, data) -> dict:
    "A line"
    began = time.perf_counter()
    S = distill('gtn', data, 16, seed=seed, real=256, progress=False, select_runs=2, **ABLATIONS[what])
    seconds = round(time.perf_counter() - began)
    others = OTHERS[name] if seed==0 and what in ('curriculum','fixed latent vectors','real images') else []
    return dict(data=name, what=what, seed=seed, ipc=16, method='gtn', config={k:S.meta[k] for k in ('inner','steps','order','source','rate')}) \
        | judged(S, data, None, 5) | dict(step_size=S.steps.mean().item(), held_out=S.meta['held_out'], at=S.meta['step'],
            others=[judged(S, data, net) for net in others],
            dc=judged(S._replace(steps=None), data, None, protocol='dc', control=what=='curriculum') if seed==0 else None,
            seconds=seconds, made=provenance())

if __name__=='__main__':
    have = {(r['data'], r['what'], r['seed']) for r in map(json.loads, LINES.read_text().splitlines())} if LINES.exists() else set()
    names = called_with(__doc__, OTHERS) or [*OTHERS]
    sets = {name:load(name) for name in names}
    for seed, name, what in product((0, 1), names, ABLATIONS):
        if (name, what, seed) in have: continue
        r = line(name, what, seed, sets[name])
        with open(LINES, 'a') as f: f.write(json.dumps(r) + '\n')
        print({k:r.get(k) for k in ('data','what','seed','accuracy_mean','step_size','at','seconds')},
              [(o['net'], o.get('accuracy_mean')) for o in r['others']], r['dc'] and r['dc'].get('accuracy_mean'), flush=True)
