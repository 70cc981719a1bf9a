#!/usr/bin/env python3
"""Records training jobs on real GPUs and holds what is replayed from the records against the runs themselves.

    bench/record.py run --out runs                        # on a machine with the GPUs: makes the runs, keeps the jobs
    bench/record.py evaluate --runs runs --output FILE    # anywhere: replays the jobs, prints and writes the result

For each case, in this order: a plain run, a recorded one, a plain one with DELAY extra on rank 0 in every step (which waits for its GPU at each step's end, so that nothing hides the delay), a plain
one, a recorded one. Times are the program's own (of each step, with a synchronization at its end), steps from the third on.

| figure | predicted | truth | bar |
|---|---|---|---|
| replay | `prism simulate --samples odd`: every operation takes its median over the odd steps | median of the even steps of the same run | 0.5 % |
| steps  | `--samples odd-steps`: every step takes what was measured in an odd one | the same | reported |
| spread | | median of the odd steps over that of the even ones: what the truth itself moves | reported |
| delay  | replay of the job with `--delay 0:DELAY`, over the one without | delayed plain run's median over that of the plain runs | 1 % |
| cost   | | recorded runs over plain ones, in pairs of neighbours: mean, and its 95 % interval from three pairs on | upper end 1 % |

Ten pairs of a case: `run --cases fsdp2 --order $(for i in {1..10}; do echo plain record; done)`.

On a machine of one GPU: `run --one-gpu`. Its ranks share the GPU (by MPS) and communicate over sockets: calls, kernels and whether recordings end are those
of two GPUs, times are not.

Exit code: 0, 1 if a run failed, 3 if a bar was missed.
"""

import argparse
import contextlib
import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

from gpu_jobs import JOBS
from intervals import interval
from one_gpu import on_one_gpu, shared_gpu
from provenance import ROOT, gpus, provenance
from torchrun import RunFailed, progress, run_training, torchrun

SCHEMA = 1
WARM_UP = 2  # steps that do not count
CASES = {name: JOBS[name] for name in ("ddp", "fsdp2", "tensor", "expert", "pipeline")}
BARS = {"replay": 0.005, "delay": 0.01, "cost": 0.01}


class Runner:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options

    def run(self, case: str, kind: str, job: Path) -> list[float]:
        """Runs one case `plain`, `delayed` or `record`ed into `job`; returns the milliseconds of its steps."""
        options = self.options
        file, *flags = CASES[case]
        program = [ROOT / "examples" / file, *flags, *options.extra, "--steps", options.steps]
        if kind == "delayed":
            program = [ROOT / "bench/programs/delayed.py", "0", options.delay_ms / 1e3, *program]
        if options.one_gpu:
            program = on_one_gpu(program)
        command = [*torchrun(options.python, options.world), *program]
        if kind == "record":
            command = [options.prism, "record", "--device", options.device, "--job", job, "--", *command]
        return run_training(command, {}, options.world, options.steps, options.timeout).step_ms


def run(options: argparse.Namespace) -> int:
    runner, failed = Runner(options), False
    options.out.mkdir(parents=True, exist_ok=True)
    head = {**provenance(), "gpus": gpus(), "delay_ms": options.delay_ms, "world": options.world, "one_gpu": options.one_gpu}
    (options.out / "provenance.json").write_text(json.dumps(head, indent=1))
    for case in options.cases:
        folder = options.out / case
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for number, kind in enumerate(options.order):
            try:
                steps = runner.run(case, kind, folder / f"job-{number}")
            except RunFailed as failure:
                failed = True
                progress(f"record: {case}, run {number} ({kind}): {failure}")
                continue
            (folder / f"{number}-{kind}.json").write_text(json.dumps(steps))
            progress(f"record: {case} {number} {kind}: median {statistics.median(steps[WARM_UP:]):.3f} ms")
    return 1 if failed else 0


def simulate(options: argparse.Namespace, job: Path, *flags: str) -> tuple[float, int]:
    """Returns the predicted milliseconds of a step, and how many steps were found."""
    command = [options.prism, "simulate", job, "--json", "--timeline", "none", *flags]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RunFailed(f"{' '.join(map(str, command))} failed with {done.returncode}: {done.stderr}")
    predicted = json.loads(done.stdout)
    return predicted["step_ns"] / 1e6, len(predicted["steps"])


def median_of(steps: list[float], found: int, first: int) -> float:
    """Returns the median of every second step found, from `first` on: the odd ones, or those that they are held against.
    The last step found is the program's last."""
    return statistics.median([steps[len(steps) - found + k] for k in range(first, found, 2)])


def evaluate(options: argparse.Namespace) -> int:
    head = json.loads((options.runs / "provenance.json").read_text())
    rows = []
    for case in CASES:
        folder = options.runs / case
        if not folder.exists():
            continue
        times: dict[str, list[list[float]]] = {}
        row: dict = {"case": case, "replay": [], "runs": {}}
        for file in sorted(folder.glob("*-*.json")):
            number, kind = file.stem.split("-")
            steps = json.loads(file.read_text())
            times.setdefault(kind, []).append(steps[WARM_UP:])
            row["runs"][file.stem] = steps
            job = folder / f"job-{number}"
            if kind != "record":
                continue
            predicted, found = simulate(options, job, "--samples", "odd")
            whole, _ = simulate(options, job, "--samples", "odd-steps")
            truth = median_of(steps, found, WARM_UP)
            row["replay"].append({
                "predicted_ms": predicted, "truth_ms": truth, "error": predicted / truth - 1, "steps_found": found,
                "steps_ms": whole, "steps_error": whole / truth - 1,
                "spread": median_of(steps, found, WARM_UP + 1) / truth - 1,
            })  # fmt: skip
        medians = {kind: statistics.median([statistics.median(steps) for steps in runs]) for kind, runs in times.items()}
        row["medians_ms"] = medians
        row["missed"] = [f"replay {r['error']:+.2%}" for r in row["replay"] if abs(r["error"]) > BARS["replay"]]
        if "plain" in medians and "record" in medians:
            pairs = [statistics.median(with_) / statistics.median(without) - 1 for with_, without in zip(times["record"], times["plain"])]
            low, mean, high = interval(pairs) if len(pairs) > 2 else (None, statistics.mean(pairs), None)
            row["cost"] = {"mean": mean, "low": low, "high": high, "pairs": pairs}
            if high is not None and high > BARS["cost"]:
                row["missed"].append(f"cost at most {high:+.2%}")
        if "plain" in medians and "delayed" in medians and "record" in medians:
            jobs = [folder / f"job-{file.stem.split('-')[0]}" for file in sorted(folder.glob("*-record.json"))]
            delay = ("--delay", f"0:{head['delay_ms']}ms")
            predicted = statistics.mean([simulate(options, job, *delay)[0] / simulate(options, job)[0] for job in jobs])
            truth = medians["delayed"] / medians["plain"]
            row["delay"] = {"predicted": predicted, "truth": truth, "error": predicted / truth - 1}
            if abs(row["delay"]["error"]) > BARS["delay"]:
                row["missed"].append(f"delay {row['delay']['error']:+.2%}")
        rows.append(row)
        shown = "  ".join(f"{r['predicted_ms']:.2f} for {r['truth_ms']:.2f} ms ({r['error']:+.2%}, steps {r['steps_error']:+.2%}, spread {r['spread']:+.2%})" for r in row["replay"])
        shown += f"  delay {row['delay']['predicted']:.4f} for {row['delay']['truth']:.4f}" if "delay" in row else ""
        shown += f"  cost {row['cost']['mean']:+.2%}" if "cost" in row else ""
        shown += f" ({row['cost']['low']:+.2%} to {row['cost']['high']:+.2%})" if "cost" in row and row["cost"]["high"] is not None else ""
        print(f"{case:8} {shown}  {'MISSED: ' + '; '.join(row['missed']) if row['missed'] else 'ok'}")
    result = {"schema": SCHEMA, "benchmark": "record", "recorded": head, **provenance(), "bars": BARS, "cases": rows}
    if options.output:
        options.output.write_text(json.dumps(result, indent=1) + "\n")
    return 3 if any(row["missed"] for row in rows) else 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    runs = verbs.add_parser("run")
    runs.add_argument("--out", type=Path, required=True, metavar="DIR")
    runs.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    runs.add_argument("--order", nargs="+", choices=["plain", "record", "delayed"], default=["plain", "record", "delayed", "plain", "record"])
    runs.add_argument("--one-gpu", action="store_true")
    runs.add_argument("--world", type=int, default=2)
    runs.add_argument("--steps", type=int, default=32)
    runs.add_argument("--delay-ms", type=float, default=5)
    runs.add_argument("--device", choices=["cuda", "host"], default="cuda")
    runs.add_argument("--python", type=Path, default=Path(sys.executable), metavar="FILE")
    runs.add_argument("--timeout", type=float, default=300, metavar="S")
    runs.add_argument("--extra", type=shlex.split, default=[], metavar="FLAGS", help="further flags of the example, e.g. a smaller model")
    evaluation = verbs.add_parser("evaluate")
    evaluation.add_argument("--runs", type=Path, required=True, metavar="DIR")
    evaluation.add_argument("--output", type=Path, metavar="FILE")
    for verb in (runs, evaluation):
        verb.add_argument("--prism", type=Path, default=ROOT / "build/ci/bin/prism", metavar="FILE")
    return parser.parse_args()


def main() -> int:
    options = parse_arguments()
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    if options.verb == "evaluate":
        return evaluate(options)
    with shared_gpu() if options.one_gpu else contextlib.nullcontext():
        return run(options)


if __name__ == "__main__":
    sys.exit(main())
