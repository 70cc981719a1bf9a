"""What prism says to input that cannot work: a message that names the thing, a remedy, and the exit code."""

import json
import os
import pathlib
import socket
import subprocess
import sys

import pytest

from conftest import PROGRAMS, ROOT

FAULTS = str(ROOT / "examples/faults.py")
TORCHRUN = ["--", "torchrun", "--nproc-per-node", "2", FAULTS]


def job_of_another_version(tmp_path):
    folder = tmp_path / "old"
    folder.mkdir()
    (folder / "job.json").write_text(json.dumps({"schema": "prism.job", "schema_version": 99, "prism_version": "9.9.0"}))
    return folder


def damaged_job(tmp_path):
    folder = tmp_path / "damaged"
    folder.mkdir()
    (folder / "job.json").write_text('{"schema": "prism.jo')
    return folder


def read_only(tmp_path):
    # Root may write anywhere, so a place below a file stands for a directory that cannot be made.
    (tmp_path / "file").write_text("x")
    return tmp_path / "file/job"


def not_empty(tmp_path):
    folder = tmp_path / "thesis"
    folder.mkdir()
    (folder / "thesis.tex").write_text("x")
    return folder


def busy_port(tmp_path):
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    busy_port.keep = listener
    return listener.getsockname()[1]


def environment_without_torch(tmp_path):
    """A torchrun beside a Python that has no PyTorch."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "python").write_text(f"#!/bin/sh\nexec {os.path.realpath(sys.executable)} -I -S \"$@\"\n")
    (folder / "torchrun").write_text("#!/bin/false\n")
    for name in ("python", "torchrun"):
        (folder / name).chmod(0o755)
    return folder / "torchrun"


def shell_script(tmp_path):
    (tmp_path / "pre.sh").write_text("echo x")
    return tmp_path / "pre.sh"


def earlier_job(tmp_path):
    folder = tmp_path / "earlier"
    folder.mkdir()
    (folder / "job.json").write_text(json.dumps({"schema": "prism.job", "schema_version": 1}))
    return folder


# name, arguments (a callable gets tmp_path), what stderr says, its hint, exit code
TABLE = [
    ("unknown verb", ["captrue"], "there is no verb 'captrue'", "did you mean 'capture'?", 1),
    ("unknown flag", ["capture", "--valeus", "cpu", *TORCHRUN], "has no flag '--valeus'", "did you mean '--values'?", 125),
    ("unknown value", ["capture", "--values", "cpus", *TORCHRUN], "--values 'cpus' is not one of none, control, cpu", "did you mean 'cpu'?", 125),
    ("missing separator", ["capture", "torchrun", FAULTS], "unexpected argument 'torchrun'", "put '--' before the command", 125),
    ("missing command", ["capture"], "needs a command", "torchrun --nproc-per-node", 125),
    ("missing program", ["capture", "--", "torchrum", "x.py"], "there is no program 'torchrum'", "is the environment active", 125),
    ("missing script", ["capture", "--device", "none", "--job", lambda p: p / "j", "--", "torchrun", "nothere.py"], "there is no script nothere.py", "working directory", 125),
    ("script that is not executable", ["capture", "--", FAULTS], "faults.py' is not executable", "-- python ", 125),
    ("shell script that is not executable", ["capture", "--", shell_script], "pre.sh' is not executable", "-- bash ", 125),
    ("unknown GPU", ["capture", "--target", "h20x8", *TORCHRUN], "GPU 'h20' is not known", "did you mean 'h200'?", 125),
    ("bad target", ["capture", "--target", "h200", *TORCHRUN], "there is no count of GPUs", "GPUxCOUNT[:NODES]", 125),
    ("no size", ["capture", "--gpu-memory", "much", *TORCHRUN], "--gpu-memory 'much' is not a size", "--gpu-memory 4MiB", 125),
    ("no room for a context", ["capture", "--gpu-memory", "100MiB", *TORCHRUN], "the context of a process takes", "--gpu-memory 80GiB", 125),
    ("more ranks than GPUs", ["capture", "--device", "none", "--job", lambda p: p / "j", "--target", "h200x8:2", "--", "torchrun", "--nnodes", "4", "--nproc-per-node", "8", FAULTS],
     "32 ranks need more than the 16 GPUs", "--target h200x8:4", 125),
    ("world not divisible", ["capture", "--device", "none", "--job", lambda p: p / "j", "--target", "h200x8:2", "--", "torchrun", "--nnodes", "2", "--nproc-per-node", "6", FAULTS],
     "12 ranks do not divide into nodes of 8 GPUs", "multiple of 8", 125),
    ("job exists", ["capture", "--device", "none", "--job", earlier_job, *TORCHRUN], "there is a job in", "--force replaces it", 125),
    ("directory with other files", ["capture", "--device", "none", "--force", "--job", not_empty, *TORCHRUN], "is not empty and holds no job", "choose an empty or a new directory", 125),
    ("directory that cannot be written", ["capture", "--device", "none", "--job", read_only, *TORCHRUN], "create ", "can be written with --job", 125),
    ("job of another version", ["check", job_of_another_version], "is a job of version 99 (prism 9.9.0)", "use the prism that wrote it", 1),
    ("damaged job", ["check", damaged_job], "is damaged", "", 1),
    ("no job", ["check", lambda p: p / "none"], "there is no job in", "prism capture --job DIR", 1),
    ("wrong torch", ["capture", "--device", "none", "--job", lambda p: p / "j", "--", environment_without_torch, FAULTS], "cannot import torch", "prism doctor", 125),
    ("no CUDA driver", ["capture", "--device", "cuda", "--job", lambda p: p / "j", *TORCHRUN], "this machine has no CUDA driver", "--device host needs no GPU", 125),
    ("port in use", ["capture", "--device", "none", "--job", lambda p: p / "j", "--", "torchrun", "--master-port", busy_port, FAULTS], "cannot listen on port", "--master-port", 125),
    ("nothing that became a rank", ["capture", "--job", lambda p: p / "j", "--", "true"], "no process of '/usr/bin/true' became a rank|no process of 'true' became a rank", "does it use CUDA?", 125),
]


@pytest.mark.parametrize("arguments, says, hint, code", [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_bad_input_is_named_with_a_remedy(prism, tmp_path, request, arguments, says, hint, code):
    if "no CUDA driver" in request.node.name and pathlib.Path("/dev/nvidia0").exists():
        pytest.skip("this machine has a GPU")
    result = prism(*[a(tmp_path) if callable(a) else a for a in arguments], cwd=tmp_path)
    assert result.code == code, result.err
    assert any(one in result.err for one in says.split("|")), result.err
    assert hint in result.err and (not hint or "hint: " in result.err), result.err
    assert result.out == ""
    assert "Traceback" not in result.err


def test_values_of_hostcuda_are_prisms(prism):
    result = prism("capture", *TORCHRUN, env={"HOSTCUDA_VALUES": "cpus"})
    assert result.code == 125 and "--values 'cpus' is not one of" in result.err


def test_usage_of_torchrun_names_torchrun(prism):
    result = prism("capture", "--device", "none", "--job", prism.job, "--", "torchrun", "--bogus", FAULTS)
    assert result.code != 0 and "usage: torchrun" in result.out + result.err


def test_thesis_is_still_there_after_force(prism, tmp_path):
    folder = not_empty(tmp_path)
    prism("capture", "--device", "none", "--force", "--job", folder, *TORCHRUN)
    assert (folder / "thesis.tex").read_text() == "x"


def test_too_little_shared_memory_is_named(prism, tmp_path):
    mount = "mount -t tmpfs -o size=1m tmpfs /dev/shm"
    if subprocess.run(["unshare", "-m", "sh", "-c", mount], capture_output=True).returncode:
        pytest.skip("this user may not mount: run the tests as root to see it")
    command = [str(prism.path), "capture", "--device", "none", "--job", str(tmp_path / "j"), *TORCHRUN]
    result = subprocess.run(["unshare", "-m", "sh", "-c", f"{mount} && exec \"$@\"", "sh", *command], env=prism.environment(), text=True, capture_output=True)
    assert result.returncode == 125
    assert "/dev/shm has 1 MiB free, at least 64 MiB are needed" in result.stderr
    assert "hint: remove old files there, or give it more (containers: --shm-size 8g)" in result.stderr


def test_disk_that_is_full_fails_the_job_although_the_program_ends_well(prism, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = f"mount -t tmpfs -o size=128k tmpfs {disk}"
    if subprocess.run(["unshare", "-m", "sh", "-c", mount], capture_output=True).returncode:
        pytest.skip("this user may not mount: run the tests as root to see it")
    code = "import random, torch\nx = torch.zeros(1, device='cuda')\nfor i in range(40000): random.choice([x.add_, x.mul_, x.sub_, x.div_])(2)"
    command = [str(prism.path), "run", "--job", str(disk / "j"), "--", "python", "-c", code]
    shell = f'{mount} && "$@"; code=$?; grep \'"state"\' {disk}/j/job.json; exit $code'
    result = subprocess.run(["unshare", "-m", "sh", "-c", shell, "sh", *command], env=prism.environment(), text=True, capture_output=True)
    assert result.returncode == 125, result.stderr
    assert "1 of 1 traces is not whole: rank 0:" in result.stderr and "hint: is the disk full?" in result.stderr, result.stderr
    assert result.stdout.split() == ['"state":', '"failed",']
