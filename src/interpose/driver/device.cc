// Devices as the driver shows them.
//
// The runtime refuses several ordinals that are one device, so virtual ordinals live in the runtime
// shim (ordinals/). The driver shows one device, and takes any virtual ordinal for it: Triton and
// PyTorch's expandable segments pass the runtime's ordinals to the driver. Name and memory are the
// target's.
#include <cuda.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <vector>

#include "src/interpose/driver/route.h"

// cuda.h renames it to its newest form; both forms are served here.
#undef cuDeviceGetUuid

namespace prism::interpose::driver {
namespace {

bool Virtual() { return (Observed() & kObserveOrdinals) != 0; }

/// The real device behind an ordinal, or behind a device handle that is an ordinal.
CUdevice Real(CUdevice device) {
  const VisibleDevices* devices = Rank::Get().visible_devices();
  if (!Virtual() || devices == nullptr) return device;
  return device >= 0 && static_cast<uint32_t>(device) < devices->count ? 0 : device;
}

CUresult DeviceGetCount(Route real, int* count) {
  const CUresult result = real(count);
  if (result == CUDA_SUCCESS && Virtual() && *count > 1) *count = 1;
  return result;
}

CUresult DeviceGet(Route real, CUdevice* device, int ordinal) {
  return real(device, Real(ordinal));
}

CUresult DeviceGetName(Route real, char* name, int length, CUdevice device) {
  const CUresult result = real(name, length, Real(device));
  const wire::Welcome* welcome = Rank::Get().welcome();
  if (result == CUDA_SUCCESS && Virtual() && welcome != nullptr && welcome->device_name[0] != 0 &&
      length > 0) {
    snprintf(name, static_cast<size_t>(length), "%s", welcome->device_name);
  }
  return result;
}

CUresult DeviceTotalMem(Route real, size_t* bytes, CUdevice device) {
  const CUresult result = real(bytes, Real(device));
  const Ledger& ledger = Rank::Get().ledger(0);  // the limit is every device's
  if (result == CUDA_SUCCESS && ledger.limited()) *bytes = ledger.figures().limit_bytes;
  return result;
}

// Calls whose first, last or only device argument is translated and nothing else.
template <class First>
CUresult LastIsDevice(Route real, First first, CUdevice device) {
  return real(first, Real(device));
}
template <class First, class Second>
CUresult LastOfThreeIsDevice(Route real, First first, Second second, CUdevice device) {
  return real(first, second, Real(device));
}
CUresult OnlyDevice(Route real, CUdevice device) { return real(Real(device)); }
template <class Second>
CUresult FirstIsDevice(Route real, CUdevice device, Second second) {
  return real(Real(device), second);
}

CUresult DevicePrimaryCtxGetState(Route real, CUdevice device, unsigned* flags, int* active) {
  return real(Real(device), flags, active);
}

CUresult CtxCreate(Route real, CUcontext* context, CUctxCreateParams* parameters, unsigned flags,
                   CUdevice device) {
  Rank::Get().ContextWanted();
  return real(context, parameters, flags, Real(device));
}

CUresult DeviceCanAccessPeer(Route real, int* can, CUdevice device, CUdevice peer) {
  // Two virtual ordinals are one device, which no driver calls its own peer.
  if (Virtual() && Real(device) == Real(peer)) {
    *can = device != peer;
    return CUDA_SUCCESS;
  }
  return real(can, Real(device), Real(peer));
}

CUresult DeviceGetP2PAttribute(Route real, int* value, CUdevice_P2PAttribute attribute,
                               CUdevice device, CUdevice peer) {
  if (Virtual() && Real(device) == Real(peer)) {
    *value = device != peer;
    return CUDA_SUCCESS;
  }
  return real(value, attribute, Real(device), Real(peer));
}

CUresult MemSetAccess(Route real, CUdeviceptr address, size_t bytes, const CUmemAccessDesc* access,
                      size_t count) {
  if (!Virtual() || access == nullptr) return real(address, bytes, access, count);
  // Entries of several virtual ordinals become one of the real device.
  std::vector<CUmemAccessDesc> placed;
  bool device_seen = false;
  for (size_t i = 0; i < count; ++i) {
    CUmemAccessDesc entry = access[i];
    if (entry.location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
      entry.location.id = Real(entry.location.id);
      if (device_seen && entry.location.id == 0) continue;
      device_seen = device_seen || entry.location.id == 0;
    }
    placed.push_back(entry);
  }
  return real(address, bytes, static_cast<const CUmemAccessDesc*>(placed.data()), placed.size());
}

CUresult MemPoolSetAccess(Route real, CUmemoryPool pool, const CUmemAccessDesc* access,
                          size_t count) {
  if (!Virtual() || access == nullptr) return real(pool, access, count);
  std::vector<CUmemAccessDesc> placed(access, access + count);
  for (CUmemAccessDesc& entry : placed) {
    if (entry.location.type == CU_MEM_LOCATION_TYPE_DEVICE)
      entry.location.id = Real(entry.location.id);
  }
  return real(pool, static_cast<const CUmemAccessDesc*>(placed.data()), count);
}

CUresult MemGetAllocationGranularity(Route real, size_t* granularity,
                                     const CUmemAllocationProp* properties,
                                     CUmemAllocationGranularity_flags option) {
  if (properties == nullptr) return real(granularity, properties, option);
  CUmemAllocationProp placed = *properties;
  if (placed.location.type == CU_MEM_LOCATION_TYPE_DEVICE)
    placed.location.id = Real(placed.location.id);
  return real(granularity, static_cast<const CUmemAllocationProp*>(&placed), option);
}

CUresult MemPoolCreate(Route real, CUmemoryPool* pool, const CUmemPoolProps* properties) {
  if (properties == nullptr) return real(pool, properties);
  CUmemPoolProps placed = *properties;
  if (placed.location.type == CU_MEM_LOCATION_TYPE_DEVICE)
    placed.location.id = Real(placed.location.id);
  return real(pool, static_cast<const CUmemPoolProps*>(&placed));
}

using UuidArgument = CUuuid*;
using PoolArgument = CUmemoryPool*;
using ContextArgument = CUcontext*;

CUresult PrimaryCtxRetain(Route real, CUcontext* context, CUdevice device) {
  Rank::Get().ContextWanted();
  return LastIsDevice<ContextArgument>(real, context, device);
}

const Wrapper kWrappers[] = {
    PRISM_WRAP(cuDeviceGetCount, DeviceGetCount),
    PRISM_WRAP(cuDeviceGet, DeviceGet),
    PRISM_WRAP(cuDeviceGetName, DeviceGetName),
    PRISM_WRAP(cuDeviceTotalMem_v2, DeviceTotalMem),
    PRISM_WRAP(cuDeviceGetUuid, LastIsDevice<UuidArgument>),
    PRISM_WRAP(cuDeviceGetUuid_v2, LastIsDevice<UuidArgument>),
    PRISM_WRAP_AS(cuDeviceGetAttribute, (LastOfThreeIsDevice<int*, CUdevice_attribute>), false,
                  false),
    PRISM_WRAP_AS(cuDeviceComputeCapability, (LastOfThreeIsDevice<int*, int*>), false, false),
    PRISM_WRAP_AS(cuDeviceGetPCIBusId, (LastOfThreeIsDevice<char*, int>), false, false),
    PRISM_WRAP(cuDeviceGetDefaultMemPool, LastIsDevice<PoolArgument>),
    PRISM_WRAP(cuDeviceGetMemPool, LastIsDevice<PoolArgument>),
    PRISM_WRAP(cuDeviceSetMemPool, FirstIsDevice<CUmemoryPool>),
    PRISM_WRAP_ALWAYS(cuDevicePrimaryCtxRetain, PrimaryCtxRetain),
    PRISM_WRAP(cuDevicePrimaryCtxRelease_v2, OnlyDevice),
    PRISM_WRAP(cuDevicePrimaryCtxReset_v2, OnlyDevice),
    PRISM_WRAP(cuDevicePrimaryCtxSetFlags_v2, FirstIsDevice<unsigned>),
    PRISM_WRAP(cuDevicePrimaryCtxGetState, DevicePrimaryCtxGetState),
    PRISM_WRAP_ALWAYS(cuCtxCreate_v4, CtxCreate),
    PRISM_WRAP(cuDeviceCanAccessPeer, DeviceCanAccessPeer),
    PRISM_WRAP(cuDeviceGetP2PAttribute, DeviceGetP2PAttribute),
    PRISM_WRAP(cuMemSetAccess, MemSetAccess),
    PRISM_WRAP(cuMemPoolSetAccess, MemPoolSetAccess),
    PRISM_WRAP(cuMemGetAllocationGranularity, MemGetAllocationGranularity),
    PRISM_WRAP(cuMemPoolCreate, MemPoolCreate),
};

}  // namespace

std::span<const Wrapper> DeviceWrappers() { return kWrappers; }

}  // namespace prism::interpose::driver
