"""Programs that start programs: torchrun is captured wherever it is found on PATH; who else uses CUDA is named."""

import json

import pytest

from conftest import PROGRAMS

CHILD = "import torch; torch.zeros(1 << 20, device='cuda')"
START = "import subprocess, sys\nsys.exit(subprocess.run({command}).returncode)\n"

pytestmark = pytest.mark.usefixtures("nothing_left")


def test_python_program_that_starts_torchrun(prism):
    code = START.format(command=["torchrun", "--nproc-per-node", "2", str(PROGRAMS / "collectives.py")])
    result = prism.capture("python", "-c", code, flags=("--exact-payload", "64MiB", "--values", "cpu"))
    assert result.code == 0, result.err
    assert "rank 0 of 2 good" in result.out
    assert result.read("job.json")["world"] == 2
    assert len(list((result.job / "trace").glob("*.prt"))) == 2
    assert (result.job / "ranks/00000/stdout.log").read_text().startswith("rank 0 of 2 good")
    assert result.read("ranks/00000/memory.json")["devices"]
    assert prism("check", prism.job).code == 0


def test_program_whose_child_alone_uses_cuda_is_not_captured_silently(prism):
    result = prism.capture("python", "-c", START.format(command=["python", "-c", CHILD]))
    assert result.code == 125, result.err
    assert f"1 process that ranks started used CUDA and was not captured: python -c {CHILD}" in result.err
    assert "hint: capture the program that uses CUDA itself" in result.err
    assert result.read("job.json")["state"] == "failed"


def test_child_that_uses_cuda_beside_its_rank_is_named(prism):
    code = CHILD + "\n" + START.format(command=["env", "RANK=1", "WORLD_SIZE=2", "python", "-c", CHILD])
    result = prism.capture("python", "-c", code)
    assert result.code == 0, result.err
    assert f"was not captured: python -c {CHILD}" in result.err
    assert "hint: ranks were started by something that prism does not stand before" in result.err
    assert json.loads((result.job / "job.json").read_text())["uncaptured"] == [f"python -c {CHILD}"]
