"""By hand: formulas and contracts, each against numbers that are worked out beside it."""
from inspect import signature
from math import e, exp, inf, log
from pkgutil import resolve_name
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fastcore.test import test_close as close
from torch import tensor
from torch.distributions import Normal
from torch.nn import functional as F

from bpc_nb.audit import Judge, attack_scores, held_in_file, near_training, nearest_in_class, scores, shadowed
from bpc_nb.augment import AUGMENTATIONS, rotate
from bpc_nb.closeness import closeness, mmd2, proxies
from bpc_nb.core import Algorithm, Coreset, Transform, quarters, stream
from bpc_nb.corrupt import CORRUPTIONS, corrupt, corrupted, glass_blur, snow
from bpc_nb.data import Split, load
from bpc_nb.distill import first_examples, judged, run, start_of
from bpc_nb.energy import energy
from bpc_nb.evaluate import PROTOCOLS, evaluate, predict, students
from bpc_nb.federated import federate
from bpc_nb.later import answers_kept
from bpc_nb.learn import IMAGES, Learner, Task, begun_by, by_loss, outer, start_mix
from bpc_nb.memory import Memory, only
from bpc_nb.methods.cd import antithetic, cd, positive_only
from bpc_nb.methods.dc import dc, dsa
from bpc_nb.methods.frepo import ahead, with_targets
from bpc_nb.methods.kip import by_kernel, kernel_ridge, label_solve, ntk, ntk_own
from bpc_nb.methods.labels import ld, second_order, towards
from bpc_nb.methods.mnemonics import mnemonics
from bpc_nb.methods.rkl import rkl
from bpc_nb.methods.select import expert_features, forgotten
from bpc_nb.methods.sre2l import diversity, dwa, recovery_loss, sre2l
from bpc_nb.methods.tdd import discriminant, off_words
from bpc_nb.methods.variants import cd_late, cd_persistent, sizes
from bpc_nb.methods.vbpc import by_vbpc_untrained, vbpc
from bpc_nb.methods.wasserstein import endpoints
from bpc_nb.metrics import accuracy, nll
from bpc_nb.models import MODELS, Rows, curvature, potential
from bpc_nb.networks import network
from bpc_nb.options import options_of
from bpc_nb.points import contrastive, learned_points, psvi_loss
from bpc_nb.poison import LOOKED_AT, falls, poison
from bpc_nb.predictive import TABLE3, by_posterior, compat_kim2022, compat_metrics, released, table3_row
from bpc_nb.rank import in_order_of_score, score
from bpc_nb.ridge import LINKS, evidence, targets_of
from bpc_nb.samplers.chains import sample
from bpc_nb.samplers.hmc import acceptance, adapt, field, hmc, kinetic, leapfrog, momenta
from bpc_nb.teacher import Teacher
from bpc_nb.train import Trained
from bpc_nb.truth import log_density
from bpc_nb.vectors import delimiter

ONE = Coreset(tensor([[[[1.]]]]), tensor([0]))
TWO = Coreset(tensor([[[[1.]]], [[[2.]]]]), tensor([0, 1])) # the sum of x is 3
FLAT = Coreset(torch.ones(2, 1, 2, 2), tensor([0, 1]))
LOGISTIC = MODELS['logistic']

def E(theta, S): return (theta**2).sum()*S.x.sum()/2
def half(theta): return (theta**2).sum()/2
def drawn(*shape, seed=0): return torch.randn(*shape, generator=stream(seed), dtype=torch.double)
def level(S): return dict(accuracy_mean=.5) # no candidate is better than another


class Pair:
    "Experts that are two known networks; notes what it was asked for"
    def __init__(self, start, end): self.ends, self.asked = (start, end), []
    def draw(self, gen, T, start):
        self.asked.append((T, start))
        return self.ends


class Enough(Exception): "What was to be seen has been seen"
def enough(*_, **__): raise Enough


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch): monkeypatch.setenv('BPC_CACHE', str(tmp_path/'cache'))

@pytest.fixture(scope='module')
def data(): return load('digits')

@pytest.fixture(scope='module')
def S(data): return data.draw(1, stream(0))

@pytest.fixture(scope='module')
def net(data): return network('mlp:width=4', data.shape, data.K)


@pytest.fixture
def watched(monkeypatch):
    "Lets a function of the package, or another in its place, note what it is asked: a list of arguments by name"
    def put(place, answer=None):
        asked, true = [], resolve_name(f'bpc_nb.{place}')
        def noted(*a, **o):
            given = signature(true).bind(*a, **o)
            given.apply_defaults()
            asked.append(given.arguments)
            return (answer or true)(*a, **o)
        monkeypatch.setattr(f'bpc_nb.{place}', noted)
        return asked
    return put


# --- contrastive divergence and its relatives ------------------------------------------------------------------------------------
@pytest.fixture
def at_both_ends():
    "Where the energy is evaluated: an energy that notes it, and a task whose network has two tensors of one number each"
    seen = []
    def noted(theta, S): seen.append(theta.detach()); return (theta**2*S.x.flatten()).sum()/2
    begin, end = tensor([1., 10.]).double(), tensor([3., 50.]).double()
    S = Coreset(torch.ones(2, 1, 1, 1).double(), tensor([0, 1]))
    noise = torch.stack([*antithetic(.5*begin, 3, stream(0))]) # a tensor of one number is its own root mean square
    return seen, Task(noted, SimpleNamespace(shapes=dict(a=(1,), b=(1,))), experts=Pair(begin, end)), S, begin, end, noise


def test_noise_at_both_ends_is_in_units_of_the_drawn_checkpoint(at_both_ends):
    seen, task, S, begin, end, noise = at_both_ends
    cd(task, L=0, width=.5, pairs=3)(S, stream(0))
    close(torch.stack(seen[0::2]) - end, noise, 1e-12)
    close(torch.stack(seen[1::2]) - begin, noise, 1e-12)


def test_noise_of_the_control_without_a_chain_is_in_the_same_units(at_both_ends):
    seen, task, S, begin, end, noise = at_both_ends
    positive_only(task, width=.5, pairs=3)(S, stream(0))
    close(torch.stack(seen) - end, noise, 1e-12)


def test_both_energies_see_one_augmentation_and_the_chain_another():
    seen = []
    def noted(theta, S): seen.append(S.x.detach()); return (theta*S.x.sum()).sum()
    S = Coreset(torch.rand(4, 1, 8, 8, generator=stream(1)), tensor([0, 1, 0, 1]))
    cd(Task(noted, None, experts=Pair(tensor([1.]), tensor([3.]))), L=1, augment='cutout')(S, stream(0))
    step, pos, neg = seen
    assert torch.equal(pos, neg) and not torch.equal(step, pos)
    assert all((x==0).sum() > (S.x==0).sum() for x in (step, pos))


def test_a_persistent_chain_is_held_against_the_end_of_the_pair():
    value, _ = cd_persistent(Task(E, experts=Pair(tensor([2.]), tensor([5.]))), L=0).loss(TWO, None, None)
    close(value, 3/2*(25 - 4))


def test_late_chains_start_from_other_epochs_and_end_as_many_later():
    pair = Pair(tensor([2.]), tensor([5.]))
    l = cd_late(Task(E, experts=pair), after=1, T=3, k_max=4, k_late=9, L=0)
    for n in 0, 1: l.loss(ONE, None, (n, None, None))
    assert pair.asked == [(3, (0, 4)), (3, (0, 9))]


def test_a_tensor_counts_as_at_least_a_tenth_of_all():
    rms = ((1e-4 + 1)/2)**.5
    s = tensor([.1*rms, 1.])
    close(sizes(tensor([.01, 1.]), dict(a=(1,), b=(1,))), s/s.square().mean().sqrt(), 1e-6)


def test_reverse_kl_samples_around_the_end_of_the_descent():
    pair, at = Pair(tensor([1.]).double(), tensor([7.]).double()), []
    def loss(theta, S): at.append(theta.item()); return (theta*S.x.sum()).sum()
    S = Coreset(torch.ones(2, 1, 1, 1).double().requires_grad_(), tensor([0, 1]))
    data = SimpleNamespace(train=Split(torch.ones(3, 1, 1, 1).double(), tensor([0, 1, 0])))
    rkl(Task(E, None, data, pair, loss), L=3, alpha=.5, k_max=4, samples=2, width=0.)(S, stream(0))
    close(at, [.125]*len(at), 1e-12) # the slope is 2*theta, so each of three steps multiplies theta by 1 - .5/2*2
    assert pair.asked == [(0, (0, 4))]


def test_an_expert_deviates_as_a_straight_way_does():
    a, b = tensor([0., 0.]).double(), tensor([6., 0.]).double()
    went = [tensor(t).double() for t in ([0., 0.], [2., 2.], [4., 1.])]
    sd = torch.stack(went).std(0, correction=0)
    sd_pos = tensor([3**.5, 0.]).double() # a uniform law of width 6 has deviation 6/12**.5
    close(endpoints(a, b, went, 'diagonal'), (4 + 1 + ((sd - sd_pos)**2).sum())/36, 1e-9)


def test_mnemonics_begin_at_the_trained_end_of_the_pair(data, net, watched):
    S, pair, at = data.draw(1, stream(0)), Pair(torch.zeros(net.P), torch.ones(net.P)), watched('methods.mnemonics.temporary')
    task = Task(lambda theta, S: (theta**2).sum()*S.x.sum(), net, data, pair)
    mnemonics(task, T=7, inner=1).loss(S._replace(x=S.x.requires_grad_()), stream(1), None)
    assert pair.asked == [(7, (0, 1))] and torch.equal(at[0]['theta'], torch.ones(net.P))


def test_gradient_matching_has_the_momentum_of_its_two_codes():
    assert [options_of(m)['momentum_net'] for m in (dc, dsa)] == [.5, 0.]


# --- labels, statistics, words ---------------------------------------------------------------------------------------------------
def test_a_pseudo_step_goes_a_share_of_the_way_to_the_regression():
    W, phi, y = drawn(4, 3), drawn(6, 4, seed=1), drawn(6, 3, seed=2)
    best = torch.linalg.solve(phi.T@phi + .5*torch.eye(4), phi.T@y)
    close(towards(W, phi, y, .5, .25), .75*W + .25*best, 1e-9)


def test_a_step_of_second_order_has_the_whole_rate():
    net = network('mlp:width=4', (1, 2, 2), 3)
    theta, x, y = net.init(stream(0)).double(), drawn(5, 1, 2, 2), torch.full((5, 3), 1/3).double()
    at = theta.clone().requires_grad_()
    g, = torch.autograd.grad(F.cross_entropy(net.apply(at, x), y), at)
    new = second_order(net, .1)(dict(theta=theta), x, y.requires_grad_(), None)[1]['theta']
    close(new, theta - .1*g, 1e-6)


@pytest.mark.parametrize('since, taken', [(2., 51.), (3., 1.)])
def test_a_pupil_begins_anew_after_so_many_steps_without_a_record(data, net, S, since, taken):
    l = ld(Task(None, net, data), inner=4, real=8, patience=3)
    S = l.begin(S, None)
    c = l.carry(S, stream(1)) | dict(taken=tensor(50.), since=tensor(since), best=tensor(-1.)) # however many it has taken
    assert l.loss(S, stream(2), c, torch.ones(1))[1]['taken'].item() == taken


def test_a_step_sees_each_base_image_at_most_once(data, net, S):
    l = ld(Task(None, net, data), inner=10, real=8)
    S = l.begin(S, None)
    y = S.y.clone().requires_grad_()
    value, _ = l.loss(S._replace(y=y), stream(2), l.carry(S, stream(1)), torch.ones(1))
    assert (torch.autograd.grad(value, y)[0].abs().sum(1) > 0).all() # ten of ten


def test_the_first_layer_counts_ten_times_and_variances_by_their_weight():
    stats = {f'{k}.running_{n}':tensor([v, v]) for k in '03' for n,v in (('mean', 0.), ('var', 1.))}
    seen = {'0':(tensor([3., 4.]), tensor([1., 3.])), '3':(tensor([0., 2.]), tensor([2., 1.]))} # away by 5 and 2, 2 and 1
    got = recovery_loss(lambda *_: (torch.zeros(1, 10), seen), Teacher(None, None, stats), None, None, tensor([0]), .1, 7.)
    close(got, log(10) + .1*(10*(5 + 7*2) + (2 + 7*1)), 1e-5)


def test_variances_count_eleven_times_where_the_teacher_is_moved():
    assert [options_of(m)['spread'] for m in (sre2l, dwa)] == [1., 11.]


def test_diversity_is_of_features_around_their_mean(monkeypatch):
    f = tensor([[2., 0.], [0., 2.], [4., 6.], [6., 4.]]) # around (3,3): (-1,-3), (-3,-1) and the same with other signs
    monkeypatch.setattr('bpc_nb.methods.sre2l.last_layer', lambda *_: lambda x: f)
    S = Coreset(torch.zeros(4, 1, 2, 2), tensor([0, 0, 1, 1]))
    got = diversity(S, SimpleNamespace(net=None, theta=None, stats=None))
    close((got['distance'], got['cosine']), (8., .6), 1e-5)


def test_the_width_of_a_class_is_that_of_one_number():
    f, y = tensor([[-1., 0.], [1., 0.], [9., 3.], [11., 3.]]), F.one_hot(tensor([0, 0, 1, 1]), 2).float()
    g = tensor([[2., 1.]]) # every deviation is 1 in one of two numbers, half a square for each
    close(discriminant(f, y)(g), -torch.cdist(g, tensor([[0., 0.], [10., 3.]]))**2/(2*.5), 1e-4)


def test_vectors_are_off_their_words_in_units_of_two_words():
    words = tensor([[0., 0.], [1., 0.], [-1., 0.]]) # pairs of the last two are 2 apart or 0, 2**.5 in root mean square
    close(off_words(Coreset(tensor([[[1., .5]]]), tensor([0]), words=words)), .5/2**.5, 1e-6)


def test_softened_answers_are_kept_by_the_divergence_from_the_old_ones():
    now, before, tau = tensor([[1., 0., 2.], [0., 3., 1.]]).double(), tensor([[2., 1., 0.], [1., 1., 4.]]).double(), 2.
    p = (before/tau).softmax(1)
    close(answers_kept(now, before, tau), tau**2*(p*(p.log() - (now/tau).log_softmax(1))).sum(1).mean(), 1e-9)


# --- closed forms ----------------------------------------------------------------------------------------------------------------
def test_a_kernel_of_several_layers_has_variances_of_as_many(data):
    S = data.draw(2, stream(0))
    x, X = S.x.double(), data.test.x.double()
    row, = by_kernel(S, data, None, (0,), 'test', depth=3, r=.1)
    mean, s2, noise = kernel_ridge(ntk(x, None, 3), ntk(X, x, 3), targets_of(S, 10), .1, ntk_own(X, 3))
    close(row['nll'], nll(LINKS['gaussian'](mean, s2, noise), data.test.y), 1e-6)


def test_noise_of_a_kernel_regression_is_in_units_of_its_prior():
    phi, other, y = drawn(5, 8), drawn(3, 8, seed=1), drawn(5, 2, seed=2)
    noise = kernel_ridge(phi@phi.T, other@phi.T, y, .1, other.square().sum(1))[2]
    close(noise, evidence(phi, y, .1)[1]*.1*phi.square().sum()/5, 1e-12)


def test_solved_labels_leave_no_slope(data, S):
    few = data._replace(train=Split(data.train.x[:300].double(), data.train.y[:300]))
    S, Y, r = S._replace(x=S.x.double()), targets_of(Coreset(*few.train), 10), .5 # a ridge that counts
    K, others = ntk(S.x), ntk(few.train.x, S.x)
    def slope(y): return torch.autograd.grad(((kernel_ridge(K, others, y, r)[0] - Y)**2).sum(), y)[0].norm()
    y = label_solve(Task(None, None, few), r=r)(S, None).y
    assert slope(y.requires_grad_()) < 1e-6*slope(torch.zeros_like(y).requires_grad_())


def test_a_label_is_ahead_by_at_most_one_in_so_many_classes():
    close(ahead(tensor([[.9, .1, 0., 0.], [.3, .2, .1, 0.]])), (1/4 + .1)/2, 1e-6)


def test_targets_of_four_times_ten_classes_are_half_as_large():
    S = with_targets(Coreset(torch.zeros(2, 1, 1, 1), tensor([0, 1])), 40)
    close(S.y[0,:2], tensor([1 - 1/40, -1/40])/2, 1e-6)


def test_vbpc_has_the_published_constants(data, S):
    assert [options_of(vbpc)[k] for k in ('rho', 'gamma', 'beta')] == [1., 100., 1e-8]
    net = network('mlp:width=8', data.shape, 10)
    def of(**o): return by_vbpc_untrained(S._replace(meta={}), data, net, (0,), 'held', range(1), **o)
    assert of() == of(rho=1., gamma=100.)


@pytest.mark.parametrize('D', [8, 2])
def test_a_weight_is_a_count_to_the_evidence(D): # with more features than examples, and with fewer
    phi, y, w = drawn(3, D), drawn(3, 2, seed=1), tensor([2., 1., 3.]).double()
    again = torch.arange(3).repeat_interleave(w.long())
    close(evidence(phi, y, .1, w)[1], evidence(phi[again], y[again], .1)[1], 1e-10)


# --- corruptions and augmentations -----------------------------------------------------------------------------------------------
def test_constants_of_corruptions_add_up_to_those_published():
    def total(c): return sum(map(total, c)) if isinstance(c, tuple) else c
    assert {name: round(total(c), 4) for name, (_, c) in CORRUPTIONS.items()} == dict(
        gaussian_noise=.37, shot_noise=975, impulse_noise=.18, defocus_blur=5.5, glass_blur=13.35, motion_blur=44, zoom_blur=.8, snow=99.75,
        frost=6.25, fog=16.2, brightness=.8, contrast=2.1, elastic_transform=.95, pixelate=4.1, jpeg_compression=293)


def test_contrast_falls_by_the_published_factors():
    assert CORRUPTIONS['contrast'][1] == (.75, .5, .4, .3, .15)


@pytest.mark.parametrize('severity', [2, 5])
def test_each_corruption_and_severity_has_draws_of_its_own(data, severity):
    few = data._replace(test=Split(data.test.x[:20], data.test.y[:20]))
    pixels = (few.transform.inverse(few.test.x)*16).round()/16 # digits have 17 levels
    own = corrupt(pixels, 'impulse_noise', severity, stream(7, 'corrupt', 'impulse_noise', severity))
    close(corrupted(few, 'impulse_noise', severity, 7).x, few.transform(own), 1e-5)


def test_corrupted_pixels_are_cut_to_8_bits_and_not_rounded():
    x = torch.full((1, 1, 8, 8), .5)
    x[...,0] = .9 # the mean is .55, so a contrast of .75 moves .5 to .5125, which is 130.7 of 255
    assert (corrupt(x, 'contrast', 1, None)[0,0,0,1]*255).round() == 130


def test_glass_leaves_a_border_where_it_is():
    x = torch.rand(1, 1, 12, 12, generator=stream(0))
    out = glass_blur(x, (1e-9, 2, 1), stream(1))
    for edge in slice(0, 3), slice(11, 12): close(out[:,:,edge], (x[:,:,edge]*255).floor()/255, 1e-5)
    assert (out[:,:,3:11] - x[:,:,3:11]).abs().max() > .1


def test_snow_falls_downwards(watched):
    asked = watched('corrupt.motion_blurred')
    snow(torch.zeros(200, 1, 8, 8), CORRUPTIONS['snow'][1][0], stream(0))
    degrees = asked[0]['degrees']
    assert -135 <= degrees.min() < -130 and -50 < degrees.max() <= -45


@pytest.mark.parametrize('word, degrees', [('rotate', 15.), ('rotate45', 45.)])
def test_images_turn_by_at_most_so_many_degrees(word, degrees):
    x, most = torch.rand(1, 1, 9, 9, generator=stream(0)), tensor([[1., 0.]])
    f, = AUGMENTATIONS[word]
    close(f(x, most), rotate(x, most, degrees=degrees), 1e-6)


def test_quarters_grow_along_straight_lines():
    x = torch.zeros(1, 1, 4, 4)
    x[0,0,0,:2] = tensor([0., 4.])
    assert quarters(x)[0,0,0].tolist() == [0., 1., 3., 4.] # straight between the middles of two pixels


def test_quarters_are_cut_from_pixels_and_whitened_later():
    A, p = torch.randn(16, 16, generator=stream(0)), torch.rand(2, 1, 4, 4, generator=stream(1))
    A = A@A.T/16 + torch.eye(16)
    t = Transform(tensor(0.), tensor(1.), torch.rand(16, generator=stream(2)), A, torch.linalg.inv(A))
    close(Coreset(t(p), tensor([0, 1]), transform=t, decode='factor2').examples().x, t(quarters(p)), 1e-3)


# --- closeness of posteriors, ranking --------------------------------------------------------------------------------------------
def test_the_floor_is_of_two_halves_that_share_no_draw():
    P = torch.rand(9, 6, 3, generator=stream(0)).double().softmax(-1)
    found, own = closeness(P, P), proxies(P[:4], P[-4:])
    for k in 'agreement', 'total_variation', 'mmd2': close(found[f'{k}_floor'], own[k], 1e-12)


def test_q_is_too_wide_where_its_draws_contradict_each_other():
    wide, narrow = torch.eye(2).double()[:,None], torch.full((2, 1, 2), .5).double()
    assert [proxies(narrow, wide)['too_wide'], proxies(wide, narrow)['too_wide']] == [1., 0.]


def test_the_scale_of_the_kernel_is_the_median_distance_of_different_draws():
    P, Q = tensor([0., 1.]).double().view(2, 1, 1), tensor([3., 7.]).double().view(2, 1, 1) # squared distances: 1 4 9 16 36 49
    def k(d): return exp(-d*d/(2*9))
    close(mmd2(P, Q), k(1) + k(4) - (k(3) + k(7) + k(2) + k(6))/2, 1e-9)


def test_candidates_are_ranked_on_the_validation_split_unless_another_is_named(data, S, watched):
    asked = watched('rank.score', lambda *_: dict(accuracy=0.))
    in_order_of_score(S, data, [dict(net='mlp')], progress=False)
    in_order_of_score(S, data, [dict(net='mlp')], 'dc', 3, 'test', 5, False)
    assert [[a[k] for k in ('protocol', 'runs', 'part', 'seed')] for a in asked] == [['quick', 2, 'held', 0], ['dc', 3, 'test', 5]]


def test_a_score_is_of_as_many_students_of_the_seed_as_were_asked_for(data, S):
    spec, o = 'mlp:width=8', dict(epochs=3, lr=.1, augment='')
    net = network(spec, data.shape, 10)
    each = [accuracy(predict(net, t, data.held.x), data.held.y) for t in students(S, net, 2, seed=(5, 'rank'), **o)]
    assert score(S, data, dict(net=spec) | o, 'dc', 2, 'held', 5)['runs'] == each


# --- audit -----------------------------------------------------------------------------------------------------------------------
def judge(data, says, seed=0): # says: `(coreset, images) -> (R,N,K)`
    "A judge that asks no students"
    class Told(Judge):
        def probs(self, S, x, net=None, **_): return says(S, x)
    return Told(data, None, 1, 'brief', seed, 'cpu', {})

def right(y, share): # labels, how many are given correctly
    return F.one_hot(torch.where(torch.arange(len(y)) < share*len(y), y, (y + 1)%10), 10).double()[None]


def test_scores_of_an_audit_are_differences_of_accuracies(data, S):
    real, soft = data.draw(1, stream(1)), S._replace(y=torch.eye(10)[S.y]*.8 + .02)
    shares = {(True, True): .75, (True, False): .5, (False, True): .4, (False, False): .25} # of the coreset's images, with soft labels
    j = judge(data, lambda s, x: right(data.test.y, shares[s.x is S.x, s.y.is_floating_point()]))
    a = {r.what: r for r in scores(soft, real, j, .9)} # .9: of all data
    def squashed(v): return (exp(v) - 1/e)/(e - 1/e)
    close([a['HLR'].value, a['IOR'].value], [.9 - .5, .75 - .4], 1e-3)
    close([a['LRS'].value, a['LRS'].control], [squashed((.35 - .4)/2), squashed((.25 - .9)/2)], 1e-3)
    close(a['ARS'].value, squashed(.75 - .25), 1e-3) # as far ahead with augmentation as without


def test_what_8_bits_lose_is_a_positive_number(data, S):
    S = S._replace(x=S.x + .1)
    lost = held_in_file(S, judge(data, lambda s, x: right(data.test.y, s.x is S.x)))[2]
    assert (lost.value, lost.red) == (1., True)


def test_copies_are_nearer_than_99_in_100_held_out_images(data):
    inv, (x, y) = data.transform.inverse, data.held
    d = nearest_in_class(inv(x), y, inv(data.train.x), data.train.y)[0]
    assert 101 <= len(y) < 201 # the quantile of one in a hundred is the second of them, or between it and the third
    some = d.argsort()[[0, 1, 2, 5, 8, 11]]
    assert near_training(data.draw(1, stream(0))._replace(x=x[some], y=y[some]), data)[0][1].value == 2


def test_shadow_runs_have_seeds_of_their_own(data, watched):
    asked = watched('audit.distill', lambda method, half, ipc, **_: half.draw(ipc, stream(0)))
    shadowed('random', 1, judge(data, lambda s, x: torch.full((1, len(x), 10), .1), seed=3), 3, False)
    assert [a['seed'] for a in asked] == [3, 4, 5]


def test_the_attack_has_one_variance_for_runs_with_and_one_for_runs_without_an_image():
    M = tensor([[0., 0., 0.], [1., 5., 2.], [3., 5., 2.], [10., 4., 8.], [14., 2., 6.]]).double()
    inside = tensor([[1, 1, 1], [1, 1, 0], [1, 1, 0], [0, 0, 1], [0, 0, 1]]).bool()
    a, b = Normal(tensor([2., 5., 7.]).double(), (4/6)**.5), Normal(tensor([12., 3., 2.]).double(), (10/6)**.5) # of the last four runs
    close(attack_scores(M, inside, 0), a.log_prob(M[0]) - b.log_prob(M[0]), 1e-6)


# --- memory, federation, poison, selection ---------------------------------------------------------------------------------------
def test_new_images_take_the_share_of_the_memory_that_they_have_of_all_seen(data, watched):
    data, none = only(data, '01'), Split(data.held.x[:0], data.held.y[:0])
    x, y = data.train
    n, asked = len(y)//2, watched('memory.mixed_in')
    one = Memory(per_class=3, method='random').add(data._replace(train=Split(x[:n], y[:n])), progress=False)
    two = one.add(data._replace(train=Split(x[n:], y[n:]), held=none), progress=False)
    close([a['share'] for a in asked], [1 - len(one.seen[c])/len(two.seen[c]) for c in '01'], 1e-9)


def test_old_classes_without_news_are_learned_again_only_where_that_is_asked(data):
    m = Memory(per_class=3, method='k-means').add(only(data, '01'), progress=False)
    kept, anew = (m.add(only(data, '2'), progress=False, refresh=r).replay() for r in (False, True))
    assert torch.equal(kept.x[:6], m.replay().x) and not torch.equal(anew.x[:6], m.replay().x)


def test_a_client_counts_as_much_as_it_has_images(data, net, monkeypatch):
    parts = [data._replace(train=Split(data.train.x[:n], data.train.y[:n])) for n in (10, 30)]
    def train(E, state, xy, *_, **__): return [Trained(torch.full((1, net.P), float(len(xy[1]))), None)] # weights: number of images
    monkeypatch.setattr('bpc_nb.federated.train', train)
    theta, = federate(net, parts, data, 1)
    close(theta, torch.full((net.P,), 10*10/40 + 30*30/40), 1e-4)


def test_falls_are_between_the_same_images(watched, monkeypatch):
    asked = watched('poison.called', lambda *_, **__: torch.eye(3))
    monkeypatch.setattr('bpc_nb.poison.after', lambda net, S, thetas: thetas)
    monkeypatch.setattr('bpc_nb.poison.examples_of', lambda S, device: S)
    for part in (), ('held',): falls(None, None, torch.zeros(1, 1), None, *part)
    assert [a['part'] for a in asked] == ['test', 'test', 'held', 'held'] # before and after


def test_an_attack_is_chosen_by_some_networks_on_the_validation_split(data, net, watched):
    asked = watched('poison.called')
    poison(data, net, torch.stack([net.init(stream(i)) for i in range(LOOKED_AT + 2)]), 3, 8, ipc=1, steps=2, progress=False)
    assert {(len(a['thetas']), a['part']) for a in asked} == {(5, 'held')}


def test_forgetting_looks_at_every_checkpoint_and_features_at_the_last(data, net, monkeypatch):
    read = []
    def checkpoint(i, epoch): read.append(epoch); return net.init(stream(epoch))
    monkeypatch.setattr('bpc_nb.methods.select.kept', lambda make, *_: make())
    task = SimpleNamespace(net=net, data=data, experts=SimpleNamespace(index=dict(epochs=3), complete=[0], read=checkpoint))
    forgotten(task, 'cpu'); expert_features(task, 'net', 'cpu', stream(0))
    assert read == [0, 1, 2, 3, 3]


# --- the loop and its evaluation -------------------------------------------------------------------------------------------------
def test_a_look_that_is_as_good_does_not_replace_an_earlier_one():
    s = outer(by_loss(lambda S, gen: S.x.sum()), FLAT, level, steps=4, every=2, average=0., progress=False)
    assert s.at == 0 and torch.equal(s.best['x'], FLAT.x)


def test_the_mean_is_of_images_that_keep_the_constraint():
    l = Learner(lambda S, gen, carry: (-S.x.sum(), None), dict(x=IMAGES._replace(bound=lambda x: x.clamp(max=1.))))
    s = outer(l, FLAT, level, steps=6, every=6, average=.5, progress=False)
    assert torch.equal(s.mean['x'], FLAT.x)


def test_the_start_is_no_part_of_the_mean():
    l = by_loss(lambda S, gen: S.x.square().sum()/4) # half of x for each of two images, so a step of .1 multiplies x by .9
    s = outer(l, FLAT, level, steps=2, every=2, lr=.1, momentum=0., average=.75, progress=False)
    close(s.mean['x'], (.75*.9 + .25*.9**2)*FLAT.x, 1e-6)


def test_a_mixed_start_is_of_four_images_with_the_spread_of_the_first(data):
    gen = stream(3)
    four = [data.draw(1, gen).x for _ in range(4)]
    mean = sum(four)/4
    close(start_mix(data, 1, stream(3)).x, mean*four[0].std()/mean.std(), 1e-5)


def test_the_start_depends_on_the_seed(data):
    def first(seed): return first_examples(data, 1, dict(start='noise'), seed).x
    assert torch.equal(first(0), first(0)) and not torch.equal(first(0), first(1))


def test_what_a_method_chooses_depends_on_the_seed(data):
    l = begun_by(lambda S, gen: S._replace(x=torch.randn(S.x.shape, generator=gen)))
    def chosen(seed): return start_of(data, 1, {}, None, l, seed).x
    assert torch.equal(chosen(0), chosen(0)) and not torch.equal(chosen(0), chosen(1))


def test_candidates_are_judged_with_the_seed_on_the_validation_split(data, watched):
    asked = watched('distill.evaluate', lambda *_, **__: dict(accuracy_mean=0.))
    judged(data, dict(select_evaluator='students', select_protocol='quick', select_runs=1), None, 3, 'cpu')(None)
    assert [(a['seed'], a['part']) for a in asked] == [(3, 'held')]


def test_a_sum_is_over_the_examples_that_students_see(watched):
    asked = watched('distill.slower_by', enough)
    S = Coreset(torch.zeros(10, 1, 8, 8), torch.arange(10), decode='factor2')
    with pytest.raises(Enough): run(SimpleNamespace(scaled=True), S, None, dict(scale='sum'), None, 0, 1, False)
    assert [a['n'] for a in asked] == [40]


def test_the_quick_protocol_is_a_fifth_of_the_published_one_at_twice_the_step():
    quick, mtt = PROTOCOLS['quick'], PROTOCOLS['mtt']
    assert (quick['epochs']*5, quick['lr']/2) == (mtt['epochs'], mtt['lr'])


def test_the_control_has_as_many_images_or_more(data):
    S = data.draw(2, stream(0))
    few = S._replace(x=S.x[:15], y=S.y[:15]) # of ten classes: two of each
    assert evaluate(few, data, 1, net='mlp:width=4', epochs=1, control=True, eight_bit=False)['images_random'] == 20


# --- chains and predictives ------------------------------------------------------------------------------------------------------
def test_notes_of_chains_are_those_of_the_draws_that_are_kept():
    alg = hmc(half, .5, 2)
    c = sample(alg, alg.init(torch.ones(2, 3)), 11, stream(0), burn=2, thin=3)
    close(c.energy, c.theta.square().sum(-1)/2, 1e-6)


def test_step_sizes_of_flights_vary_to_both_sides(watched):
    asked, alg = watched('samplers.hmc.leapfrog'), hmc(half, .5, 1, jitter=.2)
    state, gen = alg.init(torch.zeros(1, 1)), stream(0)
    for _ in range(300): state = alg.step(state, gen)
    eps = torch.cat([a['eps'] for a in asked])
    assert .4 <= eps.min() < .41 and .59 < eps.max() <= .6


def adapted(accepted, **o): # what `adapt` makes of these mean acceptances, with a first guess of .1
    left = iter(accepted)
    def step(state, gen): return SimpleNamespace(info=SimpleNamespace(acceptance=tensor([next(left)])))
    return adapt(lambda eps: Algorithm(lambda theta: None, step), .1, None, len(accepted), None, **o)[0]


def test_a_step_size_on_target_is_drawn_to_ten_times_the_guess():
    close(adapted([.5]*5, target=.5), 1., 1e-6)


def test_the_step_size_is_the_mean_of_dual_averaging():
    accepted, short, mean = [1., 0., 1., 1., 0.], 0., 0.
    for t,a in enumerate(accepted, 1): # Hoffman and Gelman: gamma .05, t_0 10, kappa .75, around log(10*.1) = 0
        short += .8 - a
        mean = t**-.75*(-t**.5/.05*short/(t + 10)) + (1 - t**-.75)*mean
    close(adapted(accepted), exp(mean), 1e-6)


def test_each_run_of_a_posterior_has_chains_of_its_own(watched):
    asked = watched('predictive.posterior_metrics', lambda *_, **__: {})
    by_posterior('hmc', None, None, None, (7, 'test'), 'test', range(3))
    assert [a['seed'] for a in asked] == [7, (7, 1), (7, 2)]


@pytest.mark.parametrize('sampler', ['hmc', 'a-sghmc'])
def test_a_coreset_has_the_row_of_the_next_smaller_one(sampler):
    assert [table3_row(sampler, i) for i in (1, 9, 10, 19, 20)] == [TABLE3[sampler, i] for i in (1, 1, 10, 10, 20)]
    assert [(TABLE3[sampler, i]['n'], TABLE3[sampler, i]['burn']) for i in (1, 10, 20)] == [(20, 10), (100, 50), (100, 50)]


def test_the_released_sampler_subtracts_the_change_of_kinetic_energy():
    def U(theta): return (theta**2).sum()*2
    alg, theta = released(U, .1, 1, .7), torch.full((4, 2), .3)
    begin = alg.init(theta)
    r = momenta(theta, stream(3), temperature=.7**2)
    there, s = leapfrog(field(U), begin.point, r, .1, 1)
    rise = there.energy - begin.point.energy - (kinetic(s) - kinetic(r))
    close(alg.step(begin, stream(3)).info.acceptance, acceptance(rise), 1e-6)


def test_the_released_energy_has_the_norm_and_not_its_square_for_each_image(data, net, S, watched):
    asked = watched('predictive.released', enough)
    with pytest.raises(Enough): compat_kim2022(S, data, net=net, prior=.5)
    theta = net.init(stream(1))
    close(asked[0]['E'](theta), energy(net.apply, scale='sum')(theta, S) + 10*.5*theta.norm(), 1e-4)


def test_a_confidence_on_an_edge_belongs_to_the_bin_below():
    edge = np.linspace(0, 1, 30)[10] # .345: the bin below has .34, too, and their gaps are added before the sign is dropped
    probs = tensor([[[edge, .33, .67 - edge], [.34, .33, .33]]], dtype=torch.float64)
    hit, miss = 1 - edge, 0 - .34
    close(compat_metrics(probs, tensor([0, 1]))['ece_compat_kim2022'], abs(hit + miss)/2, 1e-6)


# --- regressions and tables ------------------------------------------------------------------------------------------------------
def test_the_prior_has_one_deviation_in_energy_derivatives_and_density():
    theta, sd = tensor([.5, -1.]).double(), 3.
    rows = Rows(tensor([[1.], [2.]]).double(), tensor([0., 1.]).double())
    U, (g, H) = potential(LOGISTIC, rows, sd), curvature(LOGISTIC, rows, theta, sd)
    close(U(theta) - potential(LOGISTIC, rows, inf)(theta), 1.25/(2*9), 1e-12)
    close(g, torch.func.grad(U)(theta), 1e-9)
    close(H, torch.func.hessian(U)(theta), 1e-9)
    close(log_density(LOGISTIC, rows, theta[None], sd, 1), -U(theta)[None], 1e-9)


def test_a_temperature_of_four_is_a_quarter_of_each_row():
    rows, theta = Rows(drawn(20, 1), torch.ones(20).double()), drawn(6, 2, seed=1)
    S, quarter = Rows(rows.x[:2], rows.y[:2], torch.full((2,), 10.).double()), rows._replace(w=torch.full((20,), .25).double())
    close(psvi_loss(LOGISTIC, S, rows, theta, 20, None, 4.), psvi_loss(LOGISTIC, S, quarter, theta, 20, None, 1.), 1e-9)


def test_the_first_draws_are_as_wide_as_so_few_rows_allow(watched):
    asked, pos = watched('points.cd_loss'), drawn(500, 2, seed=1)
    rows = Rows(drawn(20, 1), torch.ones(20).double(), torch.full((20,), 5.).double())
    contrastive(LOGISTIC, rows, 3, pos, steps=1, samples=64, begin=25)
    close(asked[0]['pos'].T.cov(), 4*pos.T.cov(), 1e-6) # 100 rows against 25: twice as wide


def test_rates_of_points_fall_to_a_hundredth_after_three_tenths_of_the_steps(monkeypatch):
    rates, rows = [], Rows(drawn(6, 1), torch.ones(6).double())
    monkeypatch.setattr(torch.optim.Adam, 'step', lambda self: rates.append(self.param_groups[0]['lr']))
    S = Rows(rows.x[:2], rows.y[:2], torch.full((2,), 3.).double())
    learned_points(LOGISTIC, rows, S, lambda S, *_: S.x.sum() + S.w.sum(), steps=10, lr=1.)
    close(rates, [1.]*4 + [.01**((i/10 - .3)/.7) for i in range(4, 10)], 1e-9)
    assert rates[-1] < .03


def test_the_first_line_decides_where_no_sign_is_as_often_in_both(tmp_path):
    (f := tmp_path/'a.csv').write_text('a;b;c,d\n1;2,5,7,8;3;4\n')
    assert delimiter(f) == ';'
