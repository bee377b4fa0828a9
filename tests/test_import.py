"""Every module imports on its own, without notebook packages, and only from chapters before it."""
import ast, json, os, re, subprocess, sys
from pathlib import Path

import pytest

import bpc_nb

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = Path(bpc_nb.__file__).resolve().parent # of the checkout, or of an installed wheel
name_of = lambda path: '.'.join(path.relative_to(PACKAGE.parent).with_suffix('').parts).removesuffix('.__init__')
MODULES = {name_of(p): p for p in sorted(PACKAGE.rglob('*.py')) if p.name != '_modidx.py'}

# torch is imported once; each module then in a fresh fork, where it is the first of the package
FORKS = """
import json, os, sys, traceback
from importlib import import_module
for gone in 'ipywidgets','nbdev','pytest': sys.modules[gone] = None
import torch, torchvision, fastcore.all, safetensors.torch, tqdm.auto, PIL.Image # what others wrote
for name in sys.argv[1:]:
    r,w = os.pipe()
    if not os.fork():
        try:
            import_module(name)
            said = 'imports matplotlib, though nothing is drawn' if 'matplotlib' in sys.modules else ''
        except BaseException: said = traceback.format_exc()
        with os.fdopen(w, 'w') as f: f.write(said)
        os._exit(0)
    os.close(w)
    with os.fdopen(r) as f: print(json.dumps([name, f.read()]), flush=True)
    os.wait()
"""


@pytest.fixture(scope='module')
def complaints(tmp_path_factory):
    env = os.environ | dict(PYTHONPATH=str(PACKAGE.parent))
    out = subprocess.run([sys.executable, '-c', FORKS, *MODULES], cwd=tmp_path_factory.mktemp('elsewhere'), env=env, capture_output=True, text=True)
    assert out.returncode == 0, out.stderr
    return dict(map(json.loads, out.stdout.splitlines()))


@pytest.mark.parametrize('name', MODULES)
def test_imports_alone(name, complaints): assert complaints[name] == '', complaints[name]


def chapters(folder):
    "Module name -> number of its chapter, from the notebooks' file names and `default_exp`"
    exp = {p: re.search(r'^#\| *default_exp +(\S+)', '\n'.join(''.join(c['source']) for c in json.loads(p.read_text(encoding='utf-8'))['cells']), re.M)
           for p in sorted(folder.glob('[0-9]*.ipynb'))}
    return {f'bpc_nb.{m[1]}': int(p.name.split('_')[0]) for p, m in exp.items() if m}


def imported(source, name, package=False):
    "Modules of the package that `source`, the code of module `name`, imports anywhere, also inside functions"
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import): yield from (a.name for a in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = name.split('.') + ['']*package
            base = '.'.join(parts[:len(parts)-node.level] + [node.module]*bool(node.module)) if node.level else node.module
            yield base
            yield from (f'{base}.{a.name}' for a in node.names)


def forward(source, name, order):
    "What `source` imports from its own or later chapters"
    return sorted({m for m in imported(source, name) if m in order and order[m] >= order[name]})


ORDER = chapters(ROOT/'nbs')


@pytest.mark.parametrize('name', ORDER)
def test_imports_point_backwards(name): assert forward(MODULES[name].read_text(encoding='utf-8'), name, ORDER) == []


def test_every_module_has_a_chapter():
    assert set(ORDER) == {n for n, p in MODULES.items() if p.name != '__init__.py'}


@pytest.mark.parametrize('line', ['from bpc_nb.late import f', 'from .late import f', 'from . import late', 'import bpc_nb.late', 'def g():\n    from bpc_nb.late import f'])
def test_a_forward_import_is_seen(line):
    order = {'bpc_nb.core': 0, 'bpc_nb.mid': 1, 'bpc_nb.late': 2, 'bpc_nb.deep.mid': 1}
    assert forward('import os\nfrom .core import x\n'+line, 'bpc_nb.mid', order) == ['bpc_nb.late']
    assert forward('from ..core import x\nfrom ..late import f', 'bpc_nb.deep.mid', order) == ['bpc_nb.late']
    assert forward('from .core import x\nfrom . import __version__', 'bpc_nb.mid', order) == []
