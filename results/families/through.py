"""What is left of a coreset with a schedule when anything about the schedule changes, what neighbours and baselines do, and networks that come from other data.

    python results/families/through.py [changed] [own] [baselines] [adapted]

`changed` takes the coresets of results/families/through.jsonl that have step sizes, and adds to results/families/changed.jsonl a line for each condition that has none yet: other step sizes,
another order, other initialisations, other networks, no schedule. `own` gives the images of learned labels their own labels back. `baselines` judges random images, the best of twenty random sets, centres of k-means and learned images by
students and by the nearest neighbour. `adapted` begins at networks that were trained on digits and takes three steps on ten images of MNIST. All on test images, once.
"""
import json, time
from pathlib import Path

import torch

from bpc_nb.core import Coreset, provenance, stream
from bpc_nb.data import load
from bpc_nb.energy import energy
from bpc_nb.evaluate import evaluate, in_order, predict
from bpc_nb.lines import called_with
from bpc_nb.learn import IMAGES, Task, outer, shown
from bpc_nb.methods.dd import altered, scheduled
from bpc_nb.methods.select import k_means
from bpc_nb.metrics import summary
from bpc_nb.networks import network
from bpc_nb.train import train, untrained

HERE = Path(__file__).parent
OTHERS = dict(mnist=('convnet:width=32', 'mlp', 'lenet'), digits=('convnet:width=32,depth=2', 'mlp:width=128'),
              cifar10=('convnet:width=64', 'alexnet'))

def lines(name:str) -> list:
    path = HERE/f'{name}.jsonl'
    return [json.loads(l) for l in path.read_text().splitlines()] if path.exists() else []

def add(name:str, line:dict):
    with open(HERE/f'{name}.jsonl', 'a') as f: f.write(json.dumps(line | dict(made=provenance())) + '\n')
    print({k:v for k,v in line.items() if k!='accuracy_runs'}, flush=True)

def worth(S:Coreset, data, runs:int, **how) -> dict:
    began = time.perf_counter()
    found = evaluate(S, data, runs, eight_bit=False, **how)
    return {k:found[k] for k in ('accuracy_mean','accuracy_std','accuracy_runs','nll_mean','protocol','net') if k in found} | dict(seconds=round(time.perf_counter() - began, 1))

def with_schedule() -> list: # (line, coreset)
    all_of = [(r, Coreset.load(HERE.parent/'coresets'/f"{r['key']}.safetensors")) for r in lines('through') if r['method'] in ('dd','sldd')]
    return [(r, S) for r,S in all_of if S.steps is not None]

def changed():
    have = {(r['of'], r['change']) for r in lines('changed')}
    for r,S in with_schedule():
        name, net = r['data'].split()[0], r['config']['net']
        data, cases = load(name), {k:(T, net) for k,T in altered(S).items()}
        if not S.y.is_floating_point(): cases['real images, its schedule'] = S._replace(x=data.draw(len(S.x)//data.K, stream(0, 'beside')).x), net
        for other in OTHERS[name]:
            cases |= {f'{other}, its schedule':(S._replace(init=None), other), f'{other}, without schedule':(S._replace(steps=None, init=None), other)}
        for k,(T, on) in cases.items():
            if (r['key'], k) not in have:
                add('changed', dict(of=r['key'], method=r['method'], data=r['data'], examples=len(S.x), known=r['config']['known'],
                                    learned=r['config'].get('images', True), change=k) | worth(T, data, 1 if T.init is not None else 3, net=on, protocol='dc'))

def own():
    have = {(r['of'], r['change']) for r in lines('changed')}
    for r in lines('through'):
        if r['method']!='ld' or r['config']['base'] or (r['key'], 'labels of their own') in have: continue
        S, data = Coreset.load(HERE.parent/'coresets'/f"{r['key']}.safetensors"), load(r['data'].split()[0])
        hard = S._replace(y=torch.arange(data.K).repeat_interleave(len(S.x)//data.K)) # images are drawn class by class
        add('changed', dict(of=r['key'], method='ld', data=r['data'], examples=len(S.x), change='labels of their own')
            | worth(hard, data, r['runs'], net=r['config']['net'], protocol=r['protocol']))

def best_random(data, net:str, n:int=20) -> Coreset: # chosen on held-out images
    sets = [data.draw(1, stream(0, 'best', i)) for i in range(n)]
    return max(sets, key=lambda S: evaluate(S, data, 1, net=net, protocol='dc', part='held', eight_bit=False)['accuracy_mean'])

def baselines():
    for name in 'mnist','digits':
        data, net = load(name), dict(mnist='convnet:width=16', digits='mlp:width=64')[name]
        sets = {'random real':data.draw(1, stream(0, 'beside')), 'best of 20 random':best_random(data, net),
                'average of the class':k_means(Task(None, data=data))(data.draw(1, stream(0)), stream(0))}
        own = {f"{r['method']}, {'known' if r['config']['known'] else 'any'} start":S for r,S in with_schedule()
               if r['data'].split()[0]==name and r['config'].get('images') is not False and len(S.x)==data.K}
        for k,S in (sets | own).items():
            if any((r['data'], r['what'])==(name, k) for r in lines('baselines')): continue
            row = {'students':worth(S, data, 5, net=net, protocol='dc'), 'knn':worth(S, data, 1, net=net, evaluator='knn')}
            add('baselines', dict(data=name, what=k) | {f'{j}_{m}':row[j][m] for j in row for m in ('accuracy_mean','nll_mean')} | dict(net=net, taught=row['students']['protocol']))

def adapted(steps:int=300, n:int=15):
    source, data = load('digits', size=28), load('mnist')
    net = network('lenet', data.shape, data.K)
    def trained(i):
        *_, s = train(energy(net.apply), untrained(net, data.train.x, stream(0, 'source', i)), source.train, range(20),
                      lambda e: [stream(0, 'source', i, e)], batch=64, lr=.05, momentum=.9)
        return s.theta[0]
    thetas = [trained(i) for i in range(n)]
    right = lambda theta, part: summary(predict(net, theta, getattr(data, part).x), getattr(data, part).y)['accuracy']
    def after(S, some, part): # networks that have followed the schedule
        return [right(t, part) for t in in_order(energy(net.apply), torch.stack(some), [S.x, S.y], S.steps, True)]
    mean = lambda v: sum(v)/len(v)
    for images in True, False:
        if any(r['images']==images for r in lines('adapted')): continue
        began, draw = time.perf_counter(), lambda S, gen: thetas[torch.randint(n-5, (), generator=gen).item()]
        l = scheduled(Task(None, net, data), 3, 1, .02, .01, False, 512, 1, 0, dict(x=IMAGES) if images else {}, first=draw)
        S = l.begin(data.draw(1, stream(0, 'start')), stream(0))
        s = outer(l, S, lambda S: dict(accuracy_mean=mean(after(S, thetas[-5:-3], 'held'))), steps, .02, .5, 'adam', 0., 100)
        T = shown(l, S, s.best)
        tests = after(T, thetas[-3:], 'test')
        add('adapted', dict(source='digits', data='mnist', images=images, steps=steps, schedule=T.steps.flatten().tolist(), before=mean([right(t, 'test') for t in thetas[-3:]]),
                            accuracy_mean=mean(tests), accuracy_runs=tests, seconds=round(time.perf_counter() - began)))

if __name__=='__main__':
    parts = dict(changed=changed, own=own, baselines=baselines, adapted=adapted)
    where = [HERE/f'{n}.jsonl' for n in ('changed','baselines','adapted')]
    for what in called_with(__doc__, parts, where) or parts: parts[what]()
