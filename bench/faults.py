#!/usr/bin/env python3
"""Measures how long a broken job takes to say what broke it: from the mistake to the line that names it.

    bench/faults.py                                       # every fault of examples/faults.py, 4 ranks
    bench/faults.py --fault count kill --ranks 8 --repeats 5 --output bench/results/faults.json

The mistake is when rank 1 of examples/faults.py announces it, the diagnosis is prism's line on stderr; the job's end is
when `prism capture` has ended all ranks. On a GPU most of these faults hang until a timeout, ten minutes by default.
Bar: every diagnosis names the rank within 5 s of the mistake. Exit code: 0, 1 if a run failed, 3 if the bar was missed.
"""

import argparse
import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from provenance import ROOT, provenance
from torchrun import progress

FAULTS = ("count", "type", "root", "op", "missing", "exit", "raise", "kill")
BAR_S = 5.0
SCHEMA = 1


def measure(fault: str, options: argparse.Namespace) -> dict:
    """Runs one job; returns the seconds from the mistake to the diagnosis and to the end, and the diagnosis."""
    with tempfile.TemporaryDirectory() as directory:
        command = [options.prism, "capture", "--tee", "all", "--job", f"{directory}/job", "--", options.python, "-m"]
        command += ["torch.distributed.run", f"--nproc-per-node={options.ranks}", ROOT / "examples/faults.py", "--fault", fault]
        process = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        seen: dict[str, float] = {}
        said: list[str] = []

        def watch(stream, name: str, pattern: str) -> None:
            for line in stream:
                if re.search(pattern, line) and name not in seen:
                    seen[name] = time.monotonic()
                    said.append(line.strip())

        # In a diagnosis the odd rank comes with what it did, unlike in a line about progress.
        watchers = [
            threading.Thread(target=watch, args=(process.stdout, "mistake", r"rank 1 makes the mistake")),
            threading.Thread(target=watch, args=(process.stderr, "diagnosis", r"rank 1 (disagrees|exited|was killed|did not come)")),
        ]
        for watcher in watchers:
            watcher.start()
        try:
            code = process.wait(options.timeout)
        except subprocess.TimeoutExpired:
            process.terminate()
            try:
                code = process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                code = process.wait()
        end = time.monotonic()
        for watcher in watchers:
            watcher.join()
    if set(seen) != {"mistake", "diagnosis"} or code == 0:
        return {"failed": f"exit code {code}, seen: {', '.join(seen) or 'nothing'}"}
    return {
        "diagnosis_s": round(seen["diagnosis"] - seen["mistake"], 3),
        "end_s": round(end - seen["mistake"], 3),
        "exit_code": code,
        "said": said[-1],
    }


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fault", nargs="+", choices=FAULTS, default=list(FAULTS))
    parser.add_argument("--ranks", type=int, default=4, metavar="N")
    parser.add_argument("--repeats", type=int, default=3, metavar="N")
    parser.add_argument("--timeout", type=float, default=120, metavar="S", help="seconds a job may take (default: 120)")
    parser.add_argument("--python", type=Path, default=ROOT / ".env/bin/python", metavar="FILE")
    parser.add_argument("--prism", type=Path, default=ROOT / "build/ci/bin/prism", metavar="FILE")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write JSON here, e.g. bench/results/faults.json")
    options = parser.parse_args()
    for name, file in (("python", options.python), ("prism", options.prism)):
        if not shutil.which(file):
            parser.error(f"--{name} {file} does not exist: run `make build`, or say where it is")
    return options


def main() -> int:
    options = parse_arguments()
    cases = []
    for fault in options.fault:
        runs = [measure(fault, options) for _ in range(options.repeats)]
        case = {"fault": fault, "ranks": options.ranks, "runs": runs}
        cases.append(case)
        if any("failed" in run for run in runs):
            progress(f"{fault:8} failed: {[run['failed'] for run in runs if 'failed' in run]}")
            continue
        for figure in ("diagnosis_s", "end_s"):
            case[figure] = {"median": statistics.median(run[figure] for run in runs), "largest": max(run[figure] for run in runs)}
        print(f"{fault:8} diagnosis {case['diagnosis_s']['median']:.2f} s (largest {case['diagnosis_s']['largest']:.2f}), "
              f"end {case['end_s']['median']:.2f} s: {runs[0]['said']}", flush=True)
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        result = {"schema": SCHEMA, "benchmark": "faults", **provenance(), "bar_s": BAR_S, "cases": cases}
        options.output.write_text(json.dumps(result, indent=1) + "\n")
    if any("diagnosis_s" not in case for case in cases):
        return 1
    return 3 if any(case["diagnosis_s"]["largest"] > BAR_S for case in cases) else 0


if __name__ == "__main__":
    sys.exit(main())
