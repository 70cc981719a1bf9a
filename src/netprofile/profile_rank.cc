#include "src/netprofile/profile_rank.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"
#include "src/base/log.h"
#include "src/engine/communication_cost.h"
#include "src/graph/program.h"
#include "src/netprofile/leaves.h"
#include "src/netprofile/libraries.h"

namespace prism::netprofile {
namespace {

using engine::NetworkEntry;
using engine::NetworkProfile;
using trace::CommOp;
using Json = nlohmann::ordered_json;

constexpr uint32_t kWarmUpCalls = 4;
// A sample of calls in a row need not be longer than this.
constexpr double kSampleMs = 50;
// Of the memory that is free, what the buffers may take. NCCL's own come on top.
constexpr double kMemoryShare = 0.8;
constexpr uint64_t kBufferAlignment = 512;
// Messages that tell which GPUs share a NIC: so long that latencies do not matter.
constexpr uint64_t kLinkBytes = uint64_t{64} << 20;
constexpr uint32_t kLinkSamples = 3;
constexpr double kSharedNicRatio = 1.5;
// Messages that leave a leaf at once share its way where they take so much longer than one.
constexpr double kNarrowLeafRatio = 1.1;

template <class T>
std::string Pack(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

template <class T>
std::vector<T> Unpack(const std::string& text) {
  std::vector<T> values(text.size() / sizeof(T));
  std::memcpy(values.data(), text.data(), values.size() * sizeof(T));
  return values;
}

// Whether the data flows one way, so that some ranks may end before others have come.
bool FlowsOneWay(CommOp op) {
  return op == CommOp::kBroadcast || op == CommOp::kReduce || op == CommOp::kSend;
}

struct Group {
  std::vector<uint32_t> members;  // world ranks, ascending
  uint32_t nodes = 1;
  uint32_t rails = 0, leaves = 0;  // as in NetworkEntry
  ncclComm_t comm = nullptr;       // of members
  bool is_member = false;
};

// One operation and type on one group, with its sizes.
struct Batch {
  CommOp op;
  uint32_t type;  // ncclDataType_t
  Group* group;
  std::vector<uint64_t> counts;
};

uint64_t SendBytes(CommOp op, uint64_t bytes, uint64_t ranks) {
  return op == CommOp::kReduceScatter || op == CommOp::kAllToAll ? bytes * ranks : bytes;
}
uint64_t ReceiveBytes(CommOp op, uint64_t bytes, uint64_t ranks) {
  return op == CommOp::kAllGather || op == CommOp::kAllToAll ? bytes * ranks : bytes;
}

double Quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  const double at = q * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(at);
  const size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (values[above] - values[below]) * (at - static_cast<double>(below));
}

// What NVML alone tells; null where it does not.
struct NvmlFacts {
  Json driver;  // NVIDIA's name of the version
  Json nvlink;  // whether the GPU has an active link
};

NvmlFacts AskNvml(const std::string& path, const std::string& bus_id) {
  constexpr unsigned kMaxLinks = 18, kVersionBytes = 80;
  NvmlFacts facts;
  void* library = path.empty() ? nullptr : dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) return facts;
  const auto init = reinterpret_cast<int (*)()>(dlsym(library, "nvmlInit_v2"));
  const auto shutdown = reinterpret_cast<int (*)()>(dlsym(library, "nvmlShutdown"));
  const auto version =
      reinterpret_cast<int (*)(char*, unsigned)>(dlsym(library, "nvmlSystemGetDriverVersion"));
  const auto handle = reinterpret_cast<int (*)(const char*, void**)>(
      dlsym(library, "nvmlDeviceGetHandleByPciBusId_v2"));
  const auto link_state = reinterpret_cast<int (*)(void*, unsigned, unsigned*)>(
      dlsym(library, "nvmlDeviceGetNvLinkState"));
  if (init != nullptr && shutdown != nullptr && init() == 0) {
    char text[kVersionBytes] = {};
    if (version != nullptr && version(text, sizeof text) == 0) facts.driver = text;
    void* device = nullptr;
    if (handle != nullptr && link_state != nullptr && handle(bus_id.c_str(), &device) == 0) {
      for (unsigned link = 0, active = 0; link < kMaxLinks; ++link) {
        if (link_state(device, link, &active) != 0) break;
        facts.nvlink = active != 0 || facts.nvlink == true;
      }
    }
    shutdown();
  }
  dlclose(library);
  return facts;
}

// What tells machines apart. Variables by which one machine plays several count, too.
std::string NodeKey() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  std::string key = name.data();
  for (const char* variable : {"NCCL_HOSTID", "GROUP_RANK", "SLURM_NODEID"}) {
    const char* value = std::getenv(variable);
    key += std::string("/") + (value == nullptr ? "" : value);
  }
  return key;
}

// As its launcher numbers it; "": it does not.
std::string NumberOfNode() {
  for (const char* variable : {"GROUP_RANK", "SLURM_NODEID"}) {
    if (const char* value = std::getenv(variable); value != nullptr) return value;
  }
  return "";
}

class Profiler {
 public:
  explicit Profiler(const RankOptions& options) : o_(options), plan_(options.plan) {}
  absl::StatusOr<std::optional<NetworkProfile>> Run();

 private:
  uint32_t rank() const { return o_.rendezvous.rank; }
  uint32_t world() const { return o_.rendezvous.world; }

  absl::Status OpenDevice();
  absl::Status MakeCommunicator();
  absl::Status MakeGroups();
  /// As many as there are.
  std::vector<uint32_t> MembersOf(const GroupShape& shape) const;
  /// Says where the members are.
  void PlaceOnNodes(Group* group) const;
  /// Who has nothing to measure waits here and not in Control: to a virtual clock a socket may be
  /// answered by anybody, which is looked at in wall time.
  absl::Status WaitForAll();
  absl::Status MeasureNics();
  /// Which nodes are nearer to each other than others, and how much leads away from them.
  absl::Status MeasureLeaves();
  absl::Status MeasureReceive();
  /// Milliseconds of messages that begin at the same time, [from, to]: [pair][sample].
  absl::StatusOr<std::vector<std::vector<double>>> Messages(
      const std::vector<std::pair<uint32_t, uint32_t>>& pairs, uint64_t bytes, uint32_t samples);
  /// The longest of them in its quickest sample.
  absl::StatusOr<double> Together(const std::vector<std::pair<uint32_t, uint32_t>>& pairs,
                                  uint64_t bytes = kLinkBytes);
  absl::Status AddGroup(const GroupShape& shape);
  absl::Status PlanBatches();
  absl::Status Measure(const Batch& batch);
  absl::Status Barrier(const Batch& batch);
  absl::Status Call(const Batch& batch, uint64_t count);
  /// Holds the stream until *gate_ is gate_value_.
  absl::Status Hold();
  /// Whether times are a GPU's, or stated ones; of hostcuda's on its free clock they mean nothing.
  bool HasTimes() const { return o_.device != "host" || cuda_.Now != nullptr; }
  /// The host's time.
  double HostNs() const;
  absl::Status MeasureSync();
  /// Milliseconds of `calls` calls behind a barrier.
  absl::StatusOr<double> Sample(const Batch& batch, uint64_t count, uint32_t calls);
  /// Makes entries of what all have measured: [repeat][size], nanoseconds a call.
  absl::Status Conclude(const Batch& batch, bool isolated, const std::vector<double>& mine);

  absl::Status Cuda(CUresult result, const char* what) const { return cuda_.Check(result, what); }
  absl::Status Nccl(ncclResult_t result, const char* what) const {
    return cuda_.Check(result, what);
  }

  const RankOptions& o_;
  const Plan& plan_;
  Libraries cuda_{};
  CUdevice device_ = 0;
  CUstream stream_ = nullptr;
  CUevent begin_ = nullptr, end_ = nullptr;
  volatile uint32_t* gate_ = nullptr;  // the stream is held until it has this value
  CUdeviceptr gate_address_ = 0;
  uint32_t gate_value_ = 0;
  CUdeviceptr send_ = 0, receive_ = 0;
  uint64_t receive_bytes_ = 0;
  std::unique_ptr<Control> control_;
  std::vector<uint32_t> node_of_, local_;  // of each rank: its node, its number there
  std::vector<uint32_t> node_number_;      // of each node, as the launcher numbers them
  CUdeviceptr link_buffer_ = 0;
  engine::NetworkLinks links_;
  uint32_t nodes_ = 1;
  ncclComm_t comm_ = nullptr;
  std::vector<std::unique_ptr<Group>> groups_;  // the first is the world
  std::vector<std::unique_ptr<Group>> pairs_;   // of ranks 0 and another
  std::vector<Batch> batches_;
  NetworkProfile profile_;  // on rank 0
  std::vector<double> drift_;
  std::vector<double> call_ns_;
  std::vector<std::string> left_out_;
};

absl::Status Profiler::OpenDevice() {
  PRISM_ASSIGN_OR_RETURN(cuda_, Libraries::Open(o_.driver, o_.nccl));
  PRISM_RETURN_IF_ERROR(Cuda(cuda_.Init(0), "cuInit"));
  int count = 0;
  PRISM_RETURN_IF_ERROR(Cuda(cuda_.DeviceGetCount(&count), "cuDeviceGetCount"));
  const auto devices = static_cast<uint32_t>(std::max(count, 0));
  if (o_.local_world > devices || (o_.local_rank.has_value() && *o_.local_rank >= devices)) {
    const uint32_t wanted = std::max(o_.local_world, o_.local_rank.value_or(0) + 1);
    return WithHint(
        absl::FailedPreconditionError(
            fmt::format("{} ranks on this machine need as many GPUs; it has {}", wanted, devices)),
        devices < 2 ? "netprofile needs two GPUs or more; --device host shows how it works without"
                    : fmt::format("--ranks {}; CUDA_VISIBLE_DEVICES may hide some", devices));
  }
  if (!o_.local_rank.has_value() && devices > 1) {
    return WithHint(absl::FailedPreconditionError(fmt::format(
                        "rank {} does not know which of {} GPUs is its own", rank(), devices)),
                    "set LOCAL_RANK, as torchrun does");
  }
  PRISM_RETURN_IF_ERROR(
      Cuda(cuda_.DeviceGet(&device_, static_cast<int>(o_.local_rank.value_or(0))), "cuDeviceGet"));
  CUcontext context = nullptr;
  PRISM_RETURN_IF_ERROR(
      Cuda(cuda_.PrimaryCtxRetain(&context, device_), "cuDevicePrimaryCtxRetain"));
  PRISM_RETURN_IF_ERROR(Cuda(cuda_.CtxSetCurrent(context), "cuCtxSetCurrent"));
  PRISM_RETURN_IF_ERROR(
      Cuda(cuda_.StreamCreate(&stream_, CU_STREAM_NON_BLOCKING), "cuStreamCreate"));
  for (CUevent* event : {&begin_, &end_})
    PRISM_RETURN_IF_ERROR(Cuda(cuda_.EventCreate(event, CU_EVENT_DEFAULT), "cuEventCreate"));
  void* gate = nullptr;
  PRISM_RETURN_IF_ERROR(Cuda(cuda_.MemHostAlloc(&gate, sizeof(uint32_t), CU_MEMHOSTALLOC_DEVICEMAP),
                             "cuMemHostAlloc"));
  gate_ = static_cast<volatile uint32_t*>(gate);
  *gate_ = 0;
  return Cuda(cuda_.MemHostGetDevicePointer(&gate_address_, gate, 0), "cuMemHostGetDevicePointer");
}

absl::Status Profiler::MakeCommunicator() {
  PRISM_ASSIGN_OR_RETURN(control_, Control::Join(o_.rendezvous));
  PRISM_ASSIGN_OR_RETURN(const std::vector<std::string> keys, control_->Exchange(NodeKey()));
  std::map<std::string, uint32_t> numbers;
  for (const std::string& key : keys)
    node_of_.push_back(
        numbers.try_emplace(key, static_cast<uint32_t>(numbers.size())).first->second);
  nodes_ = static_cast<uint32_t>(numbers.size());
  PRISM_ASSIGN_OR_RETURN(const std::vector<std::string> launched,
                         control_->Exchange(NumberOfNode()));
  for (uint32_t r = 0; r < world(); ++r) {
    if (node_of_[r] < node_number_.size()) continue;
    uint32_t number = node_of_[r];
    if (!launched[r].empty() && !absl::SimpleAtoi(launched[r], &number)) number = node_of_[r];
    node_number_.push_back(number);
  }
  links_.nodes = node_number_;

  ncclUniqueId id{};
  if (rank() == 0) PRISM_RETURN_IF_ERROR(Nccl(cuda_.GetUniqueId(&id), "ncclGetUniqueId"));
  PRISM_ASSIGN_OR_RETURN(const std::string text,
                         control_->Broadcast(std::string(id.internal, sizeof id.internal)));
  std::memcpy(id.internal, text.data(), std::min(text.size(), sizeof id.internal));
  return Nccl(cuda_.CommInitRank(&comm_, static_cast<int>(world()), id, static_cast<int>(rank())),
              "ncclCommInitRank");
}

std::vector<uint32_t> Profiler::MembersOf(const GroupShape& shape) const {
  std::vector<uint32_t> members;
  if (shape.nodes == 0) {
    for (uint32_t r = 0; r < std::min(shape.ranks_per_node, world()); ++r) members.push_back(r);
    return members;
  }
  for (uint32_t r = 0; r < world(); ++r) {
    if (node_of_[r] >= shape.nodes || local_[r] % shape.stride != 0) continue;
    if (local_[r] / shape.stride < shape.ranks_per_node) members.push_back(r);
  }
  return members;
}

void Profiler::PlaceOnNodes(Group* group) const {
  std::set<uint32_t> nodes, rails, leaves;
  for (const uint32_t r : group->members) {
    nodes.insert(node_of_[r]);
    leaves.insert(links_.LeafOf(node_number_[node_of_[r]]));
    if (local_[r] < links_.nic_of_gpu.size()) rails.insert(links_.nic_of_gpu[local_[r]]);
  }
  group->nodes = static_cast<uint32_t>(nodes.size());
  if (nodes.size() > 1) {
    group->rails = static_cast<uint32_t>(rails.size());
    group->leaves = static_cast<uint32_t>(leaves.size());
  }
  group->is_member =
      std::find(group->members.begin(), group->members.end(), rank()) != group->members.end();
}

absl::Status Profiler::AddGroup(const GroupShape& shape) {
  auto group = std::make_unique<Group>();
  group->members = MembersOf(shape);
  if (group->members.size() != std::max(shape.nodes, 1u) * shape.ranks_per_node) {
    const std::string text = fmt::format("{}x{}{}", shape.nodes, shape.ranks_per_node,
                                         shape.stride > 1 ? fmt::format("/{}", shape.stride) : "");
    return WithHint(
        absl::InvalidArgumentError(
            shape.nodes == 0
                ? fmt::format("--groups {}: there are {} ranks", shape.ranks_per_node, world())
                : fmt::format("--groups {}: there are {} ranks on {} node{}", text, world(), nodes_,
                              nodes_ == 1 ? "" : "s")),
        "a group is made of the ranks that there are");
  }
  PlaceOnNodes(group.get());
  // What the profile cannot tell apart is measured once.
  for (const auto& other : groups_) {
    if (other->members.size() == group->members.size() && other->nodes == group->nodes &&
        other->rails == group->rails && other->leaves == group->leaves) {
      return absl::OkStatus();
    }
  }
  if (group->members.size() == world()) {
    group->comm = comm_;
  } else {
    PRISM_RETURN_IF_ERROR(Nccl(cuda_.CommSplit(comm_, group->is_member ? 0 : NCCL_SPLIT_NOCOLOR,
                                               static_cast<int>(rank()), &group->comm, nullptr),
                               "ncclCommSplit"));
  }
  groups_.push_back(std::move(group));
  return absl::OkStatus();
}

absl::Status Profiler::MakeGroups() {
  PRISM_RETURN_IF_ERROR(AddGroup({0, world()}));
  for (const GroupShape& shape : plan_.groups) PRISM_RETURN_IF_ERROR(AddGroup(shape));
  // On rank 0's node; on another, at the same NIC; there at another NIC; the same on another leaf.
  std::set<std::tuple<uint32_t, uint32_t, uint32_t>> seen;
  for (uint32_t peer = 1; peer < world(); ++peer) {
    auto pair = std::make_unique<Group>();
    pair->members = {0, peer};
    pair->comm = comm_;
    PlaceOnNodes(pair.get());
    if (seen.insert({pair->nodes, pair->rails, pair->leaves}).second)
      pairs_.push_back(std::move(pair));
  }
  return absl::OkStatus();
}

absl::Status Profiler::WaitForAll() {
  PRISM_RETURN_IF_ERROR(
      Nccl(cuda_.AllReduce(reinterpret_cast<const void*>(link_buffer_),
                           reinterpret_cast<void*>(link_buffer_), 1, ncclFloat32, ncclSum, comm_,
                           reinterpret_cast<cudaStream_t>(stream_)),
           "ncclAllReduce"));
  return Cuda(cuda_.StreamSynchronize(stream_), "cuStreamSynchronize");
}

absl::StatusOr<std::vector<std::vector<double>>> Profiler::Messages(
    const std::vector<std::pair<uint32_t, uint32_t>>& pairs, uint64_t bytes, uint32_t samples) {
  const void* send = reinterpret_cast<const void*>(link_buffer_);
  void* receive = reinterpret_cast<void*>(link_buffer_);
  const auto stream = reinterpret_cast<cudaStream_t>(stream_);
  std::vector<double> mine;
  for (uint32_t i = 0; i <= samples; ++i) {
    if (i > 0) PRISM_RETURN_IF_ERROR(Hold());  // the first connects
    const absl::Status status = [&] {
      PRISM_RETURN_IF_ERROR(Nccl(
          cuda_.AllReduce(send, receive, 1, ncclFloat32, ncclSum, comm_, stream), "ncclAllReduce"));
      PRISM_RETURN_IF_ERROR(Cuda(cuda_.EventRecord(begin_, stream_), "cuEventRecord"));
      for (const auto& [from, to] : pairs) {
        if (rank() == from) {
          PRISM_RETURN_IF_ERROR(Nccl(
              cuda_.Send(send, bytes, ncclInt8, static_cast<int>(to), comm_, stream), "ncclSend"));
        } else if (rank() == to) {
          PRISM_RETURN_IF_ERROR(
              Nccl(cuda_.Recv(receive, bytes, ncclInt8, static_cast<int>(from), comm_, stream),
                   "ncclRecv"));
        }
      }
      return Cuda(cuda_.EventRecord(end_, stream_), "cuEventRecord");
    }();
    *gate_ = gate_value_;
    PRISM_RETURN_IF_ERROR(status);
    PRISM_RETURN_IF_ERROR(Cuda(cuda_.StreamSynchronize(stream_), "cuStreamSynchronize"));
    float ms = 0;
    PRISM_RETURN_IF_ERROR(Cuda(cuda_.EventElapsedTime(&ms, begin_, end_), "cuEventElapsedTime"));
    if (i > 0) mine.push_back(double{ms});
  }
  PRISM_ASSIGN_OR_RETURN(const std::vector<std::string> all, control_->Exchange(Pack(mine)));
  std::vector<std::vector<double>> times;
  for (const auto& [from, to] : pairs) {
    times.push_back(Unpack<double>(all.at(from)));
    const std::vector<double> received = Unpack<double>(all.at(to));
    for (size_t i = 0; i < received.size(); ++i)
      times.back().at(i) = std::max(times.back().at(i), received[i]);
  }
  return times;
}

absl::StatusOr<double> Profiler::Together(const std::vector<std::pair<uint32_t, uint32_t>>& pairs,
                                          uint64_t bytes) {
  PRISM_ASSIGN_OR_RETURN(const auto times, Messages(pairs, bytes, kLinkSamples));
  double longest = 0;
  for (const std::vector<double>& of_pair : times)
    longest = std::max(longest, *std::min_element(of_pair.begin(), of_pair.end()));
  return longest;
}

// Two GPUs share a NIC where messages of both to another node take much longer than of one.
absl::Status Profiler::MeasureNics() {
  for (uint32_t r = 0; r < world(); ++r) {
    local_.push_back(static_cast<uint32_t>(std::count(
        node_of_.begin(), node_of_.begin() + static_cast<std::ptrdiff_t>(r), node_of_[r])));
  }
  PRISM_RETURN_IF_ERROR(Cuda(cuda_.MemAlloc(&link_buffer_, kLinkBytes), "cuMemAlloc"));
  std::vector<std::pair<uint32_t, uint32_t>> pairs;  // of each GPU of the first node
  const bool several = nodes_ > 1 && HasTimes();
  for (uint32_t r = 0; r < world() && several; ++r) {
    if (node_of_[r] == 0) pairs.emplace_back(r, UINT32_MAX);
  }
  for (uint32_t r = 0; r < world() && several; ++r) {
    if (node_of_[r] == 1 && local_[r] < pairs.size()) pairs[local_[r]].second = r;
  }
  while (!pairs.empty() && pairs.back().second == UINT32_MAX) pairs.pop_back();
  std::vector<size_t> first;  // GPU of each NIC
  for (size_t gpu = 0; gpu < pairs.size(); ++gpu) {
    PRISM_ASSIGN_OR_RETURN(const double alone_ms, Together({pairs[gpu]}));
    uint32_t nic = 0;
    for (; nic < first.size(); ++nic) {
      PRISM_ASSIGN_OR_RETURN(const double together_ms, Together({pairs[first[nic]], pairs[gpu]}));
      if (together_ms > kSharedNicRatio * alone_ms) break;
    }
    if (nic == first.size()) first.push_back(gpu);
    links_.nic_of_gpu.push_back(nic);
  }
  return absl::OkStatus();
}

absl::Status Profiler::MeasureLeaves() {
  constexpr uint32_t kFewest = 3;  // nodes: one pair alone is neither near nor far
  if (nodes_ < kFewest || !HasTimes()) return absl::OkStatus();
  std::vector<uint32_t> first(nodes_, UINT32_MAX);  // rank of each node
  for (uint32_t r = world(); r-- > 0;) first[node_of_[r]] = r;
  // Every node sends to every other: all at the same time, in rounds in which each has one partner.
  std::vector<NodeDistance> distances;
  const uint32_t seats = nodes_ + nodes_ % 2;
  for (uint32_t round = 0; round + 1 < seats; ++round) {
    std::vector<std::pair<uint32_t, uint32_t>> nodes, ranks;
    for (uint32_t i = 0; i < seats / 2; ++i) {
      const uint32_t a = i == 0 ? seats - 1 : (round + i) % (seats - 1);
      const uint32_t b = (round + seats - 1 - i) % (seats - 1);
      if (std::max(a, b) >= nodes_) continue;
      nodes.emplace_back(std::min(a, b), std::max(a, b));
      ranks.emplace_back(first[nodes.back().first], first[nodes.back().second]);
    }
    const uint32_t samples = plan_.repeats == 1 ? 1 : 2 * plan_.repeats;
    PRISM_ASSIGN_OR_RETURN(const auto times, Messages(ranks, 1, samples));
    for (size_t i = 0; i < nodes.size(); ++i)
      distances.push_back(
          {node_number_[nodes[i].first], node_number_[nodes[i].second], Quantile(times[i], 0.5)});
  }
  links_.nodes_per_leaf = NodesPerLeaf(distances);
  // From as many nodes of a leaf as have partners on another, together and alone.
  std::map<uint32_t, std::vector<uint32_t>> leaves;
  for (uint32_t node = 0; node < nodes_; ++node)
    leaves[links_.LeafOf(node_number_[node])].push_back(first[node]);
  std::vector<std::vector<uint32_t>> largest;
  for (auto& [leaf, ranks] : leaves) largest.push_back(std::move(ranks));
  std::stable_sort(largest.begin(), largest.end(),
                   [](const auto& x, const auto& y) { return x.size() > y.size(); });
  if (largest.size() < 2 || largest[1].size() < 2) return absl::OkStatus();
  std::vector<std::pair<uint32_t, uint32_t>> away;
  for (size_t i = 0; i < largest[1].size(); ++i) away.emplace_back(largest[0][i], largest[1][i]);
  // What the last half of the bytes takes: latencies are in the first.
  const auto half_ms = [&](const auto& messages) -> absl::StatusOr<double> {
    PRISM_ASSIGN_OR_RETURN(const double whole_ms, Together(messages));
    PRISM_ASSIGN_OR_RETURN(const double first_ms, Together(messages, kLinkBytes / 2));
    return whole_ms - first_ms;
  };
  PRISM_ASSIGN_OR_RETURN(const double alone_ms, half_ms(std::vector{away[0]}));
  PRISM_ASSIGN_OR_RETURN(const double together_ms, half_ms(away));
  if (together_ms > kNarrowLeafRatio * alone_ms)
    links_.leaf_share = together_ms / alone_ms / static_cast<double>(away.size());
  return absl::OkStatus();
}

// The message has come long before its receive begins: the receiver's stream does something else
// first.
absl::Status Profiler::MeasureReceive() {
  constexpr int kBusy = 64;
  constexpr uint64_t kBusyBytes = 64 << 10;
  const uint32_t peer = pairs_.front()->members[1];
  const auto stream = reinterpret_cast<cudaStream_t>(stream_);
  std::vector<double> samples;
  for (int i = -static_cast<int>(kWarmUpCalls); i < static_cast<int>(plan_.repeats); ++i) {
    if (rank() == 0) {
      PRISM_RETURN_IF_ERROR(Nccl(cuda_.Send(reinterpret_cast<const void*>(link_buffer_), 1,
                                            ncclInt8, static_cast<int>(peer), comm_, stream),
                                 "ncclSend"));
      PRISM_RETURN_IF_ERROR(Cuda(cuda_.StreamSynchronize(stream_), "cuStreamSynchronize"));
    } else if (rank() == peer) {
      if (i >= 0) PRISM_RETURN_IF_ERROR(Hold());  // the first connect
      for (int k = 0; k < kBusy; ++k) {
        PRISM_RETURN_IF_ERROR(
            Cuda(cuda_.MemsetD8Async(link_buffer_, 0, kBusyBytes, stream_), "cuMemsetD8Async"));
      }
      PRISM_RETURN_IF_ERROR(Cuda(cuda_.EventRecord(begin_, stream_), "cuEventRecord"));
      PRISM_RETURN_IF_ERROR(
          Nccl(cuda_.Recv(reinterpret_cast<void*>(link_buffer_), 1, ncclInt8, 0, comm_, stream),
               "ncclRecv"));
      PRISM_RETURN_IF_ERROR(Cuda(cuda_.EventRecord(end_, stream_), "cuEventRecord"));
      *gate_ = gate_value_;
      PRISM_RETURN_IF_ERROR(Cuda(cuda_.StreamSynchronize(stream_), "cuStreamSynchronize"));
      float ms = 0;
      PRISM_RETURN_IF_ERROR(Cuda(cuda_.EventElapsedTime(&ms, begin_, end_), "cuEventElapsedTime"));
      if (i >= 0) samples.push_back(double{ms} * 1e6);
    }
  }
  PRISM_RETURN_IF_ERROR(WaitForAll());
  PRISM_ASSIGN_OR_RETURN(const std::vector<std::string> all, control_->Exchange(Pack(samples)));
  links_.receive_ns = Quantile(Unpack<double>(all.at(peer)), 0.5);
  return absl::OkStatus();
}

// Which sizes of what are measured, by the memory that all have, and the buffers for them.
absl::Status Profiler::PlanBatches() {
  size_t free_bytes = 0, total_bytes = 0;
  PRISM_RETURN_IF_ERROR(Cuda(cuda_.MemGetInfo(&free_bytes, &total_bytes), "cuMemGetInfo"));
  PRISM_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                         control_->Exchange(Pack<uint64_t>({free_bytes})));
  uint64_t least = UINT64_MAX;
  for (const std::string& text : all) least = std::min(least, Unpack<uint64_t>(text).at(0));
  const auto buffer_limit = static_cast<uint64_t>(kMemoryShare / 2 * static_cast<double>(least));

  uint64_t send = kBufferAlignment, receive = kBufferAlignment;
  const std::vector<uint64_t> sizes = plan_.Sizes();
  for (const CommOp op : plan_.operations) {
    for (const auto& group : op == CommOp::kSend ? pairs_ : groups_) {
      const std::vector<uint32_t> types =
          engine::IsReduction(op) ? plan_.types : std::vector<uint32_t>{ncclInt8};
      for (const uint32_t type : types) {
        Batch batch{op, type, group.get(), {}};
        const uint64_t element = engine::ElementBytes(type), ranks = group->members.size();
        for (const uint64_t size : sizes) {
          const uint64_t count = size / element, bytes = count * element;
          if (count == 0 || (!batch.counts.empty() && batch.counts.back() == count)) continue;
          const uint64_t to = SendBytes(op, bytes, ranks), from = ReceiveBytes(op, bytes, ranks);
          if (std::max(to, from) > buffer_limit) {
            left_out_.push_back(fmt::format(
                "{} of {} ranks from {} bytes: buffers of {} bytes do not fit beside each other in "
                "{} free bytes",
                graph::CommOpName(op), ranks, bytes, std::max(to, from), least));
            break;
          }
          send = std::max(send, to);
          receive = std::max(receive, from);
          batch.counts.push_back(count);
        }
        if (!batch.counts.empty()) batches_.push_back(std::move(batch));
      }
    }
  }
  if (batches_.empty()) {
    return WithHint(absl::ResourceExhaustedError(fmt::format(
                        "there is nothing to measure: {} bytes are free on the GPUs", least)),
                    "choose smaller sizes, other operations, or end what has the memory");
  }
  PRISM_RETURN_IF_ERROR(Cuda(cuda_.MemAlloc(&send_, send), "cuMemAlloc of the send buffer"));
  receive_bytes_ = receive;
  return Cuda(cuda_.MemAlloc(&receive_, receive), "cuMemAlloc of the receive buffer");
}

absl::Status Profiler::Call(const Batch& batch, uint64_t count) {
  const void* send = reinterpret_cast<const void*>(send_);
  void* receive = reinterpret_cast<void*>(receive_);
  const auto type = static_cast<ncclDataType_t>(batch.type);
  const ncclComm_t comm = batch.group->comm;
  const auto stream = reinterpret_cast<cudaStream_t>(stream_);
  switch (batch.op) {
    case CommOp::kAllReduce:
      return Nccl(cuda_.AllReduce(send, receive, count, type, ncclSum, comm, stream),
                  "ncclAllReduce");
    case CommOp::kReduce:
      return Nccl(cuda_.Reduce(send, receive, count, type, ncclSum, 0, comm, stream), "ncclReduce");
    case CommOp::kBroadcast:
      return Nccl(cuda_.Broadcast(send, receive, count, type, 0, comm, stream), "ncclBroadcast");
    case CommOp::kAllGather:
      return Nccl(cuda_.AllGather(send, receive, count, type, comm, stream), "ncclAllGather");
    case CommOp::kReduceScatter:
      return Nccl(cuda_.ReduceScatter(send, receive, count, type, ncclSum, comm, stream),
                  "ncclReduceScatter");
    case CommOp::kAllToAll: {
      const uint64_t bytes = count * engine::ElementBytes(batch.type);
      PRISM_RETURN_IF_ERROR(Nccl(cuda_.GroupStart(), "ncclGroupStart"));
      for (uint64_t peer = 0; peer < batch.group->members.size(); ++peer) {
        PRISM_RETURN_IF_ERROR(Nccl(cuda_.Send(reinterpret_cast<const void*>(send_ + peer * bytes),
                                              count, type, static_cast<int>(peer), comm, stream),
                                   "ncclSend"));
        PRISM_RETURN_IF_ERROR(Nccl(cuda_.Recv(reinterpret_cast<void*>(receive_ + peer * bytes),
                                              count, type, static_cast<int>(peer), comm, stream),
                                   "ncclRecv"));
      }
      return Nccl(cuda_.GroupEnd(), "ncclGroupEnd");
    }
    case CommOp::kSend: {
      const bool sends = rank() == batch.group->members[0];
      const int peer = static_cast<int>(batch.group->members[sends ? 1 : 0]);
      return sends ? Nccl(cuda_.Send(send, count, type, peer, comm, stream), "ncclSend")
                   : Nccl(cuda_.Recv(receive, count, type, peer, comm, stream), "ncclRecv");
    }
    default:
      return absl::InternalError("an operation that is not measured");
  }
}

absl::Status Profiler::Barrier(const Batch& batch) {
  const void* send = reinterpret_cast<const void*>(send_);
  void* receive = reinterpret_cast<void*>(receive_);
  const auto stream = reinterpret_cast<cudaStream_t>(stream_);
  if (batch.op != CommOp::kSend) {
    return Nccl(cuda_.AllReduce(send, receive, 1, ncclFloat32, ncclSum, batch.group->comm, stream),
                "ncclAllReduce");
  }
  const int peer =
      static_cast<int>(batch.group->members[rank() == batch.group->members[0] ? 1 : 0]);
  PRISM_RETURN_IF_ERROR(Nccl(cuda_.GroupStart(), "ncclGroupStart"));
  PRISM_RETURN_IF_ERROR(
      Nccl(cuda_.Send(send, 1, ncclInt8, peer, batch.group->comm, stream), "ncclSend"));
  PRISM_RETURN_IF_ERROR(
      Nccl(cuda_.Recv(receive, 1, ncclInt8, peer, batch.group->comm, stream), "ncclRecv"));
  return Nccl(cuda_.GroupEnd(), "ncclGroupEnd");
}

double Profiler::HostNs() const {
  if (cuda_.Now != nullptr) return static_cast<double>(cuda_.Now());
  return std::chrono::duration<double, std::nano>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

absl::Status Profiler::Hold() {
  return Cuda(
      cuda_.StreamWaitValue32(stream_, gate_address_, ++gate_value_, CU_STREAM_WAIT_VALUE_EQ),
      "cuStreamWaitValue32");
}

absl::StatusOr<double> Profiler::Sample(const Batch& batch, uint64_t count, uint32_t calls) {
  PRISM_RETURN_IF_ERROR(Hold());
  absl::Status status = [&] {
    PRISM_RETURN_IF_ERROR(Barrier(batch));
    PRISM_RETURN_IF_ERROR(Cuda(cuda_.EventRecord(begin_, stream_), "cuEventRecord"));
    for (uint32_t i = 0; i < calls; ++i) {
      const double before_ns = HostNs();
      PRISM_RETURN_IF_ERROR(Call(batch, count));
      call_ns_.push_back(HostNs() - before_ns);
    }
    return Cuda(cuda_.EventRecord(end_, stream_), "cuEventRecord");
  }();
  *gate_ = gate_value_;
  PRISM_RETURN_IF_ERROR(status);
  PRISM_RETURN_IF_ERROR(Cuda(cuda_.StreamSynchronize(stream_), "cuStreamSynchronize"));
  float milliseconds = 0;
  PRISM_RETURN_IF_ERROR(
      Cuda(cuda_.EventElapsedTime(&milliseconds, begin_, end_), "cuEventElapsedTime"));
  return static_cast<double>(milliseconds);
}

// From the end of a call that enqueues to the return of the one that waits for it, less what the
// work itself takes: how long a start on an idle stream takes, and a host's waking up.
absl::Status Profiler::MeasureSync() {
  // On a GPU the events' own few microseconds are as much as what they would tell.
  if (cuda_.Now == nullptr) return absl::OkStatus();
  constexpr int kWarmUp = 4, kSamples = 20;
  // Of work that takes long, what it takes now and then by chance would be most of the difference.
  const auto work = [&] {
    return Cuda(cuda_.MemsetD8Async(receive_, 0, std::min<uint64_t>(receive_bytes_, 1), stream_),
                "cuMemsetD8Async");
  };
  std::vector<double> took_ns, work_ns;
  for (int i = -kWarmUp; i < kSamples; ++i) {
    PRISM_RETURN_IF_ERROR(Cuda(cuda_.StreamSynchronize(stream_), "cuStreamSynchronize"));
    PRISM_RETURN_IF_ERROR(work());
    const double enqueued_ns = HostNs();
    PRISM_RETURN_IF_ERROR(Cuda(cuda_.StreamSynchronize(stream_), "cuStreamSynchronize"));
    if (i >= 0) took_ns.push_back(HostNs() - enqueued_ns);
    // All enqueued before it begins: the calls' time is not the work's.
    PRISM_RETURN_IF_ERROR(Hold());
    const absl::Status enqueued = [&] {
      PRISM_RETURN_IF_ERROR(Cuda(cuda_.EventRecord(begin_, stream_), "cuEventRecord"));
      PRISM_RETURN_IF_ERROR(work());
      return Cuda(cuda_.EventRecord(end_, stream_), "cuEventRecord");
    }();
    *gate_ = gate_value_;
    PRISM_RETURN_IF_ERROR(enqueued);
    PRISM_RETURN_IF_ERROR(Cuda(cuda_.StreamSynchronize(stream_), "cuStreamSynchronize"));
    float milliseconds = 0;
    PRISM_RETURN_IF_ERROR(
        Cuda(cuda_.EventElapsedTime(&milliseconds, begin_, end_), "cuEventElapsedTime"));
    if (i >= 0) work_ns.push_back(double{milliseconds} * 1e6);
  }
  profile_.settings["sync_ns"] = std::max(0.0, Quantile(took_ns, 0.5) - Quantile(work_ns, 0.5));
  return absl::OkStatus();
}

absl::Status Profiler::Measure(const Batch& batch) {
  const size_t sizes = batch.counts.size();
  const bool member = batch.group->is_member;
  // First calls connect and load kernels, which a held stream would wait for: without the gate. The
  // second ones tell how many calls make a sample.
  std::vector<double> expected_ms(sizes, 0);
  for (size_t i = 0; i < sizes && member; ++i) {
    PRISM_RETURN_IF_ERROR(Barrier(batch));
    for (uint32_t call = 0; call < kWarmUpCalls; ++call)
      PRISM_RETURN_IF_ERROR(Call(batch, batch.counts[i]));
    PRISM_RETURN_IF_ERROR(Cuda(cuda_.StreamSynchronize(stream_), "cuStreamSynchronize"));
    PRISM_ASSIGN_OR_RETURN(expected_ms[i], Sample(batch, batch.counts[i], 1));
  }
  PRISM_RETURN_IF_ERROR(WaitForAll());
  PRISM_ASSIGN_OR_RETURN(const std::vector<std::string> expected,
                         control_->Exchange(Pack(expected_ms)));
  std::vector<uint32_t> calls(sizes, plan_.iterations);
  for (const std::string& text : expected) {
    const auto of_rank = Unpack<double>(text);
    for (size_t i = 0; i < sizes; ++i) {
      if (of_rank.at(i) <= 0) continue;
      calls[i] = std::min(calls[i],
                          static_cast<uint32_t>(std::clamp(kSampleMs / of_rank[i], 1.0,
                                                           static_cast<double>(plan_.iterations))));
    }
  }
  // [repeat][size], nanoseconds a call. Each repeat goes through all sizes, every other one
  // downwards, so that a drift of the machine is in all of them alike.
  std::vector<double> in_a_row(plan_.repeats * sizes, 0), isolated(plan_.repeats * sizes, 0);
  for (uint32_t repeat = 0; repeat < plan_.repeats && member; ++repeat) {
    for (size_t k = 0; k < sizes; ++k) {
      const size_t i = repeat % 2 == 0 ? k : sizes - 1 - k;
      PRISM_ASSIGN_OR_RETURN(const double one, Sample(batch, batch.counts[i], 1));
      PRISM_ASSIGN_OR_RETURN(const double many, Sample(batch, batch.counts[i], calls[i]));
      isolated[repeat * sizes + i] = one * 1e6;
      in_a_row[repeat * sizes + i] = many * 1e6 / calls[i];
    }
  }
  PRISM_RETURN_IF_ERROR(WaitForAll());
  if (plan_.iterations == 1) {
    // A row of one call is one by itself: as many samples more, in the order of time.
    std::vector<double> all;
    for (size_t at = 0; at < isolated.size(); at += sizes) {
      for (const std::vector<double>* of : {&isolated, &in_a_row}) {
        const auto begin = of->begin() + static_cast<std::ptrdiff_t>(at);
        all.insert(all.end(), begin, begin + static_cast<std::ptrdiff_t>(sizes));
      }
    }
    return Conclude(batch, true, all);
  }
  PRISM_RETURN_IF_ERROR(Conclude(batch, true, isolated));
  return Conclude(batch, false, in_a_row);
}

absl::Status Profiler::Conclude(const Batch& batch, bool isolated,
                                const std::vector<double>& mine) {
  PRISM_ASSIGN_OR_RETURN(const std::vector<std::string> all, control_->Gather(Pack(mine)));
  if (rank() != 0) return absl::OkStatus();
  const size_t sizes = batch.counts.size();
  std::vector<std::vector<double>> of_member;
  for (const uint32_t member : batch.group->members)
    of_member.push_back(Unpack<double>(all.at(member)));
  for (size_t i = 0; i < sizes; ++i) {
    std::vector<double> samples;
    for (size_t repeat = 0; repeat < of_member[0].size() / sizes; ++repeat) {
      double ns = of_member[0].at(repeat * sizes + i);
      for (const std::vector<double>& times : of_member) {
        const double theirs = times.at(repeat * sizes + i);
        ns = FlowsOneWay(batch.op) ? std::max(ns, theirs) : std::min(ns, theirs);
      }
      samples.push_back(ns);
    }
    const bool last = !isolated || plan_.iterations == 1;
    if (const auto half = static_cast<std::ptrdiff_t>(samples.size() / 2); half > 0 && last) {
      drift_.push_back(Quantile({samples.end() - half, samples.end()}, 0.5) /
                       Quantile({samples.begin(), samples.begin() + half}, 0.5));
    }
    NetworkEntry entry;
    entry.op = batch.op;
    if (engine::IsReduction(batch.op)) entry.type = batch.type;
    entry.ranks = static_cast<uint32_t>(batch.group->members.size());
    entry.nodes = batch.group->nodes;
    entry.rails = batch.group->rails;
    entry.leaves = batch.group->leaves;
    entry.bytes = batch.counts[i] * engine::ElementBytes(batch.type);
    entry.isolated = isolated;
    entry.median_ns = Quantile(samples, 0.5);
    entry.p10_ns = Quantile(samples, 0.1);
    entry.p90_ns = Quantile(samples, 0.9);
    entry.samples = samples.size();
    if (entry.p10_ns <= 0) {
      return WithHint(absl::FailedPreconditionError(
                          fmt::format("{} of {} bytes took no time by the GPU's events",
                                      graph::CommOpName(batch.op), entry.bytes)),
                      "a clock on which communication costs nothing has nothing to measure");
    }
    profile_.entries.push_back(entry);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<NetworkProfile>> Profiler::Run() {
  PRISM_RETURN_IF_ERROR(OpenDevice());
  PRISM_RETURN_IF_ERROR(MakeCommunicator());
  PRISM_RETURN_IF_ERROR(MeasureNics());
  PRISM_RETURN_IF_ERROR(MeasureLeaves());
  PRISM_RETURN_IF_ERROR(MakeGroups());
  PRISM_RETURN_IF_ERROR(PlanBatches());
  for (size_t i = 0; i < batches_.size(); ++i) {
    const Batch& b = batches_[i];
    if (rank() == 0) {
      spdlog::info("{} of {}: {}{}{}, {} ranks, {} sizes", i + 1, batches_.size(),
                   graph::CommOpName(b.op), engine::IsReduction(b.op) ? " " : "",
                   engine::IsReduction(b.op) ? engine::TypeName(b.type) : "",
                   b.group->members.size(), b.counts.size());
    }
    PRISM_RETURN_IF_ERROR(Measure(b));
  }
  if (HasTimes()) PRISM_RETURN_IF_ERROR(MeasureReceive());
  if (rank() == 0) PRISM_RETURN_IF_ERROR(MeasureSync());
  // Nobody leaves while another one still counts on it.
  PRISM_RETURN_IF_ERROR(control_->Exchange("").status());
  for (const auto& group : groups_) {
    if (group->comm != nullptr && group->comm != comm_)
      PRISM_RETURN_IF_ERROR(Nccl(cuda_.CommDestroy(group->comm), "ncclCommDestroy"));
  }
  PRISM_RETURN_IF_ERROR(Nccl(cuda_.CommDestroy(comm_), "ncclCommDestroy"));
  if (rank() != 0) return std::nullopt;

  std::array<char, 128> name{}, bus_id{};
  PRISM_RETURN_IF_ERROR(Cuda(
      cuda_.DeviceGetName(name.data(), static_cast<int>(name.size()), device_), "cuDeviceGetName"));
  PRISM_RETURN_IF_ERROR(
      Cuda(cuda_.DeviceGetPCIBusId(bus_id.data(), static_cast<int>(bus_id.size()), device_),
           "cuDeviceGetPCIBusId"));
  int driver = 0, nccl = 0;
  PRISM_RETURN_IF_ERROR(Cuda(cuda_.DriverGetVersion(&driver), "cuDriverGetVersion"));
  PRISM_RETURN_IF_ERROR(Nccl(cuda_.GetVersion(&nccl), "ncclGetVersion"));
  std::vector<uint32_t> ranks_per_node(nodes_, 0);
  for (const uint32_t node : node_of_) ++ranks_per_node[node];
  const NvmlFacts facts = AskNvml(o_.nvml, bus_id.data());
  profile_.machine["gpu"] = name.data();
  profile_.machine["device"] = o_.device;
  profile_.machine["driver"] = facts.driver;
  profile_.machine["cuda"] = fmt::format("{}.{}", driver / 1000, driver % 1000 / 10);
  profile_.machine["nccl"] = fmt::format("{}.{}.{}", nccl / 10000, nccl % 10000 / 100, nccl % 100);
  profile_.machine["ranks"] = world();
  profile_.machine["ranks_per_node"] = ranks_per_node;
  profile_.machine["nvlink"] = facts.nvlink;
  if (HasTimes()) profile_.links = links_;
  Json& settings = profile_.settings;
  settings["source"] = "prism netprofile";
  settings["sizes"] = fmt::format("{}:{}:{}", plan_.least_bytes, plan_.most_bytes, plan_.factor);
  settings["iterations"] = plan_.iterations;
  settings["repeats"] = plan_.repeats;
  settings["warm_up"] = kWarmUpCalls + 1;
  settings["all_to_all"] = "grouped send/recv";  // as programs do it
  Json environment = Json::object();
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (text.rfind("NCCL_", 0) == 0)
      environment[text.substr(0, text.find('='))] = text.substr(text.find('=') + 1);
  }
  settings["nccl_environment"] = environment;
  settings["left_out"] = left_out_;
  settings["call_ns"] = Quantile(call_ns_, 0.5);
  if (!drift_.empty()) {
    settings["drift"] = {{"what", "median of the second half of the repeats over the first's"},
                         {"p10", Quantile(drift_, 0.1)},
                         {"median", Quantile(drift_, 0.5)},
                         {"p90", Quantile(drift_, 0.9)}};
  }
  return std::move(profile_);
}

}  // namespace

absl::StatusOr<std::optional<NetworkProfile>> ProfileAsRank(const RankOptions& options) {
  return Profiler(options).Run();
}

}  // namespace prism::netprofile
