"""Samplers against laws that are known: unadjusted ones against their own discretised law, HMC against the target.
Every check must also reject samplers that are broken on purpose."""
import json
from functools import partial
from pathlib import Path

import pytest
import torch
from scipy.stats import chi2, chisquare
from torch import Generator
from torch.func import jacrev

import bpc_nb.samplers.hmc as H
from bpc_nb.core import Coreset, iterate
from bpc_nb.samplers.chains import sample, to_arviz
from bpc_nb.samplers.hmc import HMCState, adapt, field, hmc, leapfrog
from bpc_nb.samplers.langevin import langevin as plain_langevin
from bpc_nb.samplers.sghmc import sghmc
from bpc_nb.toy import Gaussian, kl, linear_energy, mean_energy, posterior, regression

P_VALUE = .01
TARGETS = [(2, 100), (10, 5), (10, 100), (50, 100)] # dimension and condition number
SAMPLERS = ['langevin', 'sghmc', 'hmc']
seeded = lambda seed: Generator().manual_seed(seed)
normal = lambda seed, *shape: torch.randn(*shape, generator=seeded(seed), dtype=torch.double)


def langevin(energy, alpha, temperature=1.): # chains are rows where the energy is their sum
    return plain_langevin(lambda theta: field(energy)(theta).energy.sum(), alpha, temperature)


def last(alg, theta, n, seed=0):
    "Where chains are after `n` steps"
    for s in iterate(alg, alg.init(theta), n, seeded(seed)): pass
    return s if isinstance(s, torch.Tensor) else s.theta


# --- broken on purpose -----------------------------------------------------------------------------------------------

def no_half(at, point, r, eps, n, mass=1.):
    "A leapfrog that kicks by whole steps: the last half is missing"
    for _ in range(n):
        r = r - eps*point.slope
        point = at(point.theta + eps*r/mass)
    return point, r


def euler(at, point, r, eps, n, mass=1.):
    for _ in range(n): point, r = at(point.theta + eps*r/mass), r - eps*point.slope
    return point, r


flipped = lambda r, mass=1., K=H.kinetic: -K(r, mass)
shaken = lambda *a, draw=H.momenta: draw(*a)*2**.5
HMC_SLIPS = {'kinetic sign': dict(kinetic=flipped), 'missing half step': dict(leapfrog=no_half), 'noise sqrt 2': dict(momenta=shaken)}


# --- Gaussians -------------------------------------------------------------------------------------------------------

def gaussian(P, condition, seed=0):
    "A law whose precision has eigenvalues from 1 to `condition`, turned at random"
    Q = torch.linalg.qr(normal(seed, P, P))[0]
    return Gaussian(normal(seed+1, P), Q/torch.logspace(0, torch.tensor(condition).log10().item(), P, dtype=torch.double)@Q.T)


def sampled(name, q, temperature=1., ask=1., noise=1., R=1000, seed=0):
    "Draws of R chains, and the law that they should have; `ask` and `noise` break it"
    A, tau = torch.linalg.inv(q.cov), temperature*ask*noise
    top = torch.linalg.eigvalsh(A)[-1].item()
    U = lambda theta: (theta-q.mean)@A@(theta-q.mean)/2
    alpha, eps, friction = 2/top, 1.2/top**.5, .15
    alg, n, law = {
        'langevin': (langevin(U, alpha, tau), 700, A - alpha/4*A@A),
        'sghmc': (sghmc(U, eps, friction, tau), 250, A - eps**2/(4-2*friction)*A@A),
        'hmc': (hmc(U, 1.7/top**.5, steps=3, jitter=.15, temperature=tau), 200, A)}[name] # near the limit, 2/top**.5, where slips show
    return last(alg, start(q, R), n, seed), Gaussian(q.mean, temperature*torch.linalg.inv(law))


def start(q, R): return q.mean + 3 + .1*normal(7, R, len(q.mean))


def p_values(theta, law):
    "Two-sided, of all means, variances and correlations: R draws against a Gaussian"
    R, sd = len(theta), law.cov.diagonal().sqrt()
    two = lambda z: torch.special.erfc(z.abs()/2**.5)
    mean = two((theta.mean(0)-law.mean)/sd*R**.5)
    below = torch.tensor(chi2.cdf((theta.var(0)/sd**2*(R-1)).numpy(), R-1))
    i, j = torch.triu_indices(len(sd), len(sd), 1)
    rho = lambda cov: torch.atanh((cov/(v := cov.diagonal().sqrt())/v[:,None])[i,j])
    corr = two((rho(theta.T.cov()) - rho(law.cov))*(R-3)**.5)
    return torch.cat([mean, 2*torch.minimum(below, 1-below), corr])


def white(theta, law):
    "In units of the law's own axes, where the narrow ones show as well as the wide"
    value, Q = torch.linalg.eigh(law.cov)
    return (theta-law.mean)@Q/value.sqrt(), Gaussian(0*law.mean, torch.eye(len(value)).double())


def agrees(theta, law):
    if not theta.isfinite().all(): return False
    p = torch.cat([p_values(theta, law), p_values(*white(theta, law))])
    return p.min().item()*len(p)*len(TARGETS)*len(SAMPLERS) > P_VALUE # Bonferroni, over all cases


def closer(theta, law, q):
    "The divergence is under 1 % of the start's"
    of = lambda t: kl(Gaussian(t.mean(0), t.T.cov()), law)
    return (of(theta) < .01*of(start(q, len(theta)))).item()


def test_the_check_itself():
    q = gaussian(10, 100)
    draws = [q.draw(1000, seeded(s)) for s in range(200)]
    assert sum(not agrees(t, q) for t in draws) <= 2 # one in 1200 is expected
    flat = q._replace(cov=q.cov*(.7+.3*torch.eye(10).double())) # the variances right, the correlations too small
    assert not any(agrees(t, flat) for t in draws[:10]) and not any(agrees(t+q.cov.diagonal().sqrt()/4, q) for t in draws[:10])


@pytest.mark.parametrize('P,condition', TARGETS)
@pytest.mark.parametrize('name', SAMPLERS)
def test_gaussian(name, P, condition):
    theta, law = sampled(name, q := gaussian(P, condition))
    assert agrees(theta, law) and closer(theta, law, q)


@pytest.mark.parametrize('name', SAMPLERS)
def test_gaussian_rejects(name):
    q = gaussian(10, 100)
    assert agrees(*sampled(name, q, temperature=.25))
    assert not agrees(*sampled(name, q, temperature=.25, ask=4.)), "temperature ignored"
    assert not agrees(*sampled(name, q, noise=2.)), "noise scaled by the root of two"
    if name!='hmc': assert not agrees(sampled(name, q)[0], q), "the step's bias is there, and is seen"


@pytest.mark.parametrize('slip', HMC_SLIPS)
@pytest.mark.parametrize('P,condition', TARGETS[:3])
def test_hmc_slip_is_seen(slip, P, condition, monkeypatch):
    for k,v in HMC_SLIPS[slip].items(): monkeypatch.setattr(H, k, v)
    assert not agrees(*sampled('hmc', gaussian(P, condition)))


def test_divergence_rejects():
    "The divergence is a coarse measure: it sees a chain that has not arrived"
    q = gaussian(10, 100)
    theta = last(langevin(lambda t: (t-q.mean)@torch.linalg.inv(q.cov)@(t-q.mean)/2, .02), start(q, 1000), 30)
    assert not closer(theta, q, q)


# --- leapfrog --------------------------------------------------------------------------------------------------------

A = torch.tensor([[2.,1.2,0],[1.2,1.5,.3],[0,.3,1]]).double()
bumpy = lambda theta: theta@A@theta/2 + theta.sin().sum() + (theta**4).sum()/20
AT, MASS = field(bumpy), torch.tensor([1.,2.,.5]).double()
HERE, R0 = AT(normal(1, 20, 3)), normal(2, 20, 3)


def way_back(fly):
    "How far from the start one ends who flies there and back"
    there, r = fly(AT, HERE, R0, .1, 40, MASS)
    back, r = fly(AT, there, -r, .1, 40, MASS)
    return max((back.theta-HERE.theta).abs().max(), (r+R0).abs().max()).item()


def energy_error(fly, eps, time=2.):
    there, r = fly(AT, HERE, R0, eps, round(time/eps), MASS)
    return (there.energy + H.kinetic(r, MASS) - HERE.energy - H.kinetic(R0, MASS)).abs().mean().item()


def determinant(fly, eps=.15, n=8):
    def end(z):
        point, r = fly(AT, AT(z[None,:3]), z[None,3:], eps, n, MASS)
        return torch.cat([point.theta[0], r[0]])
    return torch.linalg.det(jacrev(end)(torch.cat([HERE.theta[0], R0[0]]))).item()


def test_leapfrog_is_reversible(): assert way_back(leapfrog) < 1e-10 and way_back(no_half) > 1e-2 and not way_back(euler) < 1e-2


def test_leapfrog_is_of_second_order():
    orders = lambda fly: [energy_error(fly, e)/energy_error(fly, e/2) for e in (.04, .02, .01)]
    assert orders(leapfrog) == pytest.approx([4]*3, rel=.03)
    for slip in no_half, euler: assert orders(slip) == pytest.approx([2]*3, rel=.15)


def test_leapfrog_keeps_volume(): assert determinant(leapfrog) == pytest.approx(1, abs=1e-10) and abs(determinant(euler)-1) > .1


# --- unadjusted chains: their bias and their temperature -------------------------------------------------------------

def long_run(sampler):
    "Variance of theta on theta^2/2: the chain is linear in (theta, r), so two matrices say all"
    E, unit = lambda theta: theta@theta/2, torch.eye(2).double()
    def one(z, temperature):
        alg = sampler(E, temperature)
        if isinstance(alg.init(z[:,:1]), torch.Tensor): return torch.cat([alg.step(z[:,:1], seeded(0)), 0*z[:,1:]], 1)
        s = alg.step(HMCState(field(E)(z[:,:1]), None, z[:,1:]), seeded(0))
        return torch.cat([s.theta, s.r], 1)
    F, g = one(unit, 0.).T, one(0*unit[:1], 1.)/normal(0, 1, 1)
    V = g.T@g
    for _ in range(24): V, F = V + F@V@F.T, F@F
    return V[0,0].item()


def orders(sampler, sizes):
    "Each bias over that of half the step"
    bias = [long_run(lambda E, temperature: sampler(E, e, temperature))-1 for e in sizes]
    return [a/b for a,b in zip(bias, bias[1:])]


HALVES = [.1, .05, .025]


def test_bias_falls_at_the_right_order():
    assert orders(langevin, HALVES) == pytest.approx([2, 2], rel=.03)
    for friction in .1, .5, 1.: assert orders(lambda E, e, t: sghmc(E, e, friction, t), HALVES) == pytest.approx([4, 4], rel=.03)


def test_bias_sees_wrong_noise():
    for slip in (lambda E, e, t: langevin(E, e, 2*t)), (lambda E, e, t: langevin(lambda theta: 2*E(theta), e, t)), \
                (lambda E, e, t: sghmc(E, e, .5, 2*t)), (lambda E, e, t: sghmc(E, e, .5, .75*t)):
        assert orders(slip, HALVES) == pytest.approx([1, 1], rel=.05)


TEMPERED = dict(langevin=lambda U, t: langevin(U, .2, t), sghmc=lambda U, t: sghmc(U, .3, .2, t), hmc=lambda U, t: hmc(U, .9, steps=3, temperature=t))


@pytest.mark.parametrize('name', TEMPERED)
def test_temperature_scales_covariance(name):
    "On a quadratic, from its minimum, every chain at temperature t is the root of t times the same chain at 1"
    U, zero = lambda theta: theta@A@theta/2, torch.zeros(50, 3).double()
    at = lambda t: last(TEMPERED[name](U, t), zero, 30)
    assert torch.allclose(at(.09), .3*at(1.), atol=1e-10) and at(1.).std() > .5
    assert not torch.allclose(last(TEMPERED[name](U, 1.), zero, 30), .3*at(1.), atol=1e-2)


def descent(theta, lr, momentum, n):
    theta = theta.clone().requires_grad_()
    sgd = torch.optim.SGD([theta], lr=lr, momentum=momentum)
    for _ in range(n):
        sgd.zero_grad(); AT(theta).energy.sum().backward(); sgd.step()
    return theta.detach()


def test_temperature_zero_is_descent():
    theta = HERE.theta
    near = lambda a, b: (a-b).abs().max() < 1e-10
    assert near(last(langevin(bumpy, .1, 0.), theta, 20), descent(theta, .05, 0., 20))
    assert near(last(sghmc(bumpy, .2, .1, 0.), theta, 20), descent(theta, .04, .9, 20))
    assert not near(last(sghmc(bumpy, .2, .2, 0.), theta, 20), descent(theta, .04, .9, 20))
    assert not near(last(langevin(bumpy, .1, .01), theta, 20), descent(theta, .05, 0., 20))


# --- calibration -----------------------------------------------------------------------------------------------------

def ranks_are_uniform(make, burn, thin, R=1000, L=19, believed=1.):
    "Draw theta from the prior and data given it; among L posterior draws it must be anywhere (Talts et al. 2018)"
    X, noise, gen = normal(3, 6, 2), .5, seeded(4)
    truth = torch.randn(R, 2, generator=gen, dtype=torch.double)
    y = truth@X.T + noise**.5*torch.randn(R, 6, generator=gen, dtype=torch.double)
    E = linear_energy(lam=1., noise=noise*believed)
    alg = make(lambda theta, y: E(theta, Coreset(X, y)), (y,))
    chains = sample(alg, alg.init(torch.randn(R, 2, generator=gen, dtype=torch.double)), burn + L*thin, gen, burn, thin)
    ranks = (chains.theta < truth[:,None]).sum(1)
    p = [chisquare(torch.bincount(r, minlength=L+1).numpy()).pvalue for r in ranks.T]
    return min(p)*len(p) > P_VALUE


HMC_CALIBRATED = partial(ranks_are_uniform, lambda U, each: hmc(U, .35, steps=4, jitter=.3, each=each), burn=20, thin=3)
sghmc_at = lambda t: partial(ranks_are_uniform, lambda U, each: sghmc(U, .06, .2, temperature=t, each=each, steps=15), burn=15, thin=2)


def test_calibration(): assert HMC_CALIBRATED() and sghmc_at(1.)()


def test_calibration_rejects(monkeypatch):
    assert not sghmc_at(2.)(), "noise scaled by the root of two"
    assert not HMC_CALIBRATED(believed=2.), "a wrong likelihood"
    for slip in HMC_SLIPS['kinetic sign'], HMC_SLIPS['noise sqrt 2']:
        with monkeypatch.context() as m:
            for k,v in slip.items(): m.setattr(H, k, v)
            assert not HMC_CALIBRATED()


# --- convergence, as ArviZ sees it -----------------------------------------------------------------------------------

def toys():
    data, two = regression(30, seeded(0)), torch.eye(2).double()
    energy = mean_energy(torch.tensor([[2.,.6],[.6,1.]]).double(), Gaussian(torch.zeros(2).double(), two))
    return {'regression': (linear_energy(noise=.25), data), 'mean': (energy, Coreset(normal(5, 20, 2) + 2, None))}


def diagnosed(c):
    az = pytest.importorskip('arviz', reason="ArviZ is not installed: pip install 'bpc_nb[arviz]'")
    idata = to_arviz(c)
    return az.rhat(idata).theta.values.max(), az.ess(idata).theta.values.min()


@pytest.mark.parametrize('toy', ['regression', 'mean'])
def test_rhat_and_sample_size(toy):
    energy, S = toys()[toy]
    q, gen = posterior(energy, S), seeded(6)
    top = 1/torch.linalg.eigvalsh(q.cov)[0].item()
    U, theta = lambda theta: energy(theta, S), q.mean + 2*normal(8, 4, 2)
    eps, warm = adapt(lambda eps: hmc(U, eps, steps=3, jitter=.2), .1, theta, 60, gen)
    for c in (sample(langevin(U, 1.5/top), theta, 800, gen, burn=100), sample(hmc(U, eps, steps=3, jitter=.2), warm, 300, gen),
              sample(alg := sghmc(U, 1/top**.5, .5), alg.init(theta), 800, gen, burn=100)):
        rhat, ess = diagnosed(c)
        assert rhat <= 1.01 and ess >= 400
    rhat, ess = diagnosed(sample(langevin(U, .002/top), theta, 200, gen))
    assert rhat > 1.1 and ess < 400


# --- a small Bayesian neural network ---------------------------------------------------------------------------------

NUTS = json.loads((Path(__file__).parent/'nuts.json').read_text())


def network(theta, x):
    w, b, v, c = theta.split([NUTS['hidden']]*3 + [1])
    return torch.tanh(x[:,None]*w + b)@v + c


def predictive(R=150, temperature=1., prior=1., seed=0):
    "Mean, 5 % and 95 % of the network's values on the grid, from R chains"
    x, y, grid = (torch.tensor(NUTS[k]).double() for k in ('x', 'y', 'grid'))
    U = lambda theta: ((y-network(theta, x))**2).sum()/(2*NUTS['noise']**2) + prior*NUTS['prior']*theta@theta
    make = lambda eps: hmc(U, eps, steps=12, jitter=.3, temperature=temperature)
    eps, warm = adapt(make, .01, .5*normal(seed, R, 3*NUTS['hidden'] + 1), 60, gen := seeded(seed+1))
    c = sample(make(eps), warm, 100, gen, burn=20, thin=4)
    f = torch.func.vmap(lambda theta: network(theta, grid))(c.pooled())
    return torch.stack([f.mean(0), f.quantile(.05, 0), f.quantile(.95, 0)])


def off(f):
    "Largest distances of mean, lower and upper band from those of NUTS, in posterior standard deviations"
    truth, sd = (torch.tensor([NUTS[k] for k in ks]).double() for ks in (('mean', 'low', 'high'), ('sd',)))
    return ((f-truth).abs()/sd).max(1).values


def test_network_agrees_with_nuts():
    assert NUTS['worst_rhat'] < 1.01 and NUTS['least_ess'] > 10_000
    d = off(predictive())
    assert d[0] < .15 and d[1:].max() < .25


def test_network_rejects(): assert off(predictive(R=50, temperature=2.)).max() > .5 and off(predictive(R=50, prior=3.)).max() > .5
