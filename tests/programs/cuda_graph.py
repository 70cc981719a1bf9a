"""A whole training step captured into a CUDA graph and replayed."""

import torch
from torch import nn

from steady_step import run_steps

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), fused=True, capturable=True)
x = torch.randn(64, 512, device="cuda")


def train() -> None:
    optimizer.zero_grad(set_to_none=True)
    model(x).pow(2).mean().backward()
    optimizer.step()


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        train()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    train()


def step(number: int) -> None:
    x.copy_(torch.randn(64, 512))
    graph.replay()


run_steps("cuda-graph", step)
