"""Text dataset distillation on TREC6 and SST-2, and what else the same number of sentences is good for.

    python results/families/words.py [PART ...]

runs the cells below whose names begin so (none: all) and adds a line to results/families/words.jsonl for each that has none yet. A line holds
the accuracy on the test sentences of students that follow the coreset's schedule; of students of the protocol `dc`, which know neither
schedule nor start; of students with the schedule who see the nearest words instead of vectors; and of judges without a network.
Rates and lengths were chosen on held-out sentences.
"""
import json, time
from pathlib import Path

from bpc_nb.core import Coreset, provenance, stream
from bpc_nb.data import load
from bpc_nb.distill import distill
from bpc_nb.evaluate import evaluate
from bpc_nb.lines import called_with
from bpc_nb.methods.tdd import as_words, off_words

HERE = Path(__file__).parent
LINES = HERE/'words.jsonl'
IPC, LENGTH = dict(trec6=20, sst2=10), dict(trec6=12, sst2=20)
SMALL = dict(net='textconv:width=16', steps=50, every=10, lr=.05, lr_labels=.05) # half a minute of one core
RATE = dict(trec6=.3, sst2=.2)
WAYS = { # what moves, and where students begin
    'learned':dict(), 'labels':dict(sentences=False), 'schedule':dict(sentences=False, soft=False),
    'learned, any start':dict(known=False), 'labels, any start':dict(sentences=False, known=False),
    'learned, BiLSTM':dict(net='bilstm:width=32'), 'labels, BiLSTM':dict(net='bilstm:width=32', sentences=False), 'random':None}
CELLS = {f'{data} {way}':(data, way) for data in IPC for way in WAYS}

def lines() -> list: return [json.loads(l) for l in LINES.read_text().splitlines()] if LINES.exists() else []

def others(S:Coreset, data, runs:int=1) -> dict:
    "What judges say who take no schedule"
    plain = S._replace(steps=None, init=None)
    judges = dict(dc=dict(protocol='dc', runs=runs), bag=dict(evaluator='bag'), bag_knn=dict(evaluator='bag', k=1), knn=dict(evaluator='knn'))
    return {k:evaluate(plain, data, **how)['accuracy_mean'] for k,how in judges.items()}

def row(name:str) -> dict:
    "A line"
    (dataset, way), began = CELLS[name], time.perf_counter()
    data, ipc, o = load(dataset, length=LENGTH[dataset]), IPC[dataset], WAYS[way]
    head = dict(name=name, data=dataset, method=way, ipc=ipc, sentences=ipc*data.K, seed=0, length=data.shape[0])
    if o is None: # random real sentences: means over draws
        draws = [data.draw(ipc, stream(0, 'control', i)) for i in range(2)]
        each = [others(S._replace(meta=S.meta | dict(net=SMALL['net'])), data, 1) for S in draws]
        return head | {k:sum(r[k] for r in each)/len(each) for k in each[0]} | dict(net=SMALL['net'], made=provenance())
    options = SMALL | dict(rate=RATE[dataset]) | o
    S = distill('tdd', data, ipc, seed=0, progress=False, **options)
    took, runs = round(time.perf_counter() - began), 1 if S.init is not None else 5
    own, read = (evaluate(s, data, runs) for s in (S, as_words(S)))
    return head | {k:own[k] for k in ('accuracy_mean','accuracy_std','nll_mean','ece_mean','labels','net','runs')} | others(S, data) | dict(
        words=read['accuracy_mean'], off=off_words(S), held_out=S.meta['held_out'], best=S.meta['step'], of=SMALL['steps'],
        sizes=[round(v, 3) for v in S.steps.flatten().tolist()], seconds=took, options=options, made=provenance())

if __name__=='__main__':
    parts = called_with(__doc__) or ['']
    for name in CELLS:
        asked = any(name==p or p not in CELLS and name.startswith(p) for p in parts)
        if not asked or any(r['name']==name for r in lines()): continue
        r = row(name)
        with open(LINES, 'a') as f: f.write(json.dumps(r) + '\n')
        print({k:r.get(k) for k in ('name','accuracy_mean','held_out','best','dc','words','off','bag','bag_knn','knn','seconds')}, flush=True)
