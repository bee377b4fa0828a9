"""The audits that the ready-made coresets carry on their cards

    python results/uses/audits.py [digits mnist cifar10]

After `bpc zoo --update`: audits what has none yet, then call it again to put them on the cards. A line is one coreset, found by its checksum.
Students of a hundred images of CIFAR-10, and of five hundred of any data, would train for hours: there short ones answer, of five hundred a single one.
"""
import json, shutil
from pathlib import Path

from bpc_nb.audit import audited
from bpc_nb.core import cache_folder, provenance
from bpc_nb.data import load
from bpc_nb.lines import called_with
from bpc_nb.zoo import catalogue, load_coreset

LINES = Path(__file__).parent/'audits.jsonl'

def lines() -> list: return [json.loads(l) for l in LINES.read_text().splitlines()] if LINES.exists() else []

if __name__=='__main__':
    asked = called_with(__doc__, {name for name,_ in catalogue()}) or {name for name,_ in catalogue()}
    for (name, ipc), card in catalogue().items():
        if name not in asked or any(r['sha256']==card['sha256'] for r in lines()): continue
        S = load_coreset(name, ipc)
        how = dict(protocol='brief', runs=1 if ipc >= 50 else 3) if S.x.numel() > 300_000 else dict(protocol=card['figures']['protocol'])
        keep = cache_folder()/'audits'/card['sha256'][:12] # what was interrupted goes on
        found = audited(S, load(**card['data']['recipe']), card['figures']['net'], **how, progress=False, keep=keep)
        row = dict(name=name, data=found['data'], method=S.meta['method'], ipc=ipc, sha256=card['sha256'], audit={k:v for k,v in found.items() if k!='nearest'}, made=provenance())
        with open(LINES, 'a') as f: f.write(json.dumps(row) + '\n')
        shutil.rmtree(keep, ignore_errors=True)
        print(name, ipc, found['red'], flush=True)
