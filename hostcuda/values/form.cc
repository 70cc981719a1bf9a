#include "hostcuda/values/form.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Generator.h>

#include "hostcuda/values/alias.h"

namespace hostcuda::values {
namespace {

uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

bool IsGenerator(const c10::Argument& argument) {
  const c10::TypePtr& type = argument.real_type();
  if (type->kind() == c10::TypeKind::GeneratorType) return true;
  return type->kind() == c10::TypeKind::OptionalType &&
         type->containedType(0)->kind() == c10::TypeKind::GeneratorType;
}

std::vector<at::Tensor> Flatten(const std::vector<c10::IValue>& values) {
  std::vector<at::Tensor> tensors;
  for (const c10::IValue& value : values) {
    if (value.isTensor()) tensors.push_back(value.toTensor());
    if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) tensors.push_back(tensor);
    }
  }
  return tensors;
}

}  // namespace

void CpuKernel(Invocation& call) {
  const std::vector<c10::IValue> computed =
      CallCpuKernel(*call.operation, call.arguments, call.random);
  const auto& returns = call.schema().returns();
  TORCH_CHECK(computed.size() == call.results.size(), "hostcuda values: ", call.schema().name(),
              " returned ", computed.size(), " values on the CPU and ", call.results.size(),
              " on the device");
  for (size_t i = 0; i < computed.size(); ++i) {
    if (returns[i].alias_info() != nullptr && returns[i].alias_info()->isWrite()) continue;
    const std::vector<at::Tensor> from = Flatten({computed[i]}), to = Flatten({call.results[i]});
    TORCH_CHECK(from.size() == to.size(), "hostcuda values: ", call.schema().name(), ": result ", i,
                " has ", from.size(), " tensors on the CPU and ", to.size(), " on the device");
    for (size_t k = 0; k < from.size(); ++k) {
      if (!to[k].defined()) continue;
      TORCH_CHECK(from[k].defined(), "hostcuda values: ", call.schema().name(),
                  ": the CPU kernel gives no result ", i,
                  "; the operation needs an entry in hostcuda/values/table");
      TORCH_CHECK(from[k].sizes() == to[k].sizes() && from[k].scalar_type() == to[k].scalar_type(),
                  "hostcuda values: ", call.schema().name(), ".", call.schema().overload_name(),
                  ": result ", i, " is ", from[k].scalar_type(), from[k].sizes(),
                  " on the CPU and ", to[k].scalar_type(), to[k].sizes(),
                  " on the device; the operation needs an entry in hostcuda/values/table");
      to[k].copy_(from[k]);
    }
  }
}

at::Generator CpuGenerator(RandomState state) {
  return at::make_generator<at::CPUGeneratorImpl>(Mix(state.seed ^ Mix(state.offset)));
}

const c10::IValue& Invocation::Argument(std::string_view name) const {
  const auto& declared = schema().arguments();
  for (size_t i = 0; i < declared.size(); ++i) {
    if (declared[i].name() == name) return arguments[i];
  }
  TORCH_CHECK(false, "hostcuda values: ", schema().name(), " has no argument ", std::string(name));
}

bool Invocation::HasArgument(std::string_view name) const {
  for (const c10::Argument& argument : schema().arguments()) {
    if (argument.name() == name) return true;
  }
  return false;
}

at::Tensor Invocation::Tensor(std::string_view name) const {
  const c10::IValue& value = Argument(name);
  return value.isNone() ? at::Tensor() : value.toTensor();
}

std::optional<at::Tensor> Invocation::OptionalTensor(std::string_view name) const {
  at::Tensor tensor = HasArgument(name) ? Tensor(name) : at::Tensor();
  return tensor.defined() ? std::optional(std::move(tensor)) : std::nullopt;
}

bool Invocation::Bool(std::string_view name) const { return Argument(name).toBool(); }
int64_t Invocation::Int(std::string_view name) const { return Argument(name).toInt(); }

double Invocation::Double(std::string_view name) const {
  const c10::IValue& value = Argument(name);
  return value.isScalar() ? value.toScalar().toDouble() : value.toDouble();
}

std::optional<double> Invocation::OptionalDouble(std::string_view name) const {
  return Argument(name).isNone() ? std::nullopt : std::optional(Double(name));
}

std::vector<int64_t> Invocation::Ints(std::string_view name) const {
  const c10::IValue& value = Argument(name);
  if (value.isNone()) return {};
  if (value.isInt()) return {value.toInt()};
  return value.toIntVector();
}

at::ScalarType Invocation::Dtype(std::string_view name) const {
  return static_cast<at::ScalarType>(Argument(name).toInt());
}

at::Tensor Invocation::Result(size_t index) const {
  return results.at(index).isTensor() ? results[index].toTensor() : at::Tensor();
}

void Invocation::Store(size_t index, const at::Tensor& value) const {
  const at::Tensor result = Result(index);
  if (!result.defined()) return;
  TORCH_CHECK(
      value.defined() && value.sizes() == result.sizes(), "hostcuda values: ", schema().name(),
      ": result ", index, " is ", result.sizes(), " on the device, but its CPU form gives ",
      value.defined() ? value.sizes() : at::IntArrayRef(), "; this is a defect of hostcuda");
  result.copy_(value);
}

std::vector<c10::IValue> CallCpuKernel(const c10::OperatorHandle& operation,
                                       std::vector<c10::IValue> arguments, RandomState random) {
  const auto& declared = operation.schema().arguments();
  for (size_t i = 0; i < declared.size(); ++i) {
    if (IsGenerator(declared[i])) arguments[i] = CpuGenerator(random);
    if (declared[i].name() == "pin_memory") arguments[i] = c10::IValue();
  }
  operation.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &arguments);
  return arguments;
}

}  // namespace hostcuda::values
