"""A memory on disk: bad input in one sentence, and a state before or after whatever happens."""
import json, os, shutil, signal, subprocess, sys, time

import pytest
import torch

from bpc_nb import distill as distilling
from bpc_nb.cli import main
from bpc_nb.core import Coreset, image
from bpc_nb.data import load
from bpc_nb.memory import PRINTS, STATE, not_renamed, recall, states
from bpc_nb.zoo import HERE

@pytest.fixture(scope='module')
def pictures(tmp_path_factory):
    "Class folders of digits as pictures: 0 and 1, then 2 alone, then pictures of 0 under another name"
    home, d = tmp_path_factory.mktemp('pictures'), load('digits')
    for folder, k, name, some in (('first', 0, '0', slice(0, 30)), ('first', 1, '1', slice(0, 30)), ('more', 2, '2', slice(0, 30)),
                                  ('more', 0, '0', slice(20, 40)), ('renamed', 0, 'zero', slice(0, 30)), ('renamed', 3, '3', slice(0, 30)),
                                  ('partly', 0, 'null', slice(20, 50)), ('partly', 3, '3', slice(0, 30))):
        (home/folder/name).mkdir(parents=True)
        for i, x in enumerate(d.transform.inverse(d.train.x[d.train.y==k][some])): image(x).save(home/folder/name/f'{i}.png')
    (home/'alone'/'4').mkdir(parents=True)
    for i, x in enumerate(d.transform.inverse(d.train.x[d.train.y==4][:20])): image(x).save(home/'alone'/'4'/f'{i}.png')
    return home

FAST = ['--net', 'mlp:width=8', '--select-protocol', 'brief']

def bpc(*words, capsys=None):
    code = main(['remember', *map(str, words), *FAST])
    said = capsys.readouterr()
    return code, said.out, said.err

def test_what_is_new_is_added_and_nothing_else(pictures, tmp_path, capsys):
    into = ('--into', tmp_path/'m')
    code, out, _ = bpc(pictures/'first', *into, '--per-class', 4, '--json', capsys=capsys)
    assert code==0 and json.loads(out)['classes']==['0', '1']
    before = recall(tmp_path/'m')
    code, out, _ = bpc(pictures/'more', *into, '--json', capsys=capsys) # as many a class as before
    found, m = json.loads(out), recall(tmp_path/'m')
    assert code==0 and found['classes']==['0', '1', '2'] and m.coreset.y.tolist()==[0]*4 + [1]*4 + [2]*4
    assert found['history'][-1]['new']['0'] < 20 # some of them were there before
    assert torch.equal(m.coreset.x[m.coreset.y==1], before.coreset.x[before.coreset.y==1])
    code, out, _ = bpc(pictures/'more', *into, capsys=capsys)
    assert code==0 and out.startswith('nothing new') and len(states(tmp_path/'m'))==2
    code, out, _ = bpc(pictures/'alone', *into, '--json', capsys=capsys) # one class alone
    assert code==0 and json.loads(out)['classes']==['0', '1', '2', '4']

@pytest.mark.parametrize('words, said', [
    (['renamed'], "images of class 'zero' were added as class '0' before"),
    (['more', '--budget', '2'], 'are too few for 3 classes; give at least 3'),
    (['more', '--per-class', '0'], 'per_class: found 0'),
    (['more', '--budget', '9', '--per-class', '2'], 'give one of them'),
    (['more', '--size', '12'], 'its images are (1, 8, 8)'),
    (['more', '--method', 'herdin'], "did you mean 'herding'"),
    (['nowhere'], 'there is no file or folder'),
])
def test_bad_input_is_one_sentence_and_loses_nothing(pictures, tmp_path, capsys, words, said):
    bpc(pictures/'first', '--into', tmp_path/'m', '--per-class', 3, capsys=capsys)
    kept = {p: (p/STATE).read_bytes() for p in states(tmp_path/'m')}
    code, _, err = bpc(pictures/words[0] if words[0]!='nowhere' else 'nowhere', '--into', tmp_path/'m', *words[1:], capsys=capsys)
    assert code==2 and said in err and err.count('\n')==1, err
    assert {p: (p/STATE).read_bytes() for p in states(tmp_path/'m')}==kept

def test_some_old_pictures_under_another_name_are_a_warning(pictures, tmp_path, capsys):
    bpc(pictures/'first', '--into', tmp_path/'m', '--per-class', 3, capsys=capsys)
    code, _, err = bpc(pictures/'partly', '--into', tmp_path/'m', capsys=capsys)
    assert code==0 and "new images of class 'null' were added as class '0' before; if both names mean one class" in err, err
    assert len(states(tmp_path/'m'))==2

QUICK = ['--net', 'mlp:width=4', '--runs', '1']

def test_a_memory_knows_the_folder_that_it_was_filled_from(pictures, tmp_path, capsys):
    "and one of several folders says which they were"
    into = tmp_path/'m'
    bpc(pictures/'first', '--into', into, '--per-class', 3, capsys=capsys)
    assert main(['evaluate', str(states(into)[-1]/STATE), *QUICK])==0 and capsys.readouterr().err==''
    bpc(pictures/'more', '--into', into, capsys=capsys)
    assert main(['evaluate', str(states(into)[-1]/STATE), *QUICK])==2
    assert 'this memory was filled from several folders (first, more); give --data a folder with all its classes' in capsys.readouterr().err
    assert main(['evaluate', str(into), *QUICK])==2 and 'filled from several folders' in capsys.readouterr().err # the folder means its newest state

def test_what_cannot_be_a_memory_is_refused_before_anything_is_written(pictures, tmp_path, capsys):
    (tmp_path/'full').mkdir(); (tmp_path/'full'/'notes').write_text('')
    first = pictures/'first'
    for into,said in ((tmp_path/'full', 'is not empty and holds no memory'), (first, 'is the folder of the data'),
                      (first/'memory', 'lies in the folder of the data'), (tmp_path/'full'/'notes', 'is a file')):
        before = sorted(tmp_path.rglob('*')) + sorted(pictures.rglob('*'))
        code, _, err = bpc(first, '--into', into, capsys=capsys)
        assert code==2 and said in err and err.count('\n')==1, err
        assert sorted(tmp_path.rglob('*')) + sorted(pictures.rglob('*'))==before

def test_test_pictures_of_earlier_additions_are_counted(pictures, tmp_path, capsys):
    "of a folder that is split anew when it has grown"
    d = load('digits')
    def add(n):
        for k in '01':
            (tmp_path/'grows'/k).mkdir(parents=True, exist_ok=True)
            for i, x in enumerate(d.transform.inverse(d.train.x[d.train.y==int(k)][:n])): image(x).save(tmp_path/'grows'/k/f'{i}.png')
        return bpc(tmp_path/'grows', '--into', tmp_path/'m', capsys=capsys)
    assert '12 pictures of the data are for testing' in add(30)[1] and 'for testing' in add(30)[1]
    code, out, err = add(60)
    assert code==0 and ' of the 24 test pictures were in earlier additions: keep test pictures in a folder of their own (train/ and test/)' in out, out

def test_one_class_alone_cannot_begin(pictures, tmp_path, capsys):
    code, _, err = bpc(pictures/'alone', '--into', tmp_path/'m', capsys=capsys)
    assert code==2 and 'begin with two classes or more' in err

@pytest.mark.skipif(not hasattr(signal, 'SIGKILL'), reason='processes are killed by a signal')
def test_a_kill_at_any_moment_leaves_the_state_before_or_after(pictures, tmp_path, capsys):
    into = tmp_path/'m'
    bpc(pictures/'first', '--into', into, '--per-class', 3, capsys=capsys)
    for wait in (2.5, 4., 5.5):
        p = subprocess.Popen([sys.executable, '-m', 'bpc_nb.cli', 'remember', str(pictures/'more'), '--into', str(into), *FAST],
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ | dict(OMP_NUM_THREADS='1'))
        time.sleep(wait); p.kill(); p.wait()
        m = recall(into)
        assert m.classes in (('0', '1'), ('0', '1', '2')) and len(m.coreset.x)==3*len(m.classes) and len(m.history)==len(states(into))
    code, _, err = bpc(pictures/'more', '--into', into, capsys=capsys)
    assert code==0 and recall(into).classes==('0', '1', '2'), err
    assert sorted(p.name for p in into.iterdir())==['0001', '0002'] # nothing is left of what was killed

@pytest.mark.skipif(not hasattr(signal, 'SIGKILL'), reason='processes are killed by a signal')
def test_a_kill_while_it_learns_loses_nothing_and_a_second_process_is_refused(pictures, tmp_path, capsys):
    into = tmp_path/'m'
    bpc(pictures/'first', '--into', into, '--per-class', 3, capsys=capsys)
    learn = [str(pictures/'more'), '--into', str(into), '--method', 'dm', '--every', '5', *FAST]
    p = subprocess.Popen([sys.executable, '-m', 'bpc_nb.cli', 'remember', *learn, '--steps', '100000'], stdout=subprocess.DEVNULL,
                         stderr=subprocess.DEVNULL, env=os.environ | dict(OMP_NUM_THREADS='1'))
    try:
        end = time.monotonic() + 120
        while not (at := [*into.glob('.adding/*/checkpoint.safetensors')]) and time.monotonic() < end: time.sleep(.05)
        code, _, err = bpc(pictures/'more', '--into', into, capsys=capsys) # while the other one learns
        assert code==2 and 'another process is adding to' in err and err.count('\n')==1, err
    finally: p.kill(); p.wait()
    assert at and recall(into).classes==('0', '1') and len(states(into))==1 # the state before
    code, _, err = bpc(*learn[:-len(FAST)], '--steps', '30', capsys=capsys)
    assert code==0 and recall(into).classes==('0', '1', '2') and recall(into).coreset.meta['method']=='herding + dm', err
    assert sorted(p.name for p in into.iterdir())==['0001', '0002']

def test_an_addition_that_was_stopped_and_one_that_was_not_are_the_same_bit_for_bit(pictures, tmp_path, capsys, monkeypatch):
    "stopped after its second checkpoint, and called again"
    learn = [pictures/'more', '--method', 'dm', '--steps', '20', '--every', '5']
    for name in 'ab': bpc(pictures/'first', '--into', tmp_path/name, '--per-class', 3, capsys=capsys)
    write, calls = distilling.save_state, []
    def noted(s, path, stop):
        write(s, path); calls.append(s.step)
        if len(calls)==stop: raise KeyboardInterrupt
    monkeypatch.setattr(distilling, 'save_state', lambda s, path: noted(s, path, None))
    assert bpc(*learn, '--into', tmp_path/'a', capsys=capsys)[0]==0
    steps = [*calls]; calls.clear()
    monkeypatch.setattr(distilling, 'save_state', lambda s, path: noted(s, path, 2))
    code, _, err = bpc(*learn, '--into', tmp_path/'b', capsys=capsys)
    assert code==130 and 'is as it was, and the same command goes on' in err and len(states(tmp_path/'b'))==1
    assert bpc(*learn, '--into', tmp_path/'b', capsys=capsys)[0]==0
    assert calls==steps and len(steps) > 3 # it went on, and did not begin anew
    a, b = (recall(tmp_path/name).coreset for name in 'ab')
    assert torch.equal(a.x, b.x) and torch.equal(a.y, b.y) and a.meta['method']=='herding + dm'

def test_a_memory_and_what_is_new_are_one_data_set_by_names(pictures, tmp_path, capsys):
    "and who has more classes than a memory, or takes its data from one addition, is told what would work"
    into = tmp_path/'m'
    bpc(pictures/'first', '--into', into, '--per-class', 3, capsys=capsys)
    bpc(pictures/'alone', '--into', into, capsys=capsys)
    m, new = recall(into), load(str(pictures/'more'), size=(8, 8))
    both = m.beside(new)
    assert both.classes==('0', '1', '2', '4') and both.train.y.bincount().tolist()==[3 + new.train.y.bincount().tolist()[0], 3, new.train.y.bincount().tolist()[1], 3]
    assert torch.equal(both.train.x[:9], m.coreset.x) and set(both.test.y.tolist())=={0, 2}
    last = str(states(into)[-1]/STATE)
    (tmp_path/'n.toml').write_text('[[networks]]\nnet = "mlp:width=4"\n')
    assert main(['rank', str(tmp_path/'n.toml'), '--on', last])==2
    assert 'this memory was filled from several folders (first, alone); give --data a folder with all its classes' in capsys.readouterr().err
    for k, folder in (('0', 'first'), ('1', 'first'), ('4', 'alone'), ('7', 'renamed')):
        shutil.copytree(pictures/folder/(k if k!='7' else '3'), tmp_path/'all'/k)
    assert main(['evaluate', last, '--data', str(tmp_path/'all'), *QUICK])==2
    assert 'leave out 7, or add it to the memory first' in capsys.readouterr().err

def cut(path): path.write_bytes(path.read_bytes()[:100])

@pytest.mark.parametrize('spoil', [lambda at: (at/PRINTS).unlink(), lambda at: (at/PRINTS).write_text('0'), lambda at: (at/STATE).unlink(),
                                   lambda at: cut(at/STATE), lambda at: Coreset(torch.rand(4, 1, 8, 8), torch.tensor([0, 0, 1, 1]),
                                                                                classes=('0', '1', '2')).save(at/STATE)])
def test_a_damaged_state_is_one_sentence_that_says_how_to_go_on(pictures, tmp_path, capsys, spoil):
    into = tmp_path/'m'
    for some in ('first', 'more'): bpc(pictures/some, '--into', into, '--per-class', 3, capsys=capsys)
    spoil(into/'0002')
    code, _, err = bpc(pictures/'alone', '--into', into, capsys=capsys)
    assert code==2 and f'{into/"0002"} is not a whole state of a memory; move it away' in err and err.count('\n')==1, err
    os.rename(into/'0002', tmp_path/'away')
    assert bpc(pictures/'more', '--into', into, capsys=capsys)[0]==0 and recall(into).classes==('0', '1', '2')

def test_pictures_of_another_colour_are_one_sentence(pictures, tmp_path, capsys):
    bpc(pictures/'first', '--into', tmp_path/'m', '--per-class', 3, capsys=capsys)
    for k in '23':
        (tmp_path/'red'/k).mkdir(parents=True)
        for i in range(6): image(torch.rand(3, 8, 8)).save(tmp_path/'red'/k/f'{i}.png')
    code, _, err = bpc(tmp_path/'red', '--into', tmp_path/'m', capsys=capsys)
    assert code==2 and 'its images are (1, 8, 8)' in err and 'as many colours' in err and len(states(tmp_path/'m'))==1

def test_an_audit_of_a_foreign_file_is_one_sentence(tmp_path, capsys):
    (tmp_path/'a.safetensors').write_bytes(b'not a coreset')
    assert main(['audit', str(tmp_path/'a.safetensors')])==2
    assert 'is not a readable coreset file' in capsys.readouterr().err
    x = torch.rand(4, 3, 5, 5)
    Coreset(x, torch.tensor([0, 0, 1, 1]), classes=('a', 'b')).save(tmp_path/'b.safetensors')
    assert main(['audit', str(tmp_path/'b.safetensors')])==2 and 'name them with --data' in capsys.readouterr().err
    assert main(['audit', str(tmp_path/'b.safetensors'), '--data', 'digits'])==2
    assert 'its images are (3, 5, 5)' in capsys.readouterr().err

@pytest.mark.parametrize('text, said', [('', 'names no network'), ('[[networks]\n', 'is not a readable TOML file'),
                                        ('[[networks]]\nnet = "convnt"\n', "did you mean 'convnet'"),
                                        ('[[networks]]\nwidth = [8]\nlr = [-1.0]\n', 'lr')])
def test_bad_candidates_are_one_sentence(tmp_path, capsys, text, said):
    (tmp_path/'n.toml').write_text(text)
    code = main(['rank', str(tmp_path/'n.toml'), '--on', str(HERE/'digits-1.safetensors'), '--runs', '1', '--json'])
    err = capsys.readouterr().err
    assert code==2 and said in err and err.count('\n')==1, err

def test_one_new_picture_is_enough(pictures, tmp_path, capsys):
    "of a new class, of two new classes, of an old class"
    d = load('digits')
    def put(folder, k, i):
        (tmp_path/folder/str(k)).mkdir(parents=True, exist_ok=True)
        image(d.transform.inverse(d.train.x[d.train.y==k][i])).save(tmp_path/folder/str(k)/f'{i}.png')
    put('one', 5, 0); put('two', 6, 0); put('two', 6, 1); put('two', 7, 0); put('two', 7, 1); put('old', 5, 1)
    assert bpc(pictures/'first', '--into', tmp_path/'m', '--per-class', 3, capsys=capsys)[0]==0
    for folder, classes in dict(one=3, two=5, old=5).items():
        code, out, err = bpc(tmp_path/folder, '--into', tmp_path/'m', capsys=capsys)
        assert code==0 and 'nothing is kept for testing' in out, err
        m = recall(tmp_path/'m')
        assert (len(m.classes), len(m.coreset.x))==(classes, 3*classes)
    assert {c:len(s) for c,s in m.seen.items() if c in '567'}=={'5':2, '6':2, '7':2}

def test_a_name_in_capitals_gives_a_warning_and_one_old_picture_under_a_new_name_an_error():
    with pytest.warns(UserWarning, match="classes: 'Cat' is new beside 'cat'"): not_renamed('Cat', ['b'], {'cat':{'a'}})
    with pytest.raises(ValueError, match="1 of the 1 new images of class 'dog' were added as class 'cat' before"): not_renamed('dog', ['a'], {'cat':{'a'}})
    not_renamed('dog', ['a'], {'cat':{'a'}, 'dog':{'b'}}) # in a class that is there, one may lie in both
