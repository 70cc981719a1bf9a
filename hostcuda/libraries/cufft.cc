// cuFFT by hand: plans are small integers; a transform is one launch named after its plan.
#include <algorithm>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "hostcuda/libraries/driver_link.h"
#include "hostcuda/libraries/gemm_name.h"

#pragma GCC visibility push(default)
#include <cufft.h>
#include <cufftXt.h>
#pragma GCC visibility pop

namespace hostcuda {
namespace {

struct Plan {
  CUstream stream = nullptr;
  bool made = false;
  std::vector<long long> extents;
  long long batch = 1;
  std::string types;  // "c64_c64_f32": input, output, execution
  int direction = 0;  // fixed by real-to-complex and complex-to-real plans, else 0
};

// Plans by number; the lock is held for look-ups only.
std::mutex g_mutex;
std::unordered_map<cufftHandle, Plan>& Plans() {
  static auto* const plans = new std::unordered_map<cufftHandle, Plan>;
  return *plans;
}

cufftResult NewPlan(cufftHandle* handle) {
  if (!handle) return CUFFT_INVALID_VALUE;
  if (EnsureContext() != CUDA_SUCCESS) return CUFFT_SETUP_FAILED;
  static cufftHandle next = 1;
  std::lock_guard<std::mutex> lock(g_mutex);
  *handle = next++;
  Plans()[*handle] = Plan{};
  return CUFFT_SUCCESS;
}

template <typename Body>
cufftResult With(cufftHandle handle, Body body) {
  std::lock_guard<std::mutex> lock(g_mutex);
  auto found = Plans().find(handle);
  return found == Plans().end() ? CUFFT_INVALID_PLAN : body(found->second);
}

struct KindOfType {
  cudaDataType input, output, execution;
  int direction;
};
bool Kind(cufftType type, KindOfType* kind) {
  switch (type) {
    case CUFFT_R2C:
      *kind = {CUDA_R_32F, CUDA_C_32F, CUDA_C_32F, CUFFT_FORWARD};
      return true;
    case CUFFT_C2R:
      *kind = {CUDA_C_32F, CUDA_R_32F, CUDA_C_32F, CUFFT_INVERSE};
      return true;
    case CUFFT_C2C:
      *kind = {CUDA_C_32F, CUDA_C_32F, CUDA_C_32F, 0};
      return true;
    case CUFFT_D2Z:
      *kind = {CUDA_R_64F, CUDA_C_64F, CUDA_C_64F, CUFFT_FORWARD};
      return true;
    case CUFFT_Z2D:
      *kind = {CUDA_C_64F, CUDA_R_64F, CUDA_C_64F, CUFFT_INVERSE};
      return true;
    case CUFFT_Z2Z:
      *kind = {CUDA_C_64F, CUDA_C_64F, CUDA_C_64F, 0};
      return true;
    default:
      return false;
  }
}
bool IsReal(cudaDataType type) {
  return type == CUDA_R_16F || type == CUDA_R_16BF || type == CUDA_R_32F || type == CUDA_R_64F;
}

template <typename Int>
cufftResult Make(cufftHandle handle, int rank, const Int* n, cudaDataType input,
                 cudaDataType output, cudaDataType execution, long long batch, size_t* work_bytes) {
  if (rank < 1 || rank > 3 || !n || batch < 1 ||
      std::any_of(n, n + rank, [](Int extent) { return extent < 1; }))
    return CUFFT_INVALID_SIZE;
  if (!TypeName(input) || !TypeName(output) || !TypeName(execution)) return CUFFT_NOT_SUPPORTED;
  return With(handle, [&](Plan& plan) {
    plan.extents.assign(n, n + rank);
    plan.batch = batch;
    plan.types = std::string(TypeName(input)) + "_" + TypeName(output) + "_" + TypeName(execution);
    plan.direction = IsReal(input) ? CUFFT_FORWARD : IsReal(output) ? CUFFT_INVERSE : 0;
    plan.made = true;
    if (work_bytes) *work_bytes = 0;
    return CUFFT_SUCCESS;
  });
}
template <typename Int>
cufftResult MakeOfType(cufftHandle handle, int rank, const Int* n, cufftType type, long long batch,
                       size_t* work_bytes) {
  KindOfType kind;
  if (!Kind(type, &kind)) return CUFFT_INVALID_TYPE;
  return Make(handle, rank, n, kind.input, kind.output, kind.execution, batch, work_bytes);
}

cufftResult Execute(cufftHandle handle, int direction) noexcept {
  std::string name;
  CUstream stream = nullptr;
  uint64_t elements = 1;
  const cufftResult found = With(handle, [&](Plan& plan) {
    if (!plan.made) return CUFFT_INVALID_PLAN;
    const int effective = plan.direction ? plan.direction : direction;
    if (effective != CUFFT_FORWARD && effective != CUFFT_INVERSE) return CUFFT_INVALID_VALUE;
    name =
        "hostcufft_fft_" + plan.types + (effective == CUFFT_FORWARD ? "_forward_n" : "_inverse_n");
    for (size_t i = 0; i < plan.extents.size(); ++i) {
      if (i) name.push_back('x');
      name.append(std::to_string(plan.extents[i]));
      elements *= static_cast<uint64_t>(plan.extents[i]);
    }
    name += "_b" + std::to_string(plan.batch);
    elements *= static_cast<uint64_t>(plan.batch);
    stream = plan.stream;
    return CUFFT_SUCCESS;
  });
  if (found != CUFFT_SUCCESS) return found;
  return LaunchNamed(stream, name, GridFor(elements)) == CUDA_SUCCESS ? CUFFT_SUCCESS
                                                                      : CUFFT_EXEC_FAILED;
}

// cufftPlan*: make a plan and give its number only if that worked.
template <typename Int>
cufftResult PlanOfType(cufftHandle* handle, int rank, const Int* n, cufftType type,
                       long long batch) {
  if (cufftResult status = NewPlan(handle); status != CUFFT_SUCCESS) return status;
  cufftResult status = MakeOfType(*handle, rank, n, type, batch, nullptr);
  if (status != CUFFT_SUCCESS) cufftDestroy(*handle);
  return status;
}

cufftResult Size(size_t* bytes) {
  return bytes ? (*bytes = 0, CUFFT_SUCCESS) : CUFFT_INVALID_VALUE;
}

}  // namespace
}  // namespace hostcuda

using namespace hostcuda;  // NOLINT: the rest of this file is the C interface

extern "C" {

cufftResult cufftCreate(cufftHandle* handle) { return NewPlan(handle); }
cufftResult cufftDestroy(cufftHandle handle) {
  std::lock_guard<std::mutex> lock(g_mutex);
  return Plans().erase(handle) ? CUFFT_SUCCESS : CUFFT_INVALID_PLAN;
}
cufftResult cufftSetStream(cufftHandle handle, cudaStream_t stream) {
  return With(handle, [stream](Plan& plan) { return plan.stream = stream, CUFFT_SUCCESS; });
}
// Work areas are not needed, whoever allocates them.
cufftResult cufftSetAutoAllocation(cufftHandle handle, int) {
  return With(handle, [](Plan&) { return CUFFT_SUCCESS; });
}
cufftResult cufftSetWorkArea(cufftHandle handle, void*) {
  return With(handle, [](Plan&) { return CUFFT_SUCCESS; });
}
cufftResult cufftGetVersion(int* version) {
  return version ? (*version = CUFFT_VERSION, CUFFT_SUCCESS) : CUFFT_INVALID_VALUE;
}
cufftResult cufftGetProperty(libraryPropertyType type, int* value) {
  static constexpr int kVersion[] = {CUFFT_VER_MAJOR, CUFFT_VER_MINOR, CUFFT_VER_PATCH};
  if (!value || type < MAJOR_VERSION || type > PATCH_LEVEL) return CUFFT_INVALID_VALUE;
  *value = kVersion[type];
  return CUFFT_SUCCESS;
}

cufftResult cufftPlan1d(cufftHandle* handle, int n, cufftType type, int batch) {
  return PlanOfType(handle, 1, &n, type, batch);
}
cufftResult cufftPlan2d(cufftHandle* handle, int nx, int ny, cufftType type) {
  const int n[] = {nx, ny};
  return PlanOfType(handle, 2, n, type, 1);
}
cufftResult cufftPlan3d(cufftHandle* handle, int nx, int ny, int nz, cufftType type) {
  const int n[] = {nx, ny, nz};
  return PlanOfType(handle, 3, n, type, 1);
}
cufftResult cufftPlanMany(cufftHandle* handle, int rank, int* n, int*, int, int, int*, int, int,
                          cufftType type, int batch) {
  return PlanOfType(handle, rank, n, type, batch);
}
cufftResult cufftMakePlan1d(cufftHandle handle, int n, cufftType type, int batch, size_t* work) {
  return MakeOfType(handle, 1, &n, type, batch, work);
}
cufftResult cufftMakePlan2d(cufftHandle handle, int nx, int ny, cufftType type, size_t* work) {
  const int n[] = {nx, ny};
  return MakeOfType(handle, 2, n, type, 1, work);
}
cufftResult cufftMakePlan3d(cufftHandle handle, int nx, int ny, int nz, cufftType type,
                            size_t* work) {
  const int n[] = {nx, ny, nz};
  return MakeOfType(handle, 3, n, type, 1, work);
}
cufftResult cufftMakePlanMany(cufftHandle handle, int rank, int* n, int*, int, int, int*, int, int,
                              cufftType type, int batch, size_t* work) {
  return MakeOfType(handle, rank, n, type, batch, work);
}
cufftResult cufftMakePlanMany64(cufftHandle handle, int rank, long long* n, long long*, long long,
                                long long, long long*, long long, long long, cufftType type,
                                long long batch, size_t* work) {
  return MakeOfType(handle, rank, n, type, batch, work);
}
cufftResult cufftXtMakePlanMany(cufftHandle handle, int rank, long long* n, long long*, long long,
                                long long, cudaDataType input, long long*, long long, long long,
                                cudaDataType output, long long batch, size_t* work,
                                cudaDataType execution) {
  return Make(handle, rank, n, input, output, execution, batch, work);
}

cufftResult cufftEstimate1d(int, cufftType, int, size_t* work) { return Size(work); }
cufftResult cufftEstimate2d(int, int, cufftType, size_t* work) { return Size(work); }
cufftResult cufftEstimate3d(int, int, int, cufftType, size_t* work) { return Size(work); }
cufftResult cufftEstimateMany(int, int*, int*, int, int, int*, int, int, cufftType, int,
                              size_t* work) {
  return Size(work);
}
cufftResult cufftGetSize(cufftHandle handle, size_t* work) {
  return With(handle, [work](Plan&) { return Size(work); });
}

cufftResult cufftExecC2C(cufftHandle handle, cufftComplex*, cufftComplex*, int direction) {
  return Execute(handle, direction);
}
cufftResult cufftExecR2C(cufftHandle handle, cufftReal*, cufftComplex*) {
  return Execute(handle, CUFFT_FORWARD);
}
cufftResult cufftExecC2R(cufftHandle handle, cufftComplex*, cufftReal*) {
  return Execute(handle, CUFFT_INVERSE);
}
cufftResult cufftExecZ2Z(cufftHandle handle, cufftDoubleComplex*, cufftDoubleComplex*,
                         int direction) {
  return Execute(handle, direction);
}
cufftResult cufftExecD2Z(cufftHandle handle, cufftDoubleReal*, cufftDoubleComplex*) {
  return Execute(handle, CUFFT_FORWARD);
}
cufftResult cufftExecZ2D(cufftHandle handle, cufftDoubleComplex*, cufftDoubleReal*) {
  return Execute(handle, CUFFT_INVERSE);
}
cufftResult cufftXtExec(cufftHandle handle, void*, void*, int direction) {
  return Execute(handle, direction);
}

}  // extern "C"
