"""Random operations depend on the CUDA generator's seed and offset only, advance it, and have the right distribution."""

import pytest
import torch
from torch.nn import functional as F

N = 20000


def probabilities():
    return torch.full((N,), 0.25, device="cuda")


DRAWS = {
    "normal_": lambda: torch.empty(N, device="cuda").normal_(),
    "uniform_": lambda: torch.empty(N, device="cuda").uniform_(),
    "randn": lambda: torch.randn(N, device="cuda"),
    "randint": lambda: torch.randint(0, 100, (N,), device="cuda"),
    "randperm": lambda: torch.randperm(N, device="cuda"),
    "bernoulli": lambda: torch.bernoulli(probabilities()),
    "exponential_": lambda: torch.empty(N, device="cuda").exponential_(),
    "geometric_": lambda: torch.empty(N, device="cuda").geometric_(0.5),
    "multinomial": lambda: torch.multinomial(probabilities(), 100),
    "multinomial-replacement": lambda: torch.multinomial(probabilities(), 100, replacement=True),
    "normal-tensors": lambda: torch.normal(torch.zeros(N, device="cuda"), torch.ones(N, device="cuda")),
    "dropout": lambda: F.dropout(torch.ones(N, device="cuda"), 0.3),
    "poisson": lambda: torch.poisson(torch.full((N,), 3.0, device="cuda")),
    "rrelu": lambda: F.rrelu(-torch.ones(N, device="cuda"), training=True),
}


@pytest.mark.parametrize("name", DRAWS)
def test_draw_depends_on_seed_and_offset(name):
    draw = DRAWS[name]
    torch.cuda.manual_seed(7)
    first, second = draw(), draw()
    torch.cuda.manual_seed(7)
    torch.rand(5)  # the CPU's generator plays no part
    assert torch.equal(draw(), first)
    assert torch.equal(draw(), second)
    assert not torch.equal(first, second)
    torch.cuda.manual_seed(8)
    assert not torch.equal(draw(), first)


def test_draw_leaves_the_cpu_generator_alone():
    before = torch.get_rng_state()
    for draw in DRAWS.values():
        draw()
    assert torch.equal(torch.get_rng_state(), before)


def test_state_restores_a_draw():
    state = torch.cuda.get_rng_state()
    first = torch.randn(10, device="cuda")
    torch.cuda.set_rng_state(state)
    assert torch.equal(torch.randn(10, device="cuda"), first)


def test_own_generator():
    draws = [torch.randn(8, device="cuda", generator=torch.Generator("cuda").manual_seed(s)) for s in (1, 1, 2)]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


def test_moments():
    torch.cuda.manual_seed(1)
    x = torch.randn(200000, device="cuda")
    assert abs(x.mean().item()) < 0.01 and abs(x.std().item() - 1) < 0.01
    u = torch.rand(200000, device="cuda")
    assert abs(u.mean().item() - 0.5) < 0.005 and u.min().item() >= 0 and u.max().item() < 1
    assert sorted(torch.randperm(1000, device="cuda").tolist()) == list(range(1000))


def test_dropout_scales_what_it_keeps_and_its_gradient():
    torch.cuda.manual_seed(3)
    x = torch.ones(100000, device="cuda", requires_grad=True)
    y = F.dropout(x, 0.2)
    kept = y != 0
    assert abs(kept.float().mean().item() - 0.8) < 0.01
    assert torch.allclose(y[kept], torch.tensor(1.25, device="cuda"))
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())


@pytest.mark.parametrize("backend", ["EFFICIENT_ATTENTION", "FLASH_ATTENTION"])
def test_attention_dropout_backward_uses_the_forward_mask(backend):
    # d(sum of output)/d(value) sums the dropped-out weights over queries, so it tells the mask that the backward used:
    # with value = identity the output is the dropped-out weights themselves.
    dtype = torch.float32 if backend == "EFFICIENT_ATTENTION" else torch.float16
    torch.cuda.manual_seed(4)
    q, k = (torch.randn(1, 2, 16, 16, device="cuda", dtype=dtype) for _ in range(2))
    v = torch.eye(16, device="cuda", dtype=dtype).expand(1, 2, 16, 16).clone().requires_grad_()
    with torch.nn.attention.sdpa_kernel(getattr(torch.nn.attention.SDPBackend, backend)):
        weights = F.scaled_dot_product_attention(q, k, v, dropout_p=0.4)
        weights.sum().backward()
    dropped = (weights == 0).float().mean().item()
    assert 0.25 < dropped < 0.55
    expected = weights.detach().sum(-2).unsqueeze(-1).expand(1, 2, 16, 16)
    torch.testing.assert_close(v.grad, expected, rtol=2e-3, atol=2e-3)
