"""A step of examples/train_gpt.py or examples/train_moe.py: `gpt.py NAME gpt|moe [their options]`."""

import sys
from pathlib import Path

import torch.distributed as dist

from steady_step import run_steps

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
name, kind, *arguments = sys.argv[1:]
if kind == "moe":
    import train_moe as example
    from train_moe import ExpertParallelTraining as Training
else:
    import train_gpt as example
    from train_gpt import Training

options = example.parse_arguments(arguments)
training = Training(options, example.start_process_group(options.device))
run_steps(name, training.step, steps=options.steps, arguments=arguments)
dist.destroy_process_group()
