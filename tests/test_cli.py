"""The command line as people use it: help, options, and the way from a folder of pictures to a measured coreset."""
import inspect, json, os, re, shlex, subprocess, sys
from pathlib import Path

import numpy as np
import pytest
import torch
from fastcore.docments import docments
from PIL import Image

from bpc_nb import __version__, cli, explorer, methods
from bpc_nb.commands import judge, learn, shell
from bpc_nb.core import Coreset, registry, stream
from bpc_nb.data import load
from bpc_nb.distill import outer
from bpc_nb.energy import energy
from bpc_nb.evaluate import PROTOCOLS
from bpc_nb.experts import experts as make_experts
from bpc_nb.methods import cd
from bpc_nb.plan import plan
from bpc_nb.predictive import POSTERIORS
from bpc_nb.zoo import load_coreset
from conftest import NET, TINY

ROOT = Path(__file__).resolve().parents[1]
SCORES = {'accuracy_mean', 'accuracy_std', 'accuracy_runs', 'accuracy_mean_8bit', 'nll_mean', 'protocol'}


# --- what it says of itself ------------------------------------------------------------------------------------------

def test_version_and_usage(bpc):
    assert bpc('--version') == (0, __version__+'\n', '')
    for words in (), ('--help',), ('-h',):
        code, out, err = bpc(*words)
        assert code == 0 and err == ''
        for name in cli.COMMANDS: assert re.search(rf'^  {name} +\w', out, re.M)
        assert re.findall(r'^(\w+):$', out, re.M) == list(cli.SECTIONS)


def typed(path):
    "Commands that a page shows, in blocks of shell and between backquotes"
    text = path.read_text(encoding='utf-8')
    if path.suffix == '.ipynb': text = '\n\n'.join(''.join(c['source']) for c in json.loads(text)['cells'] if c['cell_type'] == 'markdown')
    for block in re.findall(r'```(?:sh|bash)\n(.*?)```', text, re.S):
        yield from (l for l in re.sub(r'\\\n', ' ', block).split('\n') if l.startswith('bpc '))
    yield from re.findall(r'^ {4,}(bpc .*)', text, re.M) # an indented block
    yield from re.findall(r'`(bpc [^`\n]*)`', re.sub(r'```.*?```', '', text, flags=re.S))


def test_scripts_that_a_page_names_are_there():
    "`python results/STUDY/NAME.py` in prose, and the words after it are in the script's usage"
    pages, named = [*(ROOT/'nbs').glob('*.ipynb'), *ROOT.glob('*.md'), ROOT/'results'/'README.md'], set()
    for p in pages: named |= {*re.findall(r'python (results/\S+\.py)([^`\n\\"]*)', p.read_text(encoding='utf-8'))}
    named.discard(('results/STUDY/NAME.py', ''))
    gone = [(s, rest) for s, rest in named if not (ROOT/s).is_file()]
    usage = {s: (ROOT/s).read_text().partition('\n\n')[2].partition('\n\n')[0] for s, _ in named if (ROOT/s).is_file()}
    odd = [(s, w) for s, rest in named if s in usage for w in rest.split('#')[0].split() if w.startswith('--') and w not in usage[s]]
    assert len(named) > 15 and (gone, odd) == ([], [])


def test_commands_of_the_book_are_understood():
    pages, seen, wrong = [*(ROOT/'nbs').glob('*.ipynb'), *ROOT.glob('*.md'), ROOT/'results'/'README.md'], 0, []
    for command, path in {c: p for p in pages for c in typed(p)}.items():
        words = shlex.split(re.split(r' +[|>#]', command.replace('--ipc N', '--ipc 1'))[0])[1:]
        if len(words) < 2 or words[0] not in cli.COMMANDS or re.search(r'\w\||\.\.\.|[{$]', command): continue # a name alone, or no command yet
        seen += 1
        try: cli.parse(words)
        except (Exception, SystemExit) as e: wrong.append((path.name, command, str(e)))
    assert seen > 30 and wrong == []


@pytest.mark.parametrize('command', cli.COMMANDS)
def test_every_option_has_a_comment_and_every_command_json(bpc, command):
    code, out, err = bpc(command, '--help')
    assert code == 0 and err == '' and out.startswith(f'usage: bpc {command} ')
    actions = cli.parser(command)._actions
    assert [a.dest for a in actions if not (a.help or '').strip()] == []
    assert '--json' in [s for a in actions for s in a.option_strings]


def test_help_of_distill_is_grouped_and_complete(bpc):
    short, out = bpc('distill', '--help')[1], bpc('distill', '--help', 'all')[1]
    count, left = re.search(r'\n(\d+) more options \(run, loop, energy\): bpc distill --help all\n', short), ('run', 'loop', 'energy')
    assert int(count[1]) == sum(len(section(out, t)) for t in left) and not any(section(short, t) for t in left) and section(short, 'method cd')
    titles = re.findall(r'^(\S.*):$', out, re.M)
    assert titles == ['what', 'options', 'method cd', 'run', 'loop', 'energy', 'data', 'recipes of cd, which go before these defaults']
    skip = dict.fromkeys(['state', 'record', 'progress', 'until', 'source', 'seed', 'least'])
    for f in (outer, energy, load, registry()['cd'].make):
        for k, p in inspect.signature(f).parameters.items():
            if p.default is p.empty or k in skip: continue
            assert re.search(rf"--{k.replace('_', '-')}[ ,]", out), k
    said = ' '.join(out.split())
    assert re.search(r'--L N steps of the chain.*\(default: 20\)', said) and re.search(r'--seed N .*\(default: 0\)', said) and '(default: 0.99)' in said
    assert '\n\nOptions of another method: bpc distill --method NAME --help\n\n' in out and '\n  mnist, ipc 1: ' in out


def section(out, title): # flag -> what help says of it
    lines = re.search(rf'^{re.escape(title)}:\n((?:  .*\n)+)', out, re.M)
    return {e.split()[0].rstrip(','): ' '.join(e.split()) for e in re.split(r'^  (?=--)', lines[1], flags=re.M) if e.strip()} if lines else {}


@pytest.mark.parametrize('command', ['distill', 'plan'])
@pytest.mark.parametrize('method', registry())
def test_help_of_a_method_is_its_own(command, method, bpc):
    "Each option that its function has, no other, with the default and the comment of its own signature"
    code, out, err = bpc(command, f'--method={method}', '--help', 'all')
    own = {k: p.default for k, p in inspect.signature(registry()[method].make).parameters.items() if p.default is not p.empty}
    said, notes = section(out, f'method {method}'), docments(registry()[method].make)
    assert said.keys() == {'--' + k.replace('_', '-') for k in own}
    for k, default in own.items():
        text = said['--' + k.replace('_', '-')]
        assert ' '.join((notes[k] or '').split()) in text and len(text.split()) > 3 # no option without a comment
        assert text.endswith(f' (default: {default})') if default not in (None, '') and default is not False else '(default' not in text
    m = registry()[method]
    assert m.when and m.when[0].islower() and not m.when.endswith('.') and f'Use it {m.when}.' in out # each method says when it is the one to take
    assert m.steps == bool(section(out, 'loop')) and (m.steps and 'loss' not in m.without) == bool(section(out, 'energy'))


def test_one_name_in_two_methods(bpc):
    said = lambda method, flag: section(bpc('distill', '--method', method, '--help')[1], f'method {method}')[flag]
    assert said('cd', '--T').endswith('(default: 2)') and said('fkl', '--T').endswith('Kim et al.: 1 (default: 1)')
    assert "standard deviation of the coreset's Gaussian" in said('fkl', '--width') and 'Gaussian kernel' in said('kernel-herding', '--width')


def test_words_are_read_as_the_method_reads_them(refused, monkeypatch):
    "`L` is text here, `every` a share and no number of steps"
    def make(setup, L:str='long', # how far
             every:float=.5): # of what
        "A method with names that others use"
    monkeypatch.setitem(cd.METHODS, 'mine', registry()['cd']._replace(make=make))
    assert cli.parse('distill --method mine --L short --every .25'.split())[1] == dict(data=None, method='mine', L='short', every=.25)
    refused('distill', '--L', 'short', parts="'short' is not a whole number")
    refused('distill', '--L', 'short', '--method', 'positive-only', parts='--L is an option of cd, ')
    refused('plan', '--method', 'random', '--steps', 5, parts=('--steps is an option of cafe, ', '; random takes none of its own'))


# --- options ---------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize('words', ['--T 5 --k-max 5', '--T=5 --k-max=5', '--T 5 --k_max 5', '--k_max=5 --T=5'])
def test_spellings(words):
    f, given, _ = cli.parse(['distill', 'digits', *words.split()])
    assert f is cli.bpc_distill and given == dict(data='digits', T=5, k_max=5)


def test_values():
    _, given, _ = cli.parse('distill 2024 --size 16,24 --scale 100 --fold 2 --out 7 --zca --experts n=3,weight-decay=1e-3,augment=flip'.split())
    assert given == dict(data='2024', size=(16, 24), scale=100, fold=2, out='7', zca=True, experts=dict(n=3, weight_decay=1e-3, augment='flip'))
    assert cli.parse('distill --scale sum --alpha 1e-2'.split())[1] == dict(data=None, scale='sum', alpha=.01)


def test_every_option_reaches_its_function(monkeypatch):
    "What is typed for `distill` and `experts` is an argument of the function below it"
    seen = {}
    monkeypatch.setattr(learn, 'board', lambda *a: None) # its package is optional
    for f in 'nothing_idle', 'run_before', 'free_for': monkeypatch.setattr(learn, f, lambda *a: None) # what is typed here is nonsense
    monkeypatch.setattr(learn, 'distill', lambda *a, **kw: seen.update(kw) or Coreset(torch.zeros(1, 1, 2, 2), torch.zeros(1), meta=dict(held_out=0., step=1)))
    value = lambda a: [] if a.nargs==0 else [{shell.whole_number: '3', shell.real_number: '.5', str: 'cpu'}.get(a.type, '2')]
    loaded = {o.flag for o in shell.loading().values()}
    for m in registry():
        words, takes = [], shell.options(registry()[m].make)
        for a in cli.parser('distill', m)._actions:
            if not a.option_strings or a.dest in ('help', 'debug', 'method', 'model', 'json', 'experts', 'minutes', 'resume') or a.option_strings[0] in loaded: continue
            words += [a.option_strings[0], *value(a)]
        assert cli.main(['distill', 'digits', '--method', m, '--json', *words]) == 0
        assert takes.keys() <= seen.keys()
        if not registry()[m].steps: continue
        handed = {k for k in seen if k not in inspect.signature(learn.distill).parameters}
        assert handed >= (shell.options(outer, ('seed', 'streams', 'state', 'record', 'progress', 'until')).keys() | shell.options(energy).keys()) - {*registry()[m].without}
    assert shell.options(make_experts, ('progress', 'after', 'until')).keys() <= {a.dest for a in cli.parser('experts')._actions}


@pytest.mark.parametrize('words, said', [('--step 5', "unknown option '--step', did you mean '--steps'?"), ('steps 5', "unknown option 'steps', did you mean '--steps'?"),
    ('-steps 5', "did you mean '--steps'?"), ('--l 5', "did you mean '--L'?"), ('more', "unexpected 'more'; --help lists what can be said"), ('--zzz', "unknown option '--zzz'; --help lists")])
def test_a_word_that_means_nothing(refused, words, said): refused('distill', 'digits', *words.split(), parts=said)


@pytest.mark.parametrize('typed, meant', [('cdd', 'cd'), ('ddd', 'dd'), ('hearding', 'herding'), ('kmeans', 'k-means'), ('cd-label', 'cd-labels')])
def test_the_suggestion_is_the_fewest_edits_away(refused, typed, meant):
    refused('distill', 'digits', '--method', typed, parts=f"method: unknown {typed!r}, did you mean {meant!r}?")


@pytest.mark.parametrize('words, said', [('--alpha -1', 'alpha: found -1.0; expected a number above 0'), ('--L -1', 'L: expected a whole number of at least 0, found -1'),
    ('--T 30', 'T: found 30, and experts are trained for 20 epochs')])
def test_an_option_that_no_run_can_use(refused, monkeypatch, words, said):
    "is refused before experts are trained"
    monkeypatch.setattr('bpc_nb.distill.buffer_for', None)
    refused('distill', 'digits', '--device', 'cpu', *words.split(), parts=said)


@pytest.mark.parametrize('command', ['distill', 'plan'])
@pytest.mark.parametrize('words, said', [('--lr-labels 3', 'lr_labels: labels are hard here, and none is learned; add --labels soft, or leave --lr-labels out'),
    ('--method dm --buffer none', 'buffer: dm draws from no experts, so --buffer would change nothing; leave it out'),
    ('--method dm --experts n=3', 'experts: dm draws from no experts, so --experts would change nothing; leave it out')])
def test_what_would_change_nothing_is_refused(refused, monkeypatch, command, words, said):
    monkeypatch.setattr('bpc_nb.distill.buffer_for', None)
    refused(command, 'digits', '--device', 'cpu', *words.split(), parts=said)


def test_a_plan_takes_streams(bpc):
    "and says that each takes its time"
    words = 'plan', '--method', 'dm', '--net', 'mlp:width=4', '--device', 'cpu', '--json'
    one, many = (json.loads(bpc(*words, *more)[1]) for more in ((), ('--streams', 50)))
    assert many['step_seconds'] > 5*one['step_seconds'] # 50, but for what a busy machine adds to either


def test_a_coreset_with_step_sizes_is_judged_by_them_and_says_so(bpc, refused):
    load('digits').draw(1, stream(0))._replace(steps=torch.tensor([[.02]]*3)).save('own.safetensors')
    words = 'own.safetensors', '--data', 'digits', '--net', 'mlp:width=4', '--runs', 1, '--device', 'cpu'
    assert 'protocol own steps (3 epochs)' in bpc('evaluate', *words)[1]
    said = 'the coreset has step sizes of its own, which its students take'
    refused('evaluate', *words, '--protocol', 'quick', parts=('protocol: ' + said, '--protocol would change nothing; leave it out'))
    refused('evaluate', *words, '--set', 'epochs=3', parts='epochs: ' + said)
    assert bpc('evaluate', *words, '--protocol', 'quick', '--control')[0] == 0 # that of the random images
    out = bpc('transfer', 'own.safetensors', '--data', 'digits', '--nets', 'mlp:width=4', '--protocol', 'quick', '--runs', 1, '--device', 'cpu')[1]
    assert out.endswith('protocol own steps (3 epochs), random real quick\n')


def test_sentences_in_words_of_the_command_line():
    names = 'decode', 'start', 'bf16', 'labels', 'size'
    for said,want in {"take decode='identity'": 'take --decode identity', "start='kernel-herding', or": '--start kernel-herding, or', "bf16='always'": '--bf16', "labels='soft', or": '--labels soft, or', "size=(16, 24)": '--size 16x24'}.items(): assert shell.spoken(said, names) == want


def test_list(bpc):
    found = json.loads(bpc('list', '--json')[1])
    assert [*found] == ['methods', 'datasets', 'networks', 'energies', 'protocols', 'decoders', 'evaluators', 'metrics', 'spaces', 'models', 'points']
    assert found['decoders']==['identity', 'factor2'] and {'students', 'ridge', 'hmc'} <= {*found['evaluators']} and 'ece' in found['metrics'] and found['spaces']==['images', 'vectors', 'sequences']
    assert 'cd' in found['methods'] and 'digits' in found['datasets'] and 'convnet' in found['networks'] and 'focal' in found['energies'] and 'dc' in found['protocols']
    assert re.match(r'methods .*\bcd, ', bpc('list')[1]) and 'soft (of evaluate and transfer alone)' in bpc('list')[1]


def test_a_word_without_a_name_is_marked_in_the_table(bpc, refused, monkeypatch):
    "and has nothing to do with how the function calls it"
    def named(file:str='none', json=False): return [file]
    monkeypatch.setitem(cli.COMMANDS, 'list', cli.Command(named))
    assert bpc('list', '--file', 'a')[1] == '["a"]\n'
    refused('list', 'a', parts="unexpected 'a'")
    def marked(thing, # without a default
               json=False): return [thing]
    monkeypatch.setitem(cli.COMMANDS, 'list', cli.Command(marked, 'thing'))
    assert bpc('list', 'a')[1] == '["a"]\n'
    refused('list', parts='THING is missing; usage: bpc list THING [OPTIONS]')


# --- errors ----------------------------------------------------------------------------------------------------------

def test_unforeseen_error_is_one_line_and_exit_code_1(bpc, monkeypatch):
    def broken(json=False): raise RuntimeError('two\nlines')
    monkeypatch.setitem(cli.COMMANDS, 'list', cli.Command(broken))
    assert bpc('list') == (1, '', 'bpc: RuntimeError: two lines (--debug shows where)\n')
    with pytest.raises(RuntimeError): cli.main(['list', '--debug'])


def test_exit_code_of_the_process(tmp_path):
    env = os.environ | dict(PYTHONPATH=str(ROOT))
    p = subprocess.run([sys.executable, '-m', 'bpc_nb.cli', 'evaluate', 'none'], env=env, cwd=tmp_path, capture_output=True, text=True)
    assert p.returncode == 2 and p.stdout == '' and p.stderr == 'bpc: path: there is no coreset file at none; `bpc distill` writes one\n'


# --- the way through -------------------------------------------------------------------------------------------------

def test_digits_from_experts_to_a_score(bpc, experts):
    code, out, err = bpc('distill', 'digits', *TINY, '--buffer', experts, '--seed', 1, '--json')
    assert (code, err) == (0, '')
    found = json.loads(out)
    run = Path('runs/cd-digits-1-1')
    assert {p.name for p in run.iterdir()} == {'coreset.safetensors', 'coreset.png', 'log.jsonl', 'config.json', 'checkpoint.safetensors', 'looks'}
    assert found['coreset'] == str(run/'coreset.safetensors') and 0 < found['held_out'] <= 1
    log = [json.loads(l) for l in (run/'log.jsonl').read_text().splitlines()]
    assert [r['step'] for r in log] == [10, 20, 30, 40, 50, 60] and found['held_out'] == max(r['accuracy_mean'] for r in log)
    assert Image.open(run/'coreset.png').width > 50

    code, out, err = bpc('evaluate', found['coreset'], '--runs', 2, '--protocol', 'quick', '--json')
    r = json.loads(out)
    assert (code, err) == (0, '') and SCORES <= r.keys() and len(r['accuracy_runs']) == 2 and r['net'] == NET and r['n_test'] == 360
    code, out, err = bpc('evaluate', found['coreset'], '--runs', 1, '--protocol', 'quick', '--control', '--net', 'mlp:width=16')
    assert (code, err) == (0, '') and 'random real images' in out and 'as 8-bit images' in out and 'mlp:width=16' in out

    code, out, err = bpc('show', found['coreset'], '--out', 'see.png', '--json')
    assert code == 0 and json.loads(out)['images'] == [10, 1, 8, 8] and Path('see.png').exists()
    code, out, err = bpc('distill', 'digits', *TINY, '--buffer', experts, '--seed', 1, '--resume') # finished: nothing left to do
    assert code == 0 and 'next: bpc evaluate' in out
    code, out, err = bpc('distill', '--out', run, '--resume', '--buffer', experts) # what it is a run of, it says itself
    assert code == 0 and 'next: bpc evaluate' in out, err


def test_show_says_how_a_coreset_is_used(bpc):
    S = load('digits').draw(1, stream(0))
    S.save('plain.safetensors')
    soft = S._replace(y=torch.full((10, 10), .1), w=torch.arange(1., 11.), decode='factor2')
    soft.save('soft.safetensors')
    S._replace(y=torch.zeros(10, 10), targets=True, steps=torch.tensor([[.5, .25]]*3)).save('targets.safetensors')
    said = lambda name: re.sub(' +', ' ', bpc('show', f'{name}.safetensors')[1])
    found = {n: json.loads(bpc('show', f'{n}.safetensors', '--json')[1]) for n in ('plain', 'soft', 'targets')}
    assert [[found[n][k] for k in ('decode', 'labels', 'weights', 'steps')] for n in found] == [
        ['identity', 'hard', None, None], ['factor2', 'probabilities', [*range(1, 11)], None], ['identity', 'targets', None, [[.5, .25]]*3]]
    for name,lines in dict(plain=('decode identity', 'labels hard', 'weights all equal', 'steps as the protocol says'),
                           soft=('decode factor2', 'labels probabilities', 'weights from 1 to 10'),
                           targets=('labels targets', 'steps 3 epochs of 2 steps, from 0.25 to 0.5')).items():
        assert all(f'\n{l}\n' in said(name) for l in lines), said(name)


@pytest.fixture(scope='module')
def album(tmp_path_factory):
    "Three classes of twelve pictures, of mixed sizes, kinds and colours"
    d, rng = tmp_path_factory.mktemp('pictures')/'my album', np.random.default_rng(0)
    for k, name in enumerate(('bright', 'dark', 'striped')):
        (d/name).mkdir(parents=True)
        for i in range(12):
            h, w = rng.integers(16, 40, 2)
            a = rng.integers(0, 60, (h, w, 3)) + (150, 0, 0)[k]
            if k == 2: a[::2] += 190
            im = Image.fromarray(a.astype(np.uint8))
            im.convert('L' if i%3 == 0 else 'RGBA' if i%3 == 1 else 'RGB').save(d/name/f'{i}.{"png" if i%2 else "bmp" if i%3 != 1 else "png"}')
    return d


def test_folder_of_pictures_of_mixed_sizes(bpc, album, tmp_path, monkeypatch):
    monkeypatch.chdir(album.parent)
    code, out, err = bpc('data', 'my album', '--size', 16, '--json')
    assert code == 0 and json.loads(out)['shape'] == [3, 16, 16]
    code, out, err = bpc('data', 'my album', '--json') # as a run would take them
    assert code == 0 and len({*json.loads(out)['shape'][1:]}) == 1 and 'differ in size' in json.loads(out)['size']
    code, out, err = bpc('distill', 'my album', '--size', 16, '--ipc', 2, '--net', NET, '--experts', 'n=2,epochs=4', '--steps', 20, '--every', 10, '--select-runs', 1, '--out', tmp_path/'run', '--json')
    assert (code, err) == (0, '')
    assert Coreset.load(tmp_path/'run'/'coreset.safetensors').classes == ('bright', 'dark', 'striped')

    monkeypatch.chdir(tmp_path) # the file knows where its pictures are
    score = ['evaluate', tmp_path/'run'/'coreset.safetensors', '--runs', 1, '--protocol', 'quick', '--json']
    code, out, err = bpc(*score)
    first = json.loads(out)
    assert (code, err) == (0, '') and SCORES <= first.keys()
    (tmp_path/'moved').symlink_to(album) # and --data says only where they are now
    assert json.loads(bpc(*score, '--data', 'moved')[1])['accuracy_runs'] == first['accuracy_runs']
    Image.new('RGB', (16, 16)).save(album/'dark'/'new.png')
    code, out, err = bpc(*score)
    assert code == 0 and err == f'bpc: the data in {album} has changed since the coreset was made; its split is new, so test images may be among those it was made from\n'
    album.rename(away := album.with_name('away'))
    code, out, err = bpc(*score)
    assert code == 2 and err == f'bpc: data: the coreset was made from {album}, which is gone; say where it is with --data PATH\n'
    away.rename(album)


def test_8bit_copies_that_lose_much_are_a_hint(bpc, monkeypatch):
    real = judge.evaluate
    monkeypatch.setattr(judge, 'evaluate', lambda *a, **k: real(*a, **k) | dict(accuracy_mean=.7, accuracy_mean_8bit=.6, accuracy_std=.01, accuracy_std_8bit=.01))
    load('digits').draw(1, stream(0)).save('s.safetensors')
    out = bpc('evaluate', 's.safetensors', '--net', 'mlp:width=4', '--runs', 1)[1]
    assert out.endswith('\nas 8-bit images 10.0 points are lost; distil with --pixels 8bit\n') and '\n1 student (' in out


def test_evaluate_loads_the_split_that_the_coreset_was_made_with(home, tmp_path):
    data = load('digits', seed=3, fold=2)
    S = data.draw(1, torch.Generator().manual_seed(0))
    S.save(tmp_path/'s.safetensors')
    again = judge.data_of(Coreset.load(tmp_path/'s.safetensors'), None, {})
    assert torch.equal(again.test.x, data.test.x) and again.meta == data.meta
    S = S._replace(meta=S.meta | dict(recipe=S.meta['recipe'] | dict(source=None)))
    with pytest.raises(ValueError, match='name them with --data'): judge.data_of(S, None, {})


def test_grid_runs_each_cell_once(bpc, experts):
    Path('few.toml').write_text(f'[[cells]]\nmethod = "positive-only"\nnet = "{NET}"\nsteps = 10\nevery = 10\nselect_runs = 1\nruns = 1\nprotocol = "quick"\nexperts = {{n = 1, epochs = 12, batch = 256}}\n')
    code, out, err = bpc('grid', 'few.toml', '--json')
    assert (code, err) == (0, '') and [SCORES <= r.keys() for r in json.loads(out)] == [True]
    assert bpc('grid', 'few.toml', '--json')[1] == out


def test_demo_twice(bpc, monkeypatch):
    monkeypatch.setitem(PROTOCOLS, 'quick', dict(epochs=6, lr=.02))
    monkeypatch.setitem(PROTOCOLS, 'dc', dict(epochs=40, lr=.02))
    monkeypatch.setitem(cd.RECIPES, ('digits', 1), dict(net=NET, L=2, T=2, k_max=2, steps=20, every=10, select_runs=1, experts=dict(n=1, epochs=4)))
    monkeypatch.setattr(cli, 'DEMO', dict(experts=dict(n=2, epochs=4)))
    code, out, err = bpc('demo')
    assert (code, err) == (0, cli.DEMO_SAYS + '\n') and 'about a minute' in err
    for part in 'learned images (BPC-CD)', 'random real images', 'all 1294 real images', 'runs/demo/demo.png', 'runs/demo/coreset.safetensors': assert part in out
    assert Image.open('runs/demo/demo.png').width > 1000 # enlarged
    first = Path('runs/demo/coreset.safetensors').read_bytes()
    code, out, err = bpc('demo', '--json')
    assert (code, err) == (0, '') and {'seconds', 'accuracy_mean_random', 'accuracy_mean_real'} | SCORES <= json.loads(out).keys()
    assert torch.equal(Coreset.load('runs/demo/coreset.safetensors').x, __import__('safetensors.torch').torch.load(first)['x'])
    code, out, err = bpc('demo', '--out', 'runs/demo') # a folder that was named is not overwritten
    assert code == 2 and 'holds a run already' in err


def strict(text): # what any reader of JSON can read
    def no(word): raise ValueError(f"{word} is no JSON")
    return json.loads(text, parse_constant=no)


SHORT = f'--net {NET} --select-runs 1 --experts n=1,epochs=3 --device cpu'
CELL = f'method = "positive-only"\nnet = "{NET}"\nsteps = 5\nevery = 5\nselect_runs = 1\nruns = 1\nprotocol = "quick"\nexperts = {{n = 1, epochs = 12}}\n'
AS_JSON = dict( # command -> words that make it cheap
    distill=f'digits --L 2 --T 1 --k-max 2 --steps 2 --every 2 {SHORT}', plan=f'digits --L 2 --T 1 --k-max 2 --steps 2 --every 2 {SHORT}',
    evaluate='s.safetensors --runs 1 --control', predictive='s.safetensors --protocol ensemble', experts=f'digits --net {NET} --n 1 --epochs 1', show='s.safetensors',
    explore='runs/one --stay', data='digits', list='', grid='two.toml --device cpu', search='two.toml --device cpu', transfer='s.safetensors --nets mlp:width=8;mlp:width=9 --protocol quick --runs 1',
    whole='digits --net mlp:width=8 --protocol quick --epochs 1 --runs 1', tables='', zoo='', teacher='digits --net convnet:width=4,depth=2,norm=batch --experts epochs=1',
    relabel='s.safetensors --out labels.safetensors --net convnet:width=4,depth=2,norm=batch --experts epochs=1 --epochs 2', poison='digits --attacked 3 --target 8 --net mlp:width=8 --experts n=2,epochs=1 --steps 2 --ipc 1',
    inspect='s.safetensors --net mlp:width=8 --experts n=1,epochs=1', rekey='lines', bench='--quick --kinds students --contenders floor --repeats 1 --out b.jsonl',
    remember='digits --per-class 2 --net mlp:width=8', rank='nets.toml --on s.safetensors --runs 1', audit='s.safetensors --net mlp:width=8 --runs 1 --protocol brief --passes 2000',
    scale='--quick --L 1 --steps 1 --out s.jsonl', posterior='diabetes --draws 400', demo='', doctor='', completion='')


@pytest.mark.parametrize('command', cli.COMMANDS)
def test_every_command_prints_one_json_document(command, bpc, monkeypatch):
    for protocol in 'quick', 'dc': monkeypatch.setitem(PROTOCOLS, protocol, dict(epochs=2, lr=.02))
    monkeypatch.setitem(POSTERIORS, 'ensemble', dict(sampler='ensemble', chains=2))
    monkeypatch.setitem(cd.RECIPES, ('digits', 1), dict(net=NET, L=2, T=2, k_max=2, steps=2, every=2, select_runs=1, experts=dict(n=1, epochs=4)))
    monkeypatch.setattr(cli, 'DEMO', dict(experts=dict(n=1, epochs=4)))
    monkeypatch.setattr(explorer, 'served', lambda *a: subprocess.Popen([sys.executable, '-c', '']))
    load_coreset('digits', ipc=1).save('s.safetensors')
    Path('two.toml').write_text('[[cells]]\nseed = [0, 1]\n' + CELL)
    Path('nets.toml').write_text('[[networks]]\nnet = "mlp"\nwidth = [8, 9]\n')
    Path('lines').mkdir()
    if command == 'explore': assert bpc('distill', *AS_JSON['distill'].split(), '--out', 'runs/one')[0] == 0
    code, out, err = bpc(command, *AS_JSON[command].split(), '--json')
    assert (code, err) == (0, ''), err
    found = strict(out)
    assert found and isinstance(found, list) == (command in ('grid', 'transfer')), found
    if command in ('grid', 'transfer'): assert len(found) == 2
    for name in ['b.jsonl']*(command == 'bench') + ['s.jsonl']*(command == 'scale'): assert strict(Path(name).read_text()) == found


def test_a_server_that_fails_is_an_error_and_not_part_of_the_json(bpc, monkeypatch):
    monkeypatch.setattr(explorer, 'served', lambda *a: subprocess.Popen([sys.executable, '-c', 'raise SystemExit(3)']))
    assert bpc('distill', *AS_JSON['distill'].split(), '--out', 'runs/one')[0] == 0
    code, out, err = bpc('explore', 'runs/one', '--stay', '--json')
    assert (code, err) == (2, 'bpc: explore: Voila ended with exit code 3\n') and strict(out).keys() == {'url', 'run'}


# --- before a run ----------------------------------------------------------------------------------------------------

@pytest.mark.parametrize('method', [m for m in registry() if not m.startswith('cafe')]) # an episode of CAFE takes seconds, and is timed four times
def test_every_method_can_be_planned(method):
    net = 'convnet:width=4,depth=2' + ',norm=batch'*(method in ('sre2l', 'dwa'))
    said = plan(method, 'digits', 1, device='cpu', net=net, experts=dict(n=1, epochs=1), select_runs=1)
    assert said['seconds'] > 0 and (said['step_seconds'] > 0)==registry()[method].steps

def test_plan_takes_the_words_of_distill_and_is_near_what_the_run_takes(bpc):
    "Each is timed by itself on the same machine; the best of five, as others may use it too"
    import time
    words, near = ('digits', *TINY, '--every', '60', '--experts', 'n=2,epochs=3', '--k-max', '2', '--T', '1'), []
    for i in range(5):
        code, out, err = bpc('plan', *words, '--out', 'x', '--json')
        said = json.loads(out)
        assert code == 0 and said['steps'] == 60 and said['looks'] == 2 and said['seconds'] == pytest.approx(sum(said['parts'].values()))
        began = time.perf_counter()
        assert bpc('distill', *words, '--out', f'run{i}', '--seed', i, '--experts', f'n=2,epochs=3,seed={i}', '--json')[0] == 0
        near.append((said['seconds'] - said['parts']['first_calls'])/(time.perf_counter() - began))
        if .7 < near[-1] < 1.4: return
    pytest.fail(f'planned seconds over measured ones: {near}')


def test_bench_adds_one_line(bpc):
    assert cli.parse('bench --ipc 1,10 --L 5 --kinds step'.split())[1] == dict(ipc=(1, 10), L=5, kinds='step')
    Path('bench.jsonl').write_text('{"rows": []}\n')
    code, out, err = bpc(*'bench --quick --kinds students --contenders ours,floor --repeats 1 --out bench.jsonl'.split())
    assert (code, err) == (0, '') and 'students: digits, ipc 1' in out
    _, found = map(json.loads, Path('bench.jsonl').read_text().splitlines())
    assert [r['contender'] for r in found['rows']] == ['ours', 'floor'] and all(r['seconds_median'] > 0 and r['peak_mb'] >= 0 for r in found['rows'])
    assert [(r['contender'], r['against'], r['speed'] > 0) for r in found['ratios']] == [('ours', 'floor', True)]
    assert {'cpu', 'torch', 'threads'} <= found['made'].keys()


def test_a_reader_who_has_enough_is_no_error():
    run = subprocess.Popen([sys.executable, '-m', 'bpc_nb.cli', 'list'], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    run.stdout.close() # as `bpc list | head -0` does
    assert run.stderr.read() == b'' and run.wait() == 0


@pytest.mark.parametrize('text, said', [('METHODS = dict(cd=1)', "'cd' is in bpc_nb.methods.cd and in bpc_nb.methods.zz_own"),
                                        ('import no_such_module\nMETHODS = {}', r'methods/zz_own.py cannot be imported \(ModuleNotFoundError')])
def test_a_module_of_methods_that_cannot_be_used_is_named(text, said, tmp_path, monkeypatch):
    monkeypatch.setattr(methods, '__path__', [*methods.__path__, str(tmp_path)])
    monkeypatch.setattr(sys, 'modules', dict(sys.modules))
    (tmp_path/'zz_own.py').write_text(f'\n{text}\n')
    with pytest.raises(ValueError, match=said): registry()
