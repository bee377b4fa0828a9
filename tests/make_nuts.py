"""Writes nuts.json beside itself: what a long NUTS run says about a small Bayesian neural network.

    pip install numpyro; python tests/make_nuts.py

Needs NumPyro, which nothing else here does; test_samplers.py reads the numbers.
"""
import json
from pathlib import Path

import numpy as np
import numpyro
import numpyro.distributions as dist

numpyro.set_host_device_count(4)
numpyro.enable_x64()
import jax
import jax.numpy as jnp
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
from numpyro.infer import MCMC, NUTS

HIDDEN, NOISE, PRIOR, DRAWS = 8, .2, .5, 25_000 # PRIOR |theta|^2 is a normal law of variance 1


def apply(theta, x):
    "One hidden layer: theta is its weights, its biases, the weights of the output and its bias"
    w, b, v, c = jnp.split(theta, [HIDDEN, 2*HIDDEN, 3*HIDDEN])
    return jnp.tanh(x[:, None]*w + b)@v + c


rng = np.random.default_rng(0)
x = np.sort(np.concatenate([rng.uniform(-1.5, -.4, 15), rng.uniform(.4, 1.5, 15)])).round(4)
y = (np.sin(2*x) + NOISE*rng.standard_normal(30)).round(4)
grid = np.linspace(-2, 2, 21).round(2)


def model():
    theta = numpyro.sample('theta', dist.Normal(0, (2*PRIOR)**-.5).expand([3*HIDDEN + 1]).to_event(1))
    numpyro.sample('y', dist.Normal(apply(theta, jnp.array(x)), NOISE), obs=jnp.array(y))


mcmc = MCMC(NUTS(model, target_accept_prob=.9), num_warmup=2_000, num_samples=DRAWS, num_chains=4, chain_method='sequential', progress_bar=False)
mcmc.run(jax.random.PRNGKey(0))
f = np.asarray(jax.vmap(lambda theta: apply(theta, jnp.array(grid)))(mcmc.get_samples()['theta'])).reshape(4, DRAWS, len(grid))
flat, ess = f.reshape(-1, len(grid)), effective_sample_size(f)
low, high = np.quantile(flat, [.05, .95], 0)
rounded = lambda a: np.asarray(a).round(5).tolist()
(Path(__file__).parent/'nuts.json').write_text(json.dumps(dict(
    about=f'NumPyro {numpyro.__version__}, NUTS, 4 chains of {DRAWS} draws, made by make_nuts.py',
    hidden=HIDDEN, noise=NOISE, prior=PRIOR, x=x.tolist(), y=y.tolist(), grid=grid.tolist(),
    mean=rounded(flat.mean(0)), sd=rounded(flat.std(0)), low=rounded(low), high=rounded(high),
    worst_rhat=float(split_gelman_rubin(f).max()), least_ess=float(ess.min())), indent=1) + '\n')
