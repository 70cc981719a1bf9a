"""Leaves to the interpreter's end what programs leave to it: a file that is not closed, a thread, an atexit handler, a group, a message."""

import atexit
import os
import sys
import threading
import time

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
total = torch.ones(8, device="cuda")
dist.all_reduce(total)
torch.cuda.synchronize()

unclosed = open(os.path.join(sys.argv[1], f"unclosed-{rank}"), "w")
unclosed.write("written")
atexit.register(lambda: print(f"atexit of {rank}"))
threading.Thread(target=lambda: (time.sleep(0.3), print(f"thread of {rank}"))).start()
sys.exit(f"left by {rank}" if rank == 1 else None)
