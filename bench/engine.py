#!/usr/bin/env python3
"""How long a job takes to open from disk and to evaluate, on one core, and in how much memory.

    bench/engine.py --output bench/results/engine.json     # 3 GB of scratch files, a minute
    bench/engine.py --jobs hybrid-8192 --runs 5

Jobs are written by the trace writer (src/graph/testing/synthetic.h), a process of its own; another one opens and evaluates
them. Their files are in the page cache, as after a capture. A node is an operation of a stream or a thread.

| figure, of hybrid-8192 (8,192 ranks: tensor 8 x data 128 x 8 stages, 1F1B; 10,000 nodes a rank) | bar          |
|--------------------------------------------------------------------------------------------------|--------------|
| open: read, check, recognise equal ranks, match communicators                                    | <= 1 s       |
| evaluate: when everything happens                                                                | <= 10 s      |
| nodes evaluated a second                                                                         | >= 20 M      |
| peak of the process's memory, the mapped traces in it                                            | <= 4 GB      |

unequal-1024 is the same with ranks of which no two are equal, as in a recorded job: each is compiled by itself. Others: one kind of
parallelism each.

Times are the process's own processor time, least of the runs; wall time is beside it. Exit code: 0, 1 if a run failed, 3 if
a bar was missed.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from provenance import ROOT, provenance
from torchrun import progress

SCHEMA = 1
BARRED = "hybrid-8192"
BARS = {"open_s": 1.0, "evaluate_s": 10.0, "nodes_per_s": 20e6, "peak_bytes": 4e9}
# Kind, ranks, steps, layers (hybrid: of a stage), micro-batches, tensor, data, and what makes ranks differ.
JOBS = {
    BARRED: ("hybrid", 8192, 5, 4, 8, 8, 128, 0),
    "unequal-1024": ("hybrid", 1024, 5, 4, 8, 8, 16, 1),
    "data-1024": ("data", 1024, 20, 16, 1, 1, 1, 0),
    "sharded-1024": ("sharded", 1024, 20, 16, 1, 1, 1, 0),
    "pipeline-64": ("pipeline", 64, 20, 16, 64, 1, 1, 0),
    "expert-32": ("expert", 32, 20, 16, 1, 1, 1, 0),
}


def run(*command: object) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} failed with {done.returncode}: {done.stderr}")
    return done.stdout


def measure(options: argparse.Namespace, name: str, scratch: Path) -> dict:
    program = options.build / "bench/engine_scale"
    directory = scratch / name
    run(program, "write", directory, *JOBS[name])
    runs = [json.loads(run(program, "evaluate", directory, options.target)) for _ in range(options.runs)]
    shutil.rmtree(directory)
    first = runs[0]
    row = {what: first[what] for what in ("ranks", "programs", "nodes", "trace_bytes", "finish_ns")}
    if any(one["finish_ns"] != row["finish_ns"] or one["evaluated"] != row["nodes"] for one in runs):
        sys.exit(f"{name}: runs differ, or left nodes out: {runs}")
    row["nodes_a_rank"] = row["nodes"] // row["ranks"]
    for what in ("open", "durations", "evaluate"):
        row[f"{what}_s"] = min(one[f"{what}_cpu_s"] for one in runs)
        row[f"{what}_runs"] = [{clock: one[f"{what}_{clock}_s"] for clock in ("cpu", "wall")} for one in runs]
    row["nodes_per_s"] = row["nodes"] / row["evaluate_s"]
    row["peak_bytes"] = max(one["peak_bytes"] for one in runs)
    return row


def missed(row: dict) -> list[str]:
    return [what for what, bar in BARS.items() if (row[what] < bar if what == "nodes_per_s" else row[what] > bar)]


def shown(name: str, row: dict) -> str:
    wall = {what: min(one["wall"] for one in row[f"{what}_runs"]) for what in ("open", "evaluate")}
    return (
        f"{name}: {row['ranks']} ranks of {row['nodes_a_rank']} nodes, {row['programs']} programs: open {row['open_s']:.2f} s "
        f"(wall {wall['open']:.2f}), evaluate {row['evaluate_s']:.2f} s (wall {wall['evaluate']:.2f}), "
        f"{row['nodes_per_s'] / 1e6:.1f} M nodes/s, {row['peak_bytes'] / 1e9:.2f} GB"
        + (f": MISSED {', '.join(row['missed'])}" if row["missed"] else "")
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build/ci", metavar="DIR", help="has bench/engine_scale")
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=list(JOBS))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--target", default="h200x8:1024")
    parser.add_argument("--scratch", type=Path, default=Path(tempfile.gettempdir()), metavar="DIR")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the JSON here, e.g. bench/results/engine.json")
    options = parser.parse_args()
    rows, load = {}, os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="engine-", dir=options.scratch) as scratch:
        for name in options.jobs:
            rows[name] = measure(options, name, Path(scratch))
            rows[name]["missed"] = missed(rows[name]) if name == BARRED else []
            progress(shown(name, rows[name]))
    result = {"schema": SCHEMA, "benchmark": "engine", **provenance(), "load_average_before": round(load, 2), "target": options.target,
              "runs": options.runs, "bars": {BARRED: BARS}, "jobs": rows}  # fmt: skip
    if options.output:
        options.output.write_text(json.dumps(result, indent=1) + "\n")
    return 3 if any(row["missed"] for row in rows.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
