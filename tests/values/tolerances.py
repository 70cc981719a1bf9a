"""Where values on the device may differ from the CPU's, by how much, and why. Everything else has the same bits.

A bound is relative to the largest magnitude of the CPU's result; `absolute` serves results that are zero but for rounding.
One unit in the last place is 2**-23 (fp32), 2**-10 (fp16), 2**-7 (bf16) of a magnitude, so at most that much of the largest.
"""

import dataclasses

import torch

FP32, FP16, BF16 = torch.float32, torch.float16, torch.bfloat16
C64 = torch.complex64
ULP = {FP32: 2.0**-23, C64: 2.0**-23, FP16: 2.0**-10, BF16: 2.0**-7}


@dataclasses.dataclass(frozen=True)
class Tolerance:
    reason: str
    ulps: float = 1.0
    absolute: float = 1e-4  # reduced types only
    results: tuple | None = None  # compare these results only
    dtypes: tuple = (FP32, FP16, BF16, C64)
    fp32_backward: bool = False  # the oracle of 16-bit gradients is the CPU in fp32

    def allows(self, difference, dtype):
        absolute = self.absolute if dtype in (FP16, BF16) else 1e-7
        return difference.relative <= self.ulps * ULP[dtype] or difference.absolute <= absolute


BIAS = "cuDNN adds the bias after the convolution; the CPU's kernel starts its sums from it"
STATISTICS = Tolerance(
    "the CUDA kernel saves fp32 statistics, and so does its form here; the CPU's saves and reads them in the input's type, "
    "and in evaluation saves none", 1, 1e-4, results=(0,), fp32_backward=True)
TWO_ALGORITHMS = ("with a mask that needs a gradient or narrower value heads the CPU decomposes attention; here it is "
                  "computed from its definition in fp32")
AUTOGRAD = "the CPU differentiates a composition operation by operation; CUDA has a fused backward, in fp32"

# The CPU against itself, with its operands at other addresses: up to 3.1 units; two such results are up to twice that apart.
ALIGNMENT = "LAPACK's sums depend on how its work space happens to be aligned"

TOLERANCES = {
    "linalg.lstsq": Tolerance(ALIGNMENT, 7),
    "nn.functional.conv1d": Tolerance(BIAS, 2),
    "nn.functional.conv2d": Tolerance(BIAS, 2),
    "nn.functional.conv3d": Tolerance(BIAS, 2),
    "nn.functional.conv_transpose1d": Tolerance(BIAS, 2),
    "nn.functional.conv_transpose2d": Tolerance(BIAS, 2),
    "nn.functional.conv_transpose3d": Tolerance(BIAS, 2),
    "nn.functional.rms_norm": Tolerance(AUTOGRAD, 4),
    "renorm": Tolerance(AUTOGRAD, 2),
    "nn.functional.scaled_dot_product_attention": Tolerance(TWO_ALGORITHMS, 64, 1e-3),
    "nn.functional.multi_head_attention_forward": Tolerance(TWO_ALGORITHMS, 64, 1e-3),
    "nn.functional.layer_norm": STATISTICS,
    "native_layer_norm": STATISTICS,
    "nn.functional.instance_norm": STATISTICS,
    "nn.functional.batch_norm": STATISTICS,
    "native_batch_norm": STATISTICS,
    "_native_batch_norm_legit": STATISTICS,
    "_batch_norm_with_update": STATISTICS,
}


def tolerance(name, dtype):
    entry = TOLERANCES.get(name)
    return entry if entry is not None and dtype in entry.dtypes else None
