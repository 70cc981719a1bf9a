"""Rank 1 does not come to the second collective: --how says what it does instead."""
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
dist.all_reduce(tensor)
torch.cuda.synchronize()
if rank == 1:
    if how == "lock":
        threading.Event().wait()
    elif how == "sleep":
        time.sleep(1000)
    elif how == "send":
        dist.send(tensor, 0)
if rank == 0 and how == "send":
    dist.send(tensor, 1)
    torch.cuda.synchronize()
dist.all_reduce(tensor)
torch.cuda.synchronize()
