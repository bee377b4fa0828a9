"How something is computed: measured once a machine and network, kept, never part of a recipe or of a name"
import json, stat, time
from pathlib import Path

import pytest, torch

from bpc_nb import auto
from bpc_nb.auto import FORMATS, PAYS, fitted, kept_times, measure_file, measured_for
from bpc_nb.core import Coreset, registry
from bpc_nb.data import load
from bpc_nb.distill import buffer_for, configure, distill, fit_of_run
from bpc_nb.experts import experts, open_buffer
from bpc_nb.cells import cells, key
from bpc_nb.lines import done
from bpc_nb.learn import task_of
from bpc_nb.networks import network
from bpc_nb.runs import begin

ROOT, SHAPE = Path(__file__).resolve().parents[1], (3,32,32)
NET = network('convnet:width=32', SHAPE, 10)
FAST, SLOW = dict(seconds_float32=.01, seconds_bf16=.004), dict(seconds_float32=.01, seconds_bf16=.1)

@pytest.fixture
def machine(tmp_path, monkeypatch):
    "A machine whose measure says what it is told; gives the calls"
    monkeypatch.setenv('BPC_CACHE', str(tmp_path/'cache'))
    calls = []
    def says(took):
        auto.REMEMBERED.clear()
        monkeypatch.setattr(auto, 'time_formats', lambda *a: calls.append(a) or took)
        return calls
    monkeypatch.setattr(auto, 'REMEMBERED', {})
    return says


# --- branches ------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize('took, bf16, why', [(FAST, True, 'bf16 takes 0.4x as long'), (SLOW, False, 'bf16 takes 10x as long'),
    (dict(seconds_float32=.01, seconds_bf16=.0086), False, '0.86x'), (dict(seconds_float32=.01, seconds_bf16=None), False, 'does not work here')])
def test_bf16_where_it_is_faster(took, bf16, why, machine):
    calls = machine(took)
    for allowed in ('auto', True):
        f = fitted(NET, SHAPE, bf16=allowed)
        assert f.bf16==bf16 and why in f.why and dict(seconds_float32=f.seconds_float32, seconds_bf16=f.seconds_bf16)==took
    assert len(calls)==1 and not fitted(NET, SHAPE, bf16=False).bf16 and fitted(NET, SHAPE, bf16='always').bf16


def test_small_networks_and_those_without_normalisation_are_not_measured(machine):
    calls = machine(FAST)
    for spec,shape in ('convnet:width=64,depth=2', (1,8,8)), ('resnet18', (1,9,9)), ('convnet:norm=none', SHAPE), ('mlp', SHAPE), ('mlp', (12,)):
        assert fitted(network(spec, shape, 10), shape)[:2]==(False, False), spec
    assert not calls and 'no normalisation' in fitted(network('mlp', SHAPE, 10), SHAPE).why


def test_no_compiler_and_a_compiler(machine, monkeypatch, tmp_path):
    machine(SLOW)
    monkeypatch.setattr(auto, 'compiler_for', lambda device: None)
    assert not fitted(NET, SHAPE).compile and 'no compiler' in fitted(NET, SHAPE).why and fitted(NET, SHAPE, compile='always').compile
    monkeypatch.setattr(auto, 'compiler_for', lambda device: '/usr/bin/g++')
    assert fitted(NET, SHAPE).compile and fitted(NET, SHAPE).why.endswith('compiled (g++)') and not fitted(NET, SHAPE, compile=False).compile
    assert not fitted(network('resnet18', SHAPE, 10), SHAPE).compile and not fitted(network('convnet:norm=batch', SHAPE, 10), SHAPE).compile
    few, many = (fitted(NET, SHAPE, images=factor*PAYS/SLOW['seconds_float32']) for factor in (.9, 1.1))
    assert (few.compile, many.compile)==(False, True) and 'a short run' in few.why


def test_what_compiles_where(monkeypatch):
    monkeypatch.setattr(auto.shutil, 'which', lambda name: None)
    assert auto.compiler_for('cpu') is None and auto.compiler_for('mps') is None
    monkeypatch.setattr(auto.shutil, 'which', lambda name: f'/opt/{name}')
    monkeypatch.setenv('CXX', 'icx')
    assert auto.compiler_for('cpu')=='/opt/icx' and auto.compiler_for('mps') is None
    for spec in (object(), None):
        monkeypatch.setattr(auto.importlib.util, 'find_spec', lambda name: spec)
        assert auto.compiler_for('cuda')==('triton' if spec else None)


@pytest.mark.parametrize('device', ['cuda', 'mps'])
def test_other_devices_are_measured_for_themselves(device, machine, monkeypatch):
    calls = machine(FAST)
    fitted(NET, SHAPE)
    gpu = dict(gpu='a card') if device=='cuda' else {}
    made = auto.provenance()
    monkeypatch.setattr(auto, 'provenance', lambda: made | gpu)
    monkeypatch.setattr(auto, 'compiler_for', lambda device: None)
    assert fitted(NET, SHAPE, device).bf16 and [c[2] for c in calls]==['cpu', device]
    of = measured_for(NET, SHAPE, device)
    assert of['device']==device and of['name']==gpu.get('gpu', made['cpu'])


def test_threads_and_versions_are_measured_anew(machine, monkeypatch):
    calls, made = machine(SLOW), auto.provenance()
    for of in {}, dict(threads=1), dict(threads=64), dict(torch='9.9'), dict(cpu='another'):
        monkeypatch.setattr(auto, 'provenance', lambda: made | of)
        fitted(NET, SHAPE); fitted(NET, SHAPE)
    monkeypatch.setattr(auto, '__version__', '99')
    fitted(NET, SHAPE)
    assert len(calls) in (5, 6) and len({str(f) for f in (auto.cache_folder()/'fast').iterdir()})==len(calls) # one of the threads may be ours


def test_what_raises_in_bf16_is_not_taken(monkeypatch):
    def low(*a): raise RuntimeError('no kernel')
    monkeypatch.setattr('bpc_nb.fast.lowered', low)
    took = auto.time_formats(network('convnet:width=8,depth=2', SHAPE, 10), SHAPE)
    assert took['seconds_bf16'] is None and took['seconds_float32'] > 0


def test_measuring_is_short():
    best = []
    for _ in range(3): # others may use the machine
        began = time.process_time()
        took = auto.time_formats(network('convnet', (1,28,28), 10), (1,28,28))
        best.append(time.process_time() - began)
        if best[-1] < 2: break
    assert min(best) < 2 and took['seconds_float32'] > 0


# --- what is kept --------------------------------------------------------------------------------------------------------------
def test_kept_between_processes(machine):
    calls = machine(SLOW)
    first = kept_times(NET, SHAPE)
    auto.REMEMBERED.clear()
    assert kept_times(NET, SHAPE)==first==SLOW and len(calls)==1


@pytest.mark.parametrize('harm', [lambda t: t[:20], lambda t: '[]', lambda t: 'null', lambda t: '', lambda t: t.replace('0.1\n', '-0.1\n'),
                                  lambda t: t.replace('0.1\n', '"fast"\n'), lambda t: t.replace('0.1\n', 'NaN\n'),
                                  lambda t: t.replace('"threads": ', '"threads": 9'), lambda t: t.replace(NET.name, 'other'),
                                  lambda t: t.replace('"of"', '"for"')])
def test_a_damaged_foreign_or_wrong_file_is_measured_anew(harm, machine):
    machine(SLOW); kept_times(NET, SHAPE)
    path = measure_file(measured_for(NET, SHAPE))
    text = path.read_text(); assert harm(text)!=text
    path.write_text(harm(text))
    calls = machine(FAST)
    before = len(calls)
    assert kept_times(NET, SHAPE)==FAST and len(calls)==before+1 and json.loads(path.read_text())==dict(of=measured_for(NET, SHAPE), **FAST)


def test_a_folder_that_cannot_be_written_is_no_error(machine, tmp_path, monkeypatch):
    calls = machine(SLOW)
    (tmp_path/'file').write_text('')
    monkeypatch.setenv('BPC_CACHE', str(tmp_path/'file'/'cache')) # as a read-only disk is, for root too
    assert fitted(NET, SHAPE).seconds_bf16==.1 and fitted(NET, SHAPE).bf16 is False and len(calls)==1
    locked = tmp_path/'locked'; locked.mkdir(); locked.chmod(stat.S_IRUSR | stat.S_IXUSR)
    monkeypatch.setenv('BPC_CACHE', str(locked))
    assert not fitted(NET, SHAPE).bf16


# --- recipes, names and runs ---------------------------------------------------------------------------------------------------
def test_no_recipe_says_how():
    for m in registry().values():
        for r in m.recipes.values(): assert not {*FORMATS} & (r.keys() | r.get('experts', {}).keys())


FOUND = {'ablations/ablations':120, 'ablations/formats':7, 'ablations/narrow':9, 'ablations/variants':60, 'ablations/width':9, 'families/matching':35,
         'families/select':95, 'papers/cifar10':17, 'papers/digits':32, 'papers/losses':38, 'papers/mnist':13, 'posterior/posteriors':53}

@pytest.mark.parametrize('name', FOUND)
def test_grids_find_the_lines_that_they_found_when_recipes_chose(name):
    have = done(ROOT/'results')
    assert sum(key(c) in have for c in cells(ROOT/'results'/f'{name}.toml')) >= FOUND[name]


def test_a_format_that_was_asked_for_is_another_cell():
    of = {n:[key(c) for c in cells(ROOT/'results'/at/f'{n}.toml')] for at, n in (('ablations', 'formats'), ('papers', 'digits'), ('papers', 'mnist'))}
    assert len(set(of['formats'])) == 7 and not set(of['formats']) & {*of['digits'], *of['mnist']}
    lines = [done(ROOT/'results')[k] for k in of['formats']]
    assert [r['config']['bf16'] for r in lines]==[True]*6 + [False] # as they were measured


TINY = dict(net='mlp:width=4', experts=dict(n=1, epochs=2, bf16='always'), select_runs=1, steps=2, every=1, L=1, T=1, k_max=1, progress=False, device='cpu')

def test_a_run_notes_what_was_used_and_goes_on_elsewhere(home, tmp_path, monkeypatch):
    run = lambda **o: distill('cd', 'digits', 1, out=tmp_path/'run', **TINY | o)
    S = run()
    config = json.loads((tmp_path/'run'/'config.json').read_text())
    assert (config['bf16'], config['compile'], config['experts'])==(False, False, dict(n=1, epochs=2)) and S.meta['bf16'] is False
    assert S.meta['experts']['bf16'] is True # as asked
    monkeypatch.setattr('bpc_nb.distill.fitted', lambda *a: auto.Fit(True, False, 'elsewhere'))
    old = config | dict(bf16=True, compile=True, experts=config['experts'] | dict(bf16=True, compile=True)) # of version 0.1
    (tmp_path/'run'/'config.json').write_text(json.dumps(old))
    S = run(steps=3, resume=True)
    assert json.loads((tmp_path/'run'/'config.json').read_text())['bf16'] is True and S.meta['bf16'] is True
    with pytest.raises(ValueError, match='has experts'): run(steps=3, resume=True, experts=dict(n=2, epochs=2))


def test_experts_of_either_format_are_reused(home, tmp_path, monkeypatch):
    monkeypatch.setenv('BPC_CACHE', str(tmp_path))
    data = load('digits'); net = network('mlp:width=4', data.shape, data.K)
    made = [buffer_for(data, net, dict(n=1, epochs=1) | o, progress=False) for o in ({}, dict(bf16=True), dict(bf16='always'), dict(compile=False))]
    assert len({b.folder for b in made})==1 and len({b.key for b in made})==1 and made[0].index['bf16'] is False
    low = experts(data, net, tmp_path/'low', n=1, epochs=1, bf16='always', progress=False)
    assert low.key==made[0].key and open_buffer(low.folder).index['bf16'] is True and experts(data, net, low.folder, n=1, epochs=1, progress=False).key==low.key
    old = tmp_path/'experts'/made[0].folder.name
    monkeypatch.setattr('bpc_nb.distill.named', lambda what: 'old' if what.get('bf16') else 'new')
    old.rename(old.with_name('digits-old')) # a folder whose name still has them
    assert buffer_for(data, net, dict(n=1, epochs=1), progress=False).folder.name=='digits-old'


def test_a_second_network_without_normalisation_stays_in_float32():
    t = task_of(NET, dict(bf16=True), load('digits'))
    x = torch.randn(4, 3, 32, 32)
    plain = network('convnet:norm=none,width=16', SHAPE, 10); theta = plain.init(torch.Generator().manual_seed(0))
    assert torch.equal(t.other(plain).net.apply(theta, x), plain.apply(theta, x))
    theta = NET.init(torch.Generator().manual_seed(0))
    assert not torch.equal(t.net.apply(theta, x), NET.apply(theta, x))


def test_long_runs_count_their_images(machine, data_root):
    machine(FAST)
    data = load('mnist', root=data_root)
    f = fit_of_run(configure('cd', 'mnist', 1), data, 1, network('convnet', data.shape, data.K), 'cpu')
    assert f.bf16 and (f.compile or auto.compiler_for() is None)


def test_what_no_word_is(refused, file=None):
    refused('distill', 'digits', '--experts', 'bf16=no', parts="'no' is not auto, true, false or always")
    with pytest.raises(ValueError, match="bf16: found 'on'; expected auto, true"): configure('cd', 'digits', 1, bf16='on')


# --- said ----------------------------------------------------------------------------------------------------------------------
def test_doctor_says_what_was_chosen(bpc, machine):
    machine(SLOW)
    said = json.loads(bpc('doctor', '--json')[1])['fast']
    assert [(n['net'], n['shape'], n['bf16'], n['seconds_float32'], n['seconds_bf16']) for n in said]==[('convnet', [1,28,28], False, .01, .1), ('convnet', [3,32,32], False, .01, .1)]
    assert all({'compile', 'why'} <= n.keys() for n in said)
    assert '\nfast        mnist convnet: float32 (bf16 takes 10x as long), ' in bpc('doctor')[1]


def test_plan_is_one_object(bpc):
    p = json.loads(bpc('plan', 'digits', '--net', 'mlp:width=4', '--steps', 2, '--every', 2, '--select-runs', 1, '--experts', 'n=1,epochs=1', '--T', 1, '--device', 'cpu', '--json')[1])
    assert p['seconds']==pytest.approx(sum(p['parts'].values())) and set(p['parts'])=={'experts', 'steps', 'looks', 'first_calls'} and p['memory_mb'] >= 0
    assert p['choices']['bf16'] is False and p['choices']['compile'] is False and 'small' in p['choices']['why']


def test_a_slow_step_is_drawn_on(monkeypatch):
    from bpc_nb import plan
    seen = []
    def of(n):
        def go(): seen.append(n); time.sleep(.01*n)
        return go
    t, _ = plan.drawn_on(of, 60, 2, .1)
    assert max(seen) <= 15 and .2 < t < 2
    flat, _ = plan.drawn_on(lambda n: lambda: time.sleep(.05 + .0005*n), 100, 2, .1) # the number hardly counts
    assert .05 < flat < .3
    assert plan.memory_at(10, [(2, 10.), (4, 20.)])==50. and plan.memory_at(10, [(2, 10.), (4, 11.)])==11. and plan.memory_at(3, [(3, 7.)])==7.
