"""Launches one kernel of the driver's API with several sizes, each on two buffers, and one whose parameter always differs."""
import ctypes
import sys

PTX = b""".version 7.0
.target sm_70
.address_size 64
.visible .entry product(.param .u64 out, .param .u32 m, .param .u32 n) { ret; }
.visible .entry noise(.param .u64 out, .param .u64 seed) { ret; }
"""
cuda = ctypes.CDLL("libcuda.so.1")


def call(name, *arguments):
    result = getattr(cuda, name)(*arguments)
    if result != 0:
        sys.exit(f"{name}: {result}")


def launch(function, *parameters):
    values = (ctypes.c_void_p * len(parameters))(*(ctypes.addressof(p) for p in parameters))
    call("cuLaunchKernel", function, 4, 1, 1, 128, 1, 1, 0, None, values, None)


call("cuInit", 0)
device, context, module = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
call("cuDeviceGet", ctypes.byref(device), 0)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
call("cuCtxSetCurrent", context)
call("cuModuleLoadData", ctypes.byref(module), PTX)
product, noise = ctypes.c_void_p(), ctypes.c_void_p()
call("cuModuleGetFunction", ctypes.byref(product), module, b"product")
call("cuModuleGetFunction", ctypes.byref(noise), module, b"noise")
buffers = [ctypes.c_uint64(), ctypes.c_uint64()]
for buffer in buffers:
    call("cuMemAlloc_v2", ctypes.byref(buffer), ctypes.c_size_t(1 << 20))
for m, n in ((64, 32), (32, 64), (64, 64)):
    for buffer in buffers:
        inside = ctypes.c_uint64(buffer.value + 4096)
        launch(product, inside, ctypes.c_uint32(m), ctypes.c_uint32(n))
for seed in range(100):
    launch(noise, buffers[0], ctypes.c_uint64(seed))
call("cuCtxSynchronize")
