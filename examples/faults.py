"""Shows mistakes that bring a distributed job down, in the smallest program that can make them.

    torchrun --nproc-per-node 4 faults.py                                    # trains, no fault
    torchrun --nproc-per-node 4 faults.py --fault count --fault-rank 2 --fault-step 3

Every rank fits a line by gradient descent; each step it takes rank 0's weights, averages its gradient with the others',
its loss in a group of its own, and exchanges a halo with a partner. At --fault-step, rank --fault-rank makes the mistake:

| --fault   | the rank                                                                                         |
|-----------|--------------------------------------------------------------------------------------------------|
| count     | averages one element more than the others, as after a layer was added on one rank only           |
| type      | averages in half precision, as with autocast on one rank only                                    |
| root      | broadcasts from itself, as when "rank 0" is taken from the node and not from the job             |
| op        | gathers where the others average, as after a branch on a value that differs by rank              |
| message   | sends one element more than its partner receives                                                 |
| missing   | skips the average but goes on, as with `if rank == 0:` around one                                |
| absent    | waits for ever for its next batch, as when the data loader's worker has died                     |
| order     | averages loss and gradient in the other order, as when a set of names is walked                  |
| overlap   | the same in a program that averages both side by side: it may hang on a GPU, or may not          |
| cycle     | exchanges in its partner's order: both receive first, or both send                               |
| exit      | leaves quietly with code 0, as when its data ran out first                                       |
| raise     | raises an exception                                                                              |
| kill      | is killed, as by the kernel when memory runs out                                                 |
| straggler | records 300 events in every step from there on, as with a profiler that was left on              |
| imbalance | has 400 times the others' samples in every step from there on                                    |

On a GPU most of these hang until a timeout ten minutes later. examples/cpp/faults.cc is the same in C++.
"""

import argparse
import os
import queue
import signal
import sys

import torch
import torch.distributed as dist

FEATURES = 1000
HALO = 2 << 20  # elements: more than NCCL's FIFOs hold
FAULTS = ("count", "type", "root", "op", "message", "missing", "absent", "order", "overlap", "cycle", "exit", "raise", "kill", "straggler", "imbalance")


def average(gradient: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(gradient)
    return gradient / dist.get_world_size()


def average_loss(loss: torch.Tensor, metrics: dist.ProcessGroup) -> torch.Tensor:
    dist.all_reduce(loss, group=metrics)
    return loss / dist.get_world_size()


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
        case "absent":
            queue.SimpleQueue().get()
        case "exit":
            sys.exit(0)
        case "raise":
            raise RuntimeError(f"rank {dist.get_rank()} met a bad sample")
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
    return average(gradient)


def average_both(gradient: torch.Tensor, loss: torch.Tensor, metrics: dist.ProcessGroup, loss_first: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Averages them side by side."""
    calls = [lambda: dist.all_reduce(gradient, async_op=True), lambda: dist.all_reduce(loss, group=metrics, async_op=True)]
    works = [call() for call in (reversed(calls) if loss_first else calls)]
    for work in works:
        work.wait()
    return gradient / dist.get_world_size(), loss / dist.get_world_size()


def exchange(halo: torch.Tensor, received: torch.Tensor, fault: str | None) -> None:
    """The even rank of a pair sends first, the odd one receives first."""
    rank = dist.get_rank()
    partner = rank ^ 1
    if partner >= dist.get_world_size():
        return
    sends_first = rank % 2 == (1 if fault == "cycle" else 0)
    sent = halo if fault == "message" else halo[:-1]
    if sends_first:
        dist.send(sent, partner)
    dist.recv(received, partner)
    if not sends_first:
        dist.send(sent, partner)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--fault", choices=FAULTS)
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
    metrics = dist.new_group()

    generator = torch.Generator().manual_seed(rank)
    weight = torch.zeros(FEATURES, device=device)
    halo, received = torch.zeros(HALO + 1, device=device), torch.zeros(HALO, device=device)
    for step in range(options.steps):
        faulty = options.fault is not None and rank == options.fault_rank
        fault = options.fault if faulty and step == options.fault_step else None
        slow = options.fault if faulty and step >= options.fault_step else None
        if fault:
            print(f"step {step}: rank {rank} makes the mistake: {fault}", flush=True)
        dist.broadcast(weight, src=rank if fault == "root" else 0)
        for _ in range(300 if slow == "straggler" else 0):
            torch.cuda.Event().record()
        x = torch.randn(64, FEATURES, generator=generator).to(device)
        if slow == "imbalance":
            x = x.repeat(400, 1)
        error = x @ weight - x.sum(1)
        gradient = x.t() @ error / len(x)
        loss = error.square().mean()
        if options.fault == "overlap":
            gradient, loss = average_both(gradient, loss, metrics, loss_first=fault == "overlap")
        elif fault == "order":
            loss = average_loss(loss, metrics)
            gradient = average(gradient)
        else:
            gradient = average_faulty(fault, gradient) if fault else average(gradient)
            loss = average_loss(loss, metrics)
        weight -= 0.01 * gradient
        exchange(halo, received, fault)
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
