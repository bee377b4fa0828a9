"""What goes wrong: bad input gets one sentence and exit code 2, and a run survives Ctrl-C, kill -9 and a full disk."""
import json, os, pickle, resource, signal, subprocess, sys, time
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from bpc_nb import distill, lines, runs
from bpc_nb.audit import audited
from bpc_nb.augment import fitting
from bpc_nb.commands.judge import data_of
from bpc_nb.core import Coreset, cache_folder, registry, stream
from bpc_nb.data import load
from bpc_nb.evaluate import evaluate
from bpc_nb.learn import Task, learner
from bpc_nb.metrics import Diverged
from bpc_nb.methods import cd
from bpc_nb.networks import network
from bpc_nb.predictive import predictive
from conftest import NET, SHORT, TINY

ROOT = Path(__file__).resolve().parents[1]


def pictures(d, w=8, h=8, **classes): # class -> how many
    for c, n in classes.items():
        (d/c).mkdir(parents=True)
        for i in range(n): Image.fromarray(np.random.default_rng(i).integers(0, 256, (h, w), dtype=np.uint8)).save(d/c/f'{i}.png')
    return d


# --- data ------------------------------------------------------------------------------------------------------------

def test_missing_folder_or_file(refused):
    refused('distill', 'no/such/folder', parts='there is no file or folder')
    refused('data', 'nothing.npz', parts='there is no file or folder')


def test_table_that_is_none_or_small(refused, tmp_path):
    (tmp_path/'bad.csv').write_text('no,table\nat all')
    refused('distill', tmp_path/'bad.csv', '--label', 'no', parts='bad.csv is not a readable table')
    (tmp_path/'small.csv').write_text('kind,a\nx,1\nx,2\ny,3\ny,4\n')
    for command in 'data', 'distill':
        refused(command, tmp_path/'small.csv', '--label', 'kind', parts='source: 4 examples in all, too few for --folds 5, of which one is the test part')


def test_folder_without_class_folders(refused, tmp_path):
    refused('distill', pictures(tmp_path/'d', a=3)/'a', parts='no class folders')


def test_corrupt_image_is_named_and_skipped_only_on_request(bpc, refused, tmp_path):
    d = pictures(tmp_path/'d', a=4, b=4)
    (d/'b'/'broken.png').write_bytes(b'not an image')
    refused('data', d, parts=('b/broken.png', '--skip-bad'))
    code, out, err = bpc('data', d, '--skip-bad', '--json')
    assert code == 0 and sum(json.loads(out)['images'].values()) == 8


def test_empty_class(refused, tmp_path):
    d = pictures(tmp_path/'d', a=4, b=4)
    (d/'c').mkdir()
    refused('distill', d, parts=('c holds no images',))


def test_fewer_images_than_ipc(refused, tmp_path):
    refused('distill', pictures(tmp_path/'d', a=30, b=8), '--ipc', 10, parts=("class 'b' has", '--ipc '))


def test_nothing_held_out(refused, tmp_path):
    d = pictures(tmp_path/'d', a=4, b=4)
    refused('distill', d, parts='held_out')
    refused('distill', 'digits', '--held-out', 0, parts='held_out')


def test_whitening_too_large(refused, tmp_path):
    refused('data', pictures(tmp_path/'d', a=3, b=3), '--size', 128, '--zca', parts=('GB', '--size', 'no --zca'))


def test_pickle_is_refused_and_not_run(refused, tmp_path):
    class Evil:
        def __reduce__(self): return Path.touch, (tmp_path/'ran',)
    (tmp_path/'a.pkl').write_bytes(pickle.dumps(Evil()))
    torch.save(dict(x=Evil()), tmp_path/'a.pt')
    for name in 'a.pkl', 'a.pt': refused('data', tmp_path/name, parts='may run code')
    assert not (tmp_path/'ran').exists()


# --- names and numbers -----------------------------------------------------------------------------------------------

@pytest.mark.parametrize('words, parts', [
    ('--ipc 0', 'at least 1, found 0'), ('--ipc -3', 'at least 1, found -3'), ('--ipc ten', "'ten' is not a whole number"), ('--ipc', 'expected one argument'),
    ('--steps 0', 'steps'), ('--every 0', 'every'), ('--select-runs 0', 'runs'), ('--lr fast', "'fast' is not a number"),
    ('--size 2.5', 'size'), ('--fold 9', 'fold'), ('--held-out 2', 'held_out'), ('--folds 1', 'folds'),
    ('--method ccd', "did you mean 'cd'?"), ('--net convnett', "did you mean 'convnet'?"), ('--net convnet:widht=8', "did you mean 'width'?"),
    ('--net torchvision:resnet19', "did you mean 'resnet18'?"), ('--tempertaure 1', "did you mean '--temperature'?"), ('--k-mx 1', "did you mean '--k-max'?"),
    ('--loss crossentropy', "did you mean 'cross_entropy'?"), ('--scale maen', "expected 'mean', 'sum' or a number above 0"), ('--optimiser sdg', "did you mean 'sgd'?"),
    ('--start rael', "did you mean 'real'?"), ('--select-protocol quik', "did you mean 'quick'?"), ('--augment flop', "did you mean 'flip'?"), ('--device gpu', 'device'),
    ('--experts epoch=3', "did you mean 'epochs'?"), ('--experts n=many', "'many' is not a whole number"), ('--experts n', 'name=value'),
    ('--experts n=0', 'n: expected'), ('--T 50', 'lower T'), ('--alpha -1', 'alpha'), ('--net convnet:depth=5', 'at least 32x32'),
    ('--method positive-only --L 5', ['--L is an option of cd', '; positive-only takes --T']), ('--method rkl --T 2', '; rkl takes --L'), ('xyz', "unexpected 'xyz'"),
])
def test_bad_word(refused, experts, words, parts):
    named = ['--buffer', experts] if '--net' not in words and '--experts' not in words else []
    refused('distill', 'digits', *('--net', NET)*('--net' not in words), *named, '--out', 'run', *words.split(), parts=parts)


def test_unknown_command_and_data(refused):
    refused('distil', parts="did you mean 'distill'?")
    refused('distill', 'digts', parts="did you mean 'digits'?")
    refused('distill', 'cifar10', '--root', 'nowhere', parts=('no files of', '--root', '--download'))


# --- files that are not what they should be --------------------------------------------------------------------------

@pytest.fixture(scope='module')
def whole(home, experts, tmp_path_factory):
    "The folder of a run that nothing disturbed"
    from bpc_nb.cli import main
    out = tmp_path_factory.mktemp('runs')/'whole'
    assert main(['distill', 'digits', *TINY, '--buffer', str(experts), '--out', str(out)]) == 0
    return out


def test_out_is_never_the_coreset_that_is_read(refused, whole, tmp_path):
    good = (whole/'coreset.safetensors').read_bytes()
    (tmp_path/'s.safetensors').write_bytes(good)
    for command in 'show', 'audit', 'relabel':
        refused(command, tmp_path/'s.safetensors', '--out', tmp_path/'s.safetensors', parts='is the coreset that is read; name another file')
        assert (tmp_path/'s.safetensors').read_bytes() == good


def test_a_table_beside_a_coreset_is_not_overwritten(bpc, refused, tmp_path):
    (tmp_path/'wine.csv').write_text('a,c\n' + '\n'.join(f'{i},{"xy"[i % 2]}' for i in range(40)))
    table = (tmp_path/'wine.csv').read_bytes()
    assert bpc('distill', 'wine.csv', '--label', 'c', '--method', 'random', '--net', 'mlp:width=4', '--out', 'run')[0] == 0
    (tmp_path/'wine.safetensors').write_bytes((tmp_path/'run'/'coreset.safetensors').read_bytes())
    refused('show', 'wine.safetensors', parts='out: wine.csv is there already')
    assert (tmp_path/'wine.csv').read_bytes() == table
    for _ in range(2): assert bpc('show', 'run')[0] == 0 # a run's folder is its own


def test_no_run_lies_among_the_classes(bpc, refused, tmp_path):
    pictures(tmp_path/'pics', a=12, b=12)
    for command in 'distill', 'experts':
        refused(command, 'pics', '--net', 'mlp:width=4', '--out', 'pics/run', parts='lies in the folder of the data')
    assert sorted(p.name for p in (tmp_path/'pics').iterdir()) == ['a', 'b']
    for d in 'train', 'test': pictures(tmp_path/'parts'/d, a=6, b=6)
    assert bpc('distill', 'parts', '--method', 'random', '--net', 'mlp:width=4', '--out', 'parts/run')[0] == 0 # beside the parts nothing is read


def test_another_methods_run_is_not_taken_over(bpc, refused, tmp_path):
    assert bpc('distill', 'digits', '--method', 'random', '--net', 'mlp:width=4', '--out', 'run')[0] == 0
    before = (tmp_path/'run'/'coreset.safetensors').read_bytes()
    refused('distill', 'digits', '--method', 'herding', '--features', 'pixels', '--net', 'mlp:width=4', '--out', 'run', parts='holds a run already')
    assert (tmp_path/'run'/'coreset.safetensors').read_bytes() == before
    from bpc_nb.commands.learn import of_run, run_before
    for method in 'cd', 'cd-layers':
        at = tmp_path/'runs'/f'{method}-mnist-1-0'
        at.mkdir(parents=True)
        (at/'chosen.json').write_text(json.dumps(dict(run=dict(method=method, ipc=3), recipe=dict(source='mnist'), asked={}, steps=len(method))))
    assert run_before(None, 'cd', 'mnist', 1, 0, True, {})['steps'] == 2
    assert of_run('runs/cd-layers-mnist-1-0', data=None, method=None, ipc=None) == ['mnist', 'cd-layers', 3]


def test_a_tilde_is_the_home_folder(bpc, tmp_path, monkeypatch):
    monkeypatch.setenv('HOME', str(tmp_path/'home'))
    assert bpc('distill', 'digits', '--method', 'random', '--net', 'mlp:width=4', '--out=~/run')[0] == 0
    assert (tmp_path/'home'/'run'/'coreset.safetensors').exists() and not (tmp_path/'~').exists()


def test_another_test_part_has_a_line_of_its_own(bpc, whole, tmp_path):
    def tested(*words): return json.loads(bpc('transfer', whole, '--nets', 'mlp:width=4', '--protocol', 'brief', '--runs', 1, '--json', *words)[1])
    first, other, again = tested(), tested('--fold', 3), tested()
    assert len((tmp_path/'results'/'transfer.jsonl').read_text().splitlines()) == 2 and first == again != other


def test_no_students_at_all(refused, whole, tmp_path):
    (tmp_path/'nets.toml').write_text('[[networks]]\nnet = "mlp:width=4"\n')
    refused('audit', whole, '--runs', 0, parts='runs: expected a whole number of at least 1, found 0')
    refused('rank', tmp_path/'nets.toml', '--on', whole, '--runs', 0, parts='runs: expected a whole number of at least 1, found 0')


def test_coreset_that_is_none(refused, whole, tmp_path):
    for words in ('evaluate',), ('show',): refused(*words, tmp_path/'no.safetensors', parts='there is no coreset file')
    good = (whole/'coreset.safetensors').read_bytes()
    for name, content in ('cut', good[:len(good)//2]), ('text', b'hello'*10), ('empty', b''):
        (tmp_path/name).write_bytes(content)
        refused('evaluate', tmp_path/name, parts='not a readable coreset file')
    save_file(dict(theta=torch.zeros(3)), tmp_path/'other.safetensors')
    refused('evaluate', tmp_path/'other.safetensors', parts='not a coreset')


def test_coreset_of_other_classes_or_sizes(refused, whole, tmp_path):
    d = pictures(tmp_path/'d', a=6, b=6)
    refused('evaluate', whole/'coreset.safetensors', '--data', d, parts='its classes are 0, 1, 2')
    refused('evaluate', whole/'coreset.safetensors', '--size', 16, parts=('its images are (1, 8, 8)', '--size 8x8'))


def test_data_that_a_coreset_was_not_made_from(bpc, refused, tmp_path):
    d, words = pictures(tmp_path/'d', a=12, b=12), ('--runs', 1, '--protocol', 'brief')
    assert bpc('distill', d, '--method', 'random', '--out', 'r', '--net', 'mlp:width=4')[0] == 0
    assert bpc('evaluate', 'r', *words, '--data', d)[2] == '' # the same, wherever it lies
    refused('evaluate', 'r', *words, '--zca', parts='zca: the coreset is not whitened, and test images are brought to its space; leave --zca out')
    S = Coreset.load('r/coreset.safetensors')
    large = S._replace(kept=torch.zeros(1)) # a whitened file of large images keeps no matrix
    with pytest.raises(ValueError, match='the coreset is whitened'): data_of(large, None, dict(zca=False))
    data_of(S, None, dict(zca=False))
    (d/'a'/'0.png').unlink()
    said = 'test images may be among those it was made from'
    assert f'has changed since the coreset was made; its split is new, so {said}' in bpc('evaluate', 'r', *words)[2]
    other = f'is not what the coreset was made from; if the two share examples, {said}'
    assert other in bpc('evaluate', 'r', *words, '--data', d)[2] and other in bpc('evaluate', 'r', *words, '--data', d, '--size', 8)[2]
    S._replace(meta=dict(net='mlp:width=4')).save('own.safetensors') # of unknown data nothing is said
    assert bpc('evaluate', 'own.safetensors', *words, '--data', d)[2] == ''
    d.rename(tmp_path/'e')
    refused('evaluate', 'r', parts=('which is gone', '--data PATH'))


def test_pictures_of_ones_own_are_not_drawn_over(bpc, refused, whole, tmp_path):
    own = tmp_path/'own.safetensors'
    own.write_bytes((whole/'coreset.safetensors').read_bytes())
    Image.new('L', (4, 4)).save(own.with_suffix('.png'))
    refused('show', own, parts=('own.png is there already, and may be a picture of your own', '--out'))
    refused('show', own, '--out', 'x.jpg', parts='out: found x.jpg, and images are written as PNG; give it the suffix .png')
    own.with_suffix('.png').unlink()
    assert [bpc('show', own)[0] for _ in range(2)] == [0, 0] # what it drew itself it draws again


def test_what_names_another_thing(bpc, refused, tmp_path):
    (tmp_path/'latin.csv').write_bytes('klänge,a\nx,1\n'.encode('latin-1'))
    refused('data', tmp_path/'latin.csv', '--label', 'a', parts='latin.csv are no UTF-8; save the file as UTF-8')
    save_file(dict(mean=torch.zeros(2), sd=torch.ones(2)), tmp_path/'p.safetensors')
    refused('show', tmp_path/'p.safetensors', parts='holds points of a regression; `bpc evaluate')
    refused('distill', 'digits', '--net', 'own.py:make', parts='own.py:make is no network of this package; in Python, give as net the function that makes it')
    refused('plan', 'digits', '--buffer', tmp_path/'none', parts='buffer: there is no index.json in')
    refused('tables', '--results', tmp_path, parts='`bpc grid FILE --json` prints the lines of a grid of your own')
    (tmp_path/'t.csv').write_text('kind,a\n' + ''.join(f'{"xy"[i%2]},{i}\n' for i in range(40)))
    assert 'rows of t, mlp, protocol brief' in bpc('whole', tmp_path/'t.csv', '--label', 'kind', '--runs', 1, '--protocol', 'brief')[1]


def test_buffer_of_another_network_or_none(refused, experts, tmp_path):
    words = 'distill', 'digits', '--buffer'
    refused(*words, experts, '--net', 'convnet:width=16,depth=2', parts=(f"made with net = '{NET}'", 'width=16'))
    refused(*words, experts, '--net', NET, '--fold', 1, parts='was made with')
    refused(*words, tmp_path, parts='no index.json')
    assert not Path('runs').exists() # nothing was begun


def test_resume_wants_the_same_options(refused, whole, experts, tmp_path):
    words = 'distill', 'digits', *TINY, '--buffer', experts
    files = lambda: {p.relative_to(whole): p.read_bytes() for p in whole.rglob('*') if p.is_file()}
    before = files()
    refused(*words, '--out', whole, parts='holds a run already')
    refused(*words, '--out', whole, '--resume', '--lr', 2, parts=('lr = 1.0, not 2.0',))
    refused(*words, '--out', whole, '--resume', '--steps', 50, parts='steps')
    refused(*words, '--out', whole, '--resume', '--ipc', 2, parts='ipc = 1, not 2')
    refused('distill', 'digits', *TINY, '--out', whole, '--resume', parts='buffer')
    refused(*words, '--out', tmp_path/'none', '--resume', parts='no run in')
    assert files() == before


# --- interruptions ---------------------------------------------------------------------------------------------------

def same_run(a, b):
    "Two runs, bit for bit"
    one, two = (Coreset.load(d/'coreset.safetensors') for d in (a, b))
    assert torch.equal(one.x, two.x) and torch.equal(one.y, two.y)
    one, two = ((d/'log.jsonl').read_text() for d in (a, b))
    assert one == two and one.count('\n') == 6
    one, two = (runs.looks(d/'looks') for d in (a, b))
    assert [*one] == [*two] == [0, 10, 20, 30, 40, 50, 60] and all(torch.equal(Coreset.load(one[k]).x, Coreset.load(two[k]).x) for k in one)


PROGRAM = SHORT + 'import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); from bpc_nb.cli import main; sys.exit(main())'


@pytest.mark.parametrize('sig', [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda s: s.name)
def test_stopped_run_continues_bit_for_bit(bpc, whole, experts, tmp_path, sig):
    out = tmp_path/'run'
    words = ['distill', 'digits', *TINY, '--buffer', str(experts), '--out', str(out)]
    p = subprocess.Popen([sys.executable, '-c', PROGRAM, *words], env=os.environ | dict(PYTHONPATH=str(ROOT)), stderr=subprocess.PIPE, text=True)
    while p.poll() is None and not ((out/'log.jsonl').exists() and (out/'log.jsonl').read_text().count('\n') >= 2): time.sleep(.01)
    p.send_signal(sig)
    err = p.communicate(timeout=60)[1]
    if sig != signal.SIGKILL:
        assert p.returncode == 130 and err.startswith('bpc: stopped') and '--resume' in err and err.count('\n') == 1, err
    else: assert p.returncode == -signal.SIGKILL and err == ''
    assert not (out/'coreset.safetensors').exists()
    code, _, err = bpc(*words, '--resume')
    assert (code, err) == (0, '')
    same_run(out, whole)


def test_full_disk_leaves_the_last_checkpoint(bpc, refused, whole, experts, tmp_path, monkeypatch):
    out, calls = tmp_path/'run', []
    words = ['distill', 'digits', *TINY, '--buffer', str(experts), '--out', str(out)]
    def full(tensors, path, **kw):
        calls.append(path)
        if len(calls) == 3: Path(path).write_bytes(b'half'); raise OSError(28, 'No space left on device')
        save_file(tensors, path, **kw)
    with monkeypatch.context() as m:
        m.setattr(runs, 'save_file', full)
        refused(*words, parts=('could not write', 'checkpoint.safetensors', 'No space left on device', 'free some space'))
    assert runs.load_state(out/'checkpoint.safetensors').step == 20
    assert sorted(p.name for p in out.iterdir()) == ['checkpoint.safetensors', 'config.json', 'log.jsonl', 'looks'] # no half file
    assert bpc(*words, '--resume')[0] == 0
    same_run(out, whole)


@pytest.mark.skipif(not Path('/dev/full').exists(), reason="no /dev/full here")
def test_full_disk_when_a_line_is_logged(refused, experts, tmp_path):
    (tmp_path/'run').mkdir()
    (tmp_path/'run'/'log.jsonl').symlink_to('/dev/full')
    refused('distill', 'digits', *TINY, '--buffer', experts, '--out', 'run', parts=('could not write run/log.jsonl', 'No space left on device', 'resume'))


def test_a_write_that_the_system_refuses(refused, whole, experts, tmp_path):
    "For real, by a limit on the size of files"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard)) # the config fits, a checkpoint of 20 images does not
        refused('distill', 'digits', *TINY, '--ipc', 2, '--buffer', experts, '--out', 'run', parts=('could not write', 'checkpoint.safetensors'))
    finally: resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_folder_that_cannot_be_written(refused, experts, tmp_path, monkeypatch):
    (tmp_path/'file').write_text('')
    words = 'distill', 'digits', *TINY
    refused(*words, '--buffer', experts, '--out', tmp_path/'file'/'run', parts=('could not write', 'choose another folder'))
    refused('experts', 'digits', '--net', NET, '--out', tmp_path/'file'/'run', parts=('could not write', 'choose another folder'))
    monkeypatch.setenv('BPC_CACHE', str(tmp_path/'file'))
    refused(*words, '--out', tmp_path/'run', parts=('could not write', str(tmp_path/'file')))


NO_MEMORY = [torch.cuda.OutOfMemoryError('CUDA out of memory. Tried to allocate 2.00 GiB.'), MemoryError(), RuntimeError('CUDA error: out of memory'),
             RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes."),
             RuntimeError('[enforce fail at alloc_cpu.cpp:80] data. DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes.')]


def fails_at(n, f, error):
    "`f`, which raises `error` when it is called for the n-th time"
    calls = []
    def broken(*a, **kw):
        calls.append(0)
        if len(calls) == n: raise error
        return f(*a, **kw)
    return broken


@pytest.mark.parametrize('error', NO_MEMORY, ids=['cuda', 'python', 'driver', 'cpu', 'windows'])
def test_out_of_memory_at_once_then_resumed(bpc, refused, experts, tmp_path, monkeypatch, error):
    words = 'distill', 'digits', *TINY, '--steps', 1, '--buffer', experts, '--out', tmp_path/'run'
    with monkeypatch.context() as m:
        m.setattr(cd, 'contrast', fails_at(1, cd.contrast, error))
        refused(*words, parts=(f"bpc: out of memory; the run in {tmp_path/'run'} is kept", '--resume', '--bf16', '--nproc-per-node', '--ipc', '--net', '--select-runs'))
    assert error is not NO_MEMORY[0] or bpc(*words, '--resume')[0] == 0


def test_out_of_memory_in_a_run_continues_bit_for_bit(bpc, refused, whole, experts, tmp_path, monkeypatch):
    out = tmp_path/'run'
    words = ['distill', 'digits', *TINY, '--buffer', str(experts), '--out', str(out)]
    with monkeypatch.context() as m:
        m.setattr(cd, 'contrast', fails_at(25, cd.contrast, NO_MEMORY[0]))
        refused(*words, parts='out of memory')
    assert runs.load_state(out/'checkpoint.safetensors').step == 20
    assert bpc(*words, '--resume')[0] == 0
    same_run(out, whole)


def test_out_of_memory_in_experts_then_continued(bpc, refused, experts, tmp_path, monkeypatch):
    out, making = tmp_path/'e', import_module('bpc_nb.experts')
    words = 'experts', 'digits', '--net', NET, '--n', 4, '--epochs', 6, '--out', out
    with monkeypatch.context() as m:
        m.setattr(making, 'energy', lambda *a: fails_at(50, import_module('bpc_nb.energy').energy(*a), NO_MEMORY[0]))
        refused(*words, parts=(f'bpc: out of memory; the epochs that are finished stay in {out}', 'same command', '--group 1', 'batch'))
    shards = lambda d: {p.name: p.read_bytes() for p in d.glob('*.safetensors')}
    assert len(shards(out)) == 4 # epochs 0 to 2, and what is needed to go on
    assert bpc(*words)[0] == 0 and shards(out) == shards(experts)


def test_memory_that_the_system_refuses(bpc, refused, tmp_path):
    "For real, by a limit on the process's address space; more than what earlier tests may have left on its heap"
    refuse = lambda *words, parts: refused(words[0], 'digits', '--net', 'convnet:width=1024,depth=2', '--out', tmp_path/words[0], *words[1:], parts=parts)
    bpc('data', 'digits') # read once
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    has = int(Path('/proc/self/statm').read_text().split()[0])*resource.getpagesize()
    try:
        resource.setrlimit(resource.RLIMIT_AS, (has + (256<<20), hard))
        refuse('experts', '--n', 1, '--epochs', 1, '--batch', 1294, parts=('out of memory; the epochs', 'smaller batch'))
        refuse('distill', '--T', 1, '--experts', 'n=1,epochs=3,batch=1294', parts=('out of memory; the epochs', 'smaller batch'))
    finally: resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def test_out_of_memory_elsewhere(refused, whole, monkeypatch):
    judge = import_module('bpc_nb.commands.judge')
    monkeypatch.setattr(judge, 'evaluate', fails_at(1, judge.evaluate, NO_MEMORY[1]))
    refused('evaluate', whole/'coreset.safetensors', parts=('out of memory; take smaller images (--size)', '--runs'))


def test_damaged_checkpoint(refused, whole, experts, tmp_path):
    out = tmp_path/'run'
    out.mkdir()
    for f in 'config.json', 'log.jsonl': (out/f).write_bytes((whole/f).read_bytes())
    (out/'checkpoint.safetensors').write_bytes((whole/'checkpoint.safetensors').read_bytes()[:100])
    refused('distill', 'digits', *TINY, '--buffer', experts, '--out', out, '--resume', parts='not a readable checkpoint')


def test_loss_that_is_not_finite_once(bpc, experts, monkeypatch):
    contrast, calls = cd.contrast, []
    def broken(*a): calls.append(0); return contrast(*a)*(float('nan') if len(calls) == 25 else 1)
    monkeypatch.setattr(cd, 'contrast', broken)
    code, out, err = bpc('distill', 'digits', *TINY, '--buffer', experts, '--out', 'run')
    assert code == 0 and err == 'bpc: the loss was not finite at step 24: back to step 20, with lr halved to 0.5\n'
    assert [json.loads(l)['step'] for l in Path('run/log.jsonl').read_text().splitlines()] == [10, 20, 30, 40, 50, 60]


def test_absurd_step_stops_with_a_sentence(bpc, experts):
    code, out, err = bpc('distill', 'digits', *TINY, '--buffer', experts, '--lr', '1e39', '--out', 'run')
    warned, said = err.splitlines()
    assert code == 2 and 'back to step 0' in warned and 'not finite' in said and 'lower lr' in said


def test_diverged_student_is_no_candidate(bpc, experts, monkeypatch):
    evaluate, calls = distill.evaluate, []
    def broken(*a, **kw):
        calls.append(0)
        if len(calls) == 2: raise Diverged('probs: not finite')
        return evaluate(*a, **kw)
    monkeypatch.setattr(distill, 'evaluate', broken)
    code, out, err = bpc('distill', 'digits', *TINY, '--buffer', experts, '--out', 'run')
    looks = [json.loads(l)['accuracy_mean'] for l in Path('run/log.jsonl').read_text().splitlines()]
    assert code == 0 and 'a student diverged' in err and looks[0] == 0 and min(looks[1:]) > 0


# --- options that meet -----------------------------------------------------------------------------------------------

def test_a_run_refuses_what_contradicts_it_also_where_that_is_usual(bpc, refused, tmp_path):
    assert bpc('distill', 'digits', '--method', 'dm', '--ipc', 2, '--seed', 3, '--net', 'mlp:width=4', '--steps', 1, '--every', 1, '--real', 8,
               '--select-runs', 1, '--out', 'run')[0] == 0
    for typed, said in ((('--ipc', 1), 'ipc = 2, not 1'), (('--seed', 0), 'seed = 3, not 0'), (('--method', 'cd'), "'dm', not 'cd'")):
        refused('distill', '--resume', '--out', 'run', *typed, parts=said)
    assert bpc('distill', '--resume', '--out', 'run', '--steps', 2)[0] == 0 and Coreset.load('run/coreset.safetensors').meta['ipc'] == 2


def test_nothing_is_trained_where_no_test_image_is_left():
    data = load('digits', folds=1)
    S = data.draw(1, stream(0))._replace(meta=dict(net='mlp:width=4'))
    for judge in evaluate, predictive, audited:
        with pytest.raises(ValueError, match='no images in its test part'): judge(S, data)


def test_a_schedule_is_refused_before_a_student_is_trained(monkeypatch):
    data = load('digits')
    monkeypatch.setattr('bpc_nb.predictive.students', lambda *a, **k: pytest.fail('trained'))
    with pytest.raises(ValueError, match='hmc cannot; judge it by students'):
        predictive(data.draw(1, stream(0))._replace(steps=torch.ones(2, 1)), data, 'hmc', 'mlp:width=4')
    with pytest.raises(ValueError, match="select_evaluator: found 'ridge'; coreset: it has learned step sizes"):
        distill.distill('dd', data, net='mlp:width=4', select_evaluator='ridge', steps=1, every=1, progress=False)


def test_a_prior_says_nothing_to_a_control_without_a_chain():
    with pytest.raises(ValueError, match='prior'): distill.configure('positive-only', 'digits', 1, prior=1.)


def test_a_sum_is_no_steeper_for_means_of_features():
    of = lambda way: learner(registry()['mnemonics'], Task(None, network('mlp:width=4', (1, 8, 8), 10), load('digits')), dict(way=way)).scaled
    assert of('bilevel') and not of('means')


def test_the_ridge_of_a_kernel_is_not_that_of_features():
    S = load('digits').draw(2, stream(0))
    asked = lambda **meta: evaluate(S._replace(meta=meta), 'digits', 1, evaluator='ridge', net='mlp:width=4', eight_bit=False)['r']
    assert asked(r=1e-6, method='kip') == asked() != asked(r=1e-6, method='frepo') == 1e-6


def test_grey_images_are_not_flipped_by_a_method():
    x = torch.randn(4, 1, 8, 8)
    def kept(x): return [fitting('flip', x)(x, stream(i)).equal(x) for i in range(20)]
    assert all(kept(x)) and not all(kept(x.expand(4, 3, 8, 8)))


# --- the machine and the caller ---------------------------------------------------------------------------------------

def test_a_disk_that_takes_a_part_of_a_line_takes_all_or_says_so(tmp_path, monkeypatch):
    class Short: # takes seven bytes at once, and at last nothing
        def __init__(self, f, room): self.f, self.room = f, room
        def write(self, data):
            if not self.room: raise OSError(28, 'No space left on device')
            self.room -= (n := min(7, self.room, len(data)))
            return self.f.write(data[:n])
        def __getattr__(self, name): return getattr(self.f, name)
        def __enter__(self): return self
        def __exit__(self, *_): self.f.close()
    line = dict(key='a'*30)
    for room in 1000, 10:
        monkeypatch.setattr(lines, 'open', lambda *a, room=room, **k: Short(open(*a, **k), room), raising=False)
        if room == 1000: lines.add(tmp_path/'l.jsonl', line)
        else:
            with pytest.raises(OSError, match='free some space'): lines.add(tmp_path/'l.jsonl', line | dict(key='b'))
    monkeypatch.undo()
    lines.add(tmp_path/'l.jsonl', dict(key='c'))
    assert [r['key'] for r in lines.lines(tmp_path/'l.jsonl')] == ['a'*30, 'c']


@torch.no_grad()
def test_gradients_are_there_where_the_caller_has_none():
    S = distill.distill('dm', 'digits', steps=1, every=1, net='mlp:width=4', select_runs=1, select_protocol='brief', progress=False)
    assert evaluate(S, 'digits', 1, 'brief', eight_bit=False)['runs'] == 1 and not torch.is_grad_enabled()


def test_numbers_of_other_kinds(tmp_path):
    run = dict(net='mlp:width=4', select_runs=1, select_protocol='brief', every=1, progress=False)
    S = distill.distill('dm', 'digits', np.int64(1), seed=np.int64(3), steps=np.int64(1), lr=np.float32(1), **run)
    double = S._replace(x=S.x.double(), y=S.y.int())
    double.save(tmp_path/'s.safetensors')
    of = lambda S: evaluate(S, 'digits', 1, 'brief', eight_bit=False)['accuracy_mean']
    assert Coreset.load(tmp_path/'s.safetensors').x.dtype == torch.float32 and of(double) == of(S)
    with pytest.raises(ValueError, match='its x is a ndarray'): of(S._replace(x=S.x.numpy()))
    torch.set_default_dtype(torch.float64)
    try: assert load('digits').train.x.dtype == torch.float32
    finally: torch.set_default_dtype(torch.float32)


def test_files_are_as_open_as_the_user_says(tmp_path):
    said = "import os; os.umask(0o077); from bpc_nb.core import save_json; save_json('p', {}); print(oct(os.stat('p').st_mode & 0o777))"
    assert subprocess.run([sys.executable, '-c', said], cwd=tmp_path, capture_output=True, text=True,
                          env=os.environ | dict(PYTHONPATH=str(ROOT))).stdout.strip() == '0o600'


def spoken_by(words, cwd, tail='', **env): # of a shell
    return subprocess.run(['bash', '-c', f'"{sys.executable}" -m bpc_nb.cli {words} {tail}'], cwd=cwd, capture_output=True,
                          env=os.environ | dict(PYTHONPATH=str(ROOT)) | env)

def test_output_that_meets_few_letters_nobody_or_nothing(tmp_path):
    load('digits').draw(1, stream(0))._replace(meta=dict(net='mlp:width=4')).save(tmp_path/'s.safetensors')
    short = 'evaluate s.safetensors --data digits --runs 2 --protocol brief'
    few = spoken_by(short, tmp_path, PYTHONIOENCODING='ascii')
    assert few.returncode == 0 and b'\\xb1' in few.stdout
    assert spoken_by(short, tmp_path, '2>&-').returncode == 0
    busy = spoken_by('distill digits --method dm --net mlp:width=4 --steps 4000 --every 100 --select-runs 1 --select-protocol brief --out run',
                     tmp_path, '2>&1 | head -1; exit ${PIPESTATUS[0]}')
    assert busy.returncode == 141 and not (tmp_path/'run'/'coreset.safetensors').exists()


def test_what_a_killed_process_left_goes_away(bpc, tmp_path):
    words = ('distill', 'digits', '--method', 'dm', '--net', 'mlp:width=4', '--real', 8, '--every', 1, '--select-runs', 1, '--out', 'run')
    assert bpc(*words, '--steps', 1)[0] == 0
    left = Path('run/.checkpoint.safetensors.q5bdhn4s'), Path('run/looks/.000002.safetensors.5vzgtgkp')
    for p in left: p.write_text('half')
    assert bpc(*words, '--steps', 2, '--resume')[0] == 0 and not any(p.exists() for p in left)


def test_a_folder_is_removed_whole(tmp_path):
    for name in 'run', '.run.gone':
        (tmp_path/name/'looks').mkdir(parents=True)
        (tmp_path/name/'config.json').write_text('{}')
    runs.cleared(tmp_path/'run')
    assert not [*tmp_path.iterdir()]


def test_a_user_without_a_home(monkeypatch):
    monkeypatch.setattr(Path, 'expanduser', lambda self: (_ for _ in ()).throw(RuntimeError('Could not determine home directory.')))
    monkeypatch.delenv('BPC_CACHE', raising=False)
    with pytest.raises(FileNotFoundError, match='set BPC_CACHE'): cache_folder()
