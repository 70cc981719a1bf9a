// What nvcc's start-up code registers: fat binaries, kernels, variables.
//
// Registering only notes the addresses (24 bytes a kernel; PyTorch registers 50,000) and calls no
// driver. The first use of a kernel or variable loads its fat binary (cuLibraryLoadData) and
// resolves it. Thread-safe.
#ifndef HOSTCUDA_RUNTIME_REGISTRY_H_
#define HOSTCUDA_RUNTIME_REGISTRY_H_

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstddef>

namespace hostcuda {

struct FatBinary;

FatBinary* RegisterFatBinary(const void* image);
void UnregisterFatBinary(FatBinary* binary);
void RegisterFunction(FatBinary* binary, const void* host, const char* name);
void RegisterVariable(FatBinary* binary, const void* host, const char* name, size_t bytes);
void RegisterManagedVariable(FatBinary* binary, void** host, const char* name, size_t bytes);

/// The kernel that the host stub `host` stands for; cudaErrorInvalidDeviceFunction where none was
/// registered. A kernel handle (cudaKernel_t) given as `host` is itself.
cudaError_t FindKernel(const void* host, CUkernel* kernel);
/// Device address and size of a registered variable; cudaErrorInvalidSymbol where none was
/// registered.
cudaError_t FindVariable(const void* host, CUdeviceptr* address, size_t* bytes);

}  // namespace hostcuda

#endif  // HOSTCUDA_RUNTIME_REGISTRY_H_
