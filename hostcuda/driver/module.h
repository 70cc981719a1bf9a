// Modules, libraries and kernels: what hostcuda knows of a device image is which kernels are in it.
//
// Images are fat binaries, cubins, PTX text, or hostcuda's own image, in which every name exists.
// Where an image tells its names (uncompressed cubin, PTX) an unknown one is CUDA_ERROR_NOT_FOUND;
// a compressed fat binary accepts any. A kernel computes what its registered CPU body computes,
// else nothing. Thread-safe. Kernels are never freed: their names are what profilers keep.
#ifndef HOSTCUDA_DRIVER_MODULE_H_
#define HOSTCUDA_DRIVER_MODULE_H_

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hostcuda/hostcuda.h"

namespace hostcuda {

/// First bytes of hostcuda's own image.
inline constexpr char kImageMagic[] = "hostcuda-image-1";

struct Module;

struct Kernel {
  static constexpr uint32_t kMagic = 0x4b45524e;
  uint32_t magic = kMagic;
  const char* name = "";  // interned, static lifetime
  Module* module = nullptr;
  std::atomic<bool> sizes_known{false};
  std::vector<uint32_t> parameter_sizes;  // constant once sizes_known
  std::vector<uint32_t> parameter_offsets;
  std::atomic<int> max_dynamic_shared{48 * 1024};
  std::atomic<int> preferred_carveout{-1};
  std::atomic<int> attributes[CU_FUNC_ATTRIBUTE_MAX] = {};
};

struct Module {
  static constexpr uint32_t kMagic = 0x4d4f4455;
  uint32_t magic = kMagic;
  bool every_name = false;  // the image does not tell its names
  bool own = false;  // hostcuda's image: its kernels are libraries', which need no opting in to
                     // shared memory
  std::mutex mutex;
  struct Parameters {
    bool known = false;
    std::vector<uint32_t> sizes, offsets;
  };
  struct Global {
    uint64_t bytes = 0;
    std::string initial;  // empty: zeros
    uintptr_t address = 0;
  };
  std::map<std::string, Parameters, std::less<>> names;
  std::map<std::string, Kernel*, std::less<>> kernels;
  std::map<std::string, Global, std::less<>> globals;

  /// The kernel called `name`; null where the image has none.
  Kernel* Find(std::string_view name);
};

/// Reads an image; null, and the error, where it is none. `bytes` is 0 where the caller does not
/// know the size.
Module* LoadImage(const void* image, CUresult* error);

/// A copy of `text` that lives as long as the process; equal texts are one.
const char* Intern(std::string_view text);

/// The body registered for kernels called `name`, or null. Cheap while no body is registered.
hostcudaKernelBody FindBody(const char* interned_name);
void RegisterBody(const char* name, hostcudaKernelBody body);
/// True once any body is registered: then copies of this process are real whatever HOSTCUDA_VALUES
/// says.
bool AnyBody();
/// The time registered for kernels called `name`: a number, or a function of the launch.
struct KernelTime {
  uint64_t ns;
  hostcudaKernelTime function;
};
std::optional<KernelTime> FindTime(const char* interned_name);
void RegisterTime(const char* name, const KernelTime& time);
/// Sizes given by hostcudaRegisterKernelParameters, for kernels whose image and name do not tell
/// them.
void RegisterParameters(const char* name, const std::vector<uint32_t>& sizes);
/// Fills in what has been registered for the kernel since it was found.
void LearnParameters(Kernel& kernel);
/// Sizes of the parameters as far as the mangled name tells them (scalars and pointers); false
/// where it does not.
bool ParameterSizesFromName(const char* mangled, std::vector<uint32_t>* sizes);

}  // namespace hostcuda

#endif  // HOSTCUDA_DRIVER_MODULE_H_
