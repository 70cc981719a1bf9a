"""A perceptron with a layer norm through torch.compile, forward and backward."""

import torch
from torch import nn

from steady_step import run_steps

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.LayerNorm(2048), nn.Linear(2048, 512)).cuda()
compiled = torch.compile(model)
optimizer = torch.optim.AdamW(model.parameters(), fused=True)


def step(number: int) -> None:
    x = torch.randn(64, 512, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = compiled(x).float().pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


run_steps("compiled", step)
