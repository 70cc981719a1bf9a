"""A transformer encoder under DistributedDataParallel and autocast."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from steady_step import run_steps

rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
torch.manual_seed(0)
encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True), 6)
model = DistributedDataParallel(encoder.cuda(), device_ids=[rank])
optimizer = torch.optim.AdamW(model.parameters(), fused=True)


def step(number: int) -> None:
    x = torch.randn(8, 256, 512, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(x).float().pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


run_steps(f"ddp-{dist.get_world_size()}", step)
dist.destroy_process_group()
