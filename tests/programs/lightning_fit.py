"""Lightning's Trainer on a small transformer encoder, in bf16-mixed precision."""

import pytorch_lightning as lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from steady_step import SteadyStep

STEPS = 4


class Encoder(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True), 2)

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        (x,) = batch
        loss = self.encoder(x).float().pow(2).mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-4)


class Measure(lightning.Callback):
    def __init__(self) -> None:
        self.steady = SteadyStep("lightning")
        self.profile = self.steady.profile()

    def on_train_batch_start(self, trainer, module, batch, index: int) -> None:
        if index == STEPS:
            self.steady.report()
            self.profile.__enter__()

    def on_train_batch_end(self, trainer, module, outputs, batch, index: int) -> None:
        if index < STEPS:
            self.steady.mark()
        else:
            self.profile.__exit__(None, None, None)


lightning.seed_everything(0)
loader = DataLoader(TensorDataset(torch.randn((STEPS + 1) * 8, 128, 512)), batch_size=8)
trainer = lightning.Trainer(
    accelerator="gpu",
    devices=1,
    precision="bf16-mixed",
    max_steps=STEPS + 1,
    log_every_n_steps=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    callbacks=[Measure()],
)
trainer.fit(Encoder(), loader)
