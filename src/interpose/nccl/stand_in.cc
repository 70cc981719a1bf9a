#include "src/interpose/nccl/stand_in.h"

#include <nccl.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

// The text of stand_in.ptx, ended by a zero.
asm(".pushsection .rodata\n"
    ".global prism_stand_in_ptx\n"
    ".hidden prism_stand_in_ptx\n"
    "prism_stand_in_ptx:\n"
    ".incbin \"" PRISM_STAND_IN_PTX
    "\"\n"
    ".byte 0\n"
    ".popsection\n");
extern "C" const char prism_stand_in_ptx[];

namespace prism::interpose::nccl {
namespace {

constexpr unsigned kThreads = 512;
constexpr uint64_t kBytesAChannel = 64 << 10;  // below, NCCL takes fewer channels
constexpr unsigned kMaxChannels = 24;          // two H200s on NVLink
constexpr uint32_t kSyncs = 1024;              // kernels in flight a context

#define PRISM_NAME(name) #name,
constexpr const char* kNames[] = {PRISM_STAND_IN_KERNELS(PRISM_NAME)};
#undef PRISM_NAME

unsigned MaxChannels() {
  static const unsigned channels = [] {
    for (const char* name : {"PRISM_STAND_IN_CHANNELS", "NCCL_MAX_NCHANNELS"}) {
      if (const char* value = getenv(name); value != nullptr && atoi(value) > 0) {
        return static_cast<unsigned>(std::min(atoi(value), 64));
      }
    }
    return kMaxChannels;
  }();
  return channels;
}

const char* Suffix(uint32_t dtype) {
  switch (dtype) {
    case ncclFloat32:
      return "f32";
    case ncclFloat16:
      return "f16";
    case ncclBfloat16:
      return "bf16";
    case ncclFloat64:
      return "f64";
    case ncclInt32:
    case ncclUint32:
      return "i32";
    case ncclInt64:
    case ncclUint64:
      return "i64";
    default:
      return "u8";
  }
}

}  // namespace

StandIn& StandIn::Get() {
  static auto* stand_in = new StandIn;
  return *stand_in;
}

const char* StandIn::KernelName(const wire::OpRecord& record) {
  char name[128];
  const char* reduction = nullptr;
  switch (record.op) {
    case wire::Op::kAllReduce:
      reduction = "AllReduce";
      break;
    case wire::Op::kReduceScatter:
      reduction = "ReduceScatter";
      break;
    case wire::Op::kReduce:
      reduction = "Reduce";
      break;
    case wire::Op::kAllGather:
      snprintf(name, sizeof name, "ncclDevKernel_AllGather_RING_LL");
      break;
    case wire::Op::kBroadcast:
      snprintf(name, sizeof name, "ncclDevKernel_Broadcast_RING_LL");
      break;
    default:
      snprintf(name, sizeof name, "ncclDevKernel_SendRecv");
      break;
  }
  if (reduction != nullptr) {
    // Averages and scaled sums are sums to NCCL's kernels.
    if (record.reduction == ncclSum || record.reduction == ncclAvg ||
        record.reduction == wire::kRedOpPreMulSum) {
      snprintf(name, sizeof name, "ncclDevKernel_%s_Sum_%s_RING_LL", reduction,
               Suffix(record.dtype));
    } else {
      snprintf(name, sizeof name, "ncclDevKernel_Generic");
    }
  }
  for (const char* known : kNames) {
    if (strcmp(known, name) == 0) return known;
  }
  return nullptr;  // every name above is among them (stand_in_test)
}

unsigned StandIn::Channels(uint64_t bytes) {
  return static_cast<unsigned>(
      std::clamp<uint64_t>((bytes + kBytesAChannel - 1) / kBytesAChannel, 1, MaxChannels()));
}

CUresult StandIn::Load(const DriverCalls& driver, CUcontext context, Context* made) {
  if (const CUresult error = driver.module_load_data(&made->module, prism_stand_in_ptx)) {
    return error;
  }
  for (const char* name : kNames) {
    CUfunction function;
    if (const CUresult error = driver.module_get_function(&function, made->module, name)) {
      return error;
    }
    made->functions[name] = function;
  }
  CUdeviceptr pool;
  if (const CUresult error = driver.mem_alloc(&pool, kSyncs * sizeof(StandInSync))) return error;
  if (const CUresult error = driver.memset(pool, 0, kSyncs * sizeof(StandInSync))) return error;
  for (uint32_t i = kSyncs; i-- > 0;) {
    made->free.push_back(pool + i * sizeof(StandInSync));
    owner_[made->free.back()] = context;
  }
  return CUDA_SUCCESS;
}

CUresult StandIn::Prepare(const DriverCalls& driver) {
  CUcontext context = nullptr;
  if (const CUresult error = driver.ctx_get_current(&context)) return error;
  if (context == nullptr) {
    // A communicator may be what a program makes first; NCCL, too, begins the device then.
    if (const CUresult error = driver.primary_ctx_retain(&context, 0)) return error;
    if (const CUresult error = driver.ctx_set_current(context)) return error;
  }
  const std::lock_guard lock(mutex_);
  if (contexts_.count(context) != 0) return CUDA_SUCCESS;
  Context made;
  if (const CUresult error = Load(driver, context, &made)) return error;
  contexts_[context] = std::move(made);
  return CUDA_SUCCESS;
}

CUresult StandIn::Launch(const DriverCalls& driver, CUstream stream, const wire::OpRecord& record,
                         StandInArguments* arguments, Sync* sync) {
  CUcontext context = nullptr;
  if (const CUresult error = driver.ctx_get_current(&context)) return error;
  CUfunction function;
  {
    const std::lock_guard lock(mutex_);
    const auto found = contexts_.find(context);
    if (found == contexts_.end()) return CUDA_ERROR_INVALID_CONTEXT;
    if (found->second.free.empty()) return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
    function = found->second.functions.at(KernelName(record));
    *sync = found->second.free.back();
    found->second.free.pop_back();
  }
  arguments->sync = *sync;
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < arguments->segments; ++i) {
    bytes += arguments->segment[i].bytes * arguments->segment[i].repeats;
  }
  void* parameters[] = {arguments};
  const CUresult error = driver.launch_kernel(function, Channels(bytes), 1, 1, kThreads, 1, 1, 0,
                                              stream, parameters, nullptr);
  if (error != CUDA_SUCCESS) {
    GiveBack(*sync);
    *sync = 0;
  }
  return error;
}

void StandIn::GiveBack(Sync sync) {
  if (sync == 0) return;
  const std::lock_guard lock(mutex_);
  contexts_.at(owner_.at(sync)).free.push_back(sync);
}

}  // namespace prism::interpose::nccl
