"""A captured job computes what the true run of N processes computes, bit for bit, and needs the memory that it needs
(bench/exactness.py at world 4, bench/memory_limit.py and bench/control.py at 8)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PRISM = Path(os.environ.get("PRISM_BUILD", ROOT / "build/ci"), "bin/prism")


@pytest.mark.parametrize("kind", ["ddp", "fsdp2", "tensor", "pipeline", "expert", "trainer"])
def test_captured_job_equals_the_true_run(kind, tmp_path):
    command = [sys.executable, ROOT / "bench/exactness.py", "--kinds", kind, "--world", "4", "--capture", tmp_path / "job"]
    command += ["--python", sys.executable, "--prism", PRISM, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1200)
    assert done.returncode == 0, done.stderr + done.stdout
    (case,) = json.loads(done.stdout)["cases"]
    assert case["losses_bitwise"] and case["checksums_bitwise"]


def bench(script, tmp_path, *arguments):
    """Runs a script of bench/ and returns what it found; whatever bar it has must hold."""
    output = tmp_path / "result.json"
    command = [sys.executable, ROOT / "bench" / script, "--out", tmp_path / "out", "--output", output, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr + done.stdout
    return json.loads(output.read_text())


def test_captured_ranks_need_the_memory_of_the_true_ones_and_fail_where_they_fail(tmp_path):
    found = bench("memory_limit.py", tmp_path, "--ranks", "8", "--build", PRISM.parents[1], "--python", sys.executable)
    assert found["predicted_peaks"] == found["true_peaks"] and len(set(found["true_peaks"])) > 1
    failed = found["limits"]["too little"]
    assert failed["true"] == failed["captured"] and len(failed["true"]) == 1
    assert found["limits"]["just enough"]["codes"] == [0, 0]


def test_losses_stay_finite_where_large_payloads_do_not_move(tmp_path):
    found = bench("control.py", tmp_path, "--cases", "trainer-8", "--steps", "3", "--prism", PRISM, "--python", sys.executable)
    (case,) = found["cases"]
    assert case["control"]["finite"] and case["control"]["mirrored communications"] > 0
    assert "mirrored communications" not in case["exact"]
