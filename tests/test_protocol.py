"""What every method of the protocol keeps: what is judged is saved, options are checked whoever wrote them, older files load."""
import json, shutil
from math import inf, nan
from pathlib import Path

import pytest
import torch
from fastcore.test import test_close as close

import bpc_nb.distill as making, bpc_nb.plan as planning
from bpc_nb.core import Coreset, onto, registry
from bpc_nb.data import load
from bpc_nb.distill import configure, distill, known_to
from bpc_nb.energy import energy
from bpc_nb.experts import open_buffer
from bpc_nb.cells import bare, cells, key
from bpc_nb.lines import found, line_files, lines
from bpc_nb.learn import Leaf, Learner, Method, by_loss, learner, rounded, starts, task_of
from bpc_nb.methods.sre2l import within
from bpc_nb.networks import network
from bpc_nb.options import Positive, parameters, plain
from bpc_nb.search import known, rekey, renamed_line

OLD, RESULTS = Path(__file__).parent/'v01', Path(__file__).parents[1]/'results'
TINY = dict(net='mlp:width=4', experts=dict(n=2, epochs=3), select_runs=1, progress=False, device='cpu')
PLAN = {k:v for k,v in TINY.items() if k!='progress'}
RUN = TINY | dict(steps=2, every=1)
STEPS = [n for n,m in registry().items() if m.steps]


@pytest.fixture(autouse=True)
def at_home(home): "A cache of its own"

@pytest.fixture(scope='module')
def data(): return load('digits')

@pytest.fixture
def add(monkeypatch):
    "Adds methods for a test"
    def to(**methods):
        for chapter in (making, planning): monkeypatch.setattr(chapter, 'registry', lambda: registry() | methods)
    return to

def small(name): # options that make a method's step short
    own = known_to(registry()[name])
    short = dict(L=1, T=1, k_max=1, samples=2, batch=20, real=4, watch=4, most=2, matches=1, inner=1)
    return RUN | {k:v for k,v in short.items() if k in own}


# --- what is judged is what is saved -------------------------------------------------------------------------------------------
def test_labels_and_weights_of_a_choice_are_saved(add, data, tmp_path, monkeypatch):
    def begin(S, gen): return S._replace(y=torch.rand(10, 10, generator=gen).softmax(1), w=torch.arange(1., 11.))
    add(own=Method(lambda task: begin, needs=frozenset(), steps=False))
    seen = []
    monkeypatch.setattr(making, 'evaluate', lambda S, *a, **k: seen.append(S) or dict(accuracy_mean=.5))
    distill('own', data, 1, out=tmp_path/'run', **TINY | dict(experts={}))
    saved = Coreset.load(tmp_path/'run'/'coreset.safetensors')
    assert seen and all(torch.equal(a, b) for S in seen for a,b in zip(S[:3], saved[:3]))


def test_labels_weights_and_steps_that_are_learned_are_saved(add, data, tmp_path, monkeypatch):
    put = dict(w=lambda S, t: S._replace(w=t), steps=lambda S, t: S._replace(steps=t.exp()))
    leaves = dict(w=Leaf(lambda S: torch.ones(10), put['w'], lr=.1), steps=Leaf(lambda S: torch.zeros(2, 1), put['steps'], each=False, lr=.1))
    loss = lambda S, gen: (S.x**2).mean() + (S.w**2).mean() + (S.steps**2).sum()
    add(own=Method(lambda task: by_loss(loss, **leaves), needs=frozenset()))
    seen = []
    monkeypatch.setattr(making, 'evaluate', lambda S, *a, **k: seen.append(S) or dict(accuracy_mean=float(len(seen))))
    distill('own', data, 1, out=tmp_path/'run', **RUN | dict(experts={}))
    saved = Coreset.load(tmp_path/'run'/'coreset.safetensors')
    assert len(seen)==3 and saved.meta['step']==2
    for a,b in zip((*seen[-1][:3], seen[-1].steps), (*saved[:3], saved.steps)): assert torch.equal(a, b)
    assert saved.w.max() < 1 and saved.steps.max() < 1


# --- options -------------------------------------------------------------------------------------------------------------------
def test_a_recipes_typo_is_an_error(add):
    add(own=Method(lambda task: None, {('digits', None): dict(stesp=3)}), range=Method(lambda task: None, {('digits', 1): dict(lr=-1.)}))
    with pytest.raises(ValueError, match="recipe of own: option: unknown 'stesp', did you mean 'steps'?"): configure('own', 'digits', 1)
    with pytest.raises(ValueError, match='lr: found -1.0'): configure('range', 'digits', 1)


NONSENSE = {str:['nonsense', 3], int:['x', -1, .5, nan], float:['x', -1., nan, inf], bool:['x', 1], dict:[3]}
ANY = { # what takes a value that is nonsense elsewhere, and why
    ('scale', 1): 'a number is a factor of the energy', ('scale', 3): 'likewise', ('scale', .5): 'likewise',
    ('seed', -1): 'any whole number names a stream of draws'}

def said_of(name, v, **options): # what `configure` alone says to a value
    try: configure(name, 'digits', 1, **options)
    except ValueError as e: return str(e)
    return f'nothing to {v!r}'

def nonsense(known): # option and value, for every value that it may not have
    for k,p in known.items():
        for v in NONSENSE.get(plain(p), sum(NONSENSE.values(), [])):
            if (k, v) not in ANY: yield k, v


@pytest.mark.parametrize('name', [*registry()])
def test_nonsense_is_refused_by_configure_alone_in_a_sentence_that_names_the_option(name, monkeypatch):
    monkeypatch.setattr(making, 'learner', lambda *a: pytest.fail('the method was asked'))
    for k,v in nonsense(known_to(registry()[name])): assert (said := said_of(name, v, **{k:v})).startswith(f'{k}: '), (k, said)


def test_nonsense_for_the_experts_is_refused_by_configure_alone():
    known = making.OF_EXPERTS
    assert not {'device','progress','after','until'} & known.keys() and {'lr','part','loss','augment'} <= known.keys()
    for k,v in nonsense(known): assert (said := said_of('cd', v, experts={k:v})).startswith(f'experts: {k}: '), (k, said)


def test_what_any_value_suits_is_still_taken():
    for (k, v),why in ANY.items():
        if k in known_to(registry()['cd']): assert configure('cd', 'digits', 1, **{k:v})[k]==v, why
        else: assert configure('cd', 'digits', 1, experts={k:v})['experts'][k]==v, why


@pytest.mark.parametrize('name', [*registry()])
def test_every_recipe_is_one_that_its_method_takes(name):
    for at in registry()[name].recipes: configure(name, at[0] or 'mine', at[1] or 1)


@pytest.mark.parametrize('name', STEPS)
def test_soft_labels_wherever_the_loss_allows_them(name, data, tmp_path):
    m, o = registry()[name], small(name)
    if 'labels' in m.without:
        with pytest.raises(ValueError, match="unknown 'labels'"): configure(name, 'digits', 1, labels='soft')
        return
    S = distill(name, data, 1, out=tmp_path/'run', labels='soft', **o)
    assert S.y.shape==(10, 10) and torch.allclose(S.y.sum(1), torch.ones(10), atol=1e-5)
    assert torch.equal(Coreset.load(tmp_path/'run'/'coreset.safetensors').y, S.y)


@pytest.mark.parametrize('name', STEPS)
def test_every_decoder_and_pixels_that_survive_8_bits(name, data, tmp_path):
    if 'decode' in registry()[name].without: # learns no images
        with pytest.raises(ValueError, match="unknown 'decode'"): configure(name, 'digits', 1, decode='factor2')
        return
    S = distill(name, data, 1, out=tmp_path/'run', decode='factor2', pixels='8bit', **small(name))
    y = S.examples().y
    assert S.x.shape==(10, 1, 8, 8) and S.examples().x.shape==(40, 1, 8, 8)
    assert (y.argmax(1) if y.ndim==2 else y).tolist()==sum(([k]*4 for k in range(10)), [])
    close(S.x, S.quantised().x, 1e-4)
    assert Coreset.load(tmp_path/'run'/'coreset.safetensors').decode=='factor2'


@pytest.mark.parametrize('name', [n for n in STEPS if 'block' not in registry()[n].without])
def test_blocks_change_rounding_and_nothing_else(name, data, tmp_path):
    for b in (0, 3): distill(name, data, 1, out=tmp_path/str(b), block=b, **small(name) | dict(steps=1))
    looks = [Coreset.load(tmp_path/str(b)/'looks'/'000001.safetensors').x for b in (0, 3)]
    close(looks[0], looks[1], 1e-3)
    assert (looks[0] - Coreset.load(tmp_path/'0'/'looks'/'000000.safetensors').x).abs().max() > 0


# --- files of version 0.1 ------------------------------------------------------------------------------------------------------
def test_coresets_of_version_01_load(data):
    hard, soft, white = (Coreset.load(OLD/f'{n}.safetensors') for n in ('hard', 'soft', 'white'))
    assert torch.equal(hard.y, torch.arange(10)) and hard.w is None and soft.w.shape==(10,) and soft.y.shape==(10, 10)
    assert (hard.decode, hard.targets, hard.steps)==('identity', False, None) and hard.examples() is hard
    assert hard.transform.mean.shape==(1, 1, 1) and -1e-5 < hard.pixels().min() and hard.pixels().max() < 1 + 1e-5 and white.kept.shape==(2, 3, 20, 20)
    near = (data.train.x[:,None] - hard.x).abs().flatten(2).amax(2) < 1e-4 # random images: each is one of its class
    assert near.any(0).all() and torch.equal(data.train.y[near.float().argmax(0)], hard.y)


def test_a_buffer_of_version_01_opens(data):
    b = open_buffer(OLD/'buffer', data, network('mlp:width=4', data.shape, data.K))
    assert len(b.complete)==2 and b.index['epochs']==3 and b.read(b.complete[0], 3).isfinite().all()


def test_a_run_of_version_01_goes_on(data, tmp_path):
    shutil.copytree(OLD/'run', tmp_path/'run')
    o = {k:v for k,v in json.loads((OLD/'run'/'config.json').read_text()).items() if k in known_to(registry()['wasserstein'])}
    before = len((tmp_path/'run'/'log.jsonl').read_text().splitlines())
    S = distill('wasserstein', data, 1, out=tmp_path/'run', resume=True, **o | dict(steps=6), progress=False, device='cpu')
    rows = [json.loads(l) for l in (tmp_path/'run'/'log.jsonl').read_text().splitlines()]
    assert [r['step'] for r in rows]==[2, 4, 6] and before==2 and S.x.shape==(10, 1, 8, 8)
    old = json.loads((OLD/'run'/'log.jsonl').read_text().splitlines()[-1])['own'][0]
    assert rows[-1]['own']['log_alpha'][0]!=old and abs(rows[-1]['own']['log_alpha'][0] - old) < .5


# --- plans ---------------------------------------------------------------------------------------------------------------------
def test_a_closed_form_can_be_planned_and_run(add, data, tmp_path):
    def make(task, r:Positive=1.): return Learner(leaves={}, begin=lambda S, gen: S._replace(x=r*S.x))
    add(closed=Method(make, needs=frozenset()))
    said = planning.plan('closed', data, 1, **PLAN | dict(experts={}))
    assert (said['steps'], said['looks'], said['step_seconds'], said['memory_mb'])==(0, 1, 0, 0) and said['seconds'] > 0
    S = distill('closed', data, 1, out=tmp_path/'run', **TINY | dict(experts={}))
    assert S.meta['step']==0 and len([*(tmp_path/'run').glob('looks/*')])==0


def test_a_plan_has_the_task_of_a_run(add, data, monkeypatch):
    seen, true = [], planning.task
    monkeypatch.setattr(planning, 'task', lambda *a, **k: seen.append(a[0]) or true(*a, **k))
    def make(task): # the start is made anew, and the second network has experts of its own
        other = task.other(network('mlp:width=3', data.shape, data.K))
        def loss(S, gen, carry): return sum(t.energy(t.experts.draw(gen)[1], S) for t in (task, other)) + (S.x[:,:1] - 7).mean(), None
        return Learner(loss, begin=lambda S, gen: S._replace(x=0*S.x + 7))
    add(own=Method(make))
    said = planning.plan('own', data, 1, **PLAN | dict(steps=3, every=1, experts=dict(n=1, epochs=1)))
    assert seen==['own'] and said['step_seconds'] > 0 and (said['steps'], said['looks'])==(3, 4)
    def strange(task): raise ValueError('strange: never')
    add(own=Method(strange))
    with pytest.raises(ValueError, match='strange: never'): planning.plan('own', data, 1, **PLAN)


# --- names of lines ------------------------------------------------------------------------------------------------------------
def test_lines_of_version_01_get_todays_names_and_keep_everything_else(tmp_path):
    (tmp_path/'coresets').mkdir()
    for n in 'digits', 'search', 'transfer': shutil.copy(OLD/f'{n}.jsonl', tmp_path)
    before = {n:lines(tmp_path/f'{n}.jsonl') for n in ('digits', 'search', 'transfer')}
    for r in before['digits']: (tmp_path/'coresets'/f"{r['key']}.safetensors").write_text(r['key'])
    new = rekey(tmp_path)
    after = {n:lines(tmp_path/f'{n}.jsonl') for n in before}
    assert set(new)=={r['key'] for n in ('digits', 'search') for r in before[n]} and after['transfer']==before['transfer']
    for n in before: assert [r | dict(key=0) for r in before[n]]==[r | dict(key=0) for r in after[n]]
    assert {r['key'] for r in after['digits']} <= {key(c) for c in cells(RESULTS/'papers'/'digits.toml')}
    assert {r['key'] for r in after['search']} <= {r['key'] for r in found('search')}
    for r, s in zip(before['digits'], after['digits']): assert (tmp_path/'coresets'/f"{s['key']}.safetensors").read_text()==r['key']
    assert rekey(tmp_path)=={}


def test_a_new_neutral_option_changes_no_name(monkeypatch):
    from bpc_nb import cells as module
    c = cells(RESULTS/'papers'/'digits.toml')[0]
    name, known = key(c), module.defaults
    monkeypatch.setattr(module, 'defaults', lambda m: known(m) | dict(neutral=1))
    assert key(c | dict(config=c['config'] | dict(neutral=1)))==name!=key(c | dict(config=c['config'] | dict(neutral=2)))
    assert bare(c)['config']==c['config']


def test_every_line_in_the_book_has_todays_name():
    assert all(renamed_line(r).get('key')==r.get('key') for p in line_files(RESULTS) for r in lines(p) if known(r))


# --- controls and refusals -----------------------------------------------------------------------------------------------------
def test_a_control_is_shared_only_at_the_same_storage():
    from bpc_nb.grid import twins
    a, b = (dict(c, config=dict(c['config'], decode=d)) for c in [cells(RESULTS/'papers'/'digits.toml')[0]] for d in ('identity', 'factor2'))
    assert twins(a, dict(a, config=dict(a['config'], lr=9.))) and not twins(a, b)


@pytest.mark.parametrize('option, said', [(dict(decode='factor2'), "decode: found 'factor2', which is for images"), (dict(pixels='8bit'), "pixels: found '8bit', which is for images")])
def test_what_only_images_have_is_refused_for_tables_before_anything_runs(option, said, data):
    from bpc_nb.distill import of_space
    rows = data._replace(train=data.train._replace(x=data.train.x.flatten(1)), name='a table')
    with pytest.raises(ValueError, match=said): of_space('cd', rows, option)
    assert of_space('cd', rows, dict(decode='identity'))['net']=='mlp' and of_space('cd', data, option)==option


def test_steps_that_cannot_be_dealt_are_refused():
    from bpc_nb.evaluate import students
    S = Coreset(torch.zeros(10, 1, 2, 2), torch.arange(10)%3, steps=torch.ones(1, 6))
    with pytest.raises(ValueError, match='6 steps an epoch cannot be dealt to 10 examples'): students(S, network('mlp:width=2', (1, 2, 2), 3), 1)


# --- what is refused, and when -------------------------------------------------------------------------------------------------
def test_what_a_method_refuses_is_said_before_experts_are_made(add, data, monkeypatch):
    def make(task, strange=False):
        raise ValueError('strange: never')
    add(own=Method(make))
    monkeypatch.setattr(making, 'buffer_for', lambda *a, **k: pytest.fail('experts were made'))
    with pytest.raises(ValueError, match='strange: never'): distill('own', data, 1, **RUN)
    with pytest.raises(ValueError, match='diagonal covariances need every theta'):
        distill('wasserstein', data, 1, **RUN | dict(covariance='diagonal', stride=2))


def test_soft_labels_of_a_choice_are_no_start_for_what_goes_class_by_class(add, data, monkeypatch):
    add(soft=Method(lambda task: lambda S, gen: S._replace(y=torch.full((10, 10), .1)), needs=frozenset(), steps=False))
    monkeypatch.setattr(making, 'starts', lambda: starts() | dict(soft=lambda data, ipc, gen: data.draw(ipc, gen)))
    t = task_of(network('mlp:width=4', data.shape, data.K), {}, data)
    start = lambda **o: making.start_of(data, 1, dict(start='soft') | o, t, by_loss(lambda S, gen: S.x.sum()))
    assert start(labels='hard').y.is_floating_point() # a method that takes soft labels
    with pytest.raises(ValueError, match='start: soft makes soft labels, and this method goes class by class'): start()


def test_a_leafs_own_rate_follows_the_scale_of_the_energy():
    l = by_loss(lambda S, gen: S.x.sum(), y=Leaf(lambda S: torch.zeros(4, 2), None, lr=2.),
                a=Leaf(lambda S: torch.zeros(1), None, each=False, lr=2.))
    got = making.slower_by(4, l, dict(lr=1., optimiser='sgd'))[0].leaves
    assert (got['x'].lr, got['y'].lr, got['a'].lr) == (None, .5, 2.)


@pytest.mark.parametrize('name, o', [('rkl', dict(L=0, samples=2, batch=50, k_max=1)), ('positive-only', dict(T=1, k_max=1, optimiser='adam'))])
def test_what_no_scale_reaches_keeps_its_rate(name, o, data):
    "Reverse KL sums its losses whatever the scale, and a step of Adam is as long whatever the slope"
    o = RUN | dict(average=0.) | o
    mean, total = (distill(name, data, 1, **o | e) for e in ({}, dict(scale='sum')))
    close(mean.x, total.x, 1e-4)


def test_no_method_has_an_option_with_the_name_of_an_energys():
    "But `block`, which saves memory in both"
    for name,m in registry().items(): assert not parameters(m.make).keys() & parameters(energy).keys() - {'block'}, name


def test_a_coreset_moves_with_the_map_from_its_pixels(data):
    S = onto(data.draw(1, torch.Generator()), 'meta')
    assert S.transform.mean.device.type == rounded(S).x.device.type == within(data)(S.x).device.type == 'meta'


@pytest.mark.parametrize('name', ['cd', 'fkl'])
def test_a_sum_over_images_moves_all_as_a_mean_does(name, data):
    "Images and labels of an energy that is M times as steep, at an M-th of the rates; a chain of an M-th of the step"
    o = RUN | dict(labels='soft', T=1, k_max=1, L=2, average=0., prior=0.)
    mean, total = (distill(name, data, 1, **o | e) for e in (dict(alpha=.1), dict(scale='sum', alpha=.01)))
    close(mean.x, total.x, 1e-4); close(mean.y, total.y, 1e-4)


# --- out, and what cannot go out -----------------------------------------------------------------------------------------------
def mirrored(D): # its own inverse, symmetric: (I - 2vv')
    v = torch.nn.functional.normalize(torch.arange(1., D+1), dim=0)
    return torch.eye(D) - 2*v[:,None]*v

def test_a_decoded_coreset_whose_file_has_no_whitening_matrix(tmp_path):
    "All its pictures go out, each in its class; examples in the model's space are refused"
    from bpc_nb.core import Transform, quarters, save_folder
    p, m = torch.rand(3, 1, 40, 40, generator=torch.Generator().manual_seed(0)), mirrored(1600)
    t = Transform(centre=torch.zeros(1600), white=m, colour=m)
    Coreset(t(p), torch.arange(3), transform=t, classes=('a', 'b', 'c'), decode='factor2').save(tmp_path/'few.safetensors')
    S = Coreset.load(tmp_path/'few.safetensors')
    assert S.kept is not None and S.transform.white is None
    save_folder(S, tmp_path/'out')
    assert [len([*(tmp_path/'out'/k).glob('*.png')]) for k in 'abc'] == [4]*3
    close(S.dataset().tensors[0], quarters(p), 1e-3)
    with pytest.raises(ValueError, match='does not hold the whitening matrix'): S.examples()
    close(S._replace(transform=t, kept=None).examples().pixels(), quarters(p), 1e-3)


@pytest.mark.parametrize('field, value', [('w', torch.arange(8.)), ('y', torch.eye(8)), ('y', torch.tensor([0, 0, 0, 1]*2))])
def test_labels_and_weights_that_differ_in_an_image_are_not_dropped(field, value):
    from bpc_nb.core import stored
    S = Coreset(torch.zeros(8, 1, 4, 4), torch.tensor([0]*4 + [1]*4))
    with pytest.raises(ValueError, match='decode: an image that holds 4 examples has one of their (labels|weights), and these differ'):
        stored(S._replace(**{field:value}), 'factor2')
    assert stored(S._replace(w=torch.tensor([1.]*4 + [2.]*4)), 'factor2').w.tolist() == [1., 2.]


def test_what_an_export_cannot_say_is_refused(tmp_path):
    from bpc_nb.core import save_folder
    from bpc_nb.spaces import preview, save_table
    S, steps = Coreset(torch.zeros(2, 1, 4, 4), torch.eye(2), classes=('a', 'b')), dict(steps=torch.tensor([[.1, .2]]))
    rows = S._replace(x=torch.zeros(2, 3))
    for f in (lambda: S._replace(**steps).dataset(), lambda: save_folder(S._replace(**steps), tmp_path), lambda: save_table(rows._replace(**steps), tmp_path/'r.csv')):
        with pytest.raises(ValueError, match='learned step sizes in order'): f()
    with pytest.raises(ValueError, match='targets of a regression, which folders of classes cannot say'): save_folder(S._replace(targets=True), tmp_path)
    save_table(rows._replace(targets=True), tmp_path/'r.csv')
    assert (tmp_path/'r.csv').read_text().splitlines()[0] == 'x0,x1,x2,target label=a,target label=b' and list(tmp_path.iterdir()) == [tmp_path/'r.csv']
    assert preview(rows._replace(**steps), tmp_path/'look').exists() # a run with step sizes still ends with something to look at


def test_a_card_says_how_a_coreset_is_used(tmp_path):
    "Decoder, weights, step sizes; its few lines run as they stand, with all of them"
    from bpc_nb import zoo
    plain = zoo.card('digits', 1)
    S = zoo.load_coreset('digits', 1)
    line = plain['made'] | dict(key='k', data='digits', ipc=1, checksum='', **{k: plain['figures'][k] for k in zoo.FIGURES})
    def lines_and_card(**of):
        S._replace(**of).save(tmp_path/'s.safetensors')
        card = zoo.card_of(line, tmp_path/'s.safetensors')
        ran, few = [], zoo.few_lines(card)
        exec(few.replace("range(", "range(1 or ").replace("from bpc_nb.zoo import load_coreset", ""),
             dict(step=lambda *a: ran.append(a), load_coreset=lambda *a, **k: S._replace(**of)))
        return ran, zoo.described(card)
    ran, said = lines_and_card()
    assert len(ran) == 1 and len(ran[0]) == 2 and said.splitlines()[1] == '' and 'use' not in plain
    ran, said = lines_and_card(decode='factor2', w=torch.arange(1., 11.))
    assert [len(t) for t in ran[0]] == [40]*3 and 'decoder factor2: each stored image gives students 4; weights from 1 to 10' in said
    ran, said = lines_and_card(steps=torch.tensor([[.5, .25]]*3))
    assert [len(a[0]) for a in ran] == [5]*6 and [a[2] for a in ran] == [.5, .25]*3 and 'learned step sizes, 3 epochs of 2, from 0.25 to 0.5' in said


def test_labels_have_one_name_wherever_they_are_said(data):
    from bpc_nb.core import label_kind, label_words
    from bpc_nb.evaluate import evaluate
    from bpc_nb.predictive import predictive
    S = data.draw(1, torch.Generator().manual_seed(0))
    for kind, T in dict(hard=S, soft=S._replace(y=torch.eye(10)), targets=S._replace(y=torch.eye(10), targets=True)).items():
        short = dict(net='mlp:width=2', part='held')
        assert label_kind(T) == evaluate(T, data, 1, eight_bit=False, epochs=1, **short)['labels'] == kind
        assert predictive(T, data, 'ensemble', chains=1, students='quick', **short)['labels'] == kind
    assert [label_words(k) for k in ('hard', 'soft', 'targets')] == ['hard labels', 'soft labels', 'targets']
