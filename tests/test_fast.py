"Compiled networks compute what plain ones do; without a compiler they say so and go on"
import os, shutil, subprocess, sys
import pytest, torch

from bpc_nb.energy import energy, gradient
from bpc_nb.fast import accelerate
from bpc_nb.networks import network

def gradients(spec, shape, **fast):
    net, gen = network(spec, shape, 3), torch.Generator().manual_seed(0)
    theta = torch.stack([net.init(gen) for _ in range(2)])
    x, y = torch.randn(2, 6, *shape, generator=gen), torch.arange(12).view(2, 6)%3
    return [gradient(energy(accelerate(net, **f).apply), theta, x, y) for f in ({}, fast)]

@pytest.mark.skipif(not shutil.which(os.environ.get('CXX', 'g++')), reason='no C++ compiler')
@pytest.mark.parametrize('spec,shape,bf16', [('convnet:width=16,depth=2', (3,8,8), True), ('convnet:width=16,depth=2', (1,9,9), False), ('convnet:width=16,depth=1,norm=batch', (1,8,8), False)])
def test_compiled(spec, shape, bf16, recwarn):
    plain, fast = gradients(spec, shape, compile=True, bf16=bf16)
    cos = torch.cosine_similarity(plain, fast).min()
    assert cos > (.99 if bf16 else 1-1e-5) and (cos < 1-1e-6) == bf16
    assert not [w for w in recwarn if 'compile:' in str(w.message)]

def test_no_compiler(tmp_path):
    code = '''
import torch
from bpc_nb.fast import accelerate
from bpc_nb.networks import network
net = network('convnet:width=8,depth=2', (1,8,8), 3)
theta, x = net.init(torch.Generator().manual_seed(0)), torch.randn(4,1,8,8)
fast = accelerate(net, compile=True)
for _ in range(2): torch.testing.assert_close(fast.apply(theta, x), net.apply(theta, x), rtol=1e-4, atol=1e-5)
'''
    env = os.environ | dict(CXX='no-such-compiler', TORCHINDUCTOR_CACHE_DIR=str(tmp_path), PYTHONPATH=os.pathsep.join(filter(None, sys.path)))
    r = subprocess.run([sys.executable, '-c', code], env=env, capture_output=True, text=True)
    assert r.returncode==0, r.stderr
    assert r.stderr.count('UserWarning: compile: torch.compile failed here and is left out') == 1
