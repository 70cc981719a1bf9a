"""Planted faults, in PyTorch and in C++, with what must be named of each: bench/faults.py has the table."""

import importlib.util
import json
import re
import sys

import pytest

from conftest import ROOT

sys.path.insert(0, str(ROOT / "bench"))
spec = importlib.util.spec_from_file_location("bench_faults", ROOT / "bench/faults.py")
bench = sys.modules["bench_faults"] = importlib.util.module_from_spec(spec)  # dataclasses look for their module there
spec.loader.exec_module(bench)
sys.path.remove(str(ROOT / "bench"))

pytestmark = pytest.mark.usefixtures("nothing_left")
BOTH = pytest.mark.parametrize("language", bench.LANGUAGES)


@pytest.fixture
def command(prism):
    """The command of a program of this build: of a language, with arguments."""

    def of(language, *arguments):
        cpp = prism.path.parents[1] / "examples/faults"
        if language == "c++" and not cpp.exists():
            pytest.fail(f"{cpp} is not built: ninja -C {prism.path.parents[1]} faults")
        program = (ROOT / "examples/faults.py",) if language == "python" else ("--no-python", cpp)
        return ("torchrun", "--standalone", "--nproc-per-node", bench.RANKS, *program, *arguments)

    return of


@BOTH
@pytest.mark.parametrize("fault", bench.EXPECTED)
def test_fault_is_named_with_ranks_communicator_call_and_both_sides(prism, command, fault, language):
    result = prism.capture(*command(language, "--fault", fault, "--fault-rank", bench.RANK))
    assert result.code == 1, result.err
    diagnosis = result.read("diagnosis.json")
    assert bench.not_named(diagnosis, result.read("matching.json"), bench.EXPECTED[fault], language) == []
    assert f"prism: {diagnosis['headline']}\n" in result.err
    job = result.read("job.json")
    assert job["state"] == "failed" and job["reason"] == diagnosis["headline"]
    assert not list(result.job.glob("trace/*.pending"))
    checked = prism("check", prism.job)
    assert checked.code == 1 and "not sound, failed" in checked.out
    for text in (diagnosis["headline"], diagnosis["hint"], *(part for party in diagnosis["parties"] for part in (party["text"], party["call_site"]))):
        assert text in checked.out


def test_what_is_not_named_is_told(prism):
    """The table's own check: of a diagnosis of another fault, or another rank, nothing fits."""
    expected = bench.EXPECTED["count"]
    where = "faults.py:1 in average < faults.py:2 in average_faulty < faults.py:3 in main"
    parties = [{"ranks": [0, 1, 3], "text": "call AllReduce float32 sum, 1000 elements", "call_site": where.replace("average_faulty < faults.py:3 in ", "")},
               {"ranks": [2], "text": "calls AllReduce float32 sum, 1001 elements", "call_site": where}]  # fmt: skip
    diagnosis = {"headline": "AllReduce #6 of communicator 1: rank 2 disagrees with the other 3", "communicator": {"number": 1, "ranks": [0, 1, 2, 3]}, "call": 6, "parties": parties}
    matching = {"communicators": [{"number": 1, "ranks": [0, 1, 2, 3]}, {"number": 2, "ranks": [0, 1]}]}
    assert bench.not_named(diagnosis, matching, expected, "python") == []
    for wrong in ({"headline": diagnosis["headline"].replace("rank 2", "rank 1")}, {"call": 7}, {"communicator": {"number": 2, "ranks": [0, 1, 2, 3]}},
                  {"parties": [parties[0]]}, {"parties": [parties[0] | {"ranks": [0, 1]}, parties[1]]}, {"parties": [parties[0], parties[1] | {"call_site": ""}]}):  # fmt: skip
        assert bench.not_named(diagnosis | wrong, matching, expected, "python") != [], wrong


@BOTH
def test_orders_that_may_hang_on_a_gpu_are_found_afterwards(prism, command, language):
    result = prism.capture(*command(language, "--fault", "overlap", "--fault-rank", bench.RANK))
    assert result.code == 0, result.err
    checked = prism("check", prism.job)
    assert checked.code == 1 and re.search(bench.FOUND_LATER["overlap"][language], checked.out), checked.out


@BOTH
def test_program_without_a_fault_is_not_accused(prism, command, language):
    assert prism.capture(*command(language)).code == 0
    checked = prism("check", "--json", prism.job)
    found = json.loads(checked.out)
    assert checked.code == 0 and found["sound"] and found["findings"] == [], checked.out
    assert "record or calibrate it" in found["waits"]["unknown_because"]


@pytest.mark.parametrize("fault", ["straggler", "imbalance"])
def test_rank_that_others_wait_for_is_named_with_the_cause(prism, command, fault):
    recorded = prism("record", "--device", "host", "--job", prism.job, "--", *command("c++", "--fault", fault, "--fault-rank", bench.RANK, "--fault-step", 0, "--steps", 8),
                     env={"HOSTCUDA_CLOCK": "virtual", "PRISM_RECORD_TIMES": "1"})  # fmt: skip
    assert recorded.code == 0, recorded.err
    checked = prism("check", prism.job)
    assert checked.code == 0 and re.search(bench.FOUND_LATER[fault]["c++"], checked.out), checked.out


@pytest.mark.parametrize("options", [(), ("--straggler", "3:1.3"), ("--jitter", "0.1")], ids=["plain", "straggler", "jitter"])
def test_slower_kernels_are_told_from_chance(prism, trainer, options):
    _, *arguments = bench.SOUND_TIMED["moe_trainer tensor, data, experts, timed"]
    recorded = prism("record", "--device", "host", "--job", prism.job, "--", "torchrun", *(str(a).format(examples=trainer.parent) for a in arguments), *options,
                     env={"HOSTCUDA_CLOCK": "virtual", "PRISM_RECORD_TIMES": "1"})  # fmt: skip
    assert recorded.code == 0, recorded.err
    checked = prism("check", prism.job)
    assert checked.code == 0, checked.out
    assert (re.search(bench.SLOWER, checked.out) is not None) == ("--straggler" in options), checked.out
    assert checked.out.count("straggler:") == (1 if "--straggler" in options else 0), checked.out
