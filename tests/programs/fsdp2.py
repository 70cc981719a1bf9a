"""A transformer encoder under fully_shard, made on the meta device, in bf16 with fp32 shards and clipped gradients."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from steady_step import run_steps

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
world = dist.get_world_size()
mesh = init_device_mesh("cuda", (world,))
with torch.device("meta"):
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True), 8)
precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for layer in encoder.layers:
    fully_shard(layer, mesh=mesh, mp_policy=precision)
fully_shard(encoder, mesh=mesh)
encoder.to_empty(device="cuda")
for parameter in encoder.parameters():
    nn.init.normal_(parameter, std=0.02)
optimizer = torch.optim.AdamW(encoder.parameters(), fused=True)


def step(number: int) -> None:
    x = torch.randn(4, 512, 1024, device="cuda", dtype=torch.bfloat16)
    loss = encoder(x).float().pow(2).mean()
    loss.backward()
    nn.utils.clip_grad_norm_(encoder.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


run_steps(f"fsdp2-{world}", step)
dist.destroy_process_group()
