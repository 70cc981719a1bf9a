#!/usr/bin/env python3
"""Holds jobs captured on one GPU, with all payloads exchanged, against the jobs themselves.

    bench/exactness_gpu.py --out bench/results/h200/exactness.json    # on a machine with two GPUs
    bench/exactness_gpu.py --device host                              # the same without a GPU, on hostcuda

Each kind of parallelism trains examples/train_gpt.py or train_moe.py (tiny preset, fp32 without TF32) for some steps:

| run     | how                                                                                                |
|---------|----------------------------------------------------------------------------------------------------|
| true    | --world ranks (2) on as many GPUs with NCCL, --repeats times                                       |
| capture | the same under `prism capture --exact-payload 1GiB`, all ranks on one GPU                          |
| wide    | --wide ranks (8) under `prism capture`, on one GPU                                                 |
| one     | one rank, no communication, with the global batch of `wide`                                        |

Bars: where the true runs agree bitwise, capture equals them in every loss and in every rank's parameters; where they do not, its losses lie within
their range. `wide` is within 1e-4 of `one` in every loss. Exit code: 0, 1 if a run failed, 3 if a bar was missed.
"""

import argparse
import concurrent.futures
import json
import os
import sys
import tempfile
from pathlib import Path

from exactness import KINDS, differences
from provenance import ROOT, gpus, provenance
from torchrun import RunFailed, TrainingRun, progress, run_training, torchrun

SCHEMA = 1
WIDE_BAR = 1e-4
MICRO_BATCH = 2


class Kind:
    """Starts the runs of one kind of parallelism."""

    def __init__(self, name: str, options: argparse.Namespace, jobs: Path) -> None:
        self.name, self.options, self.jobs = name, options, jobs
        file, *self.flags = KINDS[name]
        self.program = [ROOT / "examples" / file]

    def run(self, ranks: int, flags: list, prefix: list = (), micro_batch: int = MICRO_BATCH) -> TrainingRun:
        options = self.options
        environment = {} if options.device == "cuda" or prefix else {"HOSTCUDA_VALUES": "cpu", "HOSTCUDA_DEVICES": "8"}
        command = [*prefix, *torchrun(options.python, ranks), *self.program, *flags, "--micro-batch", micro_batch,
                   "--steps", options.steps, "--checksum"]  # fmt: skip
        return run_training(command, environment, ranks, options.steps, options.timeout)

    def true(self) -> TrainingRun:
        return self.run(self.options.world, self.flags)

    def capture(self, ranks: int) -> TrainingRun:
        options = self.options
        prefix = [options.prism, "capture", "--tee", "all", "--device", options.device, "--exact-payload", "1GiB", "--target", "h200x8",
                  "--job", self.jobs / f"{self.name}-{ranks}"]  # fmt: skip
        return self.run(ranks, self.flags, [*prefix, *(["--values", "cpu"] if options.device == "host" else []), "--"])

    def one(self) -> TrainingRun:
        alone = ["--parallel", "ddp"] if self.name != "expert" else []
        return self.run(1, alone, micro_batch=MICRO_BATCH * (1 if self.name == "tensor" else self.options.wide))


def judge(name: str, options: argparse.Namespace, runs: dict) -> dict:
    trues: list[TrainingRun] = [runs[f"true-{n}"] for n in range(options.repeats)]
    capture, wide, one = runs["capture"], runs["wide"], runs["one"]
    row = {
        "kind": name,
        "true_losses": [run.losses for run in trues], "capture_losses": capture.losses,
        "true_runs_agree": all((run.losses, run.checksums) == (trues[0].losses, trues[0].checksums) for run in trues),
        "losses_bitwise": capture.losses in [run.losses for run in trues],
        "parameters_bitwise": capture.checksums in [run.checksums for run in trues],
        "wide_losses": wide.losses, "one_losses": one.losses, "wide_difference": max(differences(wide, one)),
        "missed": [],
    }  # fmt: skip
    if row["true_runs_agree"]:
        row["missed"] += [bar for bar in ("losses_bitwise", "parameters_bitwise") if not row[bar]]
    else:
        steps = [[float.fromhex(loss) for loss in losses] for losses in zip(*row["true_losses"])]
        inside = [min(seen) <= float.fromhex(loss) <= max(seen) for seen, loss in zip(steps, capture.losses)]
        row["missed"] += [] if all(inside) else ["losses within the true runs' range"]
    if not row["wide_difference"] <= WIDE_BAR:  # so that NaN misses it too
        row["missed"].append(f"one rank within {WIDE_BAR:g}")
    return row


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--world", type=int, default=2)
    parser.add_argument("--wide", type=int, default=8)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=5, help="true runs")
    parser.add_argument("--parallel-runs", type=int, default=1, help="runs at the same time: they share GPUs, which changes no value")
    parser.add_argument("--device", choices=["cuda", "host"], default="cuda")
    parser.add_argument("--python", type=Path, default=Path(sys.executable), metavar="FILE")
    parser.add_argument("--prism", type=Path, default=ROOT / "build/ci/bin/prism", metavar="FILE")
    parser.add_argument("--timeout", type=float, default=300, metavar="S")
    parser.add_argument("--out", type=Path, metavar="FILE")
    return parser.parse_args()


def main() -> int:
    options = parse_arguments()
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    rows, failed = [], False
    with tempfile.TemporaryDirectory() as jobs, concurrent.futures.ThreadPoolExecutor(options.parallel_runs) as pool:
        started = {}
        for name in options.kinds:
            kind = Kind(name, options, Path(jobs))
            started[name] = {f"true-{n}": pool.submit(kind.true) for n in range(options.repeats)} | {
                "capture": pool.submit(kind.capture, options.world), "wide": pool.submit(kind.capture, options.wide), "one": pool.submit(kind.one)}  # fmt: skip
        for name, runs in started.items():
            try:
                row = judge(name, options, {run: future.result() for run, future in runs.items()})
            except RunFailed as failure:
                failed = True
                progress(f"exactness: {name}: {failure}")
                continue
            rows.append(row)
            print(f"{name:9} losses {'bitwise' if row['losses_bitwise'] else 'DIFFER'}, parameters {'bitwise' if row['parameters_bitwise'] else 'DIFFER'}, "
                  f"true runs {'agree' if row['true_runs_agree'] else 'differ'}; {options.wide} ranks and one differ by {row['wide_difference']:.1e}  "
                  f"{'MISSED: ' + '; '.join(row['missed']) if row['missed'] else 'ok'}", flush=True)  # fmt: skip
    result = {"schema": SCHEMA, "benchmark": "exactness-gpu", **provenance(), "gpus": gpus(),
              "world": options.world, "wide": options.wide, "steps": options.steps, "repeats": options.repeats, "cases": rows}  # fmt: skip
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    if failed:
        return 1
    return 3 if any(row["missed"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
