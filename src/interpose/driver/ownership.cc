#include "src/interpose/driver/ownership.h"

#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "src/interpose/driver/rank.h"

namespace prism::interpose::driver {
namespace {

class RankOwned final : public Ownership {
 public:
  CUresult Allocate(uint64_t bytes, const DriverCall& allocate,
                    const CUdeviceptr* address) override {
    const CUresult result = Counted(bytes, allocate);
    if (result == CUDA_SUCCESS) {
      Rank::Get().ledger().Bind(*address, bytes);
      Record(static_cast<int64_t>(bytes), *address);
    }
    return result;
  }

  CUresult Free(CUdeviceptr address, const DriverCall& free) override {
    // Forgotten first: another thread may be given the address before this call returns.
    Ledger& ledger = Rank::Get().ledger();
    const uint64_t bytes = ledger.Unbind(address);
    const CUresult result = free();
    if (bytes == 0) return result;
    if (result != CUDA_SUCCESS) {
      ledger.Bind(address, bytes);
      return result;
    }
    ledger.Return(bytes);
    Record(-static_cast<int64_t>(bytes), address);
    return result;
  }

  CUresult Create(uint64_t bytes, const DriverCall& create,
                  const CUmemGenericAllocationHandle* handle) override {
    const CUresult result = Counted(bytes, create);
    if (result == CUDA_SUCCESS) {
      std::lock_guard lock(mutex_);
      handles_[*handle] = {std::make_shared<Physical>(bytes, *handle), 1};
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

 private:
  // Lives as long as a handle or a mapping of it does.
  struct Physical {
    Physical(uint64_t size, uint64_t name) : bytes(size), key(name) {}
    ~Physical() {
      Rank::Get().ledger().Return(bytes);
      Record(-static_cast<int64_t>(bytes), key);
    }
    Physical(const Physical&) = delete;
    Physical& operator=(const Physical&) = delete;
    const uint64_t bytes, key;
  };
  struct Handle {
    std::shared_ptr<Physical> physical;
    uint32_t count = 0;
  };

  static CUresult Counted(uint64_t bytes, const DriverCall& call) {
    Rank& rank = Rank::Get();
    if (!rank.ledger().Reserve(bytes)) {
      rank.TellLedger(bytes);
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    const CUresult result = call();
    if (result != CUDA_SUCCESS) {
      rank.ledger().Return(bytes);
    } else if (rank.ledger().NewPeak()) {
      rank.TellLedger(0);
    }
    return result;
  }

  static void Record(int64_t bytes, uint64_t address) {
    if (trace::Writer* writer = Rank::Get().writer()) {
      writer->Memory(trace::MemoryKind::kDevice, bytes, address);
    }
  }

  std::mutex mutex_;
  std::unordered_map<CUmemGenericAllocationHandle, Handle> handles_;
  std::map<CUdeviceptr, std::shared_ptr<Physical>> mapped_;
};

}  // namespace

Ownership& Ownership::Get() {
  static auto* ownership = new RankOwned;
  return *ownership;
}

}  // namespace prism::interpose::driver
