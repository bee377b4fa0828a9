"""Many processes: what several ranks make is what one makes, what one of them spoils ends or heals all, and torchrun restarts a run that was killed."""
import json, os, signal, subprocess, sys, time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from bpc_nb.core import Coreset
from bpc_nb.experts import open_buffer
from conftest import NET, SHORT, TINY

ROOT = Path(__file__).resolve().parents[1]

# a process that has imported everything once; each job is a few forks of it, told who they are and where to meet as torchrun would
FORKS = SHORT + """
import json, os, sys, time
from pathlib import Path
import torch
from bpc_nb import cli, distill, evaluate, learn, ranks, runs
from bpc_nb.methods import cd
from bpc_nb.metrics import Diverged
torch.set_num_threads(1)
for job in sys.stdin:
    folder, words, before, env = json.loads(job)
    os.chdir(folder)
    pids, port = [], Path('port') # the store has a thread, and threads do not go with a fork: it comes after
    port.unlink(missing_ok=True)
    for rank, w in enumerate(words):
        pids.append(os.fork())
        if pids[-1]: continue
        for fd, name in (1, 'out'), (2, 'err'): os.dup2(os.open(f'{name}{rank}', os.O_CREAT|os.O_WRONLY|os.O_TRUNC), fd)
        while not port.exists(): time.sleep(.01)
        os.environ.update(env, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(len(words)), MASTER_ADDR='localhost', MASTER_PORT=port.read_text(), TORCHELASTIC_USE_AGENT_STORE='True')
        code = 99
        try: exec(before); code = cli.main(w)
        finally: sys.stdout.flush(); sys.stderr.flush(); os._exit(code)
    store = torch.distributed.TCPStore('localhost', 0, is_master=True, wait_for_workers=False)
    Path('port.new').write_text(str(store.port)); os.rename('port.new', port)
    codes = [os.waitstatus_to_exitcode(os.waitpid(p, 0)[1]) for p in pids]
    del store
    print(json.dumps([codes, *(''.join(open(f'{name}{r}').read() for r in range(len(words))) for name in ('out', 'err'))]), flush=True)
"""


@pytest.fixture(scope='module')
def forks(home):
    p = subprocess.Popen([sys.executable, '-c', FORKS], env=os.environ | dict(PYTHONPATH=str(ROOT)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    yield p
    p.communicate()


@pytest.fixture
def on(forks, tmp_path):
    "Runs a command, or one for each, on n ranks: exit codes, what they printed, what they complained of"
    def run(n, *words, before='', **env): # before: code that each runs first; it knows its `rank`
        words = [[str(w) for w in ws] for ws in (words if isinstance(words[0], (list, tuple)) else [words]*n)]
        forks.stdin.write(json.dumps([str(tmp_path), words, before, env]) + '\n'); forks.stdin.flush()
        return json.loads(forks.stdout.readline())
    return run


@pytest.fixture
def all_refuse(on):
    "A command at which no rank exits with 0, and one of them says why, in one line"
    def run(n, *words, parts, **kw):
        codes, out, err = on(n, *words, **kw)
        assert 0 not in codes and out == '' and err.startswith('bpc: ') and err.count('\n') == 1, (codes, out, err)
        for p in parts: assert p in err, err
    return run


RUN = [*TINY, '--steps', '40', '--select-runs', '2']
images = lambda folder: load_file(folder/'checkpoint.safetensors')['leaves.x']
looks = lambda folder: [json.loads(l) for l in (folder/'log.jsonl').read_text().splitlines()]
close = lambda a, b, tol: (a-b).abs().max().item() < tol


# --- one process or many ---------------------------------------------------------------------------------------------

@pytest.fixture(scope='module')
def two(forks, experts, tmp_path_factory):
    "The folder of a run on two ranks that nothing disturbed"
    out = tmp_path_factory.mktemp('two')/'run'
    words = ['distill', 'digits', *RUN, '--buffer', str(experts), '--out', str(out), '--json']
    forks.stdin.write(json.dumps([str(out.parent), [words]*2, '', {}]) + '\n'); forks.stdin.flush()
    codes, said, err = json.loads(forks.stdout.readline())
    assert (codes, err) == ([0, 0], '') and json.loads(said)['coreset'] == str(out/'coreset.safetensors') # one line: rank 0's
    return out


def test_two_ranks_are_one_process_with_two_streams(bpc, two, experts, tmp_path):
    words = 'distill', 'digits', *RUN, '--buffer', experts
    assert bpc(*words, '--streams', 2, '--out', 'both')[0] == bpc(*words, '--out', 'one')[0] == 0
    assert torch.equal(images(two), images(Path('both'))) and not close(images(two), images(Path('one')), .1)
    for a, b in zip(looks(two), looks(Path('both')), strict=True):
        assert a['step'] == b['step'] and a['loss'] == b['loss']
    assert sorted(p.name for p in two.iterdir()) == sorted(p.name for p in Path('both').iterdir())
    assert Coreset.load(two/'coreset.safetensors').meta['streams'] == 2


def test_four_ranks(on, bpc, experts, tmp_path):
    words = 'distill', 'digits', *RUN, '--steps', 20, '--buffer', experts
    assert on(4, *words, '--out', 'ranks')[0] == [0]*4
    assert bpc(*words, '--streams', 4, '--out', 'one')[0] == 0
    assert torch.equal(images(tmp_path/'ranks'), images(Path('one')))


@pytest.mark.slow
def test_an_episode_ends_for_all_ranks(on, bpc, tmp_path):
    "Networks of several streams are on several ranks, and one that has seen enough ends the episode of all"
    words = *'distill digits --method cafe-dsa --real 8 --watch 4 --most 12 --still .3 --steps 2 --every 1 --select-runs 1'.split(), '--net', NET
    assert on(2, *words, '--out', 'ranks')[0] == [0, 0]
    assert bpc(*words, '--streams', 2, '--out', 'one')[0] == 0
    assert torch.equal(images(tmp_path/'ranks'), images(Path('one')))


def test_experts_are_dealt(on, all_refuse, experts, tmp_path):
    words = 'experts', 'digits', '--net', NET, '--n', 4, '--epochs', 6, '--out', 'b'
    assert on(2, *words)[0] == [0, 0]
    ours, theirs = open_buffer(tmp_path/'b'), open_buffer(experts)
    assert ours.complete == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert all(close(ours.read(a, 6), theirs.read(b, 6), 1e-2) for a, b in zip(ours.complete, theirs.complete, strict=True))
    all_refuse(3, *words[:4], '--n', 2, '--out', 'c', parts=('2 trajectories for 3 ranks',))
    all_refuse(2, *words[:4], '--n', 2, '--lr', '1e9', '--epochs', 2, '--out', 'd', parts=('an expert diverged',))


def test_students_are_dealt(on, bpc, two, tmp_path):
    words = 'evaluate', two/'coreset.safetensors', '--runs', 3, '--control', '--json'
    codes, out, err = on(2, *words)
    one, many = json.loads(bpc(*words)[1]), json.loads(out)
    assert (codes, err) == ([0, 0], '') and one.keys() == many.keys()
    for k in one:
        if k.startswith(('accuracy_runs', 'nll')): assert close(torch.tensor(one[k]), torch.tensor(many[k]), .01), k
    assert one['accuracy_runs_random'] == many['accuracy_runs_random'] # these are trained one by one in any case


def test_cells_are_dealt(on, bpc, tmp_path):
    (tmp_path/'g.toml').write_text(f'[[cells]]\nmethod = "positive-only"\nseed = [0, 1, 2]\nnet = "{NET}"\nsteps = 10\nevery = 10\nselect_runs = 1\nruns = 1\nprotocol = "quick"\nexperts = {{n = 1, epochs = 12, batch = 256}}\n')
    codes, out, err = on(2, 'grid', 'g.toml', '--json', '--results', 'many')
    assert codes == [0, 0]
    rows = lambda text: {r['key']: r['accuracy_runs']+r['accuracy_runs_random'] for r in json.loads(text)}
    assert rows(out) == rows(bpc('grid', 'g.toml', '--json', '--results', 'one', '--runs', 'again')[1]) and len(rows(out)) == 3


def test_time_of_a_step(on, tmp_path):
    codes, out, err = on(2, 'scale', '--quick', '--L', 2, '--steps', 2, '--out', 's.jsonl')
    r, = map(json.loads, (tmp_path/'s.jsonl').read_text().splitlines())
    assert (codes, err) == ([0, 0], '') and (r['ranks'], r['bytes']) == (2, 8*6401) and 0 < r['sum_seconds'] < 60 and out.count('\n') == 1


# --- what goes wrong -------------------------------------------------------------------------------------------------

def test_ranks_that_were_told_different_things(all_refuse, experts):
    words = 'distill', 'digits', *RUN, '--buffer', experts, '--out', 'r'
    all_refuse(2, [*words, '--lr', 1], [*words, '--lr', 2], parts=('lr: 1.0 on rank 0, but 2.0 on rank 1', 'same command'))
    all_refuse(2, ['list'], words, parts=('command:',))


def test_bad_input(all_refuse, experts):
    words = 'distill', 'digits', *RUN, '--out', 'r'
    all_refuse(2, *words, '--ipc', 0, parts=('ipc', 'at least 1'))
    all_refuse(2, *words, '--buffer', experts, '--streams', 1, parts=('1 draws a step for 2 ranks',))
    all_refuse(5, *words, '--buffer', experts, parts=('4 trajectories for 5 ranks',))
    all_refuse(2, *words, '--device', 'cuda', before='torch.cuda.is_available = lambda: False', parts=('torch sees no GPU',))


def test_missing_backend(on):
    codes, out, err = on(2, 'list', before='ranks.dist.is_backend_available = lambda b: False')
    assert codes == [2, 2] and out == '' and all(l.startswith('bpc: backend: this build of torch has no gloo') for l in err.splitlines())


BREAK = """
contrast, calls = cd.contrast, []
def broken(*a):
    calls.append(0)
    return contrast(*a) if rank != 1 or len(calls) != 25 else (WHAT)
cd.contrast = broken
"""


def test_loss_that_is_not_finite_on_one_rank(on, experts, tmp_path):
    codes, out, err = on(2, 'distill', 'digits', *RUN, '--buffer', experts, '--out', 'r', before=BREAK.replace('WHAT', "contrast(*a)*float('nan')"))
    assert codes == [0, 0] and err == 'bpc: rank 0 of 2: the loss was not finite at step 24: back to step 20, with lr halved to 0.5\n'
    assert [r['step'] for r in looks(tmp_path/'r')] == [10, 20, 30, 40]


def test_student_that_diverges_on_one_rank(on, experts, tmp_path):
    hook = "def broken(*a, **kw): raise Diverged('probs: not finite')\nif rank == 1: evaluate.students = broken"
    codes, out, err = on(2, 'distill', 'digits', *RUN, '--steps', 10, '--buffer', experts, '--out', 'r', before=hook)
    assert codes == [0, 0] and err.count('a student diverged') == 1 and [r['accuracy_mean'] for r in looks(tmp_path/'r')] == [0.]


def test_disk_that_is_full_for_rank_0(all_refuse, experts, tmp_path):
    hook = "def full(*a, **kw): raise OSError(28, 'No space left on device')\nruns.save_file = full"
    all_refuse(2, 'distill', 'digits', *RUN, '--buffer', experts, '--out', 'r', before=hook, parts=('No space left on device',))


def test_out_of_memory_on_one_rank_then_fewer_ranks(all_refuse, bpc, two, experts, tmp_path):
    words = 'distill', 'digits', *RUN, '--buffer', experts, '--out', tmp_path/'r'
    hook = BREAK.replace('WHAT', "(_ for _ in ()).throw(torch.cuda.OutOfMemoryError('CUDA out of memory'))")
    all_refuse(2, *words, before=hook, parts=('rank 1 of 2: out of memory', '--resume', '--bf16', '--nproc-per-node', '--ipc'))
    assert bpc(*words, '--resume')[0] == 0 # one process, both streams
    assert torch.equal(images(tmp_path/'r'), images(two)) and len(looks(tmp_path/'r')) == 4
    assert bpc(*words, '--resume', '--steps', 50, '--bf16')[0] == 0 and len(looks(tmp_path/'r')) == 5


# --- torchrun --------------------------------------------------------------------------------------------------------

PROGRAM = SHORT + 'import sys; from bpc_nb.cli import main; sys.exit(main())'


def torchrun(tmp_path, n, *words, options=()):
    return subprocess.Popen([sys.executable, '-m', 'torch.distributed.run', '--standalone', '--nproc-per-node', str(n), *options, '--no-python', *map(str, words)],
                            env=os.environ | dict(PYTHONPATH=str(ROOT), OMP_NUM_THREADS='1'), cwd=tmp_path, stderr=subprocess.PIPE, text=True)


def worker(parent, rank):
    "The process with this RANK that `parent` started"
    for p in Path('/proc').glob('[0-9]*'):
        try:
            if int((p/'stat').read_text().rpartition(')')[2].split()[1]) == parent and f'RANK={rank}\0' in '\0'+(p/'environ').read_text(): return int(p.name)
        except OSError: pass


@pytest.mark.slow
def test_killed_rank_is_restarted_bit_for_bit(home, two, experts, tmp_path):
    p = torchrun(tmp_path, 2, sys.executable, '-c', PROGRAM, 'distill', 'digits', *RUN, '--buffer', experts, '--out', 'r', options=('--max-restarts', '1'))
    log = tmp_path/'r'/'log.jsonl'
    while p.poll() is None and not (log.exists() and log.read_text().count('\n') >= 2): time.sleep(.01)
    os.kill(worker(p.pid, 1), signal.SIGKILL)
    err = p.communicate(timeout=120)[1]
    assert p.returncode == 0 and 'exitcode: -9' in err, err
    assert torch.equal(images(tmp_path/'r'), images(two)) and log.read_text() == (two/'log.jsonl').read_text()
    assert torch.equal(Coreset.load(tmp_path/'r'/'coreset.safetensors').x, Coreset.load(two/'coreset.safetensors').x)


@pytest.mark.slow
def test_ranks_that_fail_end_torchrun(home, experts, tmp_path):
    p = torchrun(tmp_path, 4, 'sh', '-c', 'exec "$@" --seed $RANK', 'sh', sys.executable, '-c', PROGRAM, 'distill', 'digits', *RUN, '--buffer', experts)
    err = p.communicate(timeout=120)[1]
    assert p.returncode != 0 and len([l for l in err.splitlines() if l.startswith('bpc: ')]) == 1 and 'seed: 0 on rank 0, but 1 on rank 1' in err
