#include "hostcuda/driver/context.h"

#include <pthread.h>

#include <cstdio>
#include <mutex>
#include <utility>

#include "hostcuda/driver/device_memory.h"
#include "hostcuda/driver/driver.h"
#include "hostcuda/driver/gpu.h"
#include "hostcuda/driver/options.h"
#include "hostcuda/driver/value_layer.h"

namespace hostcuda {
namespace {

struct Primary {
  Context* context = nullptr;
  int retained = 0;
  unsigned flags = 0;
};

struct Contexts {
  std::mutex mutex;
  Primary primary[kMaxDevices];
  std::vector<Context*> all;
  uint32_t next_number = 1;
};

Contexts& All() {
  static Contexts* const contexts = new Contexts;
  return *contexts;
}

struct ThreadState {
  std::vector<Context*> stack;  // back: current
  std::vector<std::pair<Context*, StreamRef>> per_thread_streams;
  bool per_thread_default = false;
};

thread_local ThreadState* thread_state = nullptr;

void EndThread(void* state) {
  thread_state = nullptr;
  auto* own = static_cast<ThreadState*>(state);
  if (Driver::Get() != nullptr) {
    for (const auto& [context, stream] : own->per_thread_streams)
      Engine::Get()->DestroyStream(*stream);
  }
  delete own;
}

ThreadState& Thread() {
  if (thread_state == nullptr) {
    // Ended by a key, not by a destructor: keys run after the destructors of thread-local objects,
    // which may call CUDA.
    static const pthread_key_t key = [] {
      pthread_key_t made;
      pthread_key_create(&made, &EndThread);
      return made;
    }();
    thread_state = new ThreadState;
    pthread_setspecific(key, thread_state);
  }
  return *thread_state;
}

// With Contexts::mutex held.
CUresult Create(Contexts& contexts, int device, unsigned flags, bool primary, Context** out) {
  Driver& driver = *Driver::Get();
  if (!driver.Charge(device, Options().context_bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  if (Clock().takes_time()) Clock().Touch();  // from here on the process takes part
  auto* context = new Context;
  context->device = device;
  context->number = contexts.next_number++;
  context->flags = flags;
  context->primary = primary;
  for (auto& limit : context->limits) limit.store(0, std::memory_order_relaxed);
  context->limits[CU_LIMIT_STACK_SIZE] = 1024;
  context->limits[CU_LIMIT_PRINTF_FIFO_SIZE] = 1u << 20;
  context->limits[CU_LIMIT_MALLOC_HEAP_SIZE] = 8u << 20;
  context->limits[CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH] = 2;
  context->limits[CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT] = 2048;
  context->limits[CU_LIMIT_MAX_L2_FETCH_GRANULARITY] = 128;
  context->legacy = Engine::Get()->CreateStream(context, 0, 0, true);
  contexts.all.push_back(context);
  *out = context;
  return CUDA_SUCCESS;
}

void Destroy(Context* context) {
  context->alive = false;
  Engine::Get()->DropContext(*context);
  Driver::Get()->memory().FreeContext(context);
  Driver::Get()->Discharge(context->device, Options().context_bytes);
}

}  // namespace

Context* CurrentContext() {
  ThreadState& thread = Thread();
  return thread.stack.empty() ? nullptr : thread.stack.back();
}

void SetCurrentContext(Context* context) {
  ThreadState& thread = Thread();
  if (!thread.stack.empty()) thread.stack.pop_back();
  if (context != nullptr) thread.stack.push_back(context);
}

void PushContext(Context* context) { Thread().stack.push_back(context); }

bool PopContext(Context** context) {
  ThreadState& thread = Thread();
  if (thread.stack.empty()) return false;
  *context = thread.stack.back();
  thread.stack.pop_back();
  return true;
}

CUresult RetainPrimary(int device, Context** context) {
  if (const CUresult opened = OpenValueLayer(); opened != CUDA_SUCCESS) return opened;
  Contexts& contexts = All();
  std::lock_guard<std::mutex> lock(contexts.mutex);
  Primary& primary = contexts.primary[device];
  if (primary.context == nullptr) {
    const CUresult created = Create(contexts, device, primary.flags, true, &primary.context);
    if (created != CUDA_SUCCESS) return created;
  }
  ++primary.retained;
  *context = primary.context;
  return CUDA_SUCCESS;
}

CUresult ReleasePrimary(int device) {
  Contexts& contexts = All();
  std::lock_guard<std::mutex> lock(contexts.mutex);
  Primary& primary = contexts.primary[device];
  if (primary.retained == 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (--primary.retained == 0 && primary.context != nullptr)
    Destroy(std::exchange(primary.context, nullptr));
  return CUDA_SUCCESS;
}

CUresult ResetPrimary(int device) {
  Contexts& contexts = All();
  std::lock_guard<std::mutex> lock(contexts.mutex);
  Primary& primary = contexts.primary[device];
  if (primary.context != nullptr) Destroy(std::exchange(primary.context, nullptr));
  primary.retained = 0;
  return CUDA_SUCCESS;
}

bool PrimaryState(int device, unsigned* flags) {
  Contexts& contexts = All();
  std::lock_guard<std::mutex> lock(contexts.mutex);
  const Primary& primary = contexts.primary[device];
  *flags = primary.context != nullptr ? primary.context->flags : primary.flags;
  return primary.context != nullptr;
}

CUresult SetPrimaryFlags(int device, unsigned flags) {
  Contexts& contexts = All();
  std::lock_guard<std::mutex> lock(contexts.mutex);
  Primary& primary = contexts.primary[device];
  primary.flags = flags;
  if (primary.context != nullptr) primary.context->flags = flags;
  return CUDA_SUCCESS;
}

CUresult CreateContext(int device, unsigned flags, Context** context) {
  if (const CUresult opened = OpenValueLayer(); opened != CUDA_SUCCESS) return opened;
  Contexts& contexts = All();
  std::lock_guard<std::mutex> lock(contexts.mutex);
  return Create(contexts, device, flags, false, context);
}

CUresult DestroyContext(Context* context) {
  Contexts& contexts = All();
  std::lock_guard<std::mutex> lock(contexts.mutex);
  if (context->primary || !context->alive) return CUDA_ERROR_INVALID_CONTEXT;
  Destroy(context);
  std::vector<Context*>& stack = Thread().stack;
  if (!stack.empty() && stack.back() == context) stack.pop_back();
  return CUDA_SUCCESS;
}

std::vector<Context*> LiveContexts() {
  Contexts& contexts = All();
  std::lock_guard<std::mutex> lock(contexts.mutex);
  std::vector<Context*> live;
  for (Context* context : contexts.all) {
    if (context->alive) live.push_back(context);
  }
  return live;
}

CUresult ResolveStream(CUstream handle, StreamRef* stream) {
  const uintptr_t value = reinterpret_cast<uintptr_t>(handle);
  if (value > 2) {
    auto* created = reinterpret_cast<Stream*>(handle);
    if (created->magic != Stream::kMagic) return CUDA_ERROR_INVALID_HANDLE;
    *stream = created->shared_from_this();
    return created->context->alive ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
  }
  Context* context = CurrentContext();
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (!context->alive) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  ThreadState& thread = Thread();
  if (value != 2 && !(value == 0 && thread.per_thread_default)) {
    *stream = context->legacy;
    return CUDA_SUCCESS;
  }
  for (const auto& [owner, own] : thread.per_thread_streams) {
    if (owner == context) {
      *stream = own;
      return CUDA_SUCCESS;
    }
  }
  *stream = Engine::Get()->CreateStream(context, 0, 0, false);
  thread.per_thread_streams.emplace_back(context, *stream);
  return CUDA_SUCCESS;
}

PerThreadStreamScope::PerThreadStreamScope() : previous_(Thread().per_thread_default) {
  Thread().per_thread_default = true;
}
PerThreadStreamScope::~PerThreadStreamScope() { Thread().per_thread_default = previous_; }

}  // namespace hostcuda
