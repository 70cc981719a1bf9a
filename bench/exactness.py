#!/usr/bin/env python3
"""Compares a captured job with the true run of N processes, bit for bit, and the true run with the CPU's own.

    bench/exactness.py                                            # five kinds, world 4 and 8, true run against cpu/gloo
    bench/exactness.py --capture .out/exactness                   # and through `prism capture`
    bench/exactness.py --kinds expert --world 16 --capture .out/moe --no-gloo
    bench/exactness.py --dtype bf16
    bench/exactness.py --kinds trainer --world 32 --capture .out/trainer    # the C++ trainer

Each case trains examples/train_gpt.py or train_moe.py (tiny preset) for a few steps, three ways:

| run     | how                                                                                          |
|---------|----------------------------------------------------------------------------------------------|
| true    | torchrun, N processes, on hostcuda with true values and hostnccl; no prism                   |
| capture | the same command under `prism capture --values cpu`                                          |
| gloo    | the same program with --device cpu: PyTorch's CPU kernels and Gloo, nothing of this project  |
| once    | bf16 tensor parallelism: gloo, but reductions sum in fp32 and round once (programs/reduce_once.py) |

`trainer` is examples/cpp/moe_trainer --real: a mixture of experts that routes by value, with tensor, pipeline, expert and data
parallelism together, without PyTorch; there is no gloo run of it (its own test holds it against a reference in one process).

Bars: capture equals true in every loss and in every rank's parameter checksum, bitwise. True is within 1e-5 of gloo in
every loss in fp32; in bf16 within 1e-4 in the first, later ones are reported. Where `once` exists it is what true is held
against, because Gloo's own rounding moves the first loss by 1e-4; gloo is reported beside it.
Exit code: 0, or 1 if a run failed, or 3 if a bar was missed.
"""

import argparse
import json
import shutil
import sys
import tempfile
import uuid
from pathlib import Path

from provenance import ROOT, provenance
from torchrun import RunFailed, TrainingRun, last_error, progress, run_to_end, run_training, torchrun

SCHEMA = 1
KINDS = {
    "ddp": ("train_gpt.py", "--parallel", "ddp"),
    "fsdp2": ("train_gpt.py", "--parallel", "fsdp2"),
    "tensor": ("train_gpt.py", "--parallel", "tp"),
    "pipeline": ("train_gpt.py", "--parallel", "pp"),
    "expert": ("train_moe.py",),
}
# Of moe_trainer, by world size.
LAYOUTS = {
    4: {"dp": 2, "tp": 2, "ep": 4, "layers": 4},
    8: {"dp": 2, "tp": 2, "pp": 2, "ep": 4, "layers": 4},
    16: {"dp": 2, "tp": 2, "pp": 4, "ep": 4, "interleave": 2, "layers": 8},
    32: {"dp": 4, "tp": 2, "pp": 4, "ep": 8, "interleave": 2, "layers": 8, "experts": 16},
}
GLOO_BARS = {"fp32": 1e-5, "bf16": 1e-4}


class Case:
    """One kind of parallelism at one world size; knows the command of each of its runs."""

    def __init__(self, kind: str, world: int, options: argparse.Namespace) -> None:
        self.kind, self.world, self.options = kind, world, options
        file, *flags = KINDS[kind]
        self.program = [ROOT / "examples" / file, *flags, "--dtype", options.dtype, "--steps", options.steps, "--checksum"]
        if kind == "expert" and world > 16:
            self.program += ["--experts", world]
        if kind == "tensor" and world > 8:
            self.program += ["--heads", world, "--key-value-heads", world]
        if kind == "pipeline" and world > 8:
            self.program += ["--layers", world]

    def true(self) -> TrainingRun:
        environment = {"HOSTCUDA_VALUES": "cpu", "HOSTCUDA_DEVICES": str(max(8, self.world))}
        return self._run([*torchrun(self.options.python, self.world), *self.program], environment)

    def gloo(self, *wrapper: Path) -> TrainingRun:
        return self._run([*torchrun(self.options.python, self.world), *wrapper, *self.program, "--device", "cpu"], {})

    def once(self) -> TrainingRun:
        return self.gloo(ROOT / "bench/programs/reduce_once.py")

    def capture(self, job: Path, *flags: str) -> TrainingRun:
        """Captures it into `job`; `flags`: of prism capture."""
        nodes, per_node = (1, self.world) if self.world <= 8 else (self.world // 8, 8)
        if job.exists():
            shutil.rmtree(job)  # of an earlier run of this script
        job.parent.mkdir(parents=True, exist_ok=True)
        launcher = [self.options.python, "-m", "torch.distributed.run", f"--nnodes={nodes}"]
        command = [self.options.prism, "capture", "--device", "host", *(flags or ("--values", "cpu")), "--tee", "all"]
        command += ["--target", f"h200x{per_node}:{nodes}", "--job", job, "--", *launcher]
        return self._run([*command, f"--nproc-per-node={per_node}", *self.program], {})

    def _run(self, command: list, environment: dict[str, str]) -> TrainingRun:
        return run_training(command, environment, self.world, self.options.steps, self.options.timeout)


class TrainerCase(Case):
    """The same of moe_trainer, which writes what it found to a file."""

    def __init__(self, world: int, options: argparse.Namespace) -> None:
        self.kind, self.world, self.options = "trainer", world, options
        self.result = Path(tempfile.gettempdir(), f"exactness-{uuid.uuid4().hex}.json")
        sizes = {"micro-batches": 4, "imbalance": 0.5, "steps": options.steps} | LAYOUTS[world]
        self.trainer = [options.prism.absolute().parents[1] / "examples/moe_trainer", "--real", "--json", self.result]
        self.trainer += [word for name, value in sizes.items() for word in (f"--{name}", value)]
        self.program = ["--no-python", *self.trainer]

    def true(self) -> TrainingRun:
        hostcuda = self.options.prism.absolute().parents[1] / "hostcuda/bin/hostcuda"
        # A session of its own: others' devices would be full of their ranks.
        return self._run([hostcuda, "run", "--values", "cpu", "--", *self.trainer, "--launch", self.world], {"HOSTCUDA_SESSION": self.result.stem})

    def _run(self, command: list, environment: dict[str, str]) -> TrainingRun:
        try:
            code, text, seconds = run_to_end(command, environment, self.options.timeout)
            if code != 0:
                raise RunFailed(f"code {code}: {' '.join(map(str, command))}\n    {last_error(text)}")
            found = json.loads(self.result.read_text())
        finally:
            self.result.unlink(missing_ok=True)
        steps, ranks = found["steps"], dict(enumerate(found["ranks"]))
        return TrainingRun(
            [step["loss"].hex() for step in steps],
            [step["milliseconds"] for step in steps],
            {rank: of["checksum"] for rank, of in ranks.items()},
            {rank: (of["peak_device_bytes"], of["peak_device_bytes"]) for rank, of in ranks.items()},
            seconds,
        )


def case_of(kind: str, world: int, options: argparse.Namespace) -> Case:
    return TrainerCase(world, options) if kind == "trainer" else Case(kind, world, options)


def differences(ours: TrainingRun, theirs: TrainingRun) -> list[float]:
    return [abs(float.fromhex(a) - float.fromhex(b)) for a, b in zip(ours.losses, theirs.losses, strict=True)]


def compare(case: Case, job: Path | None) -> dict:
    """Runs a case and returns its row: what each comparison gave, and which bars were missed."""
    options = case.options
    row: dict = {"kind": case.kind, "world": case.world, "dtype": options.dtype, "missed": [], "failed": []}
    runs: dict[str, TrainingRun] = {}
    wanted = {"true": case.true}
    if job:
        wanted["capture"] = lambda: case.capture(job)
    if not options.no_gloo and case.kind in KINDS:
        wanted["gloo"] = case.gloo
        if case.kind == "tensor" and options.dtype == "bf16":
            wanted["once"] = case.once
    for name, run in wanted.items():
        try:
            runs[name] = run()
        except RunFailed as failure:
            row["failed"].append(name)
            progress(f"exactness: {case.kind} at {case.world}, {name} run: {failure}")
            continue
        row[f"{name}_losses"] = runs[name].losses
        row[f"{name}_seconds"] = round(runs[name].seconds, 1)
    if "true" not in runs:
        return row
    row["checksums"] = runs["true"].checksums
    if "capture" in runs:
        row["losses_bitwise"] = runs["capture"].losses == runs["true"].losses
        row["checksums_bitwise"] = runs["capture"].checksums == runs["true"].checksums
        row["missed"] += [bar for bar in ("losses_bitwise", "checksums_bitwise") if not row[bar]]
    for name in runs.keys() & {"gloo", "once"}:
        row[f"{name}_differences"] = differences(runs["true"], runs[name])
    if held := row.get("once_differences", row.get("gloo_differences")):
        judged = held if options.dtype == "fp32" else held[:1]
        if not max(judged) <= GLOO_BARS[options.dtype]:  # so that NaN misses it too
            row["missed"].append(f"gloo within {GLOO_BARS[options.dtype]:g}")
    return row


def shown(row: dict) -> list[str]:
    def bitwise(figure: str) -> str:
        return "-" if figure not in row else "bitwise" if row[figure] else "DIFFER"

    def largest(name: str, losses: slice) -> str:
        return f"{max(row[name][losses]):.1e}" if name in row else "-"

    first, whole = slice(1), slice(None)
    seconds = "/".join(f"{row[key]:.0f}" for key in ("true_seconds", "capture_seconds", "gloo_seconds") if key in row)
    verdict = f"failed: {', '.join(row['failed'])}" if row["failed"] else f"MISSED: {', '.join(row['missed'])}"
    return [
        row["kind"],
        str(row["world"]),
        row["dtype"],
        bitwise("losses_bitwise"),
        bitwise("checksums_bitwise"),
        largest("gloo_differences", first),
        largest("gloo_differences", whole),
        largest("once_differences", whole),
        seconds,
        verdict if row["failed"] or row["missed"] else "ok",
    ]


def print_table(rows: list[dict]) -> None:
    head = ["kind", "world", "dtype", "losses", "checksums", "gloo: first", "largest", "once", "s", ""]
    lines = [head, *map(shown, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", choices=[*KINDS, "trainer"], default=list(KINDS))
    parser.add_argument("--world", nargs="+", type=int, default=[4, 8], metavar="N")
    parser.add_argument("--dtype", choices=GLOO_BARS, default="fp32")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--capture", type=Path, metavar="DIR", help="capture too; the job's directory, or of several jobs")
    parser.add_argument("--no-gloo", action="store_true", help="leave out the CPU's own run")
    parser.add_argument("--python", type=Path, default=ROOT / ".env/bin/python", metavar="FILE")
    parser.add_argument("--prism", type=Path, default=ROOT / "build/ci/bin/prism", metavar="FILE")
    parser.add_argument("--timeout", type=float, default=300, metavar="S", help="seconds a run may take (default: 300)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON, not as a table")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the JSON here, e.g. bench/results/exactness.json")
    options = parser.parse_args()
    for name, file in (("python", options.python), ("prism", options.prism)):
        if (name == "python" or options.capture) and not file.exists():
            parser.error(f"--{name} {file} does not exist: run `make build`, or say where it is")
    if "trainer" in options.kinds and (options.dtype != "fp32" or not set(options.world) <= LAYOUTS.keys()):
        parser.error(f"--kinds trainer computes in fp32, with --world {', '.join(map(str, LAYOUTS))}")
    return options


def main() -> int:
    options = parse_arguments()
    cases = [case_of(kind, world, options) for kind in options.kinds for world in options.world]
    rows = []
    for number, case in enumerate(cases, 1):
        job = options.capture
        if job and len(cases) > 1:
            job = job / f"{case.kind}-{case.world}"
        rows.append(compare(case, job))
        progress(f"[{number}/{len(cases)}] " + "  ".join(shown(rows[-1])))
    result = {"schema": SCHEMA, "benchmark": "exactness", **provenance(), "steps": options.steps, "cases": rows}
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(result, indent=1) + "\n")
    if options.json:
        print(json.dumps(result, indent=1))
    else:
        print_table(rows)
    if any(row["failed"] for row in rows):
        return 1
    return 3 if any(row["missed"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
