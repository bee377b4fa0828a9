"""How much images of a class differ in their teacher's features, for the lines of results/families/statistics.jsonl.

    python results/families/diversity.py

adds a line to results/families/diversity.jsonl for each coreset that has none yet, with one draw of as many random real images beside it.
"""
import json
from pathlib import Path

from bpc_nb.core import Coreset, provenance, stream
from bpc_nb.grid import cell_data
from bpc_nb.lines import called_with
from bpc_nb.methods.sre2l import diversity
from bpc_nb.networks import network
from bpc_nb.teacher import squeezed

HERE = Path(__file__).parent
LINES = HERE/'diversity.jsonl'

def lines(path:Path) -> list: return [json.loads(l) for l in path.read_text().splitlines()] if path.exists() else []

if __name__=='__main__':
    called_with(__doc__, ())
    for r in lines(HERE/'statistics.jsonl'):
        path = HERE.parent/'coresets'/f"{r['key']}.safetensors"
        if any(l['of']==r['key'] for l in lines(LINES)) or not path.exists(): continue # photographs of 128 pixels are too large to be kept
        data = cell_data(r | dict(data=r['data'].split()[0]))
        net = network(r['config']['net'], data.shape, data.K)
        t, S = squeezed(data, net, r['config']['experts']), Coreset.load(path)
        found = diversity(S, t) | {f'{k}_random':v for k,v in diversity(data.draw(r['ipc'], stream(0, 'diversity')), t).items()}
        with open(LINES, 'a') as f: f.write(json.dumps(dict(of=r['key'], method=r['method'], data=r['data']) | found | dict(made=provenance())) + '\n')
        print(r['method'], r['data'], r['ipc'], found, flush=True)
