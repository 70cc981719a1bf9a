"""Shows mistakes that bring a distributed job down, in the smallest program that can make them.

    torchrun --nproc-per-node 4 faults.py                                    # trains, no fault
    torchrun --nproc-per-node 4 faults.py --fault count --fault-rank 2 --fault-step 3

Every rank fits a line by gradient descent; each step it takes rank 0's weights and averages its gradient with the
others'. At --fault-step, rank --fault-rank makes the mistake:

| --fault | the rank                                                                              |
|---------|---------------------------------------------------------------------------------------|
| count   | averages one element more than the others, as after a layer was added on one rank only |
| type    | averages in half precision, as with autocast on one rank only                          |
| root    | broadcasts from itself, as when "rank 0" is taken from the node and not from the job   |
| op      | gathers where the others average, as after a branch on a value that differs by rank    |
| missing | skips the collective but goes on, as with `if rank == 0:` around one                   |
| exit    | leaves quietly with code 0, as when its data ran out first                             |
| raise   | raises an exception                                                                    |
| kill    | is killed, as by the kernel when memory runs out                                       |

On a GPU most of these hang until a timeout ten minutes later.
"""

import argparse
import os
import signal
import sys

import torch
import torch.distributed as dist

FEATURES = 1000


def average(gradient: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(gradient)
    return gradient / dist.get_world_size()


def average_faulty(fault: str, gradient: torch.Tensor) -> torch.Tensor:
    """Makes the mistake `fault` in the place of average()."""
    match fault:
        case "count":
            return average(torch.cat([gradient, gradient.new_zeros(1)]))[:-1]
        case "type":
            return average(gradient.half()).float()
        case "op":
            gathered = [torch.empty_like(gradient) for _ in range(dist.get_world_size())]
            dist.all_gather(gathered, gradient)
            return torch.stack(gathered).mean(0)
        case "missing":
            return gradient
        case "exit":
            sys.exit(0)
        case "raise":
            raise RuntimeError(f"rank {dist.get_rank()} met a bad sample")
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
    return average(gradient)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--fault", choices=["count", "type", "root", "op", "missing", "exit", "raise", "kill"])
    parser.add_argument("--fault-rank", type=int, default=1, metavar="R")
    parser.add_argument("--fault-step", type=int, default=2, metavar="S")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    options = parser.parse_args()

    dist.init_process_group("nccl" if options.device == "cuda" else "gloo")
    rank = dist.get_rank()
    device = torch.device(options.device, int(os.environ["LOCAL_RANK"]) if options.device == "cuda" else 0)
    if options.device == "cuda":
        torch.cuda.set_device(device)

    generator = torch.Generator().manual_seed(rank)
    weight = torch.zeros(FEATURES, device=device)
    for step in range(options.steps):
        faulty = options.fault is not None and rank == options.fault_rank and step == options.fault_step
        if faulty:
            print(f"step {step}: rank {rank} makes the mistake: {options.fault}", flush=True)
        dist.broadcast(weight, src=rank if faulty and options.fault == "root" else 0)
        x = torch.randn(64, FEATURES, generator=generator).to(device)
        error = x @ weight - x.sum(1)
        gradient = x.t() @ error / len(x)
        gradient = average_faulty(options.fault, gradient) if faulty else average(gradient)
        weight -= 0.01 * gradient
        if rank == 0:
            print(f"step {step} loss {error.square().mean().item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
