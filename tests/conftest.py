"""Where the real data is: the variable BPC_DATA, else a folder `shared/data` beside the checkout."""
import os
from pathlib import Path

import pytest

own_cache = os.environ.get('BPC_CACHE') # before a test has another
beside = Path(__file__).resolve().parents[2]/'shared'/'data'
if not os.environ.get('BPC_DATA') and beside.is_dir(): os.environ['BPC_DATA'] = str(beside)


@pytest.fixture(scope='session')
def data_root():
    "Folder with the real data sets; skips where there is none"
    root = os.environ.get('BPC_DATA')
    if not root or not Path(root).is_dir(): pytest.skip("no real data: BPC_DATA names no folder and there is none beside the checkout")
    return Path(root)


@pytest.fixture
def kept(monkeypatch):
    "Real sets are decoded once per machine, not once per test"
    monkeypatch.delenv('BPC_CACHE', raising=False)
    if own_cache: monkeypatch.setenv('BPC_CACHE', own_cache)


SHORT = 'from bpc_nb.evaluate import PROTOCOLS; PROTOCOLS["quick"]["epochs"] = 12\n' # in other processes: students that are soon done
NET = 'convnet:width=8,depth=2'
TINY = f'--net {NET} --L 5 --lr 1 --width 0 --select-runs 1 --steps 60 --every 10'.split()


@pytest.fixture(scope='module')
def home(tmp_path_factory):
    "A cache of its own, one thread, as the command line's processes have in these tests, and students that are soon done"
    import torch
    from bpc_nb.evaluate import PROTOCOLS
    with pytest.MonkeyPatch.context() as m:
        m.setenv('BPC_CACHE', str(tmp_path_factory.getbasetemp()/'cache'))
        m.setenv('OMP_NUM_THREADS', '1')
        m.setitem(PROTOCOLS['quick'], 'epochs', 12)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        yield
        torch.set_num_threads(threads)


@pytest.fixture
def bpc(home, capsys, tmp_path, monkeypatch):
    "Runs one command in an empty folder: exit code, standard output, standard error"
    from bpc_nb.cli import main
    monkeypatch.chdir(tmp_path)
    def run(*words):
        code = main([str(w) for w in words])
        return (code, *capsys.readouterr())
    return run


@pytest.fixture
def refused(bpc):
    "Runs a command that must exit with 2 and one line in which `parts` occur"
    def run(*words, parts=()):
        code, out, err = bpc(*words)
        assert code == 2 and out == '', (code, out, err)
        assert err.startswith('bpc: ') and err.endswith('\n') and err.count('\n') == 1 and 'Traceback' not in err, err
        for p in [parts] if isinstance(parts, str) else parts: assert p in err, err
        return err
    return run


@pytest.fixture(scope='session')
def experts(tmp_path_factory):
    "A folder of four small experts on digits, made once"
    from bpc_nb.cli import main
    with pytest.MonkeyPatch.context() as m:
        m.setenv('BPC_CACHE', str(tmp_path_factory.getbasetemp()/'cache'))
        out = tmp_path_factory.mktemp('experts')/'digits'
        assert main(['experts', 'digits', '--net', NET, '--n', '4', '--epochs', '6', '--out', str(out)]) == 0
    return out
