"""Images that no recipe is for: what is chosen, what stays as typed, when a run ends, what is refused."""
import json, re
from pathlib import Path

import pytest
import torch
from PIL import Image

from bpc_nb import budget
from bpc_nb.commands import learn
from bpc_nb.core import Coreset
from bpc_nb.data import load
from bpc_nb.distill import distill
from conftest import NET

TINY = dict(net=NET, L=2, T=1, k_max=1, steps=4, every=2, select_runs=1, select_protocol='quick', experts=dict(n=2, epochs=2))


@pytest.fixture
def album(tmp_path):
    "Pictures of many sizes in class folders"
    for k,c in enumerate(('dark', 'bright')):
        (tmp_path/'album'/c).mkdir(parents=True)
        for i in range(20): Image.new('RGB', (40+i, 60), (100*k+i, 100*k, 50)).save(tmp_path/'album'/c/f'{i}.png')
    return tmp_path/'album'

@pytest.fixture
def few(monkeypatch):
    "A choice that is soon run; says what was asked"
    asked = []
    def choose(*a): asked.append(a); return budget.Choice(TINY, 1., ['images  as they are', 'steps   4'])
    monkeypatch.setattr(learn, 'chosen', choose)
    return asked


def test_a_folder_and_nothing_else(bpc, album, few):
    code, out, err = bpc('distill', album, '--out', 'run')
    assert code==0 and 'steps   4' in err and len(few)==1 and few[0][3]==15
    config = json.loads(Path('run/config.json').read_text())
    assert config['recipe']['size']==[32, 32] and {k:config[k] for k in TINY if k not in ('experts','net')}=={k:v for k,v in TINY.items() if k not in ('experts','net')}
    assert Coreset.load('run/coreset.safetensors').x.shape==(2, 3, 32, 32)


def test_what_is_typed_stays(bpc, album, few):
    code, out, err = bpc('distill', album, '--out', 'run', '--L', 3, '--size', 16, '--minutes', 2, '--json')
    config = json.loads(Path('run/config.json').read_text())
    assert (code, err)==(0, '') and config['L']==3 and config['recipe']['size']==[16, 16] and config['T']==TINY['T'] and few[0][3]==2


@pytest.mark.parametrize('words', [('--steps', 3), ('--net', NET), ('--experts', 'n=2')])
def test_who_decides_is_left_alone(album, few, words):
    given = {words[0][2:]: words[1]}
    assert learn.as_chosen('cd', album, 1, None, given | dict(size=16), 'cpu')[1].options==given and few==[]

def test_a_recipe_is_kept_unless_minutes_are_given(few):
    assert learn.as_chosen('cd', 'digits', 1, None, {}, 'cpu')[1]==budget.Choice({}) and few==[]
    assert learn.as_chosen('cd', 'digits', 1, 3., {}, 'cpu')[1].options==TINY and len(few)==1


def test_a_run_that_goes_on_keeps_its_choices(bpc, album, few, monkeypatch):
    assert bpc('distill', album, '--out', 'whole')[0]==0
    assert bpc('distill', album, '--out', 'run')[0]==0
    log = Path('run/log.jsonl').read_text().splitlines()
    monkeypatch.setattr(learn, 'chosen', lambda *a: pytest.fail("chosen again"))
    code, out, err = bpc('distill', album, '--out', 'run', '--resume')
    assert code==0 and 'as this run began' in err
    assert torch.equal(*(Coreset.load(f'{d}/coreset.safetensors').x for d in ('whole', 'run'))) and Path('run/log.jsonl').read_text().splitlines()==log


def test_a_run_ends_when_its_time_is_up_and_fewer_steps_give_it_again(home, tmp_path):
    data, ticks = load('digits'), iter([0, 30, 60, 90]) # 90 s of 2 minutes after three steps: a look takes 40
    left = budget.countdown(2, lambda: next(ticks))
    S = distill('cd', data, 1, out=tmp_path/'cut', progress=False, until=lambda: left(40), **TINY | dict(steps=40))
    again = distill('cd', data, 1, out=tmp_path/'again', progress=False, **TINY | dict(steps=3))
    assert torch.equal(S.x, again.x) and [json.loads(l)['step'] for l in (tmp_path/'cut'/'log.jsonl').read_text().splitlines()][-1]==3

def test_no_expert_is_begun_after_half_of_the_time(home, monkeypatch):
    data, late = load('digits'), iter([False, True, True])
    made = budget.experts_in_time('cd', data, 1, TINY | dict(experts=dict(n=4, epochs=2, group=1)), lambda: next(late), progress=False)
    assert made['experts']['n']==2
    monkeypatch.setattr('bpc_nb.experts.write_epoch', lambda *a, **o: pytest.fail("these experts are there"))
    distill('cd', data, 1, progress=False, **made)
    with pytest.raises(pytest.fail.Exception): distill('cd', data, 1, progress=False, **TINY | dict(experts=dict(n=5, epochs=2, group=1)))


@pytest.mark.parametrize('minutes', [0, -3])
def test_no_time(refused, album, minutes): refused('distill', album, '--minutes', minutes, parts=(f'minutes: found {minutes}', 'above 0'))

def test_too_little_time_says_what_would_do(refused, album):
    for command in 'distill', 'plan': refused(command, album, '--minutes', .001, parts=('minutes: 0.001 are too few for 2 images of 32x32', 'would do'))

def test_a_table_needs_no_budget(refused, tmp_path):
    (tmp_path/'t.csv').write_text('a,b,c\n' + '\n'.join(f'{i},{i%3},{"xy"[i%2]}' for i in range(60)))
    refused('distill', 't.csv', '--label', 'c', '--minutes', 2, parts=('minutes:', 'has no images'))


@pytest.mark.parametrize('N, ipc, side', [(10**6, 1, 32), (5000, 50, 32), (400, 1, 16), (3, 1, 8), (1, 1, 100)])
def test_rules_for_any_number_of_images(N, ipc, side):
    o = budget.common_rules(N, ipc, side)
    e = o['experts']
    assert 0 < e['part'] <= 1 and e['batch'] >= 1 and e['epochs'] >= o['T'] + o['k_max'] - 1 and o['T'] >= 1

@pytest.mark.parametrize('classes, each, color', [(40, 4, None), (2, 12, (0, 0, 0))], ids=['many classes, few images', 'all black'])
def test_odd_folders_are_learned(home, tmp_path, classes, each, color, monkeypatch):
    monkeypatch.setattr(budget, 'WIDTHS', (8,))
    monkeypatch.setattr(budget, 'LEAST', dict(n=1, steps=5))
    for k in range(classes):
        (tmp_path/'odd'/f'{k:03}').mkdir(parents=True)
        for i in range(each): Image.new('RGB', (16, 16), color or (k*5, i*20, 90)).save(tmp_path/'odd'/f'{k:03}'/f'{i}.png')
    data = load(tmp_path/'odd', held_out=.3)
    c = budget.chosen('cd', data, 1, 3)
    S = distill('cd', data, 1, out=tmp_path/'run', progress=False, **c.options | dict(steps=2, every=2, L=2, select_protocol='quick', experts=c.options['experts'] | dict(n=1)))
    assert S.x.isfinite().all() and len(S.x)==classes

def test_too_few_images_are_said_before_the_time(refused, album): refused('distill', album, '--ipc', 1000, parts=("class 'bright' has", 'fewer than 1000'))

def test_nothing_to_go_on_with(refused, album): refused('distill', album, '--out', 'none', '--resume', parts='no run in')

def test_pictures_in_a_parquet_file_are_reduced_as_those_in_folders(tmp_path):
    pq, io = pytest.importorskip('pyarrow.parquet'), __import__('io')
    import pyarrow as pa
    def png(k): Image.new('RGB', (50, 40 + k)).save(f := io.BytesIO(), 'png'); return f.getvalue()
    pq.write_table(pa.table(dict(image=[png(k) for k in range(8)], label=[k%2 for k in range(8)])), tmp_path/'train.parquet')
    assert {*budget.sides_in(tmp_path)}=={(40+k, 50) for k in range(8)} and budget.side_for(budget.sides_in(tmp_path), 15)==32
    assert budget.sides_in(tmp_path/'nothing')==[]

def test_no_expert_of_a_small_network_is_begun_after_half_of_the_time_either(home):
    data, late = load('digits'), iter([False, True, True, True, True])
    made = budget.experts_in_time('cd', data, 1, TINY | dict(experts=dict(n=12, epochs=2)), lambda: next(late), progress=False)
    assert made['experts']['n']==4 and made['experts']['group']==2 # a sixth at once


def test_another_run_and_a_folder_that_cannot_be_written_are_said_before_any_work(refused, bpc, album, few, monkeypatch):
    assert bpc('distill', album, '--out', 'run')[0]==0
    monkeypatch.setattr(learn, 'experts_in_time', lambda *a: pytest.fail("worked before it looked"))
    refused('distill', album, '--out', 'run', parts='run holds a run already')
    Path('file').write_text('')
    refused('distill', album, '--out', 'file/run', parts=('out: could not write to', 'file', 'choose another folder'))


def test_a_run_that_was_stopped_while_its_experts_were_trained_keeps_its_choices(bpc, album, few, monkeypatch):
    def stopped(*a): raise KeyboardInterrupt
    with monkeypatch.context() as m:
        m.setattr(learn, 'experts_in_time', stopped)
        assert bpc('distill', album, '--out', 'run')[0] and not Path('run/config.json').exists()
    monkeypatch.setattr(learn, 'chosen', lambda *a: pytest.fail("chosen again"))
    assert bpc('distill', album, '--out', 'run')[0]==0
    assert bpc('distill', album, '--out', 'run', '--resume', '--steps', 6)[0]==0 # in the size that it began with
    assert json.loads(Path('run/config.json').read_text())['steps']==6

def test_the_default_folder_is_found_again(bpc, tmp_path, few):
    (tmp_path/'my pictures').mkdir()
    for k in 'ab':
        (tmp_path/'my pictures'/k).mkdir()
        for i in range(20): Image.new('RGB', (40, 60), (i, 100*(k=='a'), 0)).save(tmp_path/'my pictures'/k/f'{i}.png')
    assert bpc('distill', tmp_path/'my pictures')[0]==0 and bpc('distill', tmp_path/'my pictures', '--resume')[0]==0
    assert [p.name for p in Path('runs').iterdir()]==['cd-my_pictures-1-0']


def test_one_picture_of_another_size_is_no_obstacle(bpc, tmp_path, few, monkeypatch):
    monkeypatch.setattr(budget, 'sides_in', lambda folder: [(28, 28)]*3) # the few that were looked at
    for k in 'ab':
        (tmp_path/'odd'/k).mkdir(parents=True)
        for i in range(20): Image.new('L', (28, 28 + (k=='b' and i==7)), 10*i).save(tmp_path/'odd'/k/f'{i}.png')
    assert bpc('distill', tmp_path/'odd', '--out', 'run')[0]==0 and Coreset.load('run/coreset.safetensors').x.shape[2:]==(32, 32)

def test_large_arrays_are_reduced_as_well(bpc, tmp_path, few):
    np = pytest.importorskip('numpy')
    np.savez(tmp_path/'a.npz', x=np.random.default_rng(0).integers(0, 255, (40, 50, 50), dtype='uint8'), y=np.arange(40)%2)
    assert bpc('distill', tmp_path/'a.npz', '--out', 'run')[0]==0 and Coreset.load('run/coreset.safetensors').x.shape[2:]==(32, 32)


@pytest.mark.parametrize('words, part', [(('digits', '--minutes', 'inf'), 'minutes: found inf; expected a number above 0'),
                                         (('digits', '--method', 'herding', '--minutes', 5), 'minutes: herding chooses in one step')])
def test_minutes_that_mean_nothing(refused, words, part):
    for command in 'distill', 'plan': refused(command, *words, parts=part)

def test_here(bpc, album, few, monkeypatch):
    monkeypatch.chdir(album)
    assert bpc('distill', '.', '--out', album.parent/'run')[0]==0 and len(few)==1

def test_own_pictures_that_are_called_as_a_known_set_get_no_recipe_of_it(bpc, tmp_path, few):
    for k in 'ab':
        (tmp_path/'digits'/k).mkdir(parents=True)
        for i in range(20): Image.new('L', (16, 16), 10*i).save(tmp_path/'digits'/k/f'{i}.png')
    assert bpc('distill', tmp_path/'digits', '--out', 'run')[0]==0 and len(few)==1
    assert json.loads(Path('run/config.json').read_text())['data']=='digits_pictures'


def test_many_classes_with_few_pictures_are_refused_alike(refused, tmp_path):
    for k in range(30):
        (tmp_path/'many'/f'{k:02}').mkdir(parents=True)
        for i in range(3): Image.new('L', (16, 16), 10*i+k).save(tmp_path/'many'/f'{k:02}'/f'{i}.png')
    for command in 'distill', 'plan': refused(command, tmp_path/'many', parts=('held_out: no image of many is held out', '--held-out'))

def test_the_minutes_that_are_named_are_enough(home):
    data = load('digits')._replace(name='pictures')
    with pytest.raises(ValueError, match='are too few') as e: budget.chosen('cd', data, 50, .02)
    would_do = int(__import__('re').search(r'(\d+) would do', str(e.value))[1])
    assert budget.chosen('cd', data, 50, would_do).options['steps'] > 0

def test_the_plan_says_what_is_chosen(bpc, album, few):
    code, out, err = bpc('plan', album, '--json')
    choices = json.loads(out)['choices']
    assert (choices['size'], choices['L'], choices['steps'], choices['experts']['n'])==([3, 32, 32], 2, 4, 2)
    assert 'steps   4' in bpc('plan', album)[2]

def test_a_plan_has_one_total(bpc):
    "What is planned in words is what the parts add up to"
    code, out, err = bpc('plan', 'digits', '--minutes', 5, '--device', 'cpu')
    minutes, steps = re.search(r'time +([\d.]+) of 5 minutes are planned, with (\d+) steps', err).groups()
    total, taken = re.search(r'in all +(\d+) s; (\d+) steps', out).groups()
    assert steps==taken and abs(60*float(minutes) - int(total)) <= 4

def test_where_a_clock_ended_a_run(home, tmp_path):
    ticks = iter([False, False, True])
    distill('cd', load('digits'), 1, out=tmp_path/'cut', progress=False, until=lambda: next(ticks), **TINY | dict(steps=40))
    assert json.loads((tmp_path/'cut'/'config.json').read_text())['ended']==3
