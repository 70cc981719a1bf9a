#!/usr/bin/env python3
"""`make demo`: the cluster on this machine, in six screens. No GPU is used.

Each screen is a command that you can run yourself; it is printed before its output. Exit code 1 if a screen failed.
"""
import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import textwrap
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BOLD, DIM, RED, RESET = ("\033[1m", "\033[2m", "\033[31m", "\033[0m") if sys.stdout.isatty() and "NO_COLOR" not in os.environ else ("",) * 4

SEES_THE_CLUSTER = """
import torch
print(torch.__version__, "sees", torch.cuda.device_count(), "x", torch.cuda.get_device_name(0))
free, total = torch.cuda.mem_get_info(7)
print(f"cuda:7 has {free / 2**30:.1f} of {total / 2**30:.1f} GiB free")
a = torch.arange(6.0, device="cuda:7").reshape(2, 3)
print("computed there:", (a @ a.T).tolist())
"""


class Demo:
    def __init__(self, build, keep):
        self.prism = build / "bin/prism"
        self.python = ROOT / ".env/bin/python"
        self.jobs = ROOT / ".out/demo"
        self.failed = []
        if not keep:
            shutil.rmtree(self.jobs, ignore_errors=True)
        self.jobs.mkdir(parents=True, exist_ok=True)
        self.environment = dict(os.environ, PATH=f"{ROOT / '.env/bin'}:{build / 'bin'}:{os.environ['PATH']}")

    def screen(self, number, title, explanation):
        print(f"\n{BOLD}({number}) {title}{RESET}")
        print(textwrap.fill(explanation, 110))
        sys.stdout.flush()
        self.started = time.monotonic()

    def command(self, *command, env=None, show=True, expect=0, keep=lambda line: True):
        """Runs and shows a command; returns (exit code, output). expect: an exit code, or "failure"."""
        words = [str(c) for c in command]
        text = " ".join(w if re.fullmatch(r"[\w@%+=:,./-]+", w) else "'" + w.strip().split("\n")[0] + " ...'" for w in words)
        print(f"{DIM}$ {' '.join(f'{k}={v}' for k, v in (env or {}).items())}{' ' if env else ''}{text.replace(str(ROOT) + '/', '')}{RESET}", flush=True)
        process = subprocess.Popen(words, cwd=ROOT, env=dict(self.environment, **(env or {})), text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        lines = []
        for line in process.stdout:
            lines.append(line.rstrip("\n"))
            if show and keep(line):
                print("  " + lines[-1][:160], flush=True)
        code = process.wait()
        wrong = code == 0 if expect == "failure" else code != expect
        if wrong:
            self.fail(f"exit code {code}, expected {expect}")
            print("\n".join("  " + line for line in lines[-15:]))
        return code, "\n".join(lines)

    def fail(self, why):
        self.failed.append(why)
        print(f"{RED}  failed: {why}{RESET}")

    def done(self):
        print(f"{DIM}  {time.monotonic() - self.started:.0f} s{RESET}", flush=True)

    def sees_the_cluster(self):
        self.screen(1, "A plain PyTorch script sees eight H200s",
                    "The CUDA build of PyTorch, unmodified; hostcuda stands in for CUDA, its libraries and NCCL, and computes "
                    "every operation on the CPU over the same bytes.")
        self.command(self.python, "-c", SEES_THE_CLUSTER, env={"HOSTCUDA_VALUES": "cpu"})
        self.done()

    def what_fits(self):
        self.screen(2, "What fits: an 8B-parameter FSDP2 step on 16 logical H200s",
                    "Sixteen real processes of the program, structure and memory only. The micro-batch doubles until "
                    "PyTorch itself runs out of memory.")
        job = self.jobs / "8b"
        self.command(self.prism, "capture", "--device", "host", "--values", "none", "--target", "h200x8:2", "--job", job, "--force", "--",
                     "torchrun", "--nnodes", 2, "--nproc-per-node", 8, "examples/train_gpt.py", "--parallel", "fsdp2", "--preset", "8b",
                     "--dtype", "bf16", "--seq", 4096, "--recompute", "--optimizer", "fused", "--micro-batch", 1, "--find-micro-batch")
        self.command(self.prism, "report", job, keep=self.from_heading("memory at the peak"))
        self.done()

    def true_values(self):
        self.screen(3, "True values: a mixture of experts on 16 ranks",
                    "train_moe.py routes tokens by value and reads split sizes on the host. Losses and parameters of the captured job are "
                    "compared bit for bit with a true run of 16 processes on hostnccl.")
        self.command(self.python, "bench/exactness.py", "--kinds", "expert", "--world", 16, "--capture", self.jobs / "exactness", "--no-gloo",
                     "--prism", self.prism)
        self.done()

    def wrong_count(self):
        self.screen(4, "One rank passes a wrong count", "On a cluster this hangs for ten minutes and names nobody.")
        self.command(self.prism, "capture", "--device", "host", "--values", "none", "--target", "h200x8", "--job", self.jobs / "fault", "--force",
                     "--", "torchrun", "--nproc-per-node", 8, "examples/faults.py", "--fault", "count", "--fault-rank", 5, expect="failure")
        self.done()

    def timeline(self):
        self.screen(5, "The timeline", "A track for each stream and host thread of each rank, arrows between ranks, memory counters.")
        job = self.moe_job()
        self.command(self.prism, "simulate", job, show=False)
        trace = next(iter(sorted(job.glob("*.pftrace*"))), None)
        if trace is None:
            self.fail(f"no timeline in {job}")
        else:
            print(f"  {trace.relative_to(ROOT)} ({trace.stat().st_size / 1e6:.1f} MB): open it in https://ui.perfetto.dev and follow an arrow "
                  "from an all-to-all of\n  rank 0 to its peers: who came last made the others wait.")
        self.done()

    def predicted(self):
        self.screen(6, "Predicted step time", "Without a GPU durations are modelled: a range, with what it rests on.")
        self.command(self.prism, "report", self.moe_job())
        self.done()

    def moe_job(self):
        """The job that screen 3 captured."""
        return next(iter(sorted((self.jobs / "exactness").rglob("job.json"))), self.jobs / "none").parent

    @staticmethod
    def from_heading(heading):
        seen = False

        def keep(line):
            nonlocal seen
            seen = seen or line.startswith(heading)
            return seen

        return keep


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/ci")
    parser.add_argument("--screens", default="123456", help="which screens, for example 14")
    parser.add_argument("--keep", action="store_true", help="keep the job directories of an earlier demo")
    arguments = parser.parse_args()
    demo = Demo(arguments.build.resolve(), arguments.keep)
    started = time.monotonic()
    screens = (demo.sees_the_cluster, demo.what_fits, demo.true_values, demo.wrong_count, demo.timeline, demo.predicted)
    for digit in arguments.screens:
        screens[int(digit) - 1]()
    print(f"\n{time.monotonic() - started:.0f} s in all; job directories are in {demo.jobs.relative_to(ROOT)}")
    if demo.failed:
        print(f"{len(demo.failed)} failed: " + "; ".join(demo.failed))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
