"""Every program of the catalogue runs here, unmodified, with the H200's peaks, communications, copies and kernels.

Once all have run, the page docs/matrix.md is written anew. Needs hostcuda in this interpreter's environment.
"""

import os
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "bench")]
import communication  # noqa: E402
import memory  # noqa: E402
from catalogue import PROGRAMS  # noqa: E402
from figures import Outcome, load_reference  # noqa: E402
from provenance import ROOT  # noqa: E402
from run_matrix import page, run  # noqa: E402

SLOW = {"moe-30b-12-layers-2"}  # minutes, and 7 GB of host memory a rank
TIMEOUT_S = 600  # a program takes seconds; this is for a machine that does much else


@pytest.fixture(scope="module")
def outcomes():
    found: dict[str, Outcome] = {}
    yield found
    if len(found) == len(PROGRAMS):
        (ROOT / "docs/matrix.md").write_text(page(found, load_reference()))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_program_runs_as_on_an_h200(program, outcomes):
    if program.name in SLOW and not os.environ.get("PRISM_SLOW_TESTS"):
        outcomes[program.name] = Outcome("skipped", reason="slow: PRISM_SLOW_TESTS=1 runs it")
        pytest.skip(outcomes[program.name].reason)
    outcome, text = run(program, sys.executable, TIMEOUT_S, profile=True)
    outcomes[program.name] = outcome
    if outcome.status == "skipped":
        pytest.skip(outcome.reason)
    assert outcome.status == "ok", f"{outcome.reason}\n{text[-4000:]}"
    repeats = load_reference().get(program.name, [])
    if not repeats:
        return  # more ranks than the H200 machine had
    peaks = memory.compare(program.name, outcome, repeats)
    assert not peaks["missed"] or "explained" in peaks, peaks["missed"]
    if "device_events" in (outcome.records or [{}])[0]:
        step = communication.compare(program.name, outcome, repeats[0])
        assert not step["missed"] or "explained" in step, step["missed"]


def outcome_with(peaks: list[list[int]]) -> Outcome:
    keys = ("max_memory_allocated", "max_memory_reserved", "peak_requested")
    return Outcome("ok", records=[{"result": {"world": len(peaks), **dict(zip(keys, rank, strict=True))}} for rank in peaks])


@pytest.mark.parametrize(
    ("name", "here", "verdict"),
    [
        ("mlp-fused", [[1000, 2000, 900]], "ok"),
        ("mlp-fused", [[1001, 2000, 900]], "missed"),  # static shapes: equal to the byte
        ("fsdp2-2", [[1001, 2009, 900], [999, 1991, 900]], "ok"),
        ("fsdp2-2", [[1003, 2000, 900], [1000, 2000, 900]], "missed"),  # one rank suffices
        ("fsdp2-2", [[1000, 2000, 900], [1000, 2011, 900]], "missed"),
        ("qwen3-moe-eager", [[1019, 1961, 900]], "ok"),
        ("qwen3-moe-eager", [[1021, 2000, 900]], "missed"),
        ("loader", [[971, 2000, 900]], "explained"),
        ("loader", [[969, 2000, 900]], "missed"),  # beyond the bound of its explanation
        ("loader", [[971, 2001, 900]], "missed"),  # the explanation is of the other figure
    ],
)
def test_peaks_beyond_the_bar_or_the_known_bound_are_missed(name, here, verdict):
    row = memory.compare(name, outcome_with(here), [outcome_with([[1000, 2000, 900]] * len(here))])
    assert verdict == ("explained" if "explained" in row else "missed" if row["missed"] else "ok")
