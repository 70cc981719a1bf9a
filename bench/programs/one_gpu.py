"""Runs a program with real NCCL and all ranks of its job on one GPU, over sockets: to NCCL each rank is a host of its own.

    torchrun --nproc-per-node 2 one_gpu.py ../../examples/train_moe.py --dtype bf16

Without MPS the ranks' kernels take turns in slices of time. Nothing that is timed here is a cluster's.
"""

import os
import runpy
import sys
from pathlib import Path

os.environ.update(NCCL_HOSTID=os.environ["RANK"], LOCAL_RANK="0", NCCL_SOCKET_IFNAME="lo")
del sys.argv[0]
sys.path.insert(0, str(Path(sys.argv[0]).parent))
runpy.run_path(sys.argv[0], run_name="__main__")
