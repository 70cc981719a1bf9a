"""examples/cpp/moe_trainer, a compiled program of the CUDA runtime and NCCL, under prism capture: 16 ranks on two nodes.

What is captured is compared with the true run of the same processes on hostcuda and hostnccl, and with counts that follow from the layout.
"""

import json
import os
import subprocess

import pytest

LAYERS, MICRO_BATCHES, STEPS = 8, 4, 3
DP, TP, PP, EP, CHUNKS = 2, 2, 4, 4, 2
WORLD = DP * TP * PP
LAYOUT = ("--dp", DP, "--tp", TP, "--pp", PP, "--ep", EP, "--interleave", CHUNKS, "--layers", LAYERS, "--micro-batches", MICRO_BATCHES, "--steps", STEPS, "--imbalance", 0.5)
TARGET = ("--device", "host", "--target", "h200x8:2")


def launcher():
    return ("torchrun", "--no-python", "--nnodes", 2, "--nproc-per-node", 8)


def without_times(results):
    return [step["loss"] for step in results["steps"]], results["ranks"]


def test_captured_ranks_compute_what_the_true_run_computes(prism, trainer, tmp_path, nothing_left):
    captured = prism.capture(*launcher(), trainer, "--real", *LAYOUT, "--json", tmp_path / "captured.json", flags=(*TARGET, "--values", "cpu"))
    assert captured.code == 0, captured.err
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PRISM_", "HOSTCUDA_"))}
    command = [prism.path.parents[1] / "hostcuda/bin/hostcuda", "run", "--values", "cpu", "--", trainer, "--launch", WORLD, "--real", *LAYOUT, "--json", tmp_path / "true.json"]
    subprocess.run([str(c) for c in command], env=environment, check=True, timeout=120, capture_output=True)
    results = [without_times(json.loads((tmp_path / name).read_text())) for name in ("captured.json", "true.json")]
    assert results[0] == results[1]
    assert len({rank["checksum"] for rank in results[0][1]}) > 1


@pytest.mark.parametrize("mode", ["--real", "--timed"])
def test_capture_has_every_communication_of_the_layout(prism, trainer, mode, nothing_left):
    flags = (*TARGET, "--values", "cpu" if mode == "--real" else "none")
    result = prism.capture(*launcher(), trainer, mode, *LAYOUT, flags=flags)
    assert result.code == 0, result.err
    check = prism("check", "--json", prism.job)
    assert check.code == 0, check.out
    assert json.loads((prism.job / "job.json").read_text())["state"] == "complete"

    communicators = json.loads((prism.job / "matching.json").read_text())["communicators"]
    calls = [(tuple(c["ranks"]), {name: o["calls"] for name, o in c["operations"].items()}) for c in communicators]
    passes = LAYERS // PP * MICRO_BATCHES * STEPS  # of a layer's forward (or backward) pass on a rank
    world = tuple(range(WORLD))
    assert calls[0] == (world, {"AllReduce": STEPS, "AllGather": 1})
    stages = [world[s * DP * TP : (s + 1) * DP * TP] for s in range(PP)]
    blocks = [stage[b : b + EP] for stage in stages for b in range(0, DP * TP, EP)]
    messages = {}  # of the expert groups
    for ranks, operations in calls[1:]:
        if set(operations) == {"Send"} and ranks in blocks:
            messages[ranks] = operations["Send"]
    # Counts to and from everybody, and four times the rows: there and back, forward and backward; empty ones are not sent.
    most = passes * 5 * EP * EP
    assert sorted(messages) == sorted(blocks)
    assert all(most / 5 < sent <= most for sent in messages.values())
    collectives = [(ranks, operations) for ranks, operations in calls[1:] if "AllGather" in operations]
    # An all-gather and a reduce-scatter of activations in each direction; of parameters and gradients once a bucket, of which
    # there is one a chunk.
    expected = [((s[d * TP], s[d * TP + 1]), 2 * passes) for s in stages for d in range(DP)]
    expected += [((s[t], s[t + TP]), CHUNKS * STEPS) for s in stages for t in range(TP)]
    expected += [(s, CHUNKS * STEPS) for s in stages]
    assert sorted(collectives) == sorted((ranks, {"AllGather": n, "ReduceScatter": n}) for ranks, n in expected)
    # Activations and gradients: each link of the ring has a communicator for either; the last link lacks one chunk's boundary.
    links = sorted((ranks, operations["Send"]) for ranks, operations in calls[1:] if set(operations) == {"Send"} and ranks not in blocks)
    expected = []
    for link in range(PP):
        chunks = CHUNKS if link < PP - 1 else CHUNKS - 1
        for a, b in zip(stages[link], stages[(link + 1) % PP]):
            expected += [((a, b), chunks * MICRO_BATCHES * STEPS)] * 2
    assert links == sorted(expected)


def test_real_without_values_is_refused_by_the_program_with_the_remedy(prism, trainer, nothing_left):
    result = prism.capture(*launcher(), trainer, "--real", *LAYOUT, flags=TARGET)
    assert result.code == 1  # torchrun's, whatever its ranks end with
    assert "prism capture --values cpu" in result.err and "rank 0 exited with code 2" in result.err
