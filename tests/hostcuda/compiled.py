"""torch.compile with Triton kernels, and CUDA graphs; prints the kernels that torch.profiler saw."""

import json

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

model = nn.Sequential(nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 512)).cuda()
x = torch.ones(32, 512, device="cuda")


def kernels(function):
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        function()
        torch.cuda.synchronize()
    return {e.key: e.count for e in profiler.key_averages() if e.device_type == torch.autograd.DeviceType.CUDA}


compiled = torch.compile(model)
compiled(x).sum().backward()
print(json.dumps({"what": "compiled", "kernels": kernels(lambda: compiled(x).sum().backward())}), flush=True)

side = torch.cuda.Stream()
with torch.cuda.stream(side):
    for _ in range(3):
        model(x).sum().backward()
torch.cuda.synchronize()
eager = kernels(lambda: model(x).sum().backward())
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    model(x).sum().backward()
print(json.dumps({"what": "eager", "kernels": eager}), flush=True)
print(json.dumps({"what": "graph", "kernels": kernels(lambda: [graph.replay() for _ in range(3)])}), flush=True)
