"""How well a coreset ranks networks: seventy-two for digits, and learning rates, against training on all images

    python results/rank.py [rank rank_lr]

Truth: three students of all training images each, 40 epochs, test images. Rankings, all on held-out images: random real images, herding, learned
coresets, and students of all images that are stopped after so many epochs as take the time of ten images a class. What has a line is not computed again.
"""
import json, sys
from pathlib import Path

from bpc_nb.core import provenance, read_coreset, stream
from bpc_nb.data import load
from bpc_nb.distill import distill
from bpc_nb.grid import coreset_file, done, of_students
from bpc_nb.rank import networks_of, score

HERE = Path(__file__).parent
LINES, FULL, RUNS = HERE/'rank.jsonl', dict(epochs=40, batch=64), 3

def lines() -> list: return [json.loads(l) for l in LINES.read_text().splitlines()] if LINES.exists() else []

def learned(method:str, ipc:int): # the best of fold 0 on held-out images
    rows = [r for r in done(HERE).values() if of_students(r) and (r.get('method'), r.get('ipc'), r.get('fold'), r.get('data'), r.get('protocol'))
            ==(method, ipc, 0, 'digits', 'quick') and r['config'].get('decode', 'identity')=='identity' and r['config'].get('L', 1)]
    rows = sorted(rows, key=lambda r: -r['held_out'])
    return next((read_coreset(p) for r in rows if (p := coreset_file(r, HERE))), None)

def proxies(data) -> dict: # name -> (coreset, options of training, images of a class)
    everything = data.draw(1, stream(0, 'whole'))._replace(x=data.train.x, y=data.train.y)
    out = {'truth':(everything, FULL, None)}
    for ipc in (1, 10):
        out |= {f'random, {ipc}':(data.draw(ipc, stream(0, 'rank')), {}, ipc),
                f'herding, {ipc}':(distill('herding', data, ipc, features='pixels', select_runs=1, progress=False), {}, ipc)}
        out |= {f'{m}, {ipc}':(S, {}, ipc) for m in ('cd','fkl','dm') if (S := learned(m, ipc)) is not None}
    return out | {f'early stopping, {e} epochs':(everything, dict(epochs=e, batch=64), None) for e in (1, 3, 15)}

if __name__=='__main__':
    data = load('digits')
    made = proxies(data)
    for file in sys.argv[1:] or ('rank', 'rank_lr'):
        for name,(S, how, ipc) in made.items():
            have = {json.dumps(r['candidate'], sort_keys=True) for r in lines() if (r['file'], r['by'])==(file, name)}
            for c in networks_of(HERE/f'{file}.toml'):
                if json.dumps(c, sort_keys=True) in have: continue
                truth = name=='truth'
                r = score(S, data, how | c, 'quick', RUNS if truth else 1, 'test' if truth else 'held')
                row = dict(file=file, by=name, candidate=c, ipc=ipc, accuracy=r['accuracy'], seconds=round(r['seconds'], 2), why=r.get('why'))
                with open(LINES, 'a') as f: f.write(json.dumps(row | dict(made=provenance())) + '\n')
            print(file, name, flush=True)
