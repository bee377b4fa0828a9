"""Grids in several processes and in little time, what is wrong in their files, and the coresets and tables made from them."""
import ast, json, os, re, signal, subprocess, sys, time
from pathlib import Path

import pytest

from bpc_nb import grid, zoo
from bpc_nb.cells import cells, key
from bpc_nb.core import Coreset
from bpc_nb.evaluate import PROTOCOLS
from bpc_nb.lines import done, line_files, lines
from conftest import NET

ROOT = Path(__file__).resolve().parents[1]
CELL = f'net = "{NET}"\nsteps = 10\nevery = 5\nselect_runs = 1\nruns = 1\nprotocol = "quick"\nexperts = {{n = 1, epochs = 12, batch = 256}}\n'


SHORT = dict(epochs=6, lr=.02)


@pytest.fixture
def file(tmp_path, monkeypatch):
    "Writes a grid file; students are short"
    monkeypatch.setitem(PROTOCOLS, 'quick', SHORT)
    def write(*tables, name='g.toml'):
        (tmp_path/name).write_text(''.join(f'[[cells]]\n{t}\n' for t in tables))
        return tmp_path/name
    return write


# --- once each -------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize('name', ['digits', 'mnist', 'cifar10'])
def test_grids_of_the_book_are_done(name, tmp_path, monkeypatch):
    "Names of cells do not change: running what has been run does nothing"
    monkeypatch.setattr(grid, 'run_cell', lambda *a: pytest.fail('a cell that has a line was run'))
    before = (ROOT/'results'/'papers'/f'{name}.jsonl').read_bytes()
    rows = grid.grid(ROOT/'results'/'papers'/f'{name}.toml', ROOT/'results', runs=tmp_path, device='cpu', progress=False)
    assert {r['key'] for r in rows} == {key(c) for c in cells(ROOT/'results'/'papers'/f'{name}.toml')}
    assert (ROOT/'results'/'papers'/f'{name}.jsonl').read_bytes() == before


def test_a_finished_grid_reads_its_lines_once(monkeypatch, tmp_path):
    "However many cells it has: the lines of all studies take half a second to read"
    read, real = [], grid.done
    monkeypatch.setattr(grid, 'done', lambda results: read.append(results) or real(results))
    path = ROOT/'results'/'papers'/'digits.toml'
    assert len(cells(path)) > 60 and grid.waiting(path, ROOT/'results') == (0, 0) and len(read) == 1
    grid.grid(path, ROOT/'results', runs=tmp_path, device='cpu', progress=False)
    assert len(read) == 3


def test_a_key_names_one_line():
    "Lines of a grid may stand in two grids; what evaluates a coreset once more says `of`"
    where = {}
    for p in line_files(ROOT/'results'):
        for r in lines(p):
            if 'key' in r: where.setdefault(r['key'], []).append((p.stem, 'config' in r))
    assert {k: v for k, v in where.items() if len(v) > 1 and not all(c for _, c in v)} == {}


@pytest.mark.parametrize('path', [p for p in sorted((ROOT/'results').rglob('*.toml')) if '[[cells]]' in p.read_text()], ids=lambda p: f'{p.parent.name}-{p.stem}')
def test_cells_of_the_book_are_different_and_configured(path):
    of = cells(path)
    assert len({key(c) for c in of}) == len(of) and all(c['config'] for c in of)
    if path.stem == 'queue': assert all(c['gpu'] for c in of)


def test_two_processes_on_one_grid(home, file, tmp_path):
    file('method = "positive-only"\nseed = [0, 1, 2, 3]\n' + CELL)
    two = f"""
import os, sys
import torch
from bpc_nb.cli import PROTOCOLS, load, main
torch.set_num_threads(1)
load('digits')
PROTOCOLS['quick'] = {SHORT}
for i in range(2): # each a process of its own, with everything imported
    if not os.fork():
        os.dup2(os.open(f'said{{i}}', os.O_CREAT|os.O_WRONLY), 1)
        code = main(['grid', 'g.toml', '--device', 'cpu'])
        sys.stdout.flush(); os._exit(code)
sys.exit(max(os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(2)))
"""
    p = subprocess.run([sys.executable, '-c', two], cwd=tmp_path, env=os.environ | dict(PYTHONPATH=str(ROOT)), capture_output=True, text=True)
    assert p.returncode == 0, p.stderr
    said = ''.join((tmp_path/f'said{i}').read_text() for i in range(2))
    assert sorted(json.loads(l)['seed'] for l in (tmp_path/'results'/'g.jsonl').read_text().splitlines()) == [0, 1, 2, 3]
    ran = re.findall(r'^\d/4 .* seed (\d):', said, re.M)
    assert sorted(ran) == ['0', '1', '2', '3'] # no cell by both
    assert len(list((tmp_path/'results'/'coresets').iterdir())) == 4 and not list((tmp_path/'results').glob('.*.lock'))


def test_a_dead_process_holds_nothing(tmp_path):
    r, w = os.pipe()
    if not (pid := os.fork()):
        with grid.held(tmp_path/'.x.lock'): os.write(w, b'!'); time.sleep(60)
        os._exit(0)
    os.read(r, 1)
    with grid.held(tmp_path/'.x.lock') as mine: assert not mine
    os.kill(pid, signal.SIGKILL); os.waitpid(pid, 0)
    assert (tmp_path/'.x.lock').exists()
    with grid.held(tmp_path/'.x.lock') as mine: assert mine


# --- the command -----------------------------------------------------------------------------------------------------

def test_queue_and_cells_that_wait(bpc, file, tmp_path):
    (tmp_path/'results').mkdir()
    file('method = "positive-only"\n' + CELL, 'gpu = true\nseed = [0, 1]\n' + CELL, name='results/queue.toml')
    code, out, err = bpc('grid', '--queue', '--device', 'cpu', '--minutes', 0)
    assert (code, out, err) == (0, '0 lines; 2 cells for a machine with a GPU (--anywhere runs them here); 1 cell not finished: give the same command again\n', '')
    assert not (tmp_path/'runs').exists()
    code, out, err = bpc('grid', '--queue', '--device', 'cpu', '--minutes', 5)
    assert (code, err) == (0, '') and out.endswith('\n1 line in results/queue.jsonl; 2 cells for a machine with a GPU (--anywhere runs them here)\n')
    assert len((tmp_path/'results'/'queue.jsonl').read_text().splitlines()) == 1
    assert bpc('grid', '--queue', '--device', 'cpu', '--anywhere')[1].endswith('\n3 lines in results/queue.jsonl\n')


def test_stopped_and_gone_on(bpc, file, monkeypatch):
    "Time that is up at the second look: the next call begins there"
    looks = []
    def ring(state, row):
        looks.append(row['step'])
        if len(looks) == 2: raise grid.TimeUp
    distill = grid.distill
    monkeypatch.setattr(grid, 'distill', lambda *a, **kw: distill(*a, callback=ring, **kw))
    path = file('method = "positive-only"\n' + CELL.replace('steps = 10', 'steps = 20'))
    assert bpc('grid', path, '--device', 'cpu')[1] == '0 lines; 1 cell not finished: give the same command again\n'
    assert bpc('grid', path, '--device', 'cpu', '--json')[0] == 0 and looks == [5, 10, 15, 20]


def test_another_folder_of_results_measures_anew(bpc, file, tmp_path, monkeypatch):
    "and not what a run for the first folder has left; a second call for the same folder resumes what has no line yet"
    file('method = "positive-only"\n' + CELL)
    seen, distill = [], grid.distill
    def look(*a, out, resume, **kw):
        seen.append((out.relative_to('runs').parts, resume))
        return distill(*a, out=out, resume=resume, **kw)
    monkeypatch.setattr(grid, 'distill', look)
    folders = 'results', 'again', 'other/again'
    rows = {r: json.loads(bpc('grid', 'g.toml', '--results', r, '--json', '--device', 'cpu')[1])[0] for r in folders}
    key = rows['results']['key']
    assert seen[0] == ((key,), False) and [(len(at), at[1:], resume) for at, resume in seen[1:]] == [(2, (key,), False)]*2 and len({at for at, _ in seen}) == 3
    assert len({str(r['accuracy_runs']) for r in rows.values()}) == 1
    at = seen[1][0]
    Path('again/g.jsonl').unlink() # a finished run whose line is gone is measured anew, by either name of the folder
    assert bpc('grid', 'g.toml', '--results', tmp_path/'again', '--device', 'cpu')[0] == 0 and seen[3] == (at, False)
    Path('again/g.jsonl').unlink(); Path('runs', *at, 'settled').unlink() # stopped before its line was there: it goes on
    assert bpc('grid', 'g.toml', '--results', tmp_path/'again', '--device', 'cpu')[0] == 0 and seen[4] == (at, True)


def test_bad_files(refused, file):
    good = 'method = "cd"\n' + CELL
    refused('grid', file(good, 'sed = 3'), parts=('line 12', "unknown 'sed'", "did you mean 'seed'?"))
    refused('grid', file(good, 'net = "convnett"'), parts=('line 12', "did you mean 'convnet'?"))
    refused('grid', file(good, 'seed = 1\nipc = [1, 0]'), parts=('line 13', 'ipc', 'found 0'))
    refused('grid', 'none.toml', parts='there is no grid file')
    refused('grid', parts='name a grid file')


def test_a_line_that_was_cut_off_runs_again(bpc, file, tmp_path):
    path = file('method = "positive-only"\nseed = [0, 1]\n' + CELL)
    first = bpc('grid', path, '--json', '--device', 'cpu')[1]
    lines = tmp_path/'results'/'g.jsonl'
    lines.write_text(lines.read_text()[:-30])
    code, out, err = bpc('grid', path, '--json', '--device', 'cpu')
    assert code == 0 and err == 'bpc: results/g.jsonl, line 2 was cut off or is no line of results; it is skipped, and its cell runs again\n'
    scores = lambda out: [(r['key'], r['accuracy_runs']) for r in json.loads(out)]
    assert scores(out) == scores(first) and len(lines.read_text().splitlines()) == 2
    assert bpc('grid', path, '--json', '--device', 'cpu') == (0, out, '')


def test_transfer_and_a_coreset_that_was_changed(bpc, refused, file, tmp_path):
    path = file('method = "positive-only"\nnets = ["mlp:width=8"]\n' + CELL)
    row, = json.loads(bpc('grid', path, '--json', '--device', 'cpu')[1])
    line, = map(json.loads, (tmp_path/'results'/'transfer.jsonl').read_text().splitlines())
    at = tmp_path/'results'/'coresets'/f"{row['key']}.safetensors"
    assert (line['coreset'], line['net'], line['made_with']) == (row['coreset'], 'mlp:width=8', NET) and 'accuracy_mean_random' in line
    words = 'transfer', at, '--nets', 'mlp:width=8', '--protocol', 'quick', '--runs', 1, '--json'
    assert json.loads(bpc(*words)[1]) == [line] # has its line already
    S = Coreset.load(at)
    S._replace(x=-S.x).save(at)
    refused('grid', path, '--device', 'cpu', parts=('is not the file that its line', row['key']))
    refused('transfer', at, '--nets', 'mlq', parts="did you mean 'mlp'?")
    small = file('nets = ["resnet18"]\n' + CELL, name='small.toml')
    refused('grid', small, '--device', 'cpu', parts='resnet18 with norm=instance needs images of at least 9x9 pixels, not 8x8')
    assert not (tmp_path/'results'/'small.jsonl').exists()


def test_students_of_the_whole_data_set(bpc, refused, tmp_path):
    words = 'whole', 'digits', '--net', 'mlp:width=64', '--protocol', 'quick', '--epochs', 60, '--runs', 2, '--device', 'cpu'
    code, out, err = bpc(*words, '--json')
    line = json.loads(out)
    assert code == 0 and line['accuracy_mean'] > .8 and len(line['accuracy_runs']) == 2 and 'config' not in line
    said = bpc(*words)[1]
    assert said.endswith(f"2 students of {line['n_train']} images of digits, mlp:width=64, protocol quick (60 epochs)\n")
    assert len((tmp_path/'results'/'whole.jsonl').read_text().splitlines()) == 1 # the second call trained nobody
    refused('whole', 'digits', '--epochs', 0, parts='epochs: expected a whole number of at least 1')
    refused('whole', 'digits', '--protocol', 'quik', parts="did you mean 'quick'?")
    assert not [*(tmp_path/'results').glob('.*.lock')]


# --- what is made from lines -----------------------------------------------------------------------------------------

@pytest.mark.parametrize('at', zoo.catalogue(), ids=lambda at: f'{at[0]}-{at[1]}')
def test_cards_are_those_of_their_lines(at):
    card, have = zoo.card(*at), done(ROOT/'results')
    line = have[card['made']['line']]
    assert {k: line[k] for k in zoo.FIGURES} == card['figures'] and line['held_out'] == card['made']['held_out']
    S = zoo.load_coreset(*at)
    assert S.meta['held_out'] == line['held_out'] and list(S.x.shape) == card['images'] and len(S.x) == len(S.classes)*at[1] and str(S.x.dtype) == 'torch.float32'


def test_the_zoo_holds_what_its_rule_chooses():
    held = {at: c['made']['line'] for at, c in zoo.catalogue().items()}
    assert held == {at: line['key'] for at, (line, _) in zoo.best(ROOT/'results').items()}, "results/ has better coresets than the package: run `bpc zoo --update`"


def test_zoo_and_tables(bpc, refused):
    out = bpc('zoo')[1]
    for name, ipc in zoo.catalogue(): assert re.search(rf'^{name} +{ipc} ', out, re.M)
    assert "coreset = load_coreset('digits', ipc=1)" in bpc('zoo', 'digits')[1]
    refused('zoo', 'digitz', parts="did you mean 'digits'?")
    found = json.loads(bpc('tables', '--json')[1])
    assert all(len({len(r) for r in rows}) == 1 for rows in found.values()) and len(found) == 12
    refused('tables', '--results', 'none', parts='there is no none/targets')


def test_another_kind_of_coreset_has_a_row_of_its_own_that_says_so():
    "However well it does, and whether the cell or its recipe asked for it"
    from bpc_nb import tables
    def line(held, typed={}, method='cd', **config): return dict(data='toy', ipc=1, protocol='dc', method=method, seed=0, held_out=held, config=dict(L=5) | config) | typed
    plain, four, eight = line(.5), line(.9, decode='factor2'), line(.8, pixels='8bit', decode='identity')
    named = {tables.row_name(g['CD'][0]): [r['held_out'] for r in g['CD']] for g in tables.grouped([four, plain, eight])}
    assert named == {'toy': [.5], 'toy, decode=factor2': [.9], 'toy, pixels=8bit': [.8]}
    dm = dict(method='dm', decode='factor2', order='least')
    assert tables.variant(line(.9, **dm)) == 'dm, decode=factor2'
    assert tables.variant(line(.9, dict(decode='factor2', order='least'), **dm)) == 'dm, order=least, decode=factor2'

def test_a_script_ends_in_a_sentence(tmp_path):
    "It had nothing to do, or it was stopped; one that has written a line, or failed, says no more"
    (tmp_path/'study.jsonl').write_text('{}\n')
    (tmp_path/'study.py').write_text("""
import time
from bpc_nb.lines import called_with
for word in called_with('What it measures.', ('add', 'fail', 'wait')):
    if word=='add': open('study.jsonl', 'a').write('{}\\n')
    if word=='fail': 1/0
    if word=='wait': print('now', flush=True); time.sleep(60)
""")
    def start(*words): return subprocess.Popen([sys.executable, 'study.py', *words], cwd=tmp_path, env=os.environ | dict(PYTHONPATH=str(ROOT)),
                                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert start().communicate(timeout=60) == ('study.py: nothing to do: what was asked is among the lines in study.jsonl (1)\n', '')
    assert start('add').communicate(timeout=60) == ('', '')
    out, err = start('fail').communicate(timeout=60)
    assert out == '' and err.endswith('ZeroDivisionError: division by zero\n')
    p = start('wait')
    p.stdout.readline(); p.send_signal(signal.SIGTERM)
    assert p.communicate(timeout=60) == ('', 'study.py: stopped; the lines that it has written stay, and the next call goes on\n')


def test_every_script_of_a_study_says_what_it_does():
    "`--help` is the same everywhere, and is asked before anything runs"
    scripts = sorted((ROOT/'results').glob('*/*.py'))
    assert len(scripts) > 20
    for p in scripts: assert re.search(r'called_with\(__doc__|description=__doc__', p.read_text()), f'{p.name} does not know --help'
    out = subprocess.run([sys.executable, scripts[-1], '--help'], capture_output=True, text=True)
    assert out.returncode==0 and out.stdout.strip()==ast.get_docstring(ast.parse(scripts[-1].read_text()), clean=False).strip()
