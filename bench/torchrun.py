"""Runs a training program under torchrun and reads what the examples print: losses by step, checksums by rank."""

import dataclasses
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

STEP_LINE = re.compile(r"^(?:\[rank\d+\]: )?step (\d+) loss \S+ (\S+) max_memory_allocated \d+ took (\S+) ms$", re.M)
RANK_LINE = re.compile(r"^(?:\[rank\d+\]: )?rank (\d+) (?:checksum ([0-9a-f]+) )?max_memory_allocated (\d+) max_memory_reserved (\d+)(?: device_memory_used (\d+))?", re.M)


class RunFailed(Exception):
    """The program exited non-zero, ran out of time or printed too little; says which and shows its last lines."""


@dataclasses.dataclass
class TrainingRun:
    """`losses` (hexadecimal floats) and `step_ms` (by the program's own clock) in the order of steps; `checksums` and
    `peaks` (allocated, reserved) by rank."""

    losses: list[str]
    step_ms: list[float]
    checksums: dict[int, str]
    peaks: dict[int, tuple[int, int]]
    seconds: float


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def torchrun(python: str | Path, ranks: int) -> list[str]:
    """Returns the command line up to the program, on a rendezvous port that is free now."""
    return [str(python), "-m", "torch.distributed.run", f"--nproc-per-node={ranks}", f"--master-port={free_port()}"]


def run_to_end(
    command: Sequence[str | Path], environment: Mapping[str, str], timeout: float, directory: Path | None = None
) -> tuple[int | None, str, float]:
    """Runs a command to its end or its time-out; whatever it started is ended with it. Returns its exit code (None if
    it was out of time), what it wrote to stdout and stderr, and the seconds it took."""
    start = time.monotonic()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            [str(word) for word in command],
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=os.environ | dict(environment),
            cwd=directory,
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(timeout)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
        output.seek(0)
        text = output.read().decode(errors="replace")
    return code, text, time.monotonic() - start


def told(text: str) -> list[str]:
    """Returns a program's output without what torchrun adds: its own traceback and its table of failed ranks."""
    lines = [line for line in text.splitlines() if line.strip()]
    end = next((n for n, line in enumerate(lines) if "torch/distributed/elastic/multiprocessing/api.py" in line), len(lines))
    return lines[:end] or lines


def last_error(text: str) -> str:
    """Picks the line that says most about why a program ended: an exception's if there is one, else the last."""
    lines = [re.sub(r"^\[rank\d+\]: ", "", line).strip() for line in told(text)]
    errors = [line for line in lines if re.match(r"(hostcuda: |hostnccl: |prism: |[\w.]*(Error|Exception)\b)", line)]
    return (errors or lines or ["no output"])[-1][:300]


def run_training(
    command: Sequence[str | Path], environment: Mapping[str, str], ranks: int, steps: int, timeout: float
) -> TrainingRun:
    """Runs an example to its end and parses what it printed."""
    code, text, seconds = run_to_end(command, {"OMP_NUM_THREADS": "1"} | dict(environment), timeout)
    reported = {int(step): (loss, float(ms)) for step, loss, ms in STEP_LINE.findall(text)}
    ranked = {int(rank): (checksum, int(a), int(r)) for rank, checksum, a, r, _ in RANK_LINE.findall(text)}
    reason = None
    if code is None:
        reason = f"did not end within {timeout:.0f} s"
    elif code:
        reason = f"exit code {code}"
    elif sorted(reported) != list(range(steps)) or sorted(ranked) != list(range(ranks)):
        reason = f"reported {len(reported)} of {steps} steps and {len(ranked)} of {ranks} ranks"
    if reason:
        tail = "\n".join("    " + line for line in told(text)[-15:])
        raise RunFailed(f"{reason}: {' '.join(map(str, command))}\n{tail}")
    return TrainingRun(
        [reported[step][0] for step in range(steps)],
        [reported[step][1] for step in range(steps)],
        {rank: checksum for rank, (checksum, _, _) in ranked.items()},
        {rank: (allocated, reserved) for rank, (_, allocated, reserved) in ranked.items()},
        seconds,
    )


def progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
