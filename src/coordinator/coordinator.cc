#include "src/coordinator/coordinator.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "fmt/format.h"
#include "src/base/log.h"
#include "src/coordinator/arithmetic.h"
#include "src/coordinator/exchange.h"

namespace prism::coordinator {
namespace {

using wire::Message;
using wire::Op;
using wire::OpRecord;

constexpr int32_t kNcclInvalidUsage = 5;
constexpr int32_t kNcclRemoteError = 6;

template <typename Packet>
Packet Begin(Message type, uint64_t request) {
  Packet packet{};
  packet.header = {type, sizeof(Packet), request};
  return packet;
}

template <size_t kSize>
void CopyText(char (&to)[kSize], std::string_view text) {
  const size_t n = std::min(text.size(), kSize - 1);
  std::memcpy(to, text.data(), n);
  to[n] = '\0';
}

// What all participants of a call must agree on. Recv is described from the receiver's side, so it
// is compared by type and count alone.
bool SameCall(const OpRecord& a, const OpRecord& b) {
  return a.op == b.op && a.dtype == b.dtype && a.count == b.count &&
         (!HasReduction(a.op) || a.reduction == b.reduction) &&
         (!HasRoot(a.op) || a.peer == b.peer);
}

// True when every member of `wait` that is not there has to be among the ranks listed: then a gone
// one is fatal.
bool MustCome(const Wait& wait, size_t absent_members) {
  const auto listed = static_cast<size_t>(std::count_if(
      wait.members.begin(), wait.members.end(), [](const Wait::Member& m) { return !m.waiting; }));
  return listed <= absent_members;
}

bool Awaits(const Wait& wait, uint32_t rank) {
  return std::any_of(wait.members.begin(), wait.members.end(), [&](const Wait::Member& member) {
    return member.rank == rank && !member.waiting;
  });
}

std::set<uint32_t> WaitingIn(const std::vector<Wait>& waits) {
  std::set<uint32_t> waiting;
  for (const Wait& wait : waits) {
    for (const Wait::Member& member : wait.members) {
      if (member.waiting) waiting.insert(member.rank);
    }
  }
  return waiting;
}

std::string Elements(uint64_t count) {
  return fmt::format("{} element{}", count, count == 1 ? "" : "s");
}

}  // namespace

struct Coordinator::Client {
  ClientId id = 0;
  uint32_t rank = 0;
  int pid = 0;
  bool gone = false;
  Arena arena;
  uint32_t bell = 0;
  std::vector<std::shared_ptr<Post>> undue;
  std::map<uint32_t, std::string> sites;
  std::string last_call;
};

// A group: released as a whole.
struct Coordinator::Post {
  Client* client = nullptr;
  uint32_t arrival_word = 0, arrival_value = 0, release_word = 0, release_value = 0;
  std::vector<OpRecord> records;
  std::vector<std::pair<uint32_t, uint64_t>> places;  // per record: member, call number
  size_t remaining = 0;
  bool due = false;
  int64_t due_ns = 0, arrived_ns = 0;  // the same, on the peers' clock
  bool paced = false;                  // wire::kPostPaced
  uint32_t met_word = 0;
  int64_t met_ns = 0;
  int64_t end_ns = 0;  // emulation: of what has met
};

struct Coordinator::OpRef {
  std::shared_ptr<Post> post;
  size_t index = 0;
  explicit operator bool() const { return post != nullptr; }
  const OpRecord& record() const { return post->records[index]; }
  bool due() const { return post != nullptr && post->due; }
};

struct Coordinator::Slot {
  std::vector<OpRef> members;
  size_t called = 0;
  int64_t disagreed_ns = 0;
};

struct Coordinator::Transfer {
  OpRef send, receive;
};

struct Coordinator::Joiner {
  ClientId client = 0;
  uint64_t request = 0;
  uint32_t world_rank = 0;
  uint32_t device = 0;
  uint32_t call_site = 0;
  int64_t since_ns = 0;
  int32_t color = 0, key = 0;  // splits
  bool present = false;
};

struct Coordinator::PendingComm {
  std::vector<Joiner> members;
  size_t present = 0;
};

struct Coordinator::PendingSplit {
  std::vector<Joiner> members;  // by rank in the parent
  std::set<uint32_t> excluded;
  bool shrink = false;
  size_t present = 0;
};

struct Coordinator::Totals {
  uint64_t calls = 0, bytes = 0, moved_bytes = 0, skipped_calls = 0;
};

struct Coordinator::Communicator {
  uint32_t number = 0;
  uint32_t parent = 0;
  uint32_t played = 0;  // emulation: what VirtualPeers calls it
  std::string origin;
  std::vector<Joiner> members;
  std::vector<uint64_t> calls;  // per member: collectives so far
  std::map<std::pair<uint32_t, uint32_t>, uint64_t> sends,
      receives;  // (source, destination): so far
  std::vector<uint8_t> closed;
  std::map<uint64_t, Slot> slots;  // by call number, from 1
  std::map<std::pair<uint32_t, uint32_t>, std::map<uint64_t, Transfer>> transfers;
  std::map<uint32_t, PendingSplit> splits;  // by split_index
  std::map<Op, Totals> totals;

  std::vector<uint32_t> WorldRanks() const {
    std::vector<uint32_t> ranks;
    for (const Joiner& member : members) ranks.push_back(member.world_rank);
    return ranks;
  }
};

// What real ranks are is known by their sockets; virtual ones have numbers of their own.
constexpr ClientId kFirstVirtual = ClientId{1} << 63;

Coordinator::Coordinator(JobRules rules, Outbox* outbox, VirtualPeers* peers, JobClock* clock,
                         ReceivedWriter* received)
    : rules_(std::move(rules)),
      outbox_(outbox),
      peers_(peers),
      clock_(clock),
      received_(received) {}
Coordinator::~Coordinator() = default;

template <typename T>
const T* Coordinator::As(std::string_view packet) {
  return packet.size() >= sizeof(T) ? reinterpret_cast<const T*>(packet.data()) : nullptr;
}

void Coordinator::Refuse(ClientId client, uint64_t request, const std::string& reason) {
  auto refuse = Begin<wire::Refuse>(Message::kRefuse, request);
  CopyText(refuse.reason, reason);
  outbox_->Send(client, &refuse.header);
}

absl::Status Coordinator::OnHello(ClientId id, const wire::Hello& hello,
                                  absl::StatusOr<Arena> arena, int64_t now_ns) {
  last_activity_ns_ = now_ns;
  const auto refuse = [&](std::string reason) {
    Refuse(id, hello.header.request, reason);
    return absl::FailedPreconditionError(
        fmt::format("rank {} (process {}) refused: {}", hello.rank, hello.pid, reason));
  };
  if (hello.version != wire::kProtocolVersion) {
    return refuse(fmt::format(
        "the shims speak protocol {}, this prism speaks {}; use the shims that came with it",
        hello.version, wire::kProtocolVersion));
  }
  if (hello.world == 0 || hello.rank >= hello.world) {
    return refuse(fmt::format("rank {} of {} ranks", hello.rank, hello.world));
  }
  if (rules_.world == 0) rules_.world = hello.world;
  if (hello.world != rules_.world) {
    return refuse(fmt::format("its world has {} ranks, the job's {}", hello.world, rules_.world));
  }
  for (const auto& [other_id, other] : clients_) {
    if (!other->gone && other->rank == hello.rank) {
      return refuse(fmt::format("rank {} is process {} already", hello.rank, other->pid));
    }
  }
  if (!arena.ok()) return refuse(std::string(arena.status().message()));
  if (diagnosis_) return refuse("the job has failed: " + diagnosis_->headline);

  auto client = std::make_unique<Client>();
  client->id = id;
  client->rank = hello.rank;
  client->pid = hello.pid;
  client->arena = *std::move(arena);
  client->bell = client->arena.Load(wire::kBellWord);
  RankState& state = ranks_[hello.rank];
  state = RankState{};
  state.rank = hello.rank;
  state.life = RankState::Life::kConnected;
  gone_ns_.erase(hello.rank);
  pids_[hello.rank] = hello.pid;
  const uint32_t incarnation = incarnations_[hello.rank]++;

  auto welcome = Begin<wire::Welcome>(Message::kWelcome, hello.header.request);
  welcome.mode = rules_.mode;
  welcome.devices = rules_.devices;
  welcome.device = UINT32_MAX;
  welcome.values = rules_.values;
  welcome.device_memory_bytes = rules_.device_memory_bytes;
  welcome.context_bytes = rules_.context_bytes;
  welcome.exact_payload_bytes = rules_.exact_payload_bytes;
  welcome.flags = rules_.welcome_flags;
  welcome.clock_number = rules_.clock_number;
  welcome.call_ns = rules_.call_ns;
  CopyText(welcome.device_name, rules_.device_name);
  if (!rules_.trace_directory.empty()) {
    // A script may run several programs as the same rank, one after the other: each has its own
    // trace.
    const std::string path =
        fmt::format("{}/rank-{:05}{}.prt", rules_.trace_directory, hello.rank,
                    incarnation == 0 ? std::string() : fmt::format("-{}", incarnation));
    if (path.size() >= sizeof welcome.trace_path) {
      return refuse(
          fmt::format("the trace's path has {} letters, {} is the most: use a shorter --job",
                      path.size(), sizeof welcome.trace_path - 1));
    }
    CopyText(welcome.trace_path, path);
    traces_[path] = hello.rank;
  }
  clients_[id] = std::move(client);
  outbox_->Send(id, &welcome.header);
  return absl::OkStatus();
}

absl::Status Coordinator::OnPacket(ClientId id, std::string_view bytes, int64_t now_ns) {
  last_activity_ns_ = now_ns;
  const auto found = clients_.find(id);
  if (found == clients_.end()) return absl::InvalidArgumentError("a packet before Hello");
  Client& client = *found->second;
  if (client.gone) return absl::OkStatus();  // released
  const auto* header = As<wire::Header>(bytes);
  absl::Status status = absl::InvalidArgumentError("a packet of unknown type or wrong length");
  if (header != nullptr && header->bytes == bytes.size()) {
    switch (header->type) {
      case Message::kCommCreate:
        if (const auto* p = As<wire::CommCreate>(bytes)) status = OnCommCreate(client, *p, now_ns);
        break;
      case Message::kCommSplit:
        if (const auto* p = As<wire::CommSplit>(bytes))
          status = OnCommSplit(client, *p, bytes, now_ns);
        break;
      case Message::kCommClose:
        if (const auto* p = As<wire::CommClose>(bytes)) status = OnCommClose(client, *p);
        break;
      case Message::kOpPost:
        if (const auto* p = As<wire::OpPost>(bytes)) status = OnOpPost(client, *p, bytes, now_ns);
        break;
      case Message::kCallSite:
        if (const auto* p = As<wire::CallSite>(bytes);
            p != nullptr && bytes.size() - sizeof *p >= p->text_bytes) {
          client.sites[p->id] = std::string(bytes.substr(sizeof *p, p->text_bytes));
          status = absl::OkStatus();
        }
        break;
      case Message::kLedger:
        if (const auto* p = As<wire::Ledger>(bytes)) {
          ledgers_[client.rank] = *p;
          status = absl::OkStatus();
        }
        break;
      case Message::kRefuse:
        // The rank's own shims found that they can not do their work there.
        if (const auto* p = As<wire::Refuse>(bytes)) {
          Diagnosis diagnosis;
          diagnosis.kind = "interception";
          diagnosis.headline =
              fmt::format("rank {}: {}", client.rank,
                          std::string(p->reason, strnlen(p->reason, sizeof p->reason)));
          diagnosis.hint = "'prism doctor' shows which libraries a program gets";
          Fail(std::move(diagnosis));
          return absl::OkStatus();
        }
        break;
      case Message::kBye:
        if (const auto* p = As<wire::Bye>(bytes)) {
          RankState& state = ranks_[client.rank];
          if (p->exit_code >= 0 && state.end.exit_code < 0) state.end.exit_code = p->exit_code;
          status = absl::OkStatus();
        }
        break;
      default:
        break;
    }
  }
  if (!status.ok()) {
    Diagnosis diagnosis;
    diagnosis.kind = "internal";
    diagnosis.headline = fmt::format("rank {}: {}", client.rank, std::string(status.message()));
    diagnosis.hint = "this is a fault of prism's: please report it with the job directory";
    Fail(std::move(diagnosis));
  }
  return status;
}

// ---- Communicators
// -------------------------------------------------------------------------------------------------

absl::Status Coordinator::OnCommCreate(Client& client, const wire::CommCreate& packet,
                                       int64_t now_ns) {
  const std::string id(reinterpret_cast<const char*>(packet.unique_id), wire::kUniqueIdBytes);
  if (packet.size == 0 || packet.rank >= packet.size) {
    return absl::InvalidArgumentError(
        fmt::format("ncclCommInitRank: rank {} of {}", packet.rank, packet.size));
  }
  if (peers_ != nullptr) {
    return JoinVirtual(client,
                       {client.id, packet.header.request, client.rank, packet.device,
                        packet.call_site, now_ns, 0, 0, true},
                       packet.size, packet.rank, 0, "ncclCommInitRank");
  }
  auto& pending = pending_comms_[id];
  if (pending == nullptr) {
    pending = std::make_unique<PendingComm>();
    pending->members.resize(packet.size);
  }
  const auto disagree = [&](std::string headline, std::string expectation) {
    Diagnosis diagnosis;
    diagnosis.kind = "communicator";
    diagnosis.headline = std::move(headline);
    for (const Joiner& member : pending->members) {
      if (!member.present) continue;
      diagnosis.parties.push_back(
          {{member.world_rank},
           fmt::format("makes a communicator of {}", pending->members.size()),
           SiteOf(member.client, member.call_site)});
    }
    diagnosis.parties.push_back(
        {{client.rank}, std::move(expectation), SiteOf(client.id, packet.call_site)});
    diagnosis.hint = "every member passes the same number of ranks and its own rank";
    Fail(std::move(diagnosis));
  };
  if (pending->members.size() != packet.size) {
    disagree("ncclCommInitRank: the members disagree about the size of the communicator",
             fmt::format("makes it of {}", packet.size));
    return absl::OkStatus();
  }
  Joiner& joiner = pending->members[packet.rank];
  if (joiner.present) {
    disagree(
        fmt::format("ncclCommInitRank: rank {} of the communicator is there twice", packet.rank),
        fmt::format("comes as rank {} too", packet.rank));
    return absl::OkStatus();
  }
  joiner = {
      client.id, packet.header.request, client.rank, packet.device, packet.call_site, now_ns, 0, 0,
      true};
  if (++pending->present < packet.size) return absl::OkStatus();
  Communicator& comm = NewCommunicator(pending->members, 0, "ncclCommInitRank");
  pending_comms_.erase(id);
  AnswerReady(comm);
  return absl::OkStatus();
}

Coordinator::Communicator& Coordinator::NewCommunicator(const std::vector<Joiner>& members,
                                                        uint32_t parent, std::string origin,
                                                        uint32_t number) {
  if (number == 0) number = static_cast<uint32_t>(comms_.size()) + 1;
  auto comm = std::make_unique<Communicator>();
  comm->number = number;
  comm->parent = parent;
  comm->origin = std::move(origin);
  comm->members = members;
  comm->calls.assign(members.size(), 0);
  comm->closed.assign(members.size(), 0);
  return *(comms_[number] = std::move(comm));
}

void Coordinator::AnswerReady(const Communicator& comm) {
  const std::vector<uint32_t> ranks = comm.WorldRanks();
  std::vector<uint32_t> packet((sizeof(wire::CommReady) + 4 * ranks.size() + 3) / 4);
  for (uint32_t member = 0; member < ranks.size(); ++member) {
    if (comm.members[member].client >= kFirstVirtual) continue;
    auto ready = Begin<wire::CommReady>(Message::kCommReady, comm.members[member].request);
    ready.header.bytes = static_cast<uint32_t>(sizeof ready + 4 * ranks.size());
    ready.comm = comm.number;
    ready.size = static_cast<uint32_t>(ranks.size());
    ready.rank = member;
    std::memcpy(packet.data(), &ready, sizeof ready);
    std::memcpy(reinterpret_cast<char*>(packet.data()) + sizeof ready, ranks.data(),
                4 * ranks.size());
    outbox_->Send(comm.members[member].client,
                  reinterpret_cast<const wire::Header*>(packet.data()));
  }
}

absl::StatusOr<uint32_t> Coordinator::MemberOf(const Communicator& comm, const Client& client,
                                               uint32_t comm_rank) const {
  if (comm_rank < comm.members.size() && comm.members[comm_rank].client == client.id)
    return comm_rank;
  uint32_t only = UINT32_MAX, found = 0;
  for (uint32_t member = 0; member < comm.members.size(); ++member) {
    if (comm.members[member].client == client.id) only = member, ++found;
  }
  if (found == 1) return only;
  return absl::InvalidArgumentError(fmt::format(
      "it has {} members of communicator {} and does not say which calls", found, comm.number));
}

absl::Status Coordinator::OnCommSplit(Client& client, const wire::CommSplit& packet,
                                      std::string_view bytes, int64_t now_ns) {
  const auto found = comms_.find(packet.parent);
  if (found == comms_.end()) {
    return absl::InvalidArgumentError(
        fmt::format("split of communicator {}, which is unknown", packet.parent));
  }
  Communicator& parent = *found->second;
  PRISM_ASSIGN_OR_RETURN(const uint32_t member, MemberOf(parent, client, packet.parent_rank));
  const Joiner self{client.id,
                    packet.header.request,
                    client.rank,
                    parent.members[member].device,
                    packet.call_site,
                    now_ns,
                    packet.color,
                    packet.key,
                    true};
  if (peers_ != nullptr) {
    if (packet.color < 0 && (packet.flags & wire::kCommShrink) == 0) {
      auto none = Begin<wire::CommReady>(Message::kCommReady, self.request);
      outbox_->Send(self.client, &none.header);
      return absl::OkStatus();
    }
    return JoinVirtual(client, self, 0, 0, parent.number, "ncclCommSplit");
  }
  PendingSplit& split = parent.splits[packet.split_index];
  const bool shrink = (packet.flags & wire::kCommShrink) != 0;
  std::set<uint32_t> excluded;
  if (shrink) {
    if (bytes.size() - sizeof packet < uint64_t{packet.excluded} * 4) {
      return absl::InvalidArgumentError(
          "ncclCommShrink: a list of excluded ranks that is too short");
    }
    for (uint32_t i = 0; i < packet.excluded; ++i) {
      uint32_t rank;
      std::memcpy(&rank, bytes.data() + sizeof packet + size_t{4} * i, 4);
      excluded.insert(rank);
    }
  }
  if (split.members.empty()) {
    split.members.resize(parent.members.size());
    split.shrink = shrink;
    split.excluded = excluded;
  }
  if (split.shrink != shrink || split.excluded != excluded) {
    Diagnosis diagnosis;
    diagnosis.kind = "communicator";
    diagnosis.headline = fmt::format("ncclComm{}: the members of communicator {} disagree",
                                     shrink ? "Shrink" : "Split", parent.number);
    diagnosis.comm = parent.number;
    diagnosis.comm_ranks = parent.WorldRanks();
    for (const Joiner& other : split.members) {
      if (other.present) {
        diagnosis.parties.push_back(
            {{other.world_rank},
             split.shrink ? fmt::format("shrinks it by {}", split.excluded.size()) : "splits it",
             SiteOf(other.client, other.call_site)});
      }
    }
    diagnosis.parties.push_back(
        {{client.rank},
         shrink ? fmt::format("shrinks it by {}", excluded.size()) : "splits it",
         SiteOf(client.id, packet.call_site)});
    Fail(std::move(diagnosis));
    return absl::OkStatus();
  }
  Joiner& joiner = split.members[member];
  if (joiner.present) {
    return absl::InvalidArgumentError(
        fmt::format("split {} of communicator {} came twice", packet.split_index, parent.number));
  }
  joiner = self;
  if (++split.present < parent.members.size() - split.excluded.size()) return absl::OkStatus();

  // Members of a colour by key, ties by rank in the parent; communicators in the order of colours.
  std::map<int32_t, std::vector<Joiner>> colors;
  for (const Joiner& other : split.members) {
    if (!other.present) continue;
    if (other.color >= 0 || split.shrink) {
      colors[split.shrink ? 0 : other.color].push_back(other);
      continue;
    }
    auto none = Begin<wire::CommReady>(Message::kCommReady, other.request);
    outbox_->Send(other.client, &none.header);
  }
  const bool was_shrink = split.shrink;
  parent.splits.erase(packet.split_index);
  for (auto& [color, members] : colors) {
    if (!was_shrink) {
      std::stable_sort(members.begin(), members.end(),
                       [](const Joiner& a, const Joiner& b) { return a.key < b.key; });
    }
    AnswerReady(
        NewCommunicator(members, parent.number, was_shrink ? "ncclCommShrink" : "ncclCommSplit"));
  }
  return absl::OkStatus();
}

absl::Status Coordinator::OnCommClose(Client& client, const wire::CommClose& packet) {
  const auto found = comms_.find(packet.comm);
  if (found == comms_.end()) {
    return absl::InvalidArgumentError(
        fmt::format("close of communicator {}, which is unknown", packet.comm));
  }
  PRISM_ASSIGN_OR_RETURN(const uint32_t member, MemberOf(*found->second, client, packet.comm_rank));
  if (packet.kind != wire::CloseKind::kFinalize) found->second->closed[member] = 1;
  return absl::OkStatus();
}

// ---- Matching
// ------------------------------------------------------------------------------------------------------

std::string Coordinator::SiteOf(ClientId client, uint32_t site) const {
  const Client* who = nullptr;
  if (client >= kFirstVirtual) {
    who = virtual_.at(static_cast<uint32_t>(client - kFirstVirtual)).get();
  } else if (const auto found = clients_.find(client); found != clients_.end()) {
    who = found->second.get();
  }
  if (who == nullptr) return "";
  const auto text = who->sites.find(site);
  return text == who->sites.end() ? "" : text->second;
}

std::string Coordinator::Expectation(const OpRecord& record) const {
  std::string text = OpName(record.op) + " " + DataTypeName(record.dtype);
  if (HasReduction(record.op)) text += " " + ReductionName(record.reduction);
  if (HasRoot(record.op)) {
    const bool from = record.op == Op::kBroadcast || record.op == Op::kScatter;
    text += fmt::format(" {} member {}", from ? "from" : "to", record.peer);
  }
  if (record.op == Op::kSend) text += fmt::format(" to member {}", record.peer);
  if (record.op == Op::kRecv) text += fmt::format(" from member {}", record.peer);
  return text + ", " + Elements(record.count);
}

absl::Status Coordinator::CheckRecord(const Client& client, const Communicator& comm,
                                      uint32_t member, const OpRecord& record) const {
  const auto n = static_cast<uint32_t>(comm.members.size());
  const auto bad = [&](std::string what) {
    return absl::InvalidArgumentError(
        fmt::format("{} on communicator {}: {}", OpName(record.op), comm.number, what));
  };
  if (static_cast<uint32_t>(record.op) >= wire::kOpCount) return bad("unknown operation");
  const uint64_t element_bytes = ElementBytes(record.dtype);
  if (element_bytes == 0) return bad("unknown " + DataTypeName(record.dtype));
  if ((HasRoot(record.op) || IsPointToPoint(record.op)) &&
      (record.peer < 0 || static_cast<uint32_t>(record.peer) >= n)) {
    return bad(fmt::format("member {} of {}", record.peer, n));
  }
  if (record.count > UINT64_MAX / 8 / n / element_bytes)
    return bad(fmt::format("{} elements", record.count));
  if ((record.flags & wire::kOpPayload) == 0) return absl::OkStatus();
  const ExchangeShape shape =
      ShapeOf(record.op, n, member, record.peer, record.count, element_bytes);
  if (shape.in_bytes != 0 && (record.in_bytes < shape.in_bytes ||
                              !client.arena.HoldsPayload(record.in_offset, shape.in_bytes))) {
    return bad(fmt::format("an input of {} bytes at {:#x}, {} are needed", record.in_bytes,
                           record.in_offset, shape.in_bytes));
  }
  if (shape.out_bytes != 0 && (record.out_bytes < shape.out_bytes ||
                               !client.arena.HoldsPayload(record.out_offset, shape.out_bytes))) {
    return bad(fmt::format("an output of {} bytes at {:#x}, {} are needed", record.out_bytes,
                           record.out_offset, shape.out_bytes));
  }
  return absl::OkStatus();
}

absl::Status Coordinator::OnOpPost(Client& client, const wire::OpPost& packet,
                                   std::string_view bytes, int64_t now_ns) {
  if (packet.operations == 0 ||
      bytes.size() != sizeof packet + uint64_t{packet.operations} * sizeof(OpRecord)) {
    return absl::InvalidArgumentError(
        fmt::format("a group of {} operations in {} bytes", packet.operations, bytes.size()));
  }
  if (std::max({packet.arrival_word, packet.release_word, packet.met_word}) >=
      wire::kControlWords) {
    return absl::InvalidArgumentError("a control word outside of the control page");
  }
  auto post = std::make_shared<Post>();
  post->client = &client;
  post->arrival_word = packet.arrival_word;
  post->arrival_value = packet.arrival_value;
  post->release_word = packet.release_word;
  post->release_value = packet.release_value;
  post->paced = (packet.flags & wire::kPostPaced) != 0;
  post->met_word = packet.met_word;
  post->records.resize(packet.operations);
  std::memcpy(post->records.data(), bytes.data() + sizeof packet,
              packet.operations * sizeof(OpRecord));
  post->remaining = packet.operations;

  for (size_t index = 0; index < post->records.size(); ++index) {
    const OpRecord& record = post->records[index];
    const auto found = comms_.find(record.comm);
    if (found == comms_.end()) {
      return absl::InvalidArgumentError(
          fmt::format("an operation on communicator {}, which is unknown", record.comm));
    }
    Communicator& comm = *found->second;
    PRISM_ASSIGN_OR_RETURN(const uint32_t member, MemberOf(comm, client, record.comm_rank));
    PRISM_RETURN_IF_ERROR(CheckRecord(client, comm, member, record));
    const OpRef ref{post, index};
    uint64_t call = 0;
    std::string name;
    if (IsPointToPoint(record.op)) {
      const bool send = record.op == Op::kSend;
      const auto peer = static_cast<uint32_t>(record.peer);
      const std::pair<uint32_t, uint32_t> pair =
          send ? std::pair{member, peer} : std::pair{peer, member};
      call = ++(send ? comm.sends : comm.receives)[pair];
      Transfer& transfer = comm.transfers[pair][call];
      (send ? transfer.send : transfer.receive) = ref;
      if (peers_ != nullptr && !CallVirtual(comm, member, call, ref)) return absl::OkStatus();
      if (transfer.send && transfer.receive &&
          (transfer.send.record().count != transfer.receive.record().count ||
           transfer.send.record().dtype != transfer.receive.record().dtype)) {
        Fail(DiagnoseMismatch(WaitOf(comm, pair.first, pair.second, call, transfer)));
        return absl::OkStatus();
      }
      name = WaitOf(comm, pair.first, pair.second, call, transfer).name;
    } else {
      call = ++comm.calls[member];
      Slot& slot = comm.slots[call];
      slot.members.resize(comm.members.size());
      slot.members[member] = ref;
      ++slot.called;
      if (peers_ != nullptr && !CallVirtual(comm, member, call, ref)) return absl::OkStatus();
      const bool agrees = std::all_of(
          slot.members.begin(), slot.members.end(),
          [&](const OpRef& other) { return !other || SameCall(other.record(), record); });
      if (!agrees && slot.disagreed_ns == 0) {
        slot.disagreed_ns = std::max<int64_t>(now_ns, 1);
        disagreements_.insert({comm.number, call});
      }
      name = fmt::format("{} #{} of communicator {}", OpName(record.op), call, comm.number);
    }
    post->places.emplace_back(member, call);
    const std::string site = SiteOf(client.id, record.call_site);
    client.last_call = site.empty() ? name : name + " at " + site;
  }
  ranks_[client.rank].last_call = client.last_call;
  client.undue.push_back(post);
  // First: what played peers disagree with must not be played.
  JudgeMismatches(now_ns, false);
  if (Reached(client.arena.Load(post->arrival_word), post->arrival_value)) OnBells(now_ns);
  return absl::OkStatus();
}

void Coordinator::OnBells(int64_t now_ns) {
  // Collected first: an execution may release a rank whose next arrival is in a list that is being
  // walked.
  std::vector<std::shared_ptr<Post>> due;
  for (auto& [id, client] : clients_) {
    if (client->undue.empty()) continue;
    client->bell = client->arena.Load(wire::kBellWord);
    auto kept = client->undue.begin();
    for (std::shared_ptr<Post>& post : client->undue) {
      if (Reached(client->arena.Load(post->arrival_word), post->arrival_value)) {
        due.push_back(std::move(post));
      } else {
        // Moving an element onto itself would empty it.
        if (&*kept != &post) *kept = std::move(post);
        ++kept;
      }
    }
    client->undue.erase(kept, client->undue.end());
  }
  for (const std::shared_ptr<Post>& post : due) BecomeDue(post, now_ns);
}

void Coordinator::BecomeDue(const std::shared_ptr<Post>& post, int64_t now_ns) {
  last_activity_ns_ = now_ns;
  post->due = true;
  post->due_ns = now_ns;
  post->arrived_ns = PlayedNs(now_ns);
  const uint64_t group = next_token_;
  for (size_t index = 0; index < post->records.size() && !diagnosis_; ++index) {
    const OpRecord& record = post->records[index];
    Communicator& comm = *comms_.at(record.comm);
    const auto [member, call] = post->places[index];
    if (peers_ != nullptr) {
      visits_[next_token_] = OpRef{post, index};
      peers_->Arrive(comm.played, member, record, call - 1, next_token_++, group, post->arrived_ns);
    } else if (record.op == Op::kSend) {
      TryTransfer(comm, member, static_cast<uint32_t>(record.peer), call);
    } else if (record.op == Op::kRecv) {
      TryTransfer(comm, static_cast<uint32_t>(record.peer), member, call);
    } else {
      TryCollective(comm, call);
    }
  }
  if (peers_ != nullptr) PlayPeers();
}

void Coordinator::TryCollective(Communicator& comm, uint64_t call) {
  const auto found = comm.slots.find(call);
  if (found == comm.slots.end()) return;
  Slot& slot = found->second;
  if (slot.called < comm.members.size() || slot.disagreed_ns != 0) return;
  if (!std::all_of(slot.members.begin(), slot.members.end(),
                   [](const OpRef& ref) { return ref.due(); }))
    return;

  const OpRecord& first = slot.members[0].record();
  const auto n = static_cast<uint32_t>(comm.members.size());
  Totals& totals = comm.totals[first.op];
  ++totals.calls;
  ++operations_;
  // The payload moves when everybody who contributes has brought it.
  bool moves = true;
  uint64_t moved = 0;
  std::vector<ExchangeBuffers> buffers(n);
  ExchangeSpec spec{first.op,    first.dtype, first.reduction, HasRoot(first.op) ? first.peer : -1,
                    first.count, {}};
  for (uint32_t member = 0; member < n; ++member) {
    const OpRef& ref = slot.members[member];
    const OpRecord& record = ref.record();
    const ExchangeShape shape =
        ShapeOf(record.op, n, member, record.peer, record.count, ElementBytes(record.dtype));
    totals.bytes += shape.in_bytes;
    const bool payload = (record.flags & wire::kOpPayload) != 0;
    if (shape.in_bytes != 0 && !payload) moves = false;
    if (payload && shape.in_bytes != 0)
      buffers[member].in = ref.post->client->arena.at(record.in_offset);
    if (payload && shape.out_bytes != 0)
      buffers[member].out = ref.post->client->arena.at(record.out_offset);
    if (HasReduction(record.op) && record.reduction == wire::kRedOpPreMulSum) {
      spec.scalar_bits.push_back(record.scalar_bits);
    }
    moved += payload ? shape.in_bytes : 0;
  }
  if (moves) {
    if (const absl::Status status = ExecuteCollective(spec, buffers); !status.ok()) {
      Diagnosis diagnosis = DiagnoseMismatch(WaitOf(comm, call, slot));
      diagnosis.kind = "internal";
      diagnosis.headline = fmt::format("{} #{} of communicator {}: {}", OpName(first.op), call,
                                       comm.number, std::string(status.message()));
      Fail(std::move(diagnosis));
      return;
    }
    totals.moved_bytes += moved;
  } else {
    ++totals.skipped_calls;
  }
  const Slot done = std::move(slot);
  comm.slots.erase(found);
  for (const OpRef& ref : done.members) {
    // Who counts its rounds otherwise still awaits what others do not send any more.
    if (moves) Keep(comm, ref);
    if (!moves && (ref.record().flags & wire::kOpPayload) != 0) FillFromOwn(comm, ref);
    Complete(ref);
  }
}

void Coordinator::TryTransfer(Communicator& comm, uint32_t source, uint32_t destination,
                              uint64_t call) {
  auto& pending = comm.transfers[{source, destination}];
  const auto found = pending.find(call);
  if (found == pending.end() || !found->second.send.due() || !found->second.receive.due()) return;
  const Transfer transfer = found->second;
  pending.erase(found);
  const OpRecord& send = transfer.send.record();
  const OpRecord& receive = transfer.receive.record();
  const uint64_t bytes = send.count * ElementBytes(send.dtype);
  Totals& totals = comm.totals[Op::kSend];
  ++totals.calls;
  ++operations_;
  totals.bytes += bytes;
  if ((send.flags & receive.flags & wire::kOpPayload) != 0) {
    std::memmove(transfer.receive.post->client->arena.at(receive.out_offset),
                 transfer.send.post->client->arena.at(send.in_offset), bytes);
    totals.moved_bytes += bytes;
    Keep(comm, transfer.receive);
  } else {
    ++totals.skipped_calls;
    if ((receive.flags & wire::kOpPayload) != 0)
      std::memset(transfer.receive.post->client->arena.at(receive.out_offset), 0, bytes);
  }
  Complete(transfer.send);
  Complete(transfer.receive);
}

std::string_view Coordinator::BroughtBy(const OpRef& ref) {
  const OpRecord& record = ref.record();
  if ((record.flags & wire::kOpPayload) == 0) return {};
  return {reinterpret_cast<const char*>(ref.post->client->arena.at(record.in_offset)),
          record.in_bytes};
}

void Coordinator::Keep(const Communicator& comm, const OpRef& ref) {
  const OpRecord& record = ref.record();
  if (received_ == nullptr || (record.flags & wire::kOpPayload) == 0 || record.out_bytes == 0 ||
      record.out_bytes > kReceivedPayloadBytes) {
    return;
  }
  const auto [member, call] = ref.post->places[ref.index];
  received_->Add({comm.members[member].world_rank, comm.number, record.op,
                  record.op == Op::kRecv ? record.peer : -1, call - 1},
                 BroughtBy(ref),
                 {reinterpret_cast<const char*>(ref.post->client->arena.at(record.out_offset)),
                  record.out_bytes});
}

void Coordinator::Complete(const OpRef& ref) {
  Post& post = *ref.post;
  if (--post.remaining != 0) return;
  post.client->arena.StoreAndWake(post.release_word, post.release_value);
  released_ns_[post.client->rank] = last_activity_ns_;
}

// ---- Emulation: members without a process
// ---------------------------------------------------------------------------------

Coordinator::Client& Coordinator::Virtual(uint32_t rank) {
  auto& client = virtual_[rank];
  if (client == nullptr) {
    client = std::make_unique<Client>();
    client->id = kFirstVirtual + rank;
    client->rank = rank;
  }
  return *client;
}

absl::Status Coordinator::JoinVirtual(Client& client, const Joiner& self, uint32_t size,
                                      uint32_t comm_rank, uint32_t parent, std::string origin) {
  const auto group = peers_->Join(client.rank, size, comm_rank, PlayedNs(self.since_ns));
  if (!group.ok()) {
    Diagnosis diagnosis;
    diagnosis.kind = "communicator";
    diagnosis.headline = std::string(group.status().message());
    diagnosis.parties.push_back(
        {{client.rank}, "calls " + origin, SiteOf(client.id, self.call_site)});
    diagnosis.hint = HintOf(group.status());
    Fail(std::move(diagnosis));
    return absl::OkStatus();
  }
  std::vector<Joiner> members;
  for (uint32_t member = 0; member < group->world_ranks.size(); ++member) {
    const uint32_t rank = group->world_ranks[member];
    members.push_back(self);
    if (member != group->rank) members.back().client = Virtual(rank).id;
    members.back().world_rank = rank;
  }
  Communicator& comm = NewCommunicator(members, parent, std::move(origin), group->number);
  comm.played = group->comm;
  AnswerReady(comm);
  PlayPeers();
  return absl::OkStatus();
}

// Adds what the others pass to a call that a real rank makes. False: the job has failed.
bool Coordinator::CallVirtual(Communicator& comm, uint32_t member, uint64_t call,
                              const OpRef& ref) {
  const OpRecord& record = ref.record();
  const auto post_of = [&](uint32_t other, const VirtualPeers::Call& played) {
    Client& client = Virtual(comm.members[other].world_rank);
    auto post = std::make_shared<Post>();
    post->client = &client;
    post->records.push_back(played.record);
    post->records[0].call_site = record.call_site;
    client.sites[record.call_site] = played.call_site;
    return OpRef{std::move(post), 0};
  };
  const auto missing = [&](uint32_t other) {
    Diagnosis diagnosis;
    diagnosis.kind = "missing";
    diagnosis.comm = comm.number;
    diagnosis.comm_ranks = comm.WorldRanks();
    diagnosis.headline =
        fmt::format("{} #{} of communicator {}: rank {} never comes", OpName(record.op), call,
                    comm.number, comm.members[other].world_rank);
    const Client& client = *ref.post->client;
    diagnosis.parties.push_back(
        {{client.rank}, Expectation(record), SiteOf(client.id, record.call_site)});
    diagnosis.parties.push_back(
        {{comm.members[other].world_rank}, "makes no such call in the job that was captured", ""});
    diagnosis.hint = "emulate the program that was captured, with its arguments";
    Fail(std::move(diagnosis));
    return false;
  };
  if (IsPointToPoint(record.op)) {
    const bool send = record.op == Op::kSend;
    const auto peer = static_cast<uint32_t>(record.peer);
    if (peer == member) return true;  // its other half is its own call
    auto played =
        peers_->Message(comm.played, peer, send ? Op::kRecv : Op::kSend, member, call - 1);
    if (!played.has_value()) return missing(peer);
    // Sizes that follow from values (of experts' tokens) are as the real rank has them.
    played->record.count = record.count;
    Transfer& transfer =
        comm.transfers[send ? std::pair{member, peer} : std::pair{peer, member}][call];
    (send ? transfer.receive : transfer.send) = post_of(peer, *played);
    return true;
  }
  Slot& slot = comm.slots.at(call);
  for (uint32_t other = 0; other < comm.members.size(); ++other) {
    if (other == member) continue;
    const auto played = peers_->Collective(comm.played, other, call - 1);
    if (!played.has_value()) return missing(other);
    slot.members[other] = post_of(other, *played);
    ++slot.called;
  }
  return true;
}

void Coordinator::PlayPeers() {
  const int64_t until_ns = clock_ == nullptr ? INT64_MAX : clock_->NowNs();
  for (const VirtualPeers::Meeting& meeting : peers_->Advance(until_ns)) {
    const auto found = visits_.find(meeting.token);
    if (found == visits_.end()) continue;
    const OpRef ref = found->second;
    visits_.erase(found);
    Post& post = *ref.post;
    const OpRecord& record = ref.record();
    Communicator& comm = *comms_.at(record.comm);
    const auto [member, call] = post.places[ref.index];
    Totals& totals = comm.totals[record.op];
    ++totals.calls;
    ++operations_;
    totals.bytes += record.in_bytes;
    if (IsPointToPoint(record.op)) {
      const auto peer = static_cast<uint32_t>(record.peer);
      comm.transfers[record.op == Op::kSend ? std::pair{member, peer} : std::pair{peer, member}]
          .erase(call);
    } else {
      Exchange(comm, ref);
      comm.slots.erase(call);
    }
    post.end_ns = std::max(post.end_ns, meeting.end_ns);
    post.met_ns = std::max(post.met_ns, meeting.met_ns);
    if (--post.remaining != 0) continue;
    MirrorMessages(post);
    if (post.paced) {
      const auto units = [&](int64_t ns, int64_t least) {
        return static_cast<uint32_t>(
            std::clamp<int64_t>((ns - post.arrived_ns) / wire::kPacedUnitNs, least, INT32_MAX));
      };
      post.client->arena.StoreAndWake(post.met_word, units(post.met_ns, 0));
      post.client->arena.StoreAndWake(post.release_word, units(post.end_ns, 1));
    } else {
      releases_.emplace(post.end_ns, ref.post);
    }
  }
}

// What a payload that moves is after the exchange: what the rank was given in the job that is
// played; where that is not known, what it is if every other member brought what this one did, and
// in an all-to-all, if every other one sends to this one what this one sends to it.
void Coordinator::Exchange(Communicator& comm, const OpRef& ref) {
  const OpRecord& record = ref.record();
  const auto member = ref.post->places[ref.index].first;
  const Arena& arena = ref.post->client->arena;
  Totals& totals = comm.totals[record.op];
  const auto n = static_cast<uint32_t>(comm.members.size());
  const ExchangeShape shape =
      ShapeOf(record.op, n, member, record.peer, record.count, ElementBytes(record.dtype));
  if ((record.flags & wire::kOpPayload) == 0) {
    ++totals.skipped_calls;
    return;
  }
  const std::string_view received = peers_->Received(
      comm.played, member, record, ref.post->places[ref.index].second - 1, BroughtBy(ref),
      record.op == Op::kAllToAll ? BroughtBy(ref) : std::string_view());
  if (!received.empty() && received.size() == shape.out_bytes) {
    std::memcpy(arena.at(record.out_offset), received.data(), received.size());
    totals.moved_bytes += shape.in_bytes;
    return;
  }
  if (FillFromOwn(comm, ref)) totals.moved_bytes += shape.in_bytes;
}

bool Coordinator::FillFromOwn(const Communicator& comm, const OpRef& ref) {
  const OpRecord& record = ref.record();
  const auto member = ref.post->places[ref.index].first;
  const Arena& arena = ref.post->client->arena;
  const auto n = static_cast<uint32_t>(comm.members.size());
  const ExchangeShape shape =
      ShapeOf(record.op, n, member, record.peer, record.count, ElementBytes(record.dtype));
  // Who brings nothing (a broadcast's receiver) keeps what it has: the shim has put it there.
  if (shape.in_bytes == 0 || shape.out_bytes == 0) return false;
  if (record.op == Op::kAllToAll) {
    std::memmove(arena.at(record.out_offset), arena.at(record.in_offset), shape.out_bytes);
    return false;
  }
  std::vector<ExchangeBuffers> buffers(n);
  ExchangeSpec spec{record.op,        record.dtype,
                    record.reduction, HasRoot(record.op) ? record.peer : -1,
                    record.count,     {}};
  for (ExchangeBuffers& buffer : buffers) buffer.in = arena.at(record.in_offset);
  buffers[member].out = arena.at(record.out_offset);
  if (HasReduction(record.op) && record.reduction == wire::kRedOpPreMulSum) {
    spec.scalar_bits.assign(n, record.scalar_bits);
  }
  if (const absl::Status status = ExecuteCollective(spec, buffers); !status.ok()) {
    Diagnosis diagnosis;
    diagnosis.kind = "internal";
    diagnosis.headline = fmt::format("{} of communicator {}: {}", OpName(record.op), comm.number,
                                     std::string(status.message()));
    Fail(std::move(diagnosis));
    return false;
  }
  return true;
}

// What the messages of a group send on a communicator, in the order of their peers.
std::string Coordinator::SentBy(const Post& post, uint32_t comm) {
  std::map<int32_t, std::string_view> sent;
  for (const OpRecord& send : post.records) {
    if (send.op != Op::kSend || send.comm != comm || (send.flags & wire::kOpPayload) == 0) continue;
    sent[send.peer] = {reinterpret_cast<const char*>(post.client->arena.at(send.in_offset)),
                       send.in_bytes};
  }
  std::string bytes;
  for (const auto& [peer, part] : sent) bytes += part;
  return bytes;
}

// Receives get what they got in the job that is played, else what the same group sends to that
// peer, where it is as large.
void Coordinator::MirrorMessages(Post& post) {
  std::map<uint32_t, std::string> sent;  // by communicator
  const auto sent_on = [&](uint32_t comm) -> const std::string& {
    const auto [at, is_new] = sent.try_emplace(comm);
    if (is_new) at->second = SentBy(post, comm);
    return at->second;
  };
  for (size_t index = 0; index < post.records.size(); ++index) {
    const OpRecord& receive = post.records[index];
    if (receive.op != Op::kRecv || (receive.flags & wire::kOpPayload) == 0) continue;
    const auto [member, call] = post.places[index];
    const std::string_view received =
        static_cast<uint32_t>(receive.peer) == member  // what it sends itself now
            ? std::string_view()
            : peers_->Received(comms_.at(receive.comm)->played, member, receive, call - 1, {},
                               sent_on(receive.comm));
    if (!received.empty() && received.size() == receive.out_bytes) {
      std::memcpy(post.client->arena.at(receive.out_offset), received.data(), received.size());
      continue;
    }
    for (const OpRecord& send : post.records) {
      if (send.op != Op::kSend || (send.flags & wire::kOpPayload) == 0 ||
          send.comm != receive.comm || send.peer != receive.peer ||
          send.in_bytes != receive.out_bytes) {
        continue;
      }
      std::memcpy(post.client->arena.at(receive.out_offset), post.client->arena.at(send.in_offset),
                  receive.out_bytes);
      break;
    }
  }
}

int64_t Coordinator::NextReleaseNs() const {
  const int64_t release_ns = releases_.empty() ? INT64_MAX : releases_.begin()->first;
  // On a clock that stands while this process works, peers come no further than the real ranks.
  return clock_ == nullptr || peers_ == nullptr ? release_ns
                                                : std::min(release_ns, peers_->NextNs());
}

void Coordinator::ReleaseDue(int64_t now_ns) {
  if (clock_ != nullptr && peers_ != nullptr) PlayPeers();
  const int64_t played_ns = PlayedNs(now_ns);
  while (!releases_.empty() && releases_.begin()->first <= played_ns) {
    const Post& post = *releases_.begin()->second;
    const Arena& arena = post.client->arena;
    arena.StoreAndWake(post.release_word, post.release_value);
    if (clock_ != nullptr) clock_->Ring(arena.Load(wire::kClockNumberWord));
    released_ns_[post.client->rank] = last_activity_ns_ = now_ns;
    releases_.erase(releases_.begin());
  }
}

// ---- Judging
// -------------------------------------------------------------------------------------------------------

void Coordinator::JudgeMismatches(int64_t now_ns, bool at_once) {
  for (const auto& [number, call] : disagreements_) {
    if (diagnosis_) return;
    const Communicator& comm = *comms_.at(number);
    const Slot& slot = comm.slots.at(call);
    // Waiting for the rest shows who is the odd one; two members are all there is.
    if (at_once || slot.called == comm.members.size() ||
        now_ns - slot.disagreed_ns >= rules_.mismatch_grace_ns) {
      Fail(DiagnoseMismatch(WaitOf(comm, call, slot)));
    }
  }
}

Wait Coordinator::WaitOf(const Communicator& comm, uint64_t call, const Slot& slot) const {
  Wait wait;
  wait.kind = Wait::Kind::kCollective;
  wait.comm = comm.number;
  wait.comm_ranks = comm.WorldRanks();
  wait.call = call;
  wait.since_ns = INT64_MAX;
  std::set<std::string> names;
  for (uint32_t member = 0; member < comm.members.size(); ++member) {
    Wait::Member party;
    party.rank = comm.members[member].world_rank;
    if (const OpRef& ref = slot.members[member]) {
      party.called = true;
      party.waiting = ref.due();
      party.expectation = Expectation(ref.record());
      party.call_site = SiteOf(comm.members[member].client, ref.record().call_site);
      names.insert(OpName(ref.record().op));
      if (ref.due()) wait.since_ns = std::min(wait.since_ns, ref.post->due_ns);
    }
    wait.members.push_back(std::move(party));
  }
  wait.name = fmt::format("{} #{} of communicator {}", names.size() == 1 ? *names.begin() : "call",
                          call, comm.number);
  return wait;
}

Wait Coordinator::WaitOf(const Communicator& comm, uint32_t source, uint32_t destination,
                         uint64_t call, const Transfer& transfer) const {
  Wait wait;
  wait.kind = Wait::Kind::kPointToPoint;
  wait.comm = comm.number;
  wait.comm_ranks = comm.WorldRanks();
  wait.call = call;
  wait.since_ns = INT64_MAX;
  wait.name = fmt::format("Send #{} from rank {} to rank {} on communicator {}", call,
                          comm.members[source].world_rank, comm.members[destination].world_rank,
                          comm.number);
  for (const auto& [member, ref] :
       {std::pair{source, &transfer.send}, std::pair{destination, &transfer.receive}}) {
    Wait::Member party;
    party.rank = comm.members[member].world_rank;
    if (*ref) {
      party.called = true;
      party.waiting = ref->due();
      party.expectation = Expectation(ref->record());
      party.call_site = SiteOf(comm.members[member].client, ref->record().call_site);
      if (ref->due()) wait.since_ns = std::min(wait.since_ns, ref->post->due_ns);
    }
    wait.members.push_back(std::move(party));
  }
  return wait;
}

std::vector<Wait> Coordinator::Waits() const {
  std::vector<Wait> waits;
  const auto add = [&](Wait wait) {
    if (std::any_of(wait.members.begin(), wait.members.end(),
                    [](const auto& m) { return m.waiting; })) {
      waits.push_back(std::move(wait));
    }
  };
  for (const auto& [number, comm] : comms_) {
    for (const auto& [call, slot] : comm->slots) {
      if (std::any_of(slot.members.begin(), slot.members.end(),
                      [](const OpRef& ref) { return ref.due(); })) {
        waits.push_back(WaitOf(*comm, call, slot));
      }
    }
    for (const auto& [pair, transfers] : comm->transfers) {
      for (const auto& [call, transfer] : transfers)
        add(WaitOf(*comm, pair.first, pair.second, call, transfer));
    }
    for (const auto& [index, split] : comm->splits) {
      Wait wait;
      wait.kind = Wait::Kind::kCommunicator;
      wait.comm = comm->number;
      wait.comm_ranks = comm->WorldRanks();
      wait.call = index + 1;
      wait.since_ns = INT64_MAX;
      wait.name =
          fmt::format("{} #{} of communicator {}",
                      split.shrink ? "ncclCommShrink" : "ncclCommSplit", index + 1, comm->number);
      for (uint32_t member = 0; member < split.members.size(); ++member) {
        if (split.excluded.count(member) != 0) continue;
        const Joiner& joiner = split.members[member];
        if (joiner.present) wait.since_ns = std::min(wait.since_ns, joiner.since_ns);
        wait.members.push_back({comm->members[member].world_rank, joiner.present, joiner.present,
                                fmt::format("colour {}, key {}", joiner.color, joiner.key),
                                joiner.present ? SiteOf(joiner.client, joiner.call_site) : ""});
      }
      waits.push_back(std::move(wait));
    }
  }
  std::set<uint32_t> waiting = WaitingIn(waits);
  for (const auto& [id, pending] : pending_comms_) {
    for (const Joiner& joiner : pending->members) {
      if (joiner.present) waiting.insert(joiner.world_rank);
    }
  }
  for (const auto& [id, pending] : pending_comms_) {
    const auto size = static_cast<uint32_t>(pending->members.size());
    Wait wait;
    wait.kind = Wait::Kind::kCommunicator;
    wait.since_ns = INT64_MAX;
    std::vector<uint32_t> absent;
    for (uint32_t member = 0; member < size; ++member) {
      const Joiner& joiner = pending->members[member];
      if (!joiner.present) {
        absent.push_back(member);
        continue;
      }
      wait.members.push_back({joiner.world_rank, true, true,
                              fmt::format("making a communicator of {}", size),
                              SiteOf(joiner.client, joiner.call_site)});
    }
    // Which process would have been an absent member is known only where members are ranks; else it
    // is one of those that wait in nothing.
    for (uint32_t rank = 0; rank < rules_.world; ++rank) {
      const bool is_absent = std::binary_search(absent.begin(), absent.end(), rank);
      if (size == rules_.world ? is_absent : waiting.count(rank) == 0)
        wait.members.push_back({rank, false, false, "", ""});
    }
    wait.absent = absent.size();
    wait.name = fmt::format("ncclCommInitRank of {} ranks ({} {} not come)", size,
                            size == rules_.world ? Ranks(absent) : "members " + RankList(absent),
                            absent.size() == 1 ? "has" : "have");
    waits.push_back(std::move(wait));
  }
  return waits;
}

std::vector<RankState> Coordinator::RankStates() const {
  std::vector<RankState> states;
  for (uint32_t rank = 0; rank < rules_.world; ++rank) {
    const auto found = ranks_.find(rank);
    if (found != ranks_.end()) {
      states.push_back(found->second);
    } else {
      states.emplace_back();
      states.back().rank = rank;
    }
    if (const auto idle = idle_.find(rank); idle != idle_.end()) {
      states.back().idle_ns = idle->second.idle_ns;
      states.back().sleeps = idle->second.timed_sleep;
      states.back().where = idle->second.where;
    }
  }
  return states;
}

void Coordinator::OnDisconnect(ClientId id, int64_t now_ns) {
  const auto found = clients_.find(id);
  if (found == clients_.end() || found->second->gone) return;
  Client& client = *found->second;
  client.gone = true;
  // Its stream may have reached what it called in its last moments.
  OnBells(now_ns);
  RankState& state = ranks_[client.rank];
  state.life = RankState::Life::kGone;
  gone_ns_.try_emplace(client.rank, now_ns);
}

void Coordinator::ExpectWorld(uint32_t world) { rules_.world = world; }

void Coordinator::OnRankStarted(uint32_t rank, int pid) {
  pids_[rank] = pid;
  RankState& state = ranks_[rank];
  state.rank = rank;
  if (state.life == RankState::Life::kNotStarted) state.life = RankState::Life::kStarted;
}

void Coordinator::OnRankEnded(uint32_t rank, const ProcessEnd& end, int64_t now_ns) {
  RankState& state = ranks_[rank];
  state.rank = rank;
  state.life = RankState::Life::kGone;
  state.end = end;
  gone_ns_.try_emplace(rank, now_ns);
}

void Coordinator::Release(uint32_t rank) {
  for (auto& [id, client] : clients_) {
    if (client->rank == rank) client->gone = true;
  }
  for (auto trace = traces_.begin(); trace != traces_.end();) {
    if (trace->second != rank) {
      ++trace;
      continue;
    }
    unlink(trace->first.c_str());
    trace = traces_.erase(trace);
  }
  ranks_.erase(rank);
  pids_.erase(rank);
  gone_ns_.erase(rank);
  incarnations_.erase(rank);
  ledgers_.erase(rank);
}

void Coordinator::Tick(int64_t now_ns, const std::map<uint32_t, Idleness>& idle) {
  if (diagnosis_) return;
  if (NextReleaseNs() != INT64_MAX) return;  // something goes on by itself
  idle_ = idle;
  JudgeMismatches(now_ns, false);
  if (diagnosis_) return;
  const std::vector<Wait> waits = Waits();

  // The first end with a failure is the cause; others may follow from it.
  const RankState* first_failed = nullptr;
  for (const auto& [rank, since_ns] : gone_ns_) {
    const RankState& state = ranks_.at(rank);
    if (!state.end.failed()) continue;
    if (first_failed == nullptr || since_ns < gone_ns_.at(first_failed->rank))
      first_failed = &state;
  }
  if (first_failed != nullptr) {
    // Who needs it may still be on the way to the call that shows it.
    const bool needed = std::any_of(waits.begin(), waits.end(), [&](const Wait& wait) {
      return Awaits(wait, first_failed->rank);
    });
    const bool others_live = std::any_of(ranks_.begin(), ranks_.end(), [](const auto& rank) {
      return rank.second.life == RankState::Life::kConnected;
    });
    const int64_t grace_ns = needed || !others_live
                                 ? rules_.end_grace_ns
                                 : std::max(rules_.end_grace_ns, rules_.exit_grace_ns);
    if (now_ns - gone_ns_.at(first_failed->rank) < grace_ns) return;
    JudgeMismatches(now_ns, true);
    if (!diagnosis_) Fail(DiagnoseEnd(*first_failed, waits));
    return;
  }
  for (const auto& gone : gone_ns_) {
    const uint32_t rank = gone.first;
    if (now_ns - gone.second < rules_.exit_grace_ns) continue;
    for (const Wait& wait : waits) {
      // A communicator of part of the job: the gone rank is only one of those who might have come.
      if (!Awaits(wait, rank) || !MustCome(wait, wait.absent)) continue;
      Fail(DiagnoseEnd(ranks_.at(rank), waits));
      return;
    }
  }

  const std::set<uint32_t> waiting = WaitingIn(waits);
  bool any_lives = false;
  for (const auto& [rank, state] : ranks_) {
    if (state.life == RankState::Life::kGone) continue;
    any_lives = true;
    const auto found = idle.find(rank);
    if (found == idle.end()) return;
    Idleness idleness = found->second;
    const bool waits_here = waiting.count(rank) != 0;
    // Who has slept in a communication that has just ended is about to go on.
    const auto released = released_ns_.find(rank);
    if (!waits_here && released != released_ns_.end())
      idleness.idle_ns = std::min(idleness.idle_ns, now_ns - released->second);
    if (!IsBlocked(idleness, waits_here, !waits.empty())) return;
  }
  if (!any_lives) return;
  Fail(waits.empty() ? DiagnoseIdle(RankStates()) : DiagnoseBlocked(waits, RankStates()));
}

// Where nobody waits in a communication, the only sign of a deadlock is that nothing can wake the
// ranks: less is taken for one.
bool Coordinator::IsBlocked(const Idleness& idleness, bool waits, bool any_waits) const {
  if (waits) return idleness.idle_ns >= rules_.blocked_ns;
  return rules_.patience_ns != 0 && idleness.idle_ns >= rules_.patience_ns &&
         !idleness.timed_sleep && (any_waits || !idleness.outside);
}

void Coordinator::Fail(Diagnosis diagnosis) {
  if (diagnosis_) return;
  diagnosis_ = std::move(diagnosis);
  auto abort = Begin<wire::Abort>(Message::kAbort, 0);
  abort.nccl_result = diagnosis_->kind == "mismatch" || diagnosis_->kind == "communicator"
                          ? kNcclInvalidUsage
                          : kNcclRemoteError;
  CopyText(abort.reason, diagnosis_->Text());
  for (const auto& [id, client] : clients_) {
    if (!client->gone) outbox_->Send(id, &abort.header);
  }
}

std::set<uint32_t> Coordinator::WaitingRanks() const { return WaitingIn(Waits()); }

std::string Coordinator::Status(int64_t now_ns) const {
  std::vector<Wait> waits = Waits();
  waits.erase(
      std::remove_if(waits.begin(), waits.end(),
                     [&](const Wait& wait) { return now_ns - wait.since_ns < rules_.status_ns; }),
      waits.end());
  if (!waits.empty()) return StatusLine(waits, RankStates());
  for (const auto& [rank, state] : ranks_) {
    if (state.life == RankState::Life::kGone) continue;
    const auto idle = idle_.find(rank);
    if (idle == idle_.end() || idle->second.idle_ns < rules_.status_ns) return "";
  }
  return IdleLine(RankStates());
}

std::map<uint32_t, int> Coordinator::Processes() const {
  std::map<uint32_t, int> processes;
  for (const auto& [rank, pid] : pids_) {
    const auto state = ranks_.find(rank);
    if (state == ranks_.end() || state->second.life != RankState::Life::kGone)
      processes[rank] = pid;
  }
  return processes;
}

const Arena* Coordinator::ArenaOf(ClientId id) const {
  const auto found = clients_.find(id);
  return found == clients_.end() ? nullptr : &found->second->arena;
}

nlohmann::ordered_json Coordinator::Matching() const {
  nlohmann::ordered_json json;
  json["schema"] = "prism.matching";
  json["schema_version"] = 1;
  json["world"] = rules_.world;
  json["operations"] = operations_;
  json["communicators"] = nlohmann::ordered_json::array();
  for (const auto& [number, comm] : comms_) {
    nlohmann::ordered_json entry;
    entry["number"] = number;
    entry["origin"] = comm->origin;
    if (comm->parent != 0) entry["parent"] = comm->parent;
    entry["ranks"] = comm->WorldRanks();
    std::vector<uint32_t> devices;
    for (const Joiner& member : comm->members) devices.push_back(member.device);
    entry["devices"] = devices;
    entry["call_site"] = SiteOf(comm->members[0].client, comm->members[0].call_site);
    entry["collectives"] = *std::min_element(comm->calls.begin(), comm->calls.end());
    entry["operations"] = nlohmann::ordered_json::object();
    for (const auto& [op, totals] : comm->totals) {
      entry["operations"][OpName(op)] = {{"calls", totals.calls},
                                         {"bytes", totals.bytes},
                                         {"moved_bytes", totals.moved_bytes},
                                         {"skipped_calls", totals.skipped_calls}};
    }
    json["communicators"].push_back(std::move(entry));
  }
  json["ledgers"] = nlohmann::ordered_json::array();
  for (const auto& [rank, ledger] : ledgers_) {
    json["ledgers"].push_back({{"rank", rank},
                               {"device", ledger.device},
                               {"allocated_bytes", ledger.allocated_bytes},
                               {"peak_bytes", ledger.peak_bytes},
                               {"failed_bytes", ledger.failed_bytes},
                               {"allocations", ledger.allocations}});
  }
  return json;
}

}  // namespace prism::coordinator
