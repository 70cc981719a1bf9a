#!/usr/bin/env python3
"""What a PyTorch program uses of CUDA, one named step each: run with and without the shims, on a GPU or on hostcuda.

    torch_program.py [--device 5] [--expect-devices 8] [--steps gemm,conv,...]

Prints `ok NAME detail` or `FAIL NAME error`; exit code 1 if a step failed.
"""
import argparse
import os
import sys
import tempfile
import time

import torch

STEPS = {}


def step(function):
    STEPS[function.__name__] = function
    return function


@step
def devices(o):
    count = torch.cuda.device_count()
    assert not o.expect_devices or count == o.expect_devices, f"device_count {count}"
    torch.cuda.set_device(o.device)
    x = torch.ones(4, device=f"cuda:{o.device}")
    assert x.device.index == o.device and torch.cuda.current_device() == o.device
    free, total = torch.cuda.mem_get_info()
    properties = torch.cuda.get_device_properties(o.device)
    return f"{count} x {properties.name}, {free} of {total} bytes free, current {torch.cuda.current_device()}"


@step
def gemm(o):
    a = torch.randn(512, 512, device=o.name)
    b = a @ a
    expected = (a.cpu().double() @ a.cpu().double()).float()
    error = (b.cpu() - expected).abs().max().item()
    assert not o.check_values or error < 1e-1, error
    return f"largest difference {error:.2e}, on {b.device}"


@step
def conv(o):
    m = torch.nn.Conv2d(3, 8, 3).to(o.name)
    y = m(torch.randn(2, 3, 32, 32, device=o.name))
    y.sum().backward()
    return f"{tuple(y.shape)} on {y.device}"


@step
def sdpa(o):
    q = torch.randn(2, 8, 256, 64, device=o.name, dtype=torch.bfloat16, requires_grad=True)
    y = torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
    y.float().sum().backward()
    assert not o.check_values or q.grad.isfinite().all().item()
    return f"gradient on {q.grad.device}"


@step
def streams(o):
    side, start, end = torch.cuda.Stream(), torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    a = torch.randn(256, 256, device=o.name)
    with torch.cuda.stream(side):
        side.wait_stream(torch.cuda.default_stream())
        start.record()
        b = a @ a
        end.record()
    torch.cuda.current_stream().wait_event(end)
    c = b + 1
    torch.cuda.synchronize()
    pinned = torch.ones(1024).pin_memory().to(o.name, non_blocking=True)
    return f"{start.elapsed_time(end):.3f} ms, {c.device}, pinned sum {pinned.sum().item() if o.check_values else 'not checked'}"


@step
def optimizer(o):
    m = torch.nn.Linear(256, 256).to(o.name)
    opt = torch.optim.AdamW(m.parameters(), fused=True)
    with torch.autocast("cuda", torch.bfloat16):
        loss = m(torch.randn(8, 256, device=o.name)).pow(2).mean()
    loss.backward()
    opt.step()
    return f"loss {loss.item():.4f}" if o.check_values else "step done"


@step
def allocator(o):
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    x = torch.empty(1 << 30, dtype=torch.uint8, device=o.name)
    free, total = torch.cuda.mem_get_info()
    reserved = torch.cuda.memory_reserved() - before
    del x
    torch.cuda.empty_cache()
    free_after, _ = torch.cuda.mem_get_info()
    # Expandable segments reuse what is mapped already.
    assert 0.9 * 2**30 < free_after - free < 1.1 * 2**30, (free, free_after)
    try:
        torch.empty(total, dtype=torch.uint8, device=o.name)
        raise AssertionError("an allocation of the whole device did not fail")
    except torch.cuda.OutOfMemoryError as e:
        return f"reserved {reserved}, out of memory: {str(e)[:120]}"


@step
def neighbours(o):
    """Memory is counted by ordinal, though all virtual ones are the same device."""
    count = torch.cuda.device_count()
    if count < 2:
        return "one device"
    other = (o.device + 1) % count
    torch.cuda.empty_cache()
    before = [torch.cuda.mem_get_info(d)[0] for d in (o.device, other)]
    x = torch.empty(3 << 30, dtype=torch.uint8, device=f"cuda:{other}")
    y = torch.ones(4, device=o.name)
    z = x[:16].to(o.name)
    after = [torch.cuda.mem_get_info(d)[0] for d in (o.device, other)]
    assert x.device.index == other and z.device.index == o.device and torch.cuda.current_device() == o.device
    slack = 40 << 20  # of the allocator's segments
    assert 0 <= before[1] - after[1] - (3 << 30) <= slack and before[0] - after[0] <= slack, (before, after)
    torch.cuda.synchronize(other)
    del x, y, z
    return f"cuda:{o.device} and cuda:{other} apart"


@step
def nccl(o):
    import torch.distributed as dist

    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29777")
    dist.init_process_group("nccl", rank=rank, world_size=world, device_id=torch.device(o.name))
    x = torch.full((1000,), float(rank + 1), device=o.name)
    dist.all_reduce(x)
    big = torch.full((1 << 20,), float(rank), device=o.name)
    parts = [torch.empty_like(big) for _ in range(world)]
    dist.all_gather(parts, big)
    shard = torch.empty((1 << 20) // world, device=o.name)
    dist.reduce_scatter_tensor(shard, big)
    if world > 1:
        out = torch.empty_like(x)
        ops = [dist.P2POp(dist.isend, x, (rank + 1) % world), dist.P2POp(dist.irecv, out, (rank - 1) % world)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
    objects = [None] * world
    group = dist.new_group(list(range(world)), use_local_synchronization=False)
    dist.barrier(group)
    torch.cuda.synchronize()
    assert x[0].item() == world * (world + 1) / 2, x[0].item()
    assert [p[0].item() for p in parts] == [float(r) for r in range(world)]
    assert shard[0].item() == world * (world - 1) / 2
    dist.all_gather_object(objects, {"rank": rank})
    assert [o_["rank"] for o_ in objects] == list(range(world))
    dist.destroy_process_group()
    return f"world {world}"


@step
def graph(o):
    g, x = torch.cuda.CUDAGraph(), torch.zeros(10, device=o.name)
    with torch.cuda.graph(g):
        y = x + 1
    g.replay()
    torch.cuda.synchronize()
    return f"{y[0].item()}"


@step
def compiled(o):
    f = torch.compile(lambda x: (x * 2 + 1).sin())
    y = f(torch.zeros(1000, device=o.name))
    torch.cuda.synchronize()
    return f"{y.device} {y[0].item():.4f}"


@step
def profiler(o):
    from torch.profiler import ProfilerActivity, profile

    a = torch.randn(256, 256, device=o.name)
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as p:
        for _ in range(3):
            a = a @ a
        torch.cuda.synchronize()
    kernels = [e for e in p.events() if e.device_type.name == "CUDA"]
    assert kernels, "no device event"
    return f"{len(kernels)} device events, first {kernels[0].name[:60]}"


@step
def loop(o):
    layers = [torch.nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, dropout=0.0) for _ in range(2)]
    m = torch.nn.Sequential(*layers).to(o.name)
    opt = torch.optim.AdamW(m.parameters(), foreach=True)
    x = torch.randn(4, 128, 512, device=o.name)
    times = []
    for _ in range(o.iterations):
        torch.cuda.synchronize()
        start = time.perf_counter()
        loss = m(x).pow(2).mean()
        loss.backward()
        opt.step()
        opt.zero_grad()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return f"median {sorted(times)[len(times) // 2] * 1e3:.3f} ms, peak {torch.cuda.max_memory_allocated()}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", type=int, default=int(os.environ.get("LOCAL_RANK", 0)))
    parser.add_argument("--expect-devices", type=int, default=0)
    parser.add_argument("--no-values", dest="check_values", action="store_false", help="hostcuda with values none")
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--steps", default="")
    o = parser.parse_args()
    o.name = f"cuda:{o.device}"
    failed = 0
    names = o.steps.split(",") if o.steps else list(STEPS)
    for name in ["devices"] + [n for n in names if n != "devices"]:
        start = time.perf_counter()
        try:
            detail = STEPS[name](o)
            print(f"ok {name} ({time.perf_counter() - start:.2f} s): {detail}", flush=True)
        except Exception as error:  # every step reports
            failed = 1
            print(f"FAIL {name}: {type(error).__name__}: {str(error)[:600]}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
