#!/usr/bin/env python3
"""Measures a machine's communications by `prism netprofile`, several times, and says how far the runs differ.

    bench/netprofile.py --ranks 2 --out bench/results/h200/netprofile-2.json     # on a machine with two GPUs
    bench/netprofile.py --device host --ranks 2 --runs 2 --sizes 1KiB:1MiB:4 --out /tmp/host.json

Writes the profile of the first run to --out, and the comparison to stdout and beside it (NAME.runs.json): for each operation, of
all its sizes, the median and the largest difference of a run's median from that of the others. That is what a table is good for at
best. Exit code: 0, 1 if a run failed.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

from provenance import ROOT, provenance

SCHEMA = 1


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prism", type=Path, default=ROOT / "build/ci/bin/prism")
    parser.add_argument("--device", default="cuda", choices=("cuda", "host"))
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--groups", default="")
    parser.add_argument("--sizes", default="1KiB:1GiB:2")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--nccl", help="NCCL library")
    parser.add_argument("--timeout", type=float, default=540, help="seconds a run")
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


def measure(options: argparse.Namespace, number: int) -> dict | None:
    command = [options.prism, "netprofile", "--device", options.device, "--ranks", options.ranks, "--sizes", options.sizes,
               "--repeats", options.repeats, "--json"]
    if options.groups:
        command += ["--groups", options.groups]
    if options.nccl:
        command += ["--nccl", options.nccl]
    started = time.monotonic()
    run = subprocess.run([str(c) for c in command], stdout=subprocess.PIPE, text=True, timeout=options.timeout, check=False)
    print(f"netprofile: run {number}: exit code {run.returncode}, {time.monotonic() - started:.1f} s", file=sys.stderr, flush=True)
    if run.returncode != 0:
        return None
    if number == 0:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(run.stdout)
    return json.loads(run.stdout)


def compare(runs: list[dict]) -> list[dict]:
    """A row for each operation, type, group and kind: differences of a run's medians from the median over the runs."""
    times: dict[tuple, dict[int, list[float]]] = {}
    for run in runs:
        for e in run["entries"]:
            key = (e["operation"], e.get("type"), e["ranks"], e["nodes"], e["isolated"])
            times.setdefault(key, {}).setdefault(e["bytes"], []).append(e["median_ns"])
    rows = []
    for key, sizes in times.items():
        differences = [abs(ns / statistics.median(of_runs) - 1) for of_runs in sizes.values() for ns in of_runs]
        rows.append(dict(zip(("operation", "type", "ranks", "nodes", "isolated"), key)) | {
            "sizes": len(sizes), "median_difference": statistics.median(differences), "largest_difference": max(differences)})
    return rows


def main() -> int:
    options = parse_arguments()
    runs = [measure(options, number) for number in range(options.runs)]
    good = [run for run in runs if run is not None]
    rows = compare(good)
    for row in rows:
        kind = "isolated" if row["isolated"] else "in a row"
        print(f"{row['operation']:<14} {row['type'] or '':<6} {row['ranks']:>3} ranks {row['nodes']:>2} nodes {kind:<9} {row['sizes']:>3} sizes: "
              f"runs differ by {100 * row['median_difference']:.2f} % (median), {100 * row['largest_difference']:.1f} % (largest)")
    result = {"schema": SCHEMA, **provenance(), "runs": len(good), "failed": len(runs) - len(good),
              "drift": [run["settings"].get("drift") for run in good], "differences": rows}
    options.out.with_suffix(".runs.json").write_text(json.dumps(result, indent=1) + "\n")
    return 0 if len(good) == options.runs else 1


if __name__ == "__main__":
    sys.exit(main())
