"""examples/cpp/moe_trainer, a compiled program, recorded on hostcuda's virtual clock."""

import json
import os
import subprocess

import pytest

LAYOUT = ("--timed", "--dp", 2, "--pp", 2, "--ep", 2, "--jitter", 0.05, "--imbalance", 0.5, "--steps", 3)
WORLD = 4

pytestmark = pytest.mark.usefixtures("nothing_left")


def test_steps_recorded_under_torchrun_take_the_true_runs_time(prism, tmp_path):
    # torchrun's agent counts devices and then sleeps: it is no process of the job, and the clock does not wait for it.
    trainer, hostcuda = prism.path.parents[1] / "examples/moe_trainer", prism.path.parents[1] / "hostcuda/bin/hostcuda"
    recorded = prism("record", "--device", "host", "--job", prism.job, "--", "torchrun", "--standalone", "--no-python", "--nproc-per-node", WORLD,
                     trainer, *LAYOUT, "--json", tmp_path / "recorded.json", env={"HOSTCUDA_CLOCK": "virtual"})
    assert recorded.code == 0, recorded.err
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PRISM_", "HOSTCUDA_"))}
    command = [hostcuda, "run", "--clock", "virtual", "--", trainer, "--launch", WORLD, *LAYOUT, "--json", tmp_path / "true.json"]
    subprocess.run([str(c) for c in command], env=environment, check=True, timeout=120, capture_output=True)
    steps = [[step["milliseconds"] for step in json.loads((tmp_path / name).read_text())["steps"]] for name in ("recorded.json", "true.json")]
    assert len(steps[0]) == 3 and min(steps[0]) > 0
    assert steps[0] == steps[1]
    check = prism("check", "--json", prism.job)
    assert check.code == 0 and json.loads(check.out)["ranks"] == WORLD, check.out
