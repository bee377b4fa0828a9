"""Away from the data: students of learned coresets on test images that are spoilt in fifteen ways, and how well they know what they know

    python results/posterior/robust.py [cifar10 mnist]

For the coresets of seed 0 with one image a class that the grids have kept, for CIFAR-10 with ten as well, and random real images beside them: an ensemble of two
students each, by protocol `dc` and with the recipe's network. All training images stand beside them: two networks of the same kind, four epochs. Every one sees the same 1,000 test images, clean and with each corruption at severities 1, 3 and 5. What has a line in results/posterior/robust.jsonl is not
measured again.
"""
import json, time
from pathlib import Path

import torch

from bpc_nb.core import provenance, read_coreset, stream
from bpc_nb.corrupt import log_amplitude, robustness
from bpc_nb.data import Split, load
from bpc_nb.evaluate import examples_of, matched, predict, students
from bpc_nb.grid import best_here
from bpc_nb.lines import called_with, coreset_file, done, of_students
from bpc_nb.metrics import summary

HERE = Path(__file__).parent
LINES, STUDENTS, IMAGES, SEVERITIES = HERE/'robust.jsonl', 2, 1000, (1, 3, 5)
EPOCHS, WHOLE = 300, dict(epochs=4, batch=128) # of networks that see all images
METHODS = 'cd', 'positive-only', 'fkl', 'wasserstein', 'dc', 'dsa', 'dm', 'cafe'
SIZES = dict(cifar10=(1, 10), mnist=(1,)) # images a class
NAMES = 'method', 'L', 'width' # what tells sets apart

def lines() -> list: return [json.loads(l) for l in LINES.read_text().splitlines()] if LINES.exists() else []

def sets(data:str, ipc:int) -> list: # of (what it is, coreset or None for random real images)
    "Coresets of one size, seed 0, by the network of the recipe"
    def wanted(r):
        return (of_students(r) and r.get('data', '').split()[:1]==[data] and r.get('method') in METHODS and r.get('protocol')=='dc' and
                (r['ipc'], r['seed'], r['net'], r['config'].get('decode', 'identity'), r['config'].get('labels', 'hard'), r['zca'])
                ==(ipc, 0, 'convnet', 'identity', 'hard', False))
    rows = sorted((r for r in done(HERE.parent).values() if 'config' in r and wanted(r)), key=lambda r: not r['config'].get('width')) # with noise first
    return [(dict(method=m), None) for m in ('random','all images')] + \
           [({k:r['config'].get(k, r.get(k)) for k in NAMES} | dict(method=r['method'], of=r['key']), coreset_file(r, HERE.parent)) for r in rows]

def measure(S, data, **options) -> dict: # options of `students`
    "An ensemble of students on clean and on spoilt images"
    S, data, net = matched(S, data, 'convnet')
    net, seen = best_here(net.name, data, EPOCHS*len(S.y), 'cpu'), examples_of(S, 'cpu')
    thetas = students(seen, net, STUDENTS, seed=(0, 'robust'), **options)
    def probs(x):
        with torch.no_grad(): return torch.stack([predict(net, t, x, net.stats(t, seen.x)) for t in thetas]).mean(0)
    some = torch.randperm(len(data.test.y), generator=stream(0, 'robust'))[:IMAGES]
    data = data._replace(test=Split(data.test.x[some], data.test.y[some]))
    rows = robustness(probs, data, severities=SEVERITIES)
    return summary(probs(data.test.x), data.test.y) | dict(rows=rows, spectrum=log_amplitude(S.pixels()).tolist())

if __name__=='__main__':
    for name in called_with(__doc__, ('cifar10','mnist')) or ('cifar10','mnist'):
        data = load(name)
        have = [{k:r[k] for k in ('data','ipc','method','of')} for r in lines()]
        for ipc,what,path in [(ipc, *s) for ipc in SIZES[name] for s in sets(name, ipc)]:
            whole = what['method']=='all images'
            at = dict(data=name, ipc=None if whole else ipc, method=what['method'], of=what.get('of'))
            if at in have or what['method'] not in ('random','all images') and not path: continue # too large to be kept here
            have.append(at)
            began, S = time.process_time(), read_coreset(path) if path else data.draw(ipc, stream(0, 'robust'))
            if whole: S = S._replace(x=data.train.x, y=data.train.y)
            row = at | dict(students=STUDENTS, images=IMAGES) | what | measure(S, data, **WHOLE if whole else {})
            with open(LINES, 'a') as f: f.write(json.dumps(row | dict(seconds=round(time.process_time() - began), made=provenance())) + '\n')
            print({k:v for k,v in row.items() if k not in ('rows','spectrum')}, flush=True)
