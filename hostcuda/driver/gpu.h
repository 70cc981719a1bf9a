// The GPUs that hostcuda can present, in one table, and what the driver answers about a device of
// that kind.
//
// Immutable; thread-safe. Figures are the public ones of each product; memory is what
// cuDeviceTotalMem answers.
#ifndef HOSTCUDA_DRIVER_GPU_H_
#define HOSTCUDA_DRIVER_GPU_H_

#include <cuda.h>

#include <cstdint>
#include <vector>

namespace hostcuda {

struct GpuModel {
  const char* key;   // as in HOSTCUDA_GPU
  const char* name;  // as cuDeviceGetName answers
  int major, minor;
  uint64_t memory_bytes;
  int multiprocessors;
  int l2_bytes, persisting_l2_bytes;
  int clock_khz, memory_clock_khz, memory_bus_bits;
  int shared_per_multiprocessor, shared_per_block_optin;
  int async_engines;
};

/// The model chosen by HOSTCUDA_GPU, with HOSTCUDA_MEMORY applied.
const GpuModel& Gpu();
/// The model called `key`, or null.
const GpuModel* FindGpu(const char* key);
/// False where `attribute` is unknown. `device` is the machine's.
bool DeviceAttribute(const GpuModel& gpu, int device, CUdevice_attribute attribute, int* value);
/// Devices as this process sees them, after CUDA_VISIBLE_DEVICES (ordinals, or unique prefixes of
/// "GPU-<uuid>"). As with the real driver an entry that names no device ends the list.
int VisibleDevices();
/// The machine's device behind a visible ordinal, and back (-1: not visible).
int PhysicalDevice(int visible);
int VisibleOrdinal(int physical);
/// Parses CUDA_VISIBLE_DEVICES: the machine's devices in the order that the process sees. Null
/// text: all.
std::vector<int> ParseVisibleDevices(const char* text, int devices);

/// A stable identifier of the machine's n-th device; the text form is "GPU-" and 32 hexadecimal
/// digits with dashes.
CUuuid DeviceUuid(int device);
/// "0000:10:00.0" of device 0; the bus number counts up.
void DevicePciBusId(int device, char* text, int bytes);

}  // namespace hostcuda

#endif  // HOSTCUDA_DRIVER_GPU_H_
