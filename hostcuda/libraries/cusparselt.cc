// cuSPARSELt by hand: how large a matrix of structured sparsity is. The rest is generated.
//
// Two of four elements are kept (one of two for 32-bit types), each with a 2-bit position: the
// sizes follow from that, as PyTorch's own check of them does.
#include <cstdint>

#include "hostcuda/api/tail_runtime.h"
#include "hostcuda/libraries/gemm_name.h"
#include "hostcuda/libraries/generic_object.h"

namespace hostcuda {
namespace {

constexpr int kSuccess = 0, kNotInitialized = 1, kInvalidValue = 3;

// cuSPARSELt's handles are storage of the caller that begins with our pointer.
const GenericObject* Of(const void* storage) {
  auto* object = storage ? *static_cast<GenericObject* const*>(storage) : nullptr;
  return object && object->magic == GenericObject::kMagic ? object : nullptr;
}

int CompressedSize(const GenericObject* matrix, const char* rows, const char* cols,
                   const char* type, size_t* size, size_t* buffer) {
  if (!matrix || !size || !buffer) return kInvalidValue;
  const GenericObject::Attribute *r = matrix->Find(rows), *c = matrix->Find(cols),
                                 *t = matrix->Find(type);
  if (!r || !c || !t) return kInvalidValue;
  const auto elements = static_cast<size_t>(r->value) * static_cast<size_t>(c->value);
  const auto half_bytes = static_cast<size_t>(HalfBytes(static_cast<cudaDataType_t>(t->value)));
  if (half_bytes == 0) return kInvalidValue;
  *size = elements / 2 * half_bytes / 2 + elements / 8;
  *buffer = 0;
  return kSuccess;
}

}  // namespace
}  // namespace hostcuda

#pragma GCC visibility push(default)
extern "C" {

int cusparseLtSpMMACompressedSize2(const void* handle, const void* matrix, size_t* size,
                                   size_t* buffer) {
  if (!hostcuda::Of(handle)) return hostcuda::kNotInitialized;
  return hostcuda::CompressedSize(hostcuda::Of(matrix), "rows", "cols", "valueType", size, buffer);
}
// The sparse operand of a plan is A, the only one that cuSPARSELt took before this call had a
// matrix of its own.
int cusparseLtSpMMACompressedSize(const void* handle, const void* plan, size_t* size,
                                  size_t* buffer) {
  if (!hostcuda::Of(handle)) return hostcuda::kNotInitialized;
  return hostcuda::CompressedSize(hostcuda::Of(plan), "matA_rows", "matA_cols", "matA_valueType",
                                  size, buffer);
}

}  // extern "C"
#pragma GCC visibility pop
