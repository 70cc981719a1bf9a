"""Times a matrix product on every GPU at once by what its operands hold, and beside other work: what a GPU at its power limit makes of it.

    torchrun --nproc-per-node 2 power.py              # all kinds of operands, and what is beside
    torchrun --nproc-per-node 2 power.py normal zeros  # these operands

Prints for each kind the median time of a product of 8192 x 8192 bf16 matrices on each rank, and clock (MHz) and power (W) of all GPUs meanwhile.
"""

import os
import statistics
import subprocess
import sys
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

SIZE = 8192
ROUNDS, PRODUCTS, COUNTED = 100, 10, 50  # of a round; the last rounds count
QUERY = ["nvidia-smi", "--query-gpu=clocks.sm,power.draw.instant", "--format=csv,noheader,nounits"]


def gpus_now() -> str:
    return subprocess.run(QUERY, capture_output=True, text=True, check=False).stdout.strip().replace("\n", " | ")


def main() -> None:
    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    generator = torch.Generator("cuda").manual_seed(1 + rank)

    def normal(rows: int = SIZE, columns: int = SIZE) -> Tensor:
        return torch.randn(rows, columns, device="cuda", generator=generator).bfloat16()

    operands = {
        "normal": normal,
        "normal, rows twice": lambda: torch.cat([normal(SIZE // 2)] * 2),
        "normal, columns twice": lambda: torch.cat([normal(columns=SIZE // 2)] * 2, dim=1),
        "normal, times 1e-8": lambda: normal() * 1e-8,
        "SwiGLU of normal": lambda: torch.nn.functional.silu(normal()) * normal(),
        "softmax of normal": lambda: torch.softmax(normal().float(), -1).bfloat16(),
        "every second row zero": lambda: torch.stack([normal(SIZE // 2), torch.zeros(SIZE // 2, SIZE, device="cuda", dtype=torch.bfloat16)], 1).view(SIZE, SIZE),
        "one half zero rows": lambda: torch.cat([normal(SIZE // 2), torch.zeros(SIZE // 2, SIZE, device="cuda", dtype=torch.bfloat16)]),
        "ones": lambda: torch.ones_like(normal()),
        "zeros": lambda: torch.zeros_like(normal()),
    }
    result = torch.empty(SIZE, SIZE, device="cuda", dtype=torch.bfloat16)
    message = torch.randn(1 << 26, device="cuda").bfloat16()
    copy = torch.empty_like(message)
    beside = {"all-reduce of 128 MiB": lambda: dist.all_reduce(message), "copy of 128 MiB": lambda: copy.copy_(message)}

    def time(what: str, left: Tensor, right: Tensor, also: Callable[[], object] = lambda: None) -> None:
        dist.barrier()
        torch.cuda.synchronize()
        rounds, seen = [], ""
        for n in range(ROUNDS):
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            for _ in range(PRODUCTS):
                torch.mm(left, right, out=result)
            last.record()
            also()
            rounds.append((first, last))
            if n % 10 == 9:  # the host runs ahead, but not of everything
                rounds[-5][1].synchronize()
            if n == 70 and rank == 0:
                seen = gpus_now()
        torch.cuda.synchronize()
        ms = statistics.median(first.elapsed_time(last) / PRODUCTS for first, last in rounds[COUNTED:])
        print(f"rank {rank} {what:24} {ms:.4f} ms  {seen}", flush=True)

    for what in sys.argv[1:] or operands:
        time(what, operands[what](), normal())
    left, right = normal(), normal()
    for what, also in beside.items() if len(sys.argv) == 1 else ():
        time("normal, " + what, left, right, also)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
