"""torch.distributed on hostnccl: every collective of the nccl backend, groups, DDP and FSDP2, with values computed (HOSTCUDA_VALUES=cpu).

Run by torchrun on any number of ranks from 2. Expected values are closed forms in small integers, or the same model trained on the CPU.
"""
import os

os.environ.setdefault("HOSTCUDA_VALUES", "cpu")

import torch
import torch.distributed as dist
import torch.nn as nn

RANK = int(os.environ["RANK"])
WORLD = int(os.environ["WORLD_SIZE"])
DEVICE = torch.device("cuda", int(os.environ["LOCAL_RANK"]))


def full(value, n=5, dtype=torch.float32):
    return torch.full((n,), value, dtype=dtype, device=DEVICE)


def expect(actual, expected, what):
    actual = actual.cpu()
    expected = torch.as_tensor(expected, dtype=actual.dtype).expand_as(actual)
    assert torch.equal(actual, expected), f"rank {RANK}: {what}: {actual} is not {expected}"


def collectives():
    total = WORLD * (WORLD + 1) // 2
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8, torch.int8):
        for n in (1, 5, 300_001):
            for op, value in ((dist.ReduceOp.SUM, total), (dist.ReduceOp.MAX, WORLD), (dist.ReduceOp.MIN, 1)):
                t = full(RANK + 1, n, dtype)
                dist.all_reduce(t, op)
                expect(t, value, f"all_reduce {dtype} {op}")
    t = full(RANK * 2)
    dist.all_reduce(t, dist.ReduceOp.AVG)
    expect(t, float(WORLD - 1), "average")
    t = full(2)
    dist.all_reduce(t, dist.ReduceOp.PRODUCT)
    expect(t, 2**WORLD, "product")
    t = full(2)
    dist.all_reduce(t, dist._make_nccl_premul_sum(0.5))
    expect(t, WORLD, "premultiplied sum")
    for root in range(WORLD):
        t = full(RANK + 1)
        dist.reduce(t, root)
        if RANK == root:
            expect(t, total, "reduce")
        t = full(RANK)
        dist.broadcast(t, root)
        expect(t, root, "broadcast")
    parts = [full(-1) for _ in range(WORLD)]
    dist.all_gather(parts, full(RANK))
    for r, part in enumerate(parts):
        expect(part, r, "all_gather")
    out = torch.empty(WORLD * 3, device=DEVICE)
    dist.all_gather_into_tensor(out, full(RANK, 3))
    expect(out, torch.arange(WORLD).repeat_interleave(3), "all_gather_into_tensor")
    out = full(0)
    dist.reduce_scatter(out, [full(r + RANK) for r in range(WORLD)])
    expect(out, WORLD * RANK + total - WORLD, "reduce_scatter")
    out = full(0, 2)
    dist.reduce_scatter_tensor(out, torch.arange(WORLD * 2, dtype=torch.float32, device=DEVICE))
    expect(out, WORLD * torch.tensor([2 * RANK, 2 * RANK + 1]), "reduce_scatter_tensor")
    received = [full(-1) for _ in range(WORLD)]
    dist.all_to_all(received, [full(RANK * 100 + r) for r in range(WORLD)])
    for r, part in enumerate(received):
        expect(part, r * 100 + RANK, "all_to_all")
    # Rank a sends a + b + 1 elements to rank b.
    sizes = [RANK + r + 1 for r in range(WORLD)]
    out = torch.empty(sum(sizes), device=DEVICE)
    sent = torch.cat([full(RANK * 100 + r, sizes[r]) for r in range(WORLD)])
    dist.all_to_all_single(out, sent, sizes, sizes)
    expect(out, torch.cat([torch.full((sizes[r],), r * 100.0 + RANK) for r in range(WORLD)]), "all_to_all_single with sizes")
    out = torch.empty(WORLD, device=DEVICE)
    dist.all_to_all_single(out, torch.arange(WORLD, dtype=torch.float32, device=DEVICE) + 10 * RANK)
    expect(out, 10 * torch.arange(WORLD) + RANK, "all_to_all_single")
    gathered = [full(-1) for _ in range(WORLD)] if RANK == 0 else None
    dist.gather(full(RANK), gathered, dst=0)
    if RANK == 0:
        for r, part in enumerate(gathered):
            expect(part, r, "gather")
    out = full(-1)
    dist.scatter(out, [full(r * 3) for r in range(WORLD)] if RANK == 0 else None, src=0)
    expect(out, RANK * 3, "scatter")
    dist.barrier()


def messages():
    following, previous = (RANK + 1) % WORLD, (RANK - 1) % WORLD
    for n in (1, 1_000_003):
        out = full(-1, n)
        works = dist.batch_isend_irecv([dist.P2POp(dist.isend, full(RANK, n), following), dist.P2POp(dist.irecv, out, previous)])
        for work in works:
            work.wait()
        expect(out, previous, "batch_isend_irecv")
    t = full(RANK)
    if RANK % 2 == 0 and RANK + 1 < WORLD:
        dist.send(t, RANK + 1)
        dist.recv(t, RANK + 1)
        expect(t, RANK + 1, "recv")
    elif RANK % 2 == 1:
        out = full(-1)
        dist.recv(out, RANK - 1)
        expect(out, RANK - 1, "recv")
        dist.send(t, RANK - 1)


def objects():
    out = [None] * WORLD
    dist.all_gather_object(out, {"rank": RANK, "text": "x" * (RANK * 1000)})
    assert out == [{"rank": r, "text": "x" * (r * 1000)} for r in range(WORLD)]
    out = [("hello", 1.5)] if RANK == 1 else [None]
    dist.broadcast_object_list(out, src=1, device=DEVICE)
    assert out == [("hello", 1.5)]
    out = [None]
    dist.scatter_object_list(out, [f"for {r}" for r in range(WORLD)] if RANK == 0 else None, src=0)
    assert out == [f"for {RANK}"]
    out = [None] * WORLD if RANK == 0 else None
    dist.gather_object(RANK * RANK, out, dst=0)
    assert RANK != 0 or out == [r * r for r in range(WORLD)]


def groups():
    evens = dist.new_group(list(range(0, WORLD, 2)))
    if RANK % 2 == 0:
        t = full(1)
        dist.all_reduce(t, group=evens)
        expect(t, (WORLD + 1) // 2, "all_reduce of a new group")
    if WORLD % 2 == 0:
        pairs = dist.split_group(None, [[r, r + 1] for r in range(0, WORLD, 2)])
        t = full(RANK)
        dist.all_reduce(t, group=pairs)
        expect(t, 4 * (RANK // 2) + 1, "all_reduce of a split group")
    gloo = dist.new_group(backend="gloo")
    dist.monitored_barrier(gloo)
    # Two communicators on two streams, in opposite orders on even and odd ranks.
    other = dist.new_group()
    a, b = full(1), full(2)
    dist.all_reduce(full(0), group=other)
    order = [(a, None), (b, other)] if RANK % 2 == 0 else [(b, other), (a, None)]
    for work in [dist.all_reduce(t, group=g, async_op=True) for t, g in order]:
        work.wait()
    expect(a, WORLD, "first of two communicators")
    expect(b, 2 * WORLD, "second of two communicators")


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 4))


def batches(rank, steps):
    generator = torch.Generator().manual_seed(100 + rank)
    return [(torch.randn(8, 16, generator=generator), torch.randn(8, 4, generator=generator)) for _ in range(steps)]


def train(module, data, device):
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    for x, y in data:
        optimizer.zero_grad()
        nn.functional.mse_loss(module(x.to(device)), y.to(device)).backward()
        optimizer.step()


def reference(steps):
    """Trains one process on the batches of all ranks; equal to data parallelism up to rounding."""
    module = model()
    data = [batches(r, steps) for r in range(WORLD)]
    train(module, [tuple(torch.cat([data[r][s][i] for r in range(WORLD)]) for i in (0, 1)) for s in range(steps)], "cpu")
    return module.state_dict()


def data_parallel():
    from torch.nn.parallel import DistributedDataParallel

    module = DistributedDataParallel(model().to(DEVICE), device_ids=[DEVICE.index])
    train(module, batches(RANK, 4), DEVICE)
    for name, value in reference(4).items():
        torch.testing.assert_close(module.module.state_dict()[name].cpu(), value, rtol=1e-4, atol=1e-5)


def fully_sharded():
    from torch.distributed.fsdp import fully_shard

    module = model().to(DEVICE)
    for layer in module:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(module)
    train(module, batches(RANK, 4), DEVICE)
    for name, value in reference(4).items():
        torch.testing.assert_close(module.state_dict()[name].full_tensor().cpu(), value, rtol=1e-4, atol=1e-5)


def main():
    torch.cuda.set_device(DEVICE)
    torch.set_num_threads(1)
    dist.init_process_group("nccl", device_id=DEVICE)
    for part in (collectives, messages, objects, groups, data_parallel, fully_sharded):
        part()
        dist.barrier()
        if RANK == 0:
            print(f"{part.__name__}: ok", flush=True)
    dist.destroy_process_group()


main()
