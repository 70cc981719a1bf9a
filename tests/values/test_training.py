"""Whole training runs on the device have the bits of the same runs on the CPU."""

import functools

import pytest
import torch
from torch import nn

import programs


def same(run):
    """Runs on both devices and compares losses and final parameters bit by bit."""
    losses, parameters = run("cuda")
    expected_losses, expected_parameters = run("cpu")
    assert losses == expected_losses
    assert losses[-1] < losses[0]
    assert all(torch.equal(a, b) for a, b in zip(parameters, expected_parameters, strict=True))


@pytest.mark.parametrize("how", [{"foreach": True}, {"fused": True}, {"foreach": False}, {"amsgrad": True}], ids=str)
def test_mlp_adamw(how):
    same(lambda device: programs.classify(programs.Mlp, device, functools.partial(torch.optim.AdamW, lr=1e-2, **how)))


OPTIMIZERS = {
    "adam": functools.partial(torch.optim.Adam, lr=1e-2, weight_decay=0.1),
    "sgd": functools.partial(torch.optim.SGD, lr=1e-1, momentum=0.9),
    "sgd-fused": functools.partial(torch.optim.SGD, lr=1e-1, momentum=0.9, fused=True),
    "adagrad": functools.partial(torch.optim.Adagrad, lr=1e-2),
    "rmsprop": functools.partial(torch.optim.RMSprop, lr=1e-3),
    "adamax": functools.partial(torch.optim.Adamax, lr=1e-2),
    # Its foreach form, CUDA's default, is another formula than the plain one.
    "nadam": functools.partial(torch.optim.NAdam, lr=1e-2, foreach=False),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_mlp_optimizers(name):
    same(lambda device: programs.classify(programs.Mlp, device, OPTIMIZERS[name]))


@pytest.mark.parametrize("fused", [False, True])
def test_gradient_scaling(fused):
    optimizer = functools.partial(torch.optim.AdamW, lr=1e-2, fused=fused)
    same(lambda device: programs.classify(programs.Mlp, device, optimizer, scaler=True))


def test_gradient_scaler_skips_a_step_on_infinity():
    parameter = nn.Parameter(torch.ones(4, device="cuda"))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
    scaler.scale(parameter.sum() * float("inf")).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 512.0
    assert parameter.tolist() == [1.0] * 4


@pytest.mark.parametrize("norm", [nn.LayerNorm])
def test_gpt_with_attention(norm):
    same(lambda device: programs.language(device, norm))


def test_gpt_with_rms_norm_is_close():
    # Its backward differs by rounding (tolerances.py), which AdamW amplifies where gradients are small.
    losses, parameters = programs.language("cuda", nn.RMSNorm)
    expected_losses, expected_parameters = programs.language("cpu", nn.RMSNorm)
    assert losses == pytest.approx(expected_losses, rel=1e-6)
    for a, b in zip(parameters, expected_parameters, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-3)


def test_gpt_in_bf16_is_close():
    losses, _ = programs.language("cuda", autocast=torch.bfloat16)
    expected_losses, _ = programs.language("cpu", autocast=torch.bfloat16)
    assert losses[0] == pytest.approx(expected_losses[0], abs=1e-4)
    assert losses == pytest.approx(expected_losses, abs=2e-2)


def test_transformer_encoder():
    same(programs.encode)


def test_routing_by_value():
    same(lambda device: programs.classify(programs.MixtureOfExperts, device,
                                          functools.partial(torch.optim.AdamW, lr=1e-2)))  # fmt: skip
