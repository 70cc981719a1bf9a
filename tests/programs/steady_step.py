"""Reports what a training program cost: peaks of device memory, and what one steady step asked of the device.

Every program of this folder is an ordinary CUDA program that hands its step to this module:

    run_steps("mlp-fused", step)      # step(n) trains on the n-th batch

Each rank prints one line for machines when its unprofiled steps are done,

    RESULT {"program": "mlp-fused", "rank": 0, "world": 1, "max_memory_allocated": 211956736, ...}

and, when PROGRAM_OUTPUT names a directory, runs one more step under torch.profiler and writes what happened there to
`<program>.rank<n>.json` in it: `result` (the line above), `device_events` (kernels, copies and fills in the order of
their start, each [stream, name, grid, block] or [stream, name, bytes], streams and names by number into `streams` and
`names`), `communications` (as torch.distributed issued them: operation, element type and counts, group size) and
`memory_events` (every allocation from the first step to the report, which is what explains a difference between peaks).
Programs that own their loop (transformers' Trainer, Lightning) use SteadyStep from their callbacks instead.
"""

import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

SCHEMA = 1

# What explains a difference between two peaks: which requests were made, how many, and whether the allocator retried.
STATISTICS = {
    "peak_requested": "requested_bytes.all.peak",
    "allocations": "allocation.all.allocated",
    "bytes_allocated": "allocated_bytes.all.allocated",
    "segments": "segment.all.allocated",
    "retries": "num_alloc_retries",
}


# What is kept of torch's record of a communication, under which name.
COMMUNICATION = {
    "operation": "Collective name",
    "type": "dtype",
    "in": "In msg nelems",
    "out": "Out msg nelems",
    "in_split": "In split size",
    "out_split": "Out split size",
    "group": "Process Group Ranks",
    "group_size": "Group size",
    "source": "Src Rank",
    "destination": "Dst Rank",
}


class SteadyStep:
    """Used from one thread. Call mark() after each step, report() after the last, then profile() around one more."""

    def __init__(self, program: str) -> None:
        self.program = program
        self.rank = int(os.environ.get("RANK", "0"))
        self.world = int(os.environ.get("WORLD_SIZE", "1"))
        self.allocated_by_step: list[int] = []
        self.result: dict = {}
        self.memory_events: list[list] = []
        self.output = os.environ.get("PROGRAM_OUTPUT")
        if self.output is not None:
            torch.cuda.memory._record_memory_history(context=None, max_entries=1_000_000)

    def mark(self) -> None:
        self.allocated_by_step.append(torch.cuda.max_memory_allocated())

    def report(self, **more: object) -> None:
        torch.cuda.synchronize()
        self.memory_events = [] if self.output is None else memory_events()
        statistics = torch.cuda.memory_stats()
        free, total = torch.cuda.mem_get_info()
        self.result = {
            "program": self.program,
            "rank": self.rank,
            "world": self.world,
            "steps": len(self.allocated_by_step),
            "max_memory_allocated": torch.cuda.max_memory_allocated(),
            "max_memory_reserved": torch.cuda.max_memory_reserved(),
            **{name: statistics[key] for name, key in STATISTICS.items()},
            "device_bytes_used": total - free,
            "allocated_by_step": self.allocated_by_step,
            **more,
        }
        # In one write, so that the lines of several ranks do not mix.
        os.write(1, f"RESULT {json.dumps(self.result)}\n".encode())
        self._write({})

    @contextlib.contextmanager
    def profile(self) -> Iterator[None]:
        """Profiles the step run inside it, if an output directory is set."""
        if self.output is None:
            yield
            return
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True) as profiler:
            yield
            torch.cuda.synchronize()
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory, "trace.json")
            profiler.export_chrome_trace(str(path))
            trace = json.loads(path.read_text())
        self._write(compact(trace["traceEvents"]))

    def _write(self, steady: dict) -> None:
        if self.output is None:
            return
        record = {
            "schema": SCHEMA,
            "result": self.result,
            "torch": torch.__version__,
            "device": torch.cuda.get_device_name(),
            "memory_events": self.memory_events,
            **steady,
        }
        file = Path(self.output, f"{self.program}.rank{self.rank}.json")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(record, separators=(",", ":")))


def run_steps(program: str, step: Callable[[int], object], steps: int = 4, **more: object) -> None:
    """Runs `steps` steps, reports, and profiles one more if asked to. `more` is added to the RESULT line."""
    steady = SteadyStep(program)
    for number in range(steps):
        step(number)
        steady.mark()
    steady.report(**more)
    with steady.profile():
        step(steps)


def memory_events() -> list[list]:
    """Returns what torch's allocator did since the first step, each [what, bytes, stream], in order: `a` allocated,
    `f` freed, `s` took a segment from the device, `r` gave one back. Streams are numbered as they appear."""
    kinds = {"alloc": "a", "free_completed": "f", "segment_alloc": "s", "segment_free": "r", "oom": "oom"}
    traces = torch.cuda.memory._snapshot()["device_traces"]
    streams: dict[int, int] = {}
    return [
        [kinds[event["action"]], event["size"], streams.setdefault(event["stream"], len(streams))]
        for trace in traces  # only this rank's device has one that is not empty
        for event in trace
        if event["action"] in kinds
    ]


def compact(events: list[dict]) -> dict:
    """Reduces a Chrome trace of torch.profiler to what can be compared between devices: order and sizes, no times."""
    complete = sorted((event for event in events if event.get("ph") == "X"), key=lambda event: float(event["ts"]))
    names: dict[str, int] = {}
    streams: dict[int, int] = {}
    device_events, communications = [], []
    for event in complete:
        category, arguments = event.get("cat"), event.get("args", {})
        if category in ("kernel", "gpu_memcpy", "gpu_memset"):
            stream = streams.setdefault(arguments["stream"], len(streams))
            name = names.setdefault(event["name"], len(names))
            if category == "kernel":
                device_events.append([stream, name, arguments["grid"], arguments["block"]])
            else:
                device_events.append([stream, name, arguments["bytes"]])
        elif event["name"] == "record_param_comms":
            communications.append({key: arguments[name] for key, name in COMMUNICATION.items() if name in arguments})
    return {
        "streams": list(streams),
        "names": list(names),
        "device_events": device_events,
        "communications": communications,
    }
