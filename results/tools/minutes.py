"""Fifteen minutes for data sets that are treated as unknown folders of pictures.

    python results/tools/minutes.py FOLDER mnist:1 cifar10:10 PATH:1 ... [-- options of `bpc distill`]

writes each data set as class folders under FOLDER, once; what is a path already is taken as it is. It runs `bpc distill` on each with nothing but --ipc, judges the coreset by fresh
students beside random real images, and adds a line to results/tools/minutes.jsonl.
"""
import json, shutil, subprocess, sys, time
from pathlib import Path

import torch
from PIL import Image

from bpc_nb.core import Coreset, provenance
from bpc_nb.lines import called_with
from bpc_nb.images import read

JUDGES = dict(digits=('convnet:width=64,depth=2', 'quick')) # as the recipes' lines are judged; else the full network, protocol `dc`
OF_RUN = 'data', 'ipc', 'seed', 'net', 'steps', 'every', 'lr', 'L', 'alpha', 'T', 'k_max', 'start', 'experts'

def as_pictures(name:str, root:Path) -> Path:
    "Class folders of PNG files"
    if Path(name).exists(): return Path(name)
    folder = root/f'{name}_pictures'
    if not folder.exists():
        _, tensors, about = read(name)
        tmp = root/f'.{name}'
        shutil.rmtree(tmp, ignore_errors=True)
        for i,(x,y) in enumerate(zip(*(tensors[k] for k in 'xy'))):
            part = [] if about['n'] in (None, len(tensors['y'])) else ['train' if i < about['n'] else 'test']
            to = Path(tmp, *part, str(about['classes'][y]).replace('/', '_'))
            to.mkdir(parents=True, exist_ok=True)
            a = (x if x.dtype==torch.uint8 else (255*x).round().byte()).permute(1, 2, 0).numpy()
            Image.fromarray(a[...,0] if a.shape[2]==1 else a).save(to/f'{i}.png', compress_level=1)
        tmp.rename(folder)
    return folder

def bpc(*words) -> dict:
    "What a command says as JSON"
    return json.loads(subprocess.run([sys.executable, '-m', 'bpc_nb.cli', *map(str, words), '--json'], check=True, stdout=subprocess.PIPE).stdout)

def measured(name:str, ipc:int, root:Path, options) -> dict:
    "A line: the choices of a run, its time, its students"
    folder, out = as_pictures(name, root), root/f'run-{Path(name).name}-{ipc}'
    shutil.rmtree(out, ignore_errors=True)
    began = time.perf_counter()
    found = bpc('distill', folder, '--ipc', ipc, '--out', out, *options)
    seconds, config = time.perf_counter() - began, json.loads((out/'config.json').read_text())
    looks = [json.loads(l) for l in (out/'log.jsonl').read_text().splitlines()]
    net, protocol = JUDGES.get(name, ('convnet', 'dc'))
    judged = bpc('evaluate', found['coreset'], '--net', net, '--protocol', protocol, '--runs', 3, '--control')
    shape = [*Coreset.load(found['coreset']).x.shape]
    return dict(data=Path(name).name, method='cd', ipc=ipc, options=[*options], seconds=round(seconds), shape=shape, run={k:config[k] for k in OF_RUN if k in config},
                held_out=found['held_out'], step=found['step'], looks=[[r['step'], round(100*r['accuracy_mean'], 1)] for r in looks],
                judged={k:v for k,v in judged.items() if k!='coreset'}, made=provenance())

if __name__=='__main__':
    words = called_with(__doc__, files=()) # it always measures what is named
    words += ['--'][:'--' not in words]
    if words[0]=='--': sys.exit(__doc__.strip())
    (root, *sets), options = words[:words.index('--')], words[words.index('--')+1:]
    for name,ipc in (one.rsplit(':', 1) for one in sets):
        line = measured(name, int(ipc), Path(root), options)
        with open(Path(__file__).with_suffix('.jsonl'), 'a') as f: f.write(json.dumps(line) + '\n')
        print(name, ipc, line['seconds'], 's', line['judged']['accuracy_mean'], line['judged']['accuracy_mean_random'])
