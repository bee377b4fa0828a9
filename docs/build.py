"""The site: pages from nbs/ with links, a reference and an index of equations, then Sphinx. No notebook is executed unless asked.

    python docs/build.py [--run] [--sidebar]    # --run: with fresh outputs; --sidebar: write Quarto's files in nbs/, nothing else

The figures are those that the notebooks are committed with; that their code still runs is what `make test` says.
Every warning is an error, and names the chapter and the cell.
"""
import ast, base64, io, json, os, re, shutil, sys, tokenize
from concurrent.futures import ProcessPoolExecutor
from fnmatch import fnmatch
from functools import partial
from html.parser import HTMLParser
from multiprocessing import get_context
from pathlib import Path
from urllib.parse import unquote, urlsplit

import nbformat
import yaml
from nbformat.v4 import new_markdown_cell, new_notebook

sys.path.insert(0, str(Path(__file__).resolve().parent))
import cards, lookup, pictures

ROOT = Path(__file__).resolve().parents[1]
NBS, PAGES, HTML, CHANGES, SECONDS, RESULTS = ROOT/'nbs', ROOT/'docs'/'pages', ROOT/'docs'/'_html', ROOT/'CHANGELOG.md', ROOT/'docs'/'seconds.json', ROOT/'results'
EXTRA = ROOT/'docs'/'_extra' # files that the site has beside its pages
PARTS = { # file names -> what the part is called in the sidebar, tutorials first
    '99[5-9]*': 'Start here', '0[0-2]*': 'Words', '1*': 'From examples to an energy', '2*': 'From the energy to samples', '3*': 'Measuring', '4*': 'Pseudo-coresets',
    '5*': 'Choosing', '6*': 'Matching', '7[0-4]*': 'Closed forms', '7[5-9]*': 'Through training', '8[0-3]*': 'Statistics', '8[4-6]*': 'Exact Bayes', '8[7-9]*': 'Uses',
    '96[0-4]*': 'Results', '98*': 'Results', '0[3-9]*': 'Tools', '9[0-5]*': 'Tools', '96[5-9]*': 'Tools', '97*': 'Tools', '99[02]*': 'Working on the book', '99[14]*': 'Look up'}
MADE = ['methods','all_results','gallery','reference','equations','sources','changelog'] # pages beside the chapters
OWN = range(430, 900) # chapters that cite the equations of papers of their own; all others cite those of contrastive divergence


class Broken(Exception): "A chapter that cannot become a page"


# --- chapters ------------------------------------------------------------------------------------------------------------------
def parts(stems) -> dict:
    "Part -> its chapters in order"
    stems = [*stems]
    out = {title:[s for s in sorted(stems) if any(fnmatch(s, p) for p,t in PARTS.items() if t==title)] for title in PARTS.values()}
    return {t:c for t,c in out.items() if c}

def sidebar(stems) -> str:
    "The same parts for Quarto"
    contents = ['index.ipynb', *({'section':t, 'contents':[f'{s}.ipynb' for s in c]} for t,c in parts(stems).items())]
    return yaml.safe_dump({'website': {'sidebar': {'contents': contents}}}, sort_keys=False)

def where(stem, i, cell) -> str:
    "How to find a cell: chapter, number, first line"
    first = next((l for l in cell.source.splitlines() if l.strip() and not l.startswith('#|')), '')
    return f'nbs/{stem}.ipynb, cell {i} ({first.strip()[:70]!r})'

def directives(cell) -> dict:
    "`#| key: value` lines of a cell"
    return {k:v.strip() for k,v in re.findall(r'^#\| *([\w-]+):?(.*)$', cell.source, re.M)} if cell.cell_type=='code' else {}

def read(stem, run=False):
    "A chapter; one that was saved with an error, or fails now, is refused by cell"
    nb = nbformat.read(NBS/f'{stem}.ipynb', 4)
    if run: execute(stem, nb)
    refuse_errors(stem, nb)
    return nb

def refuse_errors(stem, nb):
    for i,c in enumerate(nb.cells):
        for o in c.get('outputs', ()):
            if o.output_type=='error': raise Broken(f'{where(stem, i, c)}: {o.ename}: {o.evalue}')

def lighter(png:str, above=50_000, error=1.5) -> str: # base64; bytes; of 255
    "A large picture with a palette, where nobody sees the difference"
    if len(png) < above*4/3: return png
    from PIL import Image, ImageChops, ImageStat
    im, out = Image.open(io.BytesIO(base64.b64decode(png))), io.BytesIO()
    if getattr(im, 'is_animated', False): return png # a palette has one frame
    im = im.convert('RGB')
    few = im.quantize(256)
    few.save(out, 'png', optimize=True)
    lost = ImageStat.Stat(ImageChops.difference(im, few.convert('RGB'))).rms
    return png if max(lost) > error else min(png, base64.b64encode(out.getvalue()).decode() + '\n'*png.endswith('\n'), key=len)

def execute(stem, nb, folder=None): # folder: where it runs; None: nbs/
    "Run the cells that tests run and keep what they show"
    from execnb.shell import CaptureShell
    folder = folder or NBS
    os.chdir(folder); os.environ['IN_TEST'] = '1'
    skip = {'notest','slow','gpu','data'}
    shell = CaptureShell(path=str(folder))
    for c in nb.cells:
        d = directives(c)
        if c.cell_type!='code' or skip & d.keys() or d.get('eval')=='false': continue
        c.outputs = nbformat.from_dict(shell.run(c.source))
        for o in c.outputs:
            if 'image/png' in o.get('data', {}): o.data['image/png'] = lighter(o.data['image/png'])
        if shell.exc: return

def processes():
    "Two at a time, a new one for each notebook, which begins with what most of them import"
    os.environ.setdefault('OMP_NUM_THREADS', '1') # more threads than the machine has cores cost minutes
    context = get_context('forkserver')
    context.set_forkserver_preload(['torch', 'torchvision', 'matplotlib.pyplot', 'sklearn.datasets', 'execnb.shell', 'nbformat', 'yaml'])
    return ProcessPoolExecutor(2, context, max_tasks_per_child=1)

def execute_all(stems) -> dict: # stem -> notebook
    with processes() as pool: return dict(zip(stems, pool.map(partial(read, run=True), stems)))


# --- what is defined where -----------------------------------------------------------------------------------------------------
def code(cell) -> list: # of statements
    try: return ast.parse(re.sub(r'^([%!].*)$', 'pass', cell.source, flags=re.M)).body if cell.cell_type=='code' else []
    except SyntaxError: return []

def names(cell) -> list:
    "What a cell defines"
    return [n for s in code(cell) for n in ([s.name] if isinstance(s, (ast.FunctionDef, ast.ClassDef)) else
            [t.id for a in s.targets for t in ast.walk(a) if isinstance(t, ast.Name)] if isinstance(s, ast.Assign) else [])]

def module(nb): return next((m[1] for c in nb.cells if (m := re.search(r'^#\| *default_exp +(\S+)', c.source, re.M))), None)
def exported(cell): return bool({'export','exports'} & directives(cell).keys())
def label(stem, name): # targets know no capitals, so a class and a constant say what they are
    kind = 'constant-' if name.isupper() else 'class-' if name[0].isupper() else ''
    return f"api-{stem}-{kind}{name.lower().replace('_', '-')}"

class Book:
    "All chapters, and where each name and each equation is"
    def __init__(self, nbs): # stem -> notebook
        self.nbs, self.modules = nbs, {m:s for s,nb in nbs.items() if (m := module(nb))}
        self.defined = {s:{n for c in nb.cells if exported(c) for n in names(c)} for s,nb in nbs.items()}
        self.imported = {s:self.imports(nb) for s,nb in nbs.items()}
        self.citations, self.cited = lookup.Citations(lookup.bibliography()), {} # key of a source -> chapters
        self.tags, self.code = {}, {} # (family, number) -> chapters, [(chapter, name)]
        for s,nb in nbs.items():
            for c in nb.cells:
                if c.cell_type=='markdown':
                    for _,k in self.citations.found(c.source): self.cited.setdefault(k, set()).add(s)
                    for n in re.findall(r'\\tag\{(\w+)\}', c.source): self.tags.setdefault((self.family(s), n), []).append(s)
                elif exported(c):
                    for d in code(c):
                        if isinstance(d, (ast.FunctionDef, ast.ClassDef)):
                            for n in cited(ast.get_docstring(d) or ''): self.code.setdefault((self.family(s), n), []).append((s, d.name))

    def imports(self, nb) -> dict: # name in a chapter -> (chapter, name there)
        found = [(s, a) for c in nb.cells for s in code(c) if isinstance(s, ast.ImportFrom) and (s.module or '').startswith('bpc_nb.') for a in s.names]
        return {a.asname or a.name:(self.modules[m], a.name) for s,a in found if (m := s.module.removeprefix('bpc_nb.')) in self.modules}

    def family(self, stem): return stem if stem[:3].isdigit() and int(stem[:3]) in OWN else ''

    def equation(self, stem, n):
        "Where equation `n` is, as cited in a chapter: there, or the first with code for it, toys last"
        at, coded = self.tags.get((self.family(stem), n), []), {s for s,_ in self.code.get((self.family(stem), n), [])}
        return stem if stem in at else min(at, key=lambda s: (s=='index', s.startswith('0'), s not in coded, s), default=None)

    def find(self, stem, said): # `langevin`, `Coreset.save`, `bpc distill ...` -> (chapter, name), or None
        "Where what a chapter calls by a name is defined"
        name, called, _ = (said.strip()).partition('(')
        if m := re.match(r'bpc ([a-z]+)\b', name): name = f'bpc_{m[1]}'
        name = name.removeprefix('bpc_nb.')
        if (m := name.rpartition('.'))[0] in self.modules and m[2] in self.defined[self.modules[m[0]]]: return self.modules[m[0]], m[2]
        if not re.fullmatch(r'[A-Za-z_]\w*(\.\w+)?', name): return None
        name = name.split('.')[0]
        if name in self.defined[stem]: return stem, name
        if name in self.imported[stem]:
            s, n = self.imported[stem][name]
            return (s, n) if n in self.defined[s] else None
        found = [s for s,d in self.defined.items() if name in d]
        return (found[0], name) if len(found)==1 and (called or re.search('_|[A-Z]', name)) else None # a word may be just a word

def cited(text) -> list:
    "Numbers of the equations that a text cites without naming another paper"
    return [n for m in EQS.finditer(text) if not foreign(text, m) for n in re.findall(r'\d+', m[0])]

EQS = re.compile(r"\bEqs?\. \d+(?:(?:, | and | to |, and )\d+)*\b(?!'| of \[)")
def foreign(text, m): return re.search(r'(\d{4}|paper \d+|et al\.)[,)]* *$', text[:m.start()]) is not None


# --- the reference, from the comments behind arguments -------------------------------------------------------------------------
def comments(source) -> dict: # line -> text
    return {t.start[0]:t.string.lstrip('# ') for t in tokenize.generate_tokens(io.StringIO(source).readline) if t.type==tokenize.COMMENT}

def arguments(d, said) -> list: # rows of (name, type, default, about)
    "Arguments of a function and what it returns, or fields of a class"
    show = lambda node: '' if node is None else f'`{ast.unparse(node)}`'
    if isinstance(d, ast.ClassDef): return [(f'`{f.target.id}`', show(f.annotation), show(f.value), said.get(f.end_lineno, '')) for f in d.body if isinstance(f, ast.AnnAssign)]
    a = d.args
    both = [*zip(a.posonlyargs + a.args, [None]*(len(a.posonlyargs + a.args)-len(a.defaults)) + a.defaults), *zip(a.kwonlyargs, a.kw_defaults), *((v, None) for v in (a.vararg, a.kwarg) if v)]
    both = sorted(both, key=lambda p: (p[0].lineno, p[0].col_offset))
    ends = [(v or p).end_lineno for p,v in both]
    after = d.returns.end_lineno if d.returns else next((l for l in range(max([d.lineno, *ends])+1, d.body[0].lineno) if l in said), None) # the line that closes the signature
    rows = [(f'`{p.arg}`', show(p.annotation), show(v), said.get(e, '') if e not in ends[i+1:] and e!=after else '') for i,((p,v),e) in enumerate(zip(both, ends))]
    return rows + [('*returns*', show(d.returns), '', said.get(after, ''))]*bool(d.returns or after)

def reference(book, stem, cell) -> str:
    "What an exported cell's functions take, folded away beside their code"
    said, out = comments(cell.source), []
    for d in code(cell):
        if not isinstance(d, (ast.FunctionDef, ast.ClassDef)): continue
        rows, about = arguments(d, said), (ast.get_docstring(d) or '').strip().partition('\n')[0]
        out.append(f'**`{d.name}`** ' + prose(book, stem, about, {r[0].strip('`') for r in rows}))
        head = ['field' if isinstance(d, ast.ClassDef) else 'argument', 'type', 'default', '']
        if rows: out.append('\n'.join('| ' + ' | '.join(c.replace('|', '\\|').replace('$', '\\$') for c in r) + ' |' for r in (head, ['---']*4, *rows)))
    called = ', '.join(d.name for d in code(cell) if isinstance(d, (ast.FunctionDef, ast.ClassDef)))
    return f'<details class="api"><summary>arguments of <code>{called}</code></summary>\n\n' + '\n\n'.join(out) + '\n\n</details>' if out else ''


# --- pages ---------------------------------------------------------------------------------------------------------------------
SPANS = re.compile(r'(^(?:```|~~~).*?^(?:```|~~~) *$|^(?: {4}|\t).*?$|\$\$.*?\$\$|(?<![\\$])\$[^$\n]+\$|!?\[(?:[^\[\]]|\[[^\]]*\])*\]\([^)]*\)|<[^>]+>)', re.S | re.M)

def prose(book, stem, text, args=()) -> str: # args: names that mean something else here
    "Names and equation numbers of a text become links; code, formulas and links stay as they are"
    def name(m):
        at = None if m[1] in args else book.find(stem, m[1])
        mod = book.modules.get(m[1].removeprefix('bpc_nb.'))
        return f'[{m[0]}](#{label(*at)})' if at else f'[{m[0]}]({mod}.ipynb)' if mod and m[1].startswith('bpc_nb.') else m[0]
    def number(text): return lambda m: m[0] if foreign(text, m) else re.sub(r'(?:Eqs?\. )?\d+', lambda k: link(k[0]), m[0])
    def link(said):
        n = re.search(r'\d+', said)[0]
        at = book.equation(stem, n)
        return f'[{said}](#eq-{at}-{n})' if at else said
    def plain(t):
        t = book.citations.linked(t)
        return re.sub(r'(?<!`)`([^`\n]+)`(?!`)', name, EQS.sub(number(t), t))
    return ''.join(s if i%2 else plain(s) for i,s in enumerate(SPANS.split(text)))

def markdown(book, stem, text) -> str:
    "A cell of text: links, chapters by file, and what implements an equation beneath it"
    def implemented(m):
        out = m[0]
        for n in re.findall(r'\\tag\{(\w+)\}', m[0]):
            out = f'(eq-{stem}-{n})=\n{out}'
            if by := book.code.get((book.family(stem), n)): out += '\n\n{.eq-code}\nEq. ' + n + ' in code: ' + ', '.join(f'[`{f}`](#{label(s, f)})' + ('' if s==stem else f' in [{title(book.nbs[s])}]({s}.ipynb)') for s,f in by)
        return f'\n\n{out}\n\n'
    text = re.sub(r'\$\$(?:(?!\$\$).)*?\$\$', lambda m: implemented(m) if '\\tag' in m[0] else m[0], prose(book, stem, text), flags=re.S)
    return re.sub(r'\]\(((?:\w+\.ipynb)?#[\w-]+)\)', lambda m: m[0].lower() if '#api-' not in m[1] and '#eq-' not in m[1] else m[0], text) # headings, as Jupyter writes them

def cost(stem, nb) -> str:
    "What a chapter takes: minutes to read, seconds to run, and the module that it becomes"
    words = sum(len(c.source.split()) for c in nb.cells if c.cell_type=='markdown')
    runs = json.loads(SECONDS.read_text())['seconds'].get(stem) if SECONDS.exists() else None
    n = max(1, round(words/200))
    said = [f"{n} minute{'s'*(n > 1)} to read", runs is not None and (f'runs in {runs} s' if runs > 1 else 'runs in a second'), (m := module(nb)) and f'module `bpc_nb.{m}`']
    return ' · '.join(filter(None, said))

def title(nb): return next(m[1] for c in nb.cells if (m := re.match(r'# (.+)', c.source)) and c.cell_type=='markdown')

def spoken(text, most=300) -> str: # Markdown
    "The last paragraph in plain words, whole sentences of it, for readers who do not see the picture beneath"
    last = next((p for p in reversed(text.split('\n\n')) if p.strip() and not re.match(r'\s*(#|>|\||!|\$\$|```)', p)), '')
    plain = re.sub(r'!?\[([^\]]*)\]\([^)]*\)', r'\1', last)
    plain = ' '.join(re.sub(r'^\s*[-*] |[`*$]', '', plain, flags=re.M).split()).rstrip(':')
    while len(plain) > most and '. ' in plain: plain = plain.partition('. ')[2]
    return plain

def page(book, stem):
    "One chapter: (notebook for MyST-NB, number of the source cell of each of its cells)"
    nb, out, source = book.nbs[stem], [], []
    def add(i, *cells): out.extend(cells); source.extend([i]*len(cells))
    for i,c in enumerate(nb.cells):
        d = directives(c)
        if c.cell_type=='markdown':
            text = markdown(book, stem, c.source)
            if i==0: text = re.sub(r'^> (.+)$', lambda m: '{.claim}\n' + m[1] + '\n\n{.cost}\n' + cost(stem, nb), text, count=1, flags=re.M)
            add(i, new_markdown_cell(text)); continue
        if c.cell_type!='code' or {'hide','default_exp'} & d.keys() or d.get('include')=='false': continue
        c = nbformat.from_dict(c)
        c.source = '\n'.join(l for l in c.source.splitlines() if not l.startswith('#|')).strip()
        c.metadata.tags = [t for k,v,t in (('echo','false','remove-input'), ('output','false','remove-output'), ('code-fold','true','hide-input')) if d.get(k)==v]
        if exported(nb.cells[i]):
            defined = names(nb.cells[i])
            if not defined: c.metadata.tags.append('hide-input'); c.metadata.mystnb = dict(code_prompt_show='Imports', code_prompt_hide='Imports')
            else:
                c.metadata.tags.append('exported')
                add(i, new_markdown_cell('\n'.join(f'({label(stem, n)})=' for n in dict.fromkeys(defined))))
        if any({'image/png','image/jpeg'} & {*o.get('data', {})} for o in c.outputs):
            above = next((spoken(b.source) for b in reversed(nb.cells[:i]) if b.cell_type=='markdown' and spoken(b.source)), '')
            c.metadata.mystnb = c.metadata.get('mystnb', {}) | dict(image=dict(alt=above))
        add(i, c)
        if exported(nb.cells[i]) and (ref := reference(book, stem, nb.cells[i])): add(i, new_markdown_cell(ref))
    return new_notebook(cells=out, metadata=dict(kernelspec=dict(name='python3', display_name='Python 3', language='python'), language_info=dict(name='python'))), source

def entry(stem, d) -> str: # d: a definition
    "A row of the reference: name, and what its first line says"
    said = (ast.get_docstring(d) or '').partition('\n')[0].replace('|', '\\|').replace('$', '\\$')
    return f'| [`{d.name}`](#{label(stem, d.name)}) | {said} |'

def face(book) -> list: # of (chapter, definition)
    "What the module `all` gives, in its order"
    if not (stem := book.modules.get('all')): return []
    given = next(ast.literal_eval(s.value) for c in book.nbs[stem].cells for s in code(c)
                 if isinstance(s, ast.Assign) and getattr(s.targets[0], 'id', '')=='_all_')
    at = [book.imported[stem][n] for n in given]
    return [next((s, d) for c in book.nbs[s].cells if exported(c) for d in code(c) if getattr(d, 'name', '')==n) for s,n in at]

def listing(book) -> str:
    "All names of the package, first those that most work needs"
    first, at = face(book), book.modules.get('all')
    out = ['# Reference\n\n{.claim}\nThe names that most work needs, then every function and class, by chapter; '
           'each name leads to its code and its arguments']
    if first: out += [f'## What most work needs\n\n`from bpc_nb.all import *` gives these {len(first)} names, from [{at}]({at}.ipynb)',
                      '\n'.join(['| | |', '|---|---|', *(entry(*e) for e in first)])]
    for s,nb in book.nbs.items():
        defs = [d for c in nb.cells if exported(c) for d in code(c) if isinstance(d, (ast.FunctionDef, ast.ClassDef))]
        if defs: out += [f'## {title(nb)}\n\n`bpc_nb.{module(nb)}`, from [{s}]({s}.ipynb)', '\n'.join(['| | |', '|---|---|',
            *(entry(s, d) for d in defs)])]
    return '\n\n'.join(out)

def chapter_of(book, m): return book.modules.get(m.make.__module__.removeprefix('bpc_nb.')) # m: of the registry

def equation_of(book, name) -> str:
    "A method's own formula in its chapter"
    from bpc_nb.core import registry
    m = registry()[name]
    first = next(n for n,o in registry().items() if o.make.__module__==m.make.__module__)
    return cards.equation_of(name, book.nbs[chapter_of(book, m)], first==name)

def method_card(book, name, m, groups) -> str:
    "A method's card, with what its chapter says of it"
    stem = chapter_of(book, m)
    cell = next(c for c in book.nbs[stem].cells if exported(c) and m.make.__name__ in names(c))
    formula, other = cards.equation(name, partial(equation_of, book)), pictures.of_method(name, book.nbs, RESULTS, EXTRA)
    return cards.card(name, m, stem, title(book.nbs[stem]), formula, reference(book, stem, cell), groups, RESULTS, EXTRA, other)

def points_card(book, name, p, lines, folder) -> str: # p: of `cards.POINTS`; folder: whose files go beside the pages
    "The same of a method that makes points for a regression"
    stem, cell = next((s, c) for s,nb in book.nbs.items() for c in nb.cells if exported(c) and p.by in names(c))
    f = next(d for d in code(cell) if isinstance(d, ast.FunctionDef) and d.name==p.by)
    idea = (ast.get_docstring(f) or '').partition('\n')[0]
    chart = pictures.points_chart(name, p.way, [o.way for o in cards.POINTS.values()], lines, folder)
    return cards.points_card(name, p, stem, title(book.nbs[stem]), book.nbs[stem], idea, reference(book, stem, cell), lines, chart)

def equations(book) -> str:
    "From the paper's equations to where they are derived and what implements them"
    rows = [(int(n), ', '.join(f'[{title(book.nbs[s])}](#eq-{s}-{n})' for s in dict.fromkeys(at) if s!='index'), ', '.join(f'[`{f}`](#{label(s, f)})' for s,f in book.code.get(('', n), ())))
            for (f, n),at in book.tags.items() if not f and n.isdigit()]
    return '# Equations\n\n{.claim}\nOf *Constructing Bayesian Pseudo-Coresets using Contrastive Divergence*: where each is derived, and the code that says so in its first line\n\n' + '\n'.join(
        ['| Eq. | derived in | code |', '|---|---|---|', *(f'| {n} | {at} | {by} |' for n,at,by in sorted(rows))])

def write(path, text):
    "Only what changed, so that Sphinx reads no more than that"
    if not path.exists() or path.read_text(encoding='utf-8')!=text: path.write_text(text, encoding='utf-8')


# --- from pages to a site ------------------------------------------------------------------------------------------------------
class Links(HTMLParser):
    "What a page points to, and what can be pointed at"
    def __init__(self): super().__init__(); self.to, self.ids, self.seen, self.twice = [], set(), set(), []
    def handle_starttag(self, tag, attrs):
        a = dict(attrs)
        if a.get('id') in self.seen: self.twice.append(a['id'])
        self.seen |= {a['id']} if a.get('id') else set()
        self.ids |= {a[k] for k in ('id','name') if a.get(k)}
        self.to += [(tag, a[k]) for k in ('href','src') if a.get(k)]

def broken(folder) -> list:
    "Links and images that lead nowhere, places that are there twice, and files that would be fetched from elsewhere"
    pages = {}
    for p in sorted(Path(folder).rglob('*.html')): pages[p.resolve()] = l = Links(); l.feed(p.read_text(encoding='utf-8'))
    out = []
    for p,l in pages.items():
        out += [f'{p.name}: the place #{i} is there twice' for i in dict.fromkeys(l.twice)]
        for tag,to in l.to:
            u = urlsplit(to)
            if u.scheme or u.netloc:
                if tag!='a' and u.scheme!='data' and tag!='link' or tag=='link' and to.endswith('.css'): out.append(f'{p.name}: <{tag}> is fetched from {to}')
                continue
            at = (p.parent/unquote(u.path)).resolve() if u.path else p
            if not at.exists(): out.append(f'{p.name}: {to} is not there')
            elif u.fragment and at in pages and unquote(u.fragment) not in pages[at].ids: out.append(f'{p.name}: {to} has no such place')
    return out

def located(said, sources) -> str:
    "A warning of Sphinx in terms of the notebook: chapter and cell"
    def name(m):
        stem, n = m[1], int(m[2] or 0)
        if stem not in sources: return m[0]
        i = sources[stem][1][max(0, min(n//10000-1, len(sources[stem][1])-1))] if n >= 10000 else 0
        return f'{where(stem, i, sources[stem][0].cells[i])}:'
    return re.sub(r'\S*?pages/(\w+)\.(?:ipynb|md):(?:(\d+):)?', name, re.sub(r'\x1b\[[\d;]*m', '', said))

def build(run=False) -> list: # of sentences; none: all is well
    "Pages, then Sphinx, then every link"
    stems = ['index', *sorted(p.stem for p in NBS.glob('[0-9]*.ipynb'))]
    try: nbs = execute_all(stems) if run else {s:read(s) for s in stems}
    except Broken as e: return [str(e)]
    book, made = Book(nbs), {s:None for s in stems}
    PAGES.mkdir(parents=True, exist_ok=True)
    for s in stems:
        nb, made[s] = page(book, s)
        if s=='index':
            by = parts(stems)
            toc = [f'```{{toctree}}\n:hidden:\n:caption: {t}\n\n' + '\n'.join(c) + '\n```' for t,c in (by | {'Look up': by.get('Look up', []) + MADE}).items()]
            nb.cells.append(new_markdown_cell('\n\n'.join(toc))); made[s].append(0)
        for k,c in enumerate(nb.cells): c.id = f'{s}-{k}'[-60:]
        write(PAGES/f'{s}.ipynb', nbformat.writes(nb))
    from bpc_nb.core import registry
    groups, texts = lookup.measured(RESULTS), {s:'\n'.join(c.source for c in nb.cells) for s,nb in nbs.items()}
    shutil.rmtree(EXTRA, ignore_errors=True); EXTRA.mkdir()
    extra = dict(reference=listing(book), equations=equations(book), sources=lookup.sources(book.citations.entries, book.cited, {s:title(nb) for s,nb in nbs.items()}),
                 all_results=lookup.all_results(groups, lookup.of_scripts(groups, RESULTS, texts)),
                 gallery=lookup.gallery(groups, RESULTS, EXTRA, pictures.sections(nbs, EXTRA)), changelog=CHANGES.read_text(encoding='utf-8').replace('](nbs/', ']('))
    methods = registry()
    at = {name:s for name,m in methods.items() if (s := chapter_of(book, m))}
    from bpc_nb.lines import found
    points = [points_card(book, name, p, found('points', RESULTS), EXTRA) for name,p in cards.POINTS.items() if '850_study' in nbs]
    extra['methods'] = cards.cards([method_card(book, name, methods[name], groups) for name in sorted(at, key=at.get)], points)
    for k,text in extra.items(): write(PAGES/f'{k}.md', text)
    shutil.copy(lookup.BIB, PAGES)
    for p in PAGES.iterdir():
        if p.is_file() and p.stem not in made and p.stem not in extra: p.unlink()
    from sphinx.cmd.build import build_main
    os.environ['PATH'] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    kept = HTML.parent/'_doctrees' # what Sphinx read, for the next time
    kept.mkdir(parents=True, exist_ok=True)
    warned = kept/'warnings'
    stderr, sys.stderr = sys.stderr, io.StringIO() # said once, below, by chapter and cell
    try: rc = build_main(['-q', '-W', '--keep-going', '--no-color', '-w', str(warned), '-d', str(kept), '-c', str(ROOT/'docs'), '-D', f'html_extra_path={EXTRA}', str(PAGES), str(HTML)]); told = sys.stderr.getvalue()
    finally: sys.stderr = stderr
    sources = {s:(nbs[s], made[s]) for s in stems}
    said = [located(l, sources) for l in warned.read_text().splitlines() if l.strip()]
    return said or ([located(told, sources)] if rc else broken(HTML))

if __name__=='__main__':
    if '--sidebar' in sys.argv:
        write(NBS/'sidebar.yml', sidebar(p.stem for p in NBS.glob('[0-9]*.ipynb')))
        write(NBS/'_quarto.yml', (ROOT/'_quarto.yml').read_text())
    elif bad := build('--run' in sys.argv): sys.exit('\n'.join(bad) + f'\nthe site was not built: {len(bad)} things to mend')
    else: print(HTML/'index.html')
