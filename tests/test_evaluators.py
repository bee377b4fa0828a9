"""Evaluators and metrics are registries; figures of each evaluator against ones computed by hand; a ridge regression that is broken is seen"""
import inspect, json, math

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from torch.distributions import MultivariateNormal

import bpc_nb
from bpc_nb import ridge as chapter
from bpc_nb.core import registry, stream
from bpc_nb.data import load
from bpc_nb.evaluate import GIVEN, PROTOCOLS, evaluate, evaluators, predict, students
from bpc_nb.metrics import METRICS, Diverged, accuracy, nll
from bpc_nb.networks import network
from bpc_nb.predictive import POSTERIORS, predictive

MLP = 'mlp:width=12'
WEIGHTS = torch.arange(100.)%3 # counts, a third of them 0
NEW = '''
from .metrics import summary

def constant(S, data, net, seed, part, runs=range(2), tick=None, sure=.9):
    "Always the first class"
    y = getattr(data, part).y
    probs = (1 - sure)/(data.K - 1)*y.new_ones(len(y), data.K).double()
    probs[:,0] = sure
    return [summary(probs, y) | dict(shade=round(S.x.mean().item() + r, 3)) for r in runs]

EVALUATORS = dict(constant=constant)
'''


@pytest.fixture(scope='module')
def data(): return load('digits')


@pytest.fixture(scope='module')
def S(data):
    s = data.draw(1, stream(0, 'real'))
    return s._replace(x=s.x + .3*torch.randn(s.x.shape, generator=stream(1))) # pixels that 8 bits change


@pytest.fixture
def file(bpc, S):
    S.save('s.safetensors')
    return ['s.safetensors', '--data', 'digits', '--net', MLP]


# --- registries ---------------------------------------------------------------------------------------------------------------

def test_what_there_is():
    assert {*evaluators()} == {'students', *POSTERIORS, 'ridge', 'last-layer', 'kernel', 'vbpc', 'vbpc-untrained', 'knn', 'bag', 'soft'}
    assert all(tuple(k for k,p in inspect.signature(f).parameters.items() if p.kind is not p.POSITIONAL_ONLY)[:len(GIVEN)] == GIVEN for f in evaluators().values())
    assert {'cd', 'random', 'herding'} <= registry().keys() and registry('samplers') == {}


def test_an_evaluator_is_one_module(bpc, file, tmp_path, monkeypatch, data, S):
    folder = tmp_path/'more'; folder.mkdir()
    (folder/'constant_.py').write_text(NEW)
    (folder/'unread.py').write_text('raise RuntimeError("has no evaluator, so nobody imports it")')
    monkeypatch.setattr(bpc_nb, '__path__', [*bpc_nb.__path__, str(folder)])
    code, out, err = bpc('evaluate', *file, '--evaluator', 'constant', '--control', '--set', 'sure=.5', '--json')
    r = json.loads(out)
    share = (data.test.y==0).double().mean().item()
    assert (code, err) == (0, '') and r['runs'] == 2 and r['evaluator'] == 'constant' and r['shade'][1] == pytest.approx(r['shade'][0] + 1)
    for s in '', '_8bit', '_random': assert r['accuracy_runs'+s] == [share, share] and r['accuracy_std'+s] == 0 and r['nll_mean'+s] == pytest.approx(-share*math.log(.5) - (1-share)*math.log(.5/9))


def test_a_metric_is_one_line(bpc, file, monkeypatch, data, S):
    monkeypatch.setitem(METRICS, 'sure', lambda probs, y: probs.max(1).values.mean().item())
    keys = {f'sure_mean{s}' for s in ('', '_8bit', '_random')}
    for words in ('--protocol', 'quick', '--set', 'epochs=2'), ('--evaluator', 'ridge'), ('--evaluator', 'ensemble', '--set', 'chains=1,students=dc'):
        code, out, err = bpc('evaluate', *file, *words, '--runs', 1, '--control', '--json')
        assert (code, err) == (0, '') and keys <= json.loads(out).keys() and all(.1 <= json.loads(out)[k] <= 1 for k in keys)
    assert 'sure' in predictive(S, data, 'ensemble', MLP, chains=1, students='dc')


# --- figures ------------------------------------------------------------------------------------------------------------------

def test_students_by_hand(data, S):
    net, short = network(MLP, data.shape, data.K), PROTOCOLS['quick'] | dict(epochs=4)
    r = evaluate(S, data, 2, 'quick', net, 3, control=True, epochs=4)
    def of(S, runs, seed): return [predict(net, t, data.test.x) for t in students(S, net, runs, seed=seed, **short)]
    control = [of(data.draw(1, stream(3, 'control', i)), [0], (3, ('test', i)))[0] for i in range(2)]
    for s, probs in {'': of(S, 2, (3, 'test')), '_8bit': of(S.quantised(), 2, (3, 'test')), '_random': control}.items():
        assert r['accuracy_runs'+s] == [accuracy(p, data.test.y) for p in probs]
        assert r['accuracy_std'+s] == pytest.approx(np.std(r['accuracy_runs'+s], ddof=1)) and r['accuracy_mean'+s] == pytest.approx(np.mean(r['accuracy_runs'+s]))
        for k,f in METRICS.items(): assert r[f'{k}_mean{s}'] == pytest.approx(np.mean([f(p, data.test.y) for p in probs])), k
    assert r['nll_mean'] != r['nll_mean_8bit'] != r['nll_mean_random']
    held = evaluate(S, data, 2, 'quick', net, 3, 'held', epochs=4)
    assert held['n_test'] == len(data.held.y) and held['accuracy_runs'] == [accuracy(predict(net, t, data.held.x), data.held.y) for t in students(S, net, 2, seed=(3, 'held'), **short)]


def test_a_posterior_is_what_predictive_says(data, S):
    how = dict(chains=1, start='init', n=6, burn=2, steps=3, warm=4)
    one, r = predictive(S, data, 'hmc', MLP, seed=2, **how), evaluate(S, data, 2, net=MLP, seed=2, evaluator='hmc', eight_bit=False, **how)
    assert all(r['accuracy_runs'][0] == one['accuracy'] and r[k][0] == one[k] for k in ('eps', 'energy', 'nll_each'))
    assert r['nll_mean'] != one['nll'] and r['eps'][0] != r['eps'][1] and r['temperature'] == one['temperature'] # the second run is another


def by_hand(S, data, net, r, i=0):
    "Ridge regression by scikit-learn, weights as repetitions; s^2 by inverting a matrix of the size of the features; Bayes' rule"
    theta = net.init(stream((0, 'test'), 'ridge', i))
    phi, x = (net.features(theta, t)[-1].detach().double().numpy() for t in (S.x, data.test.x))
    y = S.y.double().numpy() if S.targets else (np.eye(data.K)[S.y] if S.y.ndim==1 else S.y.double().numpy()) - 1/data.K
    if S.w is not None: phi, y = (np.repeat(v, S.w.int().numpy(), 0) for v in (phi, y))
    unit = (phi**2).sum(1).mean()
    def parts(r): # a, s_0^2, log evidence
        K = phi@phi.T + r*unit*np.eye(len(phi))
        scale = np.trace(y.T@np.linalg.solve(K, y))/y.size
        return r*unit, scale, MultivariateNormal(torch.zeros(len(phi)).double(), torch.tensor(scale*K)).log_prob(torch.tensor(y.T)).sum().item()
    if r is None: r = max((10**(e/2) for e in range(-12, 5)), key=lambda r: parts(r)[2])
    a, scale, _ = parts(r)
    m = Ridge(alpha=a, fit_intercept=False, solver='cholesky').fit(phi, y).predict(x)
    V = scale*a*np.linalg.inv(phi.T@phi + a*np.eye(phi.shape[1]))
    return torch.tensor(m/((x@V*x).sum(1) + scale*a)[:,None]).softmax(1), r


@pytest.fixture(scope='module')
def ten(data): return data.draw(10, stream(0, 'ten'))


def check(data, S, net, r=None):
    "The evaluator's figures are those by hand"
    found = evaluate(S, data, 2, net=net, evaluator='ridge', r=r, eight_bit=False)
    probs, chosen = zip(*(by_hand(S, data, net, r, i) for i in range(2)))
    assert found['r'] == pytest.approx(chosen[0] if chosen[0]==chosen[1] else [*chosen])
    assert found['accuracy_runs'] == pytest.approx([accuracy(p, data.test.y) for p in probs], abs=1e-9)
    assert found['nll_mean'] == pytest.approx(np.mean([nll(p, data.test.y) for p in probs]), rel=1e-4)


@pytest.mark.parametrize('kind', ['hard', 'soft', 'targets', 'weighted', 'one a class'])
def test_ridge_by_hand(data, ten, S, kind):
    net = network('convnet:width=6,depth=2' if kind=='hard' else MLP, data.shape, data.K) # fewer features than examples, and more
    soft = .8*torch.eye(10)[ten.y] + .02
    check(data, dict(hard=ten, soft=ten._replace(y=soft), targets=ten._replace(y=soft, targets=True), weighted=ten._replace(w=WEIGHTS), **{'one a class': S})[kind], net, 1e-6 if kind=='one a class' else None)


def test_a_label_is_the_probability_of_its_class(data, ten):
    sure, o = ten._replace(y=torch.eye(10)[ten.y]), dict(net=MLP, evaluator='ridge', eight_bit=False)
    hard, soft, targets = (evaluate(s, data, 2, **o) for s in (ten, sure, sure._replace(targets=True)))
    assert {k:v for k,v in hard.items() if k!='labels'} == {k:v for k,v in soft.items() if k!='labels'} and soft['nll_mean'] != targets['nll_mean']


@pytest.mark.parametrize('part', ['targets_of', 'variance', 'ridge', 'by_evidence'])
def test_a_broken_ridge_is_seen(data, ten, monkeypatch, part):
    true = getattr(chapter, part)
    monkeypatch.setattr(chapter, part, dict(
        targets_of=lambda S, K: true(S, K) + 1/K, # without the centre
        variance=lambda *a, **k: 1.1*true(*a, **k),
        ridge=lambda phi, y, r, w, **k: true(phi, y, r), # without weights
        by_evidence=lambda phi, y, w: 1e-6)[part])
    with pytest.raises(AssertionError): check(data, ten._replace(w=WEIGHTS), network(MLP, data.shape, data.K))


def test_control_of_ridge(data, ten):
    r = evaluate(ten, data, 2, net=MLP, evaluator='ridge', control=True)
    other = [data.draw(10, stream(0, 'control', i)) for i in range(2)]
    probs = [chapter.regressed(s, data.test.x, data.K, net, net.init(stream((0, ('test', i)), 'ridge', 0)))[0] for i,s in enumerate(other) for net in [network(MLP, data.shape, data.K)]]
    assert r['accuracy_runs_random'] == [accuracy(p, data.test.y) for p in probs]
    eight = evaluate(ten.quantised(), data, 2, net=MLP, evaluator='ridge')
    assert eight['nll_mean'] == eight['nll_mean_8bit'] == pytest.approx(r['nll_mean_8bit']) != r['nll_mean']


def test_features_may_be_trained(data, S):
    one = evaluate(S, data, 2, 'dc', MLP, evaluator='ridge', eight_bit=False, part='held')
    theta = students(S, network(MLP, data.shape, data.K), 2, seed=(0, 'held'), **PROTOCOLS['dc'])[0]
    probs, r, _ = chapter.regressed(S, data.held.x, data.K, network(MLP, data.shape, data.K), theta)
    assert one['accuracy_runs'][0] == pytest.approx(accuracy(probs, data.held.y)) and (r, one['protocol']) == (1e-6, 'dc')


# --- bad input ----------------------------------------------------------------------------------------------------------------

def test_refusals(refused, file):
    refused('evaluate', *file, '--evaluator', 'rigde', parts="evaluator: unknown 'rigde', did you mean 'ridge'?")
    refused('evaluate', *file, '--evaluator', 'ridge', '--set', 'lnk=probit', parts="option of ridge: unknown 'lnk', did you mean 'link'?")
    refused('evaluate', *file, '--evaluator', 'ridge', '--set', 'r=0', parts='r: found 0; expected a number above 0')
    refused('evaluate', *file, '--evaluator', 'ridge', '--protocol', 'mmt', parts="did you mean 'mtt'?")
    refused('evaluate', *file, '--evaluator', 'hmc', '--protocol', 'mtt', parts="option of hmc: unknown 'protocol'")
    refused('evaluate', *file, '--evaluator', 'ensemble', '--set', 'eps=1', parts="option of ensemble: unknown 'eps'")
    refused('evaluate', *file, '--set', 'seed=1', parts="'seed' is no option of the evaluator alone; give it as --seed")
    refused('evaluate', *file, '--evaluator', 'ridge', '--runs', 0, parts='found 0 runs of ridge; at least 1 is needed')


def test_features_that_are_not_finite(data, S):
    class Huge(torch.nn.Module):
        def forward(self, x): return 1e37*x
    def net(shape, K): return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 8), Huge(), torch.nn.Linear(8, K))
    with pytest.raises(Diverged, match='features: those of the coreset are not finite'):
        evaluate(S._replace(x=1e3*S.x), data, 1, net=net, evaluator='ridge', eight_bit=False)
    with pytest.raises(ValueError, match='10 of its 10 images have numbers that are not finite'):
        evaluate(S._replace(x=S.x*float('inf')), data, 1, net=MLP, evaluator='ridge', eight_bit=False)
