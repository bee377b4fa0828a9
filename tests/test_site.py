"""The site: what docs/build.py makes of notebooks, and the built pages as a reader meets them, in a browser."""
import importlib.util, os, re, shutil, subprocess, sys
from pathlib import Path

import nbformat
import pytest
import yaml
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

ROOT = Path(__file__).resolve().parents[1]
HTML = ROOT/'docs'/'_html'
spec = importlib.util.spec_from_file_location('site_build', ROOT/'docs'/'build.py')
build = importlib.util.module_from_spec(spec); spec.loader.exec_module(build)


# --- from notebooks to pages ---------------------------------------------------------------------------------------------------
EARLY = [new_markdown_cell('# Early\n> A claim'), new_code_cell('#| default_exp early'),
         new_code_cell('#| export\ndef sample(x, # a number\n           n:int|None=3, # how many\n          )->list: # of numbers\n    "Draw (Eq. 12)"\n    return [x]*n\n\nclass Sample: "One"'),
         new_markdown_cell('Draw by Eq. 12 with `sample` or `sample(x)`, not `x`:\n\n$$a = b \\tag{12}$$')]
LATE = [new_markdown_cell('# Late'), new_code_cell('from bpc_nb.early import sample as s'),
        new_markdown_cell("`s`, `sample`, `Sample`, `bpc_nb.early`, [`s`](00_early.ipynb#A-head) and $`s`$ of Eqs. 11 and 12; others write (Kim et al. 2022, Eq. 12) or Eq. 12'.\n\n    `s`")]


@pytest.fixture
def book(): return build.Book({'00_early': new_notebook(cells=EARLY), '41_late': new_notebook(cells=LATE)})


def test_names_and_equations_become_links(book):
    text = build.markdown(book, '41_late', LATE[2].source)
    to = '(#api-00_early-sample)'
    assert text.startswith(f'[`s`]{to}, `sample`, [`Sample`](#api-00_early-class-sample), [`bpc_nb.early`](00_early.ipynb), [`s`](00_early.ipynb#a-head) and $`s`$ of Eqs. 11 and [12](#eq-00_early-12)')
    assert "([Kim et al.](#source-kim2022divergence) 2022, Eq. 12) or Eq. 12'" in text and text.endswith('    `s`')


def test_equations_and_code_know_each_other(book):
    text = build.markdown(book, '00_early', EARLY[3].source)
    assert '(eq-00_early-12)=\n$$a = b' in text and 'Eq. 12 in code: [`sample`](#api-00_early-sample)' in text and '[`sample(x)`](#api-00_early-sample), not `x`' in text
    ref = build.reference(book, '00_early', EARLY[2])
    assert '**`sample`** Draw ([Eq. 12](#eq-00_early-12))' in ref
    assert '| `x` |  |  | a number |\n| `n` | `int \\| None` | `3` | how many |\n| *returns* | `list` |  | of numbers |' in ref


@pytest.fixture(scope='module')
def citations(): return build.lookup.Citations(build.lookup.bibliography())

def test_a_citation_leads_to_its_source(citations):
    linked = citations.linked
    assert linked('(Kim et al. 2022, IDC)') == '([Kim et al.](#source-kim2022idc) 2022, IDC)' and linked('Kim et al. (2022) judge') == '[Kim et al.](#source-kim2022divergence) (2022) judge'
    assert linked('Zhao and Bilen, *Dataset Condensation with Distribution Matching*, WACV 2023') .startswith('[Zhao and Bilen](#source-zhao2023distribution), *')
    assert linked('Zhao, Mopuri and Bilen (2021)') == '[Zhao, Mopuri and Bilen](#source-zhao2021condensation) (2021)' # not two of the three
    for text in 'Kim et al. decide', 'Kim et al. (1999)', 'Zhao and Bilen (*Another Title*, 2023)': assert linked(text) == text
    assert [k for _, k in citations.found('Kim et al. (1999)')] == [None]

def test_every_citation_has_a_source_and_every_source_is_cited(citations):
    texts = [(p.stem, c.source) for p in (ROOT/'nbs').glob('*.ipynb') for c in nbformat.read(p, 4).cells if c.cell_type == 'markdown']
    found = [(s, m[0], k) for s, text in texts for m, k in citations.found(text)]
    assert [f for f in found if not f[2]] == []
    assert {*citations.entries} == {k for *_, k in found}
    assert [(s, u) for s, text in texts for u in unknown(citations, text)] == []

NAMED = re.compile(r"(?<![\w-])([^\W\d_][\w’'-]*)( et al\.)?[,;]? ?\(?(?:\*[^*]+\*,? ?(?:[^\W\d_][\w&]*,? )?)?(?:\[|\b)((?:19|20)\d\d)\b") # an author, perhaps a title and a venue, a year
NO_AUTHOR = {'In', 'Since'} # before a year
def unknown(citations, text) -> list:
    "What reads like a citation, or links to arXiv, and is no source"
    known, eprints = [m.span() for m, _ in citations.found(text)], {e.fields.get('eprint') for e in citations.entries.values()}
    named = [m for m in NAMED.finditer(text) if m[1][0].isupper() and (m[2] or re.search('[a-zß-ÿ]', m[1])) and m[1] not in NO_AUTHOR]
    return [m[0] for m in named if not any(a < m.end() and m.start() < b for a, b in known)] + [n for n in re.findall(r'arxiv\.org/\w+/([\d.]+\d)', text) if n not in eprints]

def test_a_citation_without_a_source_is_noticed(citations):
    for text in ('As Nobody (2021) found', 'as in Nobody and Noone 2021', '(Nobody et al., 2021)', 'Nobody et al. ([2021](https://x.org))', 'Nobody, Noone and Áñez, *Some Title: a Part*, ICML 2021',
                 'Nobody (*Some Title*, 2021)', "O'Nobody 1931", '[refuted](https://arxiv.org/abs/2999.12345)'): assert len(unknown(citations, text)) == 1, text
    for text in 'Kim et al. (2022) judge', 'Zhao and Bilen, *Dataset Condensation with Distribution Matching*, WACV 2023', 'In 2022', '2022 images', 'of 2000 images', '[it](https://arxiv.org/abs/2303.11278)':
        assert unknown(citations, text) == [], text


# --- pages to look things up ---------------------------------------------------------------------------------------------------
def line(of, method='cd', evaluator='students', runs=(.5, .6), **more): # of a grid
    return dict(key=of, method=method, data='digits', ipc=1, config={}, net='mlp', evaluator=evaluator, protocol='quick', nll_mean=1.,
                accuracy_runs=[*runs], seconds=dict(distill=30.)) | more

def grouped(*lines): # as `measured` groups them
    return {(r['data'], r['ipc'], r['method'], r['net'], r['evaluator'], r['protocol'], 'families/x'):[r] for r in lines}


def test_the_reference_begins_with_what_most_work_needs(book):
    cells = [new_markdown_cell('# All'), new_code_cell('#| default_exp all'),
             new_code_cell("#| export\nfrom bpc_nb.early import Sample, sample\n\n_all_ = ['sample', 'Sample']")]
    text = build.listing(build.Book(book.nbs | {'97_all': new_notebook(cells=cells)}))
    first, rest = text.split('## Early')
    rows = '## What most work needs', '| [`sample`](#api-00_early-sample) | Draw (Eq. 12) |', '[`Sample`]'
    assert first.index(rows[0]) < first.index(rows[1]) < first.index(rows[2])
    assert '[`sample`]' in rest and '## What' not in build.listing(book)


def test_a_card_names_who_evaluated():
    cards = build.cards
    groups = grouped(line('a', 'kip', 'kernel'), line('b', 'kip', 'kernel', ipc=10), line('c', 'kip', 'ridge'),
                     line('d', 'dm'), line('e', 'dm', 'ridge'))
    rows = cards.usual_rows('kip', groups)
    assert [(r.ipc, r.by, r.accuracy) for r in rows] == [(1, 'kernel, quick', '55.0 ± 7.1'), (10, 'kernel, quick', '55.0 ± 7.1')]
    assert 'the evaluator `kernel`' in cards.figures('kip', rows, 'kernel')
    rows = cards.usual_rows('dm', groups)
    assert [r.by for r in rows] == ['quick'] and cards.figures('dm', rows, 'students').startswith('| data') # students first, without a word
    assert '| 30 s |' in cards.figures('dm', rows, 'students')


def test_a_card_of_today_s_recipe_has_the_figure_of_the_tables():
    "Where nothing differs from the recipe, a card and the tables show the same lines"
    from bpc_nb.core import registry
    from bpc_nb.tables import baselines, grouped as beside, measured, percent
    cards, lookup, results, told = build.cards, build.lookup, ROOT/'results', {}
    for data, ipc, name, _, ours, *_ in baselines(results)[1]: told.setdefault((data, ipc, name), set()).add(ours)
    for lines in (of[k] for of in beside(measured(results)) for k in ('CD', 'positive-only') if k in of):
        told.setdefault((lines[0]['data'], lines[0]['ipc'], lookup.named(lines[0])), set()).add(percent(lines))
    groups = lookup.measured(results)
    rows = [(n, r) for n in registry() if cards.evaluator_of(n, groups) == 'students' for r in cards.usual_rows(n, groups)]
    same = [r.accuracy in told[r.data, r.ipc, n] for n, r in rows if not r.differs and (r.data, r.ipc, n) in told]
    assert all(same) and len(same) > 40


def test_an_older_line_without_an_option_had_its_default():
    "A line that was written before an option existed is not today's recipe, where the recipe sets the option"
    old = dict(method='cd', data='mnist', ipc=1, config=dict(steps=800, lr=100., alpha=.06, T=2, k_max=2))
    assert 'width=0' in build.lookup.named(old) and 'pixels=free' in build.lookup.named(old)
    assert build.lookup.named(old | dict(config=old['config'] | dict(width=.3, pixels='8bit', scale='mean', average=.98, L=20,
                                                                     experts=dict(n=30, epochs=3, part=.1, batch=128)))) == 'cd'


def test_a_card_of_a_method_that_no_grid_has():
    "Its script's lines, or what is not known in words"
    cards, results = build.cards, ROOT/'results'
    from bpc_nb.core import registry
    for name, (script, _) in cards.SCRIPTED.items():
        rows = cards.scripted_rows(name, results)
        assert name in registry() and rows and f'python results/{script}.py' in cards.figures(name, rows, '')
        assert all(re.fullmatch(r'\d+\.\d( ± \d+\.\d)?', r.accuracy) for r in rows)
    assert cards.scripted_rows('cd', results) == [] and cards.costs('x', [], results) == 'Its cost was not measured.'


def test_a_method_that_makes_points_has_a_card(tmp_path):
    "What `bpc list` names, with its formula where it has one, a line for each regression, and a chart"
    from bpc_nb.lines import lines
    from bpc_nb.study import POINT_METHODS
    cards, stems = build.cards, ('510_weighted', '844_points', '846_alive')
    book, of = build.Book({s: build.read(s) for s in stems}), lines(ROOT/'results'/'posterior'/'points.jsonl')
    assert {*cards.POINTS} == {*POINT_METHODS}
    for name, p in cards.POINTS.items():
        text = build.points_card(book, name, p, of, tmp_path)
        assert f'<img src="gallery/points-{name}.png" width="1040"' in text and (tmp_path/'gallery'/f'points-{name}.png').stat().st_size > 10_000
        assert f'(points-{name})=' in text and ('$$' in text) == bool(p.begins) and p.when in text
        assert [l.split(' | ')[0] for l in text.splitlines() if l.startswith('|')][2:5] == ['| logistic', '| poisson', '| linear']
    page = cards.cards(['a'], ['b'])
    assert page.index('# Methods') < page.index('## Points of regressions') < page.index('\nb') and 'Points of' not in cards.cards(['a'])


def test_every_picture_that_a_chapter_was_saved_with_is_there(tmp_path):
    "One cell has it, the gallery a section for it, and no method's card is without a picture"
    pictures = build.pictures
    nbs = {s: build.read(s) for s in {p.stem for p in pictures.SAVED.values()}}
    for name, (stem, says, caption) in pictures.SAVED.items():
        assert sum(c.cell_type == 'code' and says in c.source for c in nbs[stem].cells) == 1, name
        text = pictures.saved(name, nbs, tmp_path)
        assert f'href="{stem}.html"' in text and ('<pre>' in text or (tmp_path/'gallery'/f'{name}.png').exists()), name
    assert {n for *_, names in pictures.SECTIONS.values() for n in names} == {*pictures.SAVED}
    sections = pictures.sections(nbs, tmp_path)
    assert [k for k, *_ in sections] == [*pictures.SECTIONS] and pictures.sections({}, tmp_path) == []
    text = build.lookup.gallery({}, tmp_path, tmp_path, sections)
    assert '[sentences](#gallery-texts)' in text and '(gallery-poison)=\n## Poisoned images' in text
    for name in build.cards.SCRIPTED: assert '<figure' in pictures.of_method(name, nbs, ROOT/'results', tmp_path), name
    assert pictures.of_method('cd', nbs, ROOT/'results', tmp_path) == ''


def test_a_variant_shows_the_equation_of_its_base():
    cards = build.cards
    from bpc_nb.core import registry
    assert {*cards.LIKE, *cards.BEGINS, *(b for b, _ in cards.LIKE.values()), *cards.SCRIPTED, *cards.EXAMPLE} <= {*registry()}
    of = {'dc': 'a = b', 'own': 'c'}
    assert cards.equation('own', lambda n: of.get(n, '')) == '$$\nc\n$$' and cards.equation('x', lambda n: '') == ''
    assert re.search(r'\(#method-dc\).*:\n\n\$\$\na = b\n', cards.equation('dsa', lambda n: of.get(n, '')))
    nb = new_notebook(cells=[new_markdown_cell('$$x = 1 \\tag{3}$$ and $$\\Delta_k = 2$$')])
    found = [cards.equation_of(n, nb, first) for n, first in (('sre2l', True), ('dwa', False), ('y', False))]
    assert found == ['x = 1', '\\Delta_k = 2', '']
    both = {n: cards.equation_of(n, build.read('420_cd'), n == 'cd') for n in ('cd', 'positive-only')}
    assert r'\theta^-' in both['cd'] and r'\theta^+' in both['positive-only'] and r'\theta^-' not in both['positive-only']


def test_the_page_of_all_results_says_where_other_lines_are(tmp_path):
    lookup = build.lookup
    assert 'Lines of scripts' not in lookup.all_results(grouped(line('a')))
    (tmp_path/'uses').mkdir(); (tmp_path/'uses'/'rank.jsonl').write_text('{"x": 1}\n{"x": 2}\n')
    (tmp_path/'grid.jsonl').write_text('{"key": "a", "config": {}}\n')
    (tmp_path/'README.md').write_text('| `rank`, `grid` | scripts | [ranking](../nbs/876_rank.ipynb), [audit](../nbs/878_audit.ipynb) |')
    of = lambda: lookup.of_scripts(grouped(line('a')), tmp_path, {'878_audit': 'no word of it'})
    at = [('ranking', '876_rank')]
    assert of() == [('uses/rank.jsonl', 'measured by: scripts', 2, at)]
    (tmp_path/'uses'/'rank.py').write_text('"""How well it\nranks. In short.\n\n    python rank.py\n"""')
    assert of() == [('uses/rank.py', 'How well it ranks. In short', 2, at)]
    row = '<td><code>uses/rank.py</code></td><td>How well it ranks. In short</td><td>2</td><td><a href="876_rank.html">ranking</a></td>'
    assert row in lookup.all_results(grouped(line('a')), of())
    scripts = lookup.of_scripts(lookup.measured(ROOT/'results'), ROOT/'results', {})
    assert {p.relative_to(ROOT/'results').as_posix() for p in (ROOT/'results').glob('*/*.py')} <= {s.name for s in scripts}
    assert all(s.what and s.at for s in scripts) and len({s.name for s in scripts}) == len(scripts)
    files = {p.stem for p in (ROOT/'results').glob('**/*.jsonl')}
    assert files <= {*lookup.readers(ROOT/'results', {})}


def test_the_gallery_shows_ten_of_a_class(monkeypatch, tmp_path):
    import torch
    from PIL import Image

    from bpc_nb import lines
    from bpc_nb.core import Coreset
    S = Coreset(torch.rand(24, 1, 4, 4), torch.arange(24)%2, classes=('a', 'b'))
    S.save(tmp_path/'k.safetensors')
    monkeypatch.setattr(lines, 'coreset_file', lambda r, results: tmp_path/'k.safetensors')
    text = build.lookup.gallery(grouped(line('k', ipc=12, coreset='0'), line('none')), tmp_path, tmp_path)
    few = Image.open(tmp_path/'gallery'/'k.png').size
    build.lookup.picture(tmp_path/'ten.png', S._replace(x=S.x[:20], y=S.y[:20]))
    assert f'width="{2*few[0]}" height="{2*few[1]}"' in text
    assert few == Image.open(tmp_path/'ten.png').size and '12 images per class, the first ten of each' in text
    assert 'images of 1 coreset,' in text and '1 row is not here' in text


def test_the_gallery_folds_other_seeds_and_folds(monkeypatch, tmp_path):
    "A row's first coreset is open, the others are behind one line, each with its seed or fold and its size"
    import torch

    from bpc_nb import lines
    from bpc_nb.core import Coreset
    for k in 'ab': Coreset(torch.rand(2, 1, 4, 4), torch.arange(2), classes=('a', 'b')).save(tmp_path/f'{k}.safetensors')
    monkeypatch.setattr(lines, 'coreset_file', lambda r, results: tmp_path/f"{r['coreset']}.safetensors")
    (at, [first]), = grouped(line('a', coreset='a', seed=0)).items()
    text = build.lookup.gallery({at:[first, line('b', coreset='b', seed=1, runs=(.7,))]}, tmp_path, tmp_path)
    shown, folded = text.split('<details class="others"><summary>other seeds and folds: 1</summary>')
    assert 'gallery/a.png' in shown and 'images of 2 coresets, for 1 row of' in shown
    assert re.search(r'<img src="gallery/b\.png" width="\d+" height="\d+" alt="cd, seed 1: 70\.0 %" loading="lazy">', folded)
    assert '<details' not in build.lookup.gallery({at:[first]}, tmp_path, tmp_path)


def test_a_picture_says_in_words_what_is_above_it(book):
    text = 'Before.\n\nThe [left](00_early.ipynb) side falls, `x` and $y$ *rise*:'
    assert build.spoken(text)=='The left side falls, x and y rise' and build.spoken('## Head')==''
    assert build.spoken(f'{"a"*300}. Short.')=='Short.'
    shown = new_code_cell('1', outputs=[new_output('display_data', {'image/png':'eA=='})])
    book.nbs['41_late'].cells += [new_markdown_cell(text), new_markdown_cell('## Head'), shown]
    cells, _ = build.page(book, '41_late')
    assert cells.cells[-1].metadata.mystnb['image']['alt']=='The left side falls, x and y rise'


def test_a_chart_gets_a_palette_and_a_photograph_keeps_its_colours():
    "and a picture that is small stays as it is"
    import base64, io
    import numpy as np
    from PIL import Image
    def png(a): Image.fromarray(a.astype('uint8')).save(out := io.BytesIO(), 'png'); return base64.b64encode(out.getvalue()).decode()
    chart = np.full((300, 300, 3), 255); chart[np.random.RandomState(0).rand(300, 300) < .5] = (200, 30, 30)
    photo = np.random.RandomState(0).rand(150, 150, 3)*255
    few = build.lighter(png(chart), above=1000)
    assert len(few) < len(png(chart))/2 and (np.asarray(Image.open(io.BytesIO(base64.b64decode(few))).convert('RGB'))==chart).all()
    assert build.lighter(png(photo), above=1000)==png(photo) and build.lighter(png(chart))==png(chart)


def test_films_have_frames():
    "and pictures have a palette or are small; films are not touched"
    import base64, io
    from PIL import Image
    def frames(o):
        png = base64.b64decode(o.data['image/png'])
        return getattr(Image.open(io.BytesIO(png)), 'n_frames', 1)
    films = {}
    for p in (ROOT/'nbs').glob('*.ipynb'):
        for c in nbformat.read(p, 4).cells:
            for o in c.get('outputs', []):
                if 'image/png' in o.get('data', {}) and frames(o) > 1:
                    films.setdefault(p.stem, []).append(frames(o))
                    assert build.lighter(o.data['image/png'])==o.data['image/png']
    assert {'index','020_toy','220_langevin'} <= {*films} and min(map(min, films.values())) > 5


def test_a_signature_on_one_line():
    d, = build.code(c := new_code_cell('def f(a:int, b=2): # both\n    "f"'))
    assert [r[3] for r in build.arguments(d, build.comments(c.source))] == ['', 'both']
    d, = build.code(c := new_code_cell('def f(a:int, b=2)->str: # a word\n    "f"'))
    assert [r[3] for r in build.arguments(d, build.comments(c.source))] == ['', '', 'a word']


def test_a_failing_chapter_names_its_cell(monkeypatch, tmp_path):
    cells = [new_markdown_cell('# Late'), new_code_cell('x = 1'), new_code_cell('#| hide\n\nx/0'), new_code_cell('raise SystemError')]
    monkeypatch.setattr(build, 'NBS', tmp_path)
    monkeypatch.chdir(tmp_path); monkeypatch.setenv('IN_TEST', '1')
    nbformat.write(new_notebook(cells=cells), tmp_path/'41_late.ipynb')
    assert build.read('41_late').cells[2].source # saved without outputs: nothing has failed
    with pytest.raises(build.Broken, match=r"nbs/41_late.ipynb, cell 2 \('x/0'\): ZeroDivisionError: division by zero"): build.read('41_late', run=True)
    cells[2].outputs = [new_output('error', ename='ValueError', evalue='bad', traceback=[])]
    nbformat.write(new_notebook(cells=cells), tmp_path/'41_late.ipynb')
    with pytest.raises(build.Broken, match='cell 2 .*: ValueError: bad'): build.read('41_late')


def test_a_warning_of_sphinx_names_the_cell(book):
    nb, made = build.page(book, '00_early')
    said = f"/x/docs/pages/00_early.ipynb:{(len(made))*10000+3}: WARNING: 'myst' cross-reference target not found: 'gone'"
    assert build.located(said, {'00_early': (book.nbs['00_early'], made)}).startswith("nbs/00_early.ipynb, cell 3 ('Draw by Eq. 12")


@pytest.mark.parametrize('html, said', [('<a href="b.html">', ''), ('<a href="b.html#here">', ''), ('<a href="https://x.org">', ''), ('<img src="data:image/png;base64,">', ''),
    ('<p id="x"><p id="y">', ''), ('<p id="x"><div id="x">', '#x is there twice'), ('<a href="c.html">', 'c.html is not there'), ('<a href="b.html#there">', 'no such place'), ('<img src="no.png">', 'no.png is not there'),
    ('<img src="https://x.org/a.png">', 'fetched from'), ('<script src="https://cdn/x.js">', 'fetched from'), ('<link href="https://cdn/x.css">', 'fetched from')])
def test_broken_links_and_missing_images(tmp_path, html, said):
    (tmp_path/'a.html').write_text(html); (tmp_path/'b.html').write_text('<p id="here">')
    found = build.broken(tmp_path)
    assert bool(found) == bool(said) and said in ''.join(found)


@pytest.mark.filterwarnings('ignore')
def test_what_is_wrong_on_a_page_is_said_with_its_cell(monkeypatch, tmp_path):
    pytest.importorskip('sphinx')
    for k, p in dict(NBS='nbs', PAGES='pages', HTML='html', CHANGES='changes.md', EXTRA='extra', RESULTS='results').items(): monkeypatch.setattr(build, k, tmp_path/p)
    for k in 'nbs', 'results': (tmp_path/k).mkdir()
    (tmp_path/'changes.md').write_text('# Changelog')
    nbformat.write(new_notebook(cells=[new_markdown_cell('# Front\n> Page')]), tmp_path/'nbs'/'index.ipynb')
    good, bad = [new_markdown_cell('# A chapter'), new_markdown_cell('Fine: $a^2$ and [front](index.ipynb).\n\n$$a = b \\tag{12}$$'),
                 new_markdown_cell('(rows)=\n\n| a | b |\n|---|---|\n| 1 | by Eq. 12 |')], [
        new_markdown_cell(t) for t in ('A formula: $\\frac{a}$', 'A link: [gone](99_gone.ipynb)', 'A page: [a](41_a.html)', 'An image: ![gone](gone.png)', 'A place: [gone](#gone)')]
    nbformat.write(new_notebook(cells=good), tmp_path/'nbs'/'41_a.ipynb')
    assert build.build() == []
    ids = {p.name: re.findall(r'<[^>]* id="([^"]+)"', p.read_text()) for p in (tmp_path/'html').glob('*.html')}
    assert 'eq-41-a-12' in ids['41_a.html'] and {p: [i for i in {*of} if of.count(i) > 1] for p, of in ids.items()} == {p: [] for p in ids}
    nbformat.write(new_notebook(cells=good + bad), tmp_path/'nbs'/'41_a.ipynb')
    said = build.build()
    for i, c in enumerate(bad, len(good)): assert any(s.startswith(f'nbs/41_a.ipynb, cell {i} ({c.source[:8]!r}'[:-1]) for s in said), (i, said)
    assert len(said) == 5, said


def test_parts_hold_every_chapter():
    stems = [p.stem for p in (ROOT/'nbs').glob('[0-9]*.ipynb')]
    parts = build.parts(stems).values()
    assert sorted(s for c in parts for s in c) == sorted(stems) and all(c == sorted(c) for c in parts)
    assert (ROOT/'nbs'/'sidebar.yml').read_text() == build.sidebar(stems), "the sidebar is not that of the chapters: run make export"
    assert yaml.safe_load((ROOT/'nbs'/'_quarto.yml').read_text())['metadata-files'] == ['nbdev.yml', 'sidebar.yml']
    assert (ROOT/'_quarto.yml').read_text() == (ROOT/'nbs'/'_quarto.yml').read_text() # nbdev wants both


LINK = re.compile(r'\]\(([\w-]+\.(?:ipynb|html))')
def astray(text) -> list: return [to for to in LINK.findall(text) if not (ROOT/'nbs'/to).exists()]

def test_chapters_link_to_notebooks():
    "As files beside them, which GitHub, Jupyter, Quarto and this site all follow; nbdev takes the number off a page's name, so 020_toy.html is nowhere"
    assert {p.stem: a for p in (ROOT/'nbs').glob('*.ipynb') for c in nbformat.read(p, 4).cells if c.cell_type == 'markdown' and (a := astray(c.source))} == {}
    assert astray('[a](020_toy.ipynb), [b](020_toy.html), [c](02_toys.ipynb#here)') == ['020_toy.html', '02_toys.ipynb']


def test_front_page_shows_the_results_of_today():
    from bpc_nb.tables import front_table, markdown
    nb = nbformat.read(ROOT/'nbs'/'index.ipynb', 4)
    shown = [o.data['text/markdown'] for c in nb.cells for o in c.get('outputs', ()) if 'text/markdown' in o.get('data', {})]
    assert shown == [markdown(*front_table())], "results/ has changed since the front page was run: run nbs/index.ipynb again"


@pytest.mark.parametrize('schema, file', [('github-workflows', '.github/workflows/ci.yml'), ('citation-file-format', 'CITATION.cff')])
def test_files_for_others_are_what_they_expect(schema, file, tmp_path):
    pytest.importorskip('check_jsonschema')
    from check_jsonschema import main
    from click.testing import CliRunner
    check = lambda p: CliRunner().invoke(main, ['--builtin-schema', f'vendor.{schema}', str(p)])
    assert (r := check(ROOT/file)).exit_code == 0, r.output
    (tmp_path/'bad.yml').write_text((ROOT/file).read_text().replace('runs-on:', 'run-on:').replace('message:', 'massage:'))
    assert check(tmp_path/'bad.yml').exit_code == 1


def test_versions_agree():
    from packaging.version import Version
    import bpc_nb
    job = yaml.safe_load((ROOT/'.github'/'workflows'/'ci.yml').read_text())['jobs']['wheel']['strategy']['matrix']
    assert job['python'] == ['3.11', '3.12', '3.13', '3.14']
    changes = (ROOT/'CHANGELOG.md').read_text()
    released = re.search(r'^## (\d\S*), ', changes, re.M)[1]
    assert yaml.safe_load((ROOT/'CITATION.cff').read_text())['version'] == released
    if '## Unreleased' not in changes: assert bpc_nb.__version__ == released
    else: assert Version(released) < Version(bpc_nb.__version__) and bpc_nb.__version__.endswith('.dev0') # no line says that a release made it


def test_tags_are_of_the_days_that_the_changelog_names(tmp_path):
    git = lambda *words, day='2026-01-02': subprocess.run(
        ['git', '-c', 'user.name=a', '-c', 'user.email=a@b', *words], cwd=tmp_path, capture_output=True, text=True, check=True,
        env=os.environ | dict(GIT_COMMITTER_DATE=f'{day}T12:00:00Z', GIT_AUTHOR_DATE=f'{day}T12:00:00Z')).stdout.strip()
    tags = lambda: subprocess.run([sys.executable, ROOT/'.ci'/'tags'], cwd=tmp_path, capture_output=True, text=True)
    def commit(version, day, new=''):
        (tmp_path/'settings.ini').write_text(f'[DEFAULT]\nversion = {version}\n# {len(git("rev-list", "--all"))}\n')
        (tmp_path/'CHANGELOG.md').write_text(f'# Changelog\n\n{new}## 0.1.0, 2026-01-02\n')
        git('add', '.'); git('commit', '-qm', version, day=day)
        return git('rev-parse', 'HEAD')
    git('init', '-q')
    commit('0.1.0', '2026-01-01')
    last = [commit('0.1.0', '2026-01-02') for _ in range(2)][-1]
    commit('0.1.0', '2026-01-02', '## Unreleased\n\n') # what came after the release on that day
    commit('0.2.0', '2026-01-02'); commit('0.2.0', '2026-01-03')
    assert tags().returncode == 0 and git('rev-parse', 'v0.1.0^{commit}') == last and git('tag').split() == ['v0.1.0']
    assert tags().stdout == '' # once is enough
    (tmp_path/'CHANGELOG.md').write_text('## 0.2.0, 2026-01-04\n')
    r = tags()
    assert r.returncode == 1 and 'no commit of 2026-01-04 has version 0.2.0' in r.stderr


# --- in a browser --------------------------------------------------------------------------------------------------------------
CHROMIUM = os.environ.get('CHROMIUM') or shutil.which('chromium') or shutil.which('google-chrome')


@pytest.fixture(scope='module')
def browser():
    api = pytest.importorskip('playwright.sync_api', reason="no playwright: pip install -e '.[dev]'")
    if not CHROMIUM: pytest.skip("no chromium: apt-get install chromium, or name one in CHROMIUM")
    if not (HTML/'index.html').exists(): pytest.skip("no site: make docs")
    with api.sync_playwright() as pw:
        b = pw.chromium.launch(executable_path=CHROMIUM, args=['--no-sandbox', '--disable-gpu', '--disable-quic'])
        yield b
        b.close()


@pytest.fixture
def visit(browser):
    "Opens a page of the built site; nothing may come from elsewhere or be missing"
    contexts, wrong = [], []
    def visit(page, width=1280, height=900, **how):
        c = browser.new_context(viewport=dict(width=width, height=height), **how)
        contexts.append(c)
        p = c.new_page()
        p.on('request', lambda r: wrong.append(r.url) if r.url.startswith('http') else None)
        p.on('requestfailed', lambda r: wrong.append(r.url) if r.resource_type != 'fetch' else None) # the search's summaries need a server
        p.goto(f'{(HTML/page).as_uri()}')
        if out := os.environ.get('SHOTS'): p.screenshot(path=f'{out}/{Path(page).stem}-{width}-{how.get("color_scheme", "light")}.png')
        return p
    yield visit
    for c in contexts: c.close()
    assert wrong == []


def brightness(page): return sum(map(int, re.findall(r'\d+', page.evaluate("getComputedStyle(document.body).backgroundColor"))[:3]))/3


def test_front_page(visit):
    p = visit('index.html')
    text = p.locator('article').inner_text()
    for part in 'Ten images instead of sixty thousand', 'make demo', 'make test', "distill('cd', data, ipc=1)", 'random real': assert part in text
    assert p.evaluate("[...document.images].every(i => i.complete && i.naturalWidth > 0)")
    assert p.locator('article table').count() >= 1 and p.locator('.katex').count() > 3 and '$' not in text
    for first in p.locator('article strong', has_text='Four doors'), p.locator('article', has_text='bpc demo').locator('pre').first:
        assert first.bounding_box()['y'] < p.viewport_size['height'] # on the first screen
    table = p.locator('article table').first.bounding_box()
    assert table['y'] + table['height'] <= p.viewport_size['height'] # and so are the pictures and the table


def test_sidebar_has_parts_and_chapters_in_order(visit):
    p = visit('index.html')
    assert p.locator('.sidebar-tree .caption').all_inner_texts()[:3] == ['START HERE', 'WORDS', 'FROM EXAMPLES TO AN ENERGY']
    links = p.locator('.sidebar-tree a.reference').evaluate_all("a => a.map(x => x.getAttribute('href'))")
    chapters = [l for l in links if l[:1].isdigit()]
    assert chapters == [f'{s}.html' for part in build.parts(p.stem for p in (ROOT/'nbs').glob('[0-9]*.ipynb')).values() for s in part]
    p.locator('.sidebar-tree a', has_text='Langevin dynamics').click()
    assert p.url.endswith('220_langevin.html')


def test_equations_lead_to_code_and_back(visit):
    p = visit('220_langevin.html')
    assert p.locator('.katex-display').count() > 2 and p.locator('.katex-error').count() == 0
    assert p.locator('.katex-html .tag', has_text='12').count() == 1
    p.locator('.eq-code a', has_text='langevin').first.click()
    there = p.url.partition('#')[2]
    assert there and p.locator(f'#{there}').count() == 1 # the definition follows the place
    assert 'def langevin(' in p.locator('.tag_exported').first.inner_text()
    p.locator('details.api summary').first.click()
    p.locator('details.api a', has_text='Eq. 12').first.click()
    assert '#eq-' in p.url
    p.go_back(); assert p.locator('details.api td', has_text='step size').first.is_visible()


def test_a_name_in_prose_leads_to_another_chapter(visit):
    p = visit('420_cd.html')
    p.locator('article p a', has_text=re.compile('^contrast$')).first.click()
    assert '140_energy.html#api-140-energy-contrast' in p.url


def test_all_results_can_be_searched_and_sorted(visit):
    p = visit('all_results.html')
    rows = p.locator('table.searched tbody tr:visible')
    every = rows.count()
    assert every > 200 and p.locator('.table-search output').inner_text() == f'{every} of {every} rows'
    p.locator('.table-search input').fill('MNIST fkl')
    found = rows.all_inner_texts()
    assert 0 < len(found) < every and all('mnist' in r and 'fkl' in r for r in found)
    p.locator('.table-search input').fill('')
    p.locator('table.searched th', has_text='accuracy').click()
    first, second = (float(rows.nth(i).locator('td').nth(3).inner_text().split()[0]) for i in (0, 40))
    p.locator('table.searched th', has_text='accuracy').click()
    assert first > second > float(rows.nth(0).locator('td').nth(3).inner_text().split()[0])
    assert p.evaluate('document.documentElement.scrollWidth') <= 1280

def test_each_method_has_a_card(visit):
    "With when to use it, a picture, an equation, and figures where it was measured"
    from bpc_nb.core import registry
    p = visit('methods.html')
    heads = p.locator('article h2').all_inner_texts()
    points = len(build.cards.POINTS)
    assert sorted(h.rstrip('#¶ ') for h in heads) == sorted([*registry(), 'Points of regressions'])
    assert p.locator('article').inner_text().count('Use it') == len(registry()) + points
    each = p.locator('article section:has(> p > strong:text-is("Use it"))')
    assert each.count() == len(registry()) + points
    bare = each.filter(has_not=p.locator('figure.art')).or_(each.filter(has_not=p.locator('.katex-display'))).locator('h2, h3')
    assert bare.all_inner_texts() == []
    cards = p.locator('article section section')
    assert '±' in cards.first.inner_text() and cards.first.locator('.katex-display, math').count() and cards.first.locator('figure.art img').count() == 1
    assert p.locator('article table').count() > 25

def test_the_field_of_all_results_finds_scripts(visit):
    "With one field for both tables, and columns of either that sort"
    p = visit('all_results.html')
    scripts = p.locator('table.scripts tbody tr:visible')
    assert p.locator('.table-search').count() == 1 and scripts.count() > 25
    p.locator('table.scripts th', has_text='lines').click()
    lines = [int(t) for t in scripts.locator('td:nth-child(3)').all_inner_texts()]
    assert lines == sorted(lines, reverse=True)
    p.locator('.table-search input').fill('federated bytes')
    assert [t.split()[0] for t in p.locator('table.searched tbody tr:visible').all_inner_texts()] == ['uses/federated.py']
    p.locator('table.scripts a:visible').first.click()
    assert p.url.endswith('880_federated.html')

def test_all_results_need_no_script(visit):
    assert visit('all_results.html', java_script_enabled=False).locator('table.searched tbody tr:visible').count() > 200

def test_gallery_shows_what_was_learned(visit):
    p = visit('gallery.html')
    art = p.locator('figure.art img')
    assert art.count() > 600 and not p.locator('details.others img').first.is_visible()
    assert art.evaluate_all("i => i.every(i => i.getAttribute('width') && i.getAttribute('height'))") # a page that loads keeps its place
    art.nth(0).scroll_into_view_if_needed(); p.wait_for_timeout(300)
    assert art.nth(0).evaluate('i => i.complete && i.naturalWidth > 0') and '%' in art.nth(0).get_attribute('alt')
    p.locator('details.others summary').first.click()
    p.wait_for_function("(i => i.complete && i.naturalWidth > 0)(document.querySelector('details.others img'))")
    p.locator('article a', has_text=re.compile('^memories$')).click()
    p.wait_for_function("(y => 0 <= y && y < innerHeight)(document.querySelector('#gallery-memory h2').getBoundingClientRect().y)")
    p.wait_for_function("(i => i.complete && i.naturalWidth > 0)(document.querySelector('#gallery-memory img'))")

def test_a_source_knows_who_cites_it(visit):
    p = visit('430_fkl.html')
    p.locator('article p a', has_text='Kim et al.').first.click()
    assert p.url.endswith('sources.html#source-kim2022divergence')
    p.locator('#source-kim2022divergence ~ p.cited a', has_text='Forward').first.click()
    assert '430_fkl' in p.url


def test_search_without_a_network(visit):
    p = visit('index.html')
    p.locator('input.sidebar-search').fill('Langevin')
    p.keyboard.press('Enter')
    p.wait_for_selector('ul.search li a')
    assert 'Langevin dynamics' in p.locator('ul.search li a').all_inner_texts()[0:3]


def test_dark_and_light(visit):
    assert brightness(visit('420_cd.html', color_scheme='light')) > 240
    p = visit('420_cd.html', color_scheme='dark')
    assert brightness(p) < 40
    for _ in range(2): p.locator('.theme-toggle:visible').first.click() # auto, light, dark
    assert {p.evaluate('document.body.dataset.theme')} <= {'light', 'dark'}


@pytest.mark.parametrize('page', ['index.html', '420_cd.html', '960_tables.html', '990_architecture.html', 'reference.html'])
def test_a_narrow_screen_does_not_scroll_sideways(visit, page):
    p = visit(page, 390, 844)
    assert p.evaluate('document.documentElement.scrollWidth') <= 390
    assert not p.locator('.sidebar-drawer').bounding_box()['x'] >= 0
    p.locator('label.nav-overlay-icon:visible').first.click()
    p.wait_for_function("document.querySelector('.sidebar-drawer').getBoundingClientRect().x >= 0")


def test_links_of_the_front_page_lead_somewhere():
    "On a repository's page, where no site builder rewrites them"
    links = re.findall(r'\]\(([^)\s]+)\)', (ROOT/'README.md').read_text(encoding='utf-8'))
    local = [l.partition('#')[0] for l in links if '://' not in l and not l.startswith('#')]
    assert len(local) > 30 and [l for l in local if not (ROOT/l).is_file()] == []
