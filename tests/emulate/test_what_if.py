"""What-ifs that make another job of a captured one, against that job, captured itself."""

import json
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TRAIN = ROOT / "examples/train_gpt.py"

pytestmark = pytest.mark.usefixtures("nothing_left")


def simulate(prism, job, *options):
    result = prism("simulate", job, "--timeline", "none", "--json", *options)
    return result, json.loads(result.out)


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_more_replicas_communicate_as_the_larger_job(prism, tmp_path, kind):
    for world in (2, 4):
        command = ("torchrun", "--nproc-per-node", world, TRAIN, "--preset", "tiny", "--steps", 5, "--parallel", kind)
        captured = prism("capture", "--target", "h200x4", "--job", tmp_path / str(world), "--", *command)
        assert captured.code == 0, captured.err
    groups = json.loads(prism("inspect", tmp_path / "2", "--json").out)["groups"]
    everybody = next(group["communicator"] for group in groups if group["world_ranks"] == [0, 1])
    result, grown = simulate(prism, tmp_path / "2", "--what-if", f"replicas:{everybody}=2")
    assert result.code == 0, result.err
    _, larger = simulate(prism, tmp_path / "4")
    assert len(grown["ranks"]) == 4
    # Calls, sizes, and their times by formulas. Who comes late to them has copies in the one and none in the other.
    for row in (*grown["communications"], *larger["communications"]):
        del row["wait_ns"]
    assert grown["communications"] == larger["communications"]

    # With one micro-batch a step there is nothing to repeat, though layers are alike.
    result, answer = simulate(prism, tmp_path / "2", "--what-if", "micro-batches=2")
    assert result.code != 0
    assert "cannot be told apart" in answer["error"]


def test_what_no_evaluation_can_hold_and_what_would_destroy_the_job_are_refused(prism, tmp_path):
    job = tmp_path / "job"
    assert prism("capture", "--job", job, "--", "torchrun", "--nproc-per-node", 2, TRAIN, "--preset", "tiny", "--steps", 3).code == 0
    together = [word for _ in range(3) for word in ("--what-if", "host:0=1000")]
    for arguments, says in (
        (("simulate", job, *together), "come to 1e+09"),
        (("simulate", job, "--delay", "0:90000s"), "more than a day"),
        (("simulate", job, "--delay", "0:9000000000000000000ns"), "more than a day"),
        (("emulate", job, "--job", job, "--force"), "is the job that is read"),
    ):
        result = prism(*arguments)
        assert result.code == 1 and says in result.err and "hint:" in result.err
    assert (job / "trace/rank-00000.prt").exists() and json.loads((job / "job.json").read_text())["mode"] == "capture"
