"""What a teacher's labels add, whatever the images are.

    python results/families/taught.py [DATA ...]

judges ten images a class of each data set (none named: digits, MNIST and CIFAR-10) by students of one network that learn from the images' classes, from one soft
label for each image, from their classes mixed as the images are, with the training of a teacher's students but no teacher, or from what the teacher says in every
step; beside them random real images that take as many bytes as those with stored labels.
A line for each goes to results/families/taught.jsonl; what has one is not judged again.
"""
import json, time
from functools import cache
from pathlib import Path
from statistics import mean, stdev

import torch

from bpc_nb.core import Coreset, provenance, stream
from bpc_nb.data import load
from bpc_nb.distill import distill
from bpc_nb.evaluate import evaluate, predict
from bpc_nb.fast import accelerate
from bpc_nb.lines import called_with
from bpc_nb.metrics import summary
from bpc_nb.networks import network
from bpc_nb.teacher import SPEC, Lesson, answers, label_bytes, learners, squeezed, training_of

HERE = Path(__file__).parent
LINES, RUNS, EPOCHS = HERE/'taught.jsonl', 3, 300
SETS = { # learned coresets with a file, by method
    'digits': dict(kip='9323d677d627', frepo='5a5db2818258', vbpc='7efb8955fbad'),
    'mnist': dict(cd='aed1a0b7ea01', kip='af2a18aed401', frepo='65d8a435d0f1', herding='7f914ac96732'),
    'cifar10': dict(cd='b3a673bb11c8', fkl='da6462da1bad', kip='b421199f95d8', dd='b916a706c3f1')}
CHOSEN = 'herding', 'k-center', 'cd' # made here where there is no file; by the teacher's features

def lines() -> list: return [json.loads(l) for l in LINES.read_text().splitlines()] if LINES.exists() else []

def plain(S:Coreset) -> Coreset: # images, and the class of the largest target
    return S._replace(y=S.y if S.y.ndim==1 else S.y.argmax(1), targets=False, steps=None, init=None, w=None)

def sets(name:str, data) -> dict: # -> `(run) -> coreset`
    "What is judged; it is loaded or made when it is asked for"
    files = {}
    for l in (json.loads(l) for l in (HERE/'statistics.jsonl').read_text().splitlines()):
        if l['data'].split()[0]==name and (l['ipc'], l['config']['net'], l['size'])==(10, SPEC, None):
            still = l['method']=='sre2l' and l['config']['start']=='real' # of DWA all but its adjustment
            files |= {'dwa, no adjustment' if still else l['method'] + ', random'*(l['config'].get('direction')=='random'): l['key']}
    files |= SETS[name]
    @cache
    def made(k):
        if k in files: return plain(Coreset.load(HERE.parent/'coresets'/f'{files[k]}.safetensors'))
        own = {} if k=='cd' else dict(net=SPEC, experts=training_of(name))
        return plain(distill(k, data, 10, progress=False, **own))
    return {'random real': lambda r: data.draw(10, stream(0, 'taught', r))} | {k:lambda r, k=k: made(k) for k in (*files, *CHOSEN)}

WAYS = 'classes', 'one soft label', 'classes, mixed', 'in every step'

def ways(S:Coreset, data, teacher) -> dict: # name of the labels -> (coreset, options of `evaluate`, bytes of labels)
    M, K = len(S.x), data.K
    soft = S._replace(y=answers(teacher, S.x, 1.))
    return dict(zip(WAYS, ((S, dict(protocol='dc'), M), (soft, dict(protocol='dc'), 2*M*K), (S, None, M),
                           (S, dict(evaluator='soft', by=SPEC, epochs=EPOCHS), label_bytes(EPOCHS, M, K)))))

def without_teacher(S:Coreset, net, K:int, seed:tuple) -> Lesson:
    "Classes that are mixed as the images are: they ride along as K further channels of one value each"
    (C, H, W), names = S.x.shape[1:], torch.nn.functional.one_hot(S.y, K).to(S.x)
    both = torch.cat([S.x, names[:,:,None,None].expand(-1, -1, H, W)], 1)
    def E(theta, S): return -(S.x[:,C:,H//2,W//2]*net.apply(theta, S.x[:,:C]).log_softmax(-1)).sum(-1).mean() # the middle is shifted nowhere else
    return Lesson(E, lambda e: [both, S.y], lambda e, r: stream(seed, 'student', r, 'epoch', e), dict(epochs=EPOCHS, batch=50, augment='crop_flip'))

def by_classes(S:Coreset, data, net, r:int) -> dict: # r: number of the student
    "A row of a student whose training is that of a teacher's students, without one"
    theta = learners(without_teacher(S, net, data.K, (r, 'test')), S, net, (r, 'test'), [0])[0]
    found = summary(predict(net, theta, data.test.x, net.stats(theta, S.x)), data.test.y)
    return {f'{k}_mean':v for k,v in found.items()}

def judged(of, labels:str, data, net, teacher) -> dict: # of: `(run) -> coreset`
    "Students that begin at the same networks, whatever they learn from"
    rows, began = [], time.perf_counter()
    for r in range(RUNS):
        S, how, size = ways(of(r), data, teacher)[labels]
        rows.append(by_classes(S, data, net, r) if how is None else evaluate(S, data, 1, net=net, seed=r, eight_bit=False, **how))
    a = [r['accuracy_mean'] for r in rows]
    return dict(labels=labels, images=len(S.x), bytes=S.x.numel() + size, accuracy_mean=mean(a), accuracy_std=stdev(a),
                nll_mean=mean(r['nll_mean'] for r in rows), net=net.name, runs=RUNS, seconds=round(time.perf_counter() - began), made=provenance())

if __name__=='__main__':
    for name in called_with(__doc__, SETS) or SETS:
        data = load(name)
        least, pixels = data.train.y.bincount().min().item(), data.train.x[0].numel()
        m = min(least, round((10*pixels + label_bytes(EPOCHS, 10, data.K))/(pixels + 1))) # images of a class, at equal bytes if there are so many
        what = {(k, w):of for k,of in sets(name, data).items() for w in WAYS}
        def as_many(r): return data.draw(m, stream(0, 'taught', r))
        what |= {('random real, the same bytes or all', w):as_many for w in ('classes', 'classes, mixed')}
        have = {(r['set'], r['labels']) for r in lines() if r['data']==data.name}
        left = {cell:of for cell,of in what.items() if cell not in have}
        if not left: continue
        print(f'{name}: {len(left)} of {len(what)} lines are not there yet', flush=True)
        net = network(SPEC, data.shape, data.K)
        teacher = squeezed(data, net)
        right = (torch.cat([answers(teacher, x, 1.).argmax(1) for x in data.test.x.split(500)])==data.test.y).double().mean().item()
        for (k,labels),of in left.items():
            row = dict(data=data.name, set=k) | judged(of, labels, data, accelerate(net, compile=True), teacher) | dict(teacher=right)
            with open(LINES, 'a') as f: f.write(json.dumps(row) + '\n')
            print({k:row[k] for k in ('data','set','labels','images','bytes','accuracy_mean','seconds')}, flush=True)
