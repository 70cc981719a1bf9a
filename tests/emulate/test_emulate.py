"""Emulated ranks: they do what they did in the captured job, and what is played fits them or is refused."""

import json
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
GPT = (ROOT / "examples/train_gpt.py", "--preset", "tiny", "--steps", 3)
MOE = (ROOT / "examples/train_moe.py", "--steps", 3)

pytestmark = pytest.mark.usefixtures("nothing_left")


def capture(prism, job, ranks, *command, flags=()):
    done = prism("capture", "--job", job, *flags, "--", "torchrun", "--nproc-per-node", ranks, *command)
    assert done.code == 0, done.err
    return done


def emulate(prism, captured, rank, *arguments):
    return prism("emulate", captured, "--job", prism.job, "--rank", rank, "--json", *arguments)


def peaks(text):
    return dict(re.findall(r"rank (\d+) (max_memory_allocated \d+ max_memory_reserved \d+)", text))


# Ranks other than the first of their groups, too: what the first one tells through the store is then played.
@pytest.mark.parametrize(("kind", "world", "rank"), [("ddp", 2, 0), ("fsdp2", 4, 3), ("tp", 2, 1), ("pp", 4, 0), ("pp", 4, 2)])
def test_emulated_rank_communicates_as_in_the_captured_job(prism, tmp_path, kind, world, rank):
    whole = capture(prism, tmp_path / "whole", world, *GPT, "--parallel", kind, flags=("--tee", "all"))
    result = emulate(prism, tmp_path / "whole", rank)
    assert result.code == 0, result.err
    answer = json.loads(result.out)
    assert (answer["schema"], answer["state"], answer["rank"], answer["peers"]) == ("prism.emulate", "complete", rank, "instant")
    assert answer["communications"] > 0 and answer["resized"] == 0
    job = result.read("job.json")
    assert (job["mode"], job["sandbox_ranks"], job["world"]) == ("emulate", [rank], world)
    assert [file.name for file in (prism.job / "trace").glob("*.prt")] == [f"rank-{rank:05}.prt"]
    compared = subprocess.run(
        [sys.executable, ROOT / "bench/graphs.py", "--call-sites", "--rank", str(rank), "--prism", prism.path, tmp_path / "whole", prism.job],
        capture_output=True, text=True, check=False)
    assert compared.returncode == 0, compared.stdout + compared.stderr
    if kind != "ddp":  # whose peak depends on when PyTorch's watchdog looks
        assert peaks((prism.job / f"ranks/{rank:05}/stdout.log").read_text())[str(rank)] == peaks(whole.out)[str(rank)]


def test_emulated_experts_route_by_value(prism, tmp_path):
    capture(prism, tmp_path / "whole", 4, *MOE, flags=("--values", "cpu"))
    result = emulate(prism, tmp_path / "whole", 1, "--values", "cpu")
    assert result.code == 0, result.err
    answer = json.loads(result.out)
    # Whoever trains on other values sends other numbers of tokens; how often is said.
    assert 0 < answer["resized"] < answer["communications"]


def test_emulated_losses_are_finite(prism, tmp_path):
    capture(prism, tmp_path / "whole", 2, *GPT, "--parallel", "fsdp2", flags=("--values", "cpu"))
    result = emulate(prism, tmp_path / "whole", 0, "--values", "cpu")
    assert result.code == 0, result.err
    losses = [float(x) for x in re.findall(r"loss (\S+) 0x", (prism.job / "ranks/00000/stdout.log").read_text())]
    assert len(losses) == 3 and all(0 < loss < 20 for loss in losses), losses


def test_rank_that_goes_on_longer_is_told_whom_it_waits_for(prism, tmp_path):
    capture(prism, tmp_path / "whole", 2, *GPT, "--parallel", "ddp")
    result = emulate(prism, tmp_path / "whole", 0, "--", "torchrun", "--nproc-per-node", 2, *GPT[:-1], 5, "--parallel", "ddp")
    assert result.code == 1
    diagnosis = result.read("diagnosis.json")
    assert diagnosis["kind"] == "missing" and "rank 1 never comes" in diagnosis["headline"], diagnosis
    assert "train_gpt.py" in json.dumps(diagnosis["parties"][0])


def test_rank_that_does_something_else_is_a_mismatch(prism, tmp_path):
    capture(prism, tmp_path / "whole", 2, *GPT, "--parallel", "ddp")
    other = ("--", "torchrun", "--nproc-per-node", 2, *GPT, "--parallel", "ddp", "--layers", 3)
    result = emulate(prism, tmp_path / "whole", 0, *other)
    assert result.code == 1
    diagnosis = result.read("diagnosis.json")
    assert diagnosis["kind"] == "mismatch", diagnosis
    assert {tuple(party["ranks"]) for party in diagnosis["parties"]} == {(0,), (1,)}


def test_rank_that_makes_another_communicator_is_refused(prism, tmp_path):
    capture(prism, tmp_path / "whole", 4, *GPT, "--parallel", "ddp")
    result = emulate(prism, tmp_path / "whole", 0, "--", "torchrun", "--nproc-per-node", 2, *GPT, "--parallel", "ddp")
    assert result.code == 1 or result.code == 125
    assert "communicator" in result.err and "as rank 0 of 2" in result.err, result.err


def test_failing_rank_fails_the_emulation(prism, tmp_path):
    program = tmp_path / "late.py"
    program.write_text(
        "import os, torch, torch.distributed as dist\n"
        "dist.init_process_group('nccl')\n"
        "x = torch.ones(4, device='cuda'); dist.all_reduce(x); torch.cuda.synchronize()\n"
        "if os.environ.get('FAIL'): raise ValueError('on purpose')\n")
    capture(prism, tmp_path / "whole", 2, program)
    result = prism("emulate", tmp_path / "whole", "--job", prism.job, env={"FAIL": "1"})
    assert result.code == 1 and "on purpose" in result.err, result.err


@pytest.mark.parametrize(("arguments", "message"), [
    (("--rank", "2"), "--rank 2: the job has 2 ranks"),
    (("--peers", "lazy"), "--peers 'lazy' is not one of auto, timed, instant"),
    (("--device", "none"), "--device none"),
])
def test_bad_input_is_refused(prism, arguments, message, captured_pair):
    result = prism("emulate", captured_pair, "--job", prism.job, *arguments)
    assert result.code == 1 or result.code == 125
    assert message in result.err and "hint:" in result.err, result.err
    assert not prism.job.exists()


def test_recorded_job_is_refused(prism, tmp_path):
    recorded = prism("record", "--device", "host", "--job", tmp_path / "recorded", "--", "torchrun", "--nproc-per-node", 2,
                     ROOT / "tests/capture/programs/collectives.py")
    assert recorded.code == 0, recorded.err
    result = prism("emulate", tmp_path / "recorded", "--job", prism.job)
    assert result.code == 1 and "is no captured job: it is one of prism record" in result.err, result.err
    assert not prism.job.exists()


def test_job_that_is_none_is_refused(prism, tmp_path):
    result = prism("emulate", tmp_path, "--job", prism.job)
    assert result.code == 1 and "hint:" in result.err, result.err


@pytest.fixture
def captured_pair(prism, tmp_path):
    capture(prism, tmp_path / "pair", 2, ROOT / "tests/capture/programs/collectives.py")
    return tmp_path / "pair"
