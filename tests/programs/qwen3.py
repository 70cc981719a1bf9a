"""transformers' Qwen3 in bf16: dense, or a mixture of experts computed grouped (grouped_mm) or one by one (eager)."""

import sys

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from steady_step import run_steps

kind = sys.argv[1]
shape = dict(
    vocab_size=32_000,
    hidden_size=1024,
    intermediate_size=3072,
    num_hidden_layers=4,
    num_attention_heads=16,
    num_key_value_heads=4,
    head_dim=64,
    max_position_embeddings=4096,
    attn_implementation="sdpa",
)
if kind == "dense":
    config, model_class = Qwen3Config(**shape), Qwen3ForCausalLM
else:
    experts = dict(num_experts=16, num_experts_per_tok=4, moe_intermediate_size=512, output_router_logits=True)
    config, model_class = Qwen3MoeConfig(**shape, **experts), Qwen3MoeForCausalLM
    config._experts_implementation = {"moe-grouped": "grouped_mm", "moe-eager": "eager"}[kind]

torch.manual_seed(0)
torch.set_default_dtype(torch.bfloat16)
with torch.device("cuda"):
    model = model_class(config).train()
torch.set_default_dtype(torch.float32)
optimizer = torch.optim.AdamW(model.parameters(), fused=True)


def step(number: int) -> None:
    tokens = torch.randint(0, config.vocab_size, (2, 1024)).cuda()
    model(input_ids=tokens, labels=tokens).loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


run_steps(f"qwen3-{kind}", step)
