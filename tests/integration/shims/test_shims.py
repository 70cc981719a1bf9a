"""The load-order matrix on hostcuda, as `make test` runs it: needs the private environment with hostcuda installed."""
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
SHIMS = pathlib.Path(os.environ.get("PRISM_BUILD", ROOT / "build/ci")) / "shims"
LIBRARIES = next(iter((ROOT / ".env/lib").glob("python3*/site-packages/nvidia/cu13/lib")), pathlib.Path("/nowhere"))


@pytest.mark.skipif(not (LIBRARIES / "libcuda.so.1").exists(), reason="hostcuda is not installed in .env: tools/setup.sh")
@pytest.mark.skipif(not SHIMS.exists(), reason="the shims are not built")
def test_every_process_is_intercepted_as_it_must_be():
    result = subprocess.run(
        [sys.executable, str(ROOT / "tests/integration/shims/load_order.py"), "--shims", str(SHIMS), "--python",
         str(ROOT / ".env/bin/python"), "--cuda", str(LIBRARIES / "libcuda.so.1"), "--cudart", str(LIBRARIES / "libcudart.so.13")],
        capture_output=True, text=True, timeout=900)
    assert result.returncode == 0, result.stdout + result.stderr
