"""Runs a program under PyTorch's profiler for a few of its training steps and writes down what its kernels took.

    torchrun --nproc-per-node 2 profiled.py OUT 5 8 ../../examples/train_gpt.py --parallel ddp    # from step 5 on, 8 steps: OUT/rank-0.json ...

A step ends with the optimizer's. Of each rank: milliseconds a step in all, in which a kernel that computes was running, in which only communication
was, and none; and by kind of kernel their number and sum a step, of which the longest by name.
"""

import json
import os
import re
import runpy
import sys
from pathlib import Path

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.profiler import ProfilerActivity, profile

KINDS = (("communication", re.compile(r"^nccl")), ("matrix product", re.compile(r"nvjet_|gemm|cutlass|splitK", re.I)),
         ("attention", re.compile(r"sdpa|flash|fmha|attention", re.I)), ("copy", re.compile(r"^Mem")))  # fmt: skip
LONGEST = 12  # by name


def kind_of(name: str) -> str:
    return next((kind for kind, pattern in KINDS if pattern.search(name)), "other")


def covered(intervals: list[tuple[int, int]]) -> int:
    """The length of their union, in ns."""
    total, end = 0, 0
    for first, last in sorted(intervals):
        total += max(last - max(first, end), 0)
        end = max(end, last)
    return total


def summary(events: list, steps: int) -> dict:
    kernels = [(e.name(), e.start_ns(), e.start_ns() + e.duration_ns()) for e in events if e.device_type() == torch.autograd.DeviceType.CUDA]
    kernels = [kernel for kernel in kernels if kernel[2] > kernel[1]]
    all_of = covered([kernel[1:] for kernel in kernels])
    computing = covered([kernel[1:] for kernel in kernels if kind_of(kernel[0]) != "communication"])
    whole = max(kernel[2] for kernel in kernels) - min(kernel[1] for kernel in kernels)
    kinds: dict[str, list] = {}
    names: dict[str, list] = {}
    for name, first, last in kernels:
        for table, key in ((kinds, kind_of(name)), (names, name[:120])):
            entry = table.setdefault(key, [0, 0])
            entry[0] += 1
            entry[1] += last - first

    def a_step(table: dict[str, list]) -> dict:
        ordered = sorted(table.items(), key=lambda item: -item[1][1])
        return {name: {"kernels": number / steps, "ms": ns / steps / 1e6} for name, (number, ns) in ordered}

    return {
        "steps": steps, "step_ms": whole / steps / 1e6, "computing_ms": computing / steps / 1e6,
        "only_communication_ms": (all_of - computing) / steps / 1e6, "idle_ms": (whole - all_of) / steps / 1e6,
        "kinds": a_step(kinds), "longest": dict(list(a_step(names).items())[:LONGEST]),
    }  # fmt: skip


def main() -> None:
    out, first, count, program = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    rank = os.environ.get("RANK", "0")
    profiler = profile(activities=[ProfilerActivity.CUDA])
    done = 0

    def after_step(*_) -> None:
        nonlocal done
        done += 1
        if done not in (first, first + count):
            return
        torch.cuda.synchronize()
        if done == first:
            profiler.start()
            return
        profiler.stop()
        out.mkdir(parents=True, exist_ok=True)
        (out / f"rank-{rank}.json").write_text(json.dumps(summary(profiler.profiler.kineto_results.events(), count), indent=1))

    register_optimizer_step_post_hook(after_step)
    del sys.argv[:4]
    sys.path.insert(0, str(Path(program).parent))
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main()
