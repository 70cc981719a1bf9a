#!/usr/bin/env python3
"""How many wake-ups a second hostcuda's virtual clock does, how many NCCL operations, and whether its times repeat.

    bench/clock.py --build build/release --out bench/results/clock.json

For each number of processes and each pattern (alone: all wake at different times; tied: all at the same ones) the job runs
several times; the hash of all its times must be the same in all of them. The bar: the median at 512 processes, alone, is
at least 50,000 wake-ups a second. Then NCCL's operations, which overlap on their links: all-reduces
of four communicators a process, and all-to-alls in grouped messages.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys

from provenance import provenance

BAR = 50_000
JOBS = {2: 50_000, 64: 4_000, 512: 500}  # processes: wake-ups of each
FLOWS = ((16, "collectives", 400), (64, "collectives", 100), (8, "messages", 400), (64, "messages", 4))  # processes, pattern, rounds


def run(arguments, program, *rest):
    command = [arguments.build / "bench" / program, arguments.build / "hostcuda/lib", *rest]
    return [json.loads(subprocess.run([str(c) for c in command], check=True, capture_output=True, text=True, timeout=300).stdout)
            for _ in range(arguments.runs)]


def row_of(runs, processes, pattern, count):
    rates, hashes = [one[f"{count}_per_s"] for one in runs], {one["hash"] for one in runs}
    row = {"processes": processes, "pattern": pattern, count: runs[0][count],
           f"{count}_per_s": {"median": statistics.median(rates), "least": min(rates), "most": max(rates)},
           "repeats": len(hashes) == 1, "hash": sorted(hashes)}
    print(f"{processes} processes, {pattern}: {row[f'{count}_per_s']['median']:.0f} {count} a second, {'repeats' if row['repeats'] else 'DOES NOT REPEAT'}", flush=True)
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, required=True, help="folder with bench/clock_wakeups and hostcuda/lib")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--out", type=pathlib.Path)
    arguments = parser.parse_args()
    results, good = [], True
    for processes, wakeups in JOBS.items():
        for pattern in ("alone", "tied"):
            row = row_of(run(arguments, "clock_wakeups", processes, wakeups, pattern), processes, pattern, "wakeups")
            results.append(row)
            good &= processes != 512 or pattern != "alone" or row["wakeups_per_s"]["median"] >= BAR
    for processes, pattern, rounds in FLOWS:
        results.append(row_of(run(arguments, "clock_flows", processes, rounds, pattern), processes, pattern, "operations"))
    good &= all(row["repeats"] for row in results)
    if arguments.out:
        arguments.out.write_text(json.dumps({"schema": 1, **provenance(), "runs": arguments.runs, "bar_512_alone": BAR, "results": results}, indent=1) + "\n")
    return 0 if good else 3


if __name__ == "__main__":
    sys.exit(main())
