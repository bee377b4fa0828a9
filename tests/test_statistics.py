"""What comes from a teacher: runs that go on, what is taken at the end, what is refused, and a broken loss that is seen."""
import json

import pytest
import torch

from bpc_nb.core import Coreset, stream
from bpc_nb.data import load
from bpc_nb.distill import distill
from bpc_nb.evaluate import evaluate
from bpc_nb.experts import experts
from bpc_nb.lines import lines
from bpc_nb.methods import sre2l
from bpc_nb.networks import network
from bpc_nb.teacher import TRAINED, answers, from_file, mixtures, observed, online, read_labels, relabelled, squeezed

NORM = 'convnet:width=4,depth=2,norm=batch'
BRIEF = dict(net=NORM, steps=6, every=3, select_runs=1, select_evaluator='ridge', progress=False)


@pytest.fixture
def quick(home, monkeypatch): monkeypatch.setitem(TRAINED, 'epochs', 2)


@pytest.mark.parametrize('method', ['sre2l', 'dwa'])
def test_a_recovery_goes_on_bit_for_bit_and_ends_with_its_last_look(quick, tmp_path, method):
    whole = distill(method, 'digits', 2, out=tmp_path/'whole', **BRIEF)
    distill(method, 'digits', 2, out=tmp_path/'run', **BRIEF | dict(steps=3))
    again = distill(method, 'digits', 2, out=tmp_path/'run', resume=True, **BRIEF)
    assert torch.equal(whole.x, again.x) and whole.meta['step']==6
    assert -1e-5 < whole.pixels().min() and whole.pixels().max() < 1 + 1e-5


def recovered(data, t, watch, steps=60): # from noise, one batch
    S = data.draw(1, stream(0))
    x = torch.randn(S.x.shape, generator=stream(1)).requires_grad_()
    optim = torch.optim.Adam([x], lr=.1)
    for _ in range(steps):
        optim.zero_grad(); sre2l.recovery_loss(watch, t, t.theta, x, S.y, .01, 1.).backward(); optim.step()
    with torch.no_grad(): logits, seen = observed(t.net)(t.theta, x, t.stats)
    far = sum((seen[k][1] - v).norm() for k,(m,v) in sre2l.by_layer(t.stats).items())
    return (logits.argmax(1)==S.y).float().mean().item(), far.item()

def test_a_teacher_names_what_is_recovered_and_a_blind_one_does_not(quick):
    data = load('digits')
    t = squeezed(data, network(NORM, data.shape, 10), dict(epochs=12))
    named, near = recovered(data, t, observed(t.net))
    def blind(theta, x, stats): # no gradient of the statistics: noise keeps its own
        logits, seen = observed(t.net)(theta, x, stats)
        return logits, {k:(m.detach(), v.detach()) for k,(m,v) in seen.items()}
    _, far = recovered(data, t, blind)
    assert named==1. and near < .8*far


def test_stored_labels_are_what_the_teacher_says_of_what_students_see(quick, tmp_path):
    data = load('digits')
    S, t = data.draw(1, stream(0)), squeezed(data, network(NORM, data.shape, 10))
    L = relabelled(S, t, epochs=3, temperature=2.)
    x = mixtures('crop_flip', data.shape)(S.x, stream(0, 'relabel', 1))
    assert torch.allclose(L.p[1].float(), answers(t, x, 2.), atol=1e-3)
    theta, other = t.net.init(stream(1)), S._replace(x=x, y=L.p[1].float())
    L.save(tmp_path/'l')
    asked, stored = (lesson.E(theta, other) for lesson in (online(S, t.net, t, L.how, (0,)), from_file(S, t.net, tmp_path/'l')))
    assert asked.item()==pytest.approx(stored.item(), rel=1e-3)
    assert read_labels(tmp_path/'l', S.quantised()).how['images'] # the same pictures in 8 bits
    with pytest.raises(ValueError, match='about other images'): read_labels(tmp_path/'l', data.draw(1, stream(1)))
    (tmp_path/'cut').write_bytes((tmp_path/'l').read_bytes()[:-9])
    for bad in 'cut', 'none':
        with pytest.raises(ValueError, match='bpc relabel'): read_labels(tmp_path/bad, S)
    two = [evaluate(S, data, 1, net=NORM, evaluator='soft', labels=str(tmp_path/'l'), seed=s, eight_bit=False)['accuracy_mean'] for s in (0, 1)]
    assert two[0]!=two[1] # they begin elsewhere


def test_a_block_is_of_some_of_the_classes(quick):
    "As many images at once as are asked for, however many there are"
    data = load('digits')
    assert [len(i) for i in sre2l.in_turn(30, 10, 4)]==[4, 4, 2]*3
    whole, cut = (distill('sre2l', data, 3, block=b, **BRIEF) for b in (500, 4))
    assert not torch.equal(whole.x, cut.x) # fewer images have other statistics


def test_what_is_refused(quick):
    data = load('digits')
    for said, options in (('keeps no statistics', dict(net='mlp')), ("direction: unknown", dict(direction='up')), ('labels', dict(labels='soft'))):
        with pytest.raises(ValueError, match=said): distill('dwa', data, 1, **BRIEF | options)
    with pytest.raises(ValueError, match='temperature: '): evaluate(data.draw(1, stream(0)), data, 1, net=NORM, evaluator='soft', temperature=-1.)
    with pytest.raises(ValueError, match='step sizes'): evaluate(data.draw(1, stream(0))._replace(steps=torch.ones(1, 1)), data, 1, net=NORM, evaluator='soft')


def test_a_teacher_of_other_data_or_of_another_size_is_refused(quick, tmp_path):
    digits = load('digits')
    experts(digits, network(NORM, digits.shape, 10), tmp_path/'b', n=1, epochs=1, progress=False)
    for data, net, said in ('digits', 'convnet:width=8,depth=2,norm=batch', 'was made with net'), ('other', NORM, 'was made with'):
        if data=='other': data = load((torch.rand(40, 3, 16, 16), torch.arange(40)%2))
        with pytest.raises(ValueError, match=f'buffer: .* {said}'): distill('sre2l', data, 1, buffer=tmp_path/'b', **BRIEF | dict(net=net))

def test_a_block_larger_than_memory_is_refused_before_the_first_step(quick, monkeypatch):
    distill('sre2l', 'digits', 1, **BRIEF)
    monkeypatch.setattr(sre2l, 'free_mb', lambda device: .5)
    with pytest.raises(ValueError, match=r'block: .* take block=\d+'): distill('dwa', 'digits', 1, **BRIEF | dict(net='convnet:width=64,norm=batch,depth=2'))

def test_commands(quick, bpc):
    code, out, err = bpc('teacher', 'digits', '--net', NORM, '--json')
    assert code==0 and json.loads(out)['accuracy'] > .1
    code, out, err = bpc('distill', 'digits', '--method', 'sre2l', '--net', NORM, '--steps', 2, '--every', 2, '--select-evaluator', 'ridge', '--out', 'run', '--json')
    assert code==0, err
    code, out, err = bpc('evaluate', json.loads(out)['coreset'], '--evaluator', 'soft', '--set', 'epochs=2', '--runs', 1, '--control', '--json')
    assert code==0 and {'accuracy_mean','accuracy_mean_random','taught_by'} <= json.loads(out).keys()
    code, out, err = bpc('evaluate', 'run/coreset.safetensors', '--protocol', 'soft', '--set', 'epochs=2', '--runs', 1)
    assert code==0 and '1 run of soft' in out, err
    judged = 'transfer', 'run/coreset.safetensors', '--nets', 'mlp:width=4', '--set', 'epochs=2', '--runs', 1
    for evaluator in '--evaluator', '--protocol': assert bpc(*judged, evaluator, 'soft')[0]==0 # the same line by either name
    line, = lines('results/transfer.jsonl')
    assert line['taught_by']==NORM and line['evaluator']=='soft' # the teacher whose images they are
    code, out, err = bpc('teacher', 'digits', '--net', 'mlp')
    assert code==2 and 'convnet:norm=batch' in err
