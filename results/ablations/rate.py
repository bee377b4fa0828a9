"""Students of trajectory matching at the learned step size: with MTT's students, which take half of alpha, and with those of a protocol

    python results/ablations/rate.py

A line is one fold of digits, one image a class, learned by its recipe and judged by two protocols at three step sizes:
the protocol's own, half of the learned alpha as in MTT's code, and a quarter. A quarter of an hour on one core.
"""
import math
from pathlib import Path

from bpc_nb.core import provenance
from bpc_nb.data import load
from bpc_nb.distill import distill
from bpc_nb.evaluate import PROTOCOLS, evaluate
from bpc_nb.lines import add, called_with, lines

LINES = Path(__file__).with_suffix('.jsonl')

if __name__=='__main__':
    called_with(__doc__, ())
    for fold in range(5):
        if any(r['fold']==fold for r in lines(LINES)): continue
        data = load('digits', fold=fold)
        S = distill('wasserstein', data, 1, progress=False)
        alpha = math.exp(S.meta['own']['log_alpha'][0])
        rows = []
        for protocol in ('quick','mtt'):
            for name,lr in (('protocol', PROTOCOLS[protocol]['lr']), ('half', alpha/2), ('quarter', alpha/4)):
                r = evaluate(S, data, protocol=protocol, lr=lr, control=True, eight_bit=False)
                rows.append(dict(protocol=protocol, at=name, lr=lr, **{k:r[k] for k in ('accuracy_runs','accuracy_mean','accuracy_mean_random')}))
                print(fold, protocol, name, f"{lr:.4f}", f"{100*r['accuracy_mean']:.1f}", f"{100*r['accuracy_mean_random']:.1f}", flush=True)
        add(LINES, dict(data=data.name, ipc=1, fold=fold, method='wasserstein', alpha=alpha, step=S.meta['step'], students=rows, made=provenance()))
