"""Recorded jobs: what the other verbs say of them, how programs end, what is refused."""

import ctypes
import json
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAMS = pathlib.Path(__file__).resolve().parent / "programs"
COLLECTIVES = ROOT / "tests/capture/programs/collectives.py"
TRAIN = ROOT / "examples/train_gpt.py"
TORCHRUN = ("torchrun", "--standalone", "--nproc-per-node", 2)

pytestmark = pytest.mark.usefixtures("nothing_left")


def record(prism, *command, flags=(), job=None, **kwargs):
    return prism("record", "--device", "host", "--job", job or prism.job, *flags, "--", *command, **kwargs)


def has_driver():
    try:
        ctypes.CDLL("libcuda.so.1")
        return True
    except OSError:
        return False


@pytest.mark.parametrize("program", [
    (COLLECTIVES,),
    (TRAIN, "--parallel", "ddp", "--preset", "tiny", "--steps", 3),
    (TRAIN, "--parallel", "pp", "--preset", "tiny", "--steps", 2),
], ids=["collectives", "ddp", "pp"])
def test_recorded_job_communicates_as_the_captured_one(prism, tmp_path, program):
    recorded = record(prism, *TORCHRUN, *program)
    assert recorded.code == 0, recorded.err
    job = recorded.read("job.json")
    assert (job["mode"], job["state"], job["world"], job["device"]) == ("record", "complete", 2, "host")
    assert not (prism.job / "matching.json").exists()

    check = prism("check", prism.job, "--json")
    found = json.loads(check.out)
    assert check.code == 0 and found["sound"] and found["ranks"] == 2, found
    assert "2 of 2 ranks" in prism("inspect", prism.job).out
    for verb in ("report", "simulate"):
        result = prism(verb, prism.job, "--json")
        assert result.code == 0, (verb, result.err)
        assert json.loads(result.out)["schema"] == f"prism.{verb}"

    captured = prism("capture", "--job", tmp_path / "captured", "--", *TORCHRUN, *program)
    assert captured.code == 0, captured.err
    assert json.loads((tmp_path / "captured/job.json").read_text())["mode"] == "capture"
    compared = subprocess.run(
        [sys.executable, ROOT / "bench/graphs.py", "--call-sites", "--kernels", "--prism", prism.path, prism.job, tmp_path / "captured"],
        capture_output=True, text=True, check=False)
    assert compared.returncode == 0, compared.stdout + compared.stderr
    counts = [int(count) for count in re.findall(r"(\d+) communications, identical", compared.stdout)]
    assert len(counts) == 2 and min(counts) >= 8
    kernels = [int(count) for count in re.findall(r"(\d+) kernels and copies .* identical", compared.stdout)]
    assert len(kernels) == 2 and min(kernels) > 0


def test_output_is_shown_and_kept(prism):
    result = record(prism, *TORCHRUN, COLLECTIVES)
    assert result.code == 0, result.err
    kept = (prism.job / "output/stdout.log").read_text()
    assert kept == result.out
    assert "rank 0 of 2 good" in kept and "rank 1 of 2 good" in kept  # they may share a line

    again = record(prism, *TORCHRUN, COLLECTIVES, flags=("--force", "--json"))
    assert again.code == 0, again.err
    assert "rank 0 of 2 good" in again.err
    told = json.loads(again.out)  # nothing of the program's
    assert (told["schema"], told["world"], told["ranks"], told["state"]) == ("prism.record", 2, 2, "complete")
    assert told["communications"] == 21


def test_program_that_fails_passes_its_code_on(prism):
    result = record(prism, *TORCHRUN, PROGRAMS / "waits.py", "fail")
    assert result.code == 1
    assert "ValueError: a wrong label" in result.err
    job = result.read("job.json")
    assert (job["state"], job["exit_code"], job["reason"]) == ("failed", 1, "the command exited with code 1")
    # torchrun killed rank 0; what both did until then is there.
    inspected = json.loads(prism("inspect", prism.job, "--json").out)
    assert [rank["tables"]["calls"] for rank in inspected["ranks"]] == [1, 1]
    check = prism("check", prism.job)
    assert check.code == 1
    assert "not sound, failed" in check.out

    assert record(prism, "bash", "-c", "exit 7", flags=("--force",)).code == 7


def test_interrupt_ends_the_whole_job(prism):
    started = time.monotonic()
    process = prism.start("record", "--device", "host", "--job", prism.job, "--", *TORCHRUN, PROGRAMS / "waits.py", "wait")
    met = 0
    while met < 2:
        line = process.stdout.readline()
        assert line and time.monotonic() - started < 120
        met += line.count("met the other")
    process.send_signal(signal.SIGINT)
    asked = time.monotonic()
    result = prism.finish(process, started)
    assert result.code == 130
    assert time.monotonic() - asked < 15
    job = result.read("job.json")
    assert (job["state"], job["reason"], job["exit_code"]) == ("failed", "stopped by Interrupt", 130)
    inspected = json.loads(prism("inspect", prism.job, "--json").out)
    assert [rank["tables"]["calls"] for rank in inspected["ranks"]] == [1, 1]


def test_script_that_starts_torchrun_is_recorded(prism):
    result = record(prism, "bash", "-c", f"python -m torch.distributed.run --standalone --nproc-per-node 2 {COLLECTIVES}")
    assert result.code == 0, result.err
    assert result.read("job.json")["world"] == 2
    assert prism("check", prism.job).code == 0


def test_what_cannot_be_recorded_is_refused(prism, tmp_path):
    def refusal(*arguments):
        result = prism("record", *arguments)
        assert result.code == 125, result.err
        return result.err

    assert "needs a command" in refusal("--device", "host")
    assert "there is no program 'no-such-program'" in refusal("--device", "host", "--job", prism.job, "--", "no-such-program")
    assert not prism.job.exists()
    (tmp_path / "file").write_text("")
    assert "file/job" in refusal("--device", "host", "--job", tmp_path / "file/job", "--", "true")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/thesis.txt").write_text("")
    assert "is not empty and holds no job" in refusal("--device", "host", "--job", tmp_path / "full", "--", "true")
    assert "--tee rank0" in refusal("--device", "host", "--tee", "rank0", "--", "true")
    assert "recording spans one machine" in refusal("--device", "host", "--target", "h200x8:2", "--", "true")
    assert "did you mean 'host'?" in refusal("--device", "hots", "--", "true")

    # A command that uses no CUDA leaves nothing to look at: that is said, and there is a job now.
    told = refusal("--device", "host", "--job", prism.job, "--", "true")
    assert "no process of 'true' did anything that is recorded" in told
    assert json.loads((prism.job / "job.json").read_text())["state"] == "failed"
    assert "there is a job in" in refusal("--device", "host", "--job", prism.job, "--", "true")


@pytest.mark.skipif(has_driver(), reason="this machine has a CUDA driver")
def test_without_a_driver_only_the_host_can_be_recorded(prism):
    result = prism("record", "--job", prism.job, "--", "true")
    assert result.code == 125
    assert "this machine has no CUDA driver" in result.err and "--device host needs no GPU" in result.err
    assert not prism.job.exists()


def test_recorded_times_are_replayed(prism):
    """On hostcuda the times are this machine's; that every span has one, and that threads take turns, holds anywhere."""
    recorded = record(prism, *TORCHRUN, TRAIN, "--parallel", "ddp", "--preset", "tiny", "--steps", 8, env={"PRISM_RECORD_TIMES": "1"})
    assert recorded.code == 0, recorded.err
    trace = json.loads(prism("inspect", prism.job / "trace/rank-00000.prt", "--nodes", "--json").out)
    assert trace["tables"]["timing_chunks"] > 0
    handoffs = [node for sequence in trace["sequences"] for node in sequence.get("list", []) if node[0] == "sync" and node[3] == 5]
    assert len(handoffs) >= 2 * 7  # main thread to autograd's and back, in each backward pass
    predicted = json.loads(prism("simulate", prism.job, "--samples", "odd", "--json", "--timeline", "none").out)
    assert predicted["share_by_source"]["measured"] > 0.5


def kernels_of(prism, job):
    inspected = prism("inspect", job / "trace/rank-00000.prt", "--kernels", "--json")
    assert inspected.code == 0, inspected.err
    return {name: [k for k in json.loads(inspected.out)["kernels"] if k["name"] == name] for name in ("product", "noise")}


def test_launches_of_one_shape_are_told_apart_by_their_parameters_but_not_by_pointers(prism, tmp_path):
    program = (sys.executable, PROGRAMS / "launches.py")
    recorded = record(prism, *program, flags=("--kernel-parameters",))
    assert recorded.code == 0, recorded.err
    kernels = kernels_of(prism, prism.job)
    assert [k["launches"] for k in kernels["product"]] == [2, 2, 2]
    assert len({k["key"] for k in kernels["product"]}) == 3
    # 32 of the hundred seeds, then no more.
    assert [k["launches"] for k in kernels["noise"]] == [1] * 32 + [68]
    assert [k["parameters"] for k in kernels["noise"]][32:] == ["vary"]

    plain = record(prism, *program, job=tmp_path / "plain")
    assert plain.code == 0, plain.err
    kernels = kernels_of(prism, tmp_path / "plain")
    assert [(k["launches"], k["parameters"]) for k in kernels["product"]] == [(6, "-")]
    assert [(k["launches"], k["parameters"]) for k in kernels["noise"]] == [(100, "-")]
