"""A user's own torch.profiler session, with a schedule; reports how many records of each kind it saw."""

import collections
import json
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule

from steady_step import SteadyStep

torch.manual_seed(0)
encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True), 2).cuda()
optimizer = torch.optim.AdamW(encoder.parameters(), fused=True)


def step() -> None:
    x = torch.randn(8, 256, 512, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = encoder(x).float().pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


steady = SteadyStep("profiled")
with tempfile.TemporaryDirectory() as directory:
    trace = Path(directory, "trace.json")
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with profile(
        activities=activities,
        schedule=schedule(wait=1, warmup=1, active=2),
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(trace)),
    ) as profiler:
        for _ in range(4):
            step()
            torch.cuda.synchronize()
            profiler.step()
            steady.mark()
    events = json.loads(trace.read_text())["traceEvents"]
kinds = collections.Counter(event.get("cat") for event in events if event.get("ph") == "X")
records = {kind: kinds[kind] for kind in ("kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver")}
assert records["kernel"] > 0, "torch.profiler saw no kernel: the device reports no activity"
steady.report(records=records)
