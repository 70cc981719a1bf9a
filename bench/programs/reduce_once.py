"""Runs a program whose bf16 tensors DTensor reduces in fp32, rounded once at the end.

    torchrun --nproc-per-node 4 reduce_once.py train_gpt.py --parallel tp --dtype bf16 --device cpu

Gloo rounds to bf16 at each addition of a reduction; hostnccl and prism sum in fp32 from rank 0 and round once. With this
wrapper the CPU's own run does the same, and what difference is left is not the order of rounding.
"""

import runpy
import sys
from collections.abc import Callable

import torch
import torch.distributed._functional_collectives as collectives


def rounded_once(reduce: Callable) -> Callable:
    def reduced(tensor: torch.Tensor, *arguments, **named) -> torch.Tensor:
        if tensor.dtype != torch.bfloat16:
            return reduce(tensor, *arguments, **named)
        return reduce(tensor.float(), *arguments, **named).to(torch.bfloat16)

    return reduced


for name in ("all_reduce", "reduce_scatter_tensor"):
    setattr(collectives, name, rounded_once(getattr(collectives, name)))
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
