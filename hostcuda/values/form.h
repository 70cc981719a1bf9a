// What a CPU form sees: the arguments of one call, as CPU tensors over the CUDA tensors' bytes, and
// its results.
//
// A form computes and stores; it neither allocates on the device nor knows whether it runs at once
// or behind a stalled stream. Arguments are found by the names of the operation's schema, so a form
// serves every overload that has them.
//
//   void MmWithDtype(Invocation& call) {
//     call.Store(0, at::mm(call.Tensor("self").to(call.Dtype("out_dtype")), ...));
//   }
//
// Threading: one invocation is used by one thread at a time.
#ifndef HOSTCUDA_VALUES_FORM_H_
#define HOSTCUDA_VALUES_FORM_H_

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace hostcuda::values {

// The state of a CUDA generator when the operation was called: all that its random numbers depend
// on.
struct RandomState {
  uint64_t seed = 0;
  uint64_t offset = 0;
};

// A CPU generator that depends on `state` only.
at::Generator CpuGenerator(RandomState state);

struct Invocation {
  const c10::OperatorHandle* operation = nullptr;
  std::vector<c10::IValue> arguments;  // aliased
  std::vector<c10::IValue>
      results;  // aliased; values that are not tensors as the CUDA kernel returned them
  RandomState random;

  [[nodiscard]] const c10::FunctionSchema& schema() const { return operation->schema(); }
  // The argument called `name`. Raises when the schema has none.
  [[nodiscard]] const c10::IValue& Argument(std::string_view name) const;
  [[nodiscard]] bool HasArgument(std::string_view name) const;
  [[nodiscard]] at::Tensor Tensor(std::string_view name) const;  // undefined when None
  [[nodiscard]] std::optional<at::Tensor> OptionalTensor(std::string_view name) const;
  [[nodiscard]] bool Bool(std::string_view name) const;
  [[nodiscard]] int64_t Int(std::string_view name) const;
  [[nodiscard]] double Double(std::string_view name) const;
  [[nodiscard]] std::optional<double> OptionalDouble(std::string_view name) const;
  [[nodiscard]] std::vector<int64_t> Ints(std::string_view name) const;
  [[nodiscard]] at::ScalarType Dtype(std::string_view name) const;

  // The alias of result `index`; undefined when the CUDA kernel returned none.
  [[nodiscard]] at::Tensor Result(size_t index) const;
  // Writes `value` into result `index` (converting the type, which is a decision of the form). Does
  // nothing when the CUDA kernel returned no tensor there. Raises when the shapes differ.
  void Store(size_t index, const at::Tensor& value) const;
};

using Form = void (*)(Invocation& call);

// Computes an operation's results from CPU arguments.
using Compute = std::vector<c10::IValue> (*)(const c10::OperatorHandle& operation,
                                             std::vector<c10::IValue> arguments,
                                             RandomState random);

// The CPU kernel of the operation itself, over the aliases; fresh results are copied into the CUDA
// kernel's. Raises when type or shape of a result differ: then the operation needs an entry in the
// table.
void CpuKernel(Invocation& call);
// The CPU kernel of the operation; returns its results. For forms that store some of them.
std::vector<c10::IValue> CallCpuKernel(const c10::OperatorHandle& operation,
                                       std::vector<c10::IValue> arguments, RandomState random);

}  // namespace hostcuda::values

#endif  // HOSTCUDA_VALUES_FORM_H_
