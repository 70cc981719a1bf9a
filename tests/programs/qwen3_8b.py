"""A step of a model of Qwen3-8B's shape on one device: bf16, activations recomputed, fused AdamW."""

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from steady_step import run_steps

config = Qwen3Config(
    vocab_size=151_936,
    hidden_size=4096,
    intermediate_size=12_288,
    num_hidden_layers=36,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
    use_cache=False,
)
torch.manual_seed(0)
torch.set_default_dtype(torch.bfloat16)
with torch.device("cuda"):
    model = Qwen3ForCausalLM(config).train()
torch.set_default_dtype(torch.float32)
model.gradient_checkpointing_enable()
optimizer = torch.optim.AdamW(model.parameters(), fused=True)


def step(number: int) -> None:
    tokens = torch.randint(0, config.vocab_size, (1, 4096), device="cuda")
    model(input_ids=tokens, labels=tokens).loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


run_steps("qwen3-8b", step)
