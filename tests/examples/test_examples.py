"""The examples on the CPU with Gloo: PyTorch's own kernels and nothing of this project."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
from torchrun import run_training, torchrun  # noqa: E402

WORLD, STEPS = 2, 3


def train(file: str, *flags: str):
    command = [*torchrun(sys.executable, WORLD), ROOT / "examples" / file, *flags]
    command += ["--device", "cpu", "--steps", str(STEPS), "--checksum"]
    return run_training(command, {}, WORLD, STEPS, timeout=300)


def losses(run) -> list[float]:
    return [float.fromhex(loss) for loss in run.losses]


def refuse(file: str, *flags: str, world: int = 2) -> str:
    """Returns what an example says about arguments that it cannot work with."""
    environment = os.environ | {"WORLD_SIZE": str(world)}
    command = [sys.executable, ROOT / "examples" / file, *flags]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 2
    return done.stderr


def test_ways_to_split_the_same_batch_agree():
    # Two ranks with two sequences each, the same weights and data: one arithmetic, summed in different orders.
    plain = losses(train("train_gpt.py", "--parallel", "ddp"))
    assert plain == pytest.approx(losses(train("train_gpt.py", "--parallel", "fsdp2")), abs=1e-5)
    assert plain == pytest.approx(losses(train("train_gpt.py", "--parallel", "pp")), abs=1e-5)
    assert plain == pytest.approx(losses(train("train_gpt.py", "--parallel", "ddp", "--recompute")), abs=1e-5)


def test_tensor_parallel_equals_its_combination_with_fsdp():
    # Tensor parallel over both ranks, with a data-parallel group of one around it, or none.
    alone = train("train_gpt.py", "--parallel", "tp")
    combined = train("train_gpt.py", "--parallel", "fsdp2", "--tensor-size", "2")
    assert losses(alone) == pytest.approx(losses(combined), abs=1e-5)


def test_experts_learn_and_repeat_bitwise():
    first, second = train("train_moe.py"), train("train_moe.py")
    assert first.losses == second.losses
    assert first.checksums == second.checksums
    assert losses(first)[-1] < losses(first)[0]


def test_world_size_that_does_not_divide_is_refused_with_a_remedy():
    assert "16 experts do not divide among 3 ranks: give --experts a multiple of 3" in refuse("train_moe.py", world=3)
    assert "--tensor-size 3 does not divide the 4 ranks" in refuse(
        "train_gpt.py", "--parallel", "fsdp2", "--tensor-size", "3", world=4
    )
    assert "8 layers cannot make 9 pipeline stages" in refuse("train_gpt.py", "--parallel", "pp", world=9)


def test_micro_batch_search_without_a_gpu_is_refused():
    assert "needs --device cuda" in refuse("train_gpt.py", "--find-micro-batch", "--device", "cpu")
