"""Compares what a program computes on the CUDA device with what it computes on the CPU.

    check(lambda device, x, y: torch.matmul(x, y), [x, y])

The CPU's result is the oracle. Equal means the same bits, or both NaN.
"""

import dataclasses

import torch
from torch.utils._pytree import tree_flatten, tree_map


def on(device, value, requires_grad=False):
    """Returns `value` with every tensor (and device) in it on `device`, of the same strides where they do not overlap."""

    def move(leaf):
        if isinstance(leaf, torch.device):
            return torch.device(device)
        if not isinstance(leaf, torch.Tensor):
            return leaf
        source = leaf.detach()
        if source.layout == torch.strided and torch.ops.aten.is_non_overlapping_and_dense(source):
            moved = torch.empty_strided(source.shape, source.stride(), dtype=source.dtype, device=device)
            moved.copy_(source)
        else:
            moved = source.clone().to(device)
        return moved.requires_grad_(leaf.requires_grad)

    return tree_map(move, value)


def tensors(value):
    return [leaf for leaf in tree_flatten(value)[0] if isinstance(leaf, torch.Tensor)]


def scalars(value):
    return [leaf for leaf in tree_flatten(value)[0] if isinstance(leaf, (bool, int, float, complex))]


@dataclasses.dataclass
class Difference:
    """The largest difference of two results, in units in the last place of the CPU's type and relative to its largest."""

    what: str
    absolute: float
    relative: float

    def __str__(self):
        return f"{self.what}: absolute {self.absolute:.3g}, relative to the largest {self.relative:.3g}"


def difference(what, got, want):
    """Returns None when `got` (any device) and `want` (CPU) have the same bits; else the difference."""
    got = got.detach()
    want = want.detach()
    if got.shape != want.shape or got.dtype != want.dtype:
        return Difference(f"{what} is {got.dtype}{list(got.shape)}, on the CPU {want.dtype}{list(want.shape)}",
                          float("inf"), float("inf"))
    if got.layout != torch.strided:
        got, want = got.to_dense(), want.to_dense()
    got = got.cpu().resolve_conj().resolve_neg()
    want = want.resolve_conj().resolve_neg()
    if want.dtype == torch.complex32:
        got, want = torch.view_as_real(got), torch.view_as_real(want)
    if want.dtype.itemsize == 1 and want.is_floating_point():
        got, want = got.float(), want.float()
    if torch.equal(got, want):
        return None
    wide = torch.complex128 if want.is_complex() else torch.float64
    same = (got == want) | ((got != got) & (want != want))
    if bool(same.all()):
        return None
    delta = (got.to(wide) - want.to(wide)).abs()[~same]
    absolute = float(delta.nan_to_num(float("inf"), float("inf")).max())
    finite = want.to(wide).abs()
    finite = finite[finite.isfinite()]
    largest = float(finite.max()) if finite.numel() else 0.0
    return Difference(what, absolute, absolute / max(largest, 1e-30))


def widened(value):
    """Returns `value` with every 16-bit floating tensor in fp32."""

    def widen(leaf):
        if isinstance(leaf, torch.Tensor) and leaf.dtype in (torch.float16, torch.bfloat16):
            return leaf.detach().float().requires_grad_(leaf.requires_grad)
        return leaf

    return tree_map(widen, value)


def differences(got, want):
    """Compares two results leaf by leaf."""
    got_tensors, want_tensors = tensors(got), tensors(want)
    if len(got_tensors) != len(want_tensors):
        return [Difference(f"{len(got_tensors)} tensors, on the CPU {len(want_tensors)}", float("inf"), float("inf"))]
    found = [difference(f"result {i}", a, b) for i, (a, b) in enumerate(zip(got_tensors, want_tensors))]
    if not want_tensors and scalars(got) != scalars(want) and str(scalars(got)) != str(scalars(want)):
        found.append(Difference(f"{scalars(got)}, on the CPU {scalars(want)}", float("inf"), float("inf")))
    return [item for item in found if item is not None]


def gradients(outputs, inputs, device, rounded_to=None):
    """Returns the gradients of every differentiable output with respect to `inputs`, from seeded output gradients.

    `rounded_to`: a type that the seeds are rounded to first, for a program that computes wider than the other.
    """
    outputs = [o for o in tensors(outputs) if o.requires_grad and o.layout == torch.strided]
    inputs = [i for i in tensors(inputs) if i.requires_grad]
    if not outputs or not inputs:
        return []
    generator = torch.Generator().manual_seed(1)
    wide = [torch.complex64 if o.is_complex() else torch.float32 for o in outputs]
    seeds = [torch.randn(o.shape, dtype=t, generator=generator).to(rounded_to or o.dtype) for o, t in zip(outputs, wide)]
    seeds = [seed.to(o.dtype).to(device) for o, seed in zip(outputs, seeds)]
    return torch.autograd.grad(outputs, inputs, seeds, allow_unused=True)
