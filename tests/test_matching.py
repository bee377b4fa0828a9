"""Methods that match gradients or features: a run goes on bit for bit, and their grid is well-formed."""
from pathlib import Path

import pytest
import torch
from fastcore.test import test_close as close

from bpc_nb.cells import cells
from bpc_nb.core import registry, stream
from bpc_nb.data import load
from bpc_nb.distill import configure, distill
from bpc_nb.learn import learner, task_of
from bpc_nb.networks import network
from conftest import NET

ROOT = Path(__file__).resolve().parents[1]
METHODS = 'dc', 'dsa', 'dm', 'cafe', 'cafe-dsa'
SHORT = dict(net=NET, real=8, every=1, select_runs=1, progress=False)
OF = dict(dc=dict(matches=2, inner=2), dsa=dict(matches=2, inner=2), dm={}, cafe=dict(most=2, watch=4)) # of each method, to be short
OF['cafe-dsa'] = OF['cafe']


@pytest.mark.parametrize('method', METHODS)
def test_goes_on_bit_for_bit(method, home, tmp_path):
    options = SHORT | OF[method]
    whole = distill(method, 'digits', 1, tmp_path/'whole', steps=2, **options)
    distill(method, 'digits', 1, tmp_path/'cut', steps=1, **options)
    cut = distill(method, 'digits', 1, tmp_path/'cut', steps=2, resume=True, **options)
    states = [(tmp_path/f/'checkpoint.safetensors').read_bytes() for f in ('whole', 'cut')]
    assert (whole.x == cut.x).all() and states[0] == states[1]


@pytest.mark.parametrize('method', ['dm', 'cafe'])
def test_weights_of_a_start_count_as_repetitions(method, home):
    data, counts = load('digits'), torch.arange(20)%3 + 1
    S = data.draw(2, stream(0))
    often = S._replace(x=S.x.repeat_interleave(counts, 0), y=S.y.repeat_interleave(counts))
    t = task_of(network('convnet:width=4,depth=2', data.shape, data.K), {}, data)
    l = learner(registry()[method], t, configure(method, 'digits', 2, augment='', real=8))
    def total(S):
        x = S.x.clone().requires_grad_()
        value = l.loss(S._replace(x=x), stream(1), None)[0]*len(S.x)
        return value.detach(), torch.autograd.grad(value, x)[0]
    (value, g), (expected, each), (plain, _) = total(S._replace(w=counts.float())), total(often), total(S)
    close(value, expected, 1e-3*expected.item()); assert (plain - expected).abs() > 1e-2*expected
    close(g, torch.stack([h.sum(0) for h in each.split(counts.tolist())]), 1e-3*each.abs().max().item())


def test_no_experts():
    assert not any('experts' in registry()[m].wants(configure(m, 'digits', 1)) for m in METHODS)


def test_grid_file():
    small, large = ({(c['method'], c['data'], c['ipc']) for c in cells(ROOT/'results'/name)} for name in ('families/matching.toml', 'queue.toml'))
    assert small >= {(m, d, i) for m in METHODS for d, i in (('digits', 1), ('digits', 10), ('mnist', 1))}
    assert {(m, 'cifar10', 10) for m in METHODS} <= large


@pytest.mark.parametrize('method', METHODS)
def test_recipes_are_options(method):
    for data, ipc in registry()[method].recipes: # a typo in a recipe would be dropped in silence
        known = configure(method, data or 'any', ipc or 1)
        assert set(registry()[method].recipes[data, ipc]) <= set(known), (data, ipc)
