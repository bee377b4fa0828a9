"""Pictures for the cards and the gallery of what no grid has kept: outputs that chapters were saved with, and charts of lines."""
import base64, html
from math import exp, log
from pathlib import Path
from statistics import mean
from typing import NamedTuple

from lookup import picture, sized


# --- outputs of chapters -------------------------------------------------------------------------------------------------------
class Saved(NamedTuple):
    "A picture, or printed words, that a cell of a chapter was saved with"
    stem: str # of the chapter
    says: str # what no other cell with code of this chapter says
    caption: str

SAVED = {
    'exact':Saved('700_exact', "'8 bits, from real images':",
        'Ten images of digits that stand for all 1,294, near real images and near noise; '
        'pictures of 8 bits, made by steps, come near to that'),
    'tdd':Saved('770_words', "print(show_text(S['learned']))",
        'Three learned sentences of a small example, each by the words that are nearest to its vectors, '
        'and the accuracy of students on learned and on real sentences'),
    'gtn':Saved('780_gtn', "show_rows({'first step':",
        'What a generator made of digits: one image of each class in the first and in the last of eight steps'),
    'poison':Saved('790_poison', "'the attack, classes 2, 3 and 4':",
        'Images that shall make networks call a 3 an 8, and the real images of digits where they began'),
    'memory':Saved('870_memory', 'show_rows({',
        'A memory of five images per class, chosen by herding, after each of three arrivals of two classes'),
    'points':Saved('847_small', 'edgecolors=',
        'What a small network predicts given all 200 rows, given fifty random rows with weights, and given fifty points '
        'that contrastive divergence has moved; circles are points, their areas the weights'),
    'posteriors':Saved('844_points', 'distances(pos, q)["kl_gauss"]:.2f',
        'Draws of the posterior of 200 rows (grey) and of five points (blue): random rows with weights, points by PSVI, '
        'points by contrastive divergence')}

def outputs(nb, says) -> list: # nb: of a chapter
    "What the cell with these words was saved with"
    return next((c.outputs for c in nb.cells if c.cell_type=='code' and says in c.source), [])

def png_of(found) -> bytes: # b'': no picture; found: outputs
    return next((base64.b64decode(o.data['image/png']) for o in found if 'image/png' in o.get('data', {})), b'')

def words_of(found) -> str: # found: outputs
    return ''.join(o.text for o in found if o.output_type=='stream' and o.name=='stdout').strip()

def captioned(what, caption) -> str: # what: HTML
    return f'<figure class="art drawn">{what}<figcaption>{caption}</figcaption></figure>'

def kept(name, png, caption, folder, more='') -> str: # folder: whose files go beside the pages; more: HTML, behind the caption
    "A picture as a file beside the pages, and the figure that shows it"
    (folder/'gallery').mkdir(parents=True, exist_ok=True)
    (at := folder/'gallery'/f'{name}.png').write_bytes(png)
    said = html.escape(caption)
    return captioned(f'<img src="gallery/{at.name}" {sized(at)} alt="{said}" loading="lazy">', f'{said}.{more}')

def saved(name, nbs, folder) -> str: # '': the chapter is not there, or has no such output; nbs: stem -> notebook
    "The output of `SAVED` as a figure that leads to its chapter"
    stem, says, caption = SAVED[name]
    found = outputs(nbs[stem], says) if stem in nbs else []
    more = f' <small>From <a href="{stem}.html">its chapter</a>.</small>'
    if png := png_of(found): return kept(name, png, caption, folder, more)
    words = '<br>'.join(html.escape(words_of(found)).splitlines()) # no empty line, which would end the HTML
    return captioned(f'<pre>{words}</pre>', f'{html.escape(caption)}.{more}') if words else ''

SECTIONS = { # of the gallery: key -> (title, what it says, keys of `SAVED`)
    'texts':('Sentences',
        'A learned sentence is a row of vectors, and a reader sees the word that is nearest to each. What students learn from '
        'the vectors is mostly lost in these words ([figures](770_words.ipynb#results)).', ['tdd']),
    'points':('Points of regressions',
        'A few weighted points stand for the rows of a table. Their picture is the posterior that they give, beside that of '
        'all rows ([figures](848_near.ipynb)).', ['posteriors', 'points']),
    'generator':('Images of a generator',
        'Students see these images in the order of a learned curriculum ([figures](780_gtn.ipynb#results)).', ['gtn']),
    'exact':('Exact images',
        'Ridge regression on ten exact images has the weights of that on all training images ([figures](700_exact.ipynb#results)).',
        ['exact']),
    'poison':('Poisoned images',
        'One step on these images spoils one class, and the others fall by few points on average '
        '([figures](790_poison.ipynb#results)).', ['poison']),
    'memory':('Memories',
        'A memory keeps a few images of each class that has come ([figures](874_later.ipynb#results)).', ['memory'])}

def sections(nbs, folder) -> list: # of (key, title, text); nbs: stem -> notebook
    "What the gallery shows that no grid has: of chapters that are there"
    shown = {k:[f for n in names if (f := saved(n, nbs, folder))] for k,(_, _, names) in SECTIONS.items()}
    return [(k, title, '\n\n'.join([text, *shown[k]])) for k,(title, text, _) in SECTIONS.items() if shown[k]]


# --- charts of lines -----------------------------------------------------------------------------------------------------------
GREY, OWN = '.75', 'C0'

def drawn(fig) -> bytes:
    from io import BytesIO
    fig.savefig(out := BytesIO(), format='png', dpi=130)
    return out.getvalue()

def points_png(way, ways, lines) -> bytes: # ways: all of them; lines: of results/posterior/points.jsonl
    "Divergence against points in three regressions, one way among the others"
    from bpc_nb.show import figure, tidy
    at = {}
    for r in (r for r in lines if (r['rows'], r['columns'])==(10_000, 10)):
        at.setdefault((r['model'], r['method']), {}).setdefault(r['points'], []).append(log(r['kl_gauss']))
    fig, axs = figure(8, 2.2, 3)
    for ax,model in zip(axs, ('logistic','poisson','linear')):
        for w in sorted(ways, key=lambda w: w==way): # its own on top
            of = sorted(at.get((model, w), {}).items())
            ax.plot([n for n,_ in of], [exp(mean(v)) for _,v in of], 'o-', ms=3, lw=1, c=OWN if w==way else GREY)
        ax.set(xscale='log', yscale='log')
        tidy(ax, model, 'points')
    axs[0].set_ylabel('KL of Gaussian fits', fontsize=8)
    return drawn(fig)

def points_chart(name, way, ways, lines, folder) -> str:
    caption = ('The divergence of the points’ posterior from that of all rows, against the number of points: '
               f'{name} in blue, the other methods in grey')
    return kept(f'points-{name}', points_png(way, ways, lines), caption, folder)

CASES = ('digits', 2), ('mnist', 1), ('cifar10', 1) # data, images per class
BESIDE = {'mnemonics':('C0', '-'), 'mnemonics, means':('C0', '--'), 'herding':('C1', '-'), 'random':('.6', '-')} # in the chart

def stages_png(lines) -> bytes: # of results/uses/memory.jsonl
    "What networks that are trained on a memory alone know after each arrival"
    from bpc_nb.show import figure, tidy
    at = {}
    for r in lines: at.setdefault((r['data'], r['per_class'], r['method']), {}).setdefault(r['classes'], []).append(100*r['memory'])
    fig, axs = figure(8, 2.2, 3)
    for ax,(data, n) in zip(axs, CASES):
        for method,(c, style) in BESIDE.items():
            of = sorted(at.get((data, n, method), {}).items())
            ax.plot([k for k,_ in of], [mean(v) for _,v in of], f'.{style}', lw=1, c=c, label=method)
        tidy(ax, f"{data}, {n} image{'s'*(n > 1)} per class", 'classes that have come')
    axs[0].set_ylabel('accuracy, %', fontsize=8)
    axs[2].legend(fontsize=7, frameon=False)
    return drawn(fig)

def averages(folder) -> str:
    "The images of k-means where a class of digits has one: what costs a second is made anew"
    from bpc_nb.data import load
    from bpc_nb.distill import distill
    (folder/'gallery').mkdir(parents=True, exist_ok=True)
    picture(at := folder/'gallery'/'k-means.png', distill('k-means', load('digits'), 1, judge=False, progress=False))
    caption = 'The averages of the ten classes of digits, which k-means gives with one image per class'
    image = f'<img src="gallery/{at.name}" {sized(at)} alt="{caption}" loading="lazy" style="width:30rem">'
    return f'<figure class="art">{image}<figcaption>{caption}.</figcaption></figure>'

def of_method(name, nbs, results, folder) -> str: # '': nothing to show
    "A figure for the card of a method of which no grid has kept images"
    from bpc_nb.lines import lines
    if name=='k-means': return averages(folder)
    if name=='mnemonics' and (at := Path(results)/'uses'/'memory.jsonl').exists():
        caption = 'Accuracy on all classes so far of networks that are trained on the memory alone, a mean over five orders of arrival'
        return kept(name, stages_png(lines(at)), caption, folder)
    return saved(name, nbs, folder) if name in SAVED else ''
