"""A transformer encoder whose layers' activations are recomputed in the backward pass, with dropout."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from steady_step import run_steps

torch.manual_seed(0)
layers = nn.ModuleList([nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.1, batch_first=True) for _ in range(6)]).cuda()
optimizer = torch.optim.AdamW(layers.parameters(), fused=True)


def step(number: int) -> None:
    x = torch.randn(8, 256, 512, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        for layer in layers:
            x = checkpoint(layer, x, use_reentrant=False)
        loss = x.float().pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


run_steps("recompute", step)
