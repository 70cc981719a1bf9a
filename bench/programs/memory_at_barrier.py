"""Trains examples/train_gpt.py, then holds every rank at a barrier while each writes down what memory it takes.

    PYTHONPATH=examples COST_OUTPUT=DIR torchrun --nproc-per-node 8 memory_at_barrier.py --parallel fsdp2    # DIR/rank-00000.json ...

Takes train_gpt.py's arguments. PSS (a page shared by n processes counts 1/n to each) means something only while all ranks are there.
"""

import json
import os
from pathlib import Path

import torch
import torch.distributed as dist
import train_gpt


def rollup() -> dict[str, int]:
    """Returns /proc/self/smaps_rollup in bytes."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
    return {name.rstrip(":"): int(value) * 1024 for name, value, *_ in (line.split() for line in lines)}


def private_by_mapping(most: int) -> list[list]:
    """Returns the mappings with the most private memory: [bytes, name]."""
    found: dict[str, int] = {}
    name = ""
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if not words[0].endswith(":"):
            name = Path(words[5]).name if len(words) > 5 else "anonymous"
        elif words[0] in ("Private_Dirty:", "Private_Clean:"):
            found[name] = found.get(name, 0) + int(words[1]) * 1024
    return sorted(([size, name] for name, size in found.items() if size), reverse=True)[:most]


def main() -> None:
    options = train_gpt.parse_arguments()
    device = train_gpt.start_process_group(options.device)
    training = train_gpt.Training(options, device)
    train_gpt.train(training, options.steps)
    torch.cuda.synchronize()
    dist.barrier()
    torch.cuda.synchronize()
    memory = rollup()
    if dist.get_rank() == 0 or "COST_MAPPINGS" in os.environ:
        memory["private_by_mapping"] = private_by_mapping(20)
    Path(os.environ["COST_OUTPUT"], f"rank-{dist.get_rank():05}.json").write_text(json.dumps(memory))
    dist.barrier()
    torch.cuda.synchronize()
    del training
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
