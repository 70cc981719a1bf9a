"""A job on hostcuda's virtual clock, predicted from runs of single ranks, against the job itself. Times are stated ones, so nothing is left to chance."""

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.usefixtures("nothing_left")

RANKS = 4
JOB = ["--timed", "--dp", "2", "--tp", "2", "--ep", "4", "--layers", "3", "--steps", "5", "--micro-batches", "2"]
EVENT_NS = 1000  # what cudaEventRecord takes: a step lies between two of them, of which one is in the period


def step_times(output):
    """Nanoseconds of each step, as the trainer prints them."""
    return [round(float(ms) * 1e6) for ms in re.findall(r"^step \d+ +([\d.]+) ms", output, re.M)]


def true_run(prism, trainer, *options):
    hostcuda = prism.path.parents[1] / "hostcuda/bin/hostcuda"
    run = subprocess.run([hostcuda, "run", "--clock", "virtual", "--", trainer, "--launch", str(RANKS), *JOB, *options],
                         capture_output=True, text=True, check=False, timeout=300, env=os.environ | {"HOSTCUDA_MEMORY_LIMIT": "0", "HOSTCUDA_SESSION": f"true-run-{os.getpid()}"})
    assert run.returncode == 0, run.stderr
    return step_times(run.stdout)


@pytest.mark.parametrize("options", [(), ("--jitter", "0.1", "--straggler", "3:1.3", "--imbalance", "0.5")], ids=["plain", "uneven"])
def test_ranks_that_run_alone_predict_the_job(prism, trainer, tmp_path, options):
    truth = true_run(prism, trainer, *options)
    torchrun = pathlib.Path(sys.executable).parent / "torchrun"
    captured, profile = tmp_path / "captured", tmp_path / "netprofile.json"
    command = [torchrun, "--no-python", "--nproc-per-node", RANKS, trainer, *JOB, *options]
    assert prism("capture", "--job", captured, "--", *command).code == 0
    measured = prism("netprofile", "--device", "host", "--ranks", RANKS, "--groups", "2", "--sizes", "4B:4MiB:8", "--repeats", 1,
                     "--iterations", 1, "--out", profile, env={"HOSTCUDA_CLOCK": "virtual"})
    assert measured.code == 0, measured.err
    calibrated = prism("calibrate", captured, "--clock", "virtual", "--network", profile, "--job", prism.job)
    assert calibrated.code == 0, calibrated.err
    assert "of another size" not in calibrated.err  # each rank was given the splits that it had been given

    simulated = prism("simulate", prism.job, "--network", profile, "--json")
    assert simulated.code == 0, simulated.err
    periods = [step["ns"] for step in json.loads(simulated.out)["steps"]]
    assert len(periods) == len(truth)
    assert [period - EVENT_NS for period in periods[1:]] == truth[1:]

    emulated = prism("emulate", prism.job, "--clock", "virtual", "--network", profile, "--rank", 0, "--job", tmp_path / "emulated")
    assert emulated.code == 0, emulated.err
    assert step_times(emulated.out) == truth


def test_virtual_clock_of_a_gpu_is_refused(prism, tmp_path):
    command = ("torchrun", "--nproc-per-node", 2, "train.py")
    result = prism("emulate", tmp_path, "--device", "cuda", "--clock", "virtual", "--", *command)
    assert result.code != 0 and "hint:" in result.err
    result = prism("emulate", tmp_path, "--clock", "sundial", "--", *command)
    assert result.code != 0 and "hint:" in result.err
