"""Time to quality: all work is paid for, measuring is not, and published codes run beside ours."""
import json
import time
from pathlib import Path

import pytest
import torch

from bpc_nb import quality as module
from bpc_nb.cli import main
from bpc_nb.core import registry
from bpc_nb.data import load
from bpc_nb.evaluate import PROTOCOLS
from bpc_nb.quality import (Clock, curve_of, draw_quality, empty_cache, followed, latest_quality, peer_at, quality, quality_report, run_peer,
                            set_apart, with_options)

NET = 'convnet:width=4,depth=2'
TINY = dict(net=NET, steps=4, every=2, experts=dict(n=2, epochs=3), T=2, k_max=1, select_runs=1, L=2)

UTILS = '''
import numpy, wandb
import no_such_package as K
def get_dataset(dataset, data_path{more}): raise OSError('nothing can be downloaded')
def evaluate_synset(it_eval, net, x, y, testloader, args): raise OSError('their evaluation is not to run')
def get_network(C, K, side): return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(C*side[0]*side[1], K))
import torch
'''
HEAD = '''
import argparse, os, numpy as np, torch, wandb
from utils import get_dataset, evaluate_synset, get_network
p = argparse.ArgumentParser()
p.add_argument('--dataset', type=str, default='CIFAR10')
{options}
args = p.parse_args()
'''
MATCHING = HEAD.format(options="""p.add_argument('--ipc', type=int, default=1)
p.add_argument('--Iteration', type=int, default=10**9)""") + '''
assert args.dataset=='digits'
C, side, K, names, mean, std, train, test, loader = get_dataset(args.dataset, 'data')
os.mkdir('result')
x, y = torch.stack([train[i][0] for i in range(len(train))]), torch.tensor([train[i][1] for i in range(len(train))])
torch.save((x, sum(len(b) for b,_ in loader)), os.environ['SEEN'])
for exp in range(5):
    image_syn = torch.randn(K*args.ipc, C, *side, requires_grad=True)
    opt = torch.optim.SGD([image_syn], lr=.1, momentum=.5)
    for it in range(args.Iteration):
        net, a, b = evaluate_synset(it, get_network(C, K, side), image_syn, None, loader, args)
        own = torch.optim.SGD(net.parameters(), lr=.01)
        torch.nn.functional.cross_entropy(net(x[:64]), y[:64]).backward(); own.step()
        opt.zero_grad()
        sum(((image_syn[c*args.ipc:(c+1)*args.ipc].mean(0) - x[y==c].mean(0))**2).sum() for c in range(K)).backward()
        opt.step()
'''
BUFFER = HEAD.format(options="p.add_argument('--num_experts', type=int, default=100)") + '''
got = get_dataset(args.dataset, 'data', 256, args=args)
assert len(got)==12 and got[10][3]==3
net = get_network(got[0], got[2], got[1])
opt = torch.optim.SGD(net.parameters(), lr=.1)
kept = [net[1].bias.detach().cpu()]
for e in range(args.num_experts): net(got[6][0][0][None]).sum().backward(); opt.step()
assert not (net[1].bias==kept[0]).any() # a checkpoint stays what it was
os.makedirs('buffers'); torch.save([p.detach() for p in net.parameters()], 'buffers/replay_buffer_0.pt')
'''
LEARN = HEAD.format(options="p.add_argument('--ipc', type=int, default=1)\np.add_argument('--lr_img', type=float, default=1000)") + '''
wandb.init(project='P', config=args); wandb.log({'lr': wandb.config._items['lr_img']}, step=0)
theta, got = torch.load('buffers/replay_buffer_0.pt'), get_dataset(args.dataset, 'data', 256, args=args)
image_syn = torch.full((10*args.ipc, *got[6][0][0].shape), float(wandb.config._items['lr_img'])).cuda().requires_grad_()
opt = torch.optim.SGD([image_syn], lr=0.)
for it in range(30): image_syn.sum().backward(); opt.step()
'''


@pytest.fixture(autouse=True)
def short(monkeypatch): monkeypatch.setitem(PROTOCOLS, 'quick', dict(epochs=20, lr=.05))

@pytest.fixture
def checkout(tmp_path, monkeypatch):
    monkeypatch.setenv('SEEN', str(tmp_path/'seen.pt'))
    def make(more='', **files):
        folder = tmp_path/'a checkout'
        folder.mkdir(exist_ok=True)
        (folder/'utils.py').write_text(UTILS.format(more=more))
        for name, text in files.items(): (folder/f'{name}.py').write_text(text)
        return folder
    return make

@pytest.fixture(scope='module')
def data(): return load('digits')


def test_a_clock_counts_work_and_not_what_is_measured():
    c = Clock()
    with c.paused(): time.sleep(.3)
    assert c.read()[0] < .2
    time.sleep(.1); c.charge((5., 4.))
    assert 5.1 <= c.read()[0] < 5.3 and 4 <= c.read()[1] < 4.2


def test_experts_are_paid_for_by_all_who_draw_from_them(data, monkeypatch):
    took, real = [], module.buffer_for
    def slow(*args, **kwargs):
        took.append(1)
        if len(took)==1: time.sleep(1.)
        return real(*args, **kwargs)
    monkeypatch.setattr(module, 'buffer_for', slow)
    with empty_cache():
        paid = {}
        seen, used = followed('cd', data, 1, 60., 2, paid=paid, **TINY)
        again, _ = followed('positive-only', data, 1, 60., 2, paid=paid, **TINY)
        free, said = followed('dm', data, 1, 60., 2, paid=paid, **TINY)
    assert [s.step for s in seen]==[2, 4] and 1 < used['experts_seconds'] < seen[0].seconds < seen[1].seconds
    assert again[0].seconds > 1 and 'experts_seconds' not in said and len(free)==2 and len(paid)==1


def test_a_cached_buffer_makes_nothing_free(data, monkeypatch, tmp_path):
    monkeypatch.setenv('BPC_CACHE', str(tmp_path/'cache'))
    made, real = [], module.buffer_for
    def seen(*args, **kwargs):
        made.append((b := real(*args, **kwargs)).folder)
        return b
    monkeypatch.setattr(module, 'buffer_for', seen)
    for _ in range(2):
        with empty_cache(): followed('herding', data, 1, 60., paid={}, **TINY)
    assert made[0].parents[1]!=made[1].parents[1] and tmp_path not in made[0].parents and module.os.environ['BPC_CACHE']==str(tmp_path/'cache')


def test_a_run_ends_with_the_look_after_its_seconds(data):
    seen, _ = followed('dm', data, 1, 1e-6, 4, **TINY | dict(steps=40, every=10))
    assert [s.step for s in seen]==[10]


def test_whoever_stops_has_the_best_so_far(data, monkeypatch):
    scores = iter([.5, .3, .9, .7])
    monkeypatch.setattr('bpc_nb.distill.judged', lambda *_: lambda S: dict(accuracy_mean=next(scores)))
    seen, _ = followed('dm', data, 1, 60., 3, **TINY | dict(steps=6))
    assert [(s.step, s.best) for s in seen]==[(2, 0), (4, 4), (6, 4)]
    assert torch.equal(seen[0].coreset.x, data.draw(1, module.stream(0, 'start')).x) and seen[1].coreset is seen[2].coreset


@pytest.mark.slow
def test_gradient_matching_is_recognised_run_and_measured(data, checkout, tmp_path):
    folder = checkout(main=MATCHING)
    before = sorted(p.name for p in folder.iterdir())
    found = quality(data, 2, methods='random', seconds=1.5, peer=str(folder), runs=1, net=NET, set=TINY)
    name = 'gradient matching, published code'
    rows, clock = curve_of(found, name), found['clock']
    assert rows[0]['step']==1 and all(a[clock] <= b[clock] for a,b in zip(rows, rows[1:]))
    assert 1.5 <= rows[-1][clock] < 4 and 3 <= len(rows) < 30 < rows[-1]['step'] # it ended when its time was over
    assert found['used'][name]==dict(scripts=['main.py'], options=[], stand_ins=['no_such_package', 'wandb'])
    assert {r['method'] for r in found['rows']}=={name, 'random'} and rows[-1]['accuracy_mean'] > .4 > rows[0]['accuracy_mean']
    x, tested = torch.load(tmp_path/'seen.pt')
    assert torch.equal(x, data.train.x) and tested <= len(data.held.y) # never the test part
    assert sorted(p.name for p in folder.iterdir())==before # nothing is written there
    assert str(folder) not in json.dumps(found)
    assert name in quality_report(found) and draw_quality(found)._repr_png_()[:4]==b'\x89PNG'


@pytest.mark.slow
def test_trajectory_matching_has_two_scripts(data, checkout):
    p, = with_options([peer_at(checkout(', batch=1, args=None', buffer=BUFFER, distill=LEARN))], '--num_experts 3 --lr_img 7')
    seen, used = run_peer(p, data, 1, 60.)
    assert p.scripts==('buffer.py', 'distill.py') and seen[-1].step==30 and (seen[-1].coreset.x==7).all()


def test_a_peer_may_have_no_time_for_images(data, checkout, monkeypatch):
    def run(*args, cwd, **kwargs):
        (Path(cwd)/'stand_ins.json').write_text('[]')
        return module.SimpleNamespace(returncode=0, stderr='')
    monkeypatch.setattr(module.subprocess, 'run', run)
    seen, used = run_peer(peer_at(checkout(', args=None', buffer=BUFFER, distill=LEARN)), data, 1, 2.)
    assert not seen and used['ended']=='no images within 2 seconds'
    after, last = module.snapshots(Clock(), (10, 1, 8, 8), 0., 'cpu', lambda *_: pytest.fail('there are no images'))
    with pytest.raises(module.Enough): after(torch.optim.SGD([torch.zeros(3)], .1))
    last()


def test_a_second_coreset_is_not_followed():
    kept, x, z = [], torch.zeros(2, 1, 4, 4), torch.ones(2, 1, 4, 4)
    after, _ = module.snapshots(Clock(), x.shape, 60., 'cpu', lambda x, s, c, n: kept.append((x.mean().item(), n)))
    for _ in range(3): after(torch.optim.SGD([x], .1))
    with pytest.raises(module.Enough): after(torch.optim.SGD([z], .1))
    assert kept[-1]==(0., 3) and not any(m for m,_ in kept)


def test_of_what_was_measured_again_the_last_time_counts():
    line = lambda ipc, **acc: dict(data='d', ipc=ipc, clock='cpu', judge={}, limit=len(acc), used={n:{} for n in acc},
                                   rows=[dict(method=n, accuracy_mean=a) for n,a in acc.items()])
    found = latest_quality([line(9, a=.9, z=.9), line(1, a=.1, b=.2, c=.3), line(1, b=.5)])
    assert {r['method']:r['accuracy_mean'] for r in found['rows']}==dict(a=.1, b=.5, c=.3) and found['limit']==3


@pytest.mark.slow
def test_what_a_peer_cannot_do_is_one_sentence(data, checkout, tmp_path):
    with pytest.raises(ValueError, match='is no checkout of DatasetCondensation'): quality(data, peer=str(tmp_path))
    with pytest.raises(ValueError, match='no script takes --lr; they take --Iteration, --dataset, --ipc'):
        quality(data, peer=str(checkout(main=MATCHING)), peer_options='--lr 3')
    with pytest.raises(ValueError, match='main.py of .* failed: RuntimeError: three words only'):
        run_peer(peer_at(checkout(main="print(1)\nraise RuntimeError('three words only')")), data, 1, 5.)


def test_a_method_that_fails_says_why_and_the_others_go_on(data):
    found = quality(data, methods='dm,random', seconds=9, runs=1, net=NET, set=TINY | dict(lr=1e30))
    assert 'lr: the loss is not finite' in found['used']['dm']['ended'] and curve_of(found, 'random') and not curve_of(found, 'dm')
    assert 'lr: the loss is not finite' in quality_report(found)


def test_images_that_make_students_diverge_have_no_point(data):
    S = data.draw(1, module.stream(0))
    def judge(S):
        if S.x.isnan().any(): raise module.Diverged('not finite')
        return dict(accuracy_mean=.5, accuracy_std=0.)
    seen = [module.Seen(i, i, i, i, S._replace(x=S.x*f)) for i,f in enumerate((1., float('nan')))]
    rows, more = module.judged_rows('dm', seen, judge)
    assert [r['step'] for r in rows]==[0] and more==dict(diverged=1)
    found = dict(kind='quality', data='digits', ipc=1, limit=9, clock='cpu', judge=dict(runs=1, net=NET, protocol='quick', epochs=9, n_test=9),
                 control=dict(accuracy_mean=.1), rows=[], used=dict(dm=module.judged_rows('dm', seen[1:], judge)[1]), made=module.provenance())
    assert 'students of its images diverge' in quality_report(found) and draw_quality(found)


def test_names_do_not_lie_on_one_another():
    ys = [1., 1.2, 1.1, 5., 4.9, 9.]
    out = set_apart(ys, 1.)
    assert sorted(range(6), key=lambda i: out[i])==sorted(range(6), key=lambda i: ys[i])
    assert min(b-a for a,b in zip(sorted(out), sorted(out)[1:])) > .999 and abs(out[5]-9) < 1e-9


def test_one_command_knows_all_kinds(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    def bpc(words): return main(words.split()), *capsys.readouterr()
    code, out, err = bpc('bench --kinds quality --quick --methods random --runs 1 --out q.jsonl --png q.png')
    assert code==0 and 'random real examples' in out and Path('q.png').stat().st_size > 1000
    line = json.loads(Path('q.jsonl').read_text())
    assert line['kind']=='quality' and line['rows'][0]['method']=='random' and line['made']['threads']
    for words, said in (('--methods cd', 'give it with --kinds quality'), ('--kinds quality --repeats 2', 'without --kinds quality'),
                        ('--kinds step,quality', 'quality is measured by itself'), ('--png a.png', 'only --kinds quality is drawn'),
                        ('--kinds quality --methods ccd', "did you mean 'cd'"), ('--kinds quality --seconds 0', 'expected a number above 0')):
        code, out, err = bpc(f'bench {words}')
        assert code==2 and said in err and err.count('\n')==1
    assert main(['bench', '--kinds', 'quality', '--methods', 'none', '--peer', 'nowhere', '--peer-options', '--num_experts 3'])==2
    assert 'nowhere is no checkout' in capsys.readouterr().err


def test_all_means_every_method(): assert module.named_methods('all')==[*registry()]
