"""Profiles one training step of a two-layer perceptron with torch.profiler; prints the trace's device records as JSON lines.

argv[1]: foreach, fused, or scaler (fp16 with a gradient scaler)."""

import json
import sys
import tempfile

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

mode = sys.argv[1]
model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), fused=mode == "fused", foreach=mode == "foreach")
scaler = torch.amp.GradScaler("cuda", enabled=mode == "scaler")


def step():
    x = torch.randn(256, 1024, device="cuda")
    with torch.autocast("cuda", dtype=torch.float16 if mode == "scaler" else torch.bfloat16):
        loss = (model(x) - x).pow(2).mean()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)


for _ in range(3):
    step()
with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
    with torch.profiler.record_function("the step"):
        step()
        torch.cuda.synchronize()
with tempfile.NamedTemporaryFile(suffix=".json") as trace:
    profiler.export_chrome_trace(trace.name)
    events = json.load(open(trace.name))["traceEvents"]
for event in events:
    if event.get("ph") == "X" and event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver", "cpu_op", "user_annotation"):
        print(json.dumps({k: event.get(k) for k in ("cat", "name", "ts", "dur", "tid", "args")}))
