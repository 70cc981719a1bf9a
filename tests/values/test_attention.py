"""Fused attention, which the CPU has under other names: against attention written out in fp64, and against the CPU's own."""

import math

import pytest
import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

BACKENDS = {
    "flash": (SDPBackend.FLASH_ATTENTION, [torch.float16, torch.bfloat16]),
    "efficient": (SDPBackend.EFFICIENT_ATTENTION, [torch.float32, torch.float16, torch.bfloat16]),
    "cudnn": (SDPBackend.CUDNN_ATTENTION, [torch.float16, torch.bfloat16]),
    "math": (SDPBackend.MATH, [torch.float32, torch.bfloat16]),
}
CASES = [(name, dtype) for name, (_, dtypes) in BACKENDS.items() for dtype in dtypes]
ULP = {torch.float32: 2.0**-21, torch.float16: 2.0**-8, torch.bfloat16: 2.0**-6}


def written_out(q, k, v, mask=None, causal=False, scale=None):
    q, k, v = (t.double() for t in (q, k, v))
    if k.shape[1] != q.shape[1]:
        k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    scores = q @ k.transpose(-1, -2) * (scale or 1 / math.sqrt(q.shape[-1]))
    if causal:
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), -math.inf)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask.double()
    return scores.softmax(-1) @ v


def inputs(dtype, shape=(2, 4, 24, 16), key_heads=None, seed=0):
    generator = torch.Generator().manual_seed(seed)
    batch, heads, length, width = shape
    shapes = [shape, (batch, key_heads or heads, length, width), (batch, key_heads or heads, length, width)]
    return [torch.randn(s, generator=generator).to(dtype) for s in shapes]


def both(backend, dtype, tensors, **options):
    """Outputs and gradients of the device, and those of the definition in fp64."""
    on_device = [t.cuda().requires_grad_() for t in tensors]
    wide = [t.double().requires_grad_() for t in tensors]
    mask = options.pop("mask", None)
    with sdpa_kernel(BACKENDS[backend][0]):
        out = F.scaled_dot_product_attention(*on_device, attn_mask=None if mask is None else mask.cuda(),
                                             is_causal=options.get("causal", False), scale=options.get("scale"),
                                             enable_gqa=options.get("gqa", False))  # fmt: skip
    want = written_out(*wide, mask=mask, causal=options.get("causal", False), scale=options.get("scale"))
    seed = torch.randn(want.shape, generator=torch.Generator().manual_seed(9)).to(dtype)
    out.backward(seed.cuda())
    want.backward(seed.double())
    return [out, *(t.grad for t in on_device)], [want, *(t.grad for t in wide)]


def assert_close(got, want, dtype):
    for a, b in zip(got, want, strict=True):
        assert a.dtype == dtype
        limit = 2 * ULP[dtype] * b.abs().max().item()
        assert (a.detach().cpu().double() - b.detach()).abs().max().item() <= limit


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("backend, dtype", CASES)
def test_attention(backend, dtype, causal):
    assert_close(*both(backend, dtype, inputs(dtype), causal=causal), dtype)


@pytest.mark.parametrize("backend, dtype", [c for c in CASES if c[0] in ("flash", "cudnn", "math")])
def test_attention_with_fewer_key_heads(backend, dtype):
    assert_close(*both(backend, dtype, inputs(dtype, key_heads=2), causal=True, gqa=True), dtype)


@pytest.mark.parametrize("kind", ["bool", "float"])
@pytest.mark.parametrize("backend, dtype", [c for c in CASES if c[0] != "flash"])
def test_attention_with_mask(backend, dtype, kind):
    generator = torch.Generator().manual_seed(5)
    mask = torch.rand(2, 1, 24, 24, generator=generator) > 0.3
    mask |= torch.eye(24, dtype=torch.bool)
    if kind == "float":
        mask = torch.zeros(mask.shape, dtype=dtype).masked_fill(~mask, -2.0)
    assert_close(*both(backend, dtype, inputs(dtype), mask=mask), dtype)


@pytest.mark.parametrize("backend, dtype", CASES)
def test_attention_with_scale_and_odd_width(backend, dtype):
    width = 20 if backend in ("flash", "math") else 24  # the others take multiples of 8 only
    assert_close(*both(backend, dtype, inputs(dtype, shape=(1, 2, 9, width)), scale=0.3), dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_has_the_bits_of_the_cpu(dtype, causal):
    tensors = inputs(dtype)
    results = []
    for device in ("cuda", "cpu"):
        q, k, v = (t.to(device).requires_grad_() for t in tensors)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        out.float().square().sum().backward()
        results.append([t.cpu() for t in (out, q.grad, k.grad, v.grad)])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_mask_gradient():
    # (The query must need a gradient too, or PyTorch does not ask the forward for what the backward needs.)
    q, k, v = (t.cuda().requires_grad_() for t in inputs(torch.float32))
    bias = torch.randn(2, 4, 24, 24, generator=torch.Generator().manual_seed(6))
    on_device, wide = bias.cuda().requires_grad_(), bias.double().requires_grad_()
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
        F.scaled_dot_product_attention(q, k, v, attn_mask=on_device).square().sum().backward()
    written_out(*(t.detach().cpu() for t in (q, k, v)), mask=wide).square().sum().backward()
    torch.testing.assert_close(on_device.grad.cpu().double(), wide.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("causal", [False, True])
def test_packed_sequences(causal):
    generator = torch.Generator().manual_seed(7)
    q, k, v = (torch.randn(20, 4, 16, generator=generator).half() for _ in range(3))
    starts = torch.tensor([0, 5, 12, 20], dtype=torch.int32)
    on_device = [t.cuda().requires_grad_() for t in (q, k, v)]
    out, logsumexp, *_ = torch.ops.aten._flash_attention_forward(
        *on_device, starts.cuda(), starts.cuda(), 8, 8, 0.0, causal, False)  # fmt: skip
    seed = torch.randn(out.shape, generator=generator).half()
    out.backward(seed.cuda())
    wide = [t.double().requires_grad_() for t in (q, k, v)]
    parts = []
    for begin, end in ((0, 5), (5, 12), (12, 20)):
        q_, k_, v_ = (t[begin:end].transpose(0, 1).unsqueeze(0) for t in wide)
        parts.append(written_out(q_, k_, v_, causal=causal).squeeze(0).transpose(0, 1))
    want = torch.cat(parts)
    want.backward(seed.double())
    assert_close([out, *(t.grad for t in on_device)], [want, *(t.grad for t in wide)], torch.float16)
    assert torch.isfinite(logsumexp).all()
