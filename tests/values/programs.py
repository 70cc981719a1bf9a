"""Training programs that run on either device: the oracle of a run on `cuda` is the same run on `cpu`."""

import math

import torch
from torch import nn
from torch.nn import functional as F


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 8))

    def forward(self, x):
        return self.layers(x)


class Block(nn.Module):
    def __init__(self, width, heads, norm):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = norm(width), norm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.silu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self, norm=nn.LayerNorm, vocabulary=96, width=32, length=24):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, 4, norm) for _ in range(2))
        self.norm, self.head = norm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class MixtureOfExperts(nn.Module):
    """Top-2 routing by value, with shapes that depend on it."""

    def __init__(self, width=32, experts=4):
        super().__init__()
        self.gate = nn.Linear(width, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, width)) for _ in range(experts))
        self.head = nn.Linear(width, 8)

    def forward(self, x):
        weights, chosen = self.gate(x).softmax(-1).topk(2, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        out = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            token, slot = torch.where(chosen == index)
            out = out.index_add(0, token, expert(x[token]) * weights[token, slot].unsqueeze(-1))
        return self.head(out)


def classify(model, device, optimizer, steps=8, scaler=False, clip=True):
    """Trains on random classes; returns losses (Python floats) and final parameters (on the CPU)."""
    torch.manual_seed(0)
    model = model()
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(64, 32, generator=generator)
    y = torch.randint(0, 8, (64,), generator=generator)
    model, x, y = model.to(device), x.to(device), y.to(device)
    optimizer = optimizer(model.parameters())
    losses = []
    scale = torch.amp.GradScaler(device, enabled=scaler)
    for _ in range(steps):
        loss = F.cross_entropy(model(x), y)
        scale.scale(loss).backward()
        scale.unscale_(optimizer)
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scale.step(optimizer)
        scale.update()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, [p.detach().cpu() for p in model.parameters()]


def language(device, norm=nn.LayerNorm, steps=6, autocast=None):
    """Trains a small GPT; returns losses and final parameters."""
    torch.manual_seed(0)
    model = Gpt(norm).to(device)
    data = torch.randint(0, 96, (4, 25), generator=torch.Generator().manual_seed(2)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5 * (1 + math.cos(step / steps)))
    losses = []
    for _ in range(steps):
        with torch.autocast(device, dtype=autocast or torch.bfloat16, enabled=autocast is not None):
            logits = model(data[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1).float(), data[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, [p.detach().cpu() for p in model.parameters()]


def encode(device, steps=5):
    """Trains nn.TransformerEncoder; returns losses and final parameters."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).to(device)
    x = torch.randn(3, 10, 32, generator=torch.Generator().manual_seed(3)).to(device)
    padding = torch.arange(10, device=device).expand(3, 10) >= torch.tensor([10, 7, 9], device=device).unsqueeze(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    losses = []
    for _ in range(steps):
        loss = model(x, src_key_padding_mask=padding).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, [p.detach().cpu() for p in model.parameters()]
