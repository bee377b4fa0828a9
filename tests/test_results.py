"""What lies in `results/`: every line says where it is from, lines of grids have one schema, and kept coresets are those of their lines."""
import hashlib
import json
from collections import Counter
from datetime import datetime
from pathlib import Path

import pytest

RESULTS = Path(__file__).parents[1]/'results'
FILES = sorted(RESULTS.rglob('*.jsonl'))
MADE = {'bpc_nb', 'torch', 'python', 'cpu', 'cores', 'threads', 'time'}
RUN = dict(key=str, method=str, data=str, ipc=int, seed=int, protocol=str, runs=int, config=dict, held_out=float, accuracy_mean=float,
           accuracy_runs=list, accuracy_mean_8bit=float, accuracy_mean_random=float, nll_mean=float, n_test=int, seconds=dict, coreset=str)

def name(p): return p.relative_to(RESULTS).as_posix()
def lines(p): return [json.loads(l) for l in p.read_text().splitlines()]

def of_grids(): # lines that are cells of the TOML file beside them
    return [(p, r) for p in FILES if p.with_suffix('.toml').exists() and p.stem!='posteriors' for r in lines(p) if 'key' in r]

@pytest.mark.parametrize('file', FILES, ids=name)
def test_a_line_says_version_machine_and_time(file):
    rows = lines(file)
    assert rows
    if file.stem=='trials': return # kept by hand, as README.md says
    for r in rows:
        assert MADE <= {*r['made']}
        assert datetime.fromisoformat(r['made']['time']).utcoffset() is not None

def test_lines_of_grids_have_one_schema():
    for p, r in of_grids():
        wrong = {k: r.get(k) for k, kind in RUN.items() if not isinstance(r.get(k), kind)}
        assert not wrong, (name(p), r['key'], wrong)
        assert len(r['accuracy_runs'])==r['runs'] and abs(sum(r['accuracy_runs'])/r['runs'] - r['accuracy_mean']) < 1e-6
        assert 0 <= r['held_out'] <= 1 and {'distill', 'evaluate'} <= {*r['seconds']}

NO_DATA = {'points', 'search', 'bench', 'scale'}                             # as README.md says
NO_METHOD = {'search', 'bench', 'scale', 'whole', 'experts', 'baselines', 'taught', 'quality', 'poison'}

def test_lines_name_data_and_method_alike():
    def without(k): return {p.stem for p in FILES for r in lines(p) if not isinstance(r.get(k), str)}
    assert (without('data'), without('method'))==(NO_DATA, NO_METHOD)
    assert not [name(p) for p in FILES for r in lines(p) if {'way', 'by'} & {*r}]

def test_a_cell_has_one_line():
    assert not [k for k, n in Counter(r['key'] for _, r in of_grids()).items() if n > 1]

def test_kept_coresets_are_those_of_their_lines():
    kept = {p.stem: p for p in (RESULTS/'coresets').glob('*.safetensors')}
    with_line = [(r, kept[r['key']]) for p in FILES for r in lines(p) if r.get('key') in kept and r.get('coreset') and 'of' not in r]
    assert {*kept}=={p.stem for _, p in with_line}
    for r, p in with_line: assert hashlib.sha256(p.read_bytes()).hexdigest()==r['coreset'], (r['key'], r['method'])

def test_readme_names_every_file_of_lines():
    table = (RESULTS/'README.md').read_text().split('## Which chapter reads what')[1]
    assert not [name(p) for p in FILES if f'`{p.stem}`' not in table]
