"""Every operation of PyTorch's own database, forward and backward, against plain CPU tensors.

The samples are PyTorch's; the oracle is the CPU. An operation that the CUDA build itself does not have for a type is not
tested with it.
"""

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

import oracle
from tolerances import tolerance

SAMPLES = 8

# Random operations have tests of their own (test_random.py); uninitialized memory has no value; user-defined kernels are
# errors by design; sparse layouts have no values here.
NOT_COMPARED = {
    "bernoulli", "cauchy", "exponential", "geometric", "log_normal", "multinomial", "normal", "rand_like", "randint",
    "randint_like", "randn", "randn_like", "uniform", "pca_lowrank", "svd_lowrank", "nn.functional.rrelu",
    "nn.functional.fractional_max_pool2d", "nn.functional.fractional_max_pool3d",
    "empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided",
    "histogram", "histogramdd",
}  # fmt: skip
# The indices of tensor_split live on the host by definition.
NOT_COMPARABLE = {"tensor_split"}
SLOW = ("special.", "grid_sampler_3d", "masked.prod", "logaddexp")


def comparable(op):
    name = op.name
    return not (name in NOT_COMPARED or name in NOT_COMPARABLE or "dropout" in name or "jiterator" in name
                or "sparse" in name or "_scaled_mm" in name or "_attention_forward" in name)


def cases(dtypes):
    for op in op_db:
        for dtype in dtypes:
            if comparable(op) and dtype in op.dtypes and dtype in op.supported_dtypes("cuda"):
                slow = op.name.startswith(SLOW) or dtype == torch.complex64
                name = f"{op.name}{'.' + op.variant_test_name if op.variant_test_name else ''}-{str(dtype)[6:]}"
                yield pytest.param(op, dtype, id=name, marks=[pytest.mark.slow] if slow else [])


def samples(op, dtype, requires_grad):
    found = [s for s in op.sample_inputs("cpu", dtype, requires_grad=requires_grad) if not s.kwargs.get("dropout_p")]
    return found[:: max(1, len(found) // SAMPLES)]


def arguments(sample, device):
    value = oracle.on(device, (sample.input, list(sample.args), dict(sample.kwargs)))
    if "device" in value[2]:
        value[2]["device"] = device
    return value


def call(function, sample, device, differentiate, results, widen_from=None):
    """Returns outputs (those of index `results`), gradients and the arguments after the call (some are written to).

    `widen_from`: a 16-bit type, to compute in fp32 from inputs of that type.
    """
    first, rest, named = arguments(sample, device)
    if widen_from:
        first, rest, named = oracle.widened((first, rest, named))
    torch.manual_seed(0)
    outputs = function(first, *rest, **named)
    if results is not None and not isinstance(outputs, torch.Tensor):
        outputs = [outputs[i] for i in results]
    grads = oracle.gradients(outputs, (first, rest, named), device, widen_from) if differentiate else []
    return outputs, list(grads), (first, rest)


def check(found, name, dtype, what):
    allowed = tolerance(name, dtype)
    bad = [d for d in found if allowed is None or not allowed.allows(d, dtype)]
    assert not bad, f"{what}: " + "; ".join(map(str, bad))


@pytest.mark.parametrize("op, dtype", cases([torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool,
                                             torch.complex64]))  # fmt: skip
def test_operation_equals_cpu(op, dtype):
    differentiate = dtype.is_floating_point and op.supports_autograd
    allowed = tolerance(op.name, dtype)
    results = allowed.results if allowed else None
    compared = 0
    for sample in samples(op, dtype, differentiate):
        try:
            want = call(op.op, sample, "cpu", differentiate, results)
        except (RuntimeError, NotImplementedError):
            continue  # the CPU has no answer to compare with
        try:
            got = call(op.op, sample, "cuda", differentiate, results)
        except NotImplementedError as missing:
            assert "not implemented for" in str(missing)  # neither has the CUDA build
            continue
        check(oracle.differences(got[0], want[0]), op.name, dtype, "forward")
        if allowed and allowed.fp32_backward and dtype in (torch.bfloat16, torch.float16):
            wide = call(op.op, sample, "cpu", differentiate, results, widen_from=dtype)[1]
            gradients = [None if g is None else g.float() for g in got[1]]
            check(oracle.differences(gradients, wide), op.name, dtype, "backward, against fp32")
        else:
            check(oracle.differences(got[1], want[1]), op.name, dtype, "backward")
        check(oracle.differences(got[2], want[2]), op.name, dtype, "arguments after the call")
        compared += 1
    if compared == 0:
        pytest.skip("the CPU has no kernel for this type")


def in_place_cases():
    for case in cases([torch.float32, torch.int64]):
        if case.values[0].inplace_variant is not None and case.values[0].name != "addbmm":
            yield case


@pytest.mark.parametrize("op, dtype", in_place_cases())
def test_in_place_operation_equals_cpu(op, dtype):
    compared = 0
    for sample in samples(op, dtype, False):
        # Square matrices also through a transposed view: CUDA kernels compute those beside and copy back.
        views = [lambda t: t] + ([lambda t: t.t()] if sample.input.dim() == 2 and len(set(sample.input.shape)) == 1 else [])
        for view in views:
            want, got = view(sample.input.clone()), view(oracle.on("cuda", sample.input.clone()))
            try:
                op.inplace_variant(want, *sample.args, **sample.kwargs)
            except (RuntimeError, NotImplementedError):
                continue
            _, rest, named = arguments(sample, "cuda")
            op.inplace_variant(got, *rest, **named)
            check(oracle.differences(got, want), op.name, dtype, "in place")
            compared += 1
    if compared == 0:
        pytest.skip("not in place for these samples")
