"""True values on hostcuda: an unmodified CUDA build of PyTorch against plain CPU tensors.

Needs an environment in which hostcuda stands in for CUDA's libraries; hostcuda's driver opens the value layer itself.
"""

import ctypes
import os
import sys
import types
import unittest

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
    config.addinivalue_line("markers", "slow: minutes rather than seconds; run with PRISM_SLOW_TESTS=1")


def pytest_collection_modifyitems(items):
    if os.environ.get("PRISM_SLOW_TESTS"):
        return
    for item in items:
        if item.get_closest_marker("slow") and "/values/" in str(item.path):
            item.add_marker(pytest.mark.skip(reason="slow: PRISM_SLOW_TESTS=1 runs it"))


def value_library():
    """Returns the value layer of this process, or None."""
    with open("/proc/self/maps") as maps:
        paths = {line.split(None, 5)[5].strip() for line in maps if "libhostcuda_values.so" in line}
    return ctypes.CDLL(paths.pop()) if paths else None


@pytest.fixture(scope="session", autouse=True)
def values():
    """The installed value layer of this process; the tests mean nothing without it."""
    if value_library() is None:
        # Read by the driver when it initialises; other tests' programs must not inherit it.
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("HOSTCUDA_VALUES", "cpu")
            torch.empty(1, device="cuda")
    library = value_library()
    assert library is not None, (
        "hostcuda's value layer is not in this process: is torch's libcuda.so.1 hostcuda's, with libhostcuda_values.so "
        "beside it, and was CUDA not used before with another HOSTCUDA_VALUES?")
    assert library.hostcuda_values_operations() > 1000
    torch.set_num_threads(1)
    return library
