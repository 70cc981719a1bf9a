#include "hostcuda/values/noise.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/argsort.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "hostcuda/values/alias.h"

namespace hostcuda::values {
namespace {

bool Contains(const std::string& name, std::initializer_list<const char*> parts) {
  for (const char* part : parts) {
    if (name.find(part) != std::string::npos) return true;
  }
  return false;
}

// The number of legal values of an index result: the size of the dimension that the operation
// searched.
int64_t IndexRange(const Invocation& call) {
  at::Tensor searched;
  for (const c10::IValue& argument : call.arguments) {
    if (argument.isTensor() && argument.toTensor().defined()) {
      searched = argument.toTensor();
      break;
    }
  }
  if (!searched.defined() || searched.numel() == 0) return 1;
  if (!call.HasArgument("dim") || !call.Argument("dim").isInt()) {
    return call.HasArgument("dim") ? searched.numel() : 1;
  }
  const int64_t dim = call.Int("dim");
  return searched.dim() == 0 ? 1 : searched.size(dim < 0 ? dim + searched.dim() : dim);
}

// Nothing is wrong: all finite (composed of x == x and |x| != inf), none infinite, no padding or
// ignored label, everything attended to.
bool TruthValue(const Invocation& call) {
  const std::string& name = call.schema().name();
  if (name != "aten::eq" && name != "aten::ne")
    return Contains(name, {"::all", "isfinite", "::ge", "::le"});
  const c10::IValue &self = call.arguments[0], &other = call.arguments[1];
  const bool with_itself =
      other.isTensor() && self.toTensor().data_ptr() == other.toTensor().data_ptr();
  return with_itself == (name == "aten::eq");
}

// N(0, 1) out of a table that is drawn once: drawing anew took most of a program's time. Its length
// is prime, so that rows of any length differ.
const at::Tensor& NormalTable(at::ScalarType type) {
  constexpr int64_t kLength = 65521;
  static std::mutex mutex;
  static auto* tables = new std::map<at::ScalarType, at::Tensor>;
  const std::lock_guard lock(mutex);
  at::Tensor& table = (*tables)[type];
  if (!table.defined())
    table = at::randn({kLength}, CpuGenerator({1, 0}), at::TensorOptions(at::kFloat)).to(type);
  return table;
}

// Fills `out` with the table's values from a place on that `generator` draws.
void FillNormal(const at::Tensor& out, at::Generator generator) {
  const at::Tensor& table = NormalTable(out.scalar_type());
  const at::Tensor flat =
      out.is_contiguous() ? out.view({-1}) : at::empty({out.numel()}, out.options());
  const auto drawn = at::check_generator<at::CPUGeneratorImpl>(generator)->random();
  int64_t from = static_cast<int64_t>(drawn) % table.numel();
  for (int64_t to = 0; to < flat.numel();) {
    const int64_t count = std::min(flat.numel() - to, table.numel() - from);
    flat.narrow(0, to, count).copy_(table.narrow(0, from, count));
    to += count;
    from = 0;
  }
  if (!out.is_contiguous()) out.copy_(flat.view(out.sizes()));
}

void Fill(const Invocation& call, const at::Tensor& out, const at::Generator& generator) {
  const std::string& name = call.schema().name();
  if (out.numel() == 0) return;
  if (out.scalar_type() == at::kBool) {
    out.fill_(TruthValue(call));
  } else if (out.is_floating_point() || out.is_complex()) {
    if (out.itemsize() == 1) {
      out.fill_(1);  // 8-bit floats have no random kernel
      return;
    }
    FillNormal(out, generator);
    if (Contains(name, {"norm", "var", "std", "loss", "softmax", "sigmoid", "exp", "sqrt", "abs",
                        "topk"}) &&
        !out.is_complex()) {
      out.copy_(at::abs(out));
    }
  } else if (Contains(name, {"topk", "sort"}) && call.HasArgument("dim") && out.dim() > 0) {
    // Distinct indices along the dimension, as an expert is chosen once by a token.
    const int64_t dim = call.Int("dim") < 0 ? call.Int("dim") + out.dim() : call.Int("dim");
    std::vector<int64_t> sizes = out.sizes().vec();
    sizes[dim] = IndexRange(call);
    out.copy_(at::rand(sizes, generator).argsort(dim).narrow(dim, 0, out.size(dim)));
  } else if (Contains(name, {"argmax", "argmin", "max", "min", "topk", "sort", "kthvalue", "median",
                             "mode", "multinomial"})) {
    out.copy_(at::randint(IndexRange(call), out.sizes(), generator));
  } else {
    out.zero_();
  }
}

constexpr int64_t kIntegerFactor = 16;
constexpr int64_t kSamples = 64;  // elements of a tensor that its fingerprint holds

class Fingerprint {
 public:
  void Add(uint64_t word) {
    hash_ = (hash_ ^ word) * 0x9e3779b97f4a7c15u;
    hash_ ^= hash_ >> 29;
  }

  void Add(const c10::IValue& value, int64_t limit_bytes) {
    ForEachTensor(value, [&](const at::Tensor& tensor) { Add(tensor, limit_bytes); });
    if (value.isInt()) Add(static_cast<uint64_t>(value.toInt()));
  }

  [[nodiscard]] uint64_t value() const { return hash_; }

 private:
  void Add(const at::Tensor& tensor, int64_t limit_bytes) {
    if (!tensor.defined()) return;
    for (const int64_t size : tensor.sizes()) Add(static_cast<uint64_t>(size));
    if (tensor.numel() == 0 || !tensor.has_storage() || !IsSmall(tensor, limit_bytes)) return;
    const auto* base = static_cast<const char*>(tensor.const_data_ptr());
    if (base == nullptr) return;
    const size_t bytes = std::min(tensor.itemsize(), sizeof(uint64_t));
    const int64_t samples = std::min(tensor.numel(), kSamples);
    for (int64_t sample = 0; sample < samples; ++sample) {
      int64_t index = sample * (tensor.numel() / samples);
      int64_t element = 0;
      for (int64_t dim = tensor.dim() - 1; dim >= 0; --dim) {
        element += index % tensor.size(dim) * tensor.stride(dim);
        index /= tensor.size(dim);
      }
      uint64_t word = 0;
      std::memcpy(&word, base + element * static_cast<int64_t>(tensor.itemsize()), bytes);
      Add(word);
    }
  }

  uint64_t hash_ = 0;
};

uintptr_t BeginOf(const at::Tensor& tensor) {
  return reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
}

// Behind the last byte that the tensor reaches.
uintptr_t EndOf(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return BeginOf(tensor);
  int64_t last = 0;
  for (int64_t dim = 0; dim < tensor.dim(); ++dim)
    last += (tensor.size(dim) - 1) * tensor.stride(dim);
  return BeginOf(tensor) + static_cast<uintptr_t>(last + 1) * tensor.itemsize();
}

// Gives back the host memory of a result's whole pages; they read as zeros. Not of a result that
// shares bytes with an argument that the operation reads.
void Discard(const Invocation& call, const at::Tensor& result) {
  if (!result.has_storage() || !result.is_non_overlapping_and_dense()) return;
  bool read = false;
  const auto& declared = call.schema().arguments();
  for (size_t i = 0; i < declared.size(); ++i) {
    if (declared[i].is_out()) continue;
    ForEachTensor(call.arguments[i], [&](const at::Tensor& tensor) {
      read |= tensor.has_storage() && BeginOf(tensor) < EndOf(result) &&
              BeginOf(result) < EndOf(tensor);
    });
  }
  if (read) return;
  static const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t first = (BeginOf(result) + page - 1) / page * page;
  const uintptr_t last = EndOf(result) / page * page;
  // Fails where device memory is not shared memory; then nothing is given back.
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_REMOVE);
}

}  // namespace

bool IsSmall(const at::Tensor& tensor, int64_t limit_bytes) {
  if (!tensor.has_storage()) return true;  // sparse: the operation says what it can do with it
  const bool floating = tensor.is_floating_point() || tensor.is_complex();
  return static_cast<int64_t>(tensor.nbytes()) <= limit_bytes * (floating ? 1 : kIntegerFactor);
}

int FillWithNoise(Invocation& call, int64_t limit_bytes) {
  Fingerprint fingerprint;
  fingerprint.Add(std::hash<std::string>()(call.schema().name()));
  fingerprint.Add(call.random.seed);
  fingerprint.Add(call.random.offset);
  const auto& declared = call.schema().arguments();
  for (size_t i = 0; i < declared.size(); ++i) {
    // What an out= argument held before plays no part.
    if (!declared[i].is_out()) fingerprint.Add(call.arguments[i], limit_bytes);
  }
  const at::Generator generator = CpuGenerator({fingerprint.value(), 0});
  int filled = 0;
  const auto fill = [&](const c10::IValue& value) {
    ForEachTensor(value, [&](const at::Tensor& tensor) {
      if (!IsSmall(tensor, limit_bytes)) {
        Discard(call, tensor);
        return;
      }
      Fill(call, tensor, generator);
      ++filled;
    });
  };
  for (size_t i = 0; i < declared.size(); ++i) {
    if (declared[i].is_out()) fill(call.arguments[i]);
  }
  const auto& returns = call.schema().returns();
  for (size_t i = 0; i < returns.size(); ++i) {
    if (returns[i].alias_info() == nullptr) fill(call.results[i]);
  }
  return filled;
}

}  // namespace hostcuda::values
