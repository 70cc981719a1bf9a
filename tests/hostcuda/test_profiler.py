"""torch.profiler on hostcuda: what it records of a step, and that each record leads to the operation that caused it."""

import collections

import pytest

# Kernels other than matrix products, matrix products, copies of one step on an H200 (PyTorch 2.11, CUDA 13.0), profiled there.
H200 = {"foreach": (40, 5, 1), "fused": (34, 5, 1), "scaler": (72, 5, 4)}


def by_kind(records):
    kinds = collections.defaultdict(list)
    for record in records:
        kinds[record["cat"]].append(record)
    return kinds


@pytest.mark.parametrize("mode", H200)
def test_device_events_of_a_step_are_those_of_a_gpu(run, mode):
    kinds = by_kind(run("profiled_step.py", mode).records())
    products = [k for k in kinds["kernel"] if k["name"].startswith("hostcublas")]
    assert (len(kinds["kernel"]) - len(products), len(products), len(kinds["gpu_memcpy"])) == H200[mode]


def test_products_are_named_by_their_shapes(run):
    kinds = by_kind(run("profiled_step.py", "fused").records())
    # A linear layer of 1024 -> 4096 -> 1024 over 256 rows, column-major as BLAS sees it; no gradient of the first input.
    assert sorted(k["name"] for k in kinds["kernel"] if k["name"].startswith("hostcublas")) == sorted([
        "hostcublasLt_matmul_bf16_bf16_f32_tn_m4096_n256_k1024_b1_epibias", "hostcublasLt_matmul_bf16_bf16_f32_tn_m1024_n256_k4096_b1_epibias",
        "hostcublas_gemm_bf16_bf16_f32_nn_m4096_n256_k1024_b1", "hostcublas_gemm_bf16_bf16_f32_nt_m4096_n1024_k256_b1",
        "hostcublas_gemm_bf16_bf16_f32_nt_m1024_n4096_k256_b1"])


def test_every_device_record_leads_to_its_call_and_operation(run):
    kinds = by_kind(run("profiled_step.py", "foreach").records())
    calls = {c["args"]["correlation"]: c for c in kinds["cuda_runtime"] + kinds["cuda_driver"]}
    operations = {o["args"]["External id"]: o for o in kinds["cpu_op"]}
    step = next(a for a in kinds["user_annotation"] if a["name"] == "the step")
    for record in kinds["kernel"] + kinds["gpu_memcpy"] + kinds["gpu_memset"]:
        call = calls[record["args"]["correlation"]]
        operation = operations[record["args"]["External id"]]
        # One thread calls, inside the operation, inside the step; the device follows.
        assert call["tid"] == operation["tid"]
        assert operation["ts"] <= call["ts"] and call["ts"] + call["dur"] <= operation["ts"] + operation["dur"] + 1
        assert call["ts"] <= record["ts"] + 1
        assert step["ts"] <= call["ts"] <= step["ts"] + step["dur"]
    assert [c["name"] for c in kinds["cuda_driver"]] == ["cuLaunchKernelEx"] * 5  # the products
    # The loss's backward ran on autograd's thread.
    assert len({c["tid"] for c in kinds["cuda_runtime"]}) == 2
    assert any(operations[k["args"]["External id"]]["name"] == "aten::addmm" for k in kinds["kernel"] if "Lt_matmul" in k["name"])
