"""Exported cells are short, lines of code fit, a public name means one thing, and public functions say their types and what they are for."""
import ast, json, re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LINES, COLUMNS = 30, 140
CONVENTIONS = {'RECIPES', 'WHEN', 'METHODS', 'EVALUATORS'} # what `registry` and `recipe` collect from modules

directive = lambda line: re.match(r'#\s*\|', line)


def offences(cells):
    "What is too long in the code cells of a notebook"
    for i, c in enumerate(cells):
        if c['cell_type'] != 'code': continue
        lines = ''.join(c['source']).split('\n')
        own = [l for l in lines if l.strip() and not directive(l)]
        if any(re.match(r'#\s*\|\s*export', l) for l in lines) and len(own) > LINES: yield f'cell {i} exports {len(own)} lines, from {own[0]!r}'
        yield from (f'cell {i} has a line of {len(l)} columns, {l[:60]!r}' for l in lines if len(l) > COLUMNS)


def defined(source):
    "Public names that a module defines itself, rather than imports"
    body = ast.parse(source).body
    found = {n.name for n in body if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
    assigned = [(t, n.value) for n in body if isinstance(n, (ast.Assign, ast.AnnAssign)) for t in getattr(n, 'targets', None) or [n.target]]
    found |= {x.id for t, _ in assigned for x in ast.walk(t) if isinstance(x, ast.Name)}
    public = next((ast.literal_eval(v) for t, v in assigned if getattr(t, 'id', '') == '__all__'), [])
    return found & set(public)


def shared(sources):
    "Names that several modules define: name -> modules"
    where = {}
    for name, source in sources.items():
        for d in defined(source) - CONVENTIONS: where.setdefault(d, []).append(name)
    return {d: names for d, names in where.items() if len(names) > 1}


BOOK = [pytest.param(p, id=p.stem) for p in sorted((ROOT/'nbs').glob('*.ipynb'))]

@pytest.mark.parametrize('path', BOOK)
def test_cells_are_short(path): assert [*offences(json.loads(path.read_text(encoding='utf-8'))['cells'])] == []


def test_a_public_name_means_one_thing():
    assert shared({str(p.relative_to(ROOT)): p.read_text(encoding='utf-8') for p in sorted((ROOT/'bpc_nb').rglob('*.py'))}) == {}


def untyped(source):
    "Public functions of a module, and special methods of its public classes, that lack the type of a parameter or of what they return"
    special = lambda name, of: re.fullmatch('__.+__', name) and of and not of.startswith('_')
    body = ast.parse(source).body
    made = [(n, '') for n in body if isinstance(n, ast.FunctionDef)]
    made += [(m, n.name + '.') for n in body if isinstance(n, ast.ClassDef) for m in n.body if isinstance(m, ast.FunctionDef)]
    for f, of in made:
        if f.name.startswith('_') and not special(f.name, of): continue
        a = f.args
        bare = [p.arg for p in a.posonlyargs + a.args + a.kwonlyargs if not (p.annotation or p.arg in ('self', 'cls'))]
        bare += [p.arg for p in (a.vararg, a.kwarg) if p and p.arg != '_' and not p.annotation]
        if bare or f.returns is None: yield f'{of}{f.name}', bare


def test_public_functions_are_typed():
    found = {str(p.relative_to(ROOT)): [*untyped(p.read_text(encoding='utf-8'))] for p in sorted((ROOT/'bpc_nb').rglob('*.py'))}
    assert {p: f for p, f in found.items() if f} == {}


def test_what_has_no_type_is_seen():
    assert [*untyped('def f(a:int, b:int=1, *, c:str=None, **_) -> int: pass\nclass A:\n    def _g(self, x): pass\n    def __len__(self) -> int: pass')] == []
    assert [*untyped('def f(a, b=None, *c) -> int: pass\ndef g(a:int, b=1): pass\ndef h(a:int): pass')] == [('f', ['a', 'b', 'c']), ('g', ['b']), ('h', [])]
    assert [*untyped('class A:\n    def g(self, *, x=None, y=(), **o) -> None: pass')] == [('A.g', ['x', 'y', 'o'])]
    assert [*untyped('class A:\n    def __init__(self, x): pass\n    def __len__(self): pass')] == [('A.__init__', ['x']), ('A.__len__', [])]
    assert [*untyped('class _A:\n    def __init__(self, x): pass\ndef __getattr__(name): pass')] == []


def undescribed(source):
    "Public functions and classes at the top of a module that have no docstring"
    made = [n for n in ast.parse(source).body if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))]
    return [n.name for n in made if not n.name.startswith('_') and not ast.get_docstring(n)]


def test_public_functions_and_classes_have_docstrings():
    found = {str(p.relative_to(ROOT)): undescribed(p.read_text(encoding='utf-8')) for p in sorted((ROOT/'bpc_nb').rglob('*.py'))}
    assert {p: f for p, f in found.items() if f} == {}


def test_what_has_no_docstring_is_seen():
    assert undescribed('def f(): "what"\nclass A(NamedTuple):\n    "what"\n    x: int\ndef _g(): pass\nh = lambda: 1') == []
    assert undescribed('def f(): return 1\nclass A(NamedTuple):\n    x: int\n@cache\ndef g():\n    def h(): "what"\n    return h') == ['f', 'A', 'g']


def cell(*lines): return dict(cell_type='code', source='\n'.join(lines))

def test_what_is_too_long_is_seen():
    long = ['x = 1', '', *['y = 2']*29]
    assert [*offences([cell('#| export', *long), cell(*long, 'z = 3'), dict(cell_type='markdown', source='w'*200), cell('v'*140)])] == []
    assert 'cell 0 exports 31 lines' in [*offences([cell('#| export', *long, 'z = 3')])][0]
    assert 'cell 1 has a line of 141 columns' in [*offences([cell(), cell('#| hide', 'v'*141)])][0]


def test_a_second_meaning_is_seen():
    one, other = "__all__ = ['f', 'METHODS']\ndef f(): pass\nMETHODS = {}", "__all__ = ['g', 'f', 'METHODS']\ng, f = 1, 2\nMETHODS: dict = {}"
    assert shared(dict(one=one, other=other)) == dict(f=['one', 'other'])
    assert shared(dict(one=one, all="__all__ = ['f']\nfrom one import f", private='def f(): pass')) == {}


def test_every_file_of_results_is_explained():
    "In results/README.md, which says what reads it; scripts and grids go by the name of their lines"
    said = (ROOT/'results'/'README.md').read_text(encoding='utf-8')
    named = lambda name: f'`{name}`' in said
    assert [p.stem for p in sorted((ROOT/'results').rglob('*.jsonl')) if not named(p.stem)] == []
    own = lambda p: named(p.stem) or p.stem.startswith('rank') or p.parent.name=='searches' or named(p.name)
    assert [p.name for end in ('toml', 'py') for p in sorted((ROOT/'results').rglob(f'*.{end}')) if not own(p)] == []
    assert [p.name for p in sorted((ROOT/'results').iterdir()) if p.is_dir() and p.name != '__pycache__' and f'`{p.name}/`' not in said] == []
    links = re.findall(r'\]\(\.\./(nbs/\w+\.ipynb)\)', said)
    assert len(links) > 20 and [l for l in links if not (ROOT/l).exists()] == []
