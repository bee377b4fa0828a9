"""Where the real data is: the variable BPC_DATA, else a folder `shared/data` beside the checkout."""
import os
from pathlib import Path

import pytest

beside = Path(__file__).resolve().parents[2]/'shared'/'data'
if not os.environ.get('BPC_DATA') and beside.is_dir(): os.environ['BPC_DATA'] = str(beside)


@pytest.fixture(scope='session')
def data_root():
    "Folder with the real data sets; skips where there is none"
    root = os.environ.get('BPC_DATA')
    if not root or not Path(root).is_dir(): pytest.skip("no real data: BPC_DATA names no folder and there is none beside the checkout")
    return Path(root)
