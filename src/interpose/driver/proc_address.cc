#include "src/interpose/driver/proc_address.h"

#include <array>
#include <utility>

namespace prism::interpose::driver {
namespace {

// From cudaTypedefs.h: the version in which a wrapped name's newest ABIs came. ABIs that came with
// the name itself need no line.
constexpr std::pair<std::string_view, int> kFirstVersions[] = {
    {"cuCtxCreate_v4", 12050},
    {"cuDevicePrimaryCtxRelease_v2", 11000},
    {"cuDevicePrimaryCtxReset_v2", 11000},
    {"cuDevicePrimaryCtxSetFlags_v2", 11000},
    {"cuDeviceGetUuid_v2", 11040},
    {"cuGetProcAddress_v2", 12000},
    {"cuMemcpyBatchAsync_v2", 13000},
    {"cuStreamBeginCapture_v2", 10010},
    {"cuStreamDestroy_v2", 4000},
    {"cuEventDestroy_v2", 4000},
    {"cuStreamWaitValue32_v2", 11070},
    {"cuStreamWriteValue32_v2", 11070},
};
constexpr int kSecondAbi = 3020;  // CUDA 3.2 made device addresses 64 bits wide

}  // namespace

VersionedName SplitName(std::string_view name) {
  VersionedName split{name};
  for (const std::string_view suffix : {"_ptds", "_ptsz"}) {
    if (split.base.size() > suffix.size() &&
        split.base.substr(split.base.size() - suffix.size()) == suffix) {
      split.per_thread = true;
      split.base.remove_suffix(suffix.size());
    }
  }
  const size_t size = split.base.size();
  if (size > 3 && split.base[size - 3] == '_' && split.base[size - 2] == 'v' &&
      split.base[size - 1] >= '2' && split.base[size - 1] <= '9') {
    split.abi = split.base[size - 1] - '0';
    split.base.remove_suffix(3);
  }
  return split;
}

int FirstCudaVersion(std::string_view exported_name) {
  const VersionedName split = SplitName(exported_name);
  for (const auto& [name, version] : kFirstVersions) {
    const VersionedName known = SplitName(name);
    if (known.base == split.base && known.abi == split.abi) return version;
  }
  return split.abi == 1 ? 0 : kSecondAbi;
}

void ProcAddress::Build(const ForwardTable& table, const std::vector<uint32_t>& wrapped) {
  table_ = &table;
  by_address_.clear();
  by_base_.clear();
  wrapped_.assign(table.count(), false);
  for (const uint32_t index : wrapped) {
    if (!table.has(index)) continue;
    wrapped_[index] = true;
    by_base_.emplace(SplitName(table.name(index)).base, index);
  }
  for (uint32_t index = 0; index < table.count(); ++index) {
    if (table.has(index)) by_address_.emplace(table.real(index), index);
  }
}

void* ProcAddress::Answer(const char* symbol, void* real, int cuda_version, bool per_thread) {
  if (real == nullptr || table_ == nullptr) return real;
  const std::string_view asked(symbol);
  // One function may serve several names, so among those of this address prefer the one that was
  // asked for.
  uint32_t best = table_->count();
  int best_fit = -1;
  for (auto [at, end] = by_address_.equal_range(real); at != end; ++at) {
    const VersionedName split = SplitName(table_->name(at->second));
    const int fit = (split.base == asked ? 8 : 0) + (split.per_thread == per_thread ? 4 : 0) +
                    (FirstCudaVersion(table_->name(at->second)) <= cuda_version ? 2 : 0) +
                    (wrapped_[at->second] ? 1 : 0);
    if (fit > best_fit) {
      best_fit = fit;
      best = at->second;
    }
  }
  if (best != table_->count()) {
    if (!wrapped_[best]) {  // an ABI, or a name, that is not looked at
      __atomic_fetch_add(&passed_count_, 1, __ATOMIC_RELAXED);
      return real;
    }
    __atomic_fetch_add(&by_address_count_, 1, __ATOMIC_RELAXED);
    return table_->exported(best);
  }
  int best_version = -1;
  bool per_thread_form_exists = false;
  for (auto [at, end] = by_base_.equal_range(asked); at != end; ++at) {
    per_thread_form_exists =
        per_thread_form_exists || SplitName(table_->name(at->second)).per_thread;
  }
  for (auto [at, end] = by_base_.equal_range(asked); at != end; ++at) {
    const char* name = table_->name(at->second);
    const int version = FirstCudaVersion(name);
    if (version > cuda_version || version <= best_version) continue;
    if (per_thread_form_exists && SplitName(name).per_thread != per_thread) continue;
    best_version = version;
    best = at->second;
  }
  if (best == table_->count()) {
    __atomic_fetch_add(&passed_count_, 1, __ATOMIC_RELAXED);
    return real;
  }
  __atomic_fetch_add(&by_name_count_, 1, __ATOMIC_RELAXED);
  return table_->exported(best);
}

ProcAddress::Counts ProcAddress::counts() const {
  return {by_address_count_, by_name_count_, passed_count_};
}

}  // namespace prism::interpose::driver
