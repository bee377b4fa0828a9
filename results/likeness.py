"""How alike the images of a class are to their teacher, for the lines of results/statistics.jsonl.

    python results/likeness.py

adds a line to results/likeness.jsonl for each coreset that has none yet, with one draw of as many random real images beside it.
"""
import json
from pathlib import Path

from bpc_nb.core import Coreset, provenance, stream
from bpc_nb.data import load
from bpc_nb.methods.sre2l import likeness
from bpc_nb.networks import network
from bpc_nb.teacher import squeezed

HERE = Path(__file__).parent
LINES = HERE/'likeness.jsonl'

def lines(path:Path) -> list: return [json.loads(l) for l in path.read_text().splitlines()] if path.exists() else []

if __name__=='__main__':
    for r in lines(HERE/'statistics.jsonl'):
        if any(l['key']==r['key'] for l in lines(LINES)): continue
        data = load(r['data'].split()[0], **dict(size=r['size']) if r['size'] else {})
        net = network(r['config']['net'], data.shape, data.K)
        t, S = squeezed(data, net), Coreset.load(HERE/'coresets'/f"{r['key']}.safetensors")
        found = {f'likeness{k}':likeness(s, net, t.theta, t.stats) for k,s in (('', S), ('_random', data.draw(r['ipc'], stream(0, 'likeness'))))}
        with open(LINES, 'a') as f: f.write(json.dumps(dict(key=r['key'], method=r['method'], data=r['data']) | found | dict(made=provenance())) + '\n')
        print(r['method'], r['data'], r['ipc'], found, flush=True)
