"""Calibrated jobs: one rank of each kind runs, all ranks have traces, and the other verbs take them as they take a captured job."""

import json
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TRAIN = ROOT / "examples/train_gpt.py"
TIMES = {"PRISM_RECORD_TIMES": "1"}  # of this machine: hostcuda's clock is free

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.mark.parametrize(("kind", "world"), [("fsdp2", 4), ("pp", 4)])
def test_calibrated_job_has_the_communications_of_the_captured_one(prism, tmp_path, kind, world):
    command = ("torchrun", "--nproc-per-node", world, TRAIN, "--preset", "tiny", "--steps", 5, "--parallel", kind)
    captured = tmp_path / "captured"
    assert prism("capture", "--job", captured, "--", *command).code == 0
    result = prism("calibrate", captured, "--job", prism.job, "--json", env=TIMES)
    assert result.code == 0, result.err
    answer = json.loads(result.out)
    assert (answer["schema"], answer["world"]) == ("prism.calibrate", world)
    assert sorted(rank for part in answer["slices"] for rank in part["ranks"]) == list(range(world))
    compared = subprocess.run([sys.executable, ROOT / "bench/graphs.py", "--prism", prism.path, captured, prism.job],
                              capture_output=True, text=True, check=False)
    assert compared.returncode == 0, compared.stdout + compared.stderr
    check = prism("check", prism.job, "--json")
    assert json.loads(check.out)["sound"], check.out
    simulated = prism("simulate", prism.job, "--json")
    assert simulated.code == 0, simulated.err
    # Spans and host time are the slices', so the prediction is not the model's.
    assert json.loads(simulated.out)["step_ns"] != json.loads(prism("simulate", captured, "--json").out)["step_ns"]

    # Peers with times: the rank waits for them as long as the traces say.
    emulated = prism("emulate", prism.job, "--job", tmp_path / "emulated", "--rank", world - 1, "--json")
    assert emulated.code == 0, emulated.err
    assert json.loads(emulated.out)["peers"] == "timed"


def test_slice_that_fails_is_no_calibrated_job(prism, tmp_path):
    program = tmp_path / "late.py"
    program.write_text(
        "import os, torch, torch.distributed as dist\n"
        "dist.init_process_group('nccl')\n"
        "x = torch.ones(4, device='cuda'); dist.all_reduce(x); torch.cuda.synchronize()\n"
        "if os.environ.get('FAIL'): raise ValueError('on purpose')\n")
    captured = tmp_path / "captured"
    assert prism("capture", "--job", captured, "--", "torchrun", "--nproc-per-node", 2, program).code == 0
    result = prism("calibrate", captured, "--job", prism.job, env=TIMES | {"FAIL": "1"})
    assert result.code == 1 and "on purpose" in result.err, result.err
    assert result.read("job.json")["state"] == "failed"


def test_calibration_without_times_is_refused(prism, tmp_path):
    result = prism("calibrate", tmp_path, "--job", prism.job)
    assert result.code == 125 or result.code == 1
    assert "nothing to time" in result.err and "hint:" in result.err, result.err
    assert not prism.job.exists()


def test_idle_stream_waits_for_the_whole_span(prism, tmp_path):
    """A span's first launch does not run before its last is there; whoever waits for the stream is not kept."""
    program = tmp_path / "slow_host.py"
    program.write_text(
        "import time, torch, torch.distributed as dist\n"
        "dist.init_process_group('nccl')\n"
        "x = torch.ones(4, device='cuda')\n"
        "dist.all_reduce(x)\n"
        "stream, event, held = torch.cuda.Stream(), torch.cuda.Event(), 0\n"
        "with torch.cuda.stream(stream):\n"
        "    for _ in range(50):\n"
        "        x.add_(1)\n"
        "        time.sleep(0.002)\n"
        "        held += not stream.query()\n"
        "        x.add_(1)\n"
        "        event.record()\n"
        "        while not event.query(): time.sleep(0.0001)\n"
        "    for wait in (stream.synchronize, torch.cuda.synchronize, x.tolist):\n"
        "        x.add_(1)\n"
        "        wait()\n"
        "    x.add_(1)\n"
        "    while not stream.query(): time.sleep(0.0001)\n"
        "print('held', held, flush=True)\n")
    captured = tmp_path / "captured"
    assert prism("capture", "--job", captured, "--", "torchrun", "--nproc-per-node", 2, program).code == 0
    held = {}
    for how in ("held", "launched"):
        result = prism("calibrate", captured, "--job", tmp_path / how, "--spans", how, "--tee", "all", env=TIMES)
        assert result.code == 0, result.err
        (line,) = [line for line in result.out.splitlines() if "held" in line]  # both ranks are of one kind
        held[how] = int(line.split()[-1])
    # On a busy machine holds are let go of, and a stream that is not held may have to wait; but not always.
    assert held["held"] > 0, held


def test_ranks_of_one_program_that_nothing_was_measured_for_run_once(prism, tmp_path):
    """Of ranks that differ in sizes one runs, and one size says nothing of another: the others run, too."""
    program = tmp_path / "sizes.py"
    program.write_text(
        "import os, torch, torch.distributed as dist\n"
        "torch.cuda.set_device(int(os.environ['LOCAL_RANK']))\n"
        "dist.init_process_group('nccl')\n"
        "x = torch.ones(1 << (10 if dist.get_rank() < 2 else 20), device='cuda')\n"
        "for _ in range(4): x.add_(1); dist.all_reduce(x[:4])\n"
        "torch.cuda.synchronize()\n"
        "dist.destroy_process_group()\n")
    captured = tmp_path / "captured"
    assert prism("capture", "--job", captured, "--", "torchrun", "--nproc-per-node", 4, program).code == 0
    result = prism("calibrate", captured, "--job", prism.job, "--slices", 1, "--json", env=TIMES)
    assert result.code == 0, result.err
    answer = json.loads(result.out)
    assert [part["ranks"] for part in answer["slices"]] == [[0, 1], [2, 3]]
    assert answer["retimed"]["refused"] == [2, 3]
