"""transformers' Trainer on a small Qwen3, data from a torch Dataset, in bf16 autocast."""

import tempfile

import torch
from torch.utils.data import Dataset
from transformers import Qwen3Config, Qwen3ForCausalLM, Trainer, TrainerCallback, TrainingArguments

from steady_step import SteadyStep

STEPS = 4


class RandomTokens(Dataset):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(0, 32_000, (512,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


class Measure(TrainerCallback):
    def __init__(self) -> None:
        self.steady = SteadyStep("trainer")
        self.profile = self.steady.profile()

    def on_step_begin(self, args, state, control, **more) -> None:
        if state.global_step == STEPS:
            self.steady.report()
            self.profile.__enter__()

    def on_step_end(self, args, state, control, **more) -> None:
        if state.global_step <= STEPS:
            self.steady.mark()
        else:
            self.profile.__exit__(None, None, None)


torch.manual_seed(0)
config = Qwen3Config(
    vocab_size=32_000,
    hidden_size=512,
    intermediate_size=1536,
    num_hidden_layers=4,
    num_attention_heads=8,
    num_key_value_heads=4,
    head_dim=64,
)
with tempfile.TemporaryDirectory() as directory:
    arguments = TrainingArguments(
        output_dir=directory,
        max_steps=STEPS + 1,
        per_device_train_batch_size=4,
        bf16=True,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
    )
    Trainer(Qwen3ForCausalLM(config), arguments, train_dataset=RandomTokens(), callbacks=[Measure()]).train()
