#!/usr/bin/env python3
"""Holds the device memory of a captured job against the true run: each rank's peak, and who fails where it does not fit.

    bench/memory_limit.py --out .out/memory --output bench/results/memory_limit.json
    bench/memory_limit.py --out .out/memory --ranks 8

The job is moe_trainer --timed at the size of a real model: what its experts hold depends on the routing, so peaks differ from rank to
rank. The true run is N processes on hostcuda, a device each; the capture is `prism capture` of the same under torchrun.

| run          | memory of a device                                                                                  |
|--------------|-----------------------------------------------------------------------------------------------------|
| as it is     | an H200's                                                                                           |
| just enough  | what the rank with the largest peak takes, with its context and, in the capture, its NCCL           |
| too little   | 2 MiB (the driver's granularity) less: that rank alone does not fit                                 |

Bars: without a limit the peaks that prism reports equal the true ones to the byte; with just enough both succeed; with too little the
same allocation of the same rank fails in both (rank, bytes asked for, bytes held).
NCCL's own memory is modelled in a capture, and hostnccl takes none: the true run's devices are smaller by what the report says.
Exit code: 0, 1 if a run failed that should not, 3 if a bar was missed.
"""

import argparse
import json
import re
import shutil
import sys
import uuid
from pathlib import Path

from provenance import ROOT, provenance
from torchrun import last_error, progress, run_to_end

SCHEMA = 1
GRANULARITY, SMALL = 2 << 20, 1 << 20
FAILED = re.compile(r"rank (\d+): cudaMalloc of (\d+) bytes, after (\d+) bytes")
LAYOUTS = {8: {"dp": 2, "tp": 2, "pp": 2, "ep": 4}, 32: {"dp": 4, "tp": 2, "pp": 4, "ep": 8}}
MODEL = {"layers": 8, "hidden": 4096, "heads": 32, "experts": 32, "expert-hidden": 4096, "top-k": 4, "sequence": 4096, "vocabulary": 32768,
         "micro-batches": 4, "imbalance": 0.6, "steps": 3}  # fmt: skip


class Job:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.flags = ["--timed", *(word for name, value in (MODEL | LAYOUTS[options.ranks]).items() for word in (f"--{name}", value))]
        self.per_node = min(options.ranks, 8)
        self.gpu = json.loads((ROOT / "src/engine/targets/h200.json").read_text())

    def _run(self, command: list, environment: dict[str, str]) -> tuple[int, str]:
        session = {"HOSTCUDA_SESSION": f"memory-{uuid.uuid4().hex[:12]}"}
        code, text, _ = run_to_end(command, session | environment, self.options.timeout)
        if code is None:
            sys.exit(f"{' '.join(map(str, command))}: no end after {self.options.timeout:.0f} s: {last_error(text)}")
        return code, text

    def true(self, memory_bytes: int) -> tuple[int, str, list[int]]:
        """Runs all ranks, a device of `memory_bytes` each; returns code, output and, where it succeeded, the peaks."""
        options, result = self.options, self.options.out / "true.json"
        result.unlink(missing_ok=True)
        environment = {"HOSTCUDA_MEMORY": str(memory_bytes), "HOSTCUDA_DEVICES": str(options.ranks)}
        command = [options.build / "hostcuda/bin/hostcuda", "run", "--", options.build / "examples/moe_trainer", *self.flags, "--launch", options.ranks,
                   "--gpus-per-node", options.ranks, "--json", result]  # fmt: skip
        code, text = self._run(command, environment)
        return code, text, [rank["peak_device_bytes"] for rank in json.loads(result.read_text())["ranks"]] if code == 0 else []

    def capture(self, memory_bytes: int) -> tuple[int, str, list[dict]]:
        """Captures the job for such devices; returns code, output and what prism reports of each rank's memory."""
        options, job = self.options, self.options.out / "job"
        shutil.rmtree(job, ignore_errors=True)
        prism, nodes = options.build / "bin/prism", options.ranks // self.per_node
        launcher = [options.python.absolute().parent / "torchrun", "--no-python", f"--nnodes={nodes}", f"--nproc-per-node={self.per_node}"]
        command = [prism, "capture", "--device", "host", "--values", "none", "--tee", "all", "--target", f"h200x{self.per_node}:{nodes}", "--gpu-memory",
                   memory_bytes, "--job", job]  # fmt: skip
        code, text = self._run([*command, "--", *launcher, options.build / "examples/moe_trainer", *self.flags], {})
        if code != 0:
            return code, text, []
        told, report = self._run([prism, "report", job, "--json"], {})
        if told != 0:
            sys.exit(f"prism report {job}: {last_error(report)}")
        return code, text, json.JSONDecoder().raw_decode(report, report.find("{"))[0]["memory"]


def failure(code: int, text: str) -> list[tuple[int, int, int]]:
    """Which allocation failed: rank, bytes asked for, bytes that it held. Empty where the run succeeded."""
    return sorted({tuple(map(int, found)) for found in FAILED.findall(text)}) if code != 0 else []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=lambda path: Path(path).absolute(), required=True, metavar="DIR", help="scratch")
    parser.add_argument("--ranks", type=int, choices=LAYOUTS, default=32)
    parser.add_argument("--build", type=lambda path: Path(path).absolute(), default=ROOT / "build/ci", metavar="DIR")
    parser.add_argument("--python", type=Path, default=ROOT / ".env/bin/python", metavar="FILE")
    parser.add_argument("--timeout", type=float, default=300, metavar="S", help="seconds a run may take")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the JSON here, e.g. bench/results/memory_limit.json")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    job, missed = Job(options), []
    context, whole = job.gpu["context_bytes"], job.gpu["memory_bytes"]

    code, text, true_peaks = job.true(whole)
    captured_code, captured_text, memory = job.capture(whole)
    if code or captured_code:
        progress(last_error(text if code else captured_text))
        return 1
    predicted = [rank["peak_reserved_bytes"] for rank in memory]
    if predicted != true_peaks:
        missed.append(f"peaks: {predicted} predicted, {true_peaks} true")
    progress(f"peaks of {options.ranks} ranks: {min(true_peaks) / 2**30:.3f} to {max(true_peaks) / 2**30:.3f} GiB, {len(set(true_peaks))} different, "
             + ("predicted to the byte" if predicted == true_peaks else "PREDICTED OTHERWISE"))  # fmt: skip

    largest, second = sorted(range(options.ranks), key=lambda rank: -true_peaks[rank])[:2]
    needed = -(-true_peaks[largest] // GRANULARITY) * GRANULARITY
    if needed - true_peaks[second] < 2 * GRANULARITY + SMALL:
        sys.exit(f"ranks {largest} and {second} have nearly one peak: which of them fails would be chance")
    runs = {}
    for name, room in (("just enough", needed), ("too little", needed - GRANULARITY)):
        code, text, _ = job.true(context + room)
        captured_code, captured_text, _ = job.capture(context + memory[largest]["nccl_bytes"] + room)
        row = {"memory_bytes": context + room, "nccl_bytes": memory[largest]["nccl_bytes"], "true": failure(code, text),
               "captured": failure(captured_code, captured_text), "codes": [code, captured_code]}  # fmt: skip
        expected = code == captured_code == 0 if name == "just enough" else len(row["true"]) == 1 and row["true"] == row["captured"]
        if not expected:
            missed.append(f"{name}: {row}: {last_error(text)} / {last_error(captured_text)}")
        told = [f"rank {rank} asked for {asked} bytes and held {held}" for rank, asked, held in row["true"]]
        progress(f"{name}: " + (f"both {'fail: ' + told[0] if told else 'succeed'}" if expected else f"MISSED: {row}"))
        runs[name] = row
    result = {"schema": SCHEMA, "benchmark": "memory_limit", **provenance(), "ranks": options.ranks, "layout": LAYOUTS[options.ranks], "model": MODEL,
              "true_peaks": true_peaks, "predicted_peaks": predicted, "nccl_bytes": [rank["nccl_bytes"] for rank in memory], "limits": runs,
              "missed": missed}  # fmt: skip
    if options.output:
        options.output.write_text(json.dumps(result, indent=1) + "\n")
    for line in missed:
        progress(f"missed: {line}")
    return 3 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
