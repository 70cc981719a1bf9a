#!/usr/bin/env python3
"""Lets ranks fail on a GPU, and shows that prism says the same as without one and leaves nothing there.

    bench/failures_gpu.py --out failures-cuda.json                    # on a machine with a GPU
    bench/failures_gpu.py --device host --out failures-host.json      # the same on hostcuda
    bench/failures_gpu.py --compare failures-cuda.json failures-host.json

| case        | what                                                                                              |
|-------------|---------------------------------------------------------------------------------------------------|
| raise       | rank 1 of two captured ranks (examples/faults.py) raises an exception                              |
| kill        | rank 1 is killed                                                                                  |
| memory      | examples/train_gpt.py wants more memory than the target has                                       |
| gpu-memory  | two ranks together want more memory than the GPU has, each less than the target's (GPU only)      |
| controller  | prism itself is killed while its ranks work                                                       |
| emulate-*   | a rank that is emulated raises an exception, or is killed                                          |

Each ends within --timeout, with a code other than 0, and a line that names what failed. Afterwards no process is left that uses the GPU, and its memory
in use is what it was before. Exit code: 0, 1 if a case did not end, 3 if something was left or nothing was named.
"""

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from provenance import ROOT, gpus, provenance
from torchrun import progress, torchrun

SCHEMA = 1
LEFT_S = 10  # within which the driver has taken back what dead processes had
SLACK_MIB = 16
WAIT = "import torch, time; x = torch.ones(1 << 20, device='cuda'); print('works', flush=True); time.sleep(600)"
GREEDY = "import torch; x = [torch.empty(90 << 30, dtype=torch.uint8, device='cuda')]; torch.cuda.synchronize(); import time; time.sleep(3)"
NAMED = {  # what must be said
    "raise": r"rank 1 .*(exited|failed).*", "kill": r"rank 1 .*killed.*", "memory": r".*OutOfMemoryError.*", "gpu-memory": r".*(out of memory|OutOfMemory).*",
    "controller": "", "emulate-raise": r".*(rank 1 met a bad sample|exited with code).*", "emulate-kill": r".*(killed|SIGKILL|signal 9).*",
}  # fmt: skip


def gpu_memory_mib() -> list[int]:
    """Of each GPU, what is in use; none without a driver."""
    try:
        asked = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return []
    return [int(line) for line in asked.stdout.split()]


def descendants(session: str) -> list[int]:
    """Processes that carry this case's mark in their environment."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            if session.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def left_over(before: list[int], session: str) -> tuple[list[int], list[int]]:
    """MiB in use beyond `before`, and the case's processes, once there are none or LEFT_S have passed."""
    end = time.monotonic() + LEFT_S
    while True:
        left = [now - then for now, then in zip(gpu_memory_mib(), before)]
        processes = descendants(session)
        if (all(mib <= SLACK_MIB for mib in left) and not processes) or time.monotonic() > end:
            return left, processes
        time.sleep(0.5)


class Failures:
    def __init__(self, options: argparse.Namespace, jobs: Path) -> None:
        self.options, self.jobs = options, jobs

    def capture(self, name: str, command: list, *flags) -> list:
        options = self.options
        return [options.prism, "capture", "--tee", "all", "--device", options.device, "--target", "h200x8", "--job", self.jobs / name, *flags, "--", *command]

    def faults(self, *flags) -> list:
        return [*torchrun(self.options.python, 2), ROOT / "examples/faults.py", *flags]

    def python(self, code: str, ranks: int) -> list:
        file = self.jobs / f"program-{ranks}.py"
        file.write_text(code.replace("device='cuda'", "device=torch.device('cuda', int(__import__('os').environ.get('LOCAL_RANK', 0)))"))
        return [*torchrun(self.options.python, ranks), file]

    def command(self, name: str) -> list:
        if name in ("raise", "kill"):
            return self.capture(name, self.faults("--fault", name))
        if name == "memory":
            return self.capture(name, [*torchrun(self.options.python, 1), ROOT / "examples/train_gpt.py", "--preset", "1b", "--dtype", "bf16",
                                       "--seq", "2048", "--micro-batch", "512", "--steps", "2"])  # fmt: skip
        if name == "gpu-memory":
            return self.capture(name, self.python(GREEDY, 2))
        if name == "controller":
            return self.capture(name, self.python(WAIT, 2))
        healthy = self.jobs / "healthy"
        if not healthy.exists():
            subprocess.run([str(w) for w in self.capture("healthy", self.faults())], check=True, capture_output=True, timeout=self.options.timeout)
        fault = name.removeprefix("emulate-")
        return [self.options.prism, "emulate", healthy, "--device", self.options.device, "--rank", 1, "--job", self.jobs / name, "--tee", "all", "--",
                *self.faults("--fault", fault)]  # fmt: skip

    def run(self, name: str) -> dict:
        command = [str(word) for word in self.command(name)]
        session, before, start = f"failure-{name}-{os.getpid()}", gpu_memory_mib(), time.monotonic()
        with tempfile.TemporaryFile("w+") as output:
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True,
                                       env=os.environ | {"HOSTCUDA_SESSION": session, "FAILURE_CASE": session})  # fmt: skip
            try:
                if name == "controller":
                    self.kill_when_ranks_work(process, output)
                code: int | None = process.wait(self.options.timeout)
            except subprocess.TimeoutExpired:
                code = None
            seconds = time.monotonic() - start
            left, processes = left_over(before, session)
            for pid in processes:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            output.seek(0)
            text = output.read()
        said = [line for line in text.splitlines() if NAMED[name] and re.fullmatch(NAMED[name], line.strip().removeprefix("prism: "))]
        row = {"case": name, "code": code, "seconds": round(seconds, 1), "said": said[:3], "left_mib": left, "processes_left": len(processes)}
        worked = name != "controller" or (text.count("works") >= 2 and code == -signal.SIGKILL)
        row["ok"] = worked and code not in (None, 0) and not processes and all(mib <= SLACK_MIB for mib in left) and (bool(said) or not NAMED[name])
        if not row["ok"]:
            row["output"] = text[-3000:]
        return row

    def kill_when_ranks_work(self, process, output) -> None:
        end = time.monotonic() + self.options.timeout
        while time.monotonic() < end and process.poll() is None:
            output.seek(0)
            if output.read().count("works") >= 2:
                break
            time.sleep(0.2)
        process.kill()


def compare(one: dict, other: dict) -> int:
    different = 0
    rows = {row["case"]: row for row in other["cases"]}
    for row in one["cases"]:
        twin = rows.get(row["case"])
        if twin is None:
            if row["case"] != "gpu-memory":
                different += 1
                print(f"{row['case']:14} is not in the other file")
            continue
        same = row["code"] == twin["code"] and row["said"] == twin["said"]
        different += not same
        print(f"{row['case']:14} {'the same' if same else 'different'}: code {row['code']}, {twin['code']}; {row['said'][:1]}, {twin['said'][:1]}")
    return 3 if different else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "host"], default="cuda")
    parser.add_argument("--cases", nargs="+", choices=NAMED, default=list(NAMED))
    parser.add_argument("--prism", type=Path, default=ROOT / "build/ci/bin/prism", metavar="FILE")
    parser.add_argument("--python", type=Path, default=Path(sys.executable), metavar="FILE")
    parser.add_argument("--timeout", type=float, default=90, metavar="S")
    parser.add_argument("--out", type=Path, metavar="FILE")
    parser.add_argument("--compare", nargs=2, type=Path, metavar="FILE")
    options = parser.parse_args()
    if options.compare:
        return compare(*(json.loads(file.read_text()) for file in options.compare))
    rows = []
    with tempfile.TemporaryDirectory() as jobs:
        failures = Failures(options, Path(jobs))
        for name in options.cases:
            if name == "gpu-memory" and options.device == "host":
                continue
            row = failures.run(name)
            rows.append(row)
            progress(f"failures_gpu: {name}: code {row['code']} in {row['seconds']} s, left {row['left_mib']} MiB, {row['processes_left']} processes; "
                     f"{row['said'][:1]}{'' if row['ok'] else ' FAILED'}")  # fmt: skip
    if options.out:
        result = {"schema": SCHEMA, "benchmark": "failures_gpu", **provenance(), "gpus": gpus(), "device": options.device, "cases": rows}
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    if any(row["code"] is None for row in rows):
        return 1
    return 0 if all(row["ok"] for row in rows) else 3


if __name__ == "__main__":
    sys.exit(main())
