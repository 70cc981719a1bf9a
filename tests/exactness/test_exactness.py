"""A captured job computes what the true run of N processes computes, bit for bit (bench/exactness.py at world 4)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PRISM = Path(os.environ.get("PRISM_BUILD", ROOT / "build/ci"), "bin/prism")


@pytest.mark.parametrize("kind", ["ddp", "fsdp2", "tensor", "pipeline", "expert"])
def test_captured_job_equals_the_true_run(kind, tmp_path):
    command = [sys.executable, ROOT / "bench/exactness.py", "--kinds", kind, "--world", "4", "--capture", tmp_path / "job"]
    command += ["--python", sys.executable, "--prism", PRISM, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1200)
    assert done.returncode == 0, done.stderr + done.stdout
    (case,) = json.loads(done.stdout)["cases"]
    assert case["losses_bitwise"] and case["checksums_bitwise"]
