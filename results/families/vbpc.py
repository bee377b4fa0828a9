"""How much the constants of the variational pseudo-coreset matter, what it costs, and what it knows of images that it was not learned for.

    python results/families/vbpc.py

adds lines to results/families/vbpc.jsonl, on digits with one image a class: `part` is 'constants' for VBPC with one of rho, gamma and beta changed, beside
FRePo, which is judged by its own regression as well (`own`), and random real images; 'unknown' for the area under the ROC curve with which the
entropy of the prediction tells test digits from others. What has a line is not run again.
"""
import json, time
from pathlib import Path

import torch
from sklearn.metrics import roc_auc_score

from bpc_nb.core import provenance, stream
from bpc_nb.data import load
from bpc_nb.distill import distill
from bpc_nb.evaluate import evaluate
from bpc_nb.lines import called_with
from bpc_nb.methods.frepo import regressors, with_targets
from bpc_nb.methods.vbpc import last_layer_posterior, predictive_logits
from bpc_nb.networks import network

LINES = Path(__file__).with_suffix('.jsonl')
NET, SEEDS, JUDGE = 'convnet:width=32,depth=2', (0, 1, 2), 'vbpc-untrained'
OURS = dict(net=NET, real=256, pool=0, steps=600, every=150, average=.99, select_evaluator=JUDGE, lr_targets=.05)
CHANGED = [{}, *[dict(rho=v) for v in (.01, .1, 10., 100.)], *[dict(gamma=v) for v in (1., 10., 1e3, 1e4)],
           *[dict(beta=v) for v in (0., 1e-6, 1e-4, 1e-2)], dict(rho=1e4, gamma=1e6)] # the last: the mean as usual, and next to no variance

def strangers(x, gen) -> dict: # name -> images made of these
    halves = torch.cat([x[..., x.shape[-1]//2:], x[..., :x.shape[-1]//2]], -1)
    order = torch.randperm(x[0].numel(), generator=gen)
    return {'halves exchanged': halves, 'on its side': x.rot90(1, (-2, -1)), 'pixels shuffled': x.flatten(1)[:, order].view_as(x),
            'dark and light exchanged': x.amax() + x.amin() - x, 'noise': torch.randn(x.shape, generator=gen)*x.std() + x.mean()}

@torch.no_grad()
def entropies(S, net, x, gen, n=5): # (N,), of the mean prediction of n networks that nothing has trained
    see, probs = regressors(net, 'vbpc'), 0
    for _ in range(n):
        theta = net.init(gen)
        q = last_layer_posterior(see(theta, S.x).double(), S.y.double())
        probs = probs + predictive_logits(q, see(theta, x).double()).softmax(1)/n
    return -(probs*probs.clamp(min=1e-12).log()).sum(1)

def main():
    called_with(__doc__, ())
    data, done = load('digits'), [json.loads(l) for l in LINES.read_text().splitlines()] if LINES.exists() else []
    net = network(NET, data.shape, data.K)
    def missing(**of): return not any(all(r.get(k)==v for k,v in of.items()) for r in done)
    def add(row):
        with open(LINES, 'a') as f: f.write(json.dumps(row | dict(made=provenance())) + '\n')
        print(row, flush=True)
    def judged(S, seed, judge=JUDGE, **of):
        r = evaluate(S, data, 5, seed=seed, evaluator=judge, control=True, eight_bit=False, **of)
        return {k:r[k] for k in r if k.split('_')[0] in ('accuracy','nll','ece') and 'runs' not in k}
    for seed in SEEDS:
        for method,o in [('frepo', {})] + [('vbpc', o) for o in CHANGED]:
            of = dict(part='constants', data='digits', ipc=1, method=method, seed=seed, changed=o)
            if not missing(**of): continue
            began = time.perf_counter()
            options = OURS | o if method=='vbpc' else {k:v for k,v in OURS.items() if k!='lr_targets'}
            S = distill(method, data, 1, seed=seed, progress=False, **options)
            seconds = round(time.perf_counter() - began, 1)
            constants = dict(rho=o.get('rho', 1.), gamma=o.get('gamma', 100.))
            own = dict(own=judged(S, seed, 'ridge')) if method=='frepo' else {}
            add(of | judged(S, seed, **constants) | own | dict(seconds=seconds))
            if o: continue
            beside = {'random real': with_targets(data.draw(1, stream(seed, 'control')), data.K)} if method=='vbpc' else {}
            for name,T in ({method: S} | beside).items():
                know = entropies(T, net, data.test.x, stream(seed, 'unknown'))
                for kind,x in strangers(data.test.x, stream(seed, 'strangers')).items():
                    e = torch.cat([know, entropies(T, net, x, stream(seed, 'unknown'))])
                    add(dict(part='unknown', data='digits', ipc=1, method=name, seed=seed, kind=kind,
                             auroc=roc_auc_score((torch.arange(len(e)) >= len(know)).numpy(), e.numpy())))

if __name__=='__main__': main()
