// CPU tensors over the memory of CUDA tensors: on hostcuda both are the same bytes.
//
// An alias owns nothing: it is valid while the CUDA tensor's block is, in stream order, not reused.
// It keeps sizes, strides, offset, dtype, the conjugate and negative bits and whether the tensor is
// a wrapped number.
//
// Threading: an AliasMap belongs to one invocation of one operation. Within it the same CUDA tensor
// gives the same CPU tensor and tensors of one storage share one storage, because kernels decide by
// identity whether an output is also an input.
//
//   AliasMap aliases(AliasMap::CpuInputs::kShare);
//   at::native::foo(aliases.Of(x), ...);
#ifndef HOSTCUDA_VALUES_ALIAS_H_
#define HOSTCUDA_VALUES_ALIAS_H_

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <functional>
#include <utility>
#include <vector>

namespace hostcuda::values {

class AliasMap {
 public:
  // What to do with tensors that are on the CPU already (a CUDA kernel reads them when it is
  // launched): share them when the CPU form runs at once, copy them when it is queued behind a
  // stalled stream.
  enum class CpuInputs { kShare, kCopy };

  explicit AliasMap(CpuInputs cpu_inputs) : cpu_inputs_(cpu_inputs) {}

  // Returns the CPU tensor for `tensor`; undefined stays undefined. Raises for layouts without one
  // memory block.
  at::Tensor Of(const at::Tensor& tensor);
  // The same through lists and optional lists; devices become the CPU; other values stay as they
  // are.
  c10::IValue Of(const c10::IValue& value);
  // Makes later lookups of `tensor` return `replacement` (an out= argument that is computed
  // elsewhere first).
  void Set(const at::Tensor& tensor, at::Tensor replacement);

 private:
  CpuInputs cpu_inputs_;
  std::vector<std::pair<const c10::TensorImpl*, at::Tensor>> tensors_;
  std::vector<std::pair<const c10::StorageImpl*, c10::Storage>> storages_;
};

// Calls `visit` for every defined tensor inside `value`.
void ForEachTensor(const c10::IValue& value, const std::function<void(const at::Tensor&)>& visit);

}  // namespace hostcuda::values

#endif  // HOSTCUDA_VALUES_ALIAS_H_
