"""The attack and the check where things are not as they should be: tables, few images, wrong words, other kinds of coresets."""
import json
from pathlib import Path

import pytest
import torch

from bpc_nb.commands.judge import inspection
from bpc_nb.core import Coreset, stream
from bpc_nb.data import load
from bpc_nb.networks import network
from bpc_nb.poison import called, inspected, poison, suspicions, trained


@pytest.fixture(autouse=True)
def at_home(home): "A cache of its own"

@pytest.fixture(scope='module')
def data(): return load('digits')

NETS = dict(n=3, epochs=8, lr=.05, momentum=.9)

@pytest.fixture(scope='module')
def mlp(data): return network('mlp:width=16', data.shape, data.K)

@pytest.fixture
def thetas(data, mlp): return trained(data, mlp, NETS, progress=False)


def test_every_kind_of_coreset_is_inspected(data, mlp, thetas):
    S = data.draw(2, stream(0))
    soft = torch.nn.functional.one_hot(S.y, 10).float()
    for T in (S, S._replace(y=soft), S._replace(y=soft - .1, targets=True), S._replace(w=torch.ones(20)), S._replace(steps=torch.full((2, 2), .01))):
        found = inspected(T, data, mlp, thetas)
        assert json.loads(json.dumps(found))['own_steps'] == (T.steps is not None) and len(found['falls']) == 10
        assert found['singled_out'] == [] and (T.targets or suspicions(found, data.classes) == []) # networks of logits are no regressions

def test_a_coreset_that_breaks_everything_singles_out_nothing(data, mlp, thetas):
    S = data.draw(2, stream(0))
    found = inspected(S._replace(y=(S.y + 1)%10, steps=torch.full((40, 1), .5)), data, mlp, thetas)
    assert found['broken'] and found['singled_out'] == [] and 'most classes fall' in suspicions(found, data.classes)[0]

def test_a_mislabelled_class_is_singled_out(data, mlp, thetas):
    S = data.draw(3, stream(0))
    wrong = S._replace(y=torch.where(S.y==3, 8, S.y))
    found = inspected(wrong, data, mlp, thetas, lr=.05, epochs=40)
    assert [c['label'] for c in found['singled_out']] == [3] and found['singled_out'][0]['called'] == 8

def test_rows_of_a_table(tmp_path):
    (tmp_path/'t.csv').write_text('a,b,c\n' + '\n'.join(f'{i},{i%3},{"xyz"[i%3]}' for i in range(90)))
    table = load(tmp_path/'t.csv', label='c')
    net = network('mlp:width=8', table.shape, table.K)
    nets = trained(table, net, dict(n=2, epochs=2), progress=False)
    S = poison(table, net, nets, 'x', 'y', ipc=2, steps=2, progress=False)
    assert S.x.shape == (6, 2) and 'outside' not in (found := inspected(S, table, net, nets))
    assert 'of real ones' in inspection(found, table, net.name)
    with pytest.raises(ValueError, match="pixels: found '8bit', which is for images"): poison(table, net, nets, 'x', 'y', pixels='8bit')

def test_a_class_that_falls_less_than_others_gain_is_not_singled_out(data, mlp):
    gained = data.draw(5, stream(0, 'lesson')) # good for networks that have hardly begun
    found = inspected(gained, data, mlp, trained(data, mlp, dict(n=2, epochs=1), progress=False), epochs=60, lr=.1)
    assert found['typical'] < -5 and min(found['falls']) < found['typical'] and not [c for c in found['singled_out'] if c['fall'] < 20]

@pytest.mark.parametrize('words, said', [('--part hold', "part: unknown 'hold'"), ('--epochs 0', 'epochs: expected'), ('--lr=-1', 'lr: found -1'), ('--most=-5', 'most: found -5')])
def test_an_inspection_refuses_what_means_nothing_before_it_trains(bpc, words, said):
    load('digits').draw(1, stream(0)).save('real.safetensors')
    code, out, err = bpc('inspect', 'real.safetensors', '--data', 'digits', '--net', 'mlp:width=4', *words.split())
    assert code==2 and said in err and 'epoch/s' not in err and len(err.splitlines())==1, err

def test_nothing_held_out(data, mlp, thetas):
    none = data._replace(held=data.held._replace(x=data.held.x[:3], y=data.held.y[:3]))
    with pytest.raises(ValueError, match='part: there is no image of class .* in the held part of digits; load the data with a larger held_out='):
        called(mlp, thetas, none)


@pytest.mark.parametrize('words, said', [
    ('--target 8', 'attacked: name a class with --attacked, one of 0, 1'), ('--attacked 3', 'target: name a class with --target'),
    ('--attacked 3 --target 3', "target: found '3', which is the attacked class"), ('--attacked 33 --target 3', "attacked: unknown '33'"),
    ('--attacked 3 --target 8 --ipc 0', 'ipc: expected a whole number of at least 1'), ('--attacked 3 --target 8 --step -1', 'step: found -1.0'),
    ('--attacked 3 --target 8 --pixels 7bit', "pixels: unknown '7bit', did you mean '8bit'?"),
    ('--attacked 3 --target 8 --experts n=1', 'experts: n: found 1; an attack is judged on networks that it has not seen'),
    ('--attacked 3 --target 8 --experts epoch=1', "option of experts: unknown 'epoch', did you mean 'epochs'?"),
    ('--attacked 3 --target 8 --net convnt', "unknown 'convnt', did you mean 'convnet'?")])
def test_bad_words_are_refused_before_anything_is_trained(bpc, words, said):
    code, out, err = bpc('poison', 'digits', *words.split())
    assert code == 2 and said in err and 'epoch/s' not in err and len(err.splitlines()) == 1, err

def test_a_file_that_is_there_is_kept(refused, tmp_path):
    (tmp_path/'a.csv').write_text('kind,a\nx,1\ny,2\n')
    refused('poison', tmp_path/'a.csv', '--label', 'kind', '--attacked', 'x', '--target', 'y', '--out', tmp_path/'a.csv',
            parts='is there already; name another file')
    assert (tmp_path/'a.csv').read_text() == 'kind,a\nx,1\ny,2\n'

def test_an_attack_is_made_and_found(bpc):
    experts = 'n=10,epochs=12,lr=.05,momentum=.9'
    code, out, err = bpc('poison', 'digits', '--attacked', 3, '--target', 8, '--net', 'mlp:width=32', '--experts', experts, '--steps', 150, '--json', '--out', 'a.safetensors')
    made = json.loads(out)
    assert code == 0 and made['coreset'] == 'a.safetensors' and (made['attacked'], made['target']) == (3, 8) and made['step_size'] > 0
    other = experts.replace('n=10', 'n=3,seed=7') # the user's networks are others
    code, out, err = bpc('inspect', 'a.safetensors', '--experts', other, '--json')
    found = json.loads(out)
    assert code == 2 and 'class 3 falls by' in err and 'do not train on it' in err and found['singled_out'][0]['label'] == 3 and found['own_steps']
    code, out, err = bpc('inspect', 'a.safetensors', '--experts', other)
    assert code == 2 and 'falls by points' in out and 'Traceback' not in err
    Coreset.load('a.safetensors')._replace(x=load('digits').draw(10, stream(3)).x, y=load('digits').draw(10, stream(3)).y).save('real.safetensors')
    code, out, err = bpc('inspect', 'real.safetensors', '--experts', other)
    assert code == 0 and out.endswith('nothing speaks against it\n')
    assert bpc('inspect', 'a.safetensors', '--lr', .1)[2] == 'bpc: lr: the coreset has step sizes of its own, so --lr would change nothing; leave it out\n'
    assert bpc('inspect', 'nothing.safetensors')[0] == 2
