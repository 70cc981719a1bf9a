#!/usr/bin/env python3
"""What prism's shims cost a real GPU job in mode passthrough: ns a driver call, and the iteration time of a training
loop in interleaved pairs (with, without), each run a process of its own.

    bench/passthrough.py --shims build/release/shims --calls build/release/bench/passthrough_calls --out results.json

Needs a GPU and its driver. The bar: the upper end of the 95 % confidence interval of (with / without - 1) is below 1 %.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys

from intervals import interval
from provenance import gpus, provenance

LOOP = """
import os, sys, time
width, length, steps, cores = map(int, sys.argv[1:])
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-cores:])
import torch
from torch import nn
torch.manual_seed(0)
layers = [nn.TransformerEncoderLayer(width, 16, 4 * width, batch_first=True, dropout=0.0) for _ in range(4)]
model = nn.Sequential(*layers).cuda()
optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
x = torch.randn(8, length, width, device="cuda")
times = []
for step in range(10 + steps):
    torch.cuda.synchronize(); start = time.perf_counter()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(x).float().pow(2).mean()
    loss.backward(); optimizer.step(); optimizer.zero_grad()
    torch.cuda.synchronize(); times.append(time.perf_counter() - start)
times = sorted(times[10:])
print("ITERATION", times[len(times) // 2] * 1e3)
"""


def shim_environment(shims, real):
    names = ("libcuda.so.1", "libnccl.so.2", "libprism_ordinals.so", "libnvidia-ml.so.1")
    preload = [str(shims / name) for name in names if (shims / name).exists()]
    return dict(LD_PRELOAD=":".join(preload), PRISM_MODE="passthrough", **real)


def find_real():
    """Absolute paths of the driver's and NCCL's real libraries, as the controller would set them."""
    cache = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True).stdout
    path = {line.split()[0]: line.split()[-1] for line in cache.splitlines() if "=>" in line}
    real = {"PRISM_REAL_LIBCUDA": path.get("libcuda.so.1", ""), "PRISM_REAL_LIBNVML": path.get("libnvidia-ml.so.1", "")}
    import torch  # its wheel's own libraries

    site = pathlib.Path(torch.__file__).parent.parent / "nvidia"
    for variable, pattern in (("PRISM_REAL_LIBNCCL", "nccl/lib/libnccl.so.2"),
                              ("PRISM_REAL_LIBCUDART", "cu13/lib/libcudart.so.13")):
        real[variable] = str(next(iter(site.glob(pattern)), ""))
    return {k: v for k, v in real.items() if v}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shims", type=pathlib.Path, required=True)
    parser.add_argument("--calls", type=pathlib.Path, required=True)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--width", type=int, default=2048, help="of the model: 1024 is bound by the host, 2048 by an H200")
    parser.add_argument("--length", type=int, default=1024, help="tokens a sequence")
    parser.add_argument("--steps", type=int, default=40, help="that count, after 10 that do not")
    parser.add_argument("--cores", type=int, default=4, help="that a run is pinned to: migrations are most of a host-bound loop's noise")
    parser.add_argument("--out", type=pathlib.Path)
    arguments = parser.parse_args()
    if arguments.pairs < 2:
        parser.error(f"--pairs {arguments.pairs}: an interval needs at least 2")
    real = find_real()
    environments = {"without": {}, "with": shim_environment(arguments.shims.resolve(), real)}

    def run(kind, *command):
        done = subprocess.run(command, env=dict(os.environ, **environments[kind]), capture_output=True, text=True, timeout=300)
        if done.returncode:
            sys.exit(f"{kind} the shims, {command[0]} failed with {done.returncode}:\n{done.stdout}\n{done.stderr}")
        return done.stdout

    calls = {kind: json.loads(run(kind, str(arguments.calls.resolve()))) for kind in environments}
    iterations = {"without": [], "with": []}
    loop = [str(value) for value in (arguments.width, arguments.length, arguments.steps, arguments.cores)]
    for pair in range(arguments.pairs):
        for kind in ("without", "with") if pair % 2 == 0 else ("with", "without"):
            iterations[kind].append(float(run(kind, sys.executable, "-c", LOOP, *loop).split("ITERATION")[1]))
    low, mean, high = interval([w / o - 1 for w, o in zip(iterations["with"], iterations["without"])])
    result = {"schema": 1, "benchmark": "passthrough", **provenance(), "calls_ns": calls,
              "added_ns": {name: round(calls["with"][name] - ns, 1) for name, ns in calls["without"].items()},
              "iteration_ms": iterations, "overhead": {"mean": mean, "low95": low, "high95": high},
              "loop": dict(zip(("width", "length", "steps", "cores"), map(int, loop))), "gpus": gpus()}
    print(json.dumps(result, indent=1))
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    return 0 if high < 0.01 else 3


if __name__ == "__main__":
    sys.exit(main())
