"""Classes that arrive two at a time, remembered by every method: networks trained on the memory alone, and networks trained further beside it

    python results/uses/memory.py [digits mnist cifar10] [--methods random+cd] [--per-class N] [--alone]

Five orders of arrival, five stages each. A line is one stage of one order, method and way of training. What has a line in results/uses/memory.jsonl is not
computed again; an order that was not finished begins anew. With --alone no network is trained further; a call without it begins such an order anew.
"""
import json, time
from pathlib import Path

import torch

from bpc_nb.core import provenance, stream
from bpc_nb.data import Split, load
from bpc_nb.evaluate import evaluate
from bpc_nb.lines import called_with
from bpc_nb.later import arrivals, go_on
from bpc_nb.memory import Memory, only
from bpc_nb.networks import network

LINES, ORDERS = Path(__file__).parent/'memory.jsonl', 5
SHORT = dict(n=6, epochs=3, part=.1, batch=128) # experts of one stage
FEW = dict(select_runs=1, select_protocol='dc')
SETTINGS = dict( # network, images of a class, students' protocol, options of the methods that learn
    digits=('convnet:width=32,depth=2', 2, 'quick', dict(
        cd=dict(steps=200, every=100, lr=10., alpha=.2, T=5, k_max=10, width=.6, experts=dict(n=5, epochs=15)),
        fkl=dict(steps=200, every=100, experts=dict(n=5, epochs=15)),
        **{'positive-only': dict(steps=200, every=100, lr=1., T=5, experts=dict(n=5, epochs=15))},
        mnemonics=dict(T=15, experts=dict(n=5, epochs=15)), frepo=dict(steps=300, every=100), dm=dict(steps=300, every=300))),
    **{name:('convnet:width=32', 10, 'dc', dict(
        cd=dict(steps=120, every=60, lr=20., alpha=.1, L=20, T=2, k_max=1, width=.5, pairs=2, experts=SHORT) | FEW,
        fkl=dict(steps=120, every=60, lr=20., alpha=.1, L=20, T=2, k_max=1, experts=SHORT) | FEW,
        **{'positive-only': dict(steps=120, every=60, lr=20., T=2, k_max=1, width=.3, pairs=2, experts=SHORT) | FEW},
        mnemonics=dict(T=2, steps=150, every=75, experts=dict(n=1, epochs=2, batch=128)) | FEW,
        frepo=dict(steps=300, every=150, real=256, pool=0, average=.99) | FEW,
        dm=dict(steps=500, every=500, real=64) | FEW)) for name in ('mnist','cifar10')})
SINGLE = { # one image a class: options as in the recipes of that time, but 120 steps, the experts of above and ten samples of forward KL
    'mnist': dict(cd=dict(lr=100., alpha=.06, T=2, k_max=2, width=.3), fkl=dict(lr=100., alpha=.06, T=2, k_max=2, samples=10),
                  **{'positive-only': dict(lr=30., T=2, k_max=2, width=.3, pixels='free')}),
    'cifar10': dict(cd=dict(lr=50., alpha=.1, T=2, k_max=1, width=.5), fkl=dict(lr=100., alpha=.1, T=2, k_max=1, samples=10),
                    **{'positive-only': dict(lr=80., T=1, k_max=1, width=.3)})}
NARROW = {('cifar10', 1): 'convnet:width=16'} # so that five orders of eleven methods take an evening
CHOSEN = {'random':{}, 'herding':dict(features='pixels'), 'k-center':dict(features='pixels'), 'k-means':{}}

def lines() -> list: return [json.loads(l) for l in LINES.read_text().splitlines()] if LINES.exists() else []

def options_for(data:str, method:str, places:int) -> dict:
    net, learned = NARROW.get((data, places), SETTINGS[data][0]), SETTINGS[data][3]
    name, _, way = method.partition(', ')
    own = CHOSEN[name] | dict(select_runs=1) if name in CHOSEN else learned[name]
    single = SINGLE.get(data, {}).get(name) if places==1 else None
    if single: own = dict(steps=120, every=60, experts=SHORT) | FEW | single
    return own | dict(net=net) | (dict(way=way) if way else {})

def run(name:str, method:str, order:int, places:int, alone:bool=False):
    "One order of one method, stage by stage"
    spec, protocol = NARROW.get((name, places), SETTINGS[name][0]), SETTINGS[name][2]
    data = load(name)
    net = network(spec, data.shape, data.K)
    m, theta, groups = Memory(per_class=places, method=method.partition(',')[0], options=options_for(name, method, places)), net.init(stream(order, 'later')), []
    number = lambda classes, y: torch.tensor([data.classes.index(c) for c in classes])[y]
    for stage,names in enumerate(arrivals(data, order=order)):
        new, old, began = only(data, names), sorted(number(m.classes, torch.arange(len(m.classes))).tolist()) if m.classes else [], time.process_time()
        stored = Split(m.coreset.x, number(m.classes, m.coreset.y)) if m.coreset else None
        if not alone: theta = go_on(net, theta, Split(new.train.x, number(new.classes, new.train.y)), stored, old, stream(order, 'later', stage))
        tuned, began = time.process_time() - began, time.process_time()
        m = m.add(new, seed=order, progress=False)
        learned, began = time.process_time() - began, time.process_time()
        groups.append(names)
        seen = only(data, m.classes)
        r = evaluate(m.replay(), seen, 2, protocol, net=network(spec, data.shape, seen.K), seed=order, eight_bit=False, progress=False)
        at = sorted(data.classes.index(c) for c in m.classes)
        def right(names): # of the network that was trained further
            d = only(data, names)
            y = torch.tensor([at.index(i) for i in number(d.classes, d.test.y).tolist()])
            with torch.no_grad(): said = torch.cat([net.apply(theta, x)[:,at].argmax(1) for x in d.test.x.split(1000)])
            return (said==y).float().mean().item()
        each, n = [] if alone else [right(g) for g in groups], [len(only(data, g).test.y) for g in groups]
        row = dict(data=name, method=method, order=order, stage=stage, classes=len(m.classes), per_class=places, net=spec,
                   memory=r['accuracy_mean'], further=None if alone else sum(a*b for a,b in zip(each, n))/sum(n), groups=each, protocol=protocol,
                   bytes=m.coreset.x[0].numel()*len(m.coreset.x), seconds=dict(memory=round(learned, 1), further=round(tuned, 1)), made=provenance())
        with open(LINES, 'a') as f: f.write(json.dumps(row) + '\n')
        print({k:row[k] for k in ('data','method','order','stage','memory','further','seconds')}, flush=True)

if __name__=='__main__':
    words = called_with(__doc__)
    def given(flag): return words[words.index(flag)+1] if flag in words else ''
    names = [w for w in words if w in SETTINGS] or ['digits','mnist']
    for name in names:
        places = int(given('--per-class') or SETTINGS[name][1])
        for order in range(ORDERS):
            for method in given('--methods').split('+') if '--methods' in words else [*CHOSEN, 'positive-only', 'cd', 'fkl', 'mnemonics',
                                                                                       'mnemonics, means', 'frepo', 'dm']:
                cell = name, method, order, places
                def of(r): return (r['data'], r['method'], r['order'], r['per_class'])==cell
                have = [r for r in lines() if of(r)]
                if len(have)==5 and ('--alone' in words or all(r['further'] is not None for r in have)): continue
                if have: LINES.write_text(''.join(json.dumps(r) + '\n' for r in lines() if not of(r)))
                run(*cell, '--alone' in words)
