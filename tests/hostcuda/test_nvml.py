"""NVML as pynvml and nvidia-smi-like tools use it: through ctypes, by name, beside a process that uses the devices."""

import json

PROGRAM = r"""
import ctypes, json, os, sys
nvml = ctypes.CDLL("libnvidia-ml.so.1")
class Memory(ctypes.Structure):
    _fields_ = [(n, ctypes.c_ulonglong) for n in ("total", "free", "used")]
class Process(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong), ("gpu", ctypes.c_uint), ("compute", ctypes.c_uint)]
assert nvml.nvmlInit_v2() == 0
count = ctypes.c_uint()
assert nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0
def device(i):
    h = ctypes.c_void_p()
    assert nvml.nvmlDeviceGetHandleByIndex_v2(i, ctypes.byref(h)) == 0
    return h
def text(function, i):
    b = ctypes.create_string_buffer(96)
    assert getattr(nvml, function)(device(i), b, 96) == 0
    return b.value.decode()
def memory(i):
    m = Memory()
    assert nvml.nvmlDeviceGetMemoryInfo(device(i), ctypes.byref(m)) == 0
    return {"total": m.total, "free": m.free, "used": m.used}
out = {"count": count.value, "name": text("nvmlDeviceGetName", 0), "uuids": [text("nvmlDeviceGetUUID", i) for i in range(count.value)], "before": memory(1)}
child = os.fork()   # NVML has not initialized CUDA, so a child may
if child == 0:
    import torch
    x = torch.empty(4, device="cuda:1")
    os._exit(0 if x.device.index == 1 else 1)
out["child"] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
import torch
x = torch.empty(1 << 30, dtype=torch.uint8, device="cuda:1")
out["during"] = memory(1)
out["other"] = memory(2)
processes, n = (Process * 8)(), ctypes.c_uint(8)
assert nvml.nvmlDeviceGetComputeRunningProcesses_v3(device(1), ctypes.byref(n), processes) == 0
out["processes"] = [[p.pid == os.getpid(), p.used] for p in processes[:n.value]]
out["torch"] = [torch.cuda._raw_device_count_nvml(), "GPU-" + str(torch.cuda.get_device_properties(1).uuid), *torch.cuda.mem_get_info(1)]
print(json.dumps(out))
"""


def test_nvml_tells_devices_memory_and_processes(run):
    [out] = run("-c", PROGRAM, options=("--devices", "4", "--gpu", "h200")).records()
    assert out["count"] == 4 and "H200" in out["name"] and len(set(out["uuids"])) == 4
    assert out["child"] == 0
    assert out["before"]["used"] == 0 and out["other"]["used"] == 0
    assert out["during"]["used"] >= 1 << 30
    assert out["during"]["used"] + out["during"]["free"] == out["during"]["total"]
    assert out["processes"] == [[True, out["during"]["used"]]]
    count, uuid, free, total = out["torch"]
    assert (count, uuid, total) == (4, out["uuids"][1], out["during"]["total"]) and free == out["during"]["free"]
