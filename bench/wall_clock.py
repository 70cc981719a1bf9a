#!/usr/bin/env python3
"""Holds times of the virtual clock, and prism's predictions on it, against this machine's own clock.

    bench/wall_clock.py --out .out/wall --output bench/results/wall_clock.json     # a few minutes, 2 cores are enough
    bench/wall_clock.py --out .out/wall --no-prediction

An error of the virtual clock could hide in truth and prediction alike. So a job of 8 ranks (tensor, data and expert parallel, a
pipeline; a straggler, uneven experts) runs on HOSTCUDA_CLOCK=wall too: each rank's streams sleep for as long as their kernels
and communications take, side by side, and nobody looks whether others are blocked. Kernels take at least 50 ms, so what this
machine adds (tens of microseconds a wake-up) is small; links are slow in proportion. Where the system lets it, the job runs with
real-time priority (SCHED_FIFO; it sleeps nearly all the time), so that other work does not delay its wake-ups: beside a load of 9
a step is 2.6 % longer without, 0.1 % with it.

| a step on the wall clock, by | how                                                                            |
|------------------------------|--------------------------------------------------------------------------------|
| events                       | between two CUDA events of rank 0, as on the virtual clock                     |
| arrival                      | between the lines that rank 0 prints, by this script's clock                   |

The bar: both, summed over the steps after the first, within 2 % of the virtual clock's, and of what simulate and emulate predict
from ranks that run alone. Exit code: 0, 1 if a run failed, 3 if the bar was missed.
"""

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

from host_accuracy import WARM_UP, Case, Runner, predict_case, printed_steps, write_tables
from provenance import ROOT, provenance
from torchrun import RunFailed, progress

SCHEMA = 1
BAR = 0.02
SLOWER = 25_000  # kernels than on an H200; the shortest has 2 us there
LINKS = {"schema": 1, "gpus_per_node": 8, "base_ns": 5e6, "port": {"latency_ns": 1e6, "bytes_per_s": 1e7}}
JOB = {"dp": 2, "tp": 2, "pp": 2, "ep": 4, "layers": 4, "micro-batches": 2, "hidden": 256, "heads": 8, "experts": 8, "expert-hidden": 256,
       "top-k": 2, "sequence": 128, "vocabulary": 512, "bucket-mib": 1, "straggler": "5:1.2", "imbalance": 0.5, "kernel-scale": SLOWER}  # fmt: skip
CASE = Case("wall", 8, 1, {name: str(value) for name, value in JOB.items()}, LINKS, 0, 0)


def with_priority() -> None:
    """In the child: its threads and processes run before all others as soon as they wake."""
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))


def timed_run(runner: Runner, clock: str, links: Path, steps: int) -> tuple[list[float], list[float]]:
    """Returns each step's nanoseconds as rank 0 says, and those between the lines that say so."""
    command = [runner.hostcuda, "run", "--clock", clock, "--links", links, "--", runner.trainer, "--launch", CASE.world, *CASE.flags(steps)]
    session = {"HOSTCUDA_SESSION": f"wall-{uuid.uuid4().hex[:12]}"}
    text, arrivals = "", []
    with subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          env=os.environ | session, preexec_fn=with_priority if clock == "wall" else None, start_new_session=True) as process:  # fmt: skip
        end = threading.Timer(runner.options.timeout, os.killpg, (process.pid, signal.SIGKILL))
        end.start()
        for line in process.stdout:
            text += line
            if re.match(r"step \d+ ", line):
                arrivals.append(time.monotonic_ns())
        end.cancel()
    if process.returncode:
        raise RunFailed(f"{' '.join(map(str, command))}: code {process.returncode}: {text[-2000:]}")
    return printed_steps(text), [b - a for a, b in zip(arrivals, arrivals[1:])]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=lambda path: Path(path).absolute(), required=True, metavar="DIR", help="for jobs; goes on where it stopped")
    parser.add_argument("--build", type=lambda path: Path(path).absolute(), default=ROOT / "build/ci", metavar="DIR")
    parser.add_argument("--python", type=Path, default=Path(sys.executable), metavar="FILE", help="has torch")
    parser.add_argument("--steps", type=int, default=WARM_UP + 2)
    parser.add_argument("--no-prediction", action="store_true", help="hold the wall clock against the virtual one alone")
    parser.add_argument("--timeout", type=float, default=600, metavar="S", help="of a run")
    parser.add_argument("--sizes", default="4B:1MiB:4", metavar="MIN:MAX:FACTOR", help="that netprofile measures")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the JSON here, e.g. bench/results/wall_clock.json")
    options = parser.parse_args()
    if options.steps < WARM_UP + 2:
        parser.error(f"--steps {options.steps}: predictions take at least {WARM_UP + 2}")
    runner, folder = Runner(options), options.out / CASE.name
    folder.mkdir(parents=True, exist_ok=True)
    links, _ = write_tables(CASE, folder, "truth", 1)
    load = os.getloadavg()[0]
    try:
        clocks = {"virtual": timed_run(runner, "virtual", links, options.steps)[0]}
        progress(f"virtual clock: steps of {', '.join(f'{ns / 1e6:.6f}' for ns in clocks['virtual'])} ms")
        clocks |= {} if options.no_prediction else {by: found["steps_ns"] for by, found in predict_case(runner, CASE, options.steps).items()}
        wall = dict(zip(("events", "arrival"), timed_run(runner, "wall", links, options.steps)))
    except RunFailed as failure:
        progress(str(failure))
        return 1
    wall["events"] = wall["events"][1:]  # between the first and the last line
    differences = {
        f"{by} against {clock}": sum(measured) / sum(steps[1:]) - 1 for clock, steps in clocks.items() for by, measured in wall.items()
    }
    for name, difference in differences.items():
        progress(f"{name}: {difference:+.3%}" + ("" if abs(difference) <= BAR else ": MISSED"))
    result = {"schema": SCHEMA, "benchmark": "wall_clock", **provenance(), "load_average_before": round(load, 2), "bar": BAR, "job": JOB,
              "links": LINKS, "steps_ns": clocks, "wall_steps_ns": wall, "differences": differences}  # fmt: skip
    if options.output:
        options.output.write_text(json.dumps(result, indent=1) + "\n")
    return 0 if max(map(abs, differences.values())) <= BAR else 3


if __name__ == "__main__":
    sys.exit(main())
