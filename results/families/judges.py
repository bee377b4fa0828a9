"""Coresets of closed forms, through training and of a teacher under other judges than their own: wider features, trained features, students with learned and with hard labels.

    python results/families/judges.py [--judge usual] [KEY ...]

takes the lines of results/families/closed.jsonl, through.jsonl and statistics.jsonl whose names begin so (none: all) and adds a line to results/families/judges.jsonl for each judge
whose name begins so (none: all) and that has none yet, each beside as many random real images. What has a line is not judged again. *Usual students* have
the network and the protocol of the data set's recipes, and know nothing of a schedule or a start that a coreset brings along.
"""
import argparse, json, time
from itertools import chain
from pathlib import Path

from bpc_nb.core import Coreset, provenance
from bpc_nb.data import load
from bpc_nb.distill import usual
from bpc_nb.evaluate import evaluate
from bpc_nb.fast import accelerate
from bpc_nb.lines import or_idle
from bpc_nb.metrics import Diverged
from bpc_nb.networks import network

HERE = Path(__file__).parent
LINES = HERE/'judges.jsonl'
STUDIES = 'closed', 'through', 'statistics'
WIDE = 'convnet:width=128'

def hard(S:Coreset) -> Coreset: return S if S.y.ndim==1 else S._replace(y=S.y.argmax(1), targets=False) # the class of its largest target
def bare(S:Coreset) -> Coreset: return S._replace(steps=None, init=None) # nothing but images and labels

USUAL = {'usual students, learned labels': bare, 'usual students, hard labels': lambda S: hard(bare(S))}
JUDGES = { # name -> (network or None: the coreset's own, what is judged, options of `evaluate`)
    'own features': (None, lambda S: S, dict(evaluator='ridge')),
    'wide features': (WIDE, lambda S: S, dict(evaluator='ridge')),
    'own features, variance': (None, lambda S: S, dict(evaluator='vbpc-untrained')),
    'wide features, variance': (WIDE, lambda S: S, dict(evaluator='vbpc-untrained')),
    'students, learned labels': (None, lambda S: S, dict(protocol='dc')),
    'students, hard labels': (None, hard, dict(protocol='dc')),
    'trained features': (None, lambda S: S, dict(evaluator='last-layer', protocol='dc'))}

def lines(path:Path) -> list: return [json.loads(l) for l in path.read_text().splitlines()] if path.exists() else []

def judged(line:dict, judge:str, data, runs:int=2) -> dict:
    "A line"
    name = line['data'].split()[0]
    net, of, how = (usual(name, 'net'), USUAL[judge], dict(protocol=usual(name, 'select_protocol'))) if judge in USUAL else JUDGES[judge]
    S = Coreset.load(HERE.parent/'coresets'/f"{line['key']}.safetensors")
    own = line['config']['net']
    if line['method'] in ('kip','ls') or own=='convnet': own = 'convnet:width=64'
    began, fast = time.perf_counter(), accelerate(network(net or own, data.shape, data.K), compile=True)
    twin = next((r for r in lines(LINES) if judge in USUAL and r['judge'] in USUAL and 'accuracy_mean_random' in r and all(r[k]==line[k] for k in ('data','ipc','zca'))
                 and (r['net'], r['runs'], r.get('protocol', 'dc'))==(net or own, runs, how.get('protocol'))), None) # usual students of random images are the same beside any coreset
    try: found = evaluate(of(S), data, runs, net=fast, control=twin is None, eight_bit=False, **how)
    except Diverged as e: found = dict(diverged=str(e)) # a fact about the coreset
    found |= {k:v for k,v in (twin or {}).items() if k.endswith('_random')}
    kept = {k:v for k,v in found.items() if k.split('_')[0] in ('accuracy','nll','ece','diverged') and 'runs' not in k}
    return dict(of=line['key']) | {k:line[k] for k in ('method','data','ipc','zca')} | dict(judge=judge, net=net or own, runs=runs) | {k:v for k,v in how.items() if k=='protocol'} | kept \
        | dict(seconds=round(time.perf_counter() - began), made=provenance())

def asked(S:Coreset): # judges of a coreset: a regression wants targets, and there are labels to learn or there are none
    return [k for k in (*USUAL, *JUDGES) if (S.targets or k in USUAL) and (S.y.is_floating_point() or k!='usual students, learned labels')]

if __name__=='__main__':
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--judge', default=''); parser.add_argument('keys', nargs='*', default=[''])
    options, sets = parser.parse_args(), {}
    or_idle([LINES])
    for line in [*chain(*(lines(HERE/f'{n}.jsonl') for n in STUDIES))]:
        path = HERE.parent/'coresets'/f"{line['key']}.safetensors"
        if not path.exists() or line['config'].get('images') is False or not any(line['key'].startswith(k) for k in options.keys):
            continue # a schedule alone has no images of its own
        name = line['data'].split()[0], line['zca']
        for judge in asked(Coreset.load(path)):
            if not judge.startswith(options.judge) or any((r['of'], r['judge'])==(line['key'], judge) for r in lines(LINES)): continue
            if name not in sets: sets = {name: load(name[0], zca=name[1])} # one at a time
            row = judged(line, judge, sets[name])
            with open(LINES, 'a') as f: f.write(json.dumps(row) + '\n')
            print({k:row.get(k) for k in ('method','data','ipc','judge','accuracy_mean','accuracy_mean_random','nll_mean','seconds')}, flush=True)
