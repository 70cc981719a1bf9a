"""Exchange policies of prism capture, on a mixture of experts whose routing follows from values."""

import json
import math
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
MOE = (ROOT / "examples/train_moe.py", "--steps", 4)

pytestmark = pytest.mark.usefixtures("nothing_left")


def train(prism, name, *flags):
    job = prism.job.with_name(name)
    done = prism("capture", "--job", job, "--values", "cpu", *flags, "--", "torchrun", "--nproc-per-node", 2, *MOE)
    assert done.code == 0, done.err
    return job, re.findall(r"loss \S+ (0x\S+)", done.out)


def payloads(prism, job):
    return json.loads(prism("inspect", "--json", job / "trace/rank-00001.prt").out)["payloads"]


def gaps(prism, job):
    return " ".join(gap["name"] for gap in json.loads(prism("report", "--json", job).out)["fidelity_gaps"])


def test_first_step_is_exact_and_then_large_payloads_stay(prism):
    exact, true_losses = train(prism, "exact")
    control, losses = train(prism, "control", "--exchange", "control", "--exact-payload", "1KiB")
    # The first loss is known before the first update; the second follows from that update, which was made of what had moved.
    assert losses[0] == true_losses[0] and losses[1:] != true_losses[1:]
    assert all(math.isfinite(float.fromhex(loss)) for loss in losses)
    assert set(payloads(prism, exact)) == {"exact"}
    moved = payloads(prism, control)
    assert moved["mirrored"]["communications"] > moved["exact"]["communications"] / 4, moved
    # Whatever moved in the exact run and is no larger than the limit moves in every step.
    assert moved["mirrored"]["bytes"] > 1024 * moved["mirrored"]["communications"] / 4
    assert "structure depends on mirrored values" not in gaps(prism, exact)
    assert "structure depends on mirrored values" in gaps(prism, control)
    assert json.loads((control / "job.json").read_text())["exchange"] == "control"
    assert prism("check", control).code == 0


def test_program_whose_updates_are_not_known_stays_exact(prism, tmp_path):
    program = tmp_path / "sums.py"
    program.write_text(
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('nccl')\n"
        "x = torch.ones(1 << 10, device='cuda')\n"
        "for _ in range(6): dist.all_reduce(x)\n"
        "print('sum', x.mean().item())\n"
        "dist.destroy_process_group()\n")
    result = prism.capture("torchrun", "--nproc-per-node", 2, program, flags=("--values", "cpu", "--exchange", "control", "--exact-payload", "1KiB"))
    assert result.code == 0, result.err
    assert "sum 64.0" in result.out
    assert set(payloads(prism, prism.job)) == {"exact"}


def test_values_that_are_not_computed_do_not_move(prism):
    result = prism.capture("torchrun", "--nproc-per-node", 2, *MOE, flags=("--values", "control", "--exact-payload", "1KiB"))
    assert result.code == 0, result.err
    moved = payloads(prism, prism.job)
    assert set(moved) == {"exact", "generated"} and moved["generated"]["bytes"] > moved["exact"]["bytes"]


@pytest.mark.parametrize(("flags", "message"), [
    (("--exchange", "some"), "--exchange 'some' is not one of auto, exact, control"),
    (("--exchange", "exact", "--exact-payload", "1KiB"), "--exact-payload 1KiB with --exchange exact"),
])
def test_contradictions_are_refused(prism, flags, message):
    result = prism.capture("torchrun", "--nproc-per-node", 2, *MOE, flags=flags)
    assert result.code != 0 and message in result.err and "hint:" in result.err, result.err
    assert not prism.job.exists()
