"""All ranks of a job with real NCCL on one GPU."""

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence

from provenance import ROOT


def on_one_gpu(program: Sequence) -> list:
    """Returns the program such that torchrun's ranks all use the first GPU."""
    return [ROOT / "bench/programs/one_gpu.py", *program]


@contextlib.contextmanager
def shared_gpu() -> Iterator[None]:
    """Kernels of several processes run side by side meanwhile: a daemon of MPS of its own."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(CUDA_MPS_PIPE_DIRECTORY=folder, CUDA_MPS_LOG_DIRECTORY=folder)
        subprocess.run(["nvidia-cuda-mps-control", "-d"], check=True)
        try:
            yield
        finally:
            subprocess.run(["nvidia-cuda-mps-control"], input=b"quit\n", check=False)
            del os.environ["CUDA_MPS_PIPE_DIRECTORY"], os.environ["CUDA_MPS_LOG_DIRECTORY"]
