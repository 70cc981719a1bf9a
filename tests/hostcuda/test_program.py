"""A C++ program that links NVIDIA's sonames runs unchanged on hostcuda."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

INCLUDE = [p for p in (os.environ.get("CUDA_HOME", "/usr/local/cuda") + "/include", str(pathlib.Path(__file__).resolve().parents[2] / ".deps/include")) if os.path.exists(p + "/cublas_v2.h")]


@pytest.mark.skipif(not INCLUDE or not shutil.which("g++"), reason="needs g++ and the CUDA headers")
def test_program_runs_and_sees_the_status_of_a_factorization(build, command, tmp_path):
    libraries = build / "hostcuda/lib"
    binary = tmp_path / "program"
    sonames = ("libcudart.so.13", "libcublas.so.13", "libcusolver.so.12", "libcufft.so.12")
    subprocess.run(["g++", "-std=c++17", f"-I{INCLUDE[0]}", pathlib.Path(__file__).with_name("program.cc"), "-o", binary, *(str(libraries / n) for n in sonames)], check=True)
    variables = {k: v for k, v in os.environ.items() if not k.startswith(("HOSTCUDA_", "LD_"))}
    result = subprocess.run([command, "run", "--", binary], capture_output=True, text=True, timeout=120, env=variables)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "lwork 0 info 0\n" and result.stderr == ""


def test_compiled_program_that_torchrun_starts_finds_the_environments_nccl(build, command, installed):
    trainer = build / "examples/moe_trainer"
    variables = {k: v for k, v in os.environ.items() if not k.startswith(("HOSTCUDA_", "LD_"))}
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python", "--nproc-per-node", "2"]
    result = subprocess.run([command, "run", "--", *launcher, trainer, "--timed", "--dp", "2", "--steps", "2"], capture_output=True, text=True, timeout=120, env=variables)
    assert result.returncode == 0, result.stderr
    assert [line.split()[:2] for line in result.stdout.splitlines()] == [["step", "0"], ["step", "1"], ["rank", "0"], ["rank", "1"]]
