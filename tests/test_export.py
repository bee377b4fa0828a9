"""The package is what the notebooks export: export a copy elsewhere and compare it with the checked-in modules."""
import filecmp, json, os, re, shutil, subprocess, sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT/'nbs').glob('*.ipynb'))


def test_package_is_in_sync_with_notebooks(tmp_path):
    for f in 'settings.ini','pyproject.toml': shutil.copy(ROOT/f, tmp_path)
    shutil.copytree(ROOT/'nbs', tmp_path/'nbs', ignore=shutil.ignore_patterns('_*', '.*'))
    env = {k: v for k, v in os.environ.items() if k != 'IN_TEST'}
    subprocess.run([sys.executable, '-c', 'from nbdev.doclinks import nbdev_export; nbdev_export()'], cwd=tmp_path, env=env, check=True)
    made,kept = ({p.relative_to(root) for p in (root/'bpc_nb').rglob('*.py')} for root in (tmp_path, ROOT))
    assert made == kept, "modules and notebooks do not match: run make export, delete modules without a notebook"
    assert [str(p) for p in made if not filecmp.cmp(tmp_path/p, ROOT/p, shallow=False)] == [], "edited by hand, or not exported: run make export"
    assert filecmp.cmp(tmp_path/'pyproject.toml', ROOT/'pyproject.toml', shallow=False)


def test_notebooks_lie_side_by_side():
    nested = [p for p in (ROOT/'nbs').rglob('*.ipynb') if p.parent.name != '.ipynb_checkpoints']
    assert sorted(nested) == NOTEBOOKS, "chapters are numbered files directly in nbs/"


@pytest.mark.parametrize('path', NOTEBOOKS, ids=lambda p: p.stem)
def test_notebook_is_clean(path):
    from execnb.nbio import nb2str
    from nbdev.clean import clean_nb
    nb = json.loads(path.read_text(encoding='utf-8'))
    assert 'widgets' not in nb['metadata'], "saved widget state: clear it in Jupyter, then run make export"
    assert not [o for c in nb['cells'] for o in c.get('outputs', []) if o['output_type'] == 'error'], "a saved traceback"
    clean_nb(nb, clean_ids=True)
    assert nb2str(nb).strip() == path.read_text(encoding='utf-8').strip(), "run make export"


def test_ci_tries_the_oldest_python_and_torch_that_settings_allow():
    settings, ci = ((ROOT/f).read_text() for f in ('settings.ini', '.github/workflows/ci.yml'))
    python, torch = (re.search(p, settings).group(1) for p in (r'min_python = ([\d.]+)', r'torch>=([\d.]+)'))
    assert f'python: ["{python}", ' in ci and f'torch: ["torch=={torch}.0 ' in ci and ', "torch torchvision"]' in ci # and the newest
