"""examples/cpp/moe_trainer, a compiled program, recorded on hostcuda's virtual clock."""

import json
import os
import subprocess

import pytest

EVENT_NS = 1000  # what cudaEventRecord takes: a step lies between two of them, of which one is in simulate's period
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


def test_what_was_recorded_is_played_back_to_the_nanosecond(prism, tmp_path):
    clock = {"HOSTCUDA_CLOCK": "virtual", "PRISM_RECORD_TIMES": "1"}
    trainer = prism.path.parents[1] / "examples/moe_trainer"
    network = tmp_path / "network.json"  # for what a start costs
    measured = prism("netprofile", "--device", "host", "--ranks", 2, "--types", "bf16", "--operations", "AllReduce,Send", "--sizes", "1KiB:64KiB:8",
                     "--repeats", 1, "--iterations", 1, "--out", network, env=clock)
    assert measured.code == 0, measured.err
    recorded = prism("record", "--device", "host", "--job", prism.job, "--", "torchrun", "--standalone", "--no-python", "--nproc-per-node", WORLD,
                     trainer, "--timed", "--dp", 2, "--pp", 2, "--ep", 2, "--imbalance", 0.5, "--straggler", "1:1.3", "--micro-batches", 4,
                     "--hidden", 1024, "--steps", 6, "--json", tmp_path / "recorded.json", env=clock)
    assert recorded.code == 0, recorded.err
    true = [round(step["milliseconds"] * 1e6) for step in json.loads((tmp_path / "recorded.json").read_text())["steps"]]

    def played(*flags):
        simulated = prism("simulate", prism.job, "--json", "--timeline", "none", "--network", network, *flags)
        assert simulated.code == 0, simulated.err
        return [step["ns"] - EVENT_NS for step in json.loads(simulated.out)["steps"]]

    assert played()[1:] == true[1:]  # the first has what comes before
    # Without alignment those that wait for the straggler wait twice.
    assert all(longer > 1.05 * step for longer, step in zip(played("--waits-as-measured")[1:], true[1:], strict=True))
