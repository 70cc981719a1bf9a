#include "hostcuda/driver/gpu.h"

#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "hostcuda/driver/options.h"

namespace hostcuda {
namespace {

constexpr int kFirstBus = 0x10;

const GpuModel kGpus[] = {
    // key, name, cc, memory, SMs, L2, persisting L2, clock, memory clock, bus, shared/SM,
    // shared/block, copy engines
    {"h200", "NVIDIA H200", 9, 0, 150109880320, 132, 62914560, 39321600, 1980000, 3201000, 6144,
     233472, 232448, 3},
    {"h100", "NVIDIA H100 80GB HBM3", 9, 0, 85029158912, 132, 52428800, 32768000, 1980000, 2619000,
     5120, 233472, 232448, 3},
    {"a100", "NVIDIA A100-SXM4-80GB", 8, 0, 85095874560, 108, 41943040, 26214400, 1410000, 1593000,
     5120, 167936, 166912, 3},
    {"b200", "NVIDIA B200", 10, 0, 191503400960, 148, 132644864, 82903040, 1965000, 3996000, 7680,
     233472, 232448, 4},
};

}  // namespace

const GpuModel* FindGpu(const char* key) {
  for (const GpuModel& gpu : kGpus) {
    if (strcmp(gpu.key, key) == 0) return &gpu;
  }
  return nullptr;
}

const GpuModel& Gpu() {
  static const GpuModel* const chosen = [] {
    auto* gpu = new GpuModel(*FindGpu(Options().gpu.c_str()));
    if (Options().memory_bytes != 0) gpu->memory_bytes = Options().memory_bytes;
    return gpu;
  }();
  return *chosen;
}

bool DeviceAttribute(const GpuModel& gpu, int device, CUdevice_attribute attribute, int* value) {
  if (attribute < 1 || attribute >= CU_DEVICE_ATTRIBUTE_MAX) return false;
  *value = [&]() -> int {
    switch (attribute) {
      case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X:
      case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y:
        return 1024;
      case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z:
        return 64;
      case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X:
        return INT_MAX;
      case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y:
      case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z:
        return 65535;
      case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK:
        return 49152;
      case CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY:
        return 65536;
      case CU_DEVICE_ATTRIBUTE_WARP_SIZE:
        return 32;
      case CU_DEVICE_ATTRIBUTE_MAX_PITCH:
        return INT_MAX;
      case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK:
      case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR:
        return 65536;
      case CU_DEVICE_ATTRIBUTE_CLOCK_RATE:
        return gpu.clock_khz;
      case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE:
        return gpu.memory_clock_khz;
      case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH:
        return gpu.memory_bus_bits;
      case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
        return gpu.multiprocessors;
      case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE:
        return gpu.l2_bytes;
      case CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE:
        return gpu.persisting_l2_bytes;
      case CU_DEVICE_ATTRIBUTE_MAX_ACCESS_POLICY_WINDOW_SIZE:
        return 134213632;
      case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
        return 2048;
      case CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR:
        return 32;
      case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        return gpu.major;
      case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
        return gpu.minor;
      case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
        return gpu.async_engines;
      case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR:
        return gpu.shared_per_multiprocessor;
      case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
        return gpu.shared_per_block_optin;
      case CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK:
        return 1024;
      case CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT:
      case CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT:
        return 512;
      case CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT:
        return 32;
      case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
        return kFirstBus + device;
      case CU_DEVICE_ATTRIBUTE_MULTI_GPU_BOARD_GROUP_ID:
        return device;
      case CU_DEVICE_ATTRIBUTE_SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO:
        return 2;
      case CU_DEVICE_ATTRIBUTE_MEM_SYNC_DOMAIN_COUNT:
        return 4;
      case CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES:
        return 0;  // pools are not exported
      case CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID:
        return 0;
      case CU_DEVICE_ATTRIBUTE_NUMA_ID:
        return -1;
      case CU_DEVICE_ATTRIBUTE_GPU_OVERLAP:
      case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
      case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
      case CU_DEVICE_ATTRIBUTE_ECC_ENABLED:
      case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
      case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY:
      case CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS:
      case CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED:
      case CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH:
      case CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED:
      case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
      case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
      case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
      case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
      case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED:
      case CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1:
      case CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS_V1:
      case CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS:
      case CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR_V1:
      case CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR:
      case CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES:
      case CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED:
      case CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED:
      case CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED:
      case CU_DEVICE_ATTRIBUTE_UNIFIED_FUNCTION_POINTERS:
        return 1;
      case CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH:
      case CU_DEVICE_ATTRIBUTE_TENSOR_MAP_ACCESS_SUPPORTED:
        return gpu.major >= 9 ? 1 : 0;
      // Texture limits exist although hostcuda has no textures: programs read them to choose a
      // path.
      case CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_WIDTH:
      case CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_WIDTH:
      case CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_WIDTH:
        return 131072;
      case CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_HEIGHT:
      case CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_HEIGHT:
        return 65536;
      case CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_PITCH:
        return 2097120;
      case CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LINEAR_WIDTH:
        return 268435456;
      case CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_WIDTH:
      case CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_HEIGHT:
      case CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_DEPTH:
        return 16384;
      // Everything else (multicast, fabric handles, GPUDirect RDMA, integrated, TCC, ...) is
      // absent.
      default:
        return 0;
    }
  }();
  return true;
}

std::vector<int> ParseVisibleDevices(const char* text, int devices) {
  std::vector<int> visible;
  if (text == nullptr) {
    for (int device = 0; device < devices; ++device) visible.push_back(device);
    return visible;
  }
  while (*text != '\0') {
    const char* end = strchrnul(text, ',');
    const std::string entry(text, end);
    int found = -1;
    if (entry.rfind("GPU-", 0) == 0) {
      for (int device = 0; device < devices; ++device) {
        const CUuuid uuid = DeviceUuid(device);
        std::string own = "GPU-";
        for (int i = 0; i < 16; ++i) {
          char digits[4];
          snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(uuid.bytes[i]));
          if (i == 4 || i == 6 || i == 8 || i == 10) own += '-';
          own += digits;
        }
        if (own.compare(0, entry.size(), entry) != 0) continue;
        if (found >= 0) return {};  // not unique
        found = device;
      }
    } else {
      char* rest = nullptr;
      const long ordinal = strtol(entry.c_str(), &rest, 10);
      if (rest != entry.c_str() && *rest == '\0' && ordinal >= 0 && ordinal < devices)
        found = static_cast<int>(ordinal);
    }
    if (found < 0) break;
    if (std::find(visible.begin(), visible.end(), found) != visible.end())
      return {};  // twice: none
    visible.push_back(found);
    text = *end == ',' ? end + 1 : end;
  }
  return visible;
}

namespace {

const std::vector<int>& Visible() {
  static const auto* const visible =
      new std::vector<int>(ParseVisibleDevices(getenv("CUDA_VISIBLE_DEVICES"), Options().devices));
  return *visible;
}

}  // namespace

int VisibleDevices() { return static_cast<int>(Visible().size()); }

int PhysicalDevice(int visible) { return Visible()[static_cast<size_t>(visible)]; }

int VisibleOrdinal(int physical) {
  const auto found = std::find(Visible().begin(), Visible().end(), physical);
  return found == Visible().end() ? -1 : static_cast<int>(found - Visible().begin());
}

CUuuid DeviceUuid(int device) {
  CUuuid uuid;
  memcpy(uuid.bytes, "hostcuda-device", 15);
  uuid.bytes[15] = static_cast<char>(device);
  return uuid;
}

void DevicePciBusId(int device, char* text, int bytes) {
  snprintf(text, static_cast<size_t>(bytes), "0000:%02x:00.0", kFirstBus + device);
}

}  // namespace hostcuda
