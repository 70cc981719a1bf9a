"""Trains a mixture-of-experts GPT: experts spread over the ranks, everything else data parallel.

    torchrun --nproc-per-node 4  train_moe.py --preset tiny --device cpu --checksum
    torchrun --nproc-per-node 16 train_moe.py --preset tiny --experts 32 --checksum
    torchrun --nproc-per-node 8  train_moe.py --preset 30b-a3b --dtype bf16 --recompute --seq 4096 --micro-batch 1

Each layer routes every token to its `--top-k` experts by value. Tokens travel in an all-to-all whose split sizes are
read on the host, so how much each rank sends depends on what the router decided. Output as of train_gpt.py.
"""

import argparse
import dataclasses
import os
import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from train_gpt import (
    GPT,
    LARGEST_HOST_INITIALISED_MODEL,
    FeedForward,
    ModelShape,
    add_shape_options,
    add_training_options,
    cross_entropy,
    initialise,
    make_optimizer,
    progressions,
    report_rank,
    report_step,
    shape_from,
    start_process_group,
)


@dataclasses.dataclass(frozen=True)
class MoEShape(ModelShape):
    """`feed_forward` is the width of one expert."""

    experts: int
    top_k: int

    def parameters(self) -> int:
        expert = 3 * self.hidden * self.feed_forward
        return super().parameters() + self.layers * ((self.experts - 1) * expert + self.experts * self.hidden)


PRESETS = {
    "tiny": MoEShape(256, 64, 96, 4, 8, 8, 8, experts=16, top_k=2),
    "small": MoEShape(32_000, 768, 768, 12, 12, 4, 64, experts=32, top_k=4),
    "30b-a3b": MoEShape(151_936, 2_048, 768, 48, 32, 4, 128, experts=128, top_k=8),  # Qwen3-30B-A3B
}


class AllToAll(torch.autograd.Function):
    """Sends `send[r]` rows to rank r and receives `receive[r]` rows from it; backward takes the same way back."""

    @staticmethod
    def forward(ctx, rows: Tensor, send: list[int], receive: list[int]) -> Tensor:
        ctx.splits = send, receive
        received = rows.new_empty(sum(receive), *rows.shape[1:])
        dist.all_to_all_single(received, rows.contiguous(), receive, send)
        return received

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None, None]:
        send, receive = ctx.splits
        returned = gradient.new_empty(sum(send), *gradient.shape[1:])
        dist.all_to_all_single(returned, gradient.contiguous(), send, receive)
        return returned, None, None


class ExpertParallelFeedForward(nn.Module):
    """Routes each token to its top-k experts, `experts / world size` of which live on this rank."""

    def __init__(self, shape: MoEShape, rank: int, world: int) -> None:
        super().__init__()
        self.top_k, self.world, self.local = shape.top_k, world, shape.experts // world
        self.router = nn.Linear(shape.hidden, shape.experts, bias=False)
        # Keyed by the expert's number in the whole model: its initial values do not depend on the rank that holds it.
        mine = range(rank * self.local, (rank + 1) * self.local)
        self.experts = nn.ModuleDict({str(n): FeedForward(shape) for n in mine})

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)
        weights, chosen = self.router(tokens).float().softmax(-1).topk(self.top_k, dim=-1)
        weights = (weights / weights.sum(-1, keepdim=True)).to(x.dtype)

        order = chosen.flatten().argsort(stable=True)  # by expert, therefore by rank
        token_of = order // self.top_k
        sent = torch.bincount(chosen.flatten(), minlength=self.world * self.local)
        received = torch.empty_like(sent)  # [source rank, local expert]
        dist.all_to_all_single(received, sent)
        send = sent.view(self.world, self.local).sum(1).tolist()
        receive_by_expert = received.tolist()
        receive = received.view(self.world, self.local).sum(1).tolist()

        rows = AllToAll.apply(tokens[token_of], send, receive)
        rows = self._through_experts(rows, receive_by_expert)
        rows = AllToAll.apply(rows, receive, send)

        rows = rows * weights.flatten()[order].unsqueeze(1)
        return torch.zeros_like(tokens).index_add(0, token_of, rows).view_as(x)

    def _through_experts(self, rows: Tensor, counts: list[int]) -> Tensor:
        """Runs each local expert once over its rows, which arrive by source rank and, within one, by expert."""
        pieces = list(rows.split(counts))
        for local, expert in enumerate(self.experts.values()):
            own = range(local, len(pieces), self.local)
            done = expert(torch.cat([pieces[n] for n in own])).split([counts[n] for n in own])
            for n, piece in zip(own, done, strict=True):
                pieces[n] = piece
        return torch.cat(pieces)


class ExpertParallelTraining:
    """As train_gpt.Training: `step(n)` trains on the n-th batch and returns the loss, averaged over the ranks."""

    def __init__(self, options: argparse.Namespace, device: torch.device) -> None:
        self.options, self.device = options, device
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.shape = shape_from(options, PRESETS)
        dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[options.dtype]
        large = self.shape.parameters() > LARGEST_HOST_INITIALISED_MODEL
        with torch.device("meta" if large else "cpu"):
            self.model = GPT(
                self.shape,
                options.seq,
                options.attention,
                options.recompute,
                feed_forward=lambda shape: ExpertParallelFeedForward(shape, self.rank, self.world),
            )
        if large:
            initialise(self.model.to(dtype).to_empty(device=device), options.seed)
        else:
            initialise(self.model, options.seed)
            self.model.to(device, dtype)
        experts = {
            id(parameter)
            for module in self.model.modules()
            if isinstance(module, ExpertParallelFeedForward)
            for parameter in module.experts.parameters()
        }
        self.expert_parameters = [p for p in self.model.parameters() if id(p) in experts]
        self.dense_parameters = [p for p in self.model.parameters() if id(p) not in experts]
        self.optimizer = make_optimizer(options.optimizer, self.model, options.learning_rate)

    def step(self, number: int) -> Tensor:
        options = self.options
        tokens = progressions(options.seed, number, options.micro_batch * self.world, options.seq, self.shape.vocabulary)
        mine = tokens[self.rank * options.micro_batch : (self.rank + 1) * options.micro_batch].to(self.device)
        loss = cross_entropy(self.model(mine[:, :-1].contiguous()), mine[:, 1:].contiguous())
        loss.backward()
        self._average_gradients()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        return mean / self.world

    def _average_gradients(self) -> None:
        """The loss is the mean over ranks: dense gradients are summed over them here; an expert has already met every
        rank's tokens."""
        for parameter in self.expert_parameters:
            parameter.grad /= self.world
        gradients = [parameter.grad for parameter in self.dense_parameters]
        flat = parameters_to_vector(gradients)
        dist.all_reduce(flat)
        vector_to_parameters(flat / self.world, gradients)


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add_shape_options(parser, PRESETS)
    add_training_options(parser)
    options = parser.parse_args(arguments)
    world, shape = int(os.environ.get("WORLD_SIZE", "1")), shape_from(options, PRESETS)
    if shape.experts % world:
        parser.error(f"{shape.experts} experts do not divide among {world} ranks: give --experts a multiple of {world}")
    if not 1 <= shape.top_k <= shape.experts:
        parser.error(f"--top-k {shape.top_k} must lie between 1 and the number of experts, {shape.experts}")
    return options


def run(options: argparse.Namespace, device: torch.device) -> None:
    training = ExpertParallelTraining(options, device)
    begun = time.perf_counter()
    for number in range(options.steps):
        loss = training.step(number)
        if training.rank == 0:
            begun = report_step(number, loss, device, begun)
    report_rank(training.model, device, options.checksum)


def main() -> None:
    options = parse_arguments()
    device = start_process_group(options.device)
    run(options, device)  # the model is gone before the group through which it communicates
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
