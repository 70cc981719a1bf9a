"""How values are computed: in stream order, once, over the same bytes; and what has no values says so."""

import ctypes
import json
import os
import shutil
import subprocess
import sys
import textwrap

import pytest
import torch
from torch import nn

GEQ = 0


def driver():
    """The driver that PyTorch loaded; it is found by its name once it is in the process."""
    torch.cuda.init()
    return ctypes.CDLL("libcuda.so.1")


def loaded_library(name):
    """The path from which this process loaded the library of this name."""
    torch.cuda.init()
    with open("/proc/self/maps") as maps:
        return next(path for line in maps if (path := line.rstrip().split(None, 5)[-1]).endswith("/" + name))


def raw(tensor):
    """The bytes of a device tensor as a CPU tensor, without a CUDA call."""
    length = tensor.untyped_storage().nbytes()
    block = (ctypes.c_byte * length).from_address(tensor.untyped_storage().data_ptr())
    flat = torch.frombuffer(block, dtype=torch.uint8).clone()
    return torch.empty(0, dtype=tensor.dtype).set_(flat.untyped_storage(), tensor.storage_offset(), tensor.shape,
                                                   tensor.stride())  # fmt: skip


class Stall:
    """Holds a stream at a wait for a word of device memory."""

    def __init__(self, stream):
        self.word = torch.zeros(1, dtype=torch.int32, device="cuda")
        torch.cuda.synchronize()
        wait = driver().cuStreamWaitValue32_v2
        assert wait(ctypes.c_void_p(stream.cuda_stream), ctypes.c_uint64(self.word.data_ptr()), 1, GEQ) == 0
        self.side = torch.cuda.Stream()

    def release(self):
        write = driver().cuStreamWriteValue32_v2
        assert write(ctypes.c_void_p(self.side.cuda_stream), ctypes.c_uint64(self.word.data_ptr()), 1, 0) == 0


def test_host_runs_ahead_of_a_stalled_stream():
    x = torch.arange(6.0, device="cuda")
    y = torch.zeros(6, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        stall = Stall(stream)
        scale = torch.tensor(3.0)  # a CPU scalar is read at the call
        y.add_(x * scale)
        scale.fill_(100.0)
        event = stream.record_event()
        assert not event.query()
        assert raw(y).tolist() == [0.0] * 6
        stall.release()
        stream.synchronize()
    assert y.tolist() == [0.0, 3.0, 6.0, 9.0, 12.0, 15.0]


def test_memory_is_reused_in_stream_order():
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        x = torch.ones(1024, device="cuda")
        total = torch.zeros(1024, device="cuda")
        stall = Stall(stream)
        for _ in range(10):
            total += x * 2 + 1  # the temporaries take each other's blocks while nothing has run
        stall.release()
        stream.synchronize()
    assert total.eq(30).all().item()


def test_shapes_by_value_wait_for_the_stream():
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        x = torch.zeros(8, device="cuda")
        stall = Stall(stream)
        x[2].add_(1.0)  # (an assignment would copy from the host, and so wait)
        stall.release()
        assert x.nonzero().tolist() == [[2]]
        assert x.sum().item() == 1.0


def test_streams_are_ordered_by_events():
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    x = torch.zeros(4, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(first):
        stall = Stall(first)
        x.fill_(5.0)
        event = first.record_event()
    with torch.cuda.stream(second):
        second.wait_event(event)
        y = x * 2
        assert not second.query()
        stall.release()
        second.synchronize()
    assert y.tolist() == [10.0] * 4


def test_backward_behind_a_stalled_stream():
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        w = torch.full((3, 3), 2.0, device="cuda", requires_grad=True)
        x = torch.eye(3, device="cuda")
        stall = Stall(stream)
        (x @ w).square().sum().backward()
        stall.release()
        stream.synchronize()
    assert w.grad.eq(4.0).all().item()


def test_graph_replays_compute():
    x = torch.ones(4, device="cuda")
    y = torch.zeros(4, device="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y += x.mul(2).relu()
    assert y.tolist() == [0.0] * 4
    graph.replay()
    graph.replay()
    x.fill_(-1.0)
    graph.replay()
    torch.cuda.synchronize()
    assert y.tolist() == [4.0] * 4


def test_views_and_strides():
    base = torch.arange(24.0).view(4, 6)
    device = base.cuda()
    base[1:, ::2].t().mul_(3).add_(base[0, 0])
    device[1:, ::2].t().mul_(3).add_(device[0, 0])
    assert torch.equal(device.cpu(), base)
    out, expected = torch.empty(6, 4, device="cuda").t(), torch.empty(6, 4).t()
    torch.cumsum(device, 1, out=out)
    torch.cumsum(base, 1, out=expected)
    assert torch.equal(out.cpu(), expected)


def test_conversions_and_copies_of_every_kind():
    x = torch.randn(5, 7, generator=torch.Generator().manual_seed(0))
    device = x.cuda()
    assert torch.equal(device.t().contiguous().cpu(), x.t())
    assert torch.equal(device.to(torch.bfloat16).cpu(), x.to(torch.bfloat16))
    assert torch.equal(device.double().t().cpu(), x.double().t())
    assert torch.equal(x.to("cuda", torch.float16).cpu(), x.half())
    assert torch.equal(x.t().to("cuda").cpu(), x.t())
    target = torch.zeros(7, 5, device="cuda", dtype=torch.float64)
    target.t().copy_(x)
    assert torch.equal(target.t().cpu(), x.double())
    complex_ = torch.complex(x, -x)
    assert torch.equal(complex_.conj().cuda().cpu(), complex_.conj().resolve_conj())
    assert torch.equal(device.to("cuda:1").cpu(), x)
    assert torch.equal(device.t().to("cuda:1", torch.float64).cpu(), x.t().double())


def test_operation_without_a_cpu_form_is_named():
    with pytest.raises(RuntimeError, match=r"hostcuda values: aten::_cudnn_rnn has no CPU form.*cudnn.enabled"):
        nn.LSTM(4, 4).cuda()(torch.randn(2, 1, 4, device="cuda"))


def test_nested_tensor_is_named():
    layer = nn.TransformerEncoderLayer(16, 2, 16, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 1).cuda().eval()
    padding = torch.tensor([[False, True], [False, False]], device="cuda")
    with torch.inference_mode(), pytest.raises(RuntimeError, match="a nested tensor .* has no CPU alias"):
        encoder(torch.ones(2, 2, 16, device="cuda"), src_key_padding_mask=padding)


def test_nested_tensor_of_a_mask_takes_its_sizes_from_it():
    batch = torch.ones(2, 2, 16, device="cuda")
    mask = torch.tensor([[True, False], [True, True]], device="cuda")
    # What was in the memory that results get next must not be taken for sizes.
    stale = [torch.full((64,), -1256813716392219040, device="cuda") for _ in range(10000)]
    del stale
    with pytest.raises(RuntimeError, match="a nested tensor .* has no CPU alias"):
        torch._nested_tensor_from_mask(batch, mask)


def test_kernel_outside_every_operation_is_named(capfd):
    double = torch.cuda.jiterator._create_jit_fn("template <typename T> T twice(T x) { return x + x; }")
    with pytest.raises(RuntimeError):
        double(torch.ones(3, device="cuda"))
    assert "twice" in capfd.readouterr().err


def test_one_operation_is_computed_once():
    # A composite calls several operations; each outermost one computes, and none twice.
    x = torch.ones(3, device="cuda")
    for _ in range(3):
        x.add_(1)
    torch._foreach_add_([x], 1)
    assert x.tolist() == [5.0] * 3


def child(program, tmp_path, **environment):
    report = tmp_path / "report.%p.json"
    result = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=300,
                            env={**os.environ, "HOSTCUDA_VALUES_REPORT": str(report), **environment})  # fmt: skip
    assert result.returncode == 0, result.stderr
    reports = [json.loads(path.read_text()) for path in tmp_path.glob("report.*.json")]
    assert len(reports) == 1
    return result.stdout, reports[0]


def test_report(tmp_path):
    out, report = child("""
        import torch
        x = torch.ones(4, device="cuda")
        print((x + x).sum().item(), torch.get_num_threads())
        """, tmp_path, HOSTCUDA_VALUES="cpu", HOSTCUDA_THREADS="2")  # fmt: skip
    assert out.split() == ["8.0", "2"]
    operations = {o["name"]: o for o in report["operations"]}
    assert report["mode"] == "cpu" and report["threads"] == 2 and report["schema"] == 1
    assert operations["aten::add.Tensor"]["computed"] == 1
    assert report["totals"]["computed"] >= 3


def test_control_computes_what_is_small(tmp_path):
    out, report = child("""
        import torch
        small = torch.arange(8.0, device="cuda")
        print((small * 2).sum().item() == 56.0)
        print(small.gt(3).nonzero().flatten().tolist() == [4, 5, 6, 7])
        big = torch.randn(4096, 64, device="cuda")
        logits = big @ torch.randn(64, 8, device="cuda")             # large in, large out: untouched
        print(logits.shape == (4096, 8))
        mean = big.mean(0)                                           # small from large: noise
        print(bool(mean.isfinite().all()))
        values, experts = logits.view(512, 64).topk(4, -1)           # small from large: legal and distinct
        print(int(experts.min()) >= 0 and int(experts.max()) < 64)
        print(all(len(set(row)) == 4 for row in experts.tolist()))
        counts = torch.bincount(experts.flatten(), minlength=64)
        print(int(counts.sum()) == 2048 and int(counts.max()) < 3 * 32)
        routes = (torch.randn(65536, 16, device="cuda") * 2).argmax(-1)  # indices are legal above the limit too
        print(routes.numel() * 8 > 65536, 0 <= int(routes.min()), int(routes.max()) < 16)
        print(bool(torch.isfinite(big).all()), not bool(torch.isinf(big).any()), not bool(torch.isnan(big).any()))
        print(bool((big != -100).all()), not bool((big == -100).any()))  # no padding, no ignored label
        parameter = torch.nn.Parameter(torch.zeros(4096, 64, device="cuda"))
        optimizer = torch.optim.SGD([parameter], lr=1.0)
        scaler = torch.amp.GradScaler("cuda", init_scale=8.0)
        scaler.scale(parameter.sum()).backward(); scaler.step(optimizer); scaler.update()
        print(scaler.get_scale() == 8.0)
        """, tmp_path, HOSTCUDA_VALUES="control", HOSTCUDA_CONTROL_BYTES="65536")  # fmt: skip
    assert set(out.split()) == {"True"}
    operations = {o["name"]: o for o in report["operations"]}
    assert report["mode"] == "control" and report["control_bytes"] == 65536
    assert operations["aten::mm"]["kept"] == 1 and operations["aten::mm"]["computed"] == 0
    assert operations["aten::topk"]["noise"] == 2
    assert report["totals"]["noise"] >= 3


def test_control_routes_a_recomputed_layer_as_before(tmp_path):
    out, _ = child("""
        import torch
        def routes(router, big):
            return (big @ router).view(-1, 8).float().softmax(-1).topk(2, -1).indices
        big = torch.randn(16384, 64, device="cuda")                 # its logits are small
        one, other = torch.randn(64, 8, device="cuda"), torch.randn(64, 8, device="cuda")
        again = torch.empty_like(big)                                # large: what it holds plays no part
        print(torch.equal(routes(one, big), routes(one, again)))
        print(not torch.equal(routes(one, big), routes(other, big)))
        held = [[torch.empty(4, 64, device="cuda").fill_(i), torch.empty(65532, 64, device="cuda")] for i in range(2)]
        gathered = torch.empty(65536, 64, device="cuda")             # as FSDP2 copies out what it gathered
        for out in held:
            torch.split_with_sizes_copy(gathered, [4, 65532], out=out)
        print(torch.equal(held[0][0], held[1][0]))
        one += 1                                                     # as after a step of the optimizer
        print(not torch.equal(routes(one, big), routes(other, big)))
        """, tmp_path, HOSTCUDA_VALUES="control")  # fmt: skip
    assert out.split() == ["True"] * 4


def test_bad_setting_is_named(tmp_path):
    result = subprocess.run([sys.executable, "-c", "import torch; torch.ones(1, device='cuda')"], capture_output=True,
                            text=True, timeout=300, env={**os.environ, "HOSTCUDA_VALUES": "cpu", "HOSTCUDA_THREADS": "many"})  # fmt: skip
    assert result.returncode != 0
    assert "HOSTCUDA_THREADS=many is not a positive integer" in result.stderr


@pytest.mark.parametrize("values", ["cpu", "control"])
def test_missing_layer_is_an_error_with_a_remedy(values, tmp_path):
    """The driver looks for the layer beside itself: a copy of it elsewhere finds none, and nothing is computed silently."""
    driver = shutil.copy(loaded_library("libcuda.so.1"), tmp_path / "libcuda.so.1")
    program = "import torch; print('computed', torch.ones(1, device='cuda').item())"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300,
                            env={**os.environ, "HOSTCUDA_VALUES": values, "LD_PRELOAD": str(driver)})  # fmt: skip
    assert result.returncode != 0 and "computed" not in result.stdout
    assert f"HOSTCUDA_VALUES={values} needs the value layer, {tmp_path}/libhostcuda_values.so" in result.stderr
    assert "hint: " in result.stderr and "hostcuda_install" in result.stderr


def test_another_pytorch_is_refused(tmp_path):
    """The layer asks the process for its version: a stand-in for libtorch_cpu's answer makes it another one."""
    source = tmp_path / "config.cc"
    source.write_text('#include <string>\nnamespace at { std::string show_config() '
                      '{ return "Build settings: TORCH_VERSION=2.5.1, USE_CUDA=1"; } }\n')
    library = tmp_path / "config.so"
    subprocess.run(["g++", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    result = subprocess.run([sys.executable, "-c", "import torch; torch.ones(1, device='cuda')"], capture_output=True,
                            text=True, timeout=300, env={**os.environ, "HOSTCUDA_VALUES": "cpu", "LD_PRELOAD": str(library)})  # fmt: skip
    assert result.returncode != 0
    assert "built against PyTorch 2.11.0, but the process has 2.5.1" in result.stderr
