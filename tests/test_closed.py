"""Closed forms: what a run keeps and goes on with, what a coreset says of its use, what is refused."""
import json

import pytest
import torch
from torch import nn

from bpc_nb.core import Coreset
from bpc_nb.data import load
from bpc_nb.distill import configure, distill
from bpc_nb.evaluate import evaluate
from bpc_nb.methods.exact import features_for
from conftest import NET

POOL = dict(net=NET, real=32, pool=3, age=4, steps=6, every=3, select_runs=1, select_evaluator='ridge', progress=False)


@pytest.mark.parametrize('method, options', [('frepo', POOL), ('vbpc', POOL), ('frepo', POOL | dict(pool=0)), ('kip', dict(real=64, steps=6, every=3, learn='both', corrupt=.2, progress=False))])
def test_a_pool_goes_on_bit_for_bit(home, tmp_path, method, options):
    whole = distill(method, 'digits', 1, out=tmp_path/'whole', **options)
    distill(method, 'digits', 1, out=tmp_path/'run', **options | dict(steps=3))
    again = distill(method, 'digits', 1, out=tmp_path/'run', resume=True, **options)
    assert torch.equal(whole.x, again.x) and torch.equal(whole.y, again.y) and whole.targets


@pytest.mark.parametrize('net', ['logistic', 'shallow'])
def test_an_exact_coreset_is_worth_all_images_after_saving(home, tmp_path, net):
    data = load('digits')
    S = distill('exact', data, 1, net=net, out=tmp_path/'run', progress=False)
    S = Coreset.load(tmp_path/'run'/'coreset.safetensors')
    found = evaluate(S, data, evaluator='ridge', eight_bit=False, control=True)
    assert S.init is not None and found['accuracy_std']==0 and found['r']==1e-6
    assert found['accuracy_mean'] > .92 > found['accuracy_mean_random'] + .2
    other = evaluate(S._replace(init=None), data, runs=1, evaluator='ridge', eight_bit=False)
    assert net=='logistic' or other['accuracy_mean'] < .8 # it belongs to one initialisation


def test_commands(bpc, tmp_path):
    out = bpc('distill', 'digits', '--method', 'ls', '--out', 'said')[1]
    assert '(kernel)' in out and 'safetensors --evaluator kernel --control' in out # who chose it judges it
    code, out, err = bpc('distill', 'digits', '--method', 'ls', '--out', 'run', '--json')
    assert code==0
    code, out, err = bpc('evaluate', json.loads(out)['coreset'], '--evaluator', 'ridge', '--set', 'r=big')
    assert code==2 and 'r: found big' in err
    code, out, err = bpc('distill', 'digits', '--method', 'ls', '--out', 'run2', '--json')
    file = json.loads(out)['coreset']
    for evaluator in 'kernel', 'last-layer', 'ridge', 'vbpc', 'vbpc-untrained':
        code, out, err = bpc('evaluate', file, '--evaluator', evaluator, '--runs', 1, '--net', NET, '--json')
        assert code==0 and {'accuracy_mean', 'nll_mean'} <= json.loads(out).keys()
    assert 'targets' in bpc('show', file)[1]
    assert bpc('plan', 'digits', '--method', 'frepo', '--net', NET)[0]==0
    said = bpc('list')[1]
    assert all(m in said for m in ('exact', 'kip', 'ls', 'frepo', 'vbpc'))


@pytest.mark.parametrize('method, option, said', [('exact', dict(r=0.), 'r: '), ('kip', dict(r=-1.), 'r: '), ('kip', dict(depth=0), 'depth: '), ('frepo', dict(pool=-1), 'pool: '),
                                                  ('vbpc', dict(gamma=0.), 'gamma: '), ('vbpc', dict(beta=-1.), 'beta: '), ('frepo', dict(labels='soft'), 'labels'), ('kip', dict(L=3), "'L'")])
def test_options(method, option, said):
    with pytest.raises(ValueError, match=said): configure(method, 'digits', 1, **option)


class Headless(nn.Module):
    "No linear layer at its end"
    def __init__(self, shape, K):
        super().__init__()
        self.conv = nn.Conv2d(1, K, 8)
    def forward(self, x): return self.conv(x).flatten(1)

@pytest.mark.parametrize('method', ['frepo', 'vbpc', 'exact'])
def test_a_network_without_a_last_layer(home, method):
    with pytest.raises(ValueError, match='net: Headless.*(feature extractor|no linear layer|leads back)'): distill(method, 'digits', 1, net=Headless, progress=False)


def test_more_examples_than_features_and_the_same_image_twice(home):
    data = load('digits')
    S = distill('exact', data, 8, net='logistic', progress=False) # 80 examples, 64 features
    assert evaluate(S, data, runs=1, evaluator='ridge', eight_bit=False)['accuracy_mean'] > .92
    twice = data.draw(1, torch.Generator().manual_seed(0))
    twice = twice._replace(x=twice.x.repeat(2, 1, 1, 1), y=twice.y.repeat(2))
    assert evaluate(twice, data, evaluator='kernel', net=NET, eight_bit=False)['accuracy_mean'] > .4


@pytest.mark.parametrize('evaluator, options, said', [('kernel', dict(r=0.), 'r: '), ('kernel', dict(depth=0), 'depth: '), ('vbpc', dict(rho=0.), 'rho: '), ('vbpc-untrained', dict(gamma=-1.), 'gamma: '),
                                                      ('ridge', dict(r=-.1), 'r: '), ('last-layer', dict(r=0.), 'r: ')])
def test_options_of_judges(home, evaluator, options, said):
    data = load('digits')
    with pytest.raises(ValueError, match=said): evaluate(data.draw(1, torch.Generator().manual_seed(0)), data, 1, net=NET, evaluator=evaluator, eight_bit=False, **options)


def test_an_exact_coreset_refuses_at_once_what_it_cannot_undo(home):
    ends_late = lambda shape, K: nn.Sequential(nn.Flatten(), nn.Linear(64, K), nn.LogSoftmax(1))
    for net in Headless, ends_late:
        with pytest.raises(ValueError, match='net: .*no nn.Sequential that ends in an nn.Linear|no linear layer'): distill('exact', 'digits', 1, net=net, progress=False)
    W, gen = torch.randn(9, 3, generator=torch.Generator().manual_seed(0)).double(), torch.eye(3).double()
    with pytest.raises(ValueError, match='targets: '): features_for(W, gen - 1/3, 1e-6) # weights that do not sum to 0 over classes
    assert features_for(W - W.mean(1, keepdim=True), gen - 1/3, 1e-6).shape==(3, 9)
