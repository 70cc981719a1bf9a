"""True values on hostcuda: an unmodified CUDA build of PyTorch against plain CPU tensors.

Needs an environment in which hostcuda stands in for CUDA's libraries; hostcuda's driver opens the value layer itself. A
build that is not installed can be named by HOSTCUDA_VALUES_LIBRARY (a path to libhostcuda_values.so).
"""

import ctypes
import os
import sys
import types
import unittest

os.environ.setdefault("HOSTCUDA_VALUES", "cpu")

# PyTorch's operation database imports this package for assertions that it makes in its own tests only.
if "expecttest" not in sys.modules:
    try:
        import expecttest  # noqa: F401
    except ImportError:
        sys.modules["expecttest"] = types.ModuleType("expecttest")
        sys.modules["expecttest"].TestCase = unittest.TestCase

import pytest
import torch


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: minutes rather than seconds")


def value_library():
    """Returns the value layer of this process, or None."""
    with open("/proc/self/maps") as maps:
        paths = {line.split(None, 5)[5].strip() for line in maps if "libhostcuda_values.so" in line}
    return ctypes.CDLL(paths.pop()) if paths else None


@pytest.fixture(scope="session", autouse=True)
def values():
    """The installed value layer; the tests mean nothing without it."""
    torch.empty(1, device="cuda")
    named = os.environ.get("HOSTCUDA_VALUES_LIBRARY")
    library = value_library() or (ctypes.CDLL(named) if named else None)
    assert library is not None, (
        "hostcuda's value layer is not in this process: is torch's libcuda.so.1 hostcuda's, with "
        "libhostcuda_values.so beside it, and HOSTCUDA_VALUES=cpu?")
    assert library.hostcuda_values_install() == 0
    torch.set_num_threads(1)
    return library
