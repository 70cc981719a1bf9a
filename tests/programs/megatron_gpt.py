"""A GPT of megatron-core with its distributed optimizer: `megatron_gpt.py data|tensor|pipeline|interleaved`.

`data` keeps the whole model on each rank; `tensor` splits it over all ranks (without sequence parallelism, whose norms
need NVIDIA's apex); `pipeline` runs 1F1B over all ranks, `interleaved` with two model chunks a rank.
"""

import os
import sys
import warnings

import torch
import torch.distributed as dist

warnings.filterwarnings("ignore")  # one for each of NVIDIA's optional kernel packages that is not installed

from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.transformer_config import TransformerConfig

from steady_step import run_steps

VOCABULARY, SEQUENCE, MICRO_BATCH, MICRO_BATCHES = 32_000, 512, 2, 4

mode = sys.argv[1]
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group("nccl", device_id=device)
world = dist.get_world_size()
tensor_size = world if mode == "tensor" else 1
pipeline_size = world if mode in ("pipeline", "interleaved") else 1
chunks = 2 if mode == "interleaved" else None
parallel_state.initialize_model_parallel(tensor_size, pipeline_size, chunks)
model_parallel_cuda_manual_seed(0)

config = TransformerConfig(
    num_layers=8,
    hidden_size=1024,
    num_attention_heads=16,
    tensor_model_parallel_size=tensor_size,
    pipeline_model_parallel_size=pipeline_size,
    virtual_pipeline_model_parallel_size=chunks,
    bf16=True,
    params_dtype=torch.bfloat16,
    pipeline_dtype=torch.bfloat16,
    gradient_accumulation_fusion=False,  # needs apex
    attention_softmax_in_fp32=True,
    finalize_model_grads_func=finalize_model_grads,
)


def build(chunk: int | None) -> DistributedDataParallel:
    where = {} if chunk is None else {"vp_stage": chunk}
    model = GPTModel(
        config=config,
        transformer_layer_spec=get_gpt_layer_local_spec(),
        vocab_size=VOCABULARY,
        max_sequence_length=SEQUENCE,
        pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=False, **where),
        post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=False, **where),
        position_embedding_type="rope",
        share_embeddings_and_output_weights=False,
        **where,
    )
    ddp = DistributedDataParallelConfig(use_distributed_optimizer=True, overlap_grad_reduce=False)
    return DistributedDataParallel(config, ddp, model.cuda().bfloat16(), disable_bucketing=bool(chunk))


models = [build(chunk) for chunk in range(chunks)] if chunks else [build(None)]
optimizer = get_megatron_optimizer(
    OptimizerConfig(optimizer="adam", lr=1e-4, bf16=True, use_distributed_optimizer=True, clip_grad=1.0), models
)
position_ids = torch.arange(SEQUENCE, device="cuda").expand(MICRO_BATCH, -1)
mask = torch.ones(1, 1, SEQUENCE, SEQUENCE, dtype=torch.bool, device="cuda").triu(1)


def batches(number: int):
    generator = torch.Generator().manual_seed(number * world + parallel_state.get_data_parallel_rank())
    while True:
        yield torch.randint(0, VOCABULARY, (MICRO_BATCH, SEQUENCE + 1), generator=generator).cuda()


def forward_step(data, model):
    tokens = next(data)
    losses = model(tokens[:, :-1].contiguous(), position_ids, mask, labels=tokens[:, 1:].contiguous())
    return losses, lambda output: (output.float().mean(), {})


def step(number: int) -> None:
    for model in models:
        model.zero_grad_buffer()
    optimizer.zero_grad()
    get_forward_backward_func()(
        forward_step_func=forward_step,
        data_iterator=[batches(number) for _ in models] if chunks else batches(number),
        model=models if chunks else models[0],
        num_microbatches=MICRO_BATCHES,
        seq_length=SEQUENCE,
        micro_batch_size=MICRO_BATCH,
        forward_only=False,
    )
    optimizer.step()


run_steps(f"megatron-{mode}-{world}", step)
dist.destroy_process_group()
