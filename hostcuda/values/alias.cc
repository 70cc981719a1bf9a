#include "hostcuda/values/alias.h"

#include <ATen/ops/zeros.h>

namespace hostcuda::values {

at::Tensor AliasMap::Of(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  c10::TensorImpl* source = tensor.unsafeGetTensorImpl();
  for (const auto& [impl, alias] : tensors_) {
    if (impl == source) return alias;
  }
  at::Tensor alias;
  if (tensor.is_cpu()) {
    alias = cpu_inputs_ == CpuInputs::kShare ? tensor : tensor.clone();
    if (source->is_wrapped_number()) alias.unsafeGetTensorImpl()->set_wrapped_number(true);
  } else if (tensor._is_zerotensor()) {
    alias = at::zeros(tensor.sizes(), tensor.options().device(at::kCPU));
  } else {
    TORCH_CHECK(tensor.layout() == at::kStrided && !tensor.is_nested() && !tensor.is_quantized() &&
                    tensor.is_cuda(),
                "hostcuda values: a ", tensor.is_nested() ? "nested" : "sparse or quantized",
                " tensor of type ", tensor.dtype(), " on ", tensor.device(),
                " has no CPU alias; use a dense tensor (for nn.TransformerEncoder: "
                "torch.backends.mha.set_fastpath_enabled(False)), or HOSTCUDA_VALUES=none");
    c10::StorageImpl* block = tensor.storage().unsafeGetStorageImpl();
    c10::Storage storage;
    for (const auto& [impl, shared] : storages_) {
      if (impl == block) storage = shared;
    }
    if (!storage) {
      storage =
          c10::Storage(c10::Storage::use_byte_size_t(), block->nbytes(),
                       c10::DataPtr(const_cast<void*>(block->data()), at::kCPU), nullptr, false);
      storages_.emplace_back(block, storage);
    }
    alias = at::detail::make_tensor<c10::TensorImpl>(
        std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
    c10::TensorImpl* impl = alias.unsafeGetTensorImpl();
    impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
    if (tensor.is_conj()) impl->_set_conj(true);
    if (tensor.is_neg()) impl->_set_neg(true);
    if (source->is_wrapped_number()) impl->set_wrapped_number(true);
  }
  tensors_.emplace_back(source, alias);
  return alias;
}

c10::IValue AliasMap::Of(const c10::IValue& value) {
  if (value.isTensor()) return Of(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(Of(tensor));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
      list.push_back(tensor ? std::optional(Of(*tensor)) : std::nullopt);
    }
    return list;
  }
  if (value.isDevice() && value.toDevice().is_cuda()) return c10::Device(at::kCPU);
  return value;
}

void AliasMap::Set(const at::Tensor& tensor, at::Tensor replacement) {
  tensors_.emplace_back(tensor.unsafeGetTensorImpl(), std::move(replacement));
}

void ForEachTensor(const c10::IValue& value, const std::function<void(const at::Tensor&)>& visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) {
      if (tensor.defined()) visit(tensor);
    }
  } else if (value.isOptionalTensorList()) {
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
      if (tensor && tensor->defined()) visit(*tensor);
    }
  }
}

}  // namespace hostcuda::values
