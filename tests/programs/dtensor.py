"""Transformer blocks split by DTensor over a tensor group of two and, with more ranks, sharded over the rest by FSDP2."""

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from steady_step import run_steps

HIDDEN, HEAD = 1024, 64


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.key = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.value = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.out = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.up = nn.Linear(HIDDEN, 4 * HIDDEN, bias=False)
        self.down = nn.Linear(4 * HIDDEN, HIDDEN, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = F.layer_norm(x, (HIDDEN,))
        query, key, value = (
            project(y).unflatten(-1, (-1, HEAD)).transpose(1, 2) for project in (self.query, self.key, self.value)
        )
        y = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(F.layer_norm(x, (HIDDEN,)))))


torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
world = dist.get_world_size()
mesh = init_device_mesh("cuda", (world // 2, 2), mesh_dim_names=("data", "tensor"))
torch.manual_seed(0)
model = nn.Sequential(*[Block() for _ in range(4)]).cuda()
plan = {name: ColwiseParallel() for name in ("query", "key", "value", "up")}
plan |= {name: RowwiseParallel() for name in ("out", "down")}
for block in model:
    parallelize_module(block, mesh["tensor"], plan)
    if world > 2:
        fully_shard(block, mesh=mesh["data"])
if world > 2:
    fully_shard(model, mesh=mesh["data"])
optimizer = torch.optim.AdamW(model.parameters(), foreach=True)


def step(number: int) -> None:
    # The same input on both ranks of a tensor group.
    generator = torch.Generator().manual_seed(number * world + mesh["data"].get_local_rank())
    x = torch.randn(4, 512, HIDDEN, generator=generator).cuda()
    model(x).pow(2).mean().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


run_steps(f"dtensor-{world}", step)
dist.destroy_process_group()
