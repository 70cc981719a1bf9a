"""Runs operations of PyTorch that end in CUDA's libraries, one after another; a JSON line for each.

With values none only structure is asked of them: shapes come out, gradients arrive, no call is missing. So operations whose
Python code looks at results (a factorization that checks its status by a reduction) are here in the form that does not check.
"""

import json
import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

DEVICE = "cuda"
TYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16, "fp64": torch.float64, "complex64": torch.complex64, "complex128": torch.complex128}


def tensor(*shape, dtype=torch.float32, grad=False):
    return torch.empty(shape, device=DEVICE, dtype=dtype).requires_grad_(grad)


def backward(output):
    (output[0] if isinstance(output, tuple) else output).sum().backward()
    return output[0] if isinstance(output, tuple) else output


def attention(backend, heads=16, kv_heads=16):
    q, k, v = (tensor(2, h, 512, 64, dtype=torch.bfloat16, grad=True) for h in (heads, kv_heads, kv_heads))
    with sdpa_kernel(backend):
        output = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=heads != kv_heads)
    backward(output)
    assert q.grad.shape == q.shape
    return output


def compressed():
    half = torch.ones(64, 64, device=DEVICE, dtype=torch.float16)
    return torch._cslt_compress(half)


def convolution(kind, channels, size, dtype=torch.float32, **options):
    module = kind(channels, 8, 3, device=DEVICE, dtype=dtype, **options)
    output = backward(module(tensor(2, channels, *size, dtype=dtype, grad=True)))
    assert module.weight.grad.shape == module.weight.shape
    return output


def recurrent(kind, **options):
    module = kind(32, 64, 2, **options).to(DEVICE)
    output = backward(module(tensor(5, 4, 32, grad=True)))
    assert all(p.grad is not None for p in module.parameters())
    return output


def fp8():
    a = tensor(32, 64).to(torch.float8_e4m3fn)
    one = torch.ones((), device=DEVICE)
    return torch._scaled_mm(a, tensor(16, 64).to(torch.float8_e4m3fn).t(), one, one, out_dtype=torch.bfloat16)


def grouped():
    offsets = torch.tensor([16, 32, 48, 64], device=DEVICE, dtype=torch.int32)
    return torch._grouped_mm(tensor(64, 32, dtype=torch.bfloat16), tensor(4, 32, 64, dtype=torch.bfloat16), offs=offsets)


def sparse():
    pointers, columns = torch.tensor([0, 1, 2], device=DEVICE), torch.tensor([0, 1], device=DEVICE)
    return torch.sparse_csr_tensor(pointers, columns, tensor(2), size=(2, 2)) @ tensor(2, 4)


SQUARE = (32, 32)
OPERATIONS = {
    **{f"mm-{n}": (lambda d=d: tensor(64, 32, dtype=d) @ tensor(32, 16, dtype=d), (64, 16)) for n, d in TYPES.items()},
    **{f"bmm-{n}": (lambda d=d: tensor(4, 64, 32, dtype=d) @ tensor(4, 32, 16, dtype=d), (4, 64, 16)) for n, d in TYPES.items()},
    "mm-int8": (lambda: torch._int_mm(tensor(32, 64, dtype=torch.int8), tensor(64, 16, dtype=torch.int8)), (32, 16)),
    "mm-fp8": (fp8, (32, 16)),
    "mm-grouped": (grouped, (64, 64)),
    "addmm-gelu": (lambda: torch._addmm_activation(tensor(16), tensor(64, 32), tensor(32, 16), use_gelu=True), (64, 16)),
    "mv": (lambda: tensor(32, 8) @ tensor(8), (32,)),
    "dot": (lambda: torch.dot(tensor(8), tensor(8)), ()),
    "linear": (lambda: backward(nn.Linear(32, 16, device=DEVICE)(tensor(64, 32, grad=True))), (64, 16)),
    "conv1d": (lambda: convolution(nn.Conv1d, 4, (10,)), (2, 8, 8)),
    "conv2d": (lambda: convolution(nn.Conv2d, 4, (10, 10)), (2, 8, 8, 8)),
    "conv2d-bf16": (lambda: convolution(nn.Conv2d, 4, (10, 10), torch.bfloat16), (2, 8, 8, 8)),
    "conv2d-grouped": (lambda: convolution(nn.Conv2d, 8, (10, 10), groups=4), (2, 8, 8, 8)),
    "conv2d-strided": (lambda: convolution(nn.Conv2d, 4, (11, 11), stride=2, padding=1, dilation=2), (2, 8, 5, 5)),
    "conv3d": (lambda: convolution(nn.Conv3d, 4, (10, 10, 10)), (2, 8, 8, 8, 8)),
    "conv-transposed": (lambda: convolution(nn.ConvTranspose2d, 4, (8, 8), stride=2), (2, 8, 17, 17)),
    "batchnorm": (lambda: backward(nn.BatchNorm2d(8).to(DEVICE)(tensor(2, 8, 8, 8, grad=True))), (2, 8, 8, 8)),
    "batchnorm-half": (lambda: backward(nn.BatchNorm2d(8).to(DEVICE).half()(tensor(2, 8, 8, 8, dtype=torch.float16, grad=True))), (2, 8, 8, 8)),
    "batchnorm-eval": (lambda: nn.BatchNorm2d(8).to(DEVICE).eval()(tensor(2, 8, 8, 8)), (2, 8, 8, 8)),
    "lstm": (lambda: recurrent(nn.LSTM), (5, 4, 64)),
    "lstm-bidirectional-dropout": (lambda: recurrent(nn.LSTM, bidirectional=True, dropout=0.1), (5, 4, 128)),
    "lstm-projected": (lambda: recurrent(nn.LSTM, proj_size=16), (5, 4, 16)),
    "gru": (lambda: recurrent(nn.GRU), (5, 4, 64)),
    "rnn": (lambda: recurrent(nn.RNN), (5, 4, 64)),
    "ctc": (lambda: backward(F.ctc_loss(tensor(50, 16, 20, grad=True).log_softmax(2), torch.ones(16, 30, dtype=torch.int), torch.full((16,), 50, dtype=torch.int), torch.full((16,), 30, dtype=torch.int))), ()),
    "grid-sample": (lambda: F.grid_sample(tensor(2, 3, 8, 8), tensor(2, 4, 4, 2), align_corners=False), (2, 3, 4, 4)),
    "affine-grid": (lambda: F.affine_grid(tensor(2, 2, 3), (2, 3, 8, 8), align_corners=False), (2, 8, 8, 2)),
    **{f"sdpa-{b.name.lower()}": (lambda b=b: attention(b), (2, 16, 512, 64)) for b in (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH)},
    "sdpa-cudnn-grouped-heads": (lambda: attention(SDPBackend.CUDNN_ATTENTION, 16, 4), (2, 16, 512, 64)),
    "fft": (lambda: torch.fft.fft(tensor(8, 64)), (8, 64)),
    "rfft2-irfft2": (lambda: torch.fft.irfft2(torch.fft.rfft2(tensor(4, 64, 64))), (4, 64, 64)),
    "fft-backward": (lambda: backward(torch.fft.fft(tensor(8, 64, grad=True)).abs()), (8, 64)),
    "cholesky": (lambda: torch.linalg.cholesky_ex(tensor(*SQUARE))[0], SQUARE),
    "cholesky-batched": (lambda: torch.linalg.cholesky_ex(tensor(4, *SQUARE))[0], (4, *SQUARE)),
    "cholesky-solve": (lambda: torch.cholesky_solve(tensor(32, 4), tensor(*SQUARE)), (32, 4)),
    "qr": (lambda: torch.linalg.qr(tensor(32, 16))[0], (32, 16)),
    "lu": (lambda: torch.linalg.lu_factor_ex(tensor(*SQUARE))[0], SQUARE),
    "lu-batched": (lambda: torch.linalg.lu_factor_ex(tensor(4, 8, 8))[0], (4, 8, 8)),
    "solve": (lambda: torch.linalg.solve_ex(tensor(*SQUARE), tensor(32, 4))[0], (32, 4)),
    "solve-triangular": (lambda: torch.linalg.solve_triangular(tensor(*SQUARE), tensor(32, 4), upper=True), (32, 4)),
    "inverse": (lambda: torch.linalg.inv_ex(tensor(*SQUARE))[0], SQUARE),
    "ldl": (lambda: torch.linalg.ldl_factor_ex(tensor(*SQUARE))[0], SQUARE),
    "svd": (lambda: torch.linalg.svd(tensor(*SQUARE))[0], SQUARE),
    "svd-gesvd": (lambda: torch.linalg.svd(tensor(*SQUARE), driver="gesvd")[0], SQUARE),
    "svd-gesvda": (lambda: torch.linalg.svd(tensor(3, *SQUARE), driver="gesvda")[0], (3, *SQUARE)),
    "eigh": (lambda: torch.linalg.eigh(tensor(*SQUARE))[0], (32,)),
    "lstsq": (lambda: torch.linalg.lstsq(tensor(8, 4), tensor(8, 2))[0], (4, 2)),
    "sparse-csr-mm": (sparse, (2, 4)),
    "semi-structured-compress": (compressed, (64, 36)),
}


def main():
    names = sys.argv[1:] or OPERATIONS
    for name in names:
        function, shape = OPERATIONS[name]
        record = {"operation": name, "expected": list(shape), "shape": None, "error": None}
        try:
            output = function()
            torch.cuda.synchronize()
            record["shape"] = list(output.shape)
        except Exception as error:
            record["error"] = f"{type(error).__name__}: {str(error)[:500]}"
        print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
