"""Trains a GPT (RMSNorm, rotary positions, grouped queries, SwiGLU) in one of PyTorch's own parallelisms.

    torchrun --nproc-per-node 4 train_gpt.py --parallel ddp   --preset tiny --device cpu --checksum
    torchrun --nproc-per-node 8 train_gpt.py --parallel fsdp2 --preset 8b --dtype bf16 --recompute --seq 4096
    torchrun --nproc-per-node 8 train_gpt.py --parallel fsdp2 --tensor-size 2 --preset small
    torchrun --nproc-per-node 8 train_gpt.py --parallel fsdp2 --preset 8b --dtype bf16 --recompute --find-micro-batch

| --parallel | by                                                  | a rank's batch           |
|------------|-----------------------------------------------------|--------------------------|
| ddp        | DistributedDataParallel                             | its own micro-batch      |
| fsdp2      | fully_shard, with --tensor-size N also DTensor      | its own (a tensor group's) micro-batch |
| tp         | parallelize_module over all ranks, sequence sharded | one micro-batch for all  |
| pp         | Schedule1F1B, one stage a rank                      | --pipeline-micro-batches micro-batches for all |

Data, seed and initial weights do not depend on the device, so runs on `cuda` and on `cpu` can be compared. Output, one
line a step from the rank that holds the loss, then one line a rank:

    step 0 loss 5.545177 0x1.62e42fp+2 max_memory_allocated 1048576
    rank 0 checksum 9f86d081884c7d65 max_memory_allocated 1048576 max_memory_reserved 2097152
"""

import argparse
import dataclasses
import hashlib
import os
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

# Above this many parameters the model is made on the meta device and initialised shard by shard where it will live.
LARGEST_HOST_INITIALISED_MODEL = 1_000_000_000


@dataclasses.dataclass(frozen=True)
class ModelShape:
    vocabulary: int
    hidden: int
    feed_forward: int
    layers: int
    heads: int
    key_value_heads: int
    head_size: int

    def parameters(self) -> int:
        attention = self.hidden * self.head_size * 2 * (self.heads + self.key_value_heads)
        layer = attention + 3 * self.hidden * self.feed_forward + 2 * self.hidden
        return self.layers * layer + 2 * self.vocabulary * self.hidden + self.hidden


PRESETS = {
    "tiny": ModelShape(256, 64, 192, 8, 8, 8, 8),
    "small": ModelShape(32_000, 768, 2_048, 12, 12, 4, 64),
    "1b": ModelShape(128_256, 2_048, 8_192, 16, 32, 8, 64),  # Llama 3.2 1B, untied
    "8b": ModelShape(128_256, 4_096, 14_336, 32, 32, 8, 128),  # Llama 3 8B
    "32b": ModelShape(151_936, 5_120, 25_600, 64, 64, 8, 128),  # Qwen3 32B
    "70b": ModelShape(128_256, 8_192, 28_672, 80, 64, 8, 128),  # Llama 3 70B
}


# ---- Model -------------------------------------------------------------------------------------------------------


class RotaryPositions(nn.Module):
    """Holds cos and sin of every position's angles and turns heads of shape (batch, heads, sequence, head_size)."""

    def __init__(self, sequence: int, head_size: int) -> None:
        super().__init__()
        self.register_buffer("cos", torch.empty(sequence, head_size), persistent=False)
        self.register_buffer("sin", torch.empty(sequence, head_size), persistent=False)

    def reset_parameters(self) -> None:
        sequence, head_size = self.cos.shape
        frequencies = 10_000.0 ** (-torch.arange(0, head_size, 2) / head_size)
        angles = torch.outer(torch.arange(sequence), frequencies).repeat(1, 2)
        self.cos.copy_(angles.cos())
        self.sin.copy_(angles.sin())

    def forward(self, heads: Tensor) -> Tensor:
        length = heads.shape[-2]
        first, second = heads.chunk(2, dim=-1)
        turned = torch.cat((-second, first), dim=-1)
        return (heads * self.cos[:length] + turned * self.sin[:length]).to(heads.dtype)


def causal_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Computes what scaled_dot_product_attention(is_causal=True) does, one plain operation at a time."""
    length = query.shape[-2]
    scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
    future = torch.ones(length, length, dtype=torch.bool, device=query.device).triu(1)
    return scores.float().masked_fill(future, float("-inf")).softmax(-1).to(value.dtype) @ value


class Attention(nn.Module):
    def __init__(self, shape: ModelShape, kind: str) -> None:
        super().__init__()
        self.head_size, self.kind = shape.head_size, kind
        self.groups = shape.heads // shape.key_value_heads
        self.query = nn.Linear(shape.hidden, shape.heads * shape.head_size, bias=False)
        self.key = nn.Linear(shape.hidden, shape.key_value_heads * shape.head_size, bias=False)
        self.value = nn.Linear(shape.hidden, shape.key_value_heads * shape.head_size, bias=False)
        self.out = nn.Linear(shape.heads * shape.head_size, shape.hidden, bias=False)

    def forward(self, x: Tensor, positions: RotaryPositions) -> Tensor:
        batch, length, _ = x.shape

        def heads(projected: Tensor) -> Tensor:  # the number of heads is left open: under tensor parallelism it is a share
            return projected.view(batch, length, -1, self.head_size).transpose(1, 2)

        query = positions(heads(self.query(x)))
        key = positions(heads(self.key(x))).repeat_interleave(self.groups, dim=1)
        value = heads(self.value(x)).repeat_interleave(self.groups, dim=1)
        if self.kind == "manual":
            y = causal_attention(query, key, value)
        else:
            y = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, -1))


class FeedForward(nn.Module):
    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.gate = nn.Linear(shape.hidden, shape.feed_forward, bias=False)
        self.up = nn.Linear(shape.hidden, shape.feed_forward, bias=False)
        self.down = nn.Linear(shape.feed_forward, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, shape: ModelShape, attention: str, feed_forward: nn.Module) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.hidden, eps=1e-5)
        self.attention = Attention(shape, attention)
        self.feed_forward_norm = nn.RMSNorm(shape.hidden, eps=1e-5)
        self.feed_forward = feed_forward

    def forward(self, x: Tensor, positions: RotaryPositions) -> Tensor:
        x = x + self.attention(self.attention_norm(x), positions)
        return x + self.feed_forward(self.feed_forward_norm(x))


class GPT(nn.Module):
    """A whole model, or the layers [first, last) of it as one pipeline stage: only the first has the embedding, only
    the last the head."""

    def __init__(
        self,
        shape: ModelShape,
        sequence: int,
        attention: str = "sdpa",
        recompute: bool = False,
        layers: range | None = None,
        feed_forward: Callable[[ModelShape], nn.Module] = FeedForward,
    ) -> None:
        super().__init__()
        layers = range(shape.layers) if layers is None else layers
        self.recompute = recompute
        self.positions = RotaryPositions(sequence, shape.head_size)
        self.embedding = nn.Embedding(shape.vocabulary, shape.hidden) if layers.start == 0 else None
        # Keyed by the layer's number in the whole model, so that names do not depend on how it is cut into stages.
        self.blocks = nn.ModuleDict({str(n): Block(shape, attention, feed_forward(shape)) for n in layers})
        is_last = layers.stop == shape.layers
        self.norm = nn.RMSNorm(shape.hidden, eps=1e-5) if is_last else None
        self.head = nn.Linear(shape.hidden, shape.vocabulary, bias=False) if is_last else None

    def forward(self, x: Tensor) -> Tensor:
        if self.embedding is not None:
            x = self.embedding(x)
        for block in self.blocks.values():
            if self.recompute and torch.is_grad_enabled():
                # Nothing in a block is random, so there is no generator state worth saving.
                x = checkpoint(block, x, self.positions, use_reentrant=False, preserve_rng_state=False)
            else:
                x = block(x, self.positions)
        return x if self.head is None else self.head(self.norm(x))


def local(parameter: Tensor) -> Tensor:
    """Returns what this rank holds of a parameter."""
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


@torch.no_grad()
def initialise(model: nn.Module, seed: int) -> None:
    """Fills every parameter from a generator of its own, seeded by its name: a whole parameter starts with the same
    values whichever rank or stage holds it. Shards are filled where they are, each rank's with values of its own."""
    for module in model.modules():
        if isinstance(module, RotaryPositions):
            module.reset_parameters()
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:  # the weights of the norms
            nn.init.ones_(parameter)
            continue
        part = f"{name} of rank {dist.get_rank()}" if isinstance(parameter, DTensor) else name
        digest = hashlib.sha256(f"{seed} {part}".encode()).digest()
        generator = torch.Generator(parameter.device).manual_seed(int.from_bytes(digest[:7], "little"))
        local(parameter).normal_(std=0.02, generator=generator)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def progressions(seed: int, number: int, batch: int, sequence: int, vocabulary: int) -> Tensor:
    """Makes the n-th batch, of shape (batch, sequence + 1): arithmetic progressions, which a small model can learn."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + number)
    start = torch.randint(vocabulary, (batch, 1), generator=generator)
    stride = torch.randint(1, 4, (batch, 1), generator=generator)
    return (start + stride * torch.arange(sequence + 1)) % vocabulary


# ---- Parallelism -------------------------------------------------------------------------------------------------


def apply_tensor_parallel(model: GPT, mesh: DeviceMesh) -> None:
    """Splits heads, feed-forward and vocabulary over `mesh`; between the products activations are split by position."""
    by_position, whole = Shard(1), Replicate()
    parallelize_module(
        model,
        mesh,
        {
            "embedding": RowwiseParallel(input_layouts=whole, output_layouts=by_position),
            "norm": SequenceParallel(),
            "head": ColwiseParallel(input_layouts=by_position, output_layouts=whole),
        },
    )
    for block in model.blocks.values():
        parallelize_module(
            block,
            mesh,
            {
                "attention_norm": SequenceParallel(),
                "attention": PrepareModuleInput(input_layouts=(by_position, None), desired_input_layouts=(whole, None)),
                "attention.query": ColwiseParallel(),
                "attention.key": ColwiseParallel(),
                "attention.value": ColwiseParallel(),
                "attention.out": RowwiseParallel(output_layouts=by_position),
                "feed_forward_norm": SequenceParallel(),
                "feed_forward": PrepareModuleInput(input_layouts=(by_position,), desired_input_layouts=(whole,)),
                "feed_forward.gate": ColwiseParallel(),
                "feed_forward.up": ColwiseParallel(),
                "feed_forward.down": RowwiseParallel(output_layouts=by_position),
            },
        )


def apply_fsdp(model: GPT, mesh: DeviceMesh, dtype: torch.dtype) -> None:
    """Shards parameters, gradients and optimizer state over `mesh`, in fp32; gathers and computes in `dtype`."""
    precision = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    for block in model.blocks.values():
        fully_shard(block, mesh=mesh, mp_policy=precision)
    fully_shard(model, mesh=mesh, mp_policy=precision)


def make_optimizer(kind: str, model: nn.Module, learning_rate: float) -> torch.optim.Optimizer:
    how = {"foreach": {"foreach": True}, "fused": {"fused": True}, "plain": {"foreach": False}}[kind]
    return torch.optim.AdamW(model.parameters(), lr=learning_rate, **how)


class Training:
    """A model laid over the ranks, its optimizer and its data. `step(n)` trains on the n-th batch and returns the loss,
    averaged over the data-parallel ranks, or None on a rank that does not hold it (all pipeline stages but the last)."""

    def __init__(self, options: argparse.Namespace, device: torch.device) -> None:
        self.options, self.device = options, device
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[options.dtype]
        self.shape = shape_from(options)
        self.data_rank, self.data_size = 0, 1
        build = {"ddp": self._build_ddp, "fsdp2": self._build_fsdp, "tp": self._build_tensor, "pp": self._build_pipeline}
        build[options.parallel]()
        self.optimizer = make_optimizer(options.optimizer, self.model, options.learning_rate)

    def step(self, number: int, micro_batch: int | None = None) -> Tensor | None:
        micro_batch = self.options.micro_batch if micro_batch is None else micro_batch
        if self.options.parallel == "pp":
            loss = self._pipeline_forward_backward(number, micro_batch)
        else:
            inputs, targets = self._batch(number, micro_batch)
            loss = cross_entropy(self.model(inputs), targets)
            loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if loss is None or self.data_size == 1:
            return loss
        loss = loss.detach().clone()
        dist.all_reduce(loss)
        return loss / self.world  # every rank of a tensor group has the same loss, so the mean over all ranks is it

    def _batch(self, number: int, size: int) -> tuple[Tensor, Tensor]:
        """Returns inputs and targets of this rank's share of the n-th batch."""
        options = self.options
        tokens = progressions(options.seed, number, size * self.data_size, options.seq, self.shape.vocabulary)
        mine = tokens[self.data_rank * size : (self.data_rank + 1) * size].to(self.device)
        return mine[:, :-1].contiguous(), mine[:, 1:].contiguous()

    def _model(
        self, dtype: torch.dtype, layers: range | None = None, parallelise: Callable[[GPT], None] = lambda model: None
    ) -> GPT:
        """Makes the model, lays it out by `parallelise` and initialises it: a small one on the host, so that every
        device starts with the same values; a large one where it will live, so that no rank ever holds the whole."""
        options = self.options
        large = self.shape.parameters() > LARGEST_HOST_INITIALISED_MODEL
        with torch.device("meta" if large else "cpu"):
            model = GPT(self.shape, options.seq, options.attention, options.recompute, layers)
        if not large:
            initialise(model, options.seed)
            model.to(self.device)
        parallelise(model.to(dtype))
        if large:
            initialise(model.to_empty(device=self.device), options.seed)
        return model

    def _build_ddp(self) -> None:
        self.data_rank, self.data_size = self.rank, self.world
        devices = [self.device] if self.device.type == "cuda" else None
        self.model = DistributedDataParallel(self._model(self.dtype), device_ids=devices)

    def _build_fsdp(self) -> None:
        tensor = self.options.tensor_size
        mesh = init_device_mesh(self.device.type, (self.world // tensor, tensor), mesh_dim_names=("data", "tensor"))
        self.data_rank, self.data_size = mesh["data"].get_local_rank(), mesh["data"].size()

        def parallelise(model: GPT) -> None:
            if tensor > 1:
                apply_tensor_parallel(model, mesh["tensor"])
            apply_fsdp(model, mesh["data"], self.dtype)

        self.model = self._model(torch.float32, parallelise=parallelise)

    def _build_tensor(self) -> None:
        mesh = init_device_mesh(self.device.type, (self.world,))
        self.model = self._model(self.dtype, parallelise=lambda model: apply_tensor_parallel(model, mesh))

    def _build_pipeline(self) -> None:
        options, layers = self.options, self.shape.layers
        bounds = [layers * stage // self.world for stage in range(self.world + 1)]
        self.model = self._model(self.dtype, range(bounds[self.rank], bounds[self.rank + 1]))
        # With the shapes given the stages need not exchange them before the first step.
        tokens = torch.empty(options.micro_batch, options.seq, dtype=torch.int64, device="meta")
        hidden = torch.empty(*tokens.shape, self.shape.hidden, dtype=self.dtype, device="meta")
        logits = torch.empty(*tokens.shape, self.shape.vocabulary, dtype=self.dtype, device="meta")
        is_first, self.is_last_stage = self.rank == 0, self.rank == self.world - 1
        stage = PipelineStage(
            self.model,
            self.rank,
            self.world,
            self.device,
            input_args=tokens if is_first else hidden,
            output_args=logits if self.is_last_stage else hidden,
        )
        self.pipeline_micro_batches = options.pipeline_micro_batches or self.world
        self.schedule = Schedule1F1B(stage, self.pipeline_micro_batches, loss_fn=cross_entropy)

    def _pipeline_forward_backward(self, number: int, micro_batch: int) -> Tensor | None:
        inputs, targets = self._batch(number, micro_batch * self.pipeline_micro_batches)
        losses: list[Tensor] = []
        self.schedule.step(
            *([inputs] if self.rank == 0 else []),
            **({"target": targets, "losses": losses} if self.is_last_stage else {}),
            return_outputs=False,
        )
        return torch.stack(losses).mean() if self.is_last_stage else None


# ---- Running -----------------------------------------------------------------------------------------------------


def peak_memory(device: torch.device) -> tuple[int, int]:
    """Returns the peaks of allocated and reserved bytes (0, 0 on the CPU, where nobody counts)."""
    if device.type != "cuda":
        return 0, 0
    return torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)


def checksum(model: nn.Module) -> str:
    """Hashes the bytes of the parameters that this rank holds."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(local(parameter).detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def say(line: str) -> None:
    """Writes a line at once and whole, so that lines of several ranks do not mix."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def report_rank(model: nn.Module, device: torch.device, with_checksum: bool) -> None:
    allocated, reserved = peak_memory(device)
    shown = f" checksum {checksum(model)}" if with_checksum else ""
    used = ""
    if device.type == "cuda":  # whoever uses it, as the device says
        free, total = torch.cuda.mem_get_info(device)
        used = f" device_memory_used {total - free}"
    say(f"rank {dist.get_rank()}{shown} max_memory_allocated {allocated} max_memory_reserved {reserved}{used}")


def report_step(number: int, loss: Tensor, device: torch.device, begun: float) -> float:
    """Waits for the loss and says what the step gave and took since `begun`; returns when it ended, in seconds."""
    value = loss.item()
    ended = time.perf_counter()
    allocated, _ = peak_memory(device)
    took = 1e3 * (ended - begun)
    say(f"step {number} loss {value:.6f} {value.hex()} max_memory_allocated {allocated} took {took:.3f} ms")
    return ended


def train(training: Training, steps: int) -> None:
    begun = time.perf_counter()
    for number in range(steps):
        loss = training.step(number)
        if loss is not None and (training.rank == 0 or training.options.parallel == "pp"):
            begun = report_step(number, loss, training.device, begun)


def find_micro_batch(training: Training) -> None:
    """Doubles the micro-batch until torch runs out of memory. Two steps each: the second has the optimizer's state.
    Rank 0 speaks for all: every rank holds as much."""
    micro_batch = training.options.micro_batch

    def report(what: str) -> None:
        if training.rank == 0:
            say(f"rank 0 micro_batch {micro_batch} {what}")

    while True:
        torch.cuda.reset_peak_memory_stats()
        try:
            for number in range(2):
                training.step(number, micro_batch)
            torch.cuda.synchronize()
        except torch.OutOfMemoryError as error:
            report(f"out of memory: {error}")
            return
        allocated, reserved = peak_memory(training.device)
        report(f"max_memory_allocated {allocated} max_memory_reserved {reserved} ({allocated / 2**30:.2f} GiB)")
        micro_batch *= 2


def start_process_group(kind: str) -> torch.device:
    """Joins the group that torchrun describes in the environment and returns this rank's device."""
    if kind == "cpu":
        dist.init_process_group("gloo")
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    return device


def shape_from(options: argparse.Namespace, presets: dict[str, ModelShape] = PRESETS) -> ModelShape:
    preset = presets[options.preset]
    given = {field.name: getattr(options, field.name) for field in dataclasses.fields(preset)}
    return dataclasses.replace(preset, **{name: number for name, number in given.items() if number is not None})


def add_shape_options(parser: argparse.ArgumentParser, presets: dict[str, ModelShape]) -> None:
    group = parser.add_argument_group("model", "a preset's figures, each of which can be given instead")
    group.add_argument("--preset", choices=presets, default="tiny")
    for field in dataclasses.fields(next(iter(presets.values()))):
        group.add_argument("--" + field.name.replace("_", "-"), type=int, metavar="N")


def add_training_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("training")
    group.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cuda with NCCL, or cpu with Gloo")
    group.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    group.add_argument("--steps", type=int, default=5)
    group.add_argument("--micro-batch", type=int, default=2, help="sequences a rank (pp: a pipeline micro-batch)")
    group.add_argument("--seq", type=int, default=32, help="tokens a sequence")
    group.add_argument("--attention", choices=["sdpa", "manual"], default="sdpa")
    group.add_argument("--recompute", action="store_true", help="keep only each block's input for the backward pass")
    group.add_argument("--optimizer", choices=["foreach", "fused", "plain"], default="foreach", help="kind of AdamW")
    group.add_argument("--learning-rate", type=float, default=1e-3)
    group.add_argument("--seed", type=int, default=0)
    group.add_argument("--checksum", action="store_true", help="print a hash of each rank's parameters at the end")


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--parallel", choices=["ddp", "fsdp2", "tp", "pp"], default="ddp")
    parser.add_argument("--tensor-size", type=int, default=1, metavar="N", help="fsdp2: ranks of a tensor group")
    parser.add_argument("--pipeline-micro-batches", type=int, metavar="N", help="pp: micro-batches a step (world size)")
    parser.add_argument(
        "--find-micro-batch", action="store_true", help="double --micro-batch until out of memory (cuda, not pp)"
    )
    add_shape_options(parser, PRESETS)
    add_training_options(parser)
    options = parser.parse_args(arguments)
    world = int(os.environ.get("WORLD_SIZE", "1"))
    shape = shape_from(options)
    if options.find_micro_batch and (options.device != "cuda" or options.parallel == "pp"):
        parser.error("--find-micro-batch needs --device cuda and a --parallel other than pp")
    if options.tensor_size > 1 and options.parallel != "fsdp2":
        parser.error(f"--tensor-size {options.tensor_size} goes with --parallel fsdp2; --parallel tp uses every rank")
    if world % options.tensor_size:
        parser.error(f"--tensor-size {options.tensor_size} does not divide the {world} ranks")
    split = world if options.parallel == "tp" else options.tensor_size
    if shape.key_value_heads % split or options.seq % split:
        parser.error(f"{shape.key_value_heads} key-value heads and sequences of {options.seq} do not divide by {split}")
    if options.parallel == "pp" and shape.layers < world:
        parser.error(f"{shape.layers} layers cannot make {world} pipeline stages")
    return options


def run(options: argparse.Namespace, device: torch.device) -> None:
    training = Training(options, device)
    if options.find_micro_batch:
        find_micro_batch(training)
    else:
        train(training, options.steps)
        report_rank(training.model, device, options.checksum)


def main() -> None:
    options = parse_arguments()
    device = start_process_group(options.device)
    run(options, device)  # the model is gone before the group through which it communicates
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
