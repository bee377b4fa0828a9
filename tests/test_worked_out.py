"""Worked out: what is chosen, read, kept, searched and printed, each against numbers that stand beside it."""
from math import log, pi
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fastcore.test import test_close as close
from torch import tensor
from torch.nn import functional as F

from bpc_nb.core import Coreset, stream
from bpc_nb.data import Split, load
from bpc_nb.learn import Task
from bpc_nb.networks import network


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch): monkeypatch.setenv('BPC_CACHE', str(tmp_path/'cache'))

@pytest.fixture(scope='module')
def data(): return load('digits')

@pytest.fixture(scope='module')
def S(data): return data.draw(1, stream(0))

@pytest.fixture(scope='module')
def net(data): return network('mlp:width=4', data.shape, data.K)


# --- what is chosen ------------------------------------------------------------------------------------------------------------
from bpc_nb.methods.select import expert_features, forgetting, forgotten, herd, k_center, kernel_herded

@pytest.mark.parametrize('width', [.3, 1., 2.])
def test_the_width_of_kernel_herding_is_in_units_of_the_class(width):
    f = torch.randn(60, 5, generator=stream(0), dtype=torch.double).exp()
    apart = torch.cdist(f, f)**2
    K = (-apart/(apart.mean()*width**2)).exp() # at 1 its square is half the mean squared distance of two images
    assert kernel_herded(f, 20, width).equal(herd(torch.ones(60), K.mean(1), K.__getitem__, 20))


def test_the_first_centre_is_any_image_where_that_is_asked(data, S):
    first = lambda how, s: k_center(Task(None, data=data), features='pixels', first=how)(S, stream(s)).meta['chosen'][0]
    assert len({first('random', s) for s in range(4)}) > 1 == len({first('mean', s) for s in range(4)})


@pytest.fixture
def two_experts(data, net):
    "A buffer of two experts after one epoch, and a task"
    buffer = SimpleNamespace(key='two', complete=[0, 1], index=dict(epochs=1), read=lambda i, e: net.init(stream(i, 'expert', e)))
    return Task(None, net, data, buffer)


def test_each_expert_has_features_of_its_own(data, two_experts):
    drawn = [int(torch.randint(2, (), generator=stream(s))) for s in range(4)]
    assert {*drawn} == {0, 1}
    f = [expert_features(two_experts, 'net', 'cpu', stream(s)) for s in range(4)]
    assert [[a.equal(b) for b in f] for a in f] == [[a == b for b in drawn] for a in drawn]


def test_each_expert_forgets_for_itself(data, net, two_experts, monkeypatch):
    seen = []
    def events(right): seen.append(right); return right[1].float()
    monkeypatch.setattr('bpc_nb.methods.select.events', events)
    total = forgotten(two_experts, 'cpu')
    assert len(seen) == 2 and total.equal(seen[0][1].float() + seen[1][1].float())


def test_the_most_forgotten_images_come_first_unless_the_least_are_asked_for(data, S, monkeypatch):
    often = torch.arange(len(data.train.y)).float()
    monkeypatch.setattr('bpc_nb.methods.select.forgotten', lambda task, device: often)
    chosen = lambda **o: forgetting(Task(None, data=data), **o)(S, stream(0)).meta['chosen']
    of = [(data.train.y == k).nonzero().squeeze(1) for k in range(10)]
    assert chosen() == chosen(order='most') == [w[-1].item() for w in of] and chosen(order='least') == [w[0].item() for w in of]


# --- what is read --------------------------------------------------------------------------------------------------------------
def test_whitening_of_large_images_is_kept_for_each_split(monkeypatch): # above 1024 numbers an image it is kept on disk
    def centred(xs): # the matrices take seconds, and the centre shows whose they are
        x = torch.cat([*xs]).flatten(1)
        return dict(centre=x.mean(0), white=torch.eye(x.shape[1]), colour=torch.eye(x.shape[1]))
    monkeypatch.setattr('bpc_nb.data.whitening', centred)
    x, y = torch.rand(60, 1, 33, 32, generator=stream(0)), [0, 1]*30
    for how in dict(fold=0), dict(fold=1), dict(seed=1), dict(held_out=.4):
        d = load((x, y), zca=True, **how)
        assert d.train.x.mean(0).abs().max() < 1e-3, how # whitened around the mean of its own training images


def test_the_seed_of_the_data_decides_which_images_are_held_out():
    x, y = torch.linspace(0, 1, 40).view(40, 1, 1, 1), [0, 1]*20
    both = dict(x_train=x[:30], y_train=y[:30], x_test=x[30:], y_test=y[30:])
    held = [load(both, held_out=.3, seed=s) for s in range(3)]
    held = [tuple(d.transform.inverse(d.held.x).flatten().mul(39).round().int().tolist()) for d in held]
    assert len({*held}) == 3


def test_the_seed_decides_which_sentences_are_held_out(tmp_path):
    (tmp_path/'train.tsv').write_text('label\ttext\n' + ''.join(f"{'ab'[i%2]}\tone two three word{i//2} word{i//2}\n" for i in range(40)))
    (tmp_path/'test.tsv').write_text('label\ttext\na\tone two\nb\ttwo three\n')
    of = [load(tmp_path, held_out=.2, seed=s).meta['text']['words'] for s in range(3)] # words that the training sentences have
    assert len({tuple(sorted(w)) for w in of}) == 3


def idx(folder, n, side):
    "MNIST's four files"
    folder.mkdir()
    for part,k in ('train', n), ('t10k', n):
        head = lambda kind, *size: np.array([kind, *size], '>i4').tobytes()
        (folder/f'{part}-images-idx3-ubyte').write_bytes(head(2051, k, side, side) + bytes(i%251 for i in range(k*side*side)))
        (folder/f'{part}-labels-idx1-ubyte').write_bytes(head(2049, k) + bytes(i%2 for i in range(k)))


def test_what_is_kept_of_a_set_is_kept_for_each_size(tmp_path):
    from bpc_nb.images import read_digits, read_idx
    idx(tmp_path/'raw', 6, 4)
    for size in None, (2, 2), (3, 2):
        assert tuple(read_digits(size)[0]['x'].shape[2:]) == (size or (8, 8))
        assert tuple(read_idx('MNIST', sorted((tmp_path/'raw').iterdir()), size)[0]['x'].shape[2:]) == (size or (4, 4))


def sheet(path, blobs, label, columns):
    import pyarrow as pa, pyarrow.parquet as pq
    pq.write_table(pa.table(dict(img=[dict(bytes=b, path=None) for b in blobs], **columns)), path)
    return path

def picture(v):
    from io import BytesIO
    from PIL import Image
    Image.new('L', (4, 6), v).save(b := BytesIO(), 'PNG')
    return b.getvalue()


def test_sheets_are_kept_for_each_size_and_for_what_is_left_out(tmp_path):
    from bpc_nb.images import read_parquet
    fine = sheet(tmp_path/'a.parquet', [*map(picture, range(4))], 'label', dict(label=[0, 1, 0, 1]))
    for size in None, (3, 3): assert tuple(read_parquet([fine], size)[0]['x'].shape[2:]) == (size or (6, 4))
    bad = sheet(tmp_path/'b.parquet', [*map(picture, range(4)), b'?'], 'label', dict(label=[0, 1, 0, 1, 0]))
    assert read_parquet([bad], skip_bad=True)[1]['skipped'] == ['b.parquet row 4']
    with pytest.raises(ValueError, match='cannot decode'): read_parquet([bad])


def test_a_bad_picture_is_an_error_also_after_it_was_left_out_once(tmp_path):
    for k in 'ab':
        (tmp_path/'p'/k).mkdir(parents=True)
        for i in range(4): (tmp_path/'p'/k/f'{i}.png').write_bytes(picture(i))
    (tmp_path/'p'/'a'/'bad.png').write_bytes(b'?')
    assert load(tmp_path/'p', skip_bad=True, folds=2).meta['skipped'] == ['a/bad.png']
    with pytest.raises(ValueError, match='cannot decode image a/bad.png'): load(tmp_path/'p', folds=2)


def test_fine_labels_go_before_coarse_ones_and_test_before_validation(tmp_path):
    from bpc_nb.images import read_parquet, unpack
    files = [sheet(tmp_path/f'{part}.parquet', [picture(k), picture(k)], '', dict(label=[0, 0], fine_label=[1, 0]))
             for k,part in enumerate(('test', 'train', 'valid'))]
    t, meta = read_parquet(files)
    assert (t['x'][:,0,0,0].tolist(), t['y'].tolist(), meta['n']) == ([1, 1, 0, 0], [1, 0, 1, 0], 2)
    rows = [dict(img=torch.zeros(1, 4, 4), label=0, fine_label=k) for k in (1, 0)]
    assert unpack(rows)[1].tolist() == [1, 0]


def test_a_coreset_of_another_fold_or_share_says_so(data):
    from bpc_nb.data import other_split, recipe_in
    S = data.draw(1, stream(0))
    made = lambda **o: S._replace(meta=S.meta | dict(recipe=S.meta['recipe'] | o))
    assert [other_split(data, made(**o)) for o in ({}, dict(fold=3), dict(held_out=.3), dict(seed=2))] == ['', 'fold=3', 'held_out=0.3', 'seed=2']
    assert [recipe_in(made(fold=f).meta)['fold'] for f in (0, 2)] == [None, 2]


# --- what is learned through -----------------------------------------------------------------------------------------------------
from bpc_nb.methods.dd import altered, by_neighbours, step_sizes
from bpc_nb.methods.frepo import frepo, frepo_loss, network_source
from bpc_nb.methods.gtn import first_latents, generator, gtn, in_another_order, made_by
from bpc_nb.methods.kip import kip_loss, kernel_ridge, ntk, spoilt
from bpc_nb.methods.labels import first_order, from_base, pupil
from bpc_nb.methods.vbpc import by_vbpc_untrained, vbpc_loss

def plain(theta, x): return x.flatten(1)
def rows(*v): return tensor(v).double().view(len(v), -1)


def test_the_loss_of_feature_regression_is_half_a_mean_over_images_less_the_lead():
    S = Coreset(rows(1.), rows(2., 0.).view(1, 2)) # kernel 1, ridge 1: weights are half of the targets, (1, 0)
    loss = frepo_loss(plain, None, S, rows(2., 0.), rows([1., 1.], [0., 0.]), 1.) # says (2, 0) and (0, 0)
    close(loss.item(), (1 + 1)/(2*2) - 1/2, 1e-12) # ahead by 2, which counts as 1/K


def test_a_pool_of_feature_regression_takes_the_published_steps():
    from bpc_nb.options import options_of
    assert {k:options_of(frepo)[k] for k in ('pool', 'age', 'lr_net', 'r')} == dict(pool=10, age=100, lr_net=3e-4, r=1e-6)


@pytest.mark.parametrize('gamma', [1., .25])
def test_the_loss_of_a_last_layer_posterior(gamma):
    c = 1/gamma # rho/gamma; features 1: the mean is target/(1 + c), the variance c/(1 + c)
    S, mean, s2 = Coreset(rows(1.), rows(2., 0.).view(1, 2)), 2/(1 + c), c/(1 + c)
    says = mean/(1 + pi/8*s2)**.5
    kl = (2*(s2 - 1 - log(s2)) + mean**2)/2 # of two classes, from N(0, 1)
    for beta in 0., 3.:
        loss = vbpc_loss(plain, None, S, rows(1.), tensor([0]), 1., gamma, beta)
        close(loss.item(), log(1 + np.exp(-says)) + beta*kl, 1e-9)


def test_constants_of_another_method_are_not_those_of_a_posterior(data, S, net):
    of = lambda **meta: by_vbpc_untrained(S._replace(meta=meta), data._replace(test=Split(*(t[:9] for t in data.test))), net, (0,), 'test', range(1))[0]
    assert [(r['rho'], r['gamma']) for r in (of(), of(method='focal', rho=3., gamma=5.), of(method='vbpc', rho=3., gamma=5.))] == [(1., 100.)]*2 + [(3., 5.)]


def test_what_is_altered_of_a_schedule():
    S = Coreset(torch.arange(4.).view(4, 1, 1, 1), tensor([0, 1, 2, 3]), steps=tensor([[1., 2.], [3., 4.]]), init=5)
    of = altered(S)
    assert {k:s.steps.tolist() for k,s in of.items() if s.steps is not None and s.init == 5} == {
        'as learned':[[1., 2.], [3., 4.]], 'half the step sizes':[[.5, 1.], [1.5, 2.]], 'twice the step sizes':[[2., 4.], [6., 8.]],
        'steps in reverse':[[3., 4.], [1., 2.]], 'batches in reverse':[[2., 1.], [4., 3.]]}
    assert of['batches in reverse'].x.flatten().tolist() == of['batches in reverse'].y.tolist() == [2, 3, 0, 1]
    assert of['another initialisation'].init == 6 and of['any initialisation'].init is None and of['any initialisation'].steps is S.steps
    assert of['without schedule'].steps is None and of['without schedule'].init is None


def test_images_of_another_set_have_its_pixels_in_the_space_of_the_task(monkeypatch):
    other = load((torch.rand(40, 1, 4, 4, generator=stream(0)), [0, 1]*20))
    data = load((torch.rand(40, 3, 4, 4, generator=stream(1))*.2, [0, 1]*20), held_out=.2) # darker, and in colour
    monkeypatch.setattr('bpc_nb.methods.labels.load', lambda name: other)
    S = from_base('other', data, data.draw(2, stream(0)), stream(3))
    seen, pixels = data.transform.inverse(S.x), other.transform.inverse(other.train.x)
    assert seen[:,0].allclose(seen[:,2], atol=1e-5) and all((pixels[:,0] - p).abs().flatten(1).amax(1).min() < 1e-5 for p in seen[:,0])


def test_a_pupil_takes_its_step_at_the_learned_scale(data, net, S):
    c, y = pupil(net, 5, 10, stream(0), S.x), torch.eye(10)
    c = c | dict(W=torch.randn(5, 10, generator=stream(1)))
    see = lambda theta: torch.cat([net.features(theta, S.x)[-1].flatten(1), torch.ones(10, 1)], 1)
    new = first_order(net, 1., .01, .1)(c, S.x, y, tensor([3.]))[1]
    W = new['W'] # the last layer after its pseudo-step is kept
    phi = see(c['theta'])
    close(W, .99*c['W'] + .01*phi.T@torch.linalg.solve(phi@phi.T + torch.eye(10), y), 1e-4)
    theta = c['theta'].clone().requires_grad_()
    g, = torch.autograd.grad(F.cross_entropy(3*see(theta)@W, y), theta)
    close(new['moments'][0], .1*g, 1e-5) # the first moment of Adam, at .9


def test_the_loss_of_kernel_inducing_points_is_half_a_mean_over_images(data, S):
    from bpc_nb.ridge import targets_of
    S = S._replace(y=targets_of(S, 10), targets=True)
    i = torch.randint(len(data.train.y), (7,), generator=stream(5))
    says = kernel_ridge(ntk(S.x.double()), ntk(data.train.x[i].double(), S.x.double()), S.y, .1)[0]
    want = ((says - targets_of(Coreset(*data.train), 10)[i])**2).sum(1).mean()/2
    close(kip_loss(data, 7, 1, .1)(S, stream(5)).item(), want.item(), 1e-9)


def test_so_many_pixels_are_noise(S):
    from bpc_nb.learn import IMAGES
    for share in .1, .8: close((spoilt(IMAGES, share).put(S, S.x).x != S.x).double().mean().item(), share, .06)


def test_latent_vectors_are_drawn_from_the_number_of_the_coreset(data):
    from bpc_nb.learn import task_of
    of = lambda n: first_latents(Coreset(torch.zeros(3, 1, 2, 2), tensor([0, 1, 2]), meta=dict(latents=n)), 4)
    assert of(1).equal(of(1)) and not of(1).equal(of(2))
    S = Coreset(torch.ones(3, 4), tensor([0, 1, 2]), meta=dict(latents=1))
    G = generator((1, 2, 2), 3, 4, 8)
    made = lambda order: made_by(G, (1, 2, 2), 3, 4, order, .1, .1)['x'].put(S, G.init(stream(0))).x
    assert not made('learned').allclose(made('fixed')) # the learned ones, here all ones, or the first


def test_real_examples_of_the_control_come_in_batches_of_all_classes(data, net, monkeypatch):
    from bpc_nb.learn import task_of
    seen = []
    monkeypatch.setattr('bpc_nb.methods.gtn.loss_through', lambda task, real: lambda S, gen: seen.append(S))
    l = gtn(task_of(net, {}, data), inner=2, source='real')
    S = l.begin(data.draw(2, stream(0)), stream(1))._replace(steps=torch.ones(1, 2))
    l.loss(S, stream(2), None)
    label = {tuple(x.flatten().tolist()):y for x,y in zip(data.train.x, data.train.y.tolist())}
    assert [label[tuple(x.flatten().tolist())] for x in seen[0].x] == [*range(10), *range(10)] == seen[0].y.tolist()


def test_batches_stay_whole_where_they_come_in_another_order():
    S = Coreset(torch.arange(12.).view(12, 1), torch.arange(12), steps=torch.ones(1, 3))
    for s in range(3):
        x = in_another_order(S, 'batches', stream(s)).x.flatten().view(3, 4)
        assert sorted(x.tolist()) == torch.arange(12.).view(3, 4).tolist()
    assert any(in_another_order(S, 'all', stream(s)).x.flatten().view(3, 4).sort(1).values[:,0].sort().values.tolist() != [0., 4., 8.] for s in range(3))


def test_neighbours_vote_beside_one_vote_for_all(data):
    S = Coreset(rows(0., 1., 5.).float(), tensor([0, 0, 1]))
    two = data._replace(classes=('a', 'b'), test=Split(rows(.4, 4.).float(), tensor([0, 0])))
    r, = by_neighbours(S, two, None, (), 'test', k=2) # votes (2, 0) and (1, 1), and a half for each
    close((r['accuracy'], r['nll']), (1., -(log(2.5/3) + log(1.5/3))/2), 1e-5)


# --- what is kept ----------------------------------------------------------------------------------------------------------------
from bpc_nb.cells import CELL, cells, check_cell, key
from bpc_nb.lines import add, done, file_digest, lines

CHECKED = check_cell(CELL | dict(method='random', net='mlp:width=4'))


def test_a_whole_line_without_its_end_is_kept_when_another_is_added(tmp_path):
    (path := tmp_path/'a.jsonl').write_text('{"key": "a"}\n{"key": "b"}') # as an editor may leave it
    add(path, dict(key='c'))
    assert [r['key'] for r in lines(path)] == ['a', 'b', 'c']


def test_of_two_lines_of_one_name_the_last_one_counts(tmp_path):
    for v in 1, 2: add(tmp_path/'a.jsonl', dict(key='k', v=v))
    assert done(tmp_path)['k']['v'] == 2


def test_a_line_waits_for_who_writes_to_its_file(tmp_path):
    from threading import Thread
    from bpc_nb.runs import held
    t = Thread(target=add, args=(tmp_path/'a.jsonl', dict(key='k')))
    with held(tmp_path/'.a.lock'):
        t.start(); t.join(.2)
        assert t.is_alive() and not done(tmp_path)
    t.join(5)
    assert [*done(tmp_path)] == ['k']


def test_a_lock_that_its_owner_has_just_removed_is_no_lock(tmp_path, monkeypatch):
    from bpc_nb import runs
    true, path, n = runs.fcntl.flock, tmp_path/'lock', []
    def flock(f, how):
        true(f, how)
        if not n: path.unlink() # as its last owner does between our opening and our locking
        n.append(1)
    monkeypatch.setattr(runs.fcntl, 'flock', flock)
    with runs.held(path, wait=True) as mine: assert mine and len(n) == 2 and path.exists()


def test_rules_of_numbers_at_their_ends():
    from bpc_nb.options import Part, NonNegative, Positive, Share, whole
    takes = {}
    for name,kind in dict(Share=Share, Part=Part, NonNegative=NonNegative, Positive=Positive).items():
        def sound(v):
            try: kind.__metadata__[0]('v', v)
            except ValueError: return False
            return True
        takes[name] = [sound(v) for v in (-.1, 0., .5, 1., 1.1)]
    assert takes == dict(Share=[False, True, True, False, False], Part=[False, False, True, True, False], NonNegative=[False, True, True, True, True],
                         Positive=[False, False, True, True, True])
    assert [whole('v', v, 1, 4) for v in (1, 4)] == [1, 4]
    for v in 0, 5, 2., True, '3':
        with pytest.raises(ValueError, match='v: expected a whole number from 1 to 4'): whole('v', v, 1, 4)


@pytest.mark.parametrize('other', [dict(seed=1), dict(fold=1), dict(runs=2), dict(zca=True), dict(size=(4, 4)), dict(ipc=2), dict(protocol='quick')])
def test_random_controls_are_shared_by_cells_that_differ_in_nothing_else(other):
    from bpc_nb.grid import twins
    assert twins(CHECKED, CHECKED | dict(method='herding')) and not twins(CHECKED, CHECKED | other)


def test_random_controls_are_those_of_the_same_network_decoder_and_start():
    from bpc_nb.grid import twins
    of = lambda **o: CHECKED | dict(config=CHECKED['config'] | o)
    assert [twins(of(net='mlp:width=4'), of(**o)) for o in (dict(net='mlp'), dict(decode='factor2'), dict(known=True), dict(bf16=True))] == [False]*3 + [True]
    assert not twins(CHECKED, CHECKED | dict(method='exact'))


def test_experts_are_shared_by_cells_of_the_same_data_network_and_training():
    from bpc_nb.grid import kin
    cell = check_cell(CELL | dict(net='mlp:width=4'))
    assert kin(cell) == kin(cell | dict(ipc=5, seed=3))
    others = [cell | dict(fold=1), cell | dict(size=(4, 4)), cell | dict(zca=True), *(cell | dict(config=cell['config'] | o) for o in (
        dict(net='mlp'), dict(experts=dict(n=3))))]
    assert len({*map(kin, [cell, *others])}) == 6


def test_a_line_of_other_students_has_another_name(tmp_path):
    from bpc_nb.grid import sampled, transfers
    (at := tmp_path/'a').write_bytes(b'a')
    of = lambda protocol='dc', runs=5, seed=0, evaluator='students', options={}, data='': [*transfers(at, ['mlp'], protocol, runs, seed, evaluator, options, data)][0]
    (tmp_path/'b').write_bytes(b'b')
    names = [of(), of('quick'), of(runs=1), of(seed=1), of(evaluator='knn'), of(options=dict(k=2)), of(data='other'), [*transfers(tmp_path/'b', ['mlp'], 'dc', 5, 0)][0]]
    assert len({*names}) == 8 and of() == of()
    assert len({*sampled(at, ['hmc', 'ensemble'], 0), *sampled(at, ['hmc'], 1), *sampled(tmp_path/'b', ['hmc'], 0)}) == 4


def test_students_of_all_images_are_measured_anew_for_another_number_of_epochs_seed_or_split(tmp_path, monkeypatch):
    from bpc_nb import grid
    asked = []
    monkeypatch.setattr(grid, 'best_here', lambda *a: None)
    monkeypatch.setattr(grid, 'evaluate', lambda S, data, runs, protocol, net, seed, **o: asked.append((seed, o['epochs'])) or dict(accuracy_mean=.5))
    data, other = load('digits'), load('digits', fold=1)
    for d,o in (data, dict()), (data, dict(epochs=2)), (data, dict(seed=3)), (other, {}), (data, {}): grid.whole_data(d, 'mlp', tmp_path, **o)
    assert asked == [(0, None), (0, 2), (3, None), (0, None)]


def test_the_seed_of_a_cell_is_that_of_its_run_and_of_who_judges(tmp_path, monkeypatch):
    from bpc_nb import grid
    asked, S = {}, load('digits').draw(1, stream(0))
    def made(*a, **o):
        asked['run'] = o['seed']
        return S._replace(meta=S.meta | dict(bf16=False, compile=False, held_out=.5, step=0))
    def judged(S, **o): asked['judge'] = o['seed'], o['runs']; return dict(accuracy_mean=.5, protocol='dc')
    monkeypatch.setattr(grid, 'distill', made); monkeypatch.setattr(grid, 'evaluate', judged)
    grid.run_cell(CHECKED | dict(seed=7, runs=3), out=tmp_path, device='cpu')
    assert asked == dict(run=7, judge=(7, 3))


def test_a_posterior_has_the_seed_of_its_cell(tmp_path, monkeypatch):
    from bpc_nb import grid
    asked, data = [], load('digits')
    monkeypatch.setattr(grid, 'predictive', lambda S, data, protocol, seed, device: asked.append(seed) or {})
    data.draw(1, stream(0)).save(tmp_path/'a.safetensors')
    for seed in 0, 5: grid.posteriors(tmp_path/'a.safetensors', data, ['hmc'], tmp_path, seed)
    assert asked == [0, 5]


@pytest.mark.parametrize('times,kept,halved', [(1, True, False), (1.5, True, True), (2.5, False, False)])
def test_what_is_kept_is_what_is_measured(tmp_path, monkeypatch, times, kept, halved):
    from bpc_nb import grid
    seen, S = [], load('digits').draw(1, stream(0))
    monkeypatch.setattr(grid, 'SMALL', S.x.nbytes/times)
    monkeypatch.setattr(grid, 'distill', lambda *a, **o: S._replace(meta=S.meta | dict(bf16=False, compile=False, held_out=.5, step=0)))
    monkeypatch.setattr(grid, 'evaluate', lambda S, **o: seen.append(S.x) or dict(accuracy_mean=.5, accuracy_mean_random=.1))
    coreset, line = grid.run_cell(CHECKED, out=tmp_path/'run', device='cpu')
    assert ('accuracy_mean_half' in line) == halved and len(seen) == 1 + halved and (coreset.x.dtype == torch.half) == halved
    if halved: assert seen[1].equal(S.x.half().float()) and not seen[1].equal(S.x)
    grid.keep(tmp_path/'a.jsonl', coreset, line, tmp_path)
    (line,), at = lines(tmp_path/'a.jsonl'), tmp_path/'coresets'/f"{line['key']}.safetensors"
    assert at.exists() == kept == (not line.get('large', False))
    if kept: assert file_digest(at) == line['coreset']


def test_candidates_are_drawn_by_the_seed():
    from bpc_nb.search import drawn
    names = [*'abcdefgh']
    assert len({tuple(drawn(names, 4, s)) for s in range(4)}) > 1


def test_a_candidate_is_worth_the_mean_of_its_repetitions(tmp_path, monkeypatch):
    from bpc_nb import search
    monkeypatch.setattr(search, 'reached', lambda cell, *a: [.2, .6][cell['seed']])
    (tmp_path/'a.toml').write_text('[[cells]]\nmethod = "dm"\nseed = [0, 1]\nsteps = 5\n')
    cells, = search.space(tmp_path/'a.toml').values()
    r = search.assess(cells, tmp_path/'search.jsonl', float('inf'), tmp_path, None, 'cpu', False)
    assert (r['held_outs'], r['held_out']) == ([.2, .6], .4)


def test_who_judges_a_cell_makes_no_other_candidate():
    from bpc_nb.search import name_of
    cell = check_cell(CELL | dict(method='dm', steps=5))
    assert len({name_of(cell | o) for o in ({}, dict(seed=1), dict(fold=2), dict(runs=1), dict(protocol='quick'))}) == 1
    assert name_of(cell) == name_of(check_cell(CELL | dict(method='dm', steps=9))) != name_of(check_cell(CELL | dict(method='dm', lr=3.)))


def test_lines_and_coresets_get_their_new_names_together(tmp_path):
    from bpc_nb.search import line_key, rekey, space, typed, candidate_of
    (tmp_path/'coresets').mkdir(); (tmp_path/'coresets'/'old.safetensors').write_bytes(b'images')
    (tmp_path/'s.toml').write_text('[[cells]]\nmethod = "dm"\nseed = [0, 1]\nsteps = 5\n')
    some, = space(tmp_path/'s.toml').values()
    add(tmp_path/'a.jsonl', dict(key='old', **CHECKED))
    add(tmp_path/'search.jsonl', dict(key='older', cell=typed(some), recipe=candidate_of(some[0]), steps=5, held_out=.5))
    assert rekey(tmp_path) == {'old':key(CHECKED), 'older':line_key(some)}
    assert [p.name for p in (tmp_path/'coresets').iterdir()] == [f'{key(CHECKED)}.safetensors']


# --- tables ------------------------------------------------------------------------------------------------------------------------
def measured(held, seed=0, fold=None, L=5, **o):
    return dict(data='toy', ipc=1, protocol='dc', method='cd', seed=seed, fold=fold, held_out=held, config=dict(L=L, lr=1., start='real') | o)


def test_a_row_shows_the_recipe_with_most_folds_and_of_seeds_two_are_enough():
    from bpc_nb.tables import grouped
    shown = lambda *rows: [(r['config']['L'], r['fold'], r['seed']) for r in grouped(rows)[0]['CD']]
    assert shown(*(measured(.9, L=7, fold=f) for f in range(2)), *(measured(.5, fold=f) for f in range(3))) == [(5, f, 0) for f in range(3)]
    assert shown(*(measured(.5, seed=s) for s in range(3)), *(measured(.6, seed=s, L=7) for s in range(2))) == [(7, None, s) for s in range(2)]
    assert shown(measured(.5, seed=0), measured(.6, seed=1), *(measured(.57, seed=s, L=7) for s in range(2))) == [(7, None, s) for s in range(2)] # by the mean


def test_the_newest_line_of_each_fold_and_seed_counts():
    from bpc_nb.tables import latest
    rows = [dict(fold=f, seed=0, v=v, made=dict(time=t)) for f,v,t in ((0, 'new', '2026-02'), (0, 'old', '2026-01'), (1, 'only', '2025-12'))]
    assert sorted(r['v'] for r in latest(rows)) == ['new', 'only']


def test_a_control_is_tuned_where_a_search_found_better_than_its_start(tmp_path):
    from bpc_nb.tables import control, searched
    recipe = dict(data='toy', ipc=1, select_protocol='dc', method='cd', L=0)
    for held in .5, .601, .4: add(tmp_path/'search.jsonl', dict(recipe=recipe, held_out=held))
    best = searched(tmp_path)
    assert best == {('toy', 1, 'dc', 'L=0'):.601}
    line = lambda held, step=0: measured(held, L=0, select_protocol='dc') | dict(step=step, accuracy_runs=[.5])
    said = [control([line(*a)], best) for a in ((.6,), (.59,), (.6, 10))]
    assert said == ['50.0 (start, none better was found)', '50.0 (start, not tuned)', '50.0'] and control([line(.6)]) == '50.0 (start, not tuned)'


def test_students_of_all_images_come_best_first(tmp_path):
    from bpc_nb.tables import whole_sets
    for k,(protocol,seed,a) in enumerate((('dc', 0, [.5, .6]), ('quick', 0, [.35, .85]), ('dc', 1, [.7, .8]), ('mtt', 0, [.9]))):
        add(tmp_path/'whole.jsonl', dict(key=str(k), data='mnist', net='n', protocol=protocol, epochs=1, seed=seed, n_train=9, accuracy_runs=a))
    assert [[r['seed'] for r in g] for g in whole_sets(tmp_path)['mnist']] == [[0], [0, 1], [0]]
    assert [g[0]['protocol'] for g in whole_sets(tmp_path)['mnist']] == ['mtt', 'dc', 'quick']


def test_losses_are_compared_on_the_folds_that_all_entries_have(tmp_path):
    from bpc_nb.lines import RESULTS
    from bpc_nb.tables import table4
    (tmp_path/'papers').mkdir()
    (tmp_path/'papers'/'losses.toml').write_text((RESULTS/'papers'/'losses.toml').read_text())
    n = 0
    for c in cells(tmp_path/'papers'/'losses.toml'):
        loss = c['config']['experts'].get('loss', 'cross_entropy'), c['config']['loss']
        if c['ipc'] != 1 or loss == ('focal', 'focal') and c['fold'] == 0: continue # which has one fold less
        n += 1
        add(tmp_path/'a.jsonl', dict(key=key(c), accuracy_runs=[1. if c['fold'] == 0 else .5]))
    assert n and {v for r in table4(1, tmp_path)[1] for v in r[1:]} == {'50.0 ± 0.0'}


def test_a_row_says_the_deviation_over_all_students():
    from bpc_nb.tables import percent
    assert percent([dict(accuracy_runs=[.1, .2]), dict(accuracy_runs=[.6])]) == '30.0 ± 26.5' # the root of (400 + 100 + 900)/2


# --- teachers, memories, ranks and audits ----------------------------------------------------------------------------------------------
def test_a_teacher_is_the_mean_of_its_last_quarter(monkeypatch):
    from bpc_nb import teacher
    monkeypatch.setattr(teacher, 'Buffer', SimpleNamespace)
    of = lambda E: teacher.averaged(SimpleNamespace(index=dict(n=1, epochs=E), complete=[0], read=lambda i, e: tensor([float(e)]))).item()
    assert [of(E) for E in (8, 3, 20)] == [(6 + 7 + 8)/3, 3., (15 + 16 + 17 + 18 + 19 + 20)/6]


@pytest.fixture
def taught(data):
    from bpc_nb.teacher import Teacher
    net = network('convnet:width=4,depth=1,norm=batch', data.shape, data.K)
    theta = net.init(stream(0))
    return Teacher(net, theta, net.stats(theta, data.train.x[:200]))


def test_a_student_sees_the_pictures_that_stored_labels_are_about(data, taught, tmp_path):
    from bpc_nb.teacher import answers, from_file, mixtures, relabelled
    from bpc_nb.train import batches
    S = data.draw(1, stream(0))
    relabelled(S, taught, 2, 4, 2., seed=5).save(tmp_path/'labels.safetensors')
    lesson = from_file(S, taught.net, tmp_path/'labels.safetensors')
    for e in range(2):
        for x,p in batches(lesson.tensors(e), lesson.how['batch'], [lesson.gens(e, 3)], mixtures(lesson.how['augment'], S.x.shape[1:])):
            close(p[0], answers(taught, x[0], 2.), 2e-3)


def test_taught_students_take_a_tenth_of_the_rate_after_half_of_the_epochs(data, taught, monkeypatch):
    from bpc_nb import teacher
    S, rates, true = data.draw(1, stream(0)), [], teacher.train
    monkeypatch.setattr(teacher, 'train', lambda *a, lr, **o: rates.append(lr) or true(*a, lr=lr, **o))
    lesson = teacher.online(S, taught.net, taught, dict(epochs=4, batch=10, temperature=4., augment=''), (0,))
    teacher.learners(lesson, S, taught.net, (0,), range(1), lr=.01)
    assert rates == [.01]*3 + [.001]


def test_old_answers_are_those_of_the_first_network_and_count_by_their_number(data):
    from bpc_nb.later import answers_kept, go_on
    net = network('logistic', (1, 1, 2), 3)
    new, old = Split(torch.randn(6, 1, 1, 2, generator=stream(1)), tensor([2]*6)), Split(torch.randn(6, 1, 1, 2, generator=stream(2)), tensor([0, 1]*3))
    theta = start = net.init(stream(0))
    gen, v = stream(3), 0.
    for _ in range(3):
        x, y = zip(*[(s.x[i], s.y[i]) for s in (new, old) for i in [torch.randint(6, (4,), generator=gen)]])
        at = theta.detach().requires_grad_()
        logits = net.apply(at, torch.cat(x))
        loss = F.cross_entropy(logits, torch.cat(y)) + 2/4*answers_kept(logits[:,:2], net.apply(start, torch.cat(x))[:,:2])
        v = .5*v + torch.autograd.grad(loss, at)[0]
        theta = theta - .1*v
    close(go_on(net, start, new, old, (0, 1), stream(3), 3, .1, .5, 4), theta, 1e-5)


def test_an_interval_leaves_out_as_much_on_either_side():
    from bpc_nb.rank import interval
    a = torch.arange(1000.)
    low, high = interval(lambda a, b: a[0].item(), a, a, stream(0), times=4000, level=.9)
    assert abs(low - 50) < 15 and abs(high - 950) < 15


def test_a_candidate_is_trained_as_it_says(data, S, monkeypatch):
    from bpc_nb import rank
    asked = []
    monkeypatch.setattr(rank, 'students', lambda *a, **o: asked.append(o) or [a[1].init(stream(0))]*a[2])
    rank.score(S, data, dict(net='mlp:width=4', epochs=3, lr=.5), 'dc', 2)
    assert (asked[0]['epochs'], asked[0]['lr'], asked[0]['seed']) == (3, .5, (0, 'rank'))


def test_membership_is_red_three_standard_errors_above_a_coin_and_the_control(data, monkeypatch):
    from bpc_nb import audit
    areas = iter([.56, .5, .54, .5, .60, .55])
    monkeypatch.setattr(audit, 'auc', lambda *a: next(areas))
    monkeypatch.setattr(audit, 'margins', lambda p, y: y)
    j = SimpleNamespace(data=data, seed=0, probs=lambda s, x: x[None])
    n = min(500, len(data.test.y)) # 500 of the training images, and all 360 test images
    error = ((500 + n + 1)/(12*500*n))**.5
    assert .054 < 3*error < .06
    assert [audit.membership(None, None, j, 500)[0].red for _ in range(3)] == [True, False, False]


def test_an_audit_corrupts_at_severity_three_and_shifts_by_a_tenth(data, S, monkeypatch):
    from bpc_nb import audit
    asked, true = [], audit.corrupted
    monkeypatch.setattr(audit, 'corrupted', lambda data, name, severity, seed: asked.append((severity, seed)) or data.test)
    P = torch.full((1, 6*len(data.test.y), 10), .1)
    found = audit.when_corrupted(S, S, SimpleNamespace(data=data, seed=4, probs=lambda s, x: P))
    assert asked == [(3, 4)]*5 and found[-1].what == 'shifted by 1 pixel'


def test_all_data_pass_as_often_as_is_asked_and_at_most_a_hundred_times(data, monkeypatch):
    from bpc_nb.audit import Judge, everything
    asked = []
    monkeypatch.setattr('bpc_nb.audit.Judge.probs', lambda self, S, x, net=None, **o: asked.append((self.runs, o['epochs'], len(S.y))) or torch.full((1, len(x), 10), .1))
    j, N = Judge(data, None, 5, 'quick', 0, 'cpu', {}), len(data.train.y)
    for passes in 10*N, 1, 10**9: everything(j, passes)
    assert asked == [(1, 10, N), (1, 1, N), (1, 100, N)]


def test_validation_images_too_belong_to_one_client_each(data):
    from bpc_nb.federated import clients, weight_bytes
    some = clients(data, 5, 4)
    assert sum(len(c.held.y) for c in some) == len(data.held.y) and len(torch.cat([c.held.x for c in some]).flatten(1).unique(dim=0)) == len(data.held.y)
    assert weight_bytes(SimpleNamespace(P=10), 3, 7) == 4*10*3*7


def few_of(data, n, first=0):
    "So many images of each of two classes, from one on"
    i = torch.cat([(data.train.y == k).nonzero().squeeze(1)[first:first+n] for k in (0, 1)])
    return data._replace(train=Split(*(t[i] for t in data.train)), held=Split(*(t[:0] for t in data.held)), classes=('0', '1'),
                         meta=data.meta | dict(checksum=f'{n} {first}'))


def test_what_was_added_first_is_still_known_after_another_addition(data):
    from bpc_nb.memory import Memory
    m = Memory(per_class=2, method='random', options=dict(net='mlp:width=4'))
    for first in 0, 4: m = m.add(few_of(data, 4, first), progress=False)
    assert {k:len(v) for k,v in m.seen.items()} == {'0':8, '1':8} and m.add(few_of(data, 4), progress=False) is m


def test_with_fewer_places_the_first_images_stay(data):
    from bpc_nb.memory import Memory
    m = Memory(per_class=3, method='random', options=dict(net='mlp:width=4')).add(few_of(data, 4), progress=False)
    fewer = m._replace(per_class=2).add(few_of(data, 4), progress=False)
    assert fewer.coreset.x.equal(m.coreset.x[[0, 1, 3, 4]])


def test_stored_images_stand_for_as_many_as_a_new_class_has(data):
    from bpc_nb.memory import pool, unseen
    new = few_of(data, 8)._replace(classes=('2', '3'))
    old = few_of(data, 2).draw(2, stream(0))
    both = pool(old, new, unseen(new, {}), 2)
    assert both.classes == tuple('0123') and both.train.y.bincount().tolist() == [8]*4 and both.meta['stored'] == ['0', '1']
    assert len(both.train.x[both.train.y == 0].unique(dim=0)) == 2


def test_recovered_images_stay_within_what_a_file_holds_and_the_last_ones_count(data, taught):
    from bpc_nb.methods.sre2l import sre2l, within
    S = data.draw(1, stream(0))
    p = data.transform.inverse(within(data)(S.x*9))
    assert p.min() > -1e-5 and p.max() < 1 + 1e-5 and sre2l(Task(None, taught.net, data, SimpleNamespace(draw=lambda: (None, taught.theta)))).last


def test_values_that_an_8_bit_file_cuts_off():
    from bpc_nb.core import out_of_range
    assert out_of_range(tensor([-.01, -.001, 0., .5, 1., 1.001, 1.01, 2.])) == 3/8


# --- plans and times -----------------------------------------------------------------------------------------------------------------
def test_a_plan_adds_up(data, monkeypatch):
    from bpc_nb import plan as of
    monkeypatch.setattr(of, 'of_step', lambda *a: (2., 0., 1.)); monkeypatch.setattr(of, 'of_looks', lambda *a: (5., 0.))
    monkeypatch.setattr(of, 'of_experts', lambda *a: (100., 0.)); monkeypatch.setattr(of, 'saved', lambda fit: 1.)
    p = of.plan('cd', data, 1, 'cpu', steps=150, every=40, streams=3, net='mlp:width=4', experts=dict(n=4, epochs=6), T=2, k_max=3, compile=False)
    assert (p['looks'], p['parts']['steps'], p['parts']['looks'], p['parts']['experts']) == (5, 150*2*3, 5*5, 100) # one look before the first step
    assert p['seconds'] == sum(p['parts'].values()) == 900 + 25 + 100


def test_experts_take_the_batches_of_all_groups_and_epochs(data, net, monkeypatch):
    from bpc_nb import plan as of
    from bpc_nb.experts import experts
    from bpc_nb.options import options_of
    monkeypatch.setattr(of, 'drawn_on', lambda *a: (1., 0.))
    o = options_of(experts) | dict(n=5, group=2, epochs=3, batch=128, part=.5, bf16=False, compile=False)
    N = len(data.train.y) # half of 1294 images are six batches
    assert of.of_experts(data, net, 'cpu', o)[0] == 3*3*6


def test_a_ring_waits_for_each_message():
    from bpc_nb.scale import sum_time
    assert sum_time(3., 3, 1., 2.) == 2*2*(3/3 + 2)


def test_times_of_a_contender_are_medians():
    from bpc_nb.benchmark import Workload, timing_row
    r = timing_row('ours', Workload('step', 'digits', 'mlp'), [dict(seconds=s, cpu=2*s, peak_mb=s, before_mb=1., threads=1) for s in (1., 2., 9.)])
    assert (r['seconds_median'], r['cpu_median'], r['peak_mb']) == (2., 4., 2.)


def test_an_attack_of_the_command_line_is_judged_on_networks_that_it_has_not_seen(tmp_path, monkeypatch):
    from bpc_nb.commands import judge
    seen, S = {}, load('digits').draw(1, stream(0))
    def made(d, net, thetas, *a, **o):
        seen['learned'] = thetas.flatten().tolist()
        return S._replace(steps=torch.ones(1, 1), meta=S.meta | dict(attacked=1, target=2, net='mlp'))
    monkeypatch.setattr(judge, 'trained', lambda *a: torch.arange(8.)[:,None])
    monkeypatch.setattr(judge, 'poison', made)
    monkeypatch.setattr(judge, 'inspected', lambda S, d, net, thetas: seen.update(judged=thetas.flatten().tolist()) or {})
    judge.bpc_poison('digits', '1', '2', net='mlp', out=str(tmp_path/'p.safetensors'), json=True)
    assert seen == dict(learned=[0, 1, 2, 3, 4, 5], judged=[6, 7])


def test_the_published_attack_has_ten_images_of_a_class_and_a_step_of_a_fiftieth():
    from bpc_nb.options import options_of
    from bpc_nb.poison import poison
    assert {k:options_of(poison)[k] for k in ('ipc', 'step')} == dict(ipc=10, step=.02)


def test_a_crop_shifts_by_an_eighth_of_the_side_at_most():
    from bpc_nb.augment import crop
    x = torch.arange(32.).view(1, 1, 32, 1).expand(1, 1, 32, 32) + 1
    assert [crop(x, tensor([[u, .5]]))[0,0,16,16].item() - 17 for u in (0., .5, .999)] == [-4, 0, 4]


# --- more of the same ----------------------------------------------------------------------------------------------------------------
def test_features_of_another_buffer_are_other_features(data, net, two_experts):
    of = lambda key, first: expert_features(two_experts._replace(experts=SimpleNamespace(key=key, complete=[0], index=dict(epochs=1),
                                            read=lambda i, e: net.init(stream(first)))), 'net', 'cpu', stream(0))
    assert of('a', 1).equal(of('a', 1)) and not of('a', 1).equal(of('b', 2))


def test_forgetting_looks_through_the_statistics_of_the_images(data, monkeypatch):
    seen, net = [], network('convnet:width=2,depth=1,norm=batch', data.shape, data.K)
    buffer = SimpleNamespace(key='one', complete=[0], index=dict(epochs=1), read=lambda i, e: net.init(stream(e)))
    monkeypatch.setattr('bpc_nb.methods.select.predict', lambda net, theta, x, stats: seen.append((theta, stats)) or torch.zeros(len(x), 10))
    forgotten(Task(None, net, data, buffer), 'cpu')
    for theta,stats in seen:
        want = net.stats(theta, data.train.x)
        assert want and stats.keys() == want.keys() and all(stats[k].allclose(want[k]) for k in want)


def test_the_seed_decides_where_k_means_begins(data, S, monkeypatch):
    import sklearn.cluster
    from bpc_nb.methods.select import k_means
    began = []
    class Fake:
        def __init__(self, m, n_init, random_state): self.m = m; began.append(random_state)
        def fit(self, f): return SimpleNamespace(cluster_centers_=f[:self.m])
    monkeypatch.setattr(sklearn.cluster, 'KMeans', Fake)
    for s in 0, 1: k_means(Task(None, data=data))(S, stream(s))
    assert len({*began[:10]}) == len({*began[10:]}) == 1 and began[0] != began[10]


def test_columns_of_a_test_table_may_stand_in_another_order(tmp_path):
    from bpc_nb.vectors import read_table
    (tmp_path/'train.csv').write_text('a,b,c\n1,10,x\n2,20,y\n'); (tmp_path/'test.csv').write_text('c,b,a\ny,30,3\n')
    x, y, columns, n = read_table(tmp_path, 'c')
    assert (x.tolist(), y, [c.name for c in columns], n) == ([[1, 10], [2, 20], [3, 30]], ['x', 'y', 'y'], ['a', 'b'], 2)


def test_names_of_classes_are_read_again_where_their_list_has_changed(tmp_path):
    for k in 'n01', 'n02':
        (tmp_path/'p'/k).mkdir(parents=True)
        for i in range(4): (tmp_path/'p'/k/f'{i}.png').write_bytes(picture(i))
    for names in ('cat', 'dog'), ('ant', 'bee'):
        (tmp_path/'p'/'words.txt').write_text(''.join(f'{k}\t{w}, animal\n' for k,w in zip(('n01', 'n02'), names)))
        assert load(tmp_path/'p', folds=2).classes == names


def test_train_and_test_are_words_of_their_own_in_the_name_of_a_sheet(tmp_path):
    from bpc_nb.images import read_parquet
    files = [sheet(tmp_path/f'{part}.parquet', [picture(k), picture(k)], '', dict(label=[0, 1])) for k,part in enumerate(('latest', 'strain'))]
    assert read_parquet(files)[1]['n'] == 4


def test_vectors_of_another_length_are_others_and_frequent_words_come_first():
    from bpc_nb.text import RARE, vectors_of, vocabulary
    text = [('a', 'b', 'b', 'c'), ('b', 'a', 'c', 'd')]*2
    names = vocabulary(text)
    assert names == ['', RARE, 'b', 'a', 'c', 'd']
    assert [vectors_of(text, names, D).shape[1] for D in (2, 3)] == [2, 3]


@pytest.fixture
def judge_of(data, net):
    from bpc_nb.audit import Judge
    def of(known, seed=0, net=net, protocol='quick'): return Judge(data, net, 1, protocol, seed, 'cpu', known)
    return of


def test_students_of_an_audit_are_those_of_their_coreset_network_and_seed(data, S, net, judge_of, monkeypatch):
    trained = []
    monkeypatch.setattr('bpc_nb.audit.students', lambda *a, **o: trained.append(a) or torch.zeros(1, 1))
    known, soft = {}, S._replace(y=F.one_hot(S.y, 10).float())
    for j,T,n in ((judge_of(known), S, net), (judge_of(known, seed=1), S, net), (judge_of(known), S, network('mlp:width=5', data.shape, 10)),
                  (judge_of(known), soft, net), (judge_of(known), soft._replace(targets=True), net), (judge_of(known), S._replace(w=torch.ones(10)), net),
                  (judge_of(known), S._replace(y=S.y.flip(0)), net), (judge_of(known), S._replace(init=3), net), (judge_of(known, protocol='dc'), S, net)):
        j.students(T, n)
        again = len(trained)
        j.students(T, n)
        assert len(trained) == again
    assert len(trained) == len(known) == 9


def test_a_parameter_lies_between_its_quantiles_at_5_and_95_percent(monkeypatch):
    from bpc_nb.commands import regress
    theta = torch.linspace(0, 1, 4*501, dtype=torch.double)[torch.randperm(4*501, generator=stream(0))].view(4, 501, 1).expand(4, 501, 3)
    monkeypatch.setattr(regress, 'long_chains', lambda *a, **o: SimpleNamespace(theta=theta, meta=dict(rhat=1., ess=1., seconds=0.)))
    monkeypatch.setattr(regress, 'study_from', lambda *a: SimpleNamespace(of=None, rows=SimpleNamespace(x=torch.zeros(2, 1)), prior=1., classes=(), parameters=[*'abc'],
                        against={}, units={}))
    a = regress.bpc_posterior('simulated', model='linear', json=True)['parameters'][0]
    close((a['mean'], a['low'], a['high'], a['sd']), (.5, .05, .95, 12**-.5), 2e-3)


def test_intervals_have_the_level_that_is_asked_for(monkeypatch):
    from bpc_nb.commands import regress
    asked, st = [], SimpleNamespace(of=None, prior=1., classes=(), test=SimpleNamespace(x=torch.zeros(2, 1), y=torch.zeros(2)), source='simulated')
    monkeypatch.setattr(regress, 'points_and_rows', lambda *a: (None, st))
    monkeypatch.setattr(regress, 'long_chains', lambda *a, **o: SimpleNamespace(pooled=lambda: None))
    monkeypatch.setattr(regress, 'predict_rows', lambda st, theta, x, level, seed: asked.append((level, seed)))
    monkeypatch.setattr(regress, 'said_of_rows', lambda *a: ((), [], ''))
    monkeypatch.setattr(regress, 'log_predictive', lambda *a: 0.)
    monkeypatch.setattr(regress, 'coverage', lambda st, theta, rows, level: asked.append(level))
    assert regress.bpc_intervals('p.safetensors', level=.5, seed=3, json=True)['level'] == .5 and asked == [(.5, 3), .5]


def test_experts_of_the_cache_are_those_of_the_split_the_network_and_the_training():
    from bpc_nb.distill import folder_of_experts
    of = lambda **o: load((torch.linspace(0, 1, 160).view(40, 1, 2, 2), [0, 1]*20), **o) # every fold has as many images
    data, net = of(), network('mlp:width=4', (1, 2, 2), 2)
    others = (of(fold=1), net, {}), (of(seed=1), net, {}), (of(held_out=.2), net, {}), (of(zca=True), net, {}), (data, network('mlp:width=5', (1, 2, 2), 2), {}), \
        (data, net, dict(epochs=3)), (data, net, dict(seed=1)), (data, net, dict(lr=.5))
    assert len(of(fold=1).train.y) == len(data.train.y) and len({folder_of_experts(*o)[0] for o in ((data, net, {}), *others)}) == 9


# --- two names that must differ, and two that meet --------------------------------------------------------------------------------
from bpc_nb import grid
from bpc_nb.cells import CELL, check_cell
from bpc_nb.search import rekey

def test_a_posterior_on_another_fold_is_another_line(tmp_path, monkeypatch):
    monkeypatch.setattr(grid, 'predictive', lambda S, data, protocol, **o: dict(mean_of_test=data.test.x.mean().item()))
    first, second = load('digits'), load('digits', fold=1)
    (S := first.draw(1, stream(0)))._replace(meta=S.meta | dict(checksum=first.meta['checksum'], recipe=first.meta['recipe'])).save(tmp_path/'s.safetensors')
    (a,), (b,) = (grid.posteriors(tmp_path/'s.safetensors', d, ['ensemble'], tmp_path) for d in (first, second))
    assert (a['mean_of_test'], b['mean_of_test']) == (first.test.x.mean().item(), second.test.x.mean().item()) and b['fold'] == 1
    assert a['key'] == [*grid.sampled(tmp_path/'s.safetensors', ['ensemble'], 0)][0] != b['key'] # that of a cell


def test_no_coreset_is_lost_where_two_lines_get_one_name(tmp_path):
    (tmp_path/'coresets').mkdir()
    cell = check_cell(CELL | dict(method='random', net='mlp:width=4'))
    for k,bf16 in (('one', 'auto'), ('two', False)):
        (tmp_path/'coresets'/f'{k}.safetensors').write_text(k)
        add(tmp_path/'a.jsonl', dict(key=k, **cell | dict(config=cell['config'] | dict(bf16=bf16))))
    new = rekey(tmp_path)
    assert len({*new.values()}) == 1 and {p.read_text() for p in (tmp_path/'coresets').iterdir()} == {'one', 'two'}
