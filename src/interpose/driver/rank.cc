#include "src/interpose/driver/rank.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "src/interpose/driver/call_site.h"
#include "src/interpose/report.h"

namespace prism::interpose {

std::atomic<uint32_t> g_observe{0};
thread_local int t_nccl_depth = 0;

namespace {

const char* Environment(const char* name) {
  const char* value = getenv(name);
  return value == nullptr ? "" : value;
}

bool ParseNumber(const char* text, uint32_t* value) {
  if (text[0] < '0' || text[0] > '9') return false;
  char* end = nullptr;
  const unsigned long parsed = strtoul(text, &end, 10);
  if (*end != 0 || parsed > UINT32_MAX) return false;
  *value = static_cast<uint32_t>(parsed);
  return true;
}

uint32_t FirstNumber(std::initializer_list<const char*> names, uint32_t otherwise) {
  for (const char* name : names) {
    uint32_t value;
    if (ParseNumber(Environment(name), &value)) return value;
  }
  return otherwise;
}

// A rank holds an abstract socket of this name, so that its descendants can see that they descend
// from a rank: the environment alone cannot tell a rank from the compiler it starts.
socklen_t MarkerAddress(int pid, sockaddr_un* address) {
  *address = {};
  address->sun_family = AF_UNIX;
  const int length =
      snprintf(address->sun_path + 1, sizeof address->sun_path - 1, "prism/rank/%d", pid);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
}

int ParentOf(int pid) {
  char path[64], text[512];
  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  const ssize_t size = read(fd, text, sizeof text - 1);
  close(fd);
  if (size <= 0) return 0;
  text[size] = 0;
  const char* after_name = strrchr(text, ')');  // the name may hold anything
  int parent = 0;
  if (after_name == nullptr || sscanf(after_name + 1, " %*c %d", &parent) != 1) return 0;
  return parent;
}

/// The nearest ancestor that is a rank, or 0.
int RankAmongAncestors() {
  constexpr int kMaxDepth = 64;
  int pid = getppid();
  for (int depth = 0; depth < kMaxDepth && pid > 1; ++depth, pid = ParentOf(pid)) {
    sockaddr_un address;
    const socklen_t length = MarkerAddress(pid, &address);
    const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return 0;
    const bool found = connect(fd, reinterpret_cast<sockaddr*>(&address), length) == 0;
    close(fd);
    if (found) return pid;
  }
  return 0;
}

bool ParseMode(const char* text, wire::Mode* mode) {
  constexpr const char* kNames[] = {"passthrough", "record", "capture", "emulate"};
  for (uint32_t i = 0; i < 4; ++i) {
    if (strcmp(text, kNames[i]) == 0) {
      *mode = static_cast<wire::Mode>(i);
      return true;
    }
  }
  return false;
}

}  // namespace

Identity IdentityFromEnvironment() {
  Identity identity;
  for (const char* name : {wire::kEnvRank, "RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"}) {
    if (ParseNumber(Environment(name), &identity.rank)) {
      identity.named = true;
      identity.source = name;
      break;
    }
  }
  identity.world = FirstNumber({"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS"}, 1);
  identity.local_rank =
      FirstNumber({"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"}, UINT32_MAX);
  return identity;
}

std::vector<uint32_t> ParseVisibleDevices(const char* text, uint32_t devices) {
  std::vector<uint32_t> visible;
  if (text == nullptr) {
    for (uint32_t i = 0; i < devices; ++i) visible.push_back(i);
    return visible;
  }
  while (*text != 0) {
    char* end = nullptr;
    const unsigned long value = strtoul(text, &end, 10);
    while (end != text && *end == ' ') ++end;
    if (end == text || *text == '-' || (*end != 0 && *end != ',') || value >= devices) break;
    for (const uint32_t seen : visible) {
      if (seen == value) return {};
    }
    visible.push_back(static_cast<uint32_t>(value));
    if (*end == 0) break;
    text = end + 1;
  }
  return visible;
}

Rank& Rank::Get() {
  static Rank* rank = new Rank;  // never destroyed: other libraries call us while the process ends
  return *rank;
}

void Rank::TellUncaptured() {
  const char* socket = Environment(wire::kEnvSocket);
  const char* slash = strrchr(socket, '/');
  if (ancestor_ == 0 || slash == nullptr) return;
  char path[4096];
  snprintf(path, sizeof path, "%.*s/%s%d", static_cast<int>(slash - socket), socket,
           wire::kUncapturedPrefix, getpid());
  const int to = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (to < 0) return;  // told already
  const int from = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
  char text[4096];
  int length = snprintf(text, sizeof text, "%d %u ", ancestor_, identity_.world);
  const ssize_t size = from < 0 ? 0 : read(from, text + length, sizeof text - length);
  if (from >= 0) close(from);
  [[maybe_unused]] const ssize_t n =
      write(to, text, static_cast<size_t>(length + (size > 0 ? size : 0)));
  close(to);
}

void Rank::ContextWanted() {
  if (role() == Role::kInert) TellUncaptured();
  if (role() != Role::kUndecided || BeginFromEnvironment(true) != Role::kRank) return;
  if (begun_ != nullptr) begun_();
}

Role Rank::BeginFromEnvironment(bool wants_context) {
  if (role() != Role::kUndecided) return role();
  std::lock_guard lock(mutex_);
  if (role() != Role::kUndecided) return role();
  const char* socket = Environment(wire::kEnvSocket);
  wire::Mode wanted = wire::Mode::kPassthrough;
  const char* mode_text = Environment(wire::kEnvMode);
  if (mode_text[0] != 0 && !ParseMode(mode_text, &wanted)) {
    snprintf(refusal_, sizeof refusal_,
             "PRISM_MODE is '%s': it must be passthrough, record, capture or emulate", mode_text);
    Report("%s", refusal_);
    role_.store(Role::kRefused, std::memory_order_release);
    return role();
  }
  identity_ = IdentityFromEnvironment();
  if (socket[0] != 0 && identity_.named) {
    if (const int ancestor = RankAmongAncestors(); ancestor != 0) {
      ancestor_ = ancestor;
      // One of several that a launcher started: it may fail before it has a context.
      if (identity_.world > 1) TellUncaptured();
      role_.store(Role::kInert, std::memory_order_release);
    } else {
      BeginLocked(socket);
    }
    return role();
  }
  const char* directory = Environment(wire::kEnvTraceDir);
  if (wanted == wire::Mode::kRecord && directory[0] != 0 && RankAmongAncestors() == 0) {
    if (!identity_.named && !wants_context) return role();
    mode_ = wanted;
    char path[4096];
    snprintf(path, sizeof path, "%s/rank-%05u.prt", directory, identity_.rank);
    StartTrace(path);
    Become();
    return role();
  }
  role_.store(Role::kInert, std::memory_order_release);
  return role();
}

bool Rank::Begin(const char* socket) {
  std::lock_guard lock(mutex_);
  if (role() == Role::kRank) {
    Report("prism_rank_begin: this process is rank %u already", identity_.rank);
    return false;
  }
  identity_ = IdentityFromEnvironment();
  if (!identity_.named) {
    Report("prism_rank_begin: no rank is named: set PRISM_RANK or RANK before");
    return false;
  }
  return BeginLocked(socket);
}

bool Rank::BeginLocked(const char* socket) {
  wire::Hello hello{};
  hello.header = {wire::Message::kHello, sizeof hello, 0};
  hello.version = wire::kProtocolVersion;
  hello.pid = getpid();
  hello.rank = identity_.rank;
  hello.world = identity_.world;
  hello.local_rank = identity_.local_rank;
  hello.arena_bytes = wire::kArenaBytes;
  if (!arena_.Create(hello.arena_bytes, refusal_, sizeof refusal_) ||
      !connection_.Open(socket, hello, arena_.fd(), &welcome_, refusal_, sizeof refusal_)) {
    Report("rank %u: %s", identity_.rank, refusal_);
    arena_.Abandon();
    role_.store(Role::kRefused, std::memory_order_release);
    PublishEntries();
    return false;
  }
  connected_ = true;
  welcome_.trace_path[sizeof welcome_.trace_path - 1] = 0;
  welcome_.device_name[sizeof welcome_.device_name - 1] = 0;
  mode_ = welcome_.mode;
  welcomed_ = mode_ == wire::Mode::kCapture || mode_ == wire::Mode::kEmulate;
  if (mode_ != wire::Mode::kPassthrough && welcome_.trace_path[0] != 0) {
    StartTrace(welcome_.trace_path);
    // Of an aborted job the controller may kill the ranks: their open spans are ended before.
    connection_.OnAbort(
        [](const wire::Abort* abort, void*) {
          trace::Writer* writer = Rank::Get().writer();
          if (writer != nullptr && abort->comm == 0) writer->FlushForDeath();
        },
        nullptr);
  }
  if (welcomed_) {
    for (Ledger& ledger : ledgers_) {
      ledger.SetLimit(welcome_.device_memory_bytes, welcome_.context_bytes);
    }
    const std::vector<uint32_t> visible =
        ParseVisibleDevices(getenv("CUDA_VISIBLE_DEVICES"), welcome_.devices);
    visible_ = {static_cast<uint32_t>(visible.size()), UINT32_MAX};
    for (uint32_t i = 0; i < visible.size(); ++i) {
      if (visible[i] == welcome_.device) visible_.own = i;
    }
  }
  Become();
  return true;
}

void Rank::StartTrace(const char* path) {
  auto* writer = new trace::Writer;  // never destroyed, for the reason above
  const int error = writer->Open(path, identity_.rank, identity_.world);
  if (error != 0) {
    Report("rank %u: the trace %s cannot be written: %s", identity_.rank, path, strerror(error));
    delete writer;
    return;
  }
  writer_.store(writer, std::memory_order_release);
}

void Rank::Become() {
  pid_ = getpid();
  marker_ = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_un address;
  const socklen_t length = MarkerAddress(pid_, &address);
  if (marker_ >= 0 && bind(marker_, reinterpret_cast<sockaddr*>(&address), length) != 0) {
    close(marker_);
    marker_ = -1;
  }
  uint32_t observe = g_observe.load(std::memory_order_relaxed) & kObserveCounts;
  if (writer() != nullptr) observe |= kObserveTrace;
  const bool measured = mode_ == wire::Mode::kRecord ||
                        (mode_ == wire::Mode::kEmulate && (welcome_.flags & wire::kMeasure) != 0);
  if (measured && strcmp(Environment(wire::kEnvRecordTimes), "0") != 0) observe |= kObserveTime;
  if (mode_ != wire::Mode::kPassthrough) observe |= kObserveLedger;
  if (visible_devices() != nullptr) observe |= kObserveOrdinals;
  g_observe.store(observe, std::memory_order_release);
  role_.store(Role::kRank, std::memory_order_release);
  on_exit(
      [](int status, void* rank) {
        if (static_cast<Rank*>(rank)->pid_ == getpid()) static_cast<Rank*>(rank)->End(status);
      },
      this);
  PublishEntries();
}

void Rank::Refuse(const char* reason) {
  snprintf(refusal_, sizeof refusal_, "%s", reason);
  Report("rank %u: %s", identity_.rank, refusal_);
  if (connected_) {
    wire::Refuse refuse{};
    refuse.header = {wire::Message::kRefuse, sizeof refuse, 0};
    snprintf(refuse.reason, sizeof refuse.reason, "%s", reason);
    connection_.Request(&refuse.header, nullptr, 0);
  }
  role_.store(Role::kRefused, std::memory_order_release);
}

void Rank::End(int exit_code) {
  std::lock_guard lock(mutex_);
  if (ended_ || role() == Role::kInert) return;
  ended_ = true;
  g_observe.fetch_and(~(kObserveTrace | kObserveTime), std::memory_order_acq_rel);
  for (uint32_t i = 0; i < kMaxDevices; ++i) {
    if (ledgers_[i].figures().peak_bytes > 0) TellLedger(i, 0);
  }
  if (ending_ != nullptr) ending_();
  if (trace::Writer* writer = writer_.exchange(nullptr, std::memory_order_acq_rel)) {
    const int error = writer->Close(exit_code);
    if (error != 0) Report("rank %u: the trace is incomplete: %s", identity_.rank, strerror(error));
  }
  if (connected_) {
    wire::Bye bye{};
    bye.header = {wire::Message::kBye, sizeof bye, 0};
    bye.exit_code = exit_code;
    connection_.Request(&bye.header, nullptr, 0);
  }
}

void Rank::Abandon() {
  g_observe.store(0, std::memory_order_release);
  role_.store(Role::kInert, std::memory_order_release);
  writer_.store(nullptr, std::memory_order_release);
  connected_ = welcomed_ = false;
  connection_.Abandon();
  arena_.Abandon();
  if (marker_ >= 0) close(marker_);
  marker_ = -1;
  PublishEntries();
}

uint32_t Rank::CallSite() {
  struct {
    wire::CallSite site;
    char text[1024];
  } packet{};
  const size_t length = DescribeCaller(packet.text, sizeof packet.text);
  if (length == 0) return 0;
  std::lock_guard lock(sites_mutex_);
  const auto [place, inserted] = sites_.try_emplace(std::string(packet.text, length),
                                                    static_cast<uint32_t>(sites_.size()) + 1);
  if (inserted) {
    trace::Writer* writer = this->writer();
    site_strings_.push_back(writer == nullptr ? 0 : writer->String({packet.text, length}));
  }
  if (inserted && connected_) {
    packet.site.header = {wire::Message::kCallSite,
                          static_cast<uint32_t>(sizeof packet.site + length), 0};
    packet.site.id = place->second;
    packet.site.text_bytes = static_cast<uint32_t>(length);
    connection_.Request(&packet.site.header, nullptr, 0);
  }
  return place->second;
}

uint32_t Rank::CallSiteString(uint32_t id) {
  std::lock_guard lock(sites_mutex_);
  return id == 0 || id > site_strings_.size() ? 0 : site_strings_[id - 1];
}

void Rank::Gap(const char* name) {
  std::lock_guard lock(sites_mutex_);
  if (!gaps_.insert(name).second) return;
  // Later descriptions replace members of earlier ones, so each holds the whole list.
  std::string list;
  for (const std::string& gap : gaps_) list += (list.empty() ? "\"" : ",\"") + gap + "\"";
  Describe("{\"fidelity_gaps\":[" + list + "]}");
}

void Rank::Describe(const std::string& json) {
  if (trace::Writer* writer = this->writer()) writer->Meta(json);
}

uint32_t Rank::CurrentOrdinal() const {
  if (const auto current = current_ordinal_.load(std::memory_order_acquire)) return current();
  return visible_.own == UINT32_MAX ? 0 : visible_.own;
}

bool Rank::NcclMemory(uint32_t ordinal, int64_t bytes, uint32_t comm) {
  Ledger& device = ledger(ordinal);
  const auto size = static_cast<uint64_t>(bytes < 0 ? -bytes : bytes);
  if (size == 0) return true;
  if (bytes < 0) {
    device.Return(size);
  } else if (!device.Reserve(size)) {
    TellLedger(ordinal, size);
    return false;
  } else if (device.NewPeak()) {
    TellLedger(ordinal, 0);
  }
  if (trace::Writer* writer = this->writer()) {
    writer->Memory(trace::MemoryKind::kModelled, bytes, comm);
  }
  std::lock_guard lock(nccl_mutex_);
  nccl_bytes_ += bytes;
  if (nccl_bytes_ > nccl_peak_bytes_) {
    nccl_peak_bytes_ = nccl_bytes_;
    Describe("{\"nccl_memory\":{\"peak_bytes\":" + std::to_string(nccl_peak_bytes_) +
             ",\"source\":\"modelled\"}}");
  }
  return true;
}

void Rank::TellLedger(uint32_t ordinal, uint64_t failed_bytes) {
  if (!connected_) return;
  const Ledger::Figures figures = ledger(ordinal).figures();
  wire::Ledger packet{};
  packet.header = {wire::Message::kLedger, sizeof packet, 0};
  packet.allocated_bytes = figures.allocated_bytes;
  packet.peak_bytes = figures.peak_bytes;
  packet.failed_bytes = failed_bytes;
  packet.device = ordinal;
  packet.allocations = figures.allocations;
  connection_.Request(&packet.header, nullptr, 0);
}

}  // namespace prism::interpose
