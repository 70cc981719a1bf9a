"""A two-layer perceptron under AdamW: multi-tensor (foreach) or fused, or in fp16 with a gradient scaler."""

import sys

import torch
from torch import nn

from steady_step import run_steps

mode = sys.argv[1]
assert mode in ("foreach", "fused", "scaler"), f"unknown mode {mode}: give foreach, fused or scaler"

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), foreach=mode != "fused", fused=mode == "fused")
scaler = torch.amp.GradScaler("cuda", enabled=mode == "scaler")
compute_type = torch.float16 if mode == "scaler" else torch.bfloat16


def step(number: int) -> None:
    x = torch.randn(256, 1024, device="cuda")
    with torch.autocast("cuda", dtype=compute_type):
        loss = (model(x) - x).pow(2).mean()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)


run_steps(f"mlp-{mode}", step)
