"""A search for a recipe: what it may look at, going on, and what it says."""
import json
import tomllib

import pytest

from bpc_nb import search
from bpc_nb.lines import done
from bpc_nb.evaluate import PROTOCOLS
from conftest import NET

SPACE = f"""[[cells]]
alpha = [0.2, 1e6]
steps = [5, 10]
every = 5
L = 2
T = 1
k_max = 2
net = "{NET}"
experts = {{n = 2, epochs = 3, batch = 256}}
select_runs = 1
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    "Writes a search file; students are short"
    monkeypatch.setitem(PROTOCOLS, 'quick', dict(epochs=6, lr=.02))
    def write(text):
        (tmp_path/'s.toml').write_text(text)
        return tmp_path/'s.toml'
    return write


def trace(tmp_path): return [json.loads(l) for l in (tmp_path/'results'/'search.jsonl').read_text().splitlines()]


def test_from_a_file_to_a_recipe_without_the_test_set(bpc, file, tmp_path, monkeypatch):
    ready = search.ready_data
    monkeypatch.setattr(search, 'ready_data', lambda *a: ready(*a)._replace(test=None))
    path = file(SPACE)
    code, out, err = bpc('search', path, '--device', 'cpu')
    assert code == 0 and [r['steps'] for r in trace(tmp_path)] == [5, 5, 10]
    assert 'rung 1/2 (5 steps), 2/2: ' in out and 'alpha=1000000.0' in out and 'validation accuracy' in out
    best, = tomllib.loads(out[out.index('[[cells]]'):])['cells']
    assert best['alpha'] == .2 and best['steps'] == 10
    before = trace(tmp_path)
    code, out, err = bpc('search', path, '--device', 'cpu', '--json')
    found = json.loads(out)
    assert found['finished'] and found['best'] == best and trace(tmp_path) == before
    assert {r['key'] for r in before} == done(tmp_path/'results').keys() and not list((tmp_path/'results').glob('.*.lock'))


def test_no_time(bpc, file, tmp_path):
    assert bpc('search', file(SPACE), '--device', 'cpu', '--minutes', 0)[1] == 'not finished: give the same command again\n'
    for odd in 'nan', '-1', '1e15':
        assert bpc('search', file(SPACE), f'--minutes={odd}')[2].startswith(f'bpc: minutes: found {float(odd):g}; expected a number')


def test_stopped_in_the_middle(bpc, file, tmp_path, monkeypatch):
    "Ctrl-C in the second run: its line is missing, the first one's is there"
    distill, calls = search.distill, []
    def stop(*a, **kw):
        calls.append(a)
        if len(calls) == 2: raise KeyboardInterrupt
        return distill(*a, **kw)
    monkeypatch.setattr(search, 'distill', stop)
    code, out, err = bpc('search', file(SPACE), '--device', 'cpu')
    assert code == 130 and 'give the same command again' in err and len(trace(tmp_path)) == 1
    assert bpc('search', file(SPACE), '--device', 'cpu')[0] == 0 and len(trace(tmp_path)) == 3 and len(calls) == 4


def test_another_folder_of_results_measures_anew(bpc, file, tmp_path, monkeypatch):
    "Its runs lie elsewhere; and a line that is gone is measured anew, a run that has none yet goes on"
    distill, seen = search.distill, []
    def look(*a, out, resume, **kw):
        seen.append((out.relative_to('runs').parts[:-1], resume))
        return distill(*a, out=out, resume=resume, **kw)
    monkeypatch.setattr(search, 'distill', look)
    path = file(SPACE.replace('[0.2, 1e6]', '0.2'))
    for r in 'results', 'again': assert bpc('search', path, '--results', r, '--device', 'cpu')[0] == 0
    at = seen[2][0]
    assert seen == [(('search',), False), (('search',), True), (at, False), (at, True)] and at[0].startswith('again-')
    (tmp_path/'again'/'search.jsonl').unlink() # the first rung begins again, as the run was further, and the second goes on from it
    assert bpc('search', path, '--results', 'again', '--device', 'cpu')[0] == 0 and seen[4:] == [(at, False), (at, True)]
    lines = (tmp_path/'again'/'search.jsonl').read_text().splitlines()
    (tmp_path/'again'/'search.jsonl').write_text(lines[0] + '\n')
    assert bpc('search', path, '--results', 'again', '--device', 'cpu')[0] == 0 and seen[6:] == [(at, False)]


def test_bad_files(refused, file, tmp_path):
    refused('search', 'none.toml', parts='there is no grid file')
    refused('search', file(SPACE + 'Tt = [1]'), parts=('line 11', "unknown 'Tt'"))
    refused('search', file(SPACE + 'seed = [0, -1]'), parts=('line 11', 'seed', '-1'))
    refused('search', file(SPACE + 'ipc = [1, 10]'), parts=('ipc: candidates are compared under the same ipc', '1 and 10'))
    refused('search', file(SPACE), '--candidates', 0, parts='candidates: expected a whole number of at least 1, found 0')
    refused('search', file(SPACE.replace('T = 1', 'T = 9')), '--device', 'cpu', '--json', parts=('no candidate got through', 'T: found 9'))
    assert all(r['broke'] for r in trace(tmp_path))


def test_a_line_of_a_coreset_with_a_schedule_keeps_its_cell():
    "Its students took the coreset's own steps, which no cell asks for"
    from bpc_nb.search import as_cell
    r = dict(method='dd', data='digits', ipc=1, protocol='own steps', config=dict(steps=3))
    assert as_cell(r)==as_cell(r | dict(protocol='dc'))!=as_cell(r | dict(protocol='quick'))
