"""What the experts can do that contrastive divergence learns from: validation accuracy of a network on its way

    python results/ablations/experts.py

A line for MNIST, one for CIFAR-10 and one for whitened CIFAR-10 (cifar10-zca): one expert with the options of the recipe for ten images,
trained at least twice as long as its horizon. Others are a quarter as wide (narrow): MNIST without momentum and with .9, whitened
CIFAR-10 also with .5. On one core CIFAR-10 takes a quarter of an hour, and two minutes if narrow.
"""
import json, tempfile
from pathlib import Path

from bpc_nb.core import provenance
from bpc_nb.data import load
from bpc_nb.distill import configure
from bpc_nb.experts import experts
from bpc_nb.lines import add, called_with, lines
from bpc_nb.metrics import summary
from bpc_nb.evaluate import predict
from bpc_nb.networks import network

LINES, SETS = Path(__file__).with_suffix('.jsonl'), ('mnist','cifar10','cifar10-zca','mnist-narrow','mnist-narrow-0.9',
                                                     'cifar10-zca-narrow','cifar10-zca-narrow-0.5','cifar10-zca-narrow-0.9')

if __name__=='__main__':
    for asked in called_with(__doc__, SETS) or SETS:
        name, *more = asked.split('-')
        zca, config = 'zca' in more, configure('cd', name, 10)
        options = config['experts'] | dict(n=1, epochs=max(2*config['T'], config['T'] + config['k_max']))
        options |= {'momentum':float(m) for m in more if m[0]=='0'}
        net = config['net'] + (':width=32' if 'narrow' in more else '')
        have = [(r['data'].split()[0], r.get('zca', False), r['net'], r['experts']) for r in lines(LINES)]
        if (name, zca, net, options) in have: continue
        data = load(name, zca=zca)
        net = network(net, data.shape, data.K)
        with tempfile.TemporaryDirectory() as folder:
            buffer = experts(data, net, folder, **options)
            at = [summary(predict(net, buffer.read((0, 0), e), data.held.x), data.held.y)['accuracy'] for e in range(options['epochs'] + 1)]
        add(LINES, dict(data=data.name, zca=zca, net=net.name, experts=options, accuracy=at, made=provenance()))
        print(asked, *(f'{100*a:.1f}' for a in at), flush=True)
