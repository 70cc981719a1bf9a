#!/usr/bin/env python3
"""Measures what a job costs the machine that hosts it: memory of a rank, time and memory of many, bytes of trace.

    bench/cost.py                                        # everything; 128 ranks need 8 GB
    bench/cost.py --only torchrun trace
    bench/cost.py --only many --preset 8b                # 128 ranks of an 8B model
    bench/cost.py --output bench/results/cost.json

| figure   | how                                                                                           | bar             |
|----------|-----------------------------------------------------------------------------------------------|-----------------|
| torchrun | PSS of each rank of `torchrun --nproc-per-node 4` on hostcuda and hostnccl, without prism     | <= 0.5 GB       |
| many     | `prism capture --values none` of 128 FSDP2 ranks on h200x8:16: PSS of each rank, wall time,   | <= 60 MB a rank |
|          | the host memory that the job took at most                                                     |                 |
| trace    | bytes of trace a node of a run of 100 steps on 4 ranks                                        | <= 16           |

PSS is read by every rank from /proc/self/smaps_rollup while all are held at a barrier after their training steps
(bench/programs/memory_at_barrier.py). The job's memory is what MemAvailable fell by, twice a second: other work on the machine is in
it, so the load average is recorded. A job that leaves less than 3 GiB available is ended. Exit code: 0, or 1 if a run failed, or 3 if
a bar was missed.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from provenance import ROOT, provenance
from torchrun import last_error, progress, torchrun

SCHEMA = 1
PROGRAM = ROOT / "bench/programs/memory_at_barrier.py"
BARS = {"torchrun": 0.5e9, "many": 60e6, "trace": 16.0}
LEAST_AVAILABLE = 3 * 2**30


class CostFailed(Exception):
    """A run exited non-zero, took too long or too much memory, or wrote too little."""


class HostMemory:
    """Watches what the machine has left while a process runs, and ends its group before the kernel ends others."""

    def __init__(self, process: subprocess.Popen) -> None:
        self.process = process
        self.first = self.least = self.available()
        self.exhausted = False
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    @staticmethod
    def available() -> int:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
        raise RuntimeError("/proc/meminfo has no MemAvailable")

    def _watch(self) -> None:
        while not self._done.wait(0.5):
            self.least = min(self.least, self.available())
            if self.least < LEAST_AVAILABLE and not self.exhausted:
                self.exhausted = True
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.process.pid, signal.SIGTERM)

    def end(self) -> int:
        """Returns the most bytes that were taken."""
        self._done.set()
        self._thread.join()
        return self.first - self.least


def run(command: list, environment: dict[str, str], timeout: float) -> tuple[float, int]:
    """Runs a command to its end; returns its seconds and the host memory that it took at most."""
    start = time.monotonic()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            [str(word) for word in command],
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=os.environ | environment,
            start_new_session=True,
        )
        memory = HostMemory(process)
        try:
            code = process.wait(timeout)
            reason = f"exit code {code}" if code else None
        except subprocess.TimeoutExpired:
            reason = f"did not end within {timeout:.0f} s"
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
            taken = memory.end()
        seconds = time.monotonic() - start
        if memory.exhausted:
            reason = f"less than {LEAST_AVAILABLE / 2**30:.0f} GiB of memory were left"
        if reason:
            output.seek(0)
            raise CostFailed(f"{reason}: {last_error(output.read().decode(errors='replace'))}")
    return seconds, taken


def memory_of_ranks(directory: Path, world: int) -> dict:
    """Reads what the ranks of memory_at_barrier.py wrote."""
    ranks = [json.loads(file.read_text()) for file in sorted(directory.glob("rank-*.json"))]
    if len(ranks) != world:
        raise CostFailed(f"{len(ranks)} of {world} ranks wrote what memory they take")
    pss = [rank["Pss"] for rank in ranks]
    return {
        "ranks": world,
        "pss_bytes": {"least": min(pss), "median": int(statistics.median(pss)), "most": max(pss), "sum": sum(pss)},
        "private_bytes_median": int(statistics.median(r["Private_Clean"] + r["Private_Dirty"] for r in ranks)),
        "rank_0_private_by_mapping": ranks[0]["private_by_mapping"],
    }


class Cost:
    """Runs one figure after the other in a scratch directory."""

    def __init__(self, options: argparse.Namespace, scratch: Path) -> None:
        self.options, self.scratch = options, scratch

    def _training(self, *more: object) -> list:
        return ["--parallel", "fsdp2", "--preset", self.options.preset, "--dtype", "bf16", *more]

    def _held(self, name: str) -> tuple[Path, dict[str, str]]:
        directory = self.scratch / name
        directory.mkdir()
        return directory, {"COST_OUTPUT": str(directory), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "examples")}

    def _capture(self, job: Path, target: str, *command: object) -> list:
        return [self.options.prism, "capture", "--device", "host", "--values", "none", "--target", target, "--job", job, "--", *command]

    def torchrun(self) -> dict:
        world = self.options.torchrun_ranks
        directory, environment = self._held("torchrun")
        environment |= {"HOSTCUDA_VALUES": "none"}
        command = [*torchrun(self.options.python, world), PROGRAM, *self._training("--steps", 3)]
        seconds, _ = run(command, environment, self.options.timeout)
        row = memory_of_ranks(directory, world) | {"seconds": round(seconds, 1)}
        return row | {"figure": row["pss_bytes"]["most"]}

    def many(self) -> dict:
        world = self.options.world
        nodes, per_node = (1, world) if world <= 8 else (world // 8, 8)
        directory, environment = self._held("many")
        job = self.scratch / "many-job"
        launcher = ["torchrun", f"--nnodes={nodes}", f"--nproc-per-node={per_node}"]
        command = self._capture(job, f"h200x{per_node}:{nodes}", *launcher, PROGRAM, *self._training("--steps", 3))
        seconds, taken = run(command, environment, self.options.timeout)
        row = memory_of_ranks(directory, world)
        row |= {"seconds": round(seconds, 1), "host_memory_bytes": taken, **self._trace(job)}
        return row | {"figure": row["pss_bytes"]["most"]}

    def trace(self) -> dict:
        job = self.scratch / "trace-job"
        program = [ROOT / "examples/train_gpt.py", *self._training("--steps", self.options.steps)]
        seconds, _ = run(self._capture(job, "h200x4", "torchrun", "--nproc-per-node=4", *program), {}, self.options.timeout)
        row = {"ranks": 4, "steps": self.options.steps, "seconds": round(seconds, 1), **self._trace(job)}
        return row | {"figure": row["bytes_a_node"]}

    def _trace(self, job: Path) -> dict:
        shown = subprocess.run([self.options.prism, "inspect", "--json", job], capture_output=True, text=True, check=True)
        ranks = json.loads(shown.stdout)["ranks"]
        nodes, size = sum(rank["nodes"] for rank in ranks), sum(rank["bytes"] for rank in ranks)
        return {"nodes": nodes, "trace_bytes": size, "bytes_a_node": round(size / nodes, 2)}


def shown(name: str, row: dict) -> str:
    if "failed" in row:
        return f"{name:<9} FAILED: {row['failed']}"
    verdict = "ok" if row["figure"] <= BARS[name] else "MISSED"
    parts = []
    if "pss_bytes" in row:
        parts.append(f"{row['ranks']} ranks of {row['pss_bytes']['median'] / 1e6:.1f} MB PSS (most {row['pss_bytes']['most'] / 1e6:.1f})")
    if "host_memory_bytes" in row:
        parts.append(f"{row['host_memory_bytes'] / 1e9:.1f} GB of host memory")
    if "bytes_a_node" in row:
        parts.append(f"{row['bytes_a_node']:.2f} bytes a node of {row['nodes']}")
    return f"{name:<9} {', '.join(parts)}, {row['seconds']:.0f} s: {verdict}"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=BARS, default=list(BARS))
    parser.add_argument("--world", type=int, default=128, metavar="N", help="ranks of the large job")
    parser.add_argument("--torchrun-ranks", type=int, default=4, metavar="N")
    parser.add_argument("--preset", default="tiny", help="of train_gpt.py (default: tiny)")
    parser.add_argument("--steps", type=int, default=100, help="of the run whose trace is measured")
    parser.add_argument("--python", type=Path, default=ROOT / ".env/bin/python", metavar="FILE")
    parser.add_argument("--prism", type=Path, default=ROOT / "build/ci/bin/prism", metavar="FILE")
    parser.add_argument("--timeout", type=float, default=600, metavar="S", help="seconds a run may take (default: 600)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the JSON here, e.g. bench/results/cost.json")
    options = parser.parse_args()
    for name, file in (("python", options.python), ("prism", options.prism)):
        if not file.exists():
            parser.error(f"--{name} {file} does not exist: run `make build`, or say where it is")
    if options.world > 8 and options.world % 8:
        parser.error(f"--world {options.world}: nodes have 8 GPUs")
    return options


def main() -> int:
    options = parse_arguments()
    # The zygote is the interpreter that comes first on PATH.
    os.environ["PATH"] = f"{options.python.absolute().parent}:{os.environ['PATH']}"
    rows: dict[str, dict] = {}
    load = os.getloadavg()[0]
    scratch = Path(tempfile.mkdtemp(prefix="prism-cost-"))
    try:
        cost = Cost(options, scratch)
        for name in options.only:
            try:
                rows[name] = getattr(cost, name)() | {"bar": BARS[name]}
            except CostFailed as failure:
                rows[name] = {"failed": str(failure), "bar": BARS[name]}
            progress(shown(name, rows[name]))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    result = {"schema": SCHEMA, "benchmark": "cost", **provenance(), "load_average_before": round(load, 2), "preset": options.preset, "figures": rows}
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(result, indent=1) + "\n")
    if options.json:
        print(json.dumps(result, indent=1))
    else:
        print("\n".join(shown(name, row) for name, row in rows.items()))
    if any("failed" in row for row in rows.values()):
        return 1
    return 3 if any(row["figure"] > row["bar"] for row in rows.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
