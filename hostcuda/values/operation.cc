#include "hostcuda/values/operation.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/Generator.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/library.h>

#include <memory>
#include <utility>

#include "hostcuda/values/alias.h"
#include "hostcuda/values/noise.h"
#include "hostcuda/values/stream_order.h"

namespace hostcuda::values {
namespace {

Settings g_settings;
thread_local int t_depth = 0;
// Storages that the outermost operation reads and writes. Its CUDA kernel may move data by real
// copies (a result computed beside and copied back): those must not overwrite what the CPU form is
// about to read.
thread_local const std::vector<const void*>* t_in_place = nullptr;

std::vector<OperationRecord*>& Records() {
  static auto* records = new std::vector<OperationRecord*>();
  return *records;
}

class DepthGuard {
 public:
  explicit DepthGuard(const std::vector<const void*>* in_place) : in_place_(t_in_place) {
    if (t_depth++ == 0) t_in_place = in_place;
  }
  ~DepthGuard() {
    --t_depth;
    t_in_place = in_place_;
  }
  DepthGuard(const DepthGuard&) = delete;
  DepthGuard& operator=(const DepthGuard&) = delete;

 private:
  const std::vector<const void*>* in_place_;
};

// The dispatch state of a CPU form: below autograd, autocast and every mode of the calling thread,
// unseen by profilers.
class CpuFormGuard {
 public:
  CpuFormGuard() : previous_(c10::impl::tls_local_dispatch_key_set()) {
    c10::impl::LocalDispatchKeySet plain = previous_;
    plain.included_ = c10::DispatchKeySet(c10::DispatchKey::BackendSelect);
    plain.excluded_ =
        c10::default_excluded_set | c10::autograd_dispatch_keyset_with_ADInplaceOrView;
    c10::impl::_force_tls_local_dispatch_key_set(plain);
    // 1 and 2 threads differ bitwise. The count is a thread's own in OpenMP.
    if (at::get_num_threads() != g_settings.threads) at::set_num_threads(g_settings.threads);
  }
  ~CpuFormGuard() { c10::impl::_force_tls_local_dispatch_key_set(previous_); }
  CpuFormGuard(const CpuFormGuard&) = delete;
  CpuFormGuard& operator=(const CpuFormGuard&) = delete;

 private:
  c10::impl::LocalDispatchKeySet previous_;
  at::DisableRecordFunctionGuard unseen_;
};

bool Writes(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

const void* BlockOf(const at::Tensor& tensor) { return tensor.storage().unsafeGetStorageImpl(); }

// The devices of the CUDA tensors among `values`.
void CollectDevices(const std::vector<c10::IValue>& values, std::vector<c10::Device>* devices) {
  for (const c10::IValue& value : values) {
    ForEachTensor(value, [&](const at::Tensor& tensor) {
      if (!tensor.is_cuda()) return;
      for (const c10::Device& device : *devices) {
        if (device == tensor.device()) return;
      }
      devices->push_back(tensor.device());
    });
  }
}

bool AllSmall(const std::vector<c10::IValue>& values) {
  bool small = true;
  for (const c10::IValue& value : values) {
    ForEachTensor(value, [&](const at::Tensor& tensor) {
      if (tensor.is_cuda() && !IsSmall(tensor, g_settings.control_bytes)) small = false;
    });
  }
  return small;
}

// The least by which a CUDA kernel advances a generator: one Philox draw of four words.
constexpr uint64_t kOffsetStep = 4;

c10::Device CurrentDevice() {
  return c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).getDevice();
}

// The generator that the CUDA kernel draws from: the one given, else the device's default.
at::Generator GeneratorOf(const std::vector<c10::IValue>& arguments) {
  std::vector<c10::Device> devices;
  CollectDevices(arguments, &devices);
  std::optional<at::Generator> generator;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].isGenerator()) generator = arguments[i].toGenerator();
    if (arguments[i].isDevice() && arguments[i].toDevice().is_cuda())
      devices.push_back(arguments[i].toDevice());
  }
  if (generator) return *generator;
  const c10::Device device =
      devices.empty() || !devices.front().has_index() ? CurrentDevice() : devices.front();
  return at::globalContext().defaultGenerator(device);
}

// The generator's state before the CUDA kernel advances it. `advance`: there is no CUDA kernel that
// would.
RandomState ReadRandomState(const c10::OperatorHandle& operation,
                            const std::vector<c10::IValue>& arguments, bool advance) {
  at::Generator generator = GeneratorOf(arguments);
  if (generator.device().is_cpu()) return {generator.current_seed(), 0};
  try {
    const std::scoped_lock lock(generator.mutex());
    const RandomState state{generator.current_seed(), generator.get_offset()};
    if (advance) generator.set_offset(state.offset + kOffsetStep);
    return state;
  } catch (const c10::Error&) {
    TORCH_CHECK(false, "hostcuda values: ", operation.schema().name(),
                " draws random numbers inside a CUDA graph capture; their values are not "
                "supported. Draw them outside, or "
                "run with HOSTCUDA_VALUES=none");
  }
}

bool DrawsRandomNumbers(const c10::OperatorHandle& operation) {
  for (const c10::Argument& argument : operation.schema().arguments()) {
    const std::string type = argument.real_type()->str();
    if (type.rfind("Generator", 0) == 0 || argument.name() == "dropout_p") return true;
  }
  const std::string& name = operation.schema().name();
  return name == "aten::native_dropout" || name == "aten::_cudnn_rnn";
}

// One override. Lives as long as the process.
class Wrapper : public c10::OperatorKernel {
 public:
  explicit Wrapper(OperationRecord* record) : record_(record) {}

  void operator()(const c10::OperatorHandle& operation, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack) {
    switch (record_->entry.rule) {
      case Rule::kPlain:
        record_->cuda_kernel.callBoxed(operation, keys, stack);
        return;
      case Rule::kComputeFirst:
        ComputeFirst(operation, stack);
        return;
      case Rule::kUnsupported:
        TORCH_CHECK(t_depth > 0, "hostcuda values: ", record_->display, " has no CPU form; ",
                    record_->entry.reason,
                    ". Run with HOSTCUDA_VALUES=none for structure and memory only");
        [[fallthrough]];
      case Rule::kCpuKernel:
      case Rule::kForm:
        if (t_depth > 0) {
          record_->cuda_kernel.callBoxed(operation, keys, stack);
        } else {
          LaunchThenCompute(operation, keys, stack);
        }
        return;
    }
  }

 protected:
  void LaunchThenCompute(const c10::OperatorHandle& operation, c10::DispatchKeySet keys,
                         torch::jit::Stack* stack) {
    const auto& declared = operation.schema().arguments();
    std::vector<c10::IValue> arguments(stack->end() - static_cast<ptrdiff_t>(declared.size()),
                                       stack->end());
    RandomState random;
    if (record_->random) random = ReadRandomState(operation, arguments, false);
    {
      std::vector<const void*> in_place;
      for (size_t i = 0; i < declared.size(); ++i) {
        if (Writes(declared[i])) {
          ForEachTensor(arguments[i], [&](const at::Tensor& tensor) {
            if (tensor.has_storage()) in_place.push_back(BlockOf(tensor));
          });
        }
      }
      const DepthGuard depth(&in_place);
      record_->cuda_kernel.callBoxed(operation, keys, stack);
    }
    const size_t returns = operation.schema().returns().size();
    std::vector<c10::IValue> results(stack->end() - static_cast<ptrdiff_t>(returns), stack->end());

    std::vector<c10::Device> devices;
    CollectDevices(arguments, &devices);
    CollectDevices(results, &devices);
    if (devices.empty()) return;
    const bool small = !g_settings.control || (AllSmall(arguments) && AllSmall(results));
    bool at_once = true;
    if (devices.size() > 1) {
      for (const c10::Device& device : devices) WaitForCurrentStream(device);
    } else {
      at_once = CurrentStreamIdle(devices.front());
    }

    auto call = std::make_shared<Invocation>();
    call->operation = &record_->cuda_kernel.opHandle();  // outlives the call
    call->random = random;
    AliasMap aliases(at_once ? AliasMap::CpuInputs::kShare : AliasMap::CpuInputs::kCopy);
    {
      const CpuFormGuard guard;
      for (const c10::IValue& argument : arguments) call->arguments.push_back(aliases.Of(argument));
      for (const c10::IValue& result : results) call->results.push_back(aliases.Of(result));
    }
    OperationRecord* record = record_;
    auto work = [call, record, small] {
      const CpuFormGuard guard;
      if (small) {
        record->entry.form(*call);
        ++record->computed;
        return;
      }
      const int filled = FillWithNoise(*call, g_settings.control_bytes);
      record->noise += static_cast<uint64_t>(filled);
      if (filled == 0) ++record->kept;
    };
    if (at_once) {
      work();
    } else {
      ++record_->queued;
      EnqueueOnCurrentStream(devices.front(), record_->display.c_str(), std::move(work));
    }
  }

  void ComputeFirst(const c10::OperatorHandle& operation, torch::jit::Stack* stack) {
    const auto& declared = operation.schema().arguments();
    std::vector<c10::IValue> arguments(stack->end() - static_cast<ptrdiff_t>(declared.size()),
                                       stack->end());
    RandomState random;
    if (record_->random) random = ReadRandomState(operation, arguments, true);
    std::vector<c10::Device> devices;
    CollectDevices(arguments, &devices);
    if (devices.empty()) devices.push_back(CurrentDevice());
    for (const c10::Device& device : devices) WaitForCurrentStream(device);

    // out= arguments get their shape from the result.
    AliasMap aliases(AliasMap::CpuInputs::kShare);
    std::vector<std::pair<at::Tensor, at::Tensor>> outputs;
    std::vector<c10::IValue> computed;
    {
      const CpuFormGuard guard;
      for (size_t i = 0; i < declared.size(); ++i) {
        if (!declared[i].is_out()) continue;
        ForEachTensor(arguments[i], [&](const at::Tensor& tensor) {
          at::Tensor fresh = at::empty({0}, tensor.options().device(at::kCPU));
          aliases.Set(tensor, fresh);
          outputs.emplace_back(tensor, fresh);
        });
      }
      std::vector<c10::IValue> aliased;
      for (const c10::IValue& argument : arguments) aliased.push_back(aliases.Of(argument));
      computed = record_->entry.compute(operation, std::move(aliased), random);
      ++record_->computed;
    }
    for (auto& [output, fresh] : outputs) {
      output.resize_(fresh.sizes());
      CopyToDevice(fresh, output);
    }
    stack->erase(stack->end() - static_cast<ptrdiff_t>(declared.size()), stack->end());
    const auto& returns = operation.schema().returns();
    for (size_t i = 0; i < returns.size(); ++i) {
      if (returns[i].alias_info() != nullptr && returns[i].alias_info()->isWrite()) {
        stack->push_back(WrittenArgument(operation, arguments, *returns[i].alias_info()));
      } else if (computed[i].isTensor()) {
        stack->push_back(OnDevice(computed[i].toTensor(), devices.front()));
      } else if (computed[i].isTensorList()) {
        c10::List<at::Tensor> list;
        for (const at::Tensor& tensor : computed[i].toTensorVector())
          list.push_back(OnDevice(tensor, devices.front()));
        stack->emplace_back(list);
      } else {
        stack->push_back(computed[i]);
      }
    }
    if (t_depth > 0) return;
    const DepthGuard depth(nullptr);
    LaunchNamed(devices.front(), "hostcuda_" + operation.schema().name().substr(6));
  }

  OperationRecord* record_;

 private:
  static void CopyToDevice(const at::Tensor& from, const at::Tensor& to) {
    const CpuFormGuard guard;
    AliasMap aliases(AliasMap::CpuInputs::kShare);
    aliases.Of(to).copy_(from);
  }

  static at::Tensor OnDevice(const at::Tensor& tensor, c10::Device device) {
    if (!tensor.defined()) return tensor;
    at::Tensor result =
        at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(device));
    CopyToDevice(tensor, result);
    return result;
  }

  static c10::IValue WrittenArgument(const c10::OperatorHandle& operation,
                                     const std::vector<c10::IValue>& arguments,
                                     const c10::AliasInfo& result) {
    const auto& declared = operation.schema().arguments();
    for (size_t i = 0; i < declared.size(); ++i) {
      if (declared[i].alias_info() != nullptr &&
          declared[i].alias_info()->beforeSets() == result.beforeSets()) {
        return arguments[i];
      }
    }
    TORCH_CHECK(false, "hostcuda values: ", operation.schema().name(),
                " returns an argument that it does not have");
  }
};

// aten::copy_ has no CUDA kernel of its own, but launches by itself. Copies of plain bytes and
// copies to and from the host are real already: the driver moves them.
class CopyWrapper : public Wrapper {
 public:
  using Wrapper::Wrapper;

  void operator()(const c10::OperatorHandle& operation, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack) {
    const at::Tensor& to = (*stack)[stack->size() - 3].toTensor();
    const at::Tensor& from = (*stack)[stack->size() - 2].toTensor();
    if (t_depth > 0) {
      if (t_in_place != nullptr && to.has_storage()) {
        for (const void* block : *t_in_place) {
          if (block == BlockOf(to)) {
            at::Tensor result = to;
            stack->erase(stack->end() - 3, stack->end());
            stack->emplace_back(std::move(result));
            return;
          }
        }
      }
      record_->cuda_kernel.callBoxed(operation, keys, stack);
      return;
    }
    const bool same_bits = from.scalar_type() == to.scalar_type() &&
                           from.is_conj() == to.is_conj() && from.is_neg() == to.is_neg() &&
                           from.sizes() == to.sizes() && from.strides() == to.strides() &&
                           from.is_non_overlapping_and_dense();
    if (!from.is_cuda() || !to.is_cuda() || same_bits) {
      record_->cuda_kernel.callBoxed(operation, keys, stack);
      return;
    }
    LaunchThenCompute(operation, keys, stack);
  }
};

class Silence : public c10::WarningHandler {
 public:
  void process(const c10::Warning& /*warning*/) override {}
};

bool IsView(const c10::FunctionSchema& schema) {
  for (const c10::Argument& result : schema.returns()) {
    if (result.alias_info() != nullptr && !result.alias_info()->isWrite()) return true;
  }
  return false;
}

TableEntry EntryOf(const c10::OperatorHandle& operation) {
  const c10::FunctionSchema& schema = operation.schema();
  if (const TableEntry* entry = FindTableEntry(schema.name(), schema.overload_name()))
    return *entry;
  if (IsView(schema)) return {Rule::kPlain, nullptr, nullptr, "a view moves no values"};
  const bool has_cpu_kernel =
      operation.hasKernelForDispatchKey(c10::DispatchKey::CPU) ||
      operation.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) ||
      operation.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional) ||
      operation.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
  if (has_cpu_kernel) return {Rule::kCpuKernel, CpuKernel, nullptr, ""};
  return {Rule::kUnsupported, nullptr, nullptr,
          "PyTorch has no CPU kernel of that name and hostcuda's table no entry"};
}

// Composite operations that reach a CUDA kernel other than through the dispatcher.
constexpr const char* kCompositeThatLaunches[] = {"aten::copy_", "aten::conj_physical_",
                                                  "aten::kaiser_window.beta"};

bool CompositeLaunches(const c10::OperatorName& name) {
  const std::string display =
      name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
  for (const char* composite : kCompositeThatLaunches) {
    if (display == composite) return true;
  }
  return false;
}

}  // namespace

int OverrideOperations(const Settings& settings) {
  g_settings = settings;
  Silence silence;
  const c10::WarningUtils::WarningHandlerGuard quiet(&silence);
  static auto* library =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0) continue;
    const auto operation = dispatcher.findOp(name);
    if (!operation || !operation->hasSchema()) continue;
    if (!operation->hasKernelForDispatchKey(c10::DispatchKey::CUDA) && !CompositeLaunches(name))
      continue;
    const std::string display =
        name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
    auto* record = new OperationRecord{
        .name = name.name,
        .display = display,
        .entry = EntryOf(*operation),
        .cuda_kernel = operation->getComputedKernelForDispatchKey(c10::DispatchKey::CUDA),
        .random = DrawsRandomNumbers(*operation)};
    Records().push_back(record);
    if (name.name == "aten::copy_") {
      library->impl(display.c_str(),
                    torch::CppFunction::makeFromBoxedKernel(
                        c10::BoxedKernel::makeFromFunctor(std::make_unique<CopyWrapper>(record))));
    } else {
      library->impl(display.c_str(),
                    torch::CppFunction::makeFromBoxedKernel(
                        c10::BoxedKernel::makeFromFunctor(std::make_unique<Wrapper>(record))));
    }
  }
  return static_cast<int>(Records().size());
}

const std::vector<OperationRecord*>& Operations() { return Records(); }
const Settings& CurrentSettings() { return g_settings; }
int OperationDepth() { return t_depth; }

}  // namespace hostcuda::values
