"""Buffers of experts on a real disk: what one draw opens, and what it has the disk read."""
import os
from importlib import import_module
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from bpc_nb.core import Coreset, stream
from bpc_nb.experts import Buffer, open_buffer

ROOT = Path(__file__).resolve().parents[1]


def test_a_draw_opens_two_files(experts, monkeypatch):
    making, opened = import_module('bpc_nb.experts'), []
    safe_open = making.safe_open
    monkeypatch.setattr(making, 'safe_open', lambda path, *a: opened.append(Path(path).name) or safe_open(path, *a))
    open_buffer(experts).draw(stream(0), T=2, start=(1, 2))
    assert opened == ['g000_e001.safetensors', 'g000_e003.safetensors']


def from_disk(path, read):
    "Bytes that the disk was asked for, where nothing of the file was in memory"
    count = lambda: int(next(l for l in Path('/proc/self/io').read_text().splitlines() if l.startswith('read_bytes')).split()[1])
    with open(path, 'rb') as f: os.fsync(f.fileno()); os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    before = count()
    read().sum()
    return count() - before


@pytest.mark.skipif(not Path('/proc/self/io').exists(), reason="no count of what is read from disk")
@pytest.mark.parametrize('half', [False, True])
def test_a_row_is_all_that_is_read(tmp_path, half):
    R, P = 40, 100_000
    b = Buffer(tmp_path, dict(epochs=1, n=R, group=R, half=half, P=P))
    theta = torch.randn(R, P, generator=stream(0))
    save_file(dict(theta=theta.half() if half else theta), f := b.shard(0, 1))
    whole = from_disk(f, lambda: load_file(f)['theta'])
    if whole < .9*f.stat().st_size: pytest.skip("this file system is none of a disk")
    row = P*(2 if half else 4)
    for r in 0, 7, R-1:
        assert row <= from_disk(f, lambda: b.read((0, r), 1)) < row + 2*2**14
        assert torch.equal(b.read((0, r), 1), (theta.half() if half else theta)[r].float())


# --- the starter -----------------------------------------------------------------------------------------------------
STARTER = ROOT/'results'/'starter'
made = pytest.mark.skipif(not STARTER.exists(), reason="no buffers in results/starter")


@made
def test_starters_are_whole_and_small():
    assert sum(f.stat().st_size for f in STARTER.rglob('*')) < 20e6
    for b in map(open_buffer, STARTER.glob('*/')):
        assert b.index['half'] and len(b.complete) == b.index['n'] and not list(b.folder.glob('*last*'))
        assert all(b.shard(g, e).exists() for g, _ in b.complete for e in range(b.index['epochs']+1))


@made
@pytest.mark.parametrize('name, ipc', [('digits', 1), ('mnist', 1), pytest.param('cifar10', 1, marks=pytest.mark.slow)])
def test_a_run_from_a_starter(name, ipc, bpc, refused, kept, tmp_path, request):
    if not (STARTER/name).exists(): pytest.skip(f"no buffer for {name}")
    if name != 'digits': request.getfixturevalue('data_root')
    index = open_buffer(STARTER/name).index
    words = ['distill', name, '--ipc', ipc, '--net', index['net'], '--buffer', STARTER/name, '--no-compile', '--no-bf16', '--L', 2, '--steps', 2, '--every', 2, '--select-runs', 1, '--select-protocol', 'quick']
    assert bpc(*words, '--out', 'run', '--json')[0] == 0
    assert Coreset.load(tmp_path/'run'/'coreset.safetensors').meta['experts']['half']
    refused(*words, '--held-out', .2, '--json', parts=('was made with held_out, seed, folds, fold', '0.2'))
