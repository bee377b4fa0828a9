"""Cards of methods, which docs/build.py puts on one page: idea, when to use it, equation, figures, cost, where it is."""
import re
from collections import Counter
from math import exp, log
from statistics import mean, stdev
from typing import NamedTuple

from lookup import average, differing, sized, spread


# --- equations -----------------------------------------------------------------------------------------------------------------
MARK = r'<!-- equation of ([\w-]+) -->\s*'
BEGINS = {'dwa':r'\Delta_k'} # how a method's formula begins, where its chapter marks none and it is not the chapter's first method
LIKE = { # a variant -> (the method whose equation it has, what is different)
    'cd-both':('cd', ''), 'cd-nets':('cd', ''), 'cd-late':('cd', ''), 'cd-persistent':('cd', ''),
    'dsa':('dc', ', with augmented images on both sides'), 'cafe-dsa':('cafe', ', with augmented images'),
    'sldd':('dd', ', where labels are learned, too'), 'tdd':('dd', ', with sentences for images, and learned labels')}

def equation_of(name, nb, first:bool) -> str: # first: whether it is the chapter's first method
    "The formula that a chapter marks as a method's; without any mark, the first method has the first one"
    text = '\n\n'.join(c.source for c in nb.cells if c.cell_type=='markdown')
    marked, every = dict(re.findall(MARK + r'\$\$(.+?)\$\$', text, re.S)), re.findall(r'\$\$(.+?)\$\$', text, re.S)
    begins = next((f for f in every if name in BEGINS and f.startswith(BEGINS[name])), '')
    found = marked.get(name) or begins or (every[0] if every and first and not marked else '')
    return re.sub(r'\s*\\tag\{[^}]*\}', '', found).strip()

def equation(name, of) -> str: # of: a method -> its own formula, or ''
    "A method's formula, or that of the method it is a variant of, as it stands on a card; '': its chapter has none"
    if own := of(name): return f'$$\n{own}\n$$'
    if name not in LIKE: return ''
    base, different = LIKE[name]
    return f'The equation is that of [`{base}`](#method-{base}){different}:\n\n$$\n{of(base)}\n$$'


# --- figures -------------------------------------------------------------------------------------------------------------------
class Row(NamedTuple):
    "One line of a card's table"
    data: str
    ipc: int
    accuracy: str # in percent
    random: str # the same of random real images
    nll: str
    coresets: int
    seconds: float|None # of learning one coreset
    by: str # who evaluated it
    differs: str # from the recipe
    lines: tuple = () # of a grid

def evaluator_of(name, groups) -> str: # '': no grid has the method
    "Who evaluated a method's coresets: students, or who evaluated most of them"
    asked = Counter(at[4] for at,lines in groups.items() for r in lines if r['method']==name)
    return 'students' if 'students' in asked else max(asked, key=asked.get, default='')

def usual_rows(name, groups) -> list: # of `Row`
    "What a method reaches on each data set and size, by today's recipe where it was measured"
    from bpc_nb.distill import configure
    from bpc_nb.tables import label
    at, evaluator = {}, evaluator_of(name, groups)
    for (data, ipc, said, net, by, protocol, _),lines in groups.items():
        if (lines[0]['method'], by)!=(name, evaluator) or label(lines[0])=='L=0': continue
        other = f', net={net}'*(net!=configure(name, data.split()[0], ipc)['net'])
        who = protocol if by=='students' else f'{by}, {protocol}'
        at.setdefault((data, ipc, said + other), {}).setdefault(who, []).extend(lines) # of all studies
    best = {}
    for (data, ipc, said),of in at.items(): # the fewest differences, then the most coresets
        who, lines = max(of.items(), key=lambda o: len(o[1]))
        if (data, ipc) not in best or rank(said, lines) < rank(*best[data, ipc][::2]): best[data, ipc] = said, who, lines
    return [grid_row(*k, *v) for k,v in best.items()]

def rank(said, lines) -> tuple: return said.count(','), -len(lines)

def grid_row(data, ipc, said, by, lines) -> Row:
    took = [r['seconds']['distill'] for r in lines if isinstance(r.get('seconds'), dict) and 'distill' in r['seconds']]
    return Row(data, ipc, spread(lines, 'accuracy_runs'), spread(lines, 'accuracy_runs_random'), average(lines, 'nll_mean'), len(lines),
               mean(took) if took else None, by, said.partition(', ')[2], tuple(lines))


# --- figures of methods that no grid has ---------------------------------------------------------------------------------------
def percent(values) -> str:
    "Mean and deviation over coresets"
    v = [100*x for x in values]
    return (f'{mean(v):.1f}' + (f' ± {stdev(v):.1f}' if len(v) > 1 else '')) if v else '–'

def different(method, data, ipc, options) -> str:
    "What a script's options have other than the recipe"
    from bpc_nb.distill import configure
    usual = configure(method, data, ipc)
    return ', '.join(differing(method, usual | options | dict(experts=usual['experts'] | options.get('experts', {})), usual))

def exact_rows(lines) -> list:
    return [Row(r['data'], r['ipc'], percent([r['exact']]), percent([r['random']]), '–', 1, r['seconds']['distill'],
                f"ridge, {r['net']}", '') for r in lines]

def gtn_rows(lines) -> list:
    by = {}
    for r in lines:
        if r['what']=='curriculum': by.setdefault((r['data'], r['ipc']), []).append(r)
    return [Row(*at, percent(r['accuracy_mean'] for r in rs), '–', average(rs, 'nll_mean'), len(rs), mean(r['seconds'] for r in rs),
                f"{rs[0]['protocol']}, {rs[0]['net']}", different('gtn', *at, rs[0]['config'])) for at,rs in by.items()]

def tdd_rows(lines) -> list:
    control = {r['data']:r['dc'] for r in lines if r['method']=='random'}
    return [Row(r['data'], r['ipc'], percent([r['accuracy_mean']]), percent([control[r['data']]]), average([r], 'nll_mean'), 1,
                r['seconds'], f"own steps, {r['net']}", different('tdd', r['data'], r['ipc'], r['options']))
            for r in lines if r['method']=='learned']

def mnemonics_rows(lines) -> list:
    "Networks that are trained on the memory alone, once all classes are there"
    by = {}
    for r in lines: by.setdefault((r['data'], r['per_class'], r['net'], r['protocol']), {}).setdefault(r['method'], []).append(r)
    def row(data, ipc, net, protocol, own, random):
        ends = lambda rs: [r['memory'] for r in rs if r['stage']==4]
        took = sum(r['seconds']['memory'] for r in own)/len(ends(own))
        return Row(data, ipc, percent(ends(own)), percent(ends(random)), '–', len(ends(own)), took, f'{protocol}, {net}',
                   'classes come in five stages')
    return [row(*at, of['mnemonics'], of.get('random', [])) for at,of in by.items() if 'mnemonics' in of]

def means_rows(lines) -> list:
    at = {r['name']:r for r in lines}
    return [Row('digits', r['ipc'], percent([r['accuracy']]), percent([at['random']['accuracy']]), '–', r['runs'], None,
                f"quick, {r['net']}", 'random halves of the training images') for r in lines if r['name']=='k-means' and 'random' in at]

SCRIPTED = { # a method that no grid has -> (the script, its rows)
    'exact':('families/exact', exact_rows), 'gtn':('families/gtn', gtn_rows), 'tdd':('families/words', tdd_rows),
    'mnemonics':('uses/memory', mnemonics_rows), 'k-means':('uses/shadows', means_rows)}

def scripted_rows(name, results) -> list: # of `Row`
    from bpc_nb.lines import lines
    return (of := SCRIPTED.get(name)) and of[1](lines(results/f'{of[0]}.jsonl')) or []

def length(seconds) -> str: # None: not measured
    return '–' if seconds is None else '< 1 s' if seconds < 1 else f'{seconds:.0f} s' if seconds < 100 else f'{seconds/60:.0f} min'

def figures(name, rows, evaluator) -> str: # evaluator: '': no grid has the method
    "A card's table, and who evaluated it where that were not students"
    if not rows: return 'It was not evaluated by itself.'
    head = ['data', 'images per class', 'accuracy', 'random real', 'NLL', 'coresets', 'learned in', 'evaluated by',
            'differs from the recipe in']
    cells = [r._replace(seconds=length(r.seconds))[:len(head)] for r in rows]
    table = '\n'.join('| ' + ' | '.join(map(str, r)) + ' |' for r in (head, ['---']*len(head), *cells))
    script = f'`python results/{SCRIPTED[name][0]}.py`' if not evaluator else ''
    who = {'students':'', '':f'No grid has this method. The figures are those of {script}; deviations are over coresets.'}
    said = who.get(evaluator, f'The figures are those of the evaluator `{evaluator}`, which most of its coresets had.')
    return f'{said}\n\n{table}'.strip()


# --- a card --------------------------------------------------------------------------------------------------------------------
EXAMPLE = {'tdd':('trec6', 20)} # data and size of the command, where they are not digits and one image per class

def with_experts(name, rows) -> bool: # whether networks were trained before the lines of a grid
    from bpc_nb.distill import wants
    return any('experts' in wants(name, l['config']) for r in rows for l in r.lines)

def planned(name, results) -> str: # '': not planned
    "Time and memory of a whole run, as `bpc plan` found them"
    from bpc_nb.lines import found
    by = {(r['data'], r['ipc']):(r['seconds'], r['memory_mb']) for r in found('costs', results) if r['method']==name} # the last one counts
    said = lambda s, mb, data, ipc: f'{s:.0f} s' + f' and {mb:.0f} MB'*(mb >= 1) + f' on {data} with {ipc} per class'
    return '; '.join(said(*cost, *at) for at,cost in by.items())

def costs(name, rows, results) -> str:
    "What a method costs, in a sentence: planned, or in the lines of its table"
    if of := planned(name, results): return f'A whole run takes {of} ([who wins](982_winners.ipynb)).'
    if all(r.seconds is None for r in rows): return 'Its cost was not measured.'
    before = ', and the networks that are trained first are not in it'*with_experts(name, rows)
    return f'Its cost is the column *learned in*: the time of one coreset. Machines differ{before}.'

def art(name, rows, results, folder) -> str: # '': no picture
    "The first of the gallery's pictures that is of a row of the card"
    from bpc_nb.lines import coreset_file
    kept = (p for r in rows for l in r.lines[:1] if 'coreset' in l and (p := coreset_file(l, results)))
    at = next((f for p in kept if (f := folder/'gallery'/f'{p.stem}.png').exists()), None)
    if not at: return ''
    image = f'<img src="gallery/{at.name}" {sized(at)} alt="images that {name} learned or chose" loading="lazy" style="width:30rem">'
    return f'<figure class="art">{image}</figure>'

def card(name, m, stem, heading, formula, arguments, # m: of the registry; arguments: folded, as HTML
         groups, results, folder, other='') -> str: # other: a figure where no grid has kept images
    "A method on a page; what is not there leaves no gap"
    idea, evaluator = (m.make.__doc__ or '').strip().partition('\n')[0], evaluator_of(name, groups)
    rows = usual_rows(name, groups) if evaluator else scripted_rows(name, results)
    data, ipc = EXAMPLE.get(name, ('digits', 1))
    at = f'[{heading}]({stem}.ipynb) · `{m.make.__module__}` · `bpc distill {data} --method {name} --ipc {ipc}`'
    out = [f'(method-{name})=\n## `{name}`', f'{idea}. **Use it** {m.when}.', formula, figures(name, rows, evaluator),
           art(name, rows, results, folder) or other, costs(name, rows, results), f'{{.cited}}\n{at}']
    return '\n\n'.join([o for o in out if o] + [arguments])


# --- points of regressions -----------------------------------------------------------------------------------------------------
class Points(NamedTuple):
    "A method that makes points for a regression"
    by: str # the function that makes them
    when: str # to use it
    way: str # its name in the lines
    begins: str # how its formula begins in its chapter; '': it has none

POINTS = {
    'random':Points('some_rows', 'as the control of all others', 'random', r'w_m = \frac NM'),
    'giga':Points('giga', 'where points have to be rows of the data, and chains would take too long', 'giga', r'\gamma'),
    'coreset-mcmc':Points('coreset_mcmc', 'where nothing may be assumed about the shape of a posterior', 'coreset-mcmc', r'\frac{\partial}'),
    'psvi':Points('psvi', 'where there are no draws of the posterior of all rows', 'psvi, all rows', r'\nabla_S\,\mathrm{KL}(q'),
    'black-box':Points('black_box', 'as PSVI, where draws of a Gaussian have to be corrected by weights', 'black box, all rows',
                       r'\mathrm{KL}(q'),
    'cd':Points('contrastive', 'where there are draws of the posterior of all rows', 'cd', r'\nabla_S\,\mathrm{KL}(p')}
MANY, NEEDED = 10_000, 100 # rows, points

def near(lines, model, way) -> list: # lines of one size
    return [r for r in lines if (r['model'], r['method'], r['rows'], r['columns'], r['points'])==(model, way, MANY, 10, NEEDED)]

def points_figures(p:Points, lines) -> str: # lines of results/posterior/points.jsonl
    "How near the posterior of a hundred points is to that of all rows, in three regressions"
    kl = lambda rs: f"{exp(mean(log(r['kl_gauss']) for r in rs)):.3g}"
    rows = [(m, kl(rs), kl(near(lines, m, 'random')), str(len(rs)), length(mean(r['seconds'] for r in rs)))
            for m in ('logistic','poisson','linear') if (rs := near(lines, m, p.way))]
    head = 'regression', 'KL of Gaussian fits', f'{NEEDED} random rows', 'seeds', 'made in'
    return '\n'.join('| ' + ' | '.join(r) + ' |' for r in (head, ['---']*len(head), *rows))

def points_card(name, p:Points, stem, heading, nb, idea, arguments, # idea: of its function; arguments: folded, as HTML
                lines, chart='') -> str:
    every = re.findall(r'\$\$(.+?)\$\$', '\n\n'.join(c.source for c in nb.cells if c.cell_type=='markdown'), re.S)
    formula = next((f'$$\n{f.strip()}\n$$' for f in every if p.begins and f.strip().startswith(p.begins)), '')
    at = f'[{heading}]({stem}.ipynb) · `bpc distill TABLE --label COLUMN --model NAME --method {name}`'
    out = [f'(points-{name})=\n### `{name}`', f'{idea}. **Use it** {p.when}.', formula, points_figures(p, lines), chart,
           f'{{.cited}}\n{at}', arguments]
    return '\n\n'.join(o for o in out if o)

def cards(made, points=()) -> str: # made: cards; points: those of methods that make points
    more = f"""

## Points of regressions

A few weighted points stand for the rows of a [regression](850_study.ipynb). The tables have {NEEDED} points for {MANY:,} simulated rows
with ten columns: the divergence of the points' posterior from that of all rows, by Gaussian fits, as a geometric mean over seeds
([where the title can be checked](848_near.ipynb)). PSVI, its black-box form and contrastive divergence have 500 steps
(`bpc distill`: 300), and the steps of all but contrastive divergence see all rows (`bpc distill`: 1,000 in a step).

""" + '\n\n'.join(points)
    return f"""# Methods

{{.claim}}
A card for each of {len(made)} methods: its idea, when to use it, its equation, what it reached, what it costs, where it is{f'; and for {len(points)} that make points' if points else ''}

The tables have the students of a data set's recipe. Where students evaluated none of a method's coresets, a sentence above the
table names who did. Where today's recipe of a method was not measured, the last column says what differs from it. All other rows
of the grids are in [all results](all_results.md).

""" + '\n\n'.join(made) + more*bool(points) + '\n'
