"""Operations of the checked table that PyTorch's database does not reach: against definitions on the CPU."""

import pytest
import torch
from torch import nn

import oracle


def seeded(*shape, dtype=torch.float32, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def run(device, function, *tensors):
    moved = [t.to(device).requires_grad_(t.is_floating_point()) for t in tensors]
    out = function(*moved)
    outputs = oracle.tensors(out)
    sum(o.float().square().sum() for o in outputs).backward()
    return outputs + [t.grad for t in moved if t.grad is not None]


def close(function, *tensors, rtol=1e-5, atol=1e-6):
    for got, want in zip(run("cuda", function, *tensors), run("cpu", function, *tensors), strict=True):
        torch.testing.assert_close(got.cpu(), want, rtol=rtol, atol=atol)


@pytest.mark.parametrize("cell", [nn.LSTMCell, nn.GRUCell])
def test_recurrent_cell(cell):
    torch.manual_seed(0)
    modules = {"cpu": cell(6, 5)}
    modules["cuda"] = cell(6, 5).cuda()
    modules["cuda"].load_state_dict(modules["cpu"].state_dict())
    close(lambda x: modules[x.device.type](x), seeded(3, 6))
    for a, b in zip(modules["cuda"].parameters(), modules["cpu"].parameters(), strict=True):
        torch.testing.assert_close(a.grad.cpu(), b.grad, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("module", [nn.LSTM, nn.GRU])
def test_recurrent_network_without_cudnn(module):
    torch.manual_seed(0)
    modules = {"cpu": module(6, 5, num_layers=2, bidirectional=True)}
    modules["cuda"] = module(6, 5, num_layers=2, bidirectional=True).cuda()
    modules["cuda"].load_state_dict(modules["cpu"].state_dict())
    with torch.backends.cudnn.flags(enabled=False):
        close(lambda x: modules[x.device.type](x)[0], seeded(7, 3, 6))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_product_with_wider_result(dtype):
    a, b, c = seeded(5, 7, dtype=dtype), seeded(7, 6, dtype=dtype, seed=1), seeded(5, 6, dtype=dtype, seed=2)
    assert torch.equal(torch.mm(a.cuda(), b.cuda(), out_dtype=torch.float32).cpu(), a.float() @ b.float())
    got = torch.addmm(c.cuda(), a.cuda(), b.cuda(), out_dtype=torch.float32).cpu()
    torch.testing.assert_close(got, c.float() + a.float() @ b.float())
    batched = torch.bmm(a.expand(3, 5, 7).cuda(), b.expand(3, 7, 6).cuda(), out_dtype=torch.float32).cpu()
    torch.testing.assert_close(batched, (a.float() @ b.float()).expand(3, 5, 6))


def test_scaled_product():
    a = seeded(32, 64).to(torch.float8_e4m3fn)
    b = seeded(48, 64, seed=1).to(torch.float8_e4m3fn).t()
    scale_a, scale_b = torch.tensor(0.5), torch.tensor(2.0)
    got = torch._scaled_mm(a.cuda(), b.cuda(), scale_a.cuda(), scale_b.cuda(), out_dtype=torch.bfloat16).cpu()
    want = (a.float() * scale_a) @ (b.float() * scale_b)
    torch.testing.assert_close(got.float(), want, rtol=2**-7, atol=1e-3)
    rows, columns = torch.rand(32, 1) + 0.5, torch.rand(1, 48) + 0.5
    got = torch._scaled_mm(a.cuda(), b.cuda(), rows.cuda(), columns.cuda(), out_dtype=torch.bfloat16).cpu()
    torch.testing.assert_close(got.float(), (a.float() * rows) @ (b.float() * columns), rtol=2**-7, atol=1e-3)


def test_grouped_product():
    tokens = seeded(24, 16, dtype=torch.bfloat16)
    weights = seeded(3, 16, 32, dtype=torch.bfloat16, seed=1)
    ends = torch.tensor([8, 8, 24], dtype=torch.int32)
    got = torch._grouped_mm(tokens.cuda(), weights.cuda(), offs=ends.cuda()).cpu()
    want = torch.cat([tokens[:8] @ weights[0], tokens[8:] @ weights[2]])
    torch.testing.assert_close(got, want, rtol=2**-7, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float32])
def test_histogram_of_experts(dtype):
    chosen = torch.tensor([0, 3, 3, 1, 7, 7, 7], dtype=dtype)
    got = torch.histc(chosen.cuda(), bins=8, min=0, max=7)
    assert got.dtype == dtype
    assert got.tolist() == [1, 1, 0, 2, 0, 0, 0, 3]


def test_synchronized_batch_norm_is_batch_norm():
    x = seeded(8, 5, 6) * 3 + 1
    mean, invstd = torch.batch_norm_stats(x.cuda(), 1e-5)
    torch.testing.assert_close(mean.cpu(), x.mean((0, 2)))
    torch.testing.assert_close(invstd.cpu(), (x.var((0, 2), unbiased=False) + 1e-5).rsqrt())
    # Two halves, gathered, are the whole.
    halves = [torch.batch_norm_stats(half.contiguous().cuda(), 1e-5) for half in x.chunk(2)]
    running = [torch.zeros(5, device="cuda"), torch.ones(5, device="cuda")]
    gathered = torch.batch_norm_gather_stats_with_counts(
        x.cuda(), torch.stack([h[0] for h in halves]), torch.stack([h[1] for h in halves]), *running, 0.1, 1e-5,
        torch.tensor([24.0, 24.0], device="cuda"))  # fmt: skip
    torch.testing.assert_close(gathered[0], mean, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gathered[1], invstd, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(running[1].cpu(), 0.9 + 0.1 * x.var((0, 2)), rtol=1e-5, atol=1e-5)
    weight, bias = torch.rand(5) + 0.5, torch.rand(5)
    got = torch.batch_norm_elemt(x.cuda(), weight.cuda(), bias.cuda(), mean, invstd, 1e-5).cpu()
    leaf = x.clone().requires_grad_()
    want = torch.nn.functional.batch_norm(leaf, None, None, weight, bias, True)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    gradient = seeded(8, 5, 6, seed=3)
    want.backward(gradient)
    sums = torch.batch_norm_backward_reduce(gradient.cuda(), x.cuda(), mean, invstd, weight.cuda(), True, True, True)
    count = torch.tensor([48], dtype=torch.int32, device="cuda")
    got = torch.batch_norm_backward_elemt(gradient.cuda(), x.cuda(), mean, invstd, weight.cuda(), sums[0], sums[1], count)
    torch.testing.assert_close(got.cpu(), leaf.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_softmax_that_converts(dtype):
    x = seeded(4, 9, dtype=dtype)
    for function in (torch.softmax, torch.log_softmax):
        results = []
        for device in ("cuda", "cpu"):
            leaf = x.detach().clone().to(device).requires_grad_()
            out = function(leaf, -1, dtype=torch.float32)
            out.square().sum().backward()
            results.append((out.cpu(), leaf.grad.cpu()))
        assert torch.equal(results[0][0], results[1][0])
        assert torch.equal(results[0][1], results[1][1])


def test_convolutional_network():
    def network(device):
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
                             nn.Conv2d(8, 8, 3, groups=8), nn.GroupNorm(2, 8), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                             nn.Linear(8, 4)).to(device)  # fmt: skip

    results = []
    for device in ("cuda", "cpu"):
        model = network(device)
        out = model(seeded(2, 3, 12, 12).to(device))
        out.square().sum().backward()
        results.append([out.cpu()] + [p.grad.cpu() for p in model.parameters()] + [b.cpu() for b in model.buffers()])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
