// The driver shim: opens the real driver, decides which entries are wrapped, makes the process a
// rank at its first cuInit, and hands the core table to prism's other shims.
#include <cuda.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <pthread.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "src/interpose/core_table.h"
#include "src/interpose/driver/driver_clock.h"
#include "src/interpose/driver/numbers.h"
#include "src/interpose/driver/ownership.h"
#include "src/interpose/driver/proc_address.h"
#include "src/interpose/driver/rank.h"
#include "src/interpose/driver/rounds.h"
#include "src/interpose/driver/route.h"
#include "src/interpose/driver/span_timer.h"
#include "src/interpose/report.h"

extern "C" void prism_driver_open();

// cuda.h renames it to its newest form; both forms are served here.
#undef cuGetProcAddress

namespace prism::interpose {
namespace driver {

uint64_t g_call_counts[kSymbolCount];

namespace {

ForwardTable g_table({prism_driver_names, prism_driver_exported, prism_driver_entry,
                      prism_driver_real, kSymbolCount, &prism_driver_missing});
std::atomic<bool> g_open{false};
const char* g_real_path = "";
char g_proof[512] = "not asked";

ProcAddress& Addresses() {
  static auto* addresses = new ProcAddress;
  return *addresses;
}

std::vector<Wrapper> AllWrappers() {
  std::vector<Wrapper> all;
  for (const auto& part : {MemoryWrappers(), StreamWrappers(), LaunchWrappers(), CopyWrappers(),
                           DeviceWrappers(), ProcAddressWrappers()}) {
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

// ---- Probe: PRISM_PROBE=path appends one JSON line at cuInit and one at exit.

std::string LoadedLibraries() {
  std::string list;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* out) {
        const char* slash = strrchr(info->dlpi_name, '/');
        const char* base = slash == nullptr ? info->dlpi_name : slash + 1;
        for (const char* prefix : {"libcuda.so", "libcudart", "libnccl", "libnvidia-ml", "libprism",
                                   "libcublas", "libcudnn.so"}) {
          if (strncmp(base, prefix, strlen(prefix)) != 0) continue;
          auto& text = *static_cast<std::string*>(out);
          if (!text.empty()) text += ",";
          text += std::string("\"") + info->dlpi_name + "\"";
        }
        return 0;
      },
      &list);
  return "[" + list + "]";
}

void WriteProbe(const char* when) {
  const char* path = getenv("PRISM_PROBE");
  if (path == nullptr || path[0] == 0) return;
  const Rank& rank = Rank::Get();
  constexpr const char* kRoles[] = {"undecided", "inert", "rank", "refused"};
  char executable[PATH_MAX] = {};
  if (readlink("/proc/self/exe", executable, sizeof executable - 1) < 0) executable[0] = 0;
  int version = 0;
  if (g_open.load()) PRISM_REAL(cuDriverGetVersion)(&version);
  const ProcAddress::Counts counts = Addresses().counts();
  uint32_t missing = 0;
  for (uint32_t i = 0; i < kSymbolCount; ++i) missing += g_table.has(i) ? 0 : 1;
  std::string line = "{\"when\":\"" + std::string(when) + "\",\"pid\":" + std::to_string(getpid()) +
                     ",\"ppid\":" + std::to_string(getppid()) + ",\"executable\":\"" + executable +
                     "\",\"role\":\"" + kRoles[static_cast<uint32_t>(rank.role())] + "\"";
  if (rank.identity().named) {
    line += ",\"rank\":" + std::to_string(rank.identity().rank) + ",\"named_by\":\"" +
            rank.identity().source + "\"";
  }
  line += ",\"mode\":" + std::to_string(static_cast<uint32_t>(rank.mode())) + ",\"real\":\"" +
          g_real_path + "\",\"driver_version\":" + std::to_string(version) +
          ",\"absent_names\":" + std::to_string(missing) + ",\"proof\":\"" + g_proof +
          "\",\"proc_address\":{\"by_address\":" + std::to_string(counts.by_address) +
          ",\"by_name\":" + std::to_string(counts.by_name) +
          ",\"passed\":" + std::to_string(counts.passed) + "},\"libraries\":" + LoadedLibraries() +
          ",\"calls\":{";
  bool first = true;
  for (uint32_t i = 0; i < kSymbolCount; ++i) {
    if (g_call_counts[i] == 0) continue;
    line += std::string(first ? "\"" : ",\"") + g_table.name(i) +
            "\":" + std::to_string(g_call_counts[i]);
    first = false;
  }
  line += "}}\n";
  const int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0) return;
  if (write(fd, line.data(), line.size()) < 0) Report("PRISM_PROBE %s: not written", path);
  close(fd);
}

// ---- The proof that a program's own ways to the driver lead here.

bool IsOurs(const void* function, uint32_t index) { return function == g_table.exported(index); }

void Prove() {
  Rank& rank = Rank::Get();
  char reason[512] = {};
  using GetProcAddress =
      CUresult (*)(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*);
  void* library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) {
    snprintf(reason, sizeof reason, "dlopen(\"libcuda.so.1\") fails: %s", dlerror());
  } else if (!IsOurs(dlsym(library, "cuMemAlloc_v2"), k_cuMemAlloc_v2)) {
    Dl_info info{};
    dladdr(dlsym(library, "cuMemAlloc_v2"), &info);
    snprintf(reason, sizeof reason,
             "dlopen(\"libcuda.so.1\") gives %s instead of prism's driver shim: prism must come "
             "first in LD_PRELOAD",
             info.dli_fname == nullptr ? "a library without cuMemAlloc_v2" : info.dli_fname);
  } else if (!IsOurs(dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"), k_cuMemAlloc_v2)) {
    Dl_info info{};
    dladdr(dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"), &info);
    snprintf(
        reason, sizeof reason,
        "cuMemAlloc_v2 resolves to %s instead of prism's driver shim: prism must come first in "
        "LD_PRELOAD",
        info.dli_fname == nullptr ? "nothing" : info.dli_fname);
  } else {
    const auto get = reinterpret_cast<GetProcAddress>(dlsym(library, "cuGetProcAddress_v2"));
    void* function = nullptr;
    CUdriverProcAddressQueryResult found{};
    const CUresult result =
        get == nullptr ? CUDA_ERROR_NOT_FOUND : get("cuMemAlloc", &function, 12000, 0, &found);
    if (result != CUDA_SUCCESS || !IsOurs(function, k_cuMemAlloc_v2)) {
      snprintf(reason, sizeof reason,
               "cuGetProcAddress(\"cuMemAlloc\", 12000) is not intercepted (error %d, the real "
               "driver is %s)",
               static_cast<int>(result), g_real_path);
    } else {
      // The function obtained that way must come through the wrapper, not only look like ours.
      if ((Observed() & kObserveLedger) &&
          prism_driver_entry[k_cuMemAlloc_v2] == prism_driver_real[k_cuMemAlloc_v2]) {
        snprintf(reason, sizeof reason, "the wrapper of cuMemAlloc is not installed");
      }
    }
  }
  if (library != nullptr) dlclose(library);
  if (reason[0] != 0) {
    snprintf(g_proof, sizeof g_proof, "%s", reason);
    rank.Refuse(reason);
    return;
  }
  snprintf(g_proof, sizeof g_proof, "intercepted");
}

bool RegisterWithCuda(void* address, size_t bytes) {
  return PRISM_REAL(cuMemHostRegister_v2)(
             address, bytes,
             static_cast<unsigned>(CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP)) ==
         CUDA_SUCCESS;
}

/// The user's CUDA_VISIBLE_DEVICES names devices of the target; the real driver must see those of
/// this machine.
class RealVisibleDevices {
 public:
  RealVisibleDevices() {
    if ((Observed() & kObserveOrdinals) == 0) return;
    if (const char* theirs = getenv(kName)) theirs_ = strdup(theirs);
    // One device is what the runtime will be shown; it refuses a driver that has more.
    const char* ours = getenv(wire::kEnvRealDevices);
    setenv(kName, ours != nullptr && ours[0] != 0 ? ours : "0", 1);
    changed_ = true;
  }
  ~RealVisibleDevices() {
    if (!changed_) return;
    if (theirs_ != nullptr) {
      setenv(kName, theirs_, 1);
      free(theirs_);
    } else {
      unsetenv(kName);
    }
  }
  RealVisibleDevices(const RealVisibleDevices&) = delete;
  RealVisibleDevices& operator=(const RealVisibleDevices&) = delete;

 private:
  static constexpr char kName[] = "CUDA_VISIBLE_DEVICES";
  char* theirs_ = nullptr;
  bool changed_ = false;
};

CUresult FirstInit(Route real, unsigned flags) {
  const RealVisibleDevices visible;
  return real(flags);
}

/// What a rank does once when its driver is up.
void Begun() {
  static std::once_flag once;
  std::call_once(once, [] {
    Rank& rank = Rank::Get();
    DriverClock::Find(g_table.library());
    if (Observed() & kObserveTime) {
      if (rank.welcome() != nullptr && (rank.welcome()->flags & wire::kHoldStreams) != 0)
        SpanTimer::Get().HoldIdleStreams();
      SpanTimer::Get().Start(rank.writer());
    }
    rank.arena().SetRegister(&RegisterWithCuda);
    if (rank.welcome() != nullptr) {
      __atomic_store_n(rank.arena().Word(wire::kClockNumberWord), DriverClock::Number(),
                       __ATOMIC_RELEASE);
    }
    int version = 0;
    PRISM_REAL(cuDriverGetVersion)(&version);
    const VisibleDevices* devices = rank.visible_devices();
    rank.Describe(
        "{\"shim\":{\"wire_version\":" + std::to_string(wire::kProtocolVersion) +
        ",\"mode\":" + std::to_string(static_cast<uint32_t>(rank.mode())) + ",\"driver\":\"" +
        g_real_path + "\",\"driver_version\":" + std::to_string(version) +
        ",\"visible_devices\":" + std::to_string(devices == nullptr ? 0 : devices->count) + "}}");
    Prove();
  });
}

CUresult Init(Route real, unsigned flags) {
  Rank& rank = Rank::Get();
  const Role role = rank.BeginFromEnvironment();
  if (role == Role::kRefused) return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED;
  static const CUresult first = FirstInit(real, flags);  // the driver reads the variable once
  const CUresult result = first != CUDA_SUCCESS ? first : real(flags);
  rank.SetHooks(&Begun, [] { SpanTimer::Get().Stop(); });
  if (result == CUDA_SUCCESS && role == Role::kRank) Begun();
  static std::once_flag once;
  std::call_once(once, [] { WriteProbe("cuInit"); });
  return rank.role() == Role::kRefused ? CUDA_ERROR_SHARED_OBJECT_INIT_FAILED : result;
}

CUresult GetProcAddress(Route real, const char* symbol, void** function, int version,
                        cuuint64_t flags, CUdriverProcAddressQueryResult* status) {
  const CUresult result = real(symbol, function, version, flags, status);
  if (result == CUDA_SUCCESS && symbol != nullptr && function != nullptr) {
    *function = Addresses().Answer(symbol, *function, version,
                                   (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0);
  }
  return result;
}

CUresult GetProcAddressV1(Route real, const char* symbol, void** function, int version,
                          cuuint64_t flags) {
  const CUresult result = real(symbol, function, version, flags);
  if (result == CUDA_SUCCESS && symbol != nullptr && function != nullptr) {
    *function = Addresses().Answer(symbol, *function, version,
                                   (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0);
  }
  return result;
}

// ---- The core table.

extern const CoreTable kCoreTable;

CUresult GetExportTable(Route real, const void** table, const CUuuid* id) {
  if (table != nullptr && id != nullptr && memcmp(id, &kPrismCoreUuid, sizeof *id) == 0) {
    *table = &kCoreTable;
    return CUDA_SUCCESS;
  }
  return real(table, id);
}

uint32_t CoreStreamNumber(CUstream stream) {
  trace::Writer* writer = Rank::Get().writer();
  return writer == nullptr ? 0 : StreamNumber(writer, stream, false);
}

void* CoreReal(const char* name) {
  const uint32_t index = g_table.Find(name);
  return index < kSymbolCount && g_table.has(index) ? g_table.real(index) : nullptr;
}

const CoreTable kCoreTable = {
    .size = sizeof(CoreTable),
    .version = kCoreTableVersion,
    .mode = [] { return Rank::Get().mode(); },
    .rank = [] { return Rank::Get().identity().rank; },
    .world = [] { return Rank::Get().identity().world; },
    .welcome = [] { return Rank::Get().welcome(); },
    .writer = [] { return Rank::Get().writer(); },
    .stream_number = &CoreStreamNumber,
    .request =
        [](wire::Header* packet, void* reply, size_t bytes) {
          // Played peers answer at once; real ones may need the clock to go on first.
          const bool at_once = Rank::Get().mode() == wire::Mode::kEmulate;
          const DriverClock::Held held(at_once && reply != nullptr);
          return Rank::Get().connection().Request(packet, reply, bytes);
        },
    .on_abort = [](void (*listener)(const wire::Abort*, void*),
                   void* context) { Rank::Get().connection().OnAbort(listener, context); },
    .arena_take = [](uint64_t bytes,
                     ArenaSlot* slot) { return Rank::Get().arena().Take(bytes, slot); },
    .arena_give = [](const ArenaSlot* slot) { Rank::Get().arena().Give(*slot); },
    .word_take = [] { return Rank::Get().arena().WordTake(); },
    .word_give = [](uint32_t index) { Rank::Get().arena().WordGive(index); },
    .word = [](uint32_t index) { return Rank::Get().arena().Word(index); },
    .ring =
        [] {
          Rank::Get().arena().Ring();
          DriverClock::Ring(Rank::Get().welcome()->clock_number);
        },
    .call_site = [] { return Rank::Get().CallSite(); },
    .call_site_string = [](uint32_t id) { return Rank::Get().CallSiteString(id); },
    .trace_communicator =
        [](const trace::CommRecord* comm, const uint32_t* ranks, bool waited) {
          trace::Writer* writer = Rank::Get().writer();
          if (writer == nullptr) return;
          writer->Communicator(*comm, ranks);
          if (waited) writer->CommInit(comm->comm);
        },
    .trace_comm =
        [](uint32_t stream, const trace::CallRecord* call, uint64_t sequence,
           trace::ValueSource values) {
          trace::Writer* writer = Rank::Get().writer();
          if (writer == nullptr) return;
          if (Observed() & kObserveTime) HostClock::Begin(writer);
          SpanTimer::Get().Communicated(stream);
          writer->Comm(stream, writer->Call(*call), sequence, values);
          if ((Observed() & kObserveTime) == 0) return;
          HostClock::Enqueued(writer);
          HostClock::End(writer);
        },
    .visible_devices = [] { return Rank::Get().visible_devices(); },
    .is_rank = [] { return Rank::Get().BeginFromEnvironment() == Role::kRank; },
    .real = &CoreReal,
    .gap = [](const char* name) { Rank::Get().Gap(name); },
    .memory =
        [](uint32_t ordinal, uint64_t* total, uint64_t* free) {
          Rank& rank = Rank::Get();
          const Ledger& ledger =
              rank.ledger(ordinal == UINT32_MAX ? rank.CurrentOrdinal() : ordinal);
          *total = ledger.figures().limit_bytes;
          *free = ledger.free_bytes();
          return ledger.limited();
        },
    .set_current_ordinal = [](uint32_t (*current)()) { Rank::Get().SetCurrentOrdinal(current); },
    .nccl_memory = [](uint32_t ordinal, int64_t bytes,
                      uint32_t comm) { return Rank::Get().NcclMemory(ordinal, bytes, comm); },
    .nccl_scope = [](int change) { t_nccl_depth += change; },
    .before_nccl_work =
        [](CUstream stream) {
          if (DriverClock::is_virtual()) SpanTimer::Get().BeforeNcclKernel(stream);
        },
    .after_nccl_work =
        [](CUstream stream) {
          if (DriverClock::is_virtual()) SpanTimer::Get().AfterNcclKernel(stream);
        },
    .charge = &DriverClock::Charge,
    .work = &DriverClock::Work,
    .round = [] { return Rounds::Get().now(); },
};

const Wrapper kAlwaysWrapped[] = {
    PRISM_WRAP_ALWAYS(cuInit, Init),
    PRISM_WRAP_ALWAYS(cuGetProcAddress_v2, GetProcAddress),
    PRISM_WRAP_ALWAYS(cuGetProcAddress, GetProcAddressV1),
    PRISM_WRAP_ALWAYS(cuGetExportTable, GetExportTable),
};

// A forked child is inert until it says otherwise, also when its parent had not used CUDA yet.
__attribute__((constructor)) void WatchForks() {
  pthread_atfork(nullptr, nullptr, [] {
    Rank::Get().Abandon();
    SpanTimer::Get().Abandon();
  });
}

void Open() {
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  if (g_open.load(std::memory_order_acquire)) return;
  static bool tried = false;
  if (tried) return;
  tried = true;
  const char* path = getenv(wire::kEnvRealDriver);
  g_real_path = path == nullptr ? "" : strdup(path);
  char error[1024];
  if (!g_table.Open(path, error, sizeof error)) {
    Report("no CUDA driver: %s: %s", wire::kEnvRealDriver, error);
    // The core table must be there all the same: the other shims ask it what this process is.
    g_table.Install(k_cuGetExportTable, kAlwaysWrapped[3].entry);
    return;
  }
  std::vector<uint32_t> wrapped;
  for (const Wrapper& wrapper : AllWrappers()) wrapped.push_back(wrapper.index);
  Addresses().Build(g_table, wrapped);
  if (const char* probe = getenv("PRISM_PROBE"); probe != nullptr && probe[0] != 0) {
    g_observe.fetch_or(kObserveCounts);
    on_exit(
        [](int, void* owner) {
          if (reinterpret_cast<intptr_t>(owner) == getpid()) WriteProbe("exit");
        },
        reinterpret_cast<void*>(static_cast<intptr_t>(getpid())));
  }
  g_open.store(true, std::memory_order_release);
  PublishEntries();
}

}  // namespace

std::span<const Wrapper> ProcAddressWrappers() { return kAlwaysWrapped; }

}  // namespace driver

void PublishEntries() {
  using namespace driver;
  if (!g_open.load(std::memory_order_acquire)) return;
  const bool observing = Observed() != 0;
  static const auto* wrapper_of = [] {
    auto* all = new std::vector<const Wrapper*>(kSymbolCount, nullptr);
    for (const auto& part : {MemoryWrappers(), StreamWrappers(), LaunchWrappers(), CopyWrappers(),
                             DeviceWrappers(), ProcAddressWrappers()}) {
      for (const Wrapper& wrapper : part) (*all)[wrapper.index] = &wrapper;
    }
    return all;
  }();
  for (uint32_t i = 0; i < kSymbolCount; ++i) {
    const Wrapper* wrapper = (*wrapper_of)[i];
    if (wrapper != nullptr && g_table.has(i) && (observing || wrapper->always)) {
      g_table.Install(i, wrapper->entry);
    } else {
      g_table.Forward(i);
    }
  }
}

}  // namespace prism::interpose

extern "C" {

void prism_driver_open() { prism::interpose::driver::Open(); }

__attribute__((visibility("default"))) int prism_rank_begin(const char* socket) {
  prism_driver_open();
  return prism::interpose::Rank::Get().Begin(socket) ? 0 : -1;
}

}  // extern "C"
