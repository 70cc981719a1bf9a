// Virtual ordinals of the CUDA runtime: a rank on local rank 5 of 8 sees 8 devices and sits on
// number 5; all are the one device that it was given. Only the dynamic runtime that programs link
// has ordinals; static runtimes inside NVIDIA's libraries follow the current context. Every other
// call of the runtime stays the real one's.
//
// The names carry the runtime's symbol version (runtime_exports.map), as references to them do.
// State: the calling thread's current ordinal.
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstdlib>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "src/interpose/core.h"
#include "src/interpose/report.h"

namespace prism::interpose {
namespace {

void* Runtime() {
  static void* const library = []() -> void* {
    void* loaded = dlopen("libcudart.so.13", RTLD_LAZY | RTLD_NOLOAD);
    if (loaded == nullptr) {
      const char* path = getenv(wire::kEnvRealRuntime);
      if (path != nullptr && path[0] == '/') loaded = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
    }
    if (loaded == nullptr)
      Report("no CUDA runtime: libcudart.so.13 is not loaded, %s is unset or wrong",
             wire::kEnvRealRuntime);
    return loaded;
  }();
  return library;
}

template <class Function>
Function* Real(const char* name) {
  void* library = Runtime();
  return library == nullptr ? nullptr : reinterpret_cast<Function*>(dlsym(library, name));
}

thread_local int t_current = 0;

/// Memory is counted by ordinal, and only this library knows which one a thread uses.
void TellCurrent() {
  static const bool told = [] {
    const CoreTable* core = FindCore();
    if (core != nullptr) {
      core->set_current_ordinal([] { return static_cast<uint32_t>(t_current); });
    }
    return true;
  }();
  (void)told;
}

bool Valid(const VisibleDevices* virtual_devices, int device) {
  return device >= 0 && static_cast<uint32_t>(device) < virtual_devices->count;
}

int OwnOrdinal(const VisibleDevices* virtual_devices) {
  return virtual_devices->own == UINT32_MAX ? t_current : static_cast<int>(virtual_devices->own);
}

std::mutex g_peers_mutex;
std::set<std::pair<int, int>>& Peers() {
  static auto* peers = new std::set<std::pair<int, int>>;
  return *peers;
}

cudaMemLocation Placed(cudaMemLocation location) {
  if (location.type == cudaMemLocationTypeDevice) location.id = 0;
  return location;
}

}  // namespace
}  // namespace prism::interpose

using prism::interpose::Real;
using prism::interpose::Valid;
using prism::interpose::VirtualDevices;

#define PRISM_RUNTIME(name)                                \
  static auto* const real = Real<decltype(::name)>(#name); \
  if (real == nullptr) return cudaErrorInitializationError

#define PRISM_EXPORT extern "C" __attribute__((visibility("default")))

PRISM_EXPORT cudaError_t cudaGetDeviceCount(int* count) {
  PRISM_RUNTIME(cudaGetDeviceCount);
  if (prism::interpose::IsBypassed()) return cudaErrorInitializationError;
  const cudaError_t result = real(count);  // first: it initialises the driver, which makes the rank
  const auto* devices = VirtualDevices();
  if (result == cudaSuccess && devices != nullptr) *count = static_cast<int>(devices->count);
  return result;
}

PRISM_EXPORT cudaError_t cudaSetDevice(int device) {
  PRISM_RUNTIME(cudaSetDevice);
  const auto* devices = VirtualDevices();
  if (devices == nullptr) {
    int count =
        0;  // may be the very first call: become a rank before deciding what the number means
    if (cudaGetDeviceCount(&count) != cudaSuccess || (devices = VirtualDevices()) == nullptr) {
      return real(device);
    }
  }
  if (!Valid(devices, device)) return cudaErrorInvalidDevice;
  prism::interpose::TellCurrent();
  const cudaError_t result = real(0);
  if (result == cudaSuccess) prism::interpose::t_current = device;
  return result;
}

PRISM_EXPORT cudaError_t cudaInitDevice(int device, unsigned device_flags, unsigned flags) {
  PRISM_RUNTIME(cudaInitDevice);
  const auto* devices = VirtualDevices();
  if (devices == nullptr) return real(device, device_flags, flags);
  return Valid(devices, device) ? real(0, device_flags, flags) : cudaErrorInvalidDevice;
}

PRISM_EXPORT cudaError_t cudaGetDevice(int* device) {
  PRISM_RUNTIME(cudaGetDevice);
  const cudaError_t result = real(device);
  if (result == cudaSuccess && VirtualDevices() != nullptr) *device = prism::interpose::t_current;
  return result;
}

PRISM_EXPORT cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  PRISM_RUNTIME(cudaGetDeviceProperties);
  const auto* devices = VirtualDevices();
  if (devices == nullptr) return real(properties, device);
  return Valid(devices, device) ? real(properties, 0) : cudaErrorInvalidDevice;
}

PRISM_EXPORT cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  PRISM_RUNTIME(cudaDeviceGetAttribute);
  const auto* devices = VirtualDevices();
  if (devices == nullptr) return real(value, attribute, device);
  return Valid(devices, device) ? real(value, attribute, 0) : cudaErrorInvalidDevice;
}

PRISM_EXPORT cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  PRISM_RUNTIME(cudaDeviceCanAccessPeer);
  const auto* devices = VirtualDevices();
  if (devices == nullptr) return real(can, device, peer);
  if (!Valid(devices, device) || !Valid(devices, peer)) return cudaErrorInvalidDevice;
  *can = device != peer;
  return cudaSuccess;
}

PRISM_EXPORT cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
  PRISM_RUNTIME(cudaDeviceEnablePeerAccess);
  const auto* devices = VirtualDevices();
  if (devices == nullptr) return real(peer, flags);
  const int device = prism::interpose::t_current;
  if (!Valid(devices, peer) || peer == device) return cudaErrorInvalidDevice;
  std::lock_guard lock(prism::interpose::g_peers_mutex);
  return prism::interpose::Peers().emplace(device, peer).second ? cudaSuccess
                                                                : cudaErrorPeerAccessAlreadyEnabled;
}

PRISM_EXPORT cudaError_t cudaDeviceDisablePeerAccess(int peer) {
  PRISM_RUNTIME(cudaDeviceDisablePeerAccess);
  const auto* devices = VirtualDevices();
  if (devices == nullptr) return real(peer);
  std::lock_guard lock(prism::interpose::g_peers_mutex);
  return prism::interpose::Peers().erase({prism::interpose::t_current, peer}) != 0
             ? cudaSuccess
             : cudaErrorPeerAccessNotEnabled;
}

PRISM_EXPORT cudaError_t cudaDeviceGetP2PAttribute(int* value, cudaDeviceP2PAttr attribute,
                                                   int device, int peer) {
  PRISM_RUNTIME(cudaDeviceGetP2PAttribute);
  const auto* devices = VirtualDevices();
  if (devices == nullptr) return real(value, attribute, device, peer);
  if (!Valid(devices, device) || !Valid(devices, peer)) return cudaErrorInvalidDevice;
  *value = device != peer;
  return cudaSuccess;
}

PRISM_EXPORT cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int device) {
  PRISM_RUNTIME(cudaDeviceGetPCIBusId);
  const auto* devices = VirtualDevices();
  if (devices == nullptr) return real(id, length, device);
  return Valid(devices, device) ? real(id, length, 0) : cudaErrorInvalidDevice;
}

PRISM_EXPORT cudaError_t cudaDeviceGetByPCIBusId(int* device, const char* id) {
  PRISM_RUNTIME(cudaDeviceGetByPCIBusId);
  const cudaError_t result = real(device, id);
  const auto* devices = VirtualDevices();
  if (result == cudaSuccess && devices != nullptr) *device = prism::interpose::OwnOrdinal(devices);
  return result;
}

PRISM_EXPORT cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
  PRISM_RUNTIME(cudaDeviceGetDefaultMemPool);
  const auto* devices = VirtualDevices();
  if (devices == nullptr) return real(pool, device);
  return Valid(devices, device) ? real(pool, 0) : cudaErrorInvalidDevice;
}

PRISM_EXPORT cudaError_t cudaDeviceGetMemPool(cudaMemPool_t* pool, int device) {
  PRISM_RUNTIME(cudaDeviceGetMemPool);
  const auto* devices = VirtualDevices();
  if (devices == nullptr) return real(pool, device);
  return Valid(devices, device) ? real(pool, 0) : cudaErrorInvalidDevice;
}

PRISM_EXPORT cudaError_t cudaDeviceSetMemPool(int device, cudaMemPool_t pool) {
  PRISM_RUNTIME(cudaDeviceSetMemPool);
  const auto* devices = VirtualDevices();
  if (devices == nullptr) return real(device, pool);
  return Valid(devices, device) ? real(0, pool) : cudaErrorInvalidDevice;
}

PRISM_EXPORT cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool,
                                           const cudaMemPoolProps* properties) {
  PRISM_RUNTIME(cudaMemPoolCreate);
  if (VirtualDevices() == nullptr || properties == nullptr) return real(pool, properties);
  cudaMemPoolProps placed = *properties;
  placed.location = prism::interpose::Placed(placed.location);
  return real(pool, &placed);
}

PRISM_EXPORT cudaError_t cudaMemPoolSetAccess(cudaMemPool_t pool, const cudaMemAccessDesc* access,
                                              size_t count) {
  PRISM_RUNTIME(cudaMemPoolSetAccess);
  if (VirtualDevices() == nullptr || access == nullptr) return real(pool, access, count);
  std::vector<cudaMemAccessDesc> placed;
  for (size_t i = 0; i < count; ++i) {
    // A pool is always accessible from its own device, and asking for that is an error.
    if (access[i].location.type == cudaMemLocationTypeDevice) continue;
    placed.push_back(access[i]);
  }
  return placed.empty() ? cudaSuccess : real(pool, placed.data(), placed.size());
}

PRISM_EXPORT cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes,
                                                  const void* pointer) {
  PRISM_RUNTIME(cudaPointerGetAttributes);
  const cudaError_t result = real(attributes, pointer);
  const auto* devices = VirtualDevices();
  if (result == cudaSuccess && devices != nullptr &&
      attributes->type != cudaMemoryTypeUnregistered && attributes->device >= 0) {
    attributes->device = prism::interpose::OwnOrdinal(devices);
  }
  return result;
}

PRISM_EXPORT cudaError_t cudaMemcpyPeer(void* to, int to_device, const void* from, int from_device,
                                        size_t bytes) {
  PRISM_RUNTIME(cudaMemcpyPeer);
  if (VirtualDevices() == nullptr) return real(to, to_device, from, from_device, bytes);
  return real(to, 0, from, 0, bytes);
}

PRISM_EXPORT cudaError_t cudaMemcpyPeerAsync(void* to, int to_device, const void* from,
                                             int from_device, size_t bytes, cudaStream_t stream) {
  PRISM_RUNTIME(cudaMemcpyPeerAsync);
  if (VirtualDevices() == nullptr) return real(to, to_device, from, from_device, bytes, stream);
  return real(to, 0, from, 0, bytes, stream);
}

PRISM_EXPORT cudaError_t cudaMemPrefetchAsync(const void* pointer, size_t bytes,
                                              cudaMemLocation location, unsigned flags,
                                              cudaStream_t stream) {
  PRISM_RUNTIME(cudaMemPrefetchAsync);
  if (VirtualDevices() == nullptr) return real(pointer, bytes, location, flags, stream);
  return real(pointer, bytes, prism::interpose::Placed(location), flags, stream);
}

PRISM_EXPORT cudaError_t cudaMemAdvise(const void* pointer, size_t bytes, cudaMemoryAdvise advice,
                                       cudaMemLocation location) {
  PRISM_RUNTIME(cudaMemAdvise);
  if (VirtualDevices() == nullptr) return real(pointer, bytes, advice, location);
  return real(pointer, bytes, advice, prism::interpose::Placed(location));
}
