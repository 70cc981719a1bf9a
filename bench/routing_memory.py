#!/usr/bin/env python3
"""Holds the memory of captured mixtures of experts against several true runs, which themselves differ: gradients are added up atomically, so routing drifts.

    bench/routing_memory.py run --out runs --one-gpu          # or on as many GPUs as ranks
    bench/routing_memory.py evaluate --out runs --output FILE

Each case runs truly --repeats times and is captured once, exactly. Reported of each rank that prints it (a captured job's rank 0): the peak that PyTorch allocated, of the
first step and of all. Exit code: 0, 1 if a run failed, 3 if the first step's peak is not equal to the byte in all, or the captured job's whole peak is beyond the true runs' range.
"""

import argparse
import contextlib
import json
import os
import re
import shlex
import sys
from pathlib import Path

from gpu_jobs import JOBS
from one_gpu import on_one_gpu, shared_gpu
from provenance import ROOT, gpus, provenance
from torchrun import RANK_LINE, last_error, progress, run_to_end, torchrun

SCHEMA = 1
FIRST_STEP = re.compile(r"^(?:\[rank\d+\]: )?step 0 loss .* max_memory_allocated (\d+) ", re.M)


def run(options: argparse.Namespace) -> int:
    failed = False
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "provenance.json").write_text(json.dumps({**provenance(), "gpus": gpus(), "world": options.world, "steps": options.steps, "one_gpu": options.one_gpu}, indent=1))
    for case in options.cases:
        file, *flags = JOBS[case]
        program = [ROOT / "examples" / file, *flags, *options.extra, "--steps", options.steps]
        capture = [options.prism, "capture", "--device", options.device, "--target", "h200x8", "--force", "--job", options.out / f"{case}-job", "--"]
        runs = {"captured": [*capture, *torchrun(options.python, options.world), *program]}
        (options.out / case).mkdir(exist_ok=True)
        for number in range(options.repeats):
            runs[f"true-{number}"] = [*torchrun(options.python, options.world), *(on_one_gpu(program) if options.one_gpu else program)]
        for name, command in runs.items():
            with shared_gpu() if options.one_gpu and name != "captured" else contextlib.nullcontext():
                code, text, seconds = run_to_end(command, {"OMP_NUM_THREADS": "1"}, options.timeout)
            (options.out / case / f"{name}.log").write_text(text)
            progress(f"routing_memory: {case} {name}: {seconds:.0f} s, code {code}")
            if code:
                failed = True
                progress(f"    {last_error(text)}")
    return 1 if failed else 0


def peaks(log: Path) -> dict:
    text = log.read_text()
    if not FIRST_STEP.search(text):
        sys.exit(f"{log} tells of no first step")
    return {"first_step": [int(peak) for peak in FIRST_STEP.findall(text)][:1],
            "allocated": {int(rank): int(allocated) for rank, _, allocated, _, _ in RANK_LINE.findall(text)},
            "reserved": {int(rank): int(reserved) for rank, _, _, reserved, _ in RANK_LINE.findall(text)}}  # fmt: skip


def evaluate(options: argparse.Namespace) -> int:
    rows = []
    for folder in sorted(path for path in options.out.iterdir() if (path / "captured.log").exists()):
        captured = peaks(folder / "captured.log")
        true = [peaks(log) for log in sorted(folder.glob("true-*.log"))]
        if not true:
            sys.exit(f"{folder}: no true run")
        own, theirs = captured["allocated"][0], sorted(peak["allocated"][0] for peak in true)
        row = {
            "case": folder.name, "captured": captured, "true": true,
            "first_step_equal": all(peak["first_step"] == captured["first_step"] for peak in true), "within": theirs[0] <= own <= theirs[-1],
        }  # fmt: skip
        rows.append(row)
        print(f"{folder.name:12} first step {'equal' if row['first_step_equal'] else 'NOT equal'}; all steps {own} captured, true {theirs}: "
              f"{'within their range' if row['within'] else 'BEYOND their range'}")  # fmt: skip
    result = {"schema": SCHEMA, "benchmark": "routing_memory", "runs": json.loads((options.out / "provenance.json").read_text()), **provenance(), "cases": rows}
    if options.output:
        options.output.write_text(json.dumps(result, indent=1) + "\n")
    return 0 if all(row["first_step_equal"] and row["within"] for row in rows) else 3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    runs, evaluation = (verbs.add_parser(name) for name in ("run", "evaluate"))
    for verb in (runs, evaluation):
        verb.add_argument("--out", type=Path, required=True, metavar="DIR")
    runs.add_argument("--cases", nargs="+", choices=JOBS, default=["expert", "expert-wide"])
    runs.add_argument("--one-gpu", action="store_true", help="all ranks on one GPU, which they share by MPS")
    runs.add_argument("--world", type=int, default=2)
    runs.add_argument("--steps", type=int, default=18)
    runs.add_argument("--repeats", type=int, default=3)
    runs.add_argument("--device", choices=["cuda", "host"], default="cuda")
    runs.add_argument("--extra", type=shlex.split, default=[], metavar="FLAGS", help="further flags of the example, e.g. a smaller model")
    runs.add_argument("--timeout", type=float, default=120, metavar="S")
    runs.add_argument("--python", type=Path, default=Path(sys.executable), metavar="FILE")
    runs.add_argument("--prism", type=Path, default=ROOT / "build/ci/bin/prism", metavar="FILE")
    evaluation.add_argument("--output", type=Path, metavar="FILE")
    options = parser.parse_args()
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    return run(options) if options.verb == "run" else evaluate(options)


if __name__ == "__main__":
    sys.exit(main())
