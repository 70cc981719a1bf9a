// Streams, events, stream memory operations, host functions.
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>

#include "hostcuda/driver/entry.h"
#include "hostcuda/driver/shared_event.h"
#include "hostcuda/driver/stream_memory.h"

using hostcuda::Answer;
using hostcuda::Checked;
using hostcuda::Event;
using hostcuda::EventRef;
using hostcuda::HostCall;
using hostcuda::kDone;
using hostcuda::Label;
using hostcuda::PollState;
using hostcuda::Stream;
using hostcuda::StreamRef;

// ---- streams

namespace {

CUresult CreateStream(CUstream* out, unsigned flags, int priority) {
  HC_CONTEXT();
  if (out == nullptr || (flags & ~static_cast<unsigned>(CU_STREAM_NON_BLOCKING)) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  const StreamRef stream =
      driver->engine().CreateStream(context, flags, std::clamp(priority, -5, 0), false);
  *out = reinterpret_cast<CUstream>(stream.get());
  return CUDA_SUCCESS;
}

}  // namespace

HC_ENTRY CUresult cuStreamCreate(CUstream* phStream, unsigned int Flags) {
  return CreateStream(phStream, Flags, 0);
}
HC_ENTRY CUresult cuStreamCreateWithPriority(CUstream* phStream, unsigned int flags, int priority) {
  return CreateStream(phStream, flags, priority);
}

HC_ENTRY CUresult cuStreamDestroy_v2(CUstream hStream) {
  HC_DRIVER();
  auto* stream = reinterpret_cast<Stream*>(hStream);
  if (reinterpret_cast<uintptr_t>(hStream) <= 2 || stream->magic != Stream::kMagic)
    return CUDA_ERROR_INVALID_HANDLE;
  if (stream->legacy) return CUDA_ERROR_INVALID_HANDLE;
  driver->engine().DestroyStream(*stream);
  return CUDA_SUCCESS;
}
HC_ENTRY CUresult cuStreamDestroy(CUstream hStream) { return cuStreamDestroy_v2(hStream); }

HC_ENTRY CUresult cuStreamSynchronize(CUstream hStream) {
  HC_STREAM(stream, hStream);
  driver->engine().Charge(HostCall::kSync);
  return driver->engine().Synchronize(*stream);
}
HC_ENTRY CUresult cuStreamQuery(CUstream hStream) {
  HC_STREAM(stream, hStream);
  driver->engine().Charge(HostCall::kQuery);
  return driver->engine().QueryStream(*stream);
}
HC_ENTRY CUresult cuStreamGetPriority(CUstream hStream, int* priority) {
  HC_STREAM(stream, hStream);
  return Answer(priority, stream->priority);
}
HC_ENTRY CUresult cuStreamGetFlags(CUstream hStream, unsigned int* flags) {
  HC_STREAM(stream, hStream);
  return Answer(flags, stream->flags);
}
HC_ENTRY CUresult cuStreamGetId(CUstream hStream, unsigned long long* streamId) {
  HC_STREAM(stream, hStream);
  return Answer(streamId, stream->number);
}
HC_ENTRY CUresult cuStreamGetCtx(CUstream hStream, CUcontext* pctx) {
  HC_STREAM(stream, hStream);
  return Answer(pctx, reinterpret_cast<CUcontext>(stream->context));
}
HC_ENTRY CUresult cuStreamGetCtx_v2(CUstream hStream, CUcontext* pCtx, CUgreenCtx* pGreenCtx) {
  if (pGreenCtx == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *pGreenCtx = nullptr;  // no stream belongs to one
  return cuStreamGetCtx(hStream, pCtx);
}
HC_ENTRY CUresult cuStreamGetDevice(CUstream hStream, CUdevice* device) {
  HC_STREAM(stream, hStream);
  return Answer(device, stream->context->device);
}
HC_ENTRY CUresult cuStreamGetAttribute(CUstream hStream, CUstreamAttrID attr,
                                       CUstreamAttrValue* value_out) {
  HC_STREAM(stream, hStream);
  if (value_out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *value_out = {};
  if (attr == CU_LAUNCH_ATTRIBUTE_PRIORITY) value_out->priority = stream->priority;
  if (attr == CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY)
    value_out->syncPolicy = CU_SYNC_POLICY_AUTO;
  return CUDA_SUCCESS;
}
HC_ENTRY CUresult cuStreamSetAttribute(CUstream hStream, CUstreamAttrID attr,
                                       const CUstreamAttrValue* value) {
  HC_STREAM(stream, hStream);
  (void)attr;  // cache windows, synchronization policy, memory domains: hints about speed only
  return value == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
HC_ENTRY CUresult cuStreamCopyAttributes(CUstream dst, CUstream src) {
  HC_STREAM(to, dst);
  StreamRef from;
  return hostcuda::ResolveStream(src, &from);
}

// ---- events

HC_ENTRY CUresult cuEventCreate(CUevent* phEvent, unsigned int Flags) {
  HC_CONTEXT();
  if (phEvent == nullptr || (Flags & ~7u) != 0) return CUDA_ERROR_INVALID_VALUE;
  if ((Flags & CU_EVENT_INTERPROCESS) != 0 && (Flags & CU_EVENT_DISABLE_TIMING) == 0)
    return CUDA_ERROR_INVALID_VALUE;
  auto event = std::make_shared<Event>();
  event->flags = Flags;
  event->context = context;
  if ((Flags & CU_EVENT_INTERPROCESS) != 0) {
    event->shared = driver->memory().CreateSharedEvent(&event->ipc_handle);
    if (event->shared == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  }
  event->handle = event;
  *phEvent = reinterpret_cast<CUevent>(event.get());
  return CUDA_SUCCESS;
}

HC_ENTRY CUresult cuEventDestroy_v2(CUevent hEvent) {
  HC_EVENT(event, hEvent);
  EventRef last;
  {
    std::lock_guard<std::mutex> lock(driver->engine().mutex());
    event->magic = 0;
    last = std::move(event->handle);
  }
  return CUDA_SUCCESS;
}
HC_ENTRY CUresult cuEventDestroy(CUevent hEvent) { return cuEventDestroy_v2(hEvent); }

HC_ENTRY CUresult cuEventRecordWithFlags(CUevent hEvent, CUstream hStream, unsigned int flags) {
  HC_STREAM(stream, hStream);
  Event* event = Checked<Event>(hEvent);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if ((flags & ~static_cast<unsigned>(CU_EVENT_RECORD_EXTERNAL)) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (event->context != stream->context) return CUDA_ERROR_INVALID_HANDLE;
  driver->engine().Charge(HostCall::kEvent);
  if (event->shared != nullptr && !driver->engine().Capturing(*stream))
    return hostcuda::RecordShared(event->shared, *stream);
  return driver->engine().Record(event->handle, *stream, (flags & CU_EVENT_RECORD_EXTERNAL) != 0);
}
HC_ENTRY CUresult cuEventRecord(CUevent hEvent, CUstream hStream) {
  return cuEventRecordWithFlags(hEvent, hStream, 0);
}

HC_ENTRY CUresult cuEventQuery(CUevent hEvent) {
  HC_EVENT(event, hEvent);
  driver->engine().Charge(HostCall::kQuery);
  return event->shared != nullptr ? hostcuda::QueryShared(event->shared)
                                  : driver->engine().QueryEvent(*event);
}
HC_ENTRY CUresult cuEventSynchronize(CUevent hEvent) {
  HC_EVENT(event, hEvent);
  driver->engine().Charge(HostCall::kSync);
  return event->shared != nullptr ? hostcuda::SynchronizeShared(event->shared)
                                  : driver->engine().SynchronizeEvent(*event);
}
HC_ENTRY CUresult cuEventElapsedTime_v2(float* pMilliseconds, CUevent hStart, CUevent hEnd) {
  HC_DRIVER();
  Event *start = Checked<Event>(hStart), *end = Checked<Event>(hEnd);
  if (start == nullptr || end == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return pMilliseconds == nullptr ? CUDA_ERROR_INVALID_VALUE
                                  : driver->engine().Elapsed(pMilliseconds, *start, *end);
}
HC_ENTRY CUresult cuEventElapsedTime(float* pMilliseconds, CUevent hStart, CUevent hEnd) {
  return cuEventElapsedTime_v2(pMilliseconds, hStart, hEnd);
}

HC_ENTRY CUresult cuStreamWaitEvent(CUstream hStream, CUevent hEvent, unsigned int Flags) {
  HC_STREAM(stream, hStream);
  Event* event = Checked<Event>(hEvent);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if ((Flags & ~static_cast<unsigned>(CU_EVENT_WAIT_EXTERNAL)) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  driver->engine().Charge(HostCall::kEvent);
  if (event->shared != nullptr && !driver->engine().Capturing(*stream))
    return hostcuda::WaitShared(event->shared, *stream);
  return driver->engine().WaitEvent(*stream, *event, (Flags & CU_EVENT_WAIT_EXTERNAL) != 0);
}

HC_ENTRY CUresult cuIpcGetEventHandle(CUipcEventHandle* pHandle, CUevent event) {
  HC_CONTEXT();
  Event* own = Checked<Event>(event);
  if (own == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (pHandle == nullptr || own->shared == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *pHandle = own->ipc_handle;
  return CUDA_SUCCESS;
}
HC_ENTRY CUresult cuIpcOpenEventHandle(CUevent* phEvent, CUipcEventHandle handle) {
  HC_CONTEXT();
  if (phEvent == nullptr) return CUDA_ERROR_INVALID_VALUE;
  auto event = std::make_shared<Event>();
  event->flags = CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING;
  event->context = context;
  event->ipc_handle = handle;
  const CUresult opened = driver->memory().OpenSharedEvent(handle, &event->shared);
  if (opened != CUDA_SUCCESS) return opened;
  event->handle = event;
  *phEvent = reinterpret_cast<CUevent>(event.get());
  return CUDA_SUCCESS;
}

// ---- host functions

HC_ENTRY CUresult cuLaunchHostFunc(CUstream hStream, CUhostFn fn, void* userData) {
  HC_STREAM(stream, hStream);
  if (fn == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Label label;
  label.type = CU_GRAPH_NODE_TYPE_HOST;
  label.call = HostCall::kLaunch;
  return driver->engine().Submit(*stream, label, [fn, userData](PollState&) {
    fn(userData);
    return kDone;
  });
}

HC_ENTRY CUresult cuStreamAddCallback(CUstream hStream, CUstreamCallback callback, void* userData,
                                      unsigned int flags) {
  HC_STREAM(stream, hStream);
  if (callback == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (driver->engine().Capturing(*stream)) return driver->engine().ForbidCapture(*stream);
  Stream* const raw = stream.get();
  Label label;
  label.type = CU_GRAPH_NODE_TYPE_HOST;
  return driver->engine().Submit(*stream, label, [raw, hStream, callback, userData](PollState&) {
    callback(hStream, static_cast<CUresult>(raw->context->sticky.load()), userData);
    return kDone;
  });
}

// ---- stream memory operations

namespace {

template <class Word>
CUresult WriteValue(CUstream handle, CUdeviceptr address, Word value, unsigned flags) {
  HC_STREAM(stream, handle);
  (void)flags;  // CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER only weakens
  hostcuda::MemoryRange memory;
  if (!hostcuda::FindWord(address, sizeof(Word), &memory)) return CUDA_ERROR_INVALID_VALUE;
  Label label;
  label.type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
  label.call = HostCall::kLaunch;
  return driver->engine().Submit(*stream, label, [address, value](PollState&) {
    return hostcuda::StoreWord<Word>(address, value);
  });
}

/// Waits for a word. Who stores to host memory is usually another process: a peer.
template <class Word>
class ValueWait final : public hostcuda::Work,
                        public std::enable_shared_from_this<ValueWait<Word>> {
 public:
  ValueWait(CUdeviceptr address, Word value, unsigned flags, bool in_host_memory)
      : address_(address), value_(value), flags_(flags), in_host_memory_(in_host_memory) {}
  int Poll(PollState& state) override {
    return hostcuda::PollWord<Word>(address_, value_, flags_, state);
  }
  std::shared_ptr<hostcuda::Work> Fresh() override { return this->shared_from_this(); }
  bool AwaitsPeers() const override { return in_host_memory_; }

 private:
  const CUdeviceptr address_;
  const Word value_;
  const unsigned flags_;
  const bool in_host_memory_;
};

template <class Word>
CUresult WaitValue(CUstream handle, CUdeviceptr address, Word value, unsigned flags) {
  HC_STREAM(stream, handle);
  hostcuda::MemoryRange memory;
  if (!hostcuda::FindWord(address, sizeof(Word), &memory)) return CUDA_ERROR_INVALID_VALUE;
  if ((flags & ~(3u | CU_STREAM_WAIT_VALUE_FLUSH)) != 0) return CUDA_ERROR_INVALID_VALUE;
  Label label;
  label.type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
  label.call = HostCall::kLaunch;
  return driver->engine().SubmitWork(
      *stream, label,
      std::make_shared<ValueWait<Word>>(address, value, flags, !memory.on_device()));
}

}  // namespace

HC_ENTRY CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr addr, cuuint32_t value,
                                          unsigned int flags) {
  return WriteValue<cuuint32_t>(stream, addr, value, flags);
}
HC_ENTRY CUresult cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr addr, cuuint64_t value,
                                          unsigned int flags) {
  return WriteValue<cuuint64_t>(stream, addr, value, flags);
}
HC_ENTRY CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr addr, cuuint32_t value,
                                         unsigned int flags) {
  return WaitValue<cuuint32_t>(stream, addr, value, flags);
}
HC_ENTRY CUresult cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr addr, cuuint64_t value,
                                         unsigned int flags) {
  return WaitValue<cuuint64_t>(stream, addr, value, flags);
}
HC_ENTRY CUresult cuStreamWriteValue32(CUstream stream, CUdeviceptr addr, cuuint32_t value,
                                       unsigned int flags) {
  return WriteValue<cuuint32_t>(stream, addr, value, flags);
}
HC_ENTRY CUresult cuStreamWriteValue64(CUstream stream, CUdeviceptr addr, cuuint64_t value,
                                       unsigned int flags) {
  return WriteValue<cuuint64_t>(stream, addr, value, flags);
}
HC_ENTRY CUresult cuStreamWaitValue32(CUstream stream, CUdeviceptr addr, cuuint32_t value,
                                      unsigned int flags) {
  return WaitValue<cuuint32_t>(stream, addr, value, flags);
}
HC_ENTRY CUresult cuStreamWaitValue64(CUstream stream, CUdeviceptr addr, cuuint64_t value,
                                      unsigned int flags) {
  return WaitValue<cuuint64_t>(stream, addr, value, flags);
}

HC_ENTRY CUresult cuStreamBatchMemOp_v2(CUstream stream, unsigned int count,
                                        CUstreamBatchMemOpParams* paramArray, unsigned int flags) {
  if (paramArray == nullptr || count > 256 || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < count; ++i) {
    const CUstreamBatchMemOpParams& p = paramArray[i];
    CUresult result = CUDA_SUCCESS;
    switch (p.operation) {
      case CU_STREAM_MEM_OP_WAIT_VALUE_32:
        result = WaitValue<cuuint32_t>(stream, p.waitValue.address, p.waitValue.value,
                                       p.waitValue.flags);
        break;
      case CU_STREAM_MEM_OP_WAIT_VALUE_64:
        result = WaitValue<cuuint64_t>(stream, p.waitValue.address, p.waitValue.value64,
                                       p.waitValue.flags);
        break;
      case CU_STREAM_MEM_OP_WRITE_VALUE_32:
        result = WriteValue<cuuint32_t>(stream, p.writeValue.address, p.writeValue.value,
                                        p.writeValue.flags);
        break;
      case CU_STREAM_MEM_OP_WRITE_VALUE_64:
        result = WriteValue<cuuint64_t>(stream, p.writeValue.address, p.writeValue.value64,
                                        p.writeValue.flags);
        break;
      case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
      case CU_STREAM_MEM_OP_BARRIER:
        break;  // memory is coherent and the stream in order
      default:
        return hostcuda::NotEmulated("cuStreamBatchMemOp", "this kind of operation");
    }
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}
HC_ENTRY CUresult cuStreamBatchMemOp(CUstream stream, unsigned int count,
                                     CUstreamBatchMemOpParams* paramArray, unsigned int flags) {
  return cuStreamBatchMemOp_v2(stream, count, paramArray, flags);
}
