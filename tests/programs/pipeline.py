"""A transformer encoder cut into one stage a rank, under the 1F1B schedule; the stages find out their shapes themselves."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from steady_step import run_steps

rank = int(os.environ["LOCAL_RANK"])
device = torch.device("cuda", rank)
torch.cuda.set_device(device)
dist.init_process_group("nccl", device_id=device)
world = dist.get_world_size()
torch.manual_seed(rank)
layers = nn.Sequential(*[nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True) for _ in range(2)]).to(device)
stage = PipelineStage(layers, rank, world, device)
schedule = Schedule1F1B(stage, n_microbatches=8, loss_fn=lambda output, target: (output - target).pow(2).mean())
optimizer = torch.optim.AdamW(layers.parameters(), fused=True)
x = torch.randn(16, 128, 512, device=device)


def step(number: int) -> None:
    if rank == 0:
        schedule.step(x)
    elif rank == world - 1:
        schedule.step(target=x, losses=[])
    else:
        schedule.step()
    optimizer.step()
    optimizer.zero_grad()


run_steps(f"pipeline-{world}", step)
dist.destroy_process_group()
