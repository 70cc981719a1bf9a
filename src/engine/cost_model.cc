#include "src/engine/cost_model.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "src/engine/communication_cost.h"

namespace prism::engine {
namespace {

using graph::Kernel;
using graph::Program;
using trace::CommOp;
using trace::KernelKind;

constexpr double kTile = 128;
constexpr double kSplitDepth = 1024;  // libraries split sums at about this length to fill the GPU
// Attention kernels do not reach what plain products do.
constexpr double kAttentionRatio = 0.75;

std::vector<std::string_view> Tokens(std::string_view name) {
  std::vector<std::string_view> tokens;
  while (!name.empty()) {
    const size_t end = name.find('_');
    tokens.push_back(name.substr(0, end));
    name.remove_prefix(end == std::string_view::npos ? name.size() : end + 1);
  }
  return tokens;
}

// The integer of token `key`<digits>, or `otherwise`.
double Value(const std::vector<std::string_view>& tokens, std::string_view key, double otherwise) {
  for (std::string_view token : tokens) {
    if (!token.starts_with(key)) continue;
    const std::string_view digits = token.substr(key.size());
    uint64_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (!digits.empty() && error == std::errc() && end == digits.data() + digits.size()) {
      return static_cast<double>(value);
    }
  }
  return otherwise;
}

// The product of token `key`<a>x<b>x...
double Extents(const std::vector<std::string_view>& tokens, std::string_view key) {
  for (std::string_view token : tokens) {
    if (!token.starts_with(key)) continue;
    std::string_view rest = token.substr(key.size());
    double product = 1;
    bool good = !rest.empty();
    while (good && !rest.empty()) {
      uint64_t value = 0;
      const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), value);
      good = error == std::errc();
      product *= static_cast<double>(value);
      rest.remove_prefix(static_cast<size_t>(end - rest.data()));
      if (!rest.empty() && rest[0] == 'x') {
        rest.remove_prefix(1);
      } else {
        good = good && rest.empty();
      }
    }
    if (good) return product;
  }
  return 0;
}

double TypeBytes(std::string_view type) {
  static const std::map<std::string_view, double> kBytes = {
      {"f64", 8}, {"f32", 4}, {"tf32", 4}, {"f16", 2},   {"bf16", 2}, {"i8", 1},   {"u8", 1},
      {"i32", 4}, {"i64", 8}, {"c64", 8},  {"c128", 16}, {"e4m3", 1}, {"e5m2", 1}, {"e2m1", 0.5}};
  const auto it = kBytes.find(type);
  return it == kBytes.end() ? 0 : it->second;
}

// Which of the GPU's rates a product runs at: inputs may be rounded to less than their type.
std::string_view RateType(std::string_view input, std::string_view accumulate) {
  if (accumulate == "tf32") return "tf32";
  if (accumulate == "f32by16bf") return "bf16";
  if (accumulate == "f32by16f") return "f16";
  if (const size_t x = input.find('x'); x != std::string_view::npos) return input.substr(0, x);
  return input;
}

KernelWork Product(double m, double n, double k, double batch, std::string_view input,
                   std::string_view output, std::string_view accumulate) {
  std::string_view a = input, b = input;
  if (const size_t x = input.find('x'); x != std::string_view::npos && TypeBytes(input) == 0) {
    a = input.substr(0, x);
    b = input.substr(x + 1);
  }
  return {2 * m * n * k * batch,
          (m * k * TypeBytes(a) + k * n * TypeBytes(b) + m * n * TypeBytes(output)) * batch,
          RateType(input, accumulate), std::ceil(m / kTile) * std::ceil(n / kTile) * batch, k};
}

// PyTorch's own flash attention: shapes are in its template arguments and its grid.
std::optional<KernelWork> FlashAttention(const Kernel& kernel) {
  const std::string_view name = kernel.name;
  const bool forward = name.find("flash_fwd_kernel") != std::string_view::npos;
  const bool backward = name.find("flash_bwd_dq_dk_dv") != std::string_view::npos;
  const size_t traits = name.find("kernel_traitsILi");
  if ((!forward && !backward) || traits == std::string_view::npos) return std::nullopt;
  std::string_view rest = name.substr(traits + std::string_view("kernel_traitsILi").size());
  uint64_t numbers[3] = {0, 0, 0};  // head size, rows, columns of a block
  for (uint64_t& number : numbers) {
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), number);
    if (error != std::errc()) return std::nullopt;
    rest.remove_prefix(static_cast<size_t>(end - rest.data()));
    if (rest.starts_with("ELi")) rest.remove_prefix(3);
  }
  const double head = static_cast<double>(numbers[0]);
  const double length = kernel.grid[0] * static_cast<double>(forward ? numbers[1] : numbers[2]);
  const double batch_heads = static_cast<double>(kernel.grid[1]) * kernel.grid[2];
  return KernelWork{(forward ? 4 : 10) * batch_heads * length * length * head,
                    8 * batch_heads * length * head, "bf16", 0, 0};
}

}  // namespace

std::optional<KernelWork> ParseKernelWork(const Kernel& kernel) {
  const std::vector<std::string_view> t = Tokens(kernel.name);
  if (t.size() < 3) return FlashAttention(kernel);
  const double m = Value(t, "m", 0), n = Value(t, "n", 0), k = Value(t, "k", 0),
               batch = Value(t, "b", 1);
  if ((t[0] == "hostcublas" && t[1] == "gemm") || (t[0] == "hostcublasLt" && t[1] == "matmul")) {
    if (t.size() < 6 || m == 0 || n == 0 || TypeBytes(t[3]) == 0) return std::nullopt;
    return Product(m, n, k, batch, t[2], t[3], t[4]);
  }
  if (t[0] == "hostcudnn" && t[1] == "matmul" && t.size() >= 5 && m > 0 && n > 0) {
    return Product(m, n, k, batch, t[2], t[3], "f32");
  }
  if (t[0] == "hostcublas" && t[1] == "gemmgrouped") {
    return KernelWork{Value(t, "flops", 0), Value(t, "bytes", 0),
                      RateType(t[2], t.size() > 4 ? t[4] : ""), 0, 0};
  }
  if (t[0] == "hostcublasLt" && t[1] == "transform" && t.size() > 3) {
    return KernelWork{0, m * n * batch * (TypeBytes(t[2]) + TypeBytes(t[3])), t[2], 0, 0};
  }
  if (t[0] == "hostcudnn" && t[1].starts_with("conv") && t.size() > 4) {
    const double c = Value(t, "c", 1), groups = std::max(Value(t, "g", 1), 1.0),
                 size = TypeBytes(t[2]);
    const double in = Extents(t, "in"), kernel_size = Extents(t, "ker"), out = Extents(t, "out");
    if (out == 0 || kernel_size == 0) return std::nullopt;
    return KernelWork{2 * n * k * (c / groups) * kernel_size * out,
                      (n * c * in + k * (c / groups) * kernel_size + n * k * out) * size,
                      RateType(t[2], t[3]), std::ceil(n * out / kTile) * std::ceil(k / kTile),
                      (c / groups) * kernel_size};
  }
  if (t[0] == "hostcudnn" && t[1].starts_with("sdpa")) {
    const double h = Value(t, "h", 1), sq = Value(t, "sq", 0), skv = Value(t, "skv", 0),
                 d = Value(t, "d", 0);
    const double dv = Value(t, "dv", d), size = TypeBytes(t[2]);
    if (sq == 0 || skv == 0) return std::nullopt;
    const bool backward = t[1] == "sdpabwd";
    return KernelWork{
        (backward ? 2.5 : 1) * 2 * batch * h * sq * skv * (d + dv),
        (backward ? 2 : 1) * batch * h * size * (sq * d + skv * d + skv * dv + sq * dv), t[2], 0,
        0};
  }
  if (t[0] == "hostcudnn" && t[1].starts_with("norm")) {
    return KernelWork{0, (t[1] == "normbwd" ? 3 : 2) * Extents(t, "x") * TypeBytes(t[2]), t[2], 0,
                      0};
  }
  return FlashAttention(kernel);
}

namespace {

// Bytes that a thread of PyTorch's elementwise kernels moves, by the number of operands and the
// element type that the mangled name carries; 0: no such kernel.
double ElementwiseBytesPerThread(std::string_view name) {
  const bool vectorized = name.find("vectorized_elementwise_kernel") != std::string_view::npos;
  if (!vectorized && name.find("elementwise_kernel") == std::string_view::npos) return 0;
  double operands = 2;
  if (const size_t array = name.find("arrayIPcLm"); array != std::string_view::npos) {
    const char digit = name[std::min(array + 10, name.size() - 1)];
    if (digit >= '1' && digit <= '9') operands = digit - '0';
  }
  double size = 4;
  if (name.find("BFloat16") != std::string_view::npos ||
      name.find("Half") != std::string_view::npos)
    size = 2;
  if (name.find("Float8") != std::string_view::npos) size = 1;
  const double elements = vectorized ? 8 : 4;
  return operands * size * elements;
}

}  // namespace

KernelTime CostModel::TimeOf(const Kernel& kernel) const {
  const Gpu& gpu = target_.gpu;
  const double memory = gpu.memory_bandwidth * gpu.memory_efficiency;
  const auto at_least = [](double ns, int64_t floor) {
    return std::max(std::llround(ns), static_cast<long long>(floor));
  };
  if (kernel.kind == KernelKind::kCopy) {
    const auto bytes = static_cast<double>(kernel.bytes);
    const double bandwidth = kernel.name == "DtoD"   ? memory / 2
                             : kernel.name == "PtoP" ? gpu.p2p_bandwidth
                                                     : gpu.host_link_bandwidth;
    return {gpu.copy_floor_ns + std::llround(bytes / bandwidth * 1e9), TimeSource::kModelled};
  }
  if (kernel.kind == KernelKind::kSet) {
    return {at_least(static_cast<double>(kernel.bytes) / memory * 1e9, gpu.kernel_floor_ns),
            TimeSource::kModelled};
  }
  if (const std::optional<KernelWork> work = ParseKernelWork(kernel)) {
    auto rate = gpu.flops.find(std::string(work->type));
    if (rate == gpu.flops.end()) rate = gpu.flops.find("f32");
    double efficiency = gpu.gemm_efficiency;
    if (work->tiles > 0) {
      // Output tiles fill the GPU in waves; few of them are split along the sum.
      const double sm = gpu.multiprocessors;
      double tiles = work->tiles;
      if (tiles < sm)
        tiles *= std::clamp(std::floor(work->depth / kSplitDepth), 1.0, std::floor(sm / tiles));
      efficiency *= tiles / (std::ceil(tiles / sm) * sm);
    } else {
      efficiency *= kAttentionRatio;
    }
    const double seconds =
        std::max(work->flops / (rate->second * efficiency), work->bytes / memory);
    return {at_least(seconds * 1e9, gpu.kernel_floor_ns), TimeSource::kModelled};
  }
  double threads = 1;
  for (uint32_t extent : kernel.grid) threads *= std::max(extent, 1u);
  for (uint32_t extent : kernel.block) threads *= std::max(extent, 1u);
  double bytes = ElementwiseBytesPerThread(kernel.name);
  if (bytes == 0) bytes = gpu.assumed_bytes_per_thread;
  return {at_least(threads * bytes / memory * 1e9, gpu.kernel_floor_ns), TimeSource::kAssumed};
}

std::vector<CostModel::Messages> CostModel::MessagesOf(const graph::Graph& graph,
                                                       const graph::Rank& rank) const {
  const Program& program = graph.program_of(rank);
  std::vector<Messages> of_call(program.calls.size());
  std::vector<bool> known(program.calls.size(), false);
  // Whoever is in a group with a call is taken from the first group that contains it.
  for (const graph::Sequence& sequence : program.sequences) {
    if (sequence.kind != trace::SequenceKind::kStream) continue;
    for (size_t i = 0; i < sequence.ops.size(); ++i) {
      const graph::Op& first = sequence.ops[i];
      if (first.kind != graph::OpKind::kComm || first.detail == 0) continue;
      const auto group = sequence.ops.begin() + static_cast<std::ptrdiff_t>(i);
      // A message to itself is often the same call in every group.
      if (std::all_of(group, group + first.detail,
                      [&](const graph::Op& op) { return known[op.a]; }))
        continue;
      Messages total[2];              // sends, receives
      std::vector<int32_t> peers[2];  // of messages that leave the rank
      bool one_communicator = true;
      const uint32_t participant = program.calls[first.a].participant;
      for (size_t j = i; j < i + first.detail; ++j) {
        const uint32_t call = sequence.ops[j].a;
        const graph::Call& c = program.calls[call];
        one_communicator = one_communicator && c.participant == participant;
        if (rank.channel[call] == graph::kNone) {
          one_communicator = false;  // a collective
          continue;
        }
        const int32_t peer = rank.peer[call];
        // What stays on the GPU crosses no link.
        if (peer == static_cast<int32_t>(rank.comm_rank[c.participant])) continue;
        const size_t side = c.op == CommOp::kSend ? 0 : 1;
        const uint32_t peer_rank =
            graph.communicators[rank.comm[c.participant]].world_ranks[static_cast<size_t>(peer)];
        const bool far =
            peer_rank != graph::kNone && target_.node_of(peer_rank) != target_.node_of(rank.rank);
        (far ? total[side].far_bytes : total[side].near_bytes) += c.count * ElementBytes(c.dtype);
        peers[side].push_back(peer);
      }
      const size_t others = program.participants[participant].size - 1;
      for (size_t side : {0, 1}) {
        std::sort(peers[side].begin(), peers[side].end());
        one_communicator =
            one_communicator && peers[side].size() == others &&
            std::adjacent_find(peers[side].begin(), peers[side].end()) == peers[side].end();
      }
      for (Messages& side : total) side.with_every_peer = one_communicator && others > 0;
      for (size_t j = i; j < i + first.detail; ++j) {
        const uint32_t call = sequence.ops[j].a;
        if (known[call]) continue;
        known[call] = true;
        of_call[call] = total[program.calls[call].op == CommOp::kSend ? 0 : 1];
      }
    }
  }
  return of_call;
}

NetworkTime CostModel::CollectiveTime(const graph::Call& call, const Placement& at,
                                      const LinkModel::Speed& speed) const {
  const uint64_t bytes = call.count * ElementBytes(call.dtype);
  if (network_ != nullptr) {
    if (const auto time = network_->TimeOf(target_.gpu, call.op, call.dtype, bytes, at, speed))
      return *time;
  }
  return {CollectiveNs(target_.gpu, call.op, bytes, at), TimeSource::kModelled};
}

NetworkTime CostModel::GroupedTime(const graph::Call& call, const Messages& messages,
                                   const Placement& at) const {
  const Gpu& gpu = target_.gpu;
  const uint64_t near = messages.near_bytes, far = messages.far_bytes;
  if (network_ != nullptr && near + far > 0) {
    if (messages.with_every_peer) {
      const uint64_t mean = (near + far) / (at.ranks - 1);
      if (const auto time = network_->TimeOf(gpu, CommOp::kAllToAll, call.dtype, mean, at))
        return *time;
    }
    std::optional<NetworkTime> slowest;
    bool known = true;
    for (const auto& [bytes, nodes] : {std::pair{near, 1u}, std::pair{far, 2u}}) {
      if (bytes == 0) continue;
      const auto time =
          network_->TimeOf(gpu, CommOp::kSend, call.dtype, bytes, {2, nodes, 2 / nodes});
      known = known && time.has_value();
      if (time.has_value() && (!slowest.has_value() || time->ns > slowest->ns)) slowest = time;
    }
    if (known) return *slowest;
  }
  return {PointToPointNs(gpu, near, far), TimeSource::kModelled};
}

NetworkTime CostModel::MessageTime(const graph::Call& call, uint32_t from, uint32_t to,
                                   const LinkModel::Speed& speed) const {
  const NetworkLinks& links = *network_->profile().links;
  // What stays on the GPU crosses no link.
  if (from == to) return {std::llround(links.receive_ns), TimeSource::kMeasured};
  const uint32_t ends[] = {from, to};
  const Placement at = PlacementOf(target_, ends, &links);
  const uint64_t bytes = call.count * ElementBytes(call.dtype);
  if (const auto time = network_->TimeOf(target_.gpu, CommOp::kSend, call.dtype, bytes, at, speed))
    return *time;
  return {PointToPointNs(target_.gpu, at.nodes > 1 ? 0 : bytes, at.nodes > 1 ? bytes : 0),
          TimeSource::kModelled};
}

namespace {

// Numbers the links of a cluster, and says which of them a call uses; `bandwidth` as in Factors.
class LinkMap {
 public:
  LinkMap(const Target& target, const NetworkLinks& links, const graph::Graph& graph,
          std::map<uint32_t, double> bandwidth = {})
      : target_(target), links_(links), bandwidth_(std::move(bandwidth)) {
    for (const graph::Rank& rank : graph.ranks) gpus_ = std::max(gpus_, rank.rank + 1);
    for (const graph::Communicator& c : graph.communicators) {
      for (const uint32_t rank : c.world_ranks) {
        if (rank != graph::kNone) gpus_ = std::max(gpus_, rank + 1);
      }
    }
    gpus_ = (gpus_ + target.gpus_per_node - 1) / target.gpus_per_node * target.gpus_per_node;
  }

  // Both directions of each GPU's port, then of as many NICs at most, then of as many ways of
  // leaves to others: NICs of one number are on one leaf.
  uint32_t links() const { return 6 * gpus_; }
  std::optional<uint32_t> Port(uint32_t rank) const {
    return rank < gpus_ ? std::optional(2 * rank) : std::nullopt;
  }
  std::optional<uint32_t> NicOf(uint32_t node, uint32_t nic) const {
    const uint32_t per_node = target_.gpus_per_node;
    uint32_t nics = per_node;  // where a node's are not known
    const std::vector<uint32_t>& known = links_.nic_of_gpu;
    if (!known.empty()) nics = 1 + *std::max_element(known.begin(), known.end());
    return nic < nics && node < gpus_ / per_node
               ? std::optional(2 * (gpus_ + node * per_node + nic))
               : std::nullopt;
  }

  /// For which links beyond its port a member stands: it is the first that has them.
  struct Stands {
    bool at_nic = false, at_leaf = false;
  };
  std::vector<Stands> StandsOf(const graph::Communicator& c) const {
    std::vector<Stands> stands(c.world_ranks.size());
    std::set<uint32_t> nics, leaves;
    for (size_t i = 0; i < stands.size(); ++i) {
      const uint32_t rank = c.world_ranks[i];
      if (rank == graph::kNone) continue;
      stands[i] = {nics.insert(Nic(rank, rank)).second, leaves.insert(Leaf(rank, rank)).second};
    }
    return stands;
  }
  /// Of a collective's slowest links.
  LinkModel::Speed SpeedOf(const graph::Communicator& c) const {
    Slowest slowest;
    for (const uint32_t rank : c.world_ranks) {
      if (bandwidth_.empty() || rank == graph::kNone) continue;
      slowest.Port(Bandwidth(PortOut(rank)));
      slowest.Nic(Bandwidth(NicOut(rank, rank)));
    }
    return slowest.Speed();
  }
  /// Of a message's.
  LinkModel::Speed SpeedOf(uint32_t from, uint32_t to) const {
    Slowest slowest;
    if (bandwidth_.empty()) return slowest.Speed();
    slowest.Port(Bandwidth(PortOut(from)));
    slowest.Port(Bandwidth(PortOut(LeadOf(from, to))));
    slowest.Nic(Bandwidth(NicOut(from, to)));
    slowest.Nic(Bandwidth(NicOut(to, to)));
    return slowest.Speed();
  }
  void AddCollective(uint32_t rank, Stands stands, const NetworkTime& time,
                     std::vector<LinkShare>* shares) const {
    for (const uint32_t direction : {0u, 1u}) {
      Add(PortOut(rank) + direction, time.port, shares);
      if (stands.at_nic) Add(NicOut(rank, rank) + direction, time.nic, shares);
      if (stands.at_leaf) Add(LeafOut(rank, rank) + direction, time.leaf, shares);
    }
  }
  /// All that a message uses. It leaves a node by the receiver's NIC, to which a port of the
  /// sender's node leads.
  void AddMessage(uint32_t from, uint32_t to, const NetworkTime& time,
                  std::vector<LinkShare>* shares) const {
    Add(PortOut(from), time.port, shares);
    Add(PortOut(LeadOf(from, to)) + 1, time.port, shares);
    Add(NicOut(from, to), time.nic, shares);
    Add(NicOut(to, to) + 1, time.nic, shares);
    Add(LeafOut(from, to), time.leaf, shares);
    Add(LeafOut(to, to) + 1, time.leaf, shares);
  }

 private:
  class Slowest {
   public:
    void Port(double factor) { Add(factor, &port_); }
    void Nic(double factor) { Add(factor, &nic_); }
    LinkModel::Speed Speed() const { return {port_.value_or(1), nic_.value_or(1)}; }

   private:
    static void Add(double factor, std::optional<double>* least) {
      *least = std::min(least->value_or(factor), factor);
    }
    std::optional<double> port_, nic_;
  };
  double Bandwidth(uint32_t link) const {
    const auto found = bandwidth_.find(link & ~1u);
    return found == bandwidth_.end() ? 1 : found->second;
  }
  /// Numbers of the ways out; those in are the next ones.
  static uint32_t PortOut(uint32_t rank) { return 2 * rank; }
  uint32_t NicOut(uint32_t on, uint32_t rail) const { return 2 * (gpus_ + Nic(on, rail)); }
  uint32_t LeafOut(uint32_t on, uint32_t rail) const { return 2 * (2 * gpus_ + Leaf(on, rail)); }
  /// Whose port a message goes into on the sender's node: the receiver's, or of the GPU at its NIC.
  uint32_t LeadOf(uint32_t from, uint32_t to) const {
    const uint32_t per_node = target_.gpus_per_node;
    return target_.node_of(from) * per_node + to % per_node;
  }
  /// The NIC of rank `on`'s node that rank `rail`'s GPU would have there.
  uint32_t Nic(uint32_t on, uint32_t rail) const {
    return target_.node_of(on) * target_.gpus_per_node + NicOfNode(rail);
  }
  /// The leaf of that NIC.
  uint32_t Leaf(uint32_t on, uint32_t rail) const {
    return links_.LeafOf(target_.node_of(on)) * target_.gpus_per_node + NicOfNode(rail);
  }
  uint32_t NicOfNode(uint32_t rail) const {
    const uint32_t gpu = rail % target_.gpus_per_node;
    return gpu < links_.nic_of_gpu.size() ? links_.nic_of_gpu[gpu] : gpu;
  }
  void Add(uint32_t link, double share, std::vector<LinkShare>* shares) const {
    if (!bandwidth_.empty()) share = std::min(1.0, share / Bandwidth(link));
    const auto whole = static_cast<uint32_t>(std::llround(share * kWholeLink));
    if (whole != 0) shares->push_back({link, whole});
  }

  const Target& target_;
  const NetworkLinks& links_;
  const std::map<uint32_t, double> bandwidth_;
  uint32_t gpus_ = 0;
};

}  // namespace

std::optional<uint32_t> CostModel::PortLink(const graph::Graph& graph, uint32_t rank) const {
  if (!shares_links()) return std::nullopt;
  return LinkMap(target_, *network_->profile().links, graph).Port(rank);
}

std::optional<uint32_t> CostModel::NicLink(const graph::Graph& graph, uint32_t node,
                                           uint32_t nic) const {
  if (!shares_links()) return std::nullopt;
  return LinkMap(target_, *network_->profile().links, graph).NicOf(node, nic);
}

Durations CostModel::DurationsOf(const graph::Graph& graph, const Factors& factors) const {
  const Gpu& gpu = target_.gpu;
  Durations d;
  const auto scaled = [&](int64_t ns, TimeSource source, double kind) {
    return std::llround(static_cast<double>(ns) * kind *
                        factors.by_source[static_cast<size_t>(source)]);
  };
  for (const Program& program : graph.programs) {
    std::vector<KernelTime> kernels;
    for (const Kernel& k : program.kernels) kernels.push_back(TimeOf(k));
    std::vector<SpanTime> spans;
    for (const graph::Span& span : program.spans) {
      SpanTime time;
      int64_t by_source[4] = {};
      for (uint32_t k : span.kernels) {
        const int64_t ns = scaled(kernels[k].ns, kernels[k].source, factors.compute);
        by_source[static_cast<size_t>(kernels[k].source)] += ns;
        if (time.ns > 0) time.ns += gpu.kernel_gap_ns;
        time.ns += ns;
        time.tail_ns = ns;
      }
      time.source = static_cast<TimeSource>(
          std::max_element(std::begin(by_source), std::end(by_source)) - std::begin(by_source));
      spans.push_back(time);
    }
    d.spans.push_back(std::move(spans));
  }

  std::optional<LinkMap> links;
  if (shares_links()) {
    links.emplace(target_, *network_->profile().links, graph, factors.bandwidth);
    d.links = links->links();
    d.receive_ns = std::llround(network_->profile().links->receive_ns);
  }
  std::vector<Placement> placements;
  std::vector<std::vector<LinkMap::Stands>> stands;
  std::vector<LinkModel::Speed> speeds(graph.communicators.size());
  for (const graph::Communicator& c : graph.communicators) {
    if (links) {
      speeds[stands.size()] = links->SpeedOf(c);
      stands.push_back(links->StandsOf(c));
    }
    placements.push_back(
        PlacementOf(target_, c.world_ranks, links ? &*network_->profile().links : nullptr));
  }
  for (const graph::Rank& rank : graph.ranks) {
    const Program& program = graph.program_of(rank);
    const std::vector<Messages> messages =
        links ? std::vector<Messages>() : MessagesOf(graph, rank);
    std::vector<CallTime> calls;
    std::vector<double> stretches;
    for (uint32_t call = 0; call < program.calls.size(); ++call) {
      const graph::Call& c = program.calls[call];
      const uint32_t comm = rank.comm[c.participant];
      const Placement& at = placements[comm];
      const auto first_share = static_cast<uint32_t>(d.shares.size());
      NetworkTime time;
      if (rank.channel[call] == graph::kNone) {
        time = CollectiveTime(c, at, speeds[comm]);
        if (links)
          links->AddCollective(rank.rank, stands[comm][rank.comm_rank[c.participant]], time,
                               &d.shares);
      } else if (!links) {
        time = GroupedTime(c, messages[call], at);
      } else {
        const uint32_t peer =
            graph.communicators[comm].world_ranks[static_cast<size_t>(rank.peer[call])];
        const bool sends = c.op == CommOp::kSend;
        const uint32_t other = peer == graph::kNone ? rank.rank : peer;
        const uint32_t from = sends ? rank.rank : other, to = sends ? other : rank.rank;
        time = MessageTime(c, from, to, links->SpeedOf(from, to));
        // The sender stands for all links of its message.
        if (sends && from != to) links->AddMessage(from, to, time, &d.shares);
      }
      calls.push_back({scaled(time.ns, time.source, factors.communication), time.source,
                       first_share, static_cast<uint32_t>(d.shares.size()) - first_share,
                       time.spread, time.doubt, time.figure, time.size_doubt, time.group_doubt,
                       time.share_doubt});
      if (!factors.bandwidth.empty()) stretches.push_back(time.stretch);
    }
    if (!factors.bandwidth.empty()) d.call_scale.push_back(std::move(stretches));
    d.calls.push_back(std::move(calls));
  }
  d.host = gpu.host_ns;
  d.launch_latency_ns = gpu.launch_latency_ns;
  // The device at hand starts work at least as soon as a host is told of its end.
  if (const auto sync_ns = network_ == nullptr ? std::nullopt : network_->profile().sync_ns())
    d.launch_latency_ns =
        std::min(d.launch_latency_ns, static_cast<int64_t>(std::llround(*sync_ns)));
  for (size_t i = 0; i < 4; ++i) d.host_scale[i] = factors.by_source[i] * factors.host;
  const double measured = factors.by_source[static_cast<size_t>(TimeSource::kMeasured)];
  d.measured_span_scale = measured * factors.compute;
  d.retimed_span_scale =
      factors.by_source[static_cast<size_t>(TimeSource::kInterpolated)] * factors.compute;
  d.measured_call_scale = measured * factors.communication;
  return d;
}

}  // namespace prism::engine
