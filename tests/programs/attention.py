"""Attention forward and backward by each of PyTorch's implementations, or by the one that it picks itself."""

import contextlib
import sys

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from steady_step import run_steps

BACKENDS = {
    "default": None,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}
name = sys.argv[1]
backend = BACKENDS[name]

torch.manual_seed(0)
query, key, value = (
    torch.randn(2, 16, 512, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3)
)


def step(number: int) -> None:
    with sdpa_kernel(backend) if backend is not None else contextlib.nullcontext():
        y = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    y.sum().backward()
    query.grad = key.grad = value.grad = None


run_steps(f"attention-{name}", step)
