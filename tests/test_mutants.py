"""Broken twins of the code that every other check let pass: each test here is one that such a twin fails."""
import json, math, warnings

import pytest
import torch
from torch import tensor
from torch.nn import functional as F

from bpc_nb.augment import augment
from bpc_nb.core import Coreset, Transform, registry, stream
from bpc_nb.data import Data, Split, load, match
from bpc_nb.distill import configure, distill
from bpc_nb.learn import Task
from bpc_nb.energy import contrast, energy
from bpc_nb.evaluate import PROTOCOLS, evaluate, students
from bpc_nb.experts import experts
from bpc_nb.methods.cd import cd, positive_only
from bpc_nb.methods.fkl import fkl
from bpc_nb.networks import Network, network
from bpc_nb.train import Trained, batches, train


# --- energies and methods ------------------------------------------------------------------------------------------------------
def E(theta, S): return (theta**2).sum()*S.x.sum()/2 # slope theta*sum(x): a step of size alpha/2 multiplies theta by 1 - alpha/2*sum(x)

S = Coreset(tensor([[[[1.]]], [[[2.]]]]), tensor([0, 1])) # sum(x) is 3

class Pair:
    "Experts that are two known networks; notes what it was asked for"
    def __init__(self): self.asked = []
    def draw(self, gen, T, start):
        self.asked.append((T, start))
        return tensor([2.]), tensor([5.])


def test_samples_are_constants_in_the_contrast():
    x = S.x.clone().requires_grad_()
    for pos, neg in ((x.sum()[None], tensor([2.])), (tensor([3.]), 2/3*x.sum()[None])):
        g, = torch.autograd.grad(contrast(E, pos, neg, S._replace(x=x)), x)
        assert g.flatten().tolist() == pytest.approx([9/2 - 4/2]*2)


def test_the_contrast_is_of_means():
    assert contrast(E, tensor([[1.], [3.]]), tensor([[2.]]*4), S).item() == pytest.approx(3/2*((1 + 9)/2 - 4))


def test_positive_only_takes_the_end_of_the_pair():
    pair = Pair()
    assert positive_only(Task(E, experts=pair), T=3, k_max=7, draws=2)(S, stream(0)).item() == pytest.approx(25*3/2)
    assert pair.asked == [(3, (0, 7))]*2


@pytest.mark.parametrize('L', [0, 1, 3])
def test_the_chain_begins_where_the_pair_does(L):
    pair = Pair()
    value = cd(Task(E, experts=pair), L=L, alpha=.1, T=3, k_max=7, draws=2)(S, stream(0))
    assert value.item() == pytest.approx(3/2*(25 - (2*(1 - .1/2*3)**L)**2), rel=1e-5)
    assert pair.asked == [(3, (0, 7))]*2


def test_forward_kl_has_a_width_of_its_own_at_each_end():
    loss = lambda **o: fkl(Task(E, experts=Pair()), L=2, alpha=.1, samples=400, **o)(S, stream(0)).item()
    gap = 25 - (2*(1 - .1/2*3)**2)**2 # and a Gaussian of width w around theta adds w^2 to the mean of theta^2
    assert loss(width=0., width_pos=0.) == pytest.approx(3/2*gap, rel=1e-4)
    assert loss(width=0., width_pos=2.) == pytest.approx(3/2*(gap + 4), rel=.1)
    assert loss(width=2., width_pos=0.) == pytest.approx(3/2*(gap - 4), rel=.1)


# --- students ------------------------------------------------------------------------------------------------------------------
TINY = network('mlp:width=8', (1,2,4), 2)
ONES = Split(torch.eye(8).view(8,1,2,4)*5, torch.arange(8)%2) # nothing about one image can be learned from another

def data_of(train=ONES, held=ONES, test=ONES): return Data('ones', train, held, test, ('even','odd'), Transform(), dict(checksum='', recipe={}))


def test_students_follow_momentum_decay_and_the_schedule_step_by_step():
    S, epochs = Coreset(*ONES), 20
    ours = students(S, TINY, 1, epochs=epochs, lr=.1, batch=8)[0]
    theta = students(S, TINY, 1, epochs=1, lr=0.)[0] # where they start
    v = torch.zeros_like(theta)
    for e in range(epochs):
        theta.requires_grad_()
        g, = torch.autograd.grad(F.cross_entropy(TINY.apply(theta, S.x), S.y), theta)
        v = .9*v + g + 5e-4*theta.detach()
        theta = theta.detach() - (.1 if e <= epochs//2 else .01)*v
    assert torch.allclose(ours, theta, atol=2e-5), (ours - theta).abs().max()


def test_students_see_weights():
    S = Coreset(*ONES)
    heavy = students(S._replace(w=tensor([1.]*4 + [0.]*4)), TINY, 1, epochs=30, lr=.1)
    assert torch.allclose(heavy, students(S._replace(x=S.x[:4], y=S.y[:4]), TINY, 1, epochs=30, lr=.1), atol=1e-5)


def test_other_students_judge_than_those_that_chose():
    look = lambda part: evaluate(data_of().draw(2, stream(0)), data_of(), 2, 'dc', TINY, part=part, control=True, eight_bit=False, epochs=20)
    held, again, test = look('held'), look('held'), look('test') # the same images in either part
    for k in 'nll_mean', 'nll_mean_random': assert held[k] == again[k] and abs(held[k] - test[k]) > 1e-6, k


class Noted(Data):
    "Data that keeps what is drawn from it"
    drawn = []
    def draw(self, ipc, gen):
        self.drawn.append(super().draw(ipc, gen))
        return self.drawn[-1]


@pytest.mark.parametrize('part', ['test', 'held'])
def test_the_control_is_as_many_training_images_as_the_coreset_has(part):
    other = Split(ONES.x, 1 - ONES.y) # whoever has learned all of `train` is wrong on every image, whoever has not is sometimes right
    data, Noted.drawn[:] = Noted(*data_of(held=other, test=other)), []
    seen = evaluate(Coreset(*ONES), data, 3, 'dc', 'mlp:width=32', part=part, control=True, eight_bit=False)
    assert seen['accuracy_runs_random'] == [0.]*3 and [len(s.y) for s in Noted.drawn] == [8]*3
    Noted.drawn.clear()
    evaluate(data_of().draw(1, stream(0)), data, 6, 'dc', 'mlp:width=32', part=part, control=True, eight_bit=False, epochs=1)
    assert {len(s.y) for s in Noted.drawn} == {2} and len({s.x.argmax().item() for s in Noted.drawn}) > 1, "every control is the same images"


def test_figures_are_of_each_student_alone():
    thetas, looked = [], [] # of networks whose logits are their parameters, whatever they see and learn
    def init(gen): thetas.append(torch.randn(2, generator=gen)); return thetas[-1]
    net = Network('deaf', 2, init, lambda theta, x, stats=None: (theta.detach() + 0*theta).expand(len(x), 2), lambda theta, x: looked.append(len(x)) or {}, many=False)
    test = Split(ONES.x, tensor([0]*6 + [1]*2))
    seen = evaluate(Coreset(ONES.x[:2], ONES.y[:2]), data_of(test=test), 5, 'dc', net, eight_bit=False, epochs=1)
    assert looked == [2]*5, "layers that normalise must not look at the test images"
    right = [[.75, .25][t.argmax()] for t in thetas]
    assert len(set(map(tuple, (t.tolist() for t in thetas)))) == 5 and len(set(right)) == 2
    assert seen['accuracy_runs'] == right and seen['accuracy_std'] == pytest.approx(tensor(right).std(correction=1).item(), rel=1e-5)
    assert seen['nll_mean'] == pytest.approx(sum(-.75*p[0] - .25*p[1] for p in (t.log_softmax(0).tolist() for t in thetas))/5, rel=1e-4)


def test_the_8_bit_figure_is_of_8_bit_images():
    S = Coreset(ONES.x*100 - 50, ONES.y) # nothing is left of the signs' sizes: pixels are cut to [0,1]
    data = data_of(test=Split(S.x, S.y))
    seen = evaluate(S, data, 2, 'dc', TINY, epochs=20)
    cut = evaluate(S.quantised(), data, 2, 'dc', TINY, epochs=20)
    assert seen['nll_mean_8bit'] == pytest.approx(cut['nll_mean'], rel=1e-5) and abs(seen['nll_mean_8bit'] - seen['nll_mean']) > 1e-3


# --- parts of the data ---------------------------------------------------------------------------------------------------------
SHORT = {'mnemonics': dict(T=3), 'fkl': dict(samples=2), 'rkl': dict(samples=2), 'dc': dict(inner=1), 'dsa': dict(inner=1), 'cafe': dict(most=1), 'cafe-dsa': dict(most=1),
         'wasserstein': dict(L=2), 'exact': dict(net='logistic'), **dict.fromkeys(('sre2l', 'dwa'), dict(net='convnet:width=4,depth=1,norm=batch', experts=dict(n=1, epochs=3)))}

@pytest.fixture
def quick(home, monkeypatch):
    for k, v in dict(epochs=2, augment='').items(): monkeypatch.setitem(PROTOCOLS['quick'], k, v)
    x = torch.randn(40, 1, 8, 8, generator=stream(0, 'x'))
    data = load((x.sigmoid().numpy(), (torch.arange(40)%2).numpy()), held_out=.25)
    def hide(*parts): return data._replace(**{p: getattr(data, p)._replace(x=getattr(data, p).x*math.nan) for p in parts})
    def learn(data, method, out, **o):
        known = configure(method, data.name, 1)
        o = {k:v for k,v in (dict(net='mlp:width=8', steps=2, every=2, select_runs=1, experts=dict(n=2, epochs=3)) | o).items() if k in known}
        return distill(method, data, 1, out, progress=False, **o)
    return hide, learn


@pytest.mark.parametrize('method', registry())
def test_methods_look_at_the_training_part_alone(method, quick, tmp_path, monkeypatch):
    hide, learn = quick
    with warnings.catch_warnings():
        warnings.simplefilter('ignore') # no student can be judged, and each look says so
        S = learn(hide('held', 'test'), method, tmp_path/'run', **SHORT.get(method, {}))
    losses = [json.loads(l)['loss'] for l in (tmp_path/'run'/'log.jsonl').read_text().splitlines()]
    assert S.x.isfinite().all() and all(map(math.isfinite, losses)), losses
    assert len(losses) == ('steps' in configure(method, 'any', 1))
    if not losses: # what is chosen is the same whatever lies in the other parts
        monkeypatch.setenv('BPC_CACHE', str(tmp_path/'cache'))
        assert torch.equal(S.x, learn(hide(), method, tmp_path/'again', **SHORT.get(method, {})).x)


def test_a_coreset_is_chosen_without_the_test_part(quick, tmp_path):
    hide, learn = quick
    with warnings.catch_warnings():
        warnings.filterwarnings('error', category=UserWarning) # looking at what is hidden would warn that a student diverged
        assert learn(hide('test'), 'positive-only', tmp_path/'run').meta['held_out'] >= 0


PIXELS = torch.arange(60)/64 # image i has this brightness

@pytest.mark.parametrize('fold', [0, 1])
def test_every_image_is_in_one_part_and_statistics_are_of_training_images(fold):
    x = PIXELS.view(-1,1,1,1).expand(-1,1,2,2)
    data = load((x.numpy(), (torch.arange(60)%3).numpy()), held_out=.25, fold=fold)
    parts = {k: data.transform.inverse(getattr(data, k).x)[:,0,0,0] for k in ('train', 'held', 'test')}
    assert torch.allclose(torch.cat([*parts.values()]).sort().values, PIXELS, atol=1e-5)
    for k, n in dict(train=12, held=4, test=4).items(): assert getattr(data, k).y.bincount().tolist() == [n]*3, k
    for p, t in zip(parts.values(), (data.train, data.held, data.test)): assert ((p*64).round().long()%3 == t.y).all() # with its own label
    assert data.transform.mean.item() == pytest.approx(parts['train'].mean().item(), rel=1e-5)
    assert torch.allclose(data.draw(12, stream(0)).x.sort(0).values, data.train.x.sort(0).values) # without replacement


def test_all_parts_move_to_the_space_of_a_coreset():
    x = PIXELS.view(-1,1,1,1).expand(-1,1,2,2)
    data = load((x.numpy(), (torch.arange(60)%3).numpy()), held_out=.25)
    moved = match(data, data.draw(1, stream(0))._replace(transform=Transform(tensor(.5), tensor(.1))))
    for k in 'train', 'held', 'test':
        assert torch.allclose(moved.transform.inverse(getattr(moved, k).x), data.transform.inverse(getattr(data, k).x), atol=1e-5), k
        assert torch.allclose(getattr(moved, k).x, (data.transform.inverse(getattr(data, k).x) - .5)/.1, atol=1e-4), k


# --- training ------------------------------------------------------------------------------------------------------------------
def test_a_pair_is_of_one_expert_and_T_epochs_apart(tmp_path):
    buffer = experts(data_of(), TINY, tmp_path/'experts', n=3, epochs=4, lr=.1, progress=False)
    at = {tuple(buffer.read(i, k).tolist()): (i, k) for i in buffer.complete for k in range(5)}
    assert len(at) == 15
    for T in 0, 1, 3:
        pairs = {tuple(at[tuple(t.tolist())] for t in buffer.draw(stream(s), T, (0, 2))) for s in range(40)}
        assert all(i == j and b - a == T and a < 2 for (i, a), (j, b) in pairs) and len(pairs) == 3*2


def test_each_image_is_augmented_on_its_own_and_each_epoch_has_draws_of_its_own():
    x = torch.randn(1, 1, 8, 8, generator=stream(0)).expand(16, -1, -1, -1)
    b, = batches((x,), 16, [stream(0)], augment('crop'))
    assert len({tuple(i.flatten().tolist()) for i in b[0][0]}) > 3
    asked = []
    for _ in train(energy(TINY.apply), Trained(torch.zeros(1, TINY.P), torch.zeros(1, TINY.P)), ONES, range(2, 5), lambda e: asked.append(e) or [stream(e)], batch=3, lr=.1): pass
    assert asked == [2, 3, 4]
