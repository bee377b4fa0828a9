"""Pages to look things up, which docs/build.py makes beside the chapters: sources with what cites them, all results, a gallery."""
import ast, html, re, unicodedata
from pathlib import Path
from statistics import mean
from typing import NamedTuple

from pybtex.database import parse_file

from bpc_nb.core import registry

ROOT = Path(__file__).resolve().parents[1]
BIB = ROOT/'docs'/'sources.bib'


# --- sources -------------------------------------------------------------------------------------------------------------------
def plain(tex) -> str:
    "BibTeX's braces and accents as letters"
    return re.sub(r'[{}]', '', re.sub(r'\\(["`\'])\{?(\w)\}?', lambda m: unicodedata.normalize('NFC', m[2] + {'"':'\u0308', '`':'\u0300', "'":'\u0301'}[m[1]]), tex)).replace(r'\&', '&')

def families(entry) -> list: return [plain(' '.join(p.prelast_names + p.last_names)) for p in entry.persons['author']]
def and_(words) -> str: return ' and '.join(filter(None, [', '.join(words[:-1]), words[-1]]))

def bibliography(path=BIB) -> dict: return dict(parse_file(str(path)).entries)

def cited_as(entry) -> str:
    "How a text names the authors: Kim et al., Zhao and Bilen, Zhao, Mopuri and Bilen"
    who = families(entry)
    both = [f'{re.escape(who[0])} et al\\.'] if len(who) > 2 else []
    return '|'.join([re.escape(and_(who)), *both])

class Citations:
    "Finds what a text cites, by authors and year, or by authors and title"
    def __init__(self, entries):
        self.entries = entries
        each = sorted(entries.items(), key=lambda e: -len(families(e[1])))
        self.names = re.compile(r'(?<![\w-])(?:' + '|'.join(dict.fromkeys(n for _,e in each for n in cited_as(e).split('|'))) + r")(?![\w-])")
        self.by = [(k, re.compile(cited_as(e)), {e.fields['year'], *re.findall(r'\d{4}', e.fields.get('also', ''))}, plain(e.fields['title']), e.fields.get('short'))
                   for k,e in entries.items()] # short: a name by which a paper is told from another of the same authors and year

    def found(self, text): # yields (match of the names, key or None)
        for m in self.names.finditer(text):
            after = text[m.end():m.end()+190]
            said = re.match(r"[,;]?(?:'s?|’s?)? *\(?(?:\*([^*]+)\*)?[^()\d]{0,60}?(?:\[|\b)((?:19|20)\d\d)\b", after)
            if not said: continue
            fits = [k for k,names,years,title,short in self.by if names.fullmatch(m[0]) and said[2] in years
                    and (title.lower().startswith(plain(said[1]).lower()[:12]) if said[1] else not short or short in after[:30])]
            yield m, min(fits, key=lambda k: 'short' not in self.entries[k].fields) if fits else None

    def linked(self, text) -> str:
        "The same text, each citation a link"
        for m,k in [*self.found(text)][::-1]:
            if k: text = f'{text[:m.start()]}[{m[0]}](#source-{k}){text[m.end():]}'
        return text

def where_to(entry) -> str:
    "A link to a paper that its authors give away, if it has one"
    f = entry.fields
    return f" [arXiv {f['eprint']}](https://arxiv.org/abs/{f['eprint']})" if 'eprint' in f else f" [online]({f['url']})" if 'url' in f else ''

def sources(entries, cited, titles) -> str: # cited: key -> stems of chapters; titles: stem -> title
    "Every paper once, oldest first, and the chapters that cite it"
    out = ['# Sources\n\n{.claim}\nEvery paper that the book cites, oldest first, with the chapters that cite it; all of them in one [BibTeX file](sources.bib)']
    for k,e in sorted(entries.items(), key=lambda e: (e[1].fields['year'], families(e[1]))):
        at = next((e.fields[f] for f in ('booktitle','journal','publisher') if f in e.fields), 'arXiv')
        by = ', '.join(f'[{titles[s]}]({s}.ipynb)' for s in sorted(cited.get(k, ())))
        out.append(f"(source-{k})=\n{and_(families(e))}. *{plain(e.fields['title'])}.* {at}, {e.fields['year']}.{where_to(e)}" + (f'\n\n{{.cited}}\nin {by}' if by else ''))
    return '\n\n'.join(out)


# --- results -------------------------------------------------------------------------------------------------------------------
COMPUTED = {'bf16','compile','every','select_runs','select_protocol','select_evaluator','net'} # options that change how, not what, or have a column

def differing(method, config, usual) -> list: # of words
    "What a configuration has other than the recipe of today, in words; an option that it does not name had its default"
    from bpc_nb.distill import defaults
    from bpc_nb.cells import CELL, cell_options
    from bpc_nb.learn import Method
    known = defaults(Method(lambda task: None)) | defaults(registry()[method])
    asked, today = (cell_options(CELL | dict(method=method, config=known | c))['config'] for c in (config, usual))
    def word(k, v): return f'{k}={v:g}' if isinstance(v, (int, float)) and not isinstance(v, bool) else f'{k}={v}'
    out = [word(k, (known | config)[k]) for k in {**asked, **today} if k not in COMPUTED and k!='experts' and asked.get(k)!=today.get(k)]
    a, b = asked['experts'], today['experts']
    return out + [f'experts: {k} {v:g}' if isinstance(v, (int, float)) else f'experts: {k} {v}' for k,v in a.items() if k not in COMPUTED and b.get(k)!=v]

def named(line) -> str:
    "A line's method, with what differs from its recipe"
    from bpc_nb.distill import configure
    try: usual = configure(line['method'], line['data'].split()[0], line['ipc'])
    except (ValueError, KeyError): usual = {}
    return ', '.join([line['method'], *['whitened']*bool(line.get('zca')), *differing(line['method'], line['config'], usual)])

def measured(results) -> dict: # (data, images per class, method with its options, network, evaluator, protocol, study) -> lines
    "Lines of all grids, those that differ in seed or fold together"
    from bpc_nb.lines import done
    from bpc_nb.tables import homes
    home, out = homes(results), {}
    for r in done(results).values():
        if 'config' in r: out.setdefault((r['data'], r['ipc'], named(r), r.get('net', ''), r.get('evaluator', 'students'), r['protocol'], home[r['key']]), []).append(r)
    return dict(sorted(out.items(), key=lambda o: tuple(map(str, o[0]))))

def spread(lines, key) -> str:
    "Mean and deviation over the runs of some lines, in percent"
    from bpc_nb.tables import DASH, percent
    return percent(lines, key) if all(key in r for r in lines) else DASH

def average(lines, key, digits=2) -> str:
    return f'{mean(r[key] for r in lines):.{digits}f}' if all(isinstance(r.get(key), (int, float)) for r in lines) else '–'

HEAD = ['data', 'images per class', 'method, and what differs from its recipe', 'accuracy', '8 bit', 'random real', 'NLL', 'ECE', 'coresets', 'evaluated by', 'network', 'minutes', 'cells']

def row(at, lines) -> list:
    data, ipc, name, net, evaluator, protocol, study = at
    took = [r['seconds']['distill']/60 for r in lines if isinstance(r.get('seconds'), dict) and 'distill' in r['seconds']]
    return [data, ipc, name, *(spread(lines, f'accuracy_runs{of}') for of in ('','_8bit','_random')), average(lines, 'nll_mean'), average(lines, 'ece_mean', 3), len(lines),
            protocol if evaluator=='students' else f'{evaluator}, {protocol}', net, f'{mean(took):.1f}' if took else '–', f"{study}: {', '.join(r['key'][:6] for r in lines)}"]

def cites(name, stem, text) -> bool: # name: of a file of lines; stem, text: of a chapter
    return name.rstrip('s') in stem or re.search(rf"'{name}'|\b{name}\.(?:py|jsonl)\b", text) is not None

def told(results) -> list: # of (names of files, who measured, [(title, stem)])
    "What results/README.md says of files of lines"
    said = results/'README.md'
    rows = [l.split('|') for l in said.read_text(encoding='utf-8').splitlines() if l.count('|')==4] if said.exists() else []
    links = lambda cell: re.findall(r'\[([^]]+)\]\(\.\./nbs/(\w+)\.ipynb\)', cell)
    return [(re.findall(r'`([\w-]+)`', names), by.strip(), links(at)) for _,names,by,at,_ in rows if links(at)]

def readers(results, texts) -> dict: # texts: stem of a chapter -> source; name of a file -> [(title, stem)]
    "Which chapters show a file's lines: those that results/README.md names, of these the ones that cite it, if any does"
    return {name:[k for k in links if cites(name, k[1], texts.get(k[1], ''))] or links for names,_,links in told(results) for name in names}

def script_of(path, results) -> Path|None: # path: of a file of lines
    "Who wrote a file: the script of its name, one that results/README.md names, or the one of a file in the same row"
    row = next(((by, names) for names,by,_ in told(results) if path.stem in names), ('', ()))
    names = path.stem, *re.findall(r'script `(\w+)`', row[0]), *row[1]*path.stem.startswith(tuple(f'{n}_' for n in row[1]))
    return next((p for n in names if (p := path.with_name(f'{n}.py')).exists()), None)

def measures(path) -> str: # of a script
    "Its first sentences: the first paragraph of its docstring"
    return ' '.join((ast.get_docstring(ast.parse(path.read_text(encoding='utf-8'))) or '').partition('\n\n')[0].split()).rstrip('.')

class Script(NamedTuple):
    "Lines that no grid has"
    name: str # of the script in results/, or of the file where a command wrote it
    what: str # it measures
    lines: int
    at: list # (title, stem) of the chapters that show them

def of_scripts(groups, results, texts) -> list: # of `Script`
    "Scripts and commands whose lines are not in the table, and the chapters that show them"
    from bpc_nb.lines import line_files, lines
    shown, at, out = {r['key'] for rows in groups.values() for r in rows}, readers(results, texts), {}
    by = {name:who.replace('`', '') for names,who,_ in told(results) for name in names}
    for p in line_files(results):
        n, script = sum('config' not in r or r.get('key') not in shown for r in lines(p)), script_of(p, results)
        if not n or p.stem not in at: continue
        name, what = (script or p).relative_to(results).as_posix(), measures(script) if script else f'measured by: {by[p.stem]}'
        before = out.get(name, Script(name, what, 0, []))
        out[name] = before._replace(lines=before.lines + n, at=[*dict.fromkeys(before.at + at[p.stem])])
    return [*out.values()]

def elsewhere(scripts) -> str: # of `Script`
    "Where lines are that no grid has, as a table that the page's field searches, too"
    if not scripts: return ''
    links = lambda at: ', '.join(f'<a href="{s}.html">{html.escape(t)}</a>' for t,s in at)
    rows = [f'<tr><td><code>{s.name}</code></td><td>{html.escape(s.what)}</td><td>{s.lines}</td><td>{links(s.at)}</td></tr>' for s in scripts]
    head = ''.join(f'<th>{h}</th>' for h in ('in <code>results/</code>', 'what it measures', 'lines', 'shown in'))
    return f"""
(lines-of-scripts)=
## Lines of scripts

{sum(s.lines for s in scripts)} lines are of scripts and commands, and have fields of their own. A row is a script, or a file that a command wrote:

<div class="wide"><table class="searched scripts"><thead><tr>{head}</tr></thead><tbody>
{chr(10).join(rows)}
</tbody></table></div>
"""

def all_results(groups, scripts=()) -> str: # of `measured` and of `of_scripts`
    "A page with one table, which a script of the page searches and sorts"
    rows = [row(*g) for g in groups.items()]
    cells = lambda r, tag: ''.join(f'<{tag}>{html.escape(str(c))}</{tag}>' for c in r)
    table = '\n'.join(f'<tr>{cells(r, "td")}</tr>' for r in rows)
    return f"""# All results

{{.claim}}
{len(rows)} rows from the {sum(map(len, groups.values()))} lines of the grids: search for words, click a column to sort

{'Lines of scripts are in their chapters: a [second table](#lines-of-scripts) has a row for each script, and the field searches both tables. '*bool(scripts)}
Several words narrow the table together: `cifar10 fkl`. Accuracies are in percent, means and deviations over the students of all coresets of a row; minutes are those of one coreset on the machine that made it, and
machines differ. The last column names the grid and its cells: `bpc grid results/STUDY/NAME.toml --only CELLS --results again` runs them once more. What rows mean together is said in the part on results.

<div class="wide"><table class="searched cells"><thead><tr>{cells(HEAD, 'th')}</tr></thead><tbody>
{table}
</tbody></table></div>
{elsewhere(scripts)}"""


# --- gallery -------------------------------------------------------------------------------------------------------------------
MOST = 10 # images of a class that are shown
SMALL = 200 # pixels: a folded picture that is narrower is shown twice as large

def without(hidden:int) -> str: # rows
    "What the gallery leaves out, in a sentence"
    why = 'no coreset was kept, or it has no images'
    return f"{hidden} row{'s are' if hidden > 1 else ' is'} not here: {why}." if hidden else 'No row is left out.'

def sized(path, times=1) -> str: # path: of a PNG
    "Width and height for HTML, so that a page keeps its place while pictures load"
    w, h = (times*int.from_bytes(path.read_bytes()[i:i+4], 'big') for i in (16, 20))
    return f'width="{w}" height="{h}"'

def picture(path, S) -> int: # width in pixels
    "At most ten images of a class side by side, one row for each class, or all in one row where a class has one"
    from PIL import Image
    from bpc_nb.show import class_rows, sheet
    by = class_rows(S.y)
    rows = [[i for k in by for i in by[k]]] if max(map(len, by.values()))==1 else [by[k][:MOST] for k in by]
    art = (sheet(S.pixels(clamp=True).float(), [r[:MOST] for r in rows])*255).round().byte().numpy()
    Image.fromarray(art).save(path, optimize=True)
    return art.shape[1]

def drawn(path, folder, said, below=700) -> str: # path: of a coreset; said: in words; below: this width a picture is shown twice as large
    "A coreset's images as a picture of the page; '': it has no images"
    from bpc_nb.core import Coreset
    S = Coreset.load(path)
    if S.x.ndim!=4: return ''
    width = picture(file := folder/'gallery'/f'{path.stem}.png', S.examples() if S.decode!='identity' and S.kept is None else S) # whitened: as stored
    return f'<img src="gallery/{file.name}" {sized(file, 2 if width<below else 1)} alt="{said}" loading="lazy">'

def others(kept, folder, name) -> str: # kept: (line, path of its coreset), of the row's lines but the first; '': there are none
    "Coresets of a row that differ from the first in seed or fold, folded and smaller"
    def one(r, path):
        drew = ', '.join(f'{k} {r[k]}' for k in ('seed','fold') if r.get(k) is not None)
        which = html.escape(f'{drew}: {spread([r], "accuracy_runs")} %')
        return f'<figure class="art">{drawn(path, folder, f"{html.escape(name)}, {which}", SMALL)}<figcaption>{which}</figcaption></figure>'
    if not kept: return ''
    return f'<details class="others"><summary>other seeds and folds: {len(kept)}</summary>{"".join(one(*k) for k in kept)}</details>'

def gallery(groups, results, folder, more=()) -> str: # groups: of `measured`; folder: whose files go beside the pages; more: (key, title, section)
    "The coresets of every row of results, as students see their images, all but the first folded; then what no grid has"
    from bpc_nb.lines import coreset_file
    (folder/'gallery').mkdir(exist_ok=True)
    out, rows, hidden, shown = [], 0, 0, 0
    for at,lines in groups.items():
        data, ipc, name, net, evaluator, protocol, study = at
        kept = [(r, p) for r in lines if 'coreset' in r and (p := coreset_file(r, results))]
        said = html.escape(f'{name}: {spread(lines, "accuracy_runs")} %')
        first = kept and drawn(kept[0][1], folder, said)
        if not first: hidden += 1; continue
        head = f'## {data}, {ipc} image{"s"*(ipc > 1)} per class' + ', the first ten of each'*(ipc > MOST)
        if head not in out: out.append(head)
        by = html.escape(f'{net}, {protocol}, {study}')
        out.append(f'<figure class="art">{first}<figcaption>{said} <small>{by}</small></figcaption></figure>{others(kept[1:], folder, name)}')
        rows, shown = rows + 1, shown + len(kept)
    below = 'What no grid has stands below: ' + ', '.join(f'[{title.lower()}](#gallery-{k})' for k,title,_ in more) + '.' if more else ''
    return f"""# Gallery

{{.claim}}
What was learned: the images of {shown} coreset{'s'*(shown!=1)}, for {rows} row{'s'*(rows!=1)} of [all results](all_results.md)

A picture is the first coreset of a row. The row's other coresets, of other seeds or folds, are folded below it.
A row's accuracy is the mean over all its coresets.

Where a class has one image, the row shows the classes in order; otherwise each class has a row, of at most {MOST} images.
Values outside of what a screen can show are cut off. {without(hidden)}
{below}

""" + '\n\n'.join(out + [f'(gallery-{k})=\n## {title}\n\n{text}' for k,title,text in more]) + '\n'
