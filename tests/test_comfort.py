"""Progress, pictures in the terminal, completion, TensorBoard, the doctor, and what to do next."""
import io, json, logging, shutil, subprocess, sys, time
from configparser import ConfigParser
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
import torch

from bpc_nb import cli, distill, doctor, learn
from bpc_nb.commands import learn as commands
from bpc_nb.cli import main
from bpc_nb.fast import compiled
from bpc_nb.progress import bar
from conftest import TINY


class Terminal(io.StringIO):
    encoding = 'utf-8'
    def isatty(self): return True


def test_lines_in_a_log(bpc, experts, monkeypatch):
    monkeypatch.delitem(sys.modules, 'IPython', raising=False) # other tests of this process may have run notebooks
    monkeypatch.setattr(sys, 'stderr', file := io.StringIO())
    monkeypatch.setattr(learn, 'progress_bar', partial(learn.progress_bar, every=.02))
    assert main(['distill', 'digits', *TINY, '--buffer', str(experts), '--out', 'run']) == 0
    said = file.getvalue().splitlines()
    assert len({*said}) == len(said)
    assert 2 <= len(said) <= 62 and all(f'{part}' in said[-1] for part in ('distill: 60 of 60 steps', 'left, loss=', 'held_out=0.'))


def test_a_log_begins_before_the_first_evaluation(bpc, monkeypatch):
    monkeypatch.delitem(sys.modules, 'IPython', raising=False)
    monkeypatch.setattr(sys, 'stderr', file := io.StringIO())
    monkeypatch.setattr(learn, 'progress_bar', partial(learn.progress_bar, soon=.01))
    first, said = learn.first_state, []
    def slow(*a):
        time.sleep(.3)
        said.append(file.getvalue())
        return first(*a)
    monkeypatch.setattr(learn, 'first_state', slow)
    assert main(['remember', 'digits', '--method', 'dm', '--per-class', '1', '--net', 'mlp:width=8', '--steps', '2', '--every', '2', '--select-runs', '1']) == 0
    assert said == ['distill: 0 of 2 steps, ? step/s, ? left\n']


def test_a_slow_rate_and_no_line_twice(monkeypatch):
    monkeypatch.delitem(sys.modules, 'IPython', raising=False)
    monkeypatch.setattr(sys, 'stderr', file := io.StringIO())
    with bar(2, 'distill', 'step', every=0.) as b:
        for _ in range(2): b.start_t, b.last_print_t = b.start_t - 10, b.last_print_t - 10; b.update(1) # ten seconds each
    _, *said = file.getvalue().splitlines()
    assert [l.split(',')[0] for l in said] == ['distill: 1 of 2 steps', 'distill: 2 of 2 steps'] and all('s/step,' in l for l in said), said


def test_a_bar_has_rate_time_left_loss_and_accuracy(bpc, experts, monkeypatch):
    monkeypatch.setattr(sys, 'stderr', file := Terminal())
    assert main(['distill', 'digits', *TINY, '--buffer', str(experts), '--out', 'run']) == 0
    assert main(['experts', 'digits', '--net', TINY[1], '--n', '1', '--epochs', '2', '--out', 'e']) == 0
    assert main(['evaluate', 'run/coreset.safetensors', '--runs', '1']) == 0
    said = file.getvalue()
    for task, unit in ('distill', 'step'), ('experts', 'epoch'), ('students', 'epoch'): assert f'{task}: 100%' in said and f' {unit}/s' in said, task
    assert said.count('loss=') > 2 and 'held_out=0.' in said and 'accuracy=0.' in said
    monkeypatch.setattr(sys, 'stderr', file := io.StringIO()) # done within the first minute: nothing in a log
    assert main(['distill', 'digits', *TINY, '--buffer', str(experts), '--out', 'again']) == 0 and file.getvalue() == ''


def test_what_to_do_next_and_tensorboard(bpc, experts):
    pytest.importorskip('tensorboard')
    code, out, err = bpc('distill', 'digits', *TINY, '--buffer', experts, '--out', 'run', '--tensorboard')
    assert (code, err) == (0, '')
    assert all(f'bpc {next_}' in out for next_ in ('evaluate run/coreset.safetensors --control', 'show run/coreset.safetensors', 'explore run'))
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    found = EventAccumulator('run/tensorboard')
    found.Reload()
    rows = [json.loads(l) for l in Path('run/log.jsonl').read_text().splitlines()]
    assert [(e.step, pytest.approx(e.value)) for e in found.Scalars('accuracy_mean')] == [(r['step'], r['accuracy_mean']) for r in rows]
    assert 'tensorboard' not in json.loads(Path('run/config.json').read_text())


def test_what_to_do_next_says_what_it_needs(bpc, experts, monkeypatch):
    monkeypatch.setattr(commands, 'find_spec', lambda name: None)
    out = bpc('distill', 'digits', *TINY, '--buffer', experts, '--out', 'run')[1]
    assert "bpc explore run  (it needs: pip install 'bpc_nb[explorer]')" in out


def test_a_run_that_the_clock_ended_says_so(bpc, experts, monkeypatch):
    words = 'distill', 'digits', *TINY, '--buffer', experts, '--out', 'run'
    with monkeypatch.context() as m:
        m.setattr(commands, 'watching', lambda *_: dict(until=lambda: True))
        out = bpc(*words)[1]
    assert 'time was over at step 1 of 60; the same command with --resume goes on' in out
    code, out, err = bpc(*words, '--resume')
    assert (code, err) == (0, '') and 'time was over' not in out


def test_a_run_that_goes_on_says_so_after_what_is_wrong(bpc, refused, experts):
    words = 'distill', 'digits', *TINY, '--buffer', str(experts), '--out', 'run', '--resume'
    assert bpc(*words[:-1])[0] == 0
    Path('run/chosen.json').write_text(json.dumps(dict(planned=60., look=.1, asked={})))
    refused(*words, '--lr', '2', parts='has lr = 1.0, not 2.0') # one line
    code, out, err = bpc(*words, '--steps', '70', '--minutes', '1')
    assert (code, err) == (0, 'options as this run began, and another 1 minute\n')


@pytest.mark.skipif(torch.cuda.is_available(), reason='a GPU is here')
def test_a_compiler_does_not_say_that_there_is_no_gpu():
    logger = logging.getLogger('torch.utils.cpp_extension')
    logger.setLevel(logging.NOTSET)
    compiled(lambda x: x)
    assert not logger.isEnabledFor(logging.WARNING)


def test_explore_and_rank_name_what_they_need(refused):
    Path('notes').mkdir()
    refused('explore', 'notes', parts=('holds no run', 'or that of a memory'))
    Path('s.safetensors').write_text('')
    refused('explore', 's.safetensors', parts='is a file; name the folder of its run')
    refused('rank', 'network.toml', parts='file: there is no file network.toml')
    refused('rank', 's.safetensors', parts='s.safetensors is a coreset, and FILE is a TOML file of networks')


def test_guesses(refused, bpc):
    "ignore case, and stand alone"
    assert 'one of' not in refused('distill', 'digits', '--method', 'CD', parts="did you mean 'cd'?")
    assert 'one of' in refused('distill', 'digits', '--method', 'zzz')
    Path('my_pictures').mkdir()
    refused('distill', 'my_picturs', parts="there is no file or folder my_picturs, did you mean 'my_pictures'?")
    refused('data', './My_pictures/', parts="did you mean 'my_pictures'?")
    refused('data', 'digts', parts="did you mean 'digits'?")


def test_a_size_as_people_write_it(refused, bpc):
    assert json.loads(bpc('data', 'digits', '--size', '16x24', '--json')[1])['shape'] == [1, 16, 24]
    refused('data', 'digits', '--size', '16xx', parts=('as in --size 16x24', "found '16xx'"))
    assert '16x24' in bpc('data', '--help')[1]


def test_pictures_that_cannot_be_read_are_named(refused):
    for k in 'ab':
        Path('p', k).mkdir(parents=True)
        for i in range(4): Path('p', k, f'{i}.png').write_text('')
    err = refused('data', 'p', parts='cannot decode images a/0.png, a/1.png, a/2.png, a/3.png, b/0.png and 3 more; repair')
    assert '--skip-bad' in err and 'Error' not in err


def test_an_audit_says_of_how_many(bpc):
    from bpc_nb.zoo import load_coreset
    load_coreset('digits', ipc=1).save('s.safetensors')
    code, out, err = bpc('audit', 's.safetensors', *'--net mlp:width=8 --runs 1 --protocol brief --passes 2000 --images 50'.split())
    assert code == 0 and any(' of 10 ' in l and l.endswith('0.1 by chance') for l in out.splitlines() if ' copies ' in l), out


def test_an_audit_that_was_stopped_goes_on(bpc, monkeypatch):
    from bpc_nb import audit
    from bpc_nb.zoo import load_coreset
    load_coreset('digits', ipc=1).save('s.safetensors')
    words, trained, real = 'audit s.safetensors --net mlp:width=8 --runs 1 --protocol brief --passes 2000 --images 50'.split(), [], audit.students
    monkeypatch.setattr(audit, 'students', lambda *a, **k: trained.append(1) or real(*a, **k))
    with monkeypatch.context() as m:
        m.setattr(audit, 'when_corrupted', lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        code, out, err = bpc(*words)
    before = len(trained)
    assert code == 130 and 'kept in s.students, give the same command again to go on' in err and before == len([*Path('s.students').iterdir()]) > 5
    assert bpc(*words)[0] == 0 and Path('s.html').exists() and not Path('s.students').exists()
    after = len(trained) - before
    trained.clear()
    assert bpc(*words)[0] == 0 and len(trained) == before + after and after < before # from the beginning it is all of them


def test_tensorboard_is_not_here(refused, experts, monkeypatch):
    monkeypatch.setitem(sys.modules, 'torch.utils.tensorboard', None)
    refused('distill', 'digits', *TINY, '--buffer', experts, '--tensorboard', parts="pip install 'bpc_nb[tensorboard]'")
    assert not Path('runs').exists()


def test_show_draws_in_a_terminal_and_always_writes_a_png(bpc, monkeypatch):
    from bpc_nb.zoo import load_coreset
    load_coreset('digits', ipc=1).save('s.safetensors')
    assert '▀' not in bpc('show', 's.safetensors')[1] and Path('s.png').exists()
    Path('s.png').unlink()
    file = Terminal()
    for k, v in dict(TERM='xterm', COLORTERM='truecolor', COLUMNS='80').items(): monkeypatch.setenv(k, v)
    with monkeypatch.context() as m:
        m.setattr(sys, 'stdout', file)
        assert main(['show', 's.safetensors']) == 0
        drawn = file.getvalue()
        m.setenv('NO_COLOR', '1'); m.setattr(sys, 'stdout', plain := Terminal())
        assert main(['show', 's.safetensors']) == 0
    assert drawn.count('▀') > 300 and max(l.count('▀') for l in drawn.splitlines()) <= 80 and '38;2;' in drawn and Path('s.png').exists()
    assert '▀' not in plain.getvalue()


def completed(shell, script, *words):
    "What pressing tab after `words` offers"
    ask = f"COMP_WORDS=({' '.join(repr(w) for w in words)}); COMP_CWORD={len(words)-1}; _bpc; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    out = subprocess.run([shell, '-c', script + '\n' + ask], capture_output=True, text=True)
    assert out.returncode == 0, out.stderr
    return out.stdout.split()


@pytest.mark.skipif(not shutil.which('bash'), reason='not here: bash')
def test_completion(bpc):
    code, script, err = bpc('completion', 'bash')
    assert (code, err) == (0, '')
    tab = partial(completed, 'bash', script, 'bpc')
    assert tab('dis') == ['distill'] and tab('ex') == ['experts', 'explore'] and {*tab('')} == {*cli.COMMANDS}
    assert tab('distill', '--temp') == ['--temperature'] and tab('plan', '--sampl') == ['--samples'] and tab('show', '--ou') == ['--out'] and tab('show', '--temp') == []
    assert 'cd' in tab('distill', 'digits', '--method', '') and tab('distill', 'dig') == ['digits']
    Path('my.safetensors').write_text('')
    assert tab('show', 'my') == ['my.safetensors']


def test_completion_of_zsh(bpc, refused):
    refused('completion', 'fish', parts="shell: unknown 'fish'")
    code, script, err = bpc('completion', 'zsh')
    assert 'bashcompinit' in script
    if shutil.which('zsh'): assert subprocess.run(['zsh', '-fc', script + '\nprint ok'], capture_output=True, text=True).stdout == 'ok\n'


def test_doctor(bpc, monkeypatch, tmp_path):
    monkeypatch.setenv('BPC_DATA', str(tmp_path))
    code, out, err = bpc('doctor')
    assert (code, err) == (0, '') and 'nothing is wrong' in out and all(f'\n{k} ' in out for k in ('packages', 'device', 'threads', 'compiler', 'cache'))
    monkeypatch.setenv('BPC_DATA', '/no/such/folder')
    code, out, err = bpc('doctor')
    assert code == 2 and 'packages' in out and err == 'bpc: BPC_DATA names no folder: /no/such/folder\n'
    assert json.loads(bpc('doctor', '--json')[1])['wrong'] == ['BPC_DATA names no folder: /no/such/folder']


def test_doctor_knows_what_the_package_needs(bpc, monkeypatch):
    "from its metadata, which come from settings.ini, and not from a list of its own"
    monkeypatch.delenv('BPC_DATA', raising=False)
    ini = ConfigParser()
    ini.read(Path(__file__).resolve().parents[1]/'settings.ini')
    found = json.loads(bpc('doctor', '--json')[1])
    assert {n + p['needs'] for n, p in found['packages'].items()} == {*ini['DEFAULT']['requirements'].split()} and found['extras'].keys() >= {'arviz', 'explorer'}
    monkeypatch.setattr(doctor, 'requires', lambda name: ['torch>=99', 'numpy>=1.0', 'no-such-package', 'no-such-extra>=2; extra == "arviz"'])
    code, out, err = bpc('doctor')
    assert code == 2 and f"no-such-package is not installed, any version is needed: pip install -U 'no-such-package'" in err and 'extra       arviz: no no-such-extra>=2\n' in out
    assert f"torch is {version('torch')}, >=99 is needed" in err and f"numpy {version('numpy')} (satisfies >=1.0)" in out and f"torch {version('torch')} (does not satisfy >=99)" in out


@pytest.mark.parametrize('lacks', ['the distribution', 'packaging'])
def test_doctor_without_metadata(lacks, bpc, monkeypatch):
    monkeypatch.delenv('BPC_DATA', raising=False)
    def none(name): raise PackageNotFoundError(name)
    if lacks == 'packaging': monkeypatch.setitem(sys.modules, 'packaging.requirements', None)
    else: monkeypatch.setattr(doctor, 'requires', none)
    code, out, err = bpc('doctor')
    assert (code, err) == (0, '') and 'packages    what is needed is not known here: bpc_nb is not installed' in out
