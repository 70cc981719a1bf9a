"""transformers' Qwen3, dense and mixture of experts, against the same model on the CPU."""

import pytest
import torch

pytest.importorskip("transformers")


def train(device, kind, dtype, steps=3):
    from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

    shape = dict(vocab_size=128, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
                 num_key_value_heads=2, head_dim=16, max_position_embeddings=64, attn_implementation="sdpa")  # fmt: skip
    if kind == "dense":
        config, model_class = Qwen3Config(**shape), Qwen3ForCausalLM
    else:
        experts = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, output_router_logits=True)
        config, model_class = Qwen3MoeConfig(**shape, **experts), Qwen3MoeForCausalLM
        config._experts_implementation = kind
    torch.manual_seed(0)
    model = model_class(config).to(dtype).to(device).train()
    tokens = torch.randint(0, 128, (2, 33), generator=torch.Generator().manual_seed(1)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(steps):
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, [p.detach().cpu() for p in model.parameters()]


@pytest.mark.parametrize("kind", ["dense", "eager", "grouped_mm"])
def test_qwen3_in_fp32(kind):
    losses, parameters = train("cuda", kind, torch.float32)
    expected_losses, expected_parameters = train("cpu", kind, torch.float32)
    assert losses == pytest.approx(expected_losses, rel=1e-6)
    assert losses[-1] < losses[0]
    for a, b in zip(parameters, expected_parameters, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", ["dense", "eager", "grouped_mm"])
def test_qwen3_in_bf16(kind):
    losses, _ = train("cuda", kind, torch.bfloat16)
    expected_losses, _ = train("cpu", kind, torch.bfloat16)
    assert losses[0] == pytest.approx(expected_losses[0], abs=2e-2)
    assert losses == pytest.approx(expected_losses, abs=1e-1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_generation(dtype):
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
                         num_key_value_heads=2, head_dim=8)  # fmt: skip
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(config).to(dtype).eval()
    tokens = torch.randint(0, 64, (2, 5), generator=torch.Generator().manual_seed(1))
    expected = model.generate(tokens, max_new_tokens=8, do_sample=False)
    assert torch.equal(model.cuda().generate(tokens.cuda(), max_new_tokens=8, do_sample=False).cpu(), expected)
