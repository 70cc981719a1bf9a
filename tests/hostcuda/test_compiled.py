"""Triton kernels launch by name, and a graph replays what was captured."""

import pytest


@pytest.fixture(scope="module")
def kernels(run, tmp_path_factory):
    cache = tmp_path_factory.mktemp("cache")
    result = run("compiled.py", options=("--cache", cache))
    return {r["what"]: r["kernels"] for r in result.records()}


def test_compiled_model_launches_triton_kernels_and_library_products(kernels):
    names = kernels["compiled"]
    assert any(n.startswith("triton_") and "gelu" in n for n in names), names
    assert sum(c for n, c in names.items() if n.startswith("hostcublas")) == 5, names  # two forward, three backward


def test_replays_of_a_graph_launch_what_was_captured(kernels):
    assert kernels["graph"] == {n: 3 * c for n, c in kernels["eager"].items()}
