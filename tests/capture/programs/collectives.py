"""Ranks exchange values whose results are known in closed form; prints one line a rank."""
import os

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)


def host(values, dtype=torch.float32):
    return torch.tensor(values, dtype=dtype).to(device)


total = host([rank + 1.0, 2.0 * rank])
dist.all_reduce(total)
assert total.tolist() == [world * (world + 1) / 2, float(world * (world - 1))], total

gathered = torch.empty(world, device=device)
dist.all_gather_into_tensor(gathered, host([float(rank)]))
assert gathered.tolist() == [float(r) for r in range(world)], gathered

mine = torch.empty(1, device=device)
dist.reduce_scatter_tensor(mine, host([float(r) for r in range(world)]))
assert mine.tolist() == [float(world * rank)], mine

root = host([float(rank)] * 3)
dist.broadcast(root, src=world - 1)
assert root.tolist() == [float(world - 1)] * 3, root

received = torch.empty(2, device=device)
operations = [dist.P2POp(dist.isend, host([rank, rank + 0.5]), (rank + 1) % world), dist.P2POp(dist.irecv, received, (rank - 1) % world)]
for work in dist.batch_isend_irecv(operations):
    work.wait()
left = (rank - 1) % world
assert received.tolist() == [left, left + 0.5], received

exchanged = torch.empty(world, device=device)
dist.all_to_all_single(exchanged, host([float(10 * rank + r) for r in range(world)]))
assert exchanged.tolist() == [float(10 * r + rank) for r in range(world)], exchanged

objects = [None] * world
dist.all_gather_object(objects, {"rank": rank})
assert objects == [{"rank": r} for r in range(world)], objects

half = dist.new_group([r for r in range(world) if r % 2 == 0])
if rank % 2 == 0:
    part = host([1.0])
    dist.all_reduce(part, group=half)
    assert part.tolist() == [float((world + 1) // 2)], part
dist.barrier()
private = sum(int(line.split()[1]) for line in open("/proc/self/smaps_rollup") if line.startswith("Private_Dirty"))
print(f"rank {rank} of {world} good, private {private} kB", flush=True)
dist.destroy_process_group()
