"""Rank 1 does not come to the second collective: the argument says what it does instead.

`leave`: rank 0 ends before the first. `groups`: the ranks use two groups in different orders. `send`: both ranks send what no FIFO of NCCL holds (8 MiB) before they receive. `small`: what one holds, and the job ends well.
"""
import os
import sys
import threading
import time

import torch
import torch.distributed as dist

how = sys.argv[1]
dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
tensor = torch.ones(4, device="cuda")
if how == "leave" and rank == 0:
    os._exit(0)
if how == "groups":
    groups = [dist.new_group([0, 1]), dist.new_group([0, 1])]
    for group in groups if rank == 0 else reversed(groups):
        dist.all_reduce(tensor, group=group)
dist.all_reduce(tensor)
torch.cuda.synchronize()
if rank == 1:
    if how == "lock":
        threading.Event().wait()
    elif how == "sleep":
        time.sleep(1000)
if how in ("send", "small"):
    elements = (2 if how == "send" else 1) << 20
    mine, theirs = torch.full((elements,), 1.0 + rank, device="cuda"), torch.zeros(elements, device="cuda")
    dist.send(mine, 1 - rank)
    torch.cuda.synchronize()
    dist.recv(theirs, 1 - rank)
    print("received", theirs.min().item(), theirs.max().item())
dist.all_reduce(tensor)
torch.cuda.synchronize()
