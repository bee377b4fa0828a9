"""How well a coreset ranks networks: seventy-two for digits, thirty-six for MNIST, and learning rates, against training on all images

    python results/uses/rank.py [rank rank_lr rank_mnist]

Truth: students of all training images each, test images; three of 40 epochs for digits, one of 5 for MNIST. Rankings, all on held-out images: random
real images, herding, coresets learned by the methods' recipes, and students of all images that are stopped after so many epochs as take the time of ten images a class, of one, or less.
What has a line is not computed again.
"""
import json, time
from pathlib import Path

import torch

from bpc_nb.cells import same_options
from bpc_nb.core import provenance, read_coreset, stream
from bpc_nb.data import load
from bpc_nb.distill import configure, distill
from bpc_nb.lines import called_with, coreset_file, done, of_students
from bpc_nb.rank import networks_of, score

HERE = Path(__file__).parent
LINES = HERE/'rank.jsonl'
DIGITS = dict(data='digits', lines='quick', full=dict(epochs=40, batch=64), runs=3, stops=(1, 3, 5, 12, 15))
FILES = dict(rank=DIGITS, rank_lr=DIGITS, # data, protocol of coresets' lines, training on all images, how many of it, epochs of early stopping
             rank_mnist=dict(data='mnist', lines='dc', full=dict(epochs=5, batch=128), runs=1, stops=(.08, .1, .3, .36, 1)))

def lines() -> list: return [json.loads(l) for l in LINES.read_text().splitlines()] if LINES.exists() else []

def learned(method:str, ipc:int, data:str, protocol:str): # by the method's recipe; of several seeds the best on held-out images, of digits' fold 0
    recipe = configure(method, data, ipc)
    rows = [r for r in done(HERE.parent).values() if of_students(r) and 'config' in r and (r.get('method'), r.get('ipc'), r.get('fold'), r.get('data'), r.get('protocol'))
            ==(method, ipc, 0 if data=='digits' else None, data, protocol) and r['config'].get('decode', 'identity')=='identity'
            and same_options(method, r['config'], recipe)]
    rows = sorted(rows, key=lambda r: -r['held_out'])
    return next((read_coreset(p)._replace(meta=dict(of=r['key'])) for r in rows if (p := coreset_file(r, HERE.parent))), None)

def proxies(D, full:dict, stops, lines:str, **_) -> dict: # name -> (coreset, options of training, images a class)
    def everything(share=1):
        n = round(share*len(D.train.y))
        i = torch.randperm(len(D.train.y), generator=stream(0, 'share'))[:n]
        return D.draw(1, stream(0, 'whole'))._replace(x=D.train.x[i], y=D.train.y[i])
    out = {'truth':(everything(), full, None)}
    for ipc in (1, 10):
        out |= {f'random, {ipc}':(D.draw(ipc, stream(0, 'rank')), {}, ipc),
                f'herding, {ipc}':(distill('herding', D, ipc, features='pixels', select_runs=1, progress=False), {}, ipc)}
        out |= {f'{m}, {ipc}':(S, {}, ipc) for m in ('cd','fkl','dm') if (S := learned(m, ipc, D.name, lines)) is not None}
    return out | {f'early stopping, {e} epochs':(everything(min(1, e)), full | dict(epochs=max(1, e)), None) for e in stops}

if __name__=='__main__':
    for file in called_with(__doc__, FILES) or FILES:
        how = FILES[file]
        data = load(how['data'])
        for name,(S, o, ipc) in proxies(data, **how).items():
            have = {json.dumps(r['candidate'], sort_keys=True) for r in lines() if (r['file'], r['method'])==(file, name)}
            for c in networks_of(HERE/f'{file}.toml'):
                if json.dumps(c, sort_keys=True) in have: continue
                truth, began = name=='truth', time.process_time() # of one core, whatever else runs
                r = score(S, data, o | c, 'quick', how['runs'] if truth else 1, 'test' if truth else 'held')
                row = dict(file=file, data=how['data'], method=name, candidate=c, ipc=ipc, **{k:v for k,v in S.meta.items() if k=='of'}, accuracy=r['accuracy'], seconds=round(time.process_time() - began, 2), why=r.get('why'))
                with open(LINES, 'a') as f: f.write(json.dumps(row | dict(made=provenance())) + '\n')
            print(file, name, flush=True)
