#!/usr/bin/env python3
"""Predicts training jobs of several GPUs from runs on one, and holds the predictions against the jobs themselves.

    bench/emulate.py predict --out runs --network netprofile.json    # on a machine with one GPU
    bench/emulate.py truth --out runs                                # on a machine with as many GPUs as ranks
    bench/emulate.py profile --out runs                              # there too: what kernels take in both, for the causes of errors
    bench/emulate.py evaluate --out runs --output FILE               # anywhere: compares, prints and writes the result

`predict` captures each case on the GPU (all ranks on it), calibrates it, and emulates rank 0 with the others played as
calibrated. GPUs of a kind differ by a few percent, and a job takes its slowest one's time: where there are several, the one is that on which a matrix
product takes longest while all are busy. The prediction is the median step that the emulated program itself prints, steps from the third on.
A case in whose true profile rank 0's GPU idles for more than a tenth of a step is bound by the host, whose speed is that of the machine at the time: listed
apart, no part of the bars.

predictions.json is written with its SHA-256 before `truth` runs anything; `truth` refuses to run without it and keeps
the hash. The network profile of the machine may be used, nothing of the job on several GPUs.

Every phase goes on where it stopped: what is there is not run again. Exit code: 0, 1 if a run failed, 3 if a bar was
missed (iteration time: mean error 3 %, each 5 %; memory of rank 0: allocated equal to the byte, used on the device within 2 %).
"""

import argparse
import json
import os
import re
import shlex
import shutil
import statistics
import sys
from pathlib import Path

from gpu_jobs import JOBS as CASES
from gpu_jobs import SMALL
from gpu_sampler import GpuSampler
from predictions import completed_verb, read_predictions, write_predictions
from provenance import ROOT, gpus, provenance
from torchrun import RANK_LINE, STEP_LINE, RunFailed, last_error, progress, run_to_end, torchrun

SCHEMA = 1
PRODUCT_LINE = re.compile(r"^rank (\d+) normal +([\d.]+) ms", re.M)
WARM_UP = 2  # steps that do not count
HELD_OUT = ("fsdp2-3b", "expert-wide")  # never looked at while the method was made
IDLE_SHARE = 0.1  # of a step's time, beyond which a case is bound by the host
WHERE = ("truth", "emulated")
PROFILED = (6, 6)  # from which step on, and how many
MEAN_BAR, MAXIMUM_BAR, DEVICE_BAR = 0.03, 0.05, 0.02
ABLATIONS = {  # further emulations of a case: (job that is played, flags)
    "one-pass": ("captured", ("--peers", "instant")),  # not paced by what was calibrated
    "no-traffic": ("calibrated", ("--stand-in", "stall")),
    "one-regime": ("calibrated-launched", ()),
    "no-jitter": ("calibrated", ("--samples", "all")),
}


class Runner:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options

    def program(self, case: str) -> list[str]:
        file, *flags = CASES[case]
        return [str(ROOT / "examples" / file), *flags, *self.options.extra, "--steps", str(self.options.steps)]

    def run(self, command: list, log: Path) -> str:
        code, text, seconds = run_to_end(command, {}, self.options.timeout)
        log.write_text(text)
        progress(f"emulate: {log.parent.name}/{log.stem}: {seconds:.0f} s, code {code}")
        if code != 0:
            raise RunFailed(f"{log}: code {code}: {last_error(text)}")
        return text

    def verb(self, name: str, folder: Path, job: str, *arguments) -> str:
        return completed_verb(self.run, self.options.prism, name, folder, job, arguments)


def figures(text: str) -> dict:
    """What an example printed: the median of its steps, and rank 0's peaks."""
    steps = [float(match[3]) for match in STEP_LINE.finditer(text)]
    peaks = {int(match[1]): (int(match[3]), int(match[4]), int(match[5] or 0)) for match in RANK_LINE.finditer(text)}
    if len(steps) <= WARM_UP or 0 not in peaks:
        raise RunFailed(f"{len(steps)} steps and peaks of ranks {sorted(peaks)} were printed")
    allocated, reserved, used = peaks[0]
    return {"step_ms": statistics.median(steps[WARM_UP:]), "steps_ms": steps, "allocated": allocated, "reserved": reserved, "device_used": used}


def slowest_gpu(runner: Runner) -> dict:
    """Makes the slowest GPU the one that ranks run on. Returns its number and by GPU the milliseconds of a product; nothing where there is one GPU."""
    options, here = runner.options, len(gpus())
    if here < 2:
        return {}
    text = runner.run([*torchrun(options.python, here), ROOT / "bench/programs/power.py", "normal"], options.out / "products.log")
    times = {int(rank): float(ms) for rank, ms in PRODUCT_LINE.findall(text)}
    if len(times) != here:
        raise RunFailed(f"{len(times)} of {here} GPUs were timed")
    slowest = max(times, key=times.__getitem__)
    os.environ["PRISM_REAL_DEVICES"] = str(slowest)
    return {"gpu": slowest, "product_ms": times}


def predict(options: argparse.Namespace) -> int:
    runner, failed, predictions = Runner(options), False, {}
    options.out.mkdir(parents=True, exist_ok=True)
    slowest = slowest_gpu(runner)
    progress(f"emulate: {slowest}")
    network = ("--network", options.network) if options.network else ()
    device = ("--device", "cuda")  # without a GPU: host_accuracy.py, on the virtual clock
    for case in options.cases:
        folder = options.out / case
        folder.mkdir(parents=True, exist_ok=True)
        command = [*torchrun(options.python, options.world), *runner.program(case)]
        try:
            runner.verb("capture", folder, "captured", *device, "--exact-payload", "1MiB", "--target", options.target, "--", *command)
            runner.verb("calibrate", folder, "calibrated", folder / "captured", *device, *network)
            text = runner.verb("emulate", folder, "emulated", folder / "calibrated", *device, *network)
            predictions[case] = figures(text)
            for name in options.ablations if case in (options.ablated or options.cases) else ():
                job, flags = ABLATIONS[name]
                if job == "calibrated-launched":
                    runner.verb("calibrate", folder, job, folder / "captured", *device, *network, "--spans", "launched")
                text = runner.verb("emulate", folder, name, folder / job, *device, *network, *flags)
                predictions[case].setdefault("ablations", {})[name] = figures(text)["step_ms"]
        except RunFailed as failure:
            failed = True
            progress(f"emulate: {case}: {failure}")
    write_predictions(options.out, {**provenance(), "gpus": gpus(), "slowest": slowest, "world": options.world, "cases": predictions})
    return 1 if failed else 0


def truth(options: argparse.Namespace) -> int:
    runner, failed = Runner(options), False
    _, digest = read_predictions(options.out)
    for case in options.cases:
        for repeat in range(options.repeats):
            file = options.out / case / f"truth-{repeat}.json"
            if file.exists():
                continue
            file.parent.mkdir(parents=True, exist_ok=True)
            try:
                text = runner.run([*torchrun(options.python, options.world), *runner.program(case)], file.with_suffix(".log"))
                file.write_text(json.dumps({"predictions_sha256": digest, **provenance(), "gpus": gpus(), **figures(text)}))
            except RunFailed as failure:
                failed = True
                progress(f"emulate: {case}: {failure}")
    return 1 if failed else 0


def profile(options: argparse.Namespace) -> int:
    """Runs each case once more under PyTorch's profiler, truly and emulated, and keeps the GPUs' clocks and power of both."""
    runner, failed = Runner(options), False
    network = ("--network", options.network) if options.network else ()
    first, count = PROFILED
    for case in options.cases:
        folder = options.out / case
        for where in options.where:
            out = folder / f"profile-{where}"
            if (out / "rank-0.json").exists():
                continue
            job = folder / "profiled"
            verb = [options.prism, "emulate", folder / "calibrated", "--job", job, "--force", "--device", "cuda", *network, "--"]
            launch = [*torchrun(options.python, options.world), ROOT / "bench/programs/profiled.py", out, first, count]
            try:
                with GpuSampler() as sampler:
                    runner.run([*(verb if where == "emulated" else ()), *launch, *runner.program(case)], folder / f"profile-{where}.log")
                (out / "gpus.json").write_text(json.dumps(sampler.medians, indent=1))
            except RunFailed as failure:
                failed = True
                progress(f"emulate: {case}: {failure}")
            shutil.rmtree(job, ignore_errors=True)
    return 1 if failed else 0


def read_profiles(folder: Path) -> dict:
    """By `truth` and `emulated`: what rank 0's kernels took, and the GPUs."""
    found = {}
    for where in WHERE:
        out = folder / f"profile-{where}"
        if (out / "rank-0.json").exists():
            found[where] = {"rank_0": json.loads((out / "rank-0.json").read_text()), "gpus": json.loads((out / "gpus.json").read_text())}
            if (other := out / "rank-1.json").exists():
                found[where]["rank_1"] = json.loads(other.read_text())
    return found


def describe_profiles(profiles: dict) -> list[str]:
    """Lines of a table: ms a step by kind of kernel, truly and emulated."""
    if set(profiles) != set(WHERE):
        return []
    true, emulated = (profiles[where]["rank_0"] for where in WHERE)
    kinds = [kind for kind in true["kinds"] if max(true["kinds"][kind]["ms"], 0) > 0.005 * true["step_ms"]]
    rows = [(name, true[name], emulated[name]) for name in ("computing_ms", "only_communication_ms", "idle_ms")]
    rows += [(kind, true["kinds"][kind]["ms"], emulated["kinds"].get(kind, {"ms": 0})["ms"]) for kind in kinds]
    lines = [f"    {name:22} {a:9.2f} {b:9.2f} ms ({(b - a) / true['step_ms']:+.2%} of the step)" for name, a, b in rows]
    for where in WHERE:
        shown = "; ".join(f"GPU {gpu}: {g['sm_mhz']:.0f} MHz, {g['power_w']:.0f} W" for gpu, g in profiles[where]["gpus"].items())
        lines.append(f"    {where:9} {shown}")
    return lines


def is_among_truths(figures: list[int]) -> bool:
    """Whether the first, which was predicted, is one of the others."""
    return figures[0] in figures[1:]


def evaluate(options: argparse.Namespace) -> int:
    head, digest = read_predictions(options.out)
    rows = []
    for case, predicted in head.pop("cases").items():
        runs = [json.loads(file.read_text()) for file in sorted((options.out / case).glob("truth-*.json"))]
        runs = [run for run in runs if run["predictions_sha256"] == digest]
        if not runs:
            continue
        medians = [run["step_ms"] for run in runs]
        true_ms = statistics.median(medians)
        profiles = read_profiles(options.out / case)
        of_truth = profiles.get("truth", {}).get("rank_0")
        host_bound = of_truth is not None and of_truth["idle_ms"] > IDLE_SHARE * of_truth["step_ms"]
        row = {
            "case": case, "held_out": case in HELD_OUT, "host_bound": host_bound, "profiles": profiles, "predicted_ms": predicted["step_ms"], "truth_ms": true_ms,
            "truth_runs_ms": medians, "error": predicted["step_ms"] / true_ms - 1,
            **{figure: [predicted[figure], *(run[figure] for run in runs)] for figure in ("allocated", "reserved", "device_used")},
            "ablations": {name: ms / true_ms - 1 for name, ms in predicted.get("ablations", {}).items()},
        }  # fmt: skip
        rows.append(row)
        shown = "  ".join(f"{name} {error:+.2%}" for name, error in row["ablations"].items())
        print(f"{case:14} {row['predicted_ms']:9.3f} for {true_ms:9.3f} ms  {row['error']:+.2%}  "
              f"allocated {'equal' if is_among_truths(row['allocated']) else row['allocated']}  "
              f"on the device {row['device_used'][0] / row['device_used'][1] - 1:+.2%}  {shown}{'  (host-bound)' if row['host_bound'] else ''}", *describe_profiles(profiles), sep="\n")  # fmt: skip
    if not rows:
        sys.exit("no case has both a prediction and a truth of it")
    judged = [row for row in rows if not row["host_bound"]] or rows
    errors = [abs(row["error"]) for row in judged]
    missed = [
        row["case"] for row in judged
        if abs(row["error"]) > MAXIMUM_BAR or not is_among_truths(row["allocated"])
        or abs(row["device_used"][0] / row["device_used"][1] - 1) > DEVICE_BAR
    ]  # fmt: skip
    print(f"iteration time: mean {statistics.mean(errors):.2%}, maximum {max(errors):.2%}; beyond a bar: {', '.join(missed) or 'none'}")
    result = {"schema": SCHEMA, "benchmark": "emulate", "predicted": head, "predictions_sha256": digest, **provenance(),
              "mean_error": statistics.mean(errors), "maximum_error": max(errors), "cases": rows}  # fmt: skip
    if options.output:
        options.output.write_text(json.dumps(result, indent=1) + "\n")
    return 3 if missed or statistics.mean(errors) > MEAN_BAR else 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    prediction, true, profiling, evaluation = (verbs.add_parser(name) for name in ("predict", "truth", "profile", "evaluate"))
    for verb in (prediction, true, profiling, evaluation):
        verb.add_argument("--out", type=Path, required=True, metavar="DIR")
    for verb in (prediction, true, profiling):
        verb.add_argument("--cases", nargs="+", choices=CASES, default=[case for case in CASES if case not in SMALL])
        verb.add_argument("--world", type=int, default=2)
        verb.add_argument("--steps", type=int, default=22)
        verb.add_argument("--python", type=Path, default=Path(sys.executable), metavar="FILE")
        verb.add_argument("--timeout", type=float, default=180, metavar="S")
        verb.add_argument("--extra", type=shlex.split, default=[], metavar="FLAGS", help="further flags of the examples, e.g. a smaller model")
    for verb in (prediction, profiling):
        verb.add_argument("--prism", type=Path, default=ROOT / "build/ci/bin/prism", metavar="FILE")
        verb.add_argument("--network", type=Path, metavar="FILE", help="profile of `prism netprofile`; formulas without")
    prediction.add_argument("--target", default="h200x8")
    profiling.add_argument("--where", nargs="+", choices=WHERE, default=list(WHERE))
    prediction.add_argument("--ablations", nargs="*", choices=ABLATIONS, default=[])
    prediction.add_argument("--ablated", nargs="+", choices=CASES, metavar="CASE", help="which cases; all by default")
    true.add_argument("--repeats", type=int, default=2)
    evaluation.add_argument("--output", type=Path, metavar="FILE")
    return parser.parse_args()


def main() -> int:
    options = parse_arguments()
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    return {"predict": predict, "truth": truth, "profile": profile, "evaluate": evaluate}[options.verb](options)


if __name__ == "__main__":
    sys.exit(main())
