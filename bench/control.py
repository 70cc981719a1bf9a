#!/usr/bin/env python3
"""What exchange policy `control` changes: a captured job whose large payloads do not move, or only until they recur, against the same one where all do.

    bench/control.py --out .out/control --output bench/results/control.json
    bench/control.py --out .out/control --cases trainer-32

| case         | job                                                                  | flags of the capture, beside exact `--values cpu`        |
|--------------|----------------------------------------------------------------------|----------------------------------------------------------|
| trainer-32   | moe_trainer --real, 32 ranks (trainer-8: 8), routing by value        | `--values cpu --exchange control --exact-payload 512B`   |
| moe-8        | train_moe.py (tiny), 8 ranks                                         | the same                                                 |
| moe-values-8 | the same job, large tensors not computed: large payloads never move  | `--values control`                                       |
| moe-wide-8   | layers so wide that most payloads are beyond the limit               | `--values control`                                       |

The first two's payloads are small, so there the limit is small too (512 bytes: counts of tokens always move).

Of each pair: whether the losses are finite; whether every rank communicates the same (operation, type, count, peer, group, stream,
order; bench/graphs.py), or where it first differs, and whether in more than the sizes of messages, which follow from routing; which
part of what is sent between two ranks in the exact run goes elsewhere (`elsewhere`: of each stretch between collectives, half the
sum of differences by peer over what is sent; 0: the same sizes, 1: nothing is the same); how many communications need no other rank's data. Each of those is a
switch that a rank is spared which shares its device: it need not give way until the others have brought their parts. Bytes
and seconds are measured, too. Exit code: 0, 1 if a run failed, 3 if a loss is not finite.
"""

import argparse
import collections
import json
import math
import sys
from pathlib import Path

from exactness import Case, case_of
from graphs import communications, first_difference, inspect
from provenance import ROOT, provenance
from torchrun import RunFailed, progress

SCHEMA = 2
NOT_MOVED = ("generated", "mirrored")  # sources of values, as prism inspect names them
WIDE = ("--hidden", "1024", "--heads", "16", "--key-value-heads", "8", "--feed-forward", "1024", "--seq", "512")
UNTIL_RECURRING = ("--values", "cpu", "--exchange", "control", "--exact-payload", "512B")
CASES = {  # kind, ranks, flags of the program, flags of the capture
    "trainer-32": ("trainer", 32, (), UNTIL_RECURRING),
    "trainer-8": ("trainer", 8, (), UNTIL_RECURRING),
    "moe-8": ("expert", 8, (), UNTIL_RECURRING),
    "moe-values-8": ("expert", 8, (), ("--values", "control")),
    "moe-wide-8": ("expert", 8, WIDE, ("--values", "control")),
}


def without_sizes(threads: list[list[dict]]) -> list[list[dict]]:
    return [[{name: value for name, value in call.items() if name not in ("count", "bytes")} for call in calls] for calls in threads]


def sent(threads: list[list[dict]]) -> dict[tuple, float]:
    """Elements that a rank sends, by communicator, peer and the collectives that it has called before."""
    total: collections.Counter = collections.Counter()
    for number, calls in enumerate(threads):
        collectives = 0
        for call in calls:
            if call["operation"] == "Send":
                total[number, collectives, call["communicator"], call["peer"]] += call["count"]
            elif call["operation"] != "Recv":
                collectives += 1
    return total


def compare(options: argparse.Namespace, name: str) -> dict:
    kind, world, program, flags = CASES[name]
    case: Case = case_of(kind, world, options)
    case.program += program
    jobs = {"exact": options.out / f"{name}-exact", "control": options.out / f"{name}-control"}
    runs = {"exact": case.capture(jobs["exact"], "--values", "cpu"), "control": case.capture(jobs["control"], *flags)}
    row: dict = {"case": name, "world": world, "flags": flags}
    for policy, run in runs.items():
        losses = [float.fromhex(loss) for loss in run.losses]
        row[policy] = {"losses": losses, "finite": all(map(math.isfinite, losses)), "seconds": round(run.seconds, 1)}
    totals = {policy: collections.Counter() for policy in jobs}
    different: dict[int, str] = {}
    beyond_sizes: dict[int, str] = {}
    elsewhere = messages = 0.0
    for rank in range(world):
        calls = []
        exchanged = {}
        for policy, job in jobs.items():
            trace = inspect(options.prism, job / "trace" / f"rank-{rank:05}.prt")
            for source, of in trace["payloads"].items():
                totals[policy].update({f"{source} {what}": number for what, number in of.items()})
            calls.append(communications(trace, with_call_sites=False))
            exchanged[policy] = sent(calls[-1])
        places = set(exchanged["exact"]) | set(exchanged["control"])
        elsewhere += sum(abs(exchanged["exact"][place] - exchanged["control"][place]) for place in places) / 2
        messages += sum(exchanged["exact"].values())
        if difference := first_difference(*calls):
            different[rank] = difference
        if difference := first_difference(*map(without_sizes, calls)):
            beyond_sizes[rank] = difference
    for policy, total in totals.items():
        row[policy] |= dict(total)
    row["elsewhere"] = round(elsewhere / messages, 4) if messages else None
    row["ranks_that_differ"] = different
    row["ranks_that_differ_beyond_sizes"] = beyond_sizes
    return row


def shown(row: dict) -> str:
    control = row["control"]
    made_up, real = sum(control.get(f"{source} communications", 0) for source in NOT_MOVED), control.get("exact communications", 0)
    first = next(iter(row["ranks_that_differ"].items()), None)
    beyond = next(iter(row["ranks_that_differ_beyond_sizes"].items()), None)
    held, moved = sum(control.get(f"{source} bytes", 0) for source in NOT_MOVED), control.get("exact bytes", 0)
    return (
        f"{row['case']}: losses {'finite' if control['finite'] else 'NOT FINITE'}; {made_up} of {made_up + real} communications need no other rank "
        f"({held / 2**20:.1f} of {(held + moved) / 2**20:.1f} MiB do not move); {100 * (row['elsewhere'] or 0):.1f} % of what is sent goes elsewhere; losses {row['exact']['losses']} and {control['losses']}; "
        f"{row['exact']['seconds']:.0f} s exact, {control['seconds']:.0f} s control; "
        + (f"{len(row['ranks_that_differ'])} of {row['world']} ranks communicate otherwise, rank {first[0]}: {first[1]}; "
            + (f"{len(row['ranks_that_differ_beyond_sizes'])} not in sizes alone, rank {beyond[0]}: {beyond[1]}" if beyond else "in the sizes of messages alone")
            if first else "structure the same")
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="for the captured jobs")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=["trainer-32", "moe-8", "moe-values-8", "moe-wide-8"])
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--python", type=Path, default=ROOT / ".env/bin/python", metavar="FILE")
    parser.add_argument("--prism", type=Path, default=ROOT / "build/ci/bin/prism", metavar="FILE")
    parser.add_argument("--timeout", type=float, default=600, metavar="S", help="seconds a run may take")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the JSON here, e.g. bench/results/control.json")
    options = parser.parse_args()
    options.dtype = "fp32"
    rows, failed = [], False
    for name in options.cases:
        try:
            rows.append(compare(options, name))
        except RunFailed as failure:
            failed = True
            progress(f"control: {name}: {failure}")
            continue
        progress(shown(rows[-1]))
    result = {"schema": SCHEMA, "benchmark": "control", **provenance(), "steps": options.steps, "cases": rows}
    if options.output:
        options.output.write_text(json.dumps(result, indent=1) + "\n")
    if failed:
        return 1
    return 0 if all(row[policy]["finite"] for row in rows for policy in ("exact", "control")) else 3


if __name__ == "__main__":
    sys.exit(main())
