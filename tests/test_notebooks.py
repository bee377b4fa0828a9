"""`.ci/notebooks`: a notebook that fails, or shows anything but what it is saved with, is refused by its cell."""
import sys
from contextlib import nullcontext
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

RUNNER = Path(__file__).resolve().parents[1]/'.ci'/'notebooks'


def printed(source, text): return new_code_cell(source, outputs=[new_output('stream', name='stdout', text=text)] if text else [])
def table(source, text): return new_code_cell(source, outputs=[new_output('execute_result', data={'text/markdown': text, 'text/plain': '<object>'})])

MARKDOWN = 'from IPython.display import Markdown\nMarkdown("| cd | 91.2 |")'
CASES = { # name -> cell, what is said about it; '': nothing
    'fresh':   (printed('print("cd 91.2 % in 3 s: [ 0.5 -2e-3 ]")', 'cd   90.8 % in 12.5 s: [-0.05  1.]\n'), ''),
    'table':   (table(MARKDOWN, '| cd | 91.2 |'), ''),
    'picture': (new_code_cell('from IPython.display import SVG\nSVG("<svg xmlns=\'http://www.w3.org/2000/svg\'/>")', outputs=[new_output('execute_result', data={'image/svg+xml': '<svg/>', 'text/plain': '<IPython.core.display.SVG object>'})]), ''),
    'varies':  (printed('#| varies: words\nprint("two cores")', 'four cores\n'), ''),
    'trained': (table('#| varies: numbers\n' + MARKDOWN, '| cd |  88 |'), ''),
    'renamed': (table('#| varies: numbers\n' + MARKDOWN, '| fkl | 91.2 |'), "saved '| fkl | 0 |', now '| cd | 0 |'"),
    'skipped': (printed('#| slow\nprint("now")', 'then\n'), ''),
    'word':    (printed('print("cd, fkl, rkl")', 'cd, fkl\n'), """cell 0 ('print("cd, fkl, rkl")'): saved 'cd, fkl', now 'cd, fkl, rkl'"""),
    'part':    (printed('print("float16")', 'float32\n'), "saved 'float32', now 'float16'"),
    'number':  (table(MARKDOWN, '| cd | 91.3 |'), "saved '| cd | 91.3 |', now '| cd | 91.2 |'"),
    'missing': (printed('x = 1\nx', ''), "cell 0 ('x = 1'): saved 0 results, now 1"),
    'silent':  (printed('#| hide\nx = 1', 'one\n'), "cell 0 ('x = 1'): saved 'one', now ''"),
    'failing': (printed('{}["key"]', ''), """cell 0 ('{}["key"]'): KeyError: 'key'""")}


@pytest.fixture(scope='module')
def runner():
    "The script as a module that runs one notebook after the other in this process"
    loader = SourceFileLoader('ci_notebooks', str(RUNNER))
    module = module_from_spec(spec_from_loader('ci_notebooks', loader)); loader.exec_module(module)
    module.processes = lambda: nullcontext(SimpleNamespace(map=map))
    return module


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path); monkeypatch.setenv('IN_TEST', '1'); monkeypatch.setattr(sys, 'path', [*sys.path]) # all of which running changes
    for name, (cell, _) in CASES.items(): nbformat.write(new_notebook(cells=[cell]), tmp_path/f'{name}.ipynb')
    return tmp_path


def test_a_notebook_gives_what_it_is_saved_with(runner, folder, capsys):
    with pytest.raises(SystemExit) as e: runner.main([folder/f'{n}.ipynb' for n in CASES], save=False)
    bad, (out, err) = [n for n, (_, said) in CASES.items() if said], capsys.readouterr()
    assert e.value.code.partition('Tests Failed On The Following Notebooks:\n')[2].split() == [f'{n}.ipynb' for n in bad] # what .ci/run counts
    assert sorted(l.partition(':')[0] for l in out.splitlines() if l.endswith(' secs')) == sorted(f'{n}.ipynb' for n in CASES)
    complaints = [l for l in err.splitlines() if l.startswith('nbs/')]
    assert len(complaints) == len(bad), err
    for name, line in zip(bad, complaints): assert line.startswith(f'nbs/{name}.ipynb, ') and CASES[name][1] in line, line


def test_a_failure_shows_where(runner, folder, capsys):
    with pytest.raises(SystemExit): runner.main([folder/'failing.ipynb'], save=True)
    assert 'Traceback' in (err := capsys.readouterr().err) and err.index('{}["key"]') < err.index('nbs/failing')


def test_saving_makes_it_fresh(runner, folder):
    stale = [folder/f'{n}.ipynb' for n in ('word', 'number', 'missing', 'silent')]
    kept = (folder/'fresh.ipynb').read_bytes()
    runner.main([*stale, folder/'fresh.ipynb'], save=True)
    runner.main(stale, save=False) # nothing to complain of
    assert 'rkl' in nbformat.read(stale[0], 4).cells[0].outputs[0].text and (folder/'fresh.ipynb').read_bytes() == kept
