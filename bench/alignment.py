#!/usr/bin/env python3
"""What aligning communications adds: jobs recorded on hostcuda's virtual clock, played back with and without it, against themselves.

    bench/alignment.py --cases s1-00 s2-03 --out runs --output FILE

A case is one that bench/host_accuracy.py draws, with the jitter of its truth. All its ranks run and are recorded, which takes none of the clock's
time, so that the steps it prints are the truth. (A recording spans one machine, so these are of one node.) What a rank measures of a communication contains its waiting for the others: `aligned` is what
`prism simulate` makes of that, `as measured` the same with --waits-as-measured. The network profile tells what a start costs.

Exit code: 0, 1 if a run failed.
"""

import argparse
import dataclasses
import json
import statistics
import sys
from pathlib import Path

from host_accuracy import EVENT_NS, WARM_UP, Case, Runner, describe, draw, iteration, printed_steps, simulated, write_tables
from predictions import completed_verb
from provenance import ROOT, provenance
from torchrun import RunFailed, progress, torchrun

SCHEMA = 1
PLAYED = {"aligned": (), "as measured": ("--waits-as-measured",)}


def measured(runner: Runner, case: Case, steps: int) -> dict:
    options, folder = runner.options, runner.options.out / case.name
    folder.mkdir(parents=True, exist_ok=True)
    links, times = write_tables(case, folder, "truth", 1)
    clock = {"HOSTCUDA_CLOCK": "virtual", "HOSTNCCL_TOPOLOGY": str(links), "HOSTCUDA_TIMES": str(times), "PRISM_RECORD_TIMES": "1"}
    network = folder / "netprofile.json"
    if not network.exists():
        runner.run([runner.prism, "netprofile", "--device", "host", "--ranks", 2, "--types", "bf16", "--operations", "AllReduce,Send",
                    "--sizes", "1KiB:1MiB:4", "--repeats", 1, "--iterations", 1, "--out", network], folder / "netprofile.log", clock)  # fmt: skip
    command = [*torchrun(options.python, case.world), "--no-python", runner.trainer, *case.flags(steps)]
    text = completed_verb(lambda words, log: runner.run(words, log, clock), runner.prism, "record", folder, "recorded",
                          ("--device", "host", "--target", f"h200x{case.world}", "--", *command))  # fmt: skip
    true = iteration(printed_steps(text), steps, "the job")
    row = dataclasses.asdict(case) | {"classes": case.classes(), "truth_ns": true["mean_ns"]}
    for name, flags in PLAYED.items():
        answer = simulated(runner, folder, "recorded", folder / f"{name.replace(' ', '-')}.log", "--network", network, *flags)
        predicted = statistics.mean([step["ns"] for step in answer["steps"]][WARM_UP:]) - EVENT_NS
        row[name] = {"ns": predicted, "error": predicted / true["mean_ns"] - 1}
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", required=True, metavar="sSEED-NUMBER")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--out", type=lambda path: Path(path).absolute(), required=True, metavar="DIR")
    parser.add_argument("--output", type=Path, metavar="FILE")
    parser.add_argument("--build", type=lambda path: Path(path).absolute(), default=ROOT / "build/ci", metavar="DIR")
    parser.add_argument("--python", type=Path, default=Path(sys.executable), metavar="FILE")
    parser.add_argument("--timeout", type=float, default=600, metavar="S")
    options = parser.parse_args()
    runner, rows, failures = Runner(options), [], []
    for name in options.cases:
        seed, _, number = name.removeprefix("s").partition("-")
        case = draw(int(seed), int(number), options.ranks, ["nodes"])
        try:
            rows.append(measured(runner, case, options.steps))
        except RunFailed as failure:
            failures.append({"name": name, "failure": str(failure)})
            progress(f"alignment: {name}: {failure}")
            continue
        print(f"{name}  {describe(rows[-1])}\n    " + "  ".join(f"{played} {rows[-1][played]['error']:+.3%}" for played in PLAYED), flush=True)
    result = {"schema": SCHEMA, "benchmark": "alignment", **provenance(), "mean_error": {}, "cases": rows, "failures": failures}
    for played in PLAYED if rows else ():
        errors = [abs(row[played]["error"]) for row in rows]
        result["mean_error"][played] = statistics.mean(errors)
        print(f"{played}: mean {statistics.mean(errors):.3%}, largest {max(errors):.3%}")
    if options.output:
        options.output.write_text(json.dumps(result, indent=1) + "\n")
    return 1 if failures or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
