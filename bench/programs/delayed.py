"""Runs an example with extra host time on one rank at the beginning of each step.

    torchrun --nproc-per-node 2 delayed.py 1 0.005 ../../examples/train_gpt.py --parallel ddp    # rank 1, 5 ms
"""

import os
import sys
import time
from pathlib import Path

rank, seconds, program = int(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3])
sys.path.insert(0, str(program.parent))
import train_gpt  # noqa: E402  (found through the line above)

module, name = (train_gpt, "Training")
if program.stem == "train_moe":
    import train_moe as module

    name = "ExpertParallelTraining"
training = getattr(module, name)
step = training.step


def delayed(self, *arguments):
    if int(os.environ.get("RANK", "0")) == rank:
        time.sleep(seconds)
    return step(self, *arguments)


training.step = delayed
del sys.argv[:3]
module.main()
