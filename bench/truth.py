#!/usr/bin/env python3
"""Whether true runs of many ranks on the virtual clock repeat to the nanosecond, and what they cost the machine.

    bench/truth.py --output bench/results/truth.json            # 16, 64, 256, 512 processes, twice each
    bench/truth.py --world 16 --runs 3

Each run is `hostcuda run --clock virtual -- moe_trainer --timed --launch N`, all kinds of parallelism together, with jitter, a
straggler and uneven experts. Compared is all that the job prints and writes (the times of the steps, of each rank a checksum of when
each of its steps ended on the clock, its peak of device memory), and of each rank a hash of when each operation of its streams ended
(HOSTCUDA_TIMES_DIGEST): the steps alone hide most of what differs within them. What goes to stderr is hostcuda's, about wall time.
Memory is the sum of the processes' PSS, looked at twice a second or less often where looking takes longer; the machine's other work
is in the wall time. One run alone says nothing of whether runs repeat.
Exit code: 0, 1 if a run failed, 3 if runs differ.
"""

import argparse
import contextlib
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from provenance import ROOT, provenance
from torchrun import last_error, progress

SCHEMA = 1
MODEL = {"hidden": 4096, "heads": 32, "expert-hidden": 1536, "experts": 64, "top-k": 4, "sequence": 4096, "micro-batches": 8,
         "jitter": 0.05, "imbalance": 0.5, "straggler": "1:1.2"}  # fmt: skip
LAYOUTS = {
    16: {"dp": 2, "tp": 2, "pp": 4, "ep": 4, "interleave": 2, "layers": 16},
    64: {"dp": 8, "tp": 2, "pp": 4, "ep": 8, "interleave": 2, "layers": 16},
    256: {"dp": 16, "tp": 4, "pp": 4, "ep": 16, "layers": 8},
    512: {"dp": 16, "tp": 4, "pp": 8, "ep": 16, "layers": 8},
}


class ProcessMemory:
    """The sum of the PSS of a session's processes while they run, at its peak."""

    def __init__(self, session: int) -> None:
        self.session, self.peak, self.looks = session, 0, 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _pss(self, process: Path) -> int:
        with contextlib.suppress(OSError, IndexError, ValueError):
            if int((process / "stat").read_text().rpartition(")")[2].split()[3]) != self.session:
                return 0
            found = re.search(r"^Pss:\s+(\d+) kB", (process / "smaps_rollup").read_text(), re.M)
            return int(found[1]) * 1024 if found else 0
        return 0

    def _watch(self) -> None:
        looked = 0.0
        while not self._done.wait(max(0.5, 9 * looked)):  # at most a tenth of the time is for looking
            start = time.monotonic()
            self.peak = max(self.peak, sum(self._pss(process) for process in Path("/proc").glob("[0-9]*")))
            self.looks += 1
            looked = time.monotonic() - start

    def end(self) -> int:
        self._done.set()
        self._thread.join()
        return self.peak


def run(options: argparse.Namespace, world: int) -> dict:
    """Runs the trainer once; returns its hash, seconds and memory."""
    sizes = LAYOUTS[world] | MODEL | {"steps": options.steps}
    with tempfile.TemporaryDirectory(prefix="truth-") as scratch:
        result, digests = Path(scratch, "result.json"), Path(scratch, "digests")
        command = [options.build / "hostcuda/bin/hostcuda", "run", "--clock", "virtual", "--", options.build / "examples/moe_trainer", "--timed",
                   "--launch", world, "--json", result, *(word for name, value in sizes.items() for word in (f"--{name}", value))]  # fmt: skip
        start = time.monotonic()
        process = subprocess.Popen(
            [str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
            env=os.environ
            | {"HOSTCUDA_TIMES_DIGEST": str(digests), "HOSTCUDA_MEMORY_LIMIT": "0"},  # of a device, which ranks of several nodes have in common
        )  # fmt: skip
        memory = ProcessMemory(process.pid)
        try:
            text, errors = process.communicate(timeout=options.timeout)
        except subprocess.TimeoutExpired:
            errors = f"did not end within {options.timeout:.0f} s"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            peak = memory.end()
        if process.returncode:
            sys.exit(f"{' '.join(map(str, command))} failed: {last_error(errors)}")
        written = result.read_text()
        of_ranks = {int(rank): (int(count), digest) for rank, count, digest in map(str.split, digests.read_text().splitlines())}
    if sorted(of_ranks) != list(range(world)):
        sys.exit(f"{' '.join(map(str, command))}: of {world} ranks {len(of_ranks)} told when their operations ended")
    steps = json.loads(written)["steps"]
    return {
        "sha256": hashlib.sha256((text + written + repr(sorted(of_ranks.items()))).encode()).hexdigest(),
        "operations": sum(count for count, _ in of_ranks.values()),
        "step_ms": [step["milliseconds"] for step in steps],
        "times": sorted(set(re.findall(r"times (0x[0-9a-f]+)", text))),
        "seconds": round(time.monotonic() - start, 1),
        "pss_peak_bytes": peak,
        "looks_at_memory": memory.looks,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--world", nargs="+", type=int, choices=LAYOUTS, default=list(LAYOUTS), metavar="N")
    parser.add_argument("--runs", type=int, default=2, help="of each number of processes; at least 2 to compare")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--build", type=Path, default=ROOT / "build/ci", metavar="DIR")
    parser.add_argument("--timeout", type=float, default=900, metavar="S", help="seconds a run may take")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the JSON here, e.g. bench/results/truth.json")
    options = parser.parse_args()
    rows, load, origin = [], os.getloadavg()[0], provenance()
    for world in options.world:
        runs = [run(options, world) for _ in range(options.runs)]
        repeats = len({one["sha256"] for one in runs}) == 1 if len(runs) > 1 else None
        rows.append({"world": world, **LAYOUTS[world], "repeats": repeats, "runs": runs})
        verdict = {True: "identical", False: "RUNS DIFFER", None: "one run, nothing to compare it with"}[repeats]
        progress(
            f"{world} processes: {verdict}, {runs[0]['operations']:,} operations, steps of {', '.join(f'{ms:.6f}' for ms in runs[0]['step_ms'])} ms, "
            f"{', '.join(str(one['seconds']) for one in runs)} s, PSS at most {max(one['pss_peak_bytes'] for one in runs) / 1e9:.2f} GB"
        )
    result = {"schema": SCHEMA, "benchmark": "truth", **origin, "load_average_before": round(load, 2), "steps": options.steps, "model": MODEL,
              "results": rows}  # fmt: skip
    if options.output:
        options.output.write_text(json.dumps(result, indent=1) + "\n")
    return 3 if any(row["repeats"] is False for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
