"""Every operation that ends in CUDA's libraries comes out with the right shape, with no call missing."""

import re

import pytest


@pytest.fixture(scope="session")
def outcome(run):
    result = run("operations.py")
    return {r["operation"]: r for r in result.records()}, result


def test_every_operation_has_its_shape(outcome):
    records, result = outcome
    wrong = [f"{r['operation']}: " + (r["error"] or f"shape {r['shape']}, expected {r['expected']}") for r in records.values() if r["error"] or r["shape"] != r["expected"]]
    assert not wrong, "\n".join(wrong + result.missing)
    assert len(records) >= 50, sorted(records)


def test_nothing_unimplemented_was_called(outcome):
    _, result = outcome
    assert not [line for line in result.missing if re.search("not implemented", line)]
