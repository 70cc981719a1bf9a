"""The programs of the matrix: what is run, on how many ranks, and which values it needs to find its way."""

import dataclasses
from pathlib import Path

PROGRAMS_DIRECTORY = Path(__file__).parent
EXAMPLES_DIRECTORY = PROGRAMS_DIRECTORY.parents[1] / "examples"


@dataclasses.dataclass(frozen=True)
class Program:
    """`values` is what hostcuda must compute: `none` where nothing that the host reads decides what it does next,
    `control` where small tensors do (routing, whether there is padding or a norm to clip, pickled objects).
    `needs` names the package beyond torch."""

    name: str
    path: Path
    arguments: tuple[str, ...] = ()
    ranks: int = 1
    values: str = "none"
    needs: str | None = None
    searches_micro_batch: bool = False


def _program(name: str, file: str, arguments: str = "", **more) -> Program:
    return Program(name, PROGRAMS_DIRECTORY / file, tuple(arguments.split()), **more)


MOE_30B = "--preset 30b-a3b --dtype bf16 --recompute --seq 4096 --micro-batch 1 --learning-rate 1e-5 --steps 4"

PROGRAMS = [
    *(_program(f"mlp-{mode}", "mlp.py", mode) for mode in ("foreach", "fused", "scaler")),
    *(
        _program(f"attention-{name}", "attention.py", name)
        for name in ("default", "flash", "efficient", "cudnn", "math")
    ),
    _program("compiled", "compiled.py", needs="triton"),
    _program("cuda-graph", "cuda_graph.py"),
    _program("recompute", "recompute.py"),
    _program("loader", "loader.py"),
    _program("profiled", "profiled.py"),
    _program("qwen3-dense", "qwen3.py", "dense", values="control", needs="transformers"),
    _program("qwen3-moe-grouped", "qwen3.py", "moe-grouped", values="control", needs="transformers"),
    _program("qwen3-moe-eager", "qwen3.py", "moe-eager", values="control", needs="transformers"),
    _program("trainer", "trainer.py", values="control", needs="accelerate"),
    _program("lightning", "lightning_fit.py", needs="pytorch_lightning"),
    _program("qwen3-8b", "qwen3_8b.py", values="control", needs="transformers"),
    _program("ddp-2", "ddp.py", ranks=2),
    _program("fsdp2-2", "fsdp2.py", ranks=2),
    _program("dtensor-2", "dtensor.py", ranks=2),
    _program("dtensor-4", "dtensor.py", ranks=4),
    _program("pipeline-2", "pipeline.py", ranks=2, values="control"),
    *(
        _program(f"megatron-{mode}-2", "megatron_gpt.py", mode, ranks=2, values="control", needs="megatron")
        for mode in ("data", "tensor", "pipeline", "interleaved")
    ),
    _program("gpt-ddp-2", "gpt.py", "gpt-ddp-2 gpt --preset small --seq 512 --parallel ddp", ranks=2),
    _program("gpt-fsdp2-2", "gpt.py", "gpt-fsdp2-2 gpt --preset small --seq 512 --parallel fsdp2 --dtype bf16", ranks=2),
    _program("gpt-tp-2", "gpt.py", "gpt-tp-2 gpt --preset small --seq 512 --parallel tp --dtype bf16", ranks=2),
    _program("gpt-pp-2", "gpt.py", "gpt-pp-2 gpt --preset small --seq 512 --parallel pp --dtype bf16", ranks=2),
    _program("moe-2", "gpt.py", "moe-2 moe --preset small --seq 512 --dtype bf16", ranks=2, values="control"),
    _program("moe-30b-12-layers-2", "gpt.py", f"moe-30b-12-layers-2 moe {MOE_30B} --layers 12", ranks=2, values="control"),
    Program(
        "fsdp2-8b-search-2",
        EXAMPLES_DIRECTORY / "train_gpt.py",
        tuple(
            "--parallel fsdp2 --preset 8b --dtype bf16 --recompute --seq 4096 --micro-batch 1 --optimizer fused "
            "--find-micro-batch".split()
        ),
        ranks=2,
        searches_micro_batch=True,
    ),
]
