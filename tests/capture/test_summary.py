"""The one line by which a diagnosis names the exception that ended a rank."""

import importlib.util

import pytest

from conftest import ROOT

_SPEC = importlib.util.spec_from_file_location("prism_program", ROOT / "python/prism/program.py")
program = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(program)

SPAWNED = """

-- Process 1 terminated with the following error:
Traceback (most recent call last):
  File "train.py", line 3, in work
    raise ValueError("no such file")
ValueError: no such file
"""
OUT_OF_MEMORY = (
    "CUDA out of memory. Tried to allocate 100.00 GiB. GPU 0 has a total capacity of 139.80 GiB of which 39.26 GiB is free. "
    "Including non-PyTorch memory, this process has 100.54 GiB memory in use. Of the allocated memory 100.00 GiB is allocated by PyTorch."
)


@pytest.mark.parametrize(
    "error, expected",
    [
        (ValueError("x"), "ValueError: x"),
        (ValueError(), "ValueError"),
        (RuntimeError("shapes differ\n  a: 3\n  b: 4"), "RuntimeError: shapes differ"),
        (RuntimeError(SPAWNED), "RuntimeError: ValueError: no such file"),
        (MemoryError(OUT_OF_MEMORY), "MemoryError: " + OUT_OF_MEMORY.partition(" Including")[0]),
        (RuntimeError("a" * 500), "RuntimeError: " + "a" * 143 + "..."),
    ],
)
def test_summary_is_one_line_that_says_what_happened(error, expected):
    assert program.summary(error) == expected
