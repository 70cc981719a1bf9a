"""Two ranks meet once; then `fail`: rank 1 raises; `wait`: both wait for a signal, as they would for data."""
import sys
import time

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
dist.all_reduce(torch.ones(4, device="cuda"))
torch.cuda.synchronize()
sys.stdout.write(f"rank {rank} met the other\n")  # in one piece: both ranks write to one pipe
sys.stdout.flush()
if sys.argv[1] == "fail" and rank == 1:
    raise ValueError("a wrong label")
time.sleep(600)
