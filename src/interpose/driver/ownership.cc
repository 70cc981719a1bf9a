#include "src/interpose/driver/ownership.h"

#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "src/interpose/driver/rank.h"
#include "src/interpose/report.h"

namespace prism::interpose::driver {
namespace {

class RankOwned final : public Ownership {
 public:
  CUresult Allocate(uint64_t bytes, const DriverCall& allocate,
                    const CUdeviceptr* address) override {
    const uint32_t ordinal = Rank::Get().CurrentOrdinal();
    const CUresult result = Counted(ordinal, bytes, allocate);
    if (result == CUDA_SUCCESS) {
      Bind(*address, {ordinal, bytes});
      Record(static_cast<int64_t>(bytes), *address);
    }
    return result;
  }

  CUresult Free(CUdeviceptr address, const DriverCall& free) override {
    // Forgotten first: another thread may be given the address before this call returns.
    const Allocation allocation = Unbind(address);
    const CUresult result = free();
    if (allocation.bytes == 0) return result;
    if (result != CUDA_SUCCESS) {
      Bind(address, allocation);
      return result;
    }
    Rank::Get().ledger(allocation.ordinal).Return(allocation.bytes);
    Record(-static_cast<int64_t>(allocation.bytes), address);
    return result;
  }

  CUresult Create(uint32_t ordinal, uint64_t bytes, const DriverCall& create,
                  const CUmemGenericAllocationHandle* handle) override {
    const CUresult result = Counted(ordinal, bytes, create);
    if (result == CUDA_SUCCESS) {
      std::lock_guard lock(mutex_);
      handles_[*handle] = {std::make_shared<Physical>(ordinal, bytes, *handle), 1};
      Record(static_cast<int64_t>(bytes), *handle);
    }
    return result;
  }

  void Retained(CUmemGenericAllocationHandle handle) override {
    std::lock_guard lock(mutex_);
    const auto found = handles_.find(handle);
    if (found != handles_.end()) ++found->second.count;
  }

  CUresult Release(CUmemGenericAllocationHandle handle, const DriverCall& release) override {
    std::lock_guard lock(
        mutex_);  // held over the call: the driver may give the same handle out again
    const CUresult result = release();
    const auto found = handles_.find(handle);
    if (result == CUDA_SUCCESS && found != handles_.end() && --found->second.count == 0) {
      handles_.erase(found);
    }
    return result;
  }

  CUresult Map(CUdeviceptr address, uint64_t bytes, CUmemGenericAllocationHandle handle,
               const DriverCall& map) override {
    std::lock_guard lock(mutex_);
    const CUresult result = map();
    const auto found = handles_.find(handle);
    if (result == CUDA_SUCCESS && found != handles_.end()) {
      mapped_[address] = found->second.physical;
    }
    (void)bytes;
    return result;
  }

  CUresult Unmap(CUdeviceptr address, uint64_t bytes, const DriverCall& unmap) override {
    std::lock_guard lock(mutex_);
    const CUresult result = unmap();
    if (result == CUDA_SUCCESS) {
      mapped_.erase(mapped_.lower_bound(address), mapped_.lower_bound(address + bytes));
    }
    return result;
  }

  bool Contains(CUdeviceptr address) const override {
    std::lock_guard lock(mutex_);
    if (const auto above = allocations_.upper_bound(address); above != allocations_.begin()) {
      const auto& [begin, allocation] = *std::prev(above);
      if (address - begin < allocation.bytes) return true;
    }
    const auto above = mapped_.upper_bound(address);
    if (above == mapped_.begin()) return false;
    const auto& [begin, physical] = *std::prev(above);
    return address - begin < physical->bytes;
  }

 private:
  // Lives as long as a handle or a mapping of it does.
  struct Physical {
    Physical(uint32_t device, uint64_t size, uint64_t name)
        : ordinal(device), bytes(size), key(name) {}
    ~Physical() {
      Rank::Get().ledger(ordinal).Return(bytes);
      Record(-static_cast<int64_t>(bytes), key);
    }
    Physical(const Physical&) = delete;
    Physical& operator=(const Physical&) = delete;
    const uint32_t ordinal;
    const uint64_t bytes, key;
  };
  struct Handle {
    std::shared_ptr<Physical> physical;
    uint32_t count = 0;
  };

  struct Allocation {
    uint32_t ordinal = 0;
    uint64_t bytes = 0;
  };

  void Bind(CUdeviceptr address, const Allocation& allocation) {
    std::lock_guard lock(mutex_);
    allocations_[address] = allocation;
  }

  Allocation Unbind(CUdeviceptr address) {
    std::lock_guard lock(mutex_);
    const auto found = allocations_.find(address);
    if (found == allocations_.end()) return {};
    const Allocation allocation = found->second;
    allocations_.erase(found);
    return allocation;
  }

  static CUresult Counted(uint32_t ordinal, uint64_t bytes, const DriverCall& call) {
    Rank& rank = Rank::Get();
    Ledger& ledger = rank.ledger(ordinal);
    if (!ledger.Reserve(bytes)) {
      rank.TellLedger(ordinal, bytes);
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    const CUresult result = call();
    if (result != CUDA_SUCCESS) {
      ledger.Return(bytes);
      if (result == CUDA_ERROR_OUT_OF_MEMORY && ledger.limited()) SayFull(bytes);
    } else if (ledger.NewPeak()) {
      rank.TellLedger(ordinal, 0);
    }
    return result;
  }

  // The program reads of the target's free memory, which is not what it ran out of.
  static void SayFull(uint64_t bytes) {
    Rank& rank = Rank::Get();
    rank.Gap("the GPU at hand was full before the target's was");
    static std::once_flag once;
    std::call_once(once, [&] {
      Report(
          "rank %u: the GPU at hand is full: %.2f GiB are not left beside what all ranks have on "
          "it, though the "
          "target's GPU would have room; with --device host memory needs no GPU, and 'prism "
          "emulate' puts one rank on it",
          rank.identity().rank, static_cast<double>(bytes) / (1 << 30));
    });
  }

  static void Record(int64_t bytes, uint64_t address) {
    if (trace::Writer* writer = Rank::Get().memory_writer()) {
      writer->Memory(trace::MemoryKind::kDevice, bytes, address);
    }
  }

  mutable std::mutex mutex_;
  std::map<CUdeviceptr, Allocation> allocations_;
  std::unordered_map<CUmemGenericAllocationHandle, Handle> handles_;
  std::map<CUdeviceptr, std::shared_ptr<Physical>> mapped_;
};

}  // namespace

Ownership& Ownership::Get() {
  static auto* ownership = new RankOwned;
  return *ownership;
}

}  // namespace prism::interpose::driver
