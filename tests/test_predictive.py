"""Predictives against torchmetrics and a float64 reference, chains that must move, and broken ones that must be rejected"""
import sys, warnings

import pytest
import torch
from torch import Generator

from bpc_nb.core import stream
from bpc_nb.data import load
from bpc_nb.metrics import accuracy, brier, ece, entropy, nll, summary
from bpc_nb.networks import network
from bpc_nb.predictive import average, compat_kim2022, compat_metrics, predictive, settings
from bpc_nb.samplers.chains import sample
from bpc_nb.samplers.hmc import hmc

N, K, D = 3000, 7, 5


@pytest.fixture(scope='module')
def draws():
    "Probabilities of five draws in single precision, and labels from a sixth"
    gen = Generator().manual_seed(0)
    logits = 2*torch.randn(N, K, generator=gen) + torch.randn(D+1, N, K, generator=gen)
    return logits[:D].softmax(-1), torch.multinomial(logits[D].softmax(-1), 1, generator=gen)[:,0]


def test_torchmetrics(draws):
    tm = pytest.importorskip('torchmetrics.functional.classification', reason='torchmetrics is not installed: pip install torchmetrics')
    probs, y = draws[0].double().mean(0), draws[1]
    theirs = tm.multiclass_accuracy(probs, y, K, average='micro')
    assert abs(accuracy(probs, y) - theirs) < 1e-6
    for bins in 10, 15: assert abs(ece(probs, y, bins) - tm.multiclass_calibration_error(probs, y, K, n_bins=bins, norm='l1')) < 1e-6
    from torchmetrics.functional.classification import multiclass_calibration_error as other
    assert abs(ece(probs, y, 15) - other(probs, y, K, n_bins=15, norm='max')) > 1e-4 # another norm is another number


def test_float64_reference(draws):
    p, y = draws[0].double().mean(0), draws[1]
    got = summary(draws[0].mean(0), y)
    right = p[torch.arange(N), y]
    one_hot = torch.eye(K, dtype=torch.double)[y]
    expected = dict(nll=-right.log().mean(), brier=((p-one_hot)**2).sum(1).mean(), entropy=-(p*p.log()).sum(1).mean(), accuracy=(p.argmax(1)==y).double().mean())
    for k,v in expected.items(): assert abs(got[k] - v) < 1e-6, k
    wrong = -draws[0].double()[:,torch.arange(N),y].log().mean() # mean of logs, not log of the mean
    assert abs(wrong - expected['nll']) > .01


@pytest.mark.parametrize('batch', [1, 7, 128, N])
def test_batches_matter_to_nobody_but_kim2022(draws, batch):
    probs, y = draws
    order = torch.randperm(N, generator=Generator().manual_seed(batch))
    for k,v in summary(probs.double().mean(0), y).items(): assert abs(v - summary(probs.double().mean(0)[order], y[order])[k]) < 1e-9
    theirs = compat_metrics(probs, y, batch)['nll_compat_kim2022']
    assert abs(theirs - nll(probs.double().mean(0), y)) < 1e-6 if batch==1 else theirs > nll(probs.double().mean(0), y) + .005


def test_average_on_device_batch_and_order():
    data = load('digits')
    net = network('convnet:width=4,depth=2', data.shape, data.K)
    thetas = torch.stack([net.init(Generator().manual_seed(i)) for i in range(2)])
    x, y = data.test
    p = average(net, thetas, x[:10], x, y)[0]
    exact = torch.stack([net.apply(t.double(), x.double(), {}).softmax(1) for t in thetas]).mean(0)
    assert (p - exact).abs().max() < 1e-6
    for b in 1, 50: assert (average(net, thetas, x[:10], x, y, batch=b)[0] - exact).abs().max() < 1e-6
    if torch.cuda.is_available():
        assert (average(net, thetas.cuda(), x[:10].cuda(), x.cuda(), y.cuda())[0].cpu() - exact).abs().max() < 1e-6


def test_batch_norm_is_taken_from_the_coreset():
    data = load('digits')
    net = network('convnet:width=4,depth=2,norm=batch', data.shape, data.K)
    theta, (x, y) = net.init(Generator().manual_seed(0))[None], data.test
    p = average(net, theta, data.train.x[:20], x, y)[0]
    assert (average(net, theta, data.train.x[:20], x[:3], y[:3])[0] - p[:3]).abs().max() < 1e-6
    assert (average(net, theta, x[:3], x[:3], y[:3])[0] - p[:3]).abs().max() > 1e-3


@pytest.mark.parametrize('protocol', ['hmc', 'hmc-1'])
def test_flights_are_accepted_after_adaptation(protocol):
    data = load('digits')
    S = data.draw(1, stream(0, 'real'))
    r = predictive(S, data, protocol, 'mlp:width=12', chains=2, students='dc', steps=10)
    assert .6 < r['acceptance'] < .95 and r['diverged'] == 0
    assert r['temperature'] == settings(protocol, 1)['temperature'] and r['draws'] == 20
    with pytest.warns(UserWarning, match='lower eps'): stuck = predictive(S, data, protocol, 'mlp:width=12', chains=2, students='dc', steps=10, warm=0, eps=5.)
    assert stuck['acceptance'] < .05


def test_bad_input():
    data = load('digits')
    S = data.draw(1, stream(0, 'real'))
    alg = hmc(lambda t: t@t/2, .1)
    with pytest.raises(ValueError, match='leaves no draws'): sample(alg, alg.init(torch.zeros(1, 2)), 5, Generator(), burn=5)
    with pytest.raises(ValueError, match='outside 0..1'): summary([[.5,.5]], [2])
    with pytest.raises(ValueError, match='sum is not one'): summary([[.5,.9]], [1])
    with pytest.raises(ValueError, match="did you mean 'a-sghmc'"): predictive(S, data, 'a-sghm', 'mlp:width=4')


@pytest.mark.parametrize('sampler', ['hmc', 'a-sghmc'])
def test_the_released_evaluator_knows_targets_and_refuses_steps(sampler, monkeypatch):
    data, losses = load('digits'), []
    chapter, S = sys.modules['bpc_nb.predictive'], data.draw(1, stream(0))
    true = chapter.energy
    monkeypatch.setattr(chapter, 'energy', lambda apply, loss='cross_entropy', *a, **k: losses.append(loss) or true(apply, loss, *a, **k))
    soft = S._replace(y=.8*torch.eye(10)[S.y] + .02)
    one, other = (compat_kim2022(s, data, sampler, 'mlp:width=4', n=3, burn=1, steps=2) for s in (soft, soft._replace(targets=True)))
    assert losses==['cross_entropy', 'squared'] and one['nll_compat_kim2022']!=other['nll_compat_kim2022']
    with pytest.raises(ValueError, match='learned step sizes, which students take and compat_kim2022 cannot'):
        compat_kim2022(S._replace(steps=torch.ones(2, 1)), data, sampler, 'mlp:width=4')
