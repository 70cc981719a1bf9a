// prism netprofile: measure how long communications take on the devices at hand, for predictions.
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "fmt/format.h"
#include "src/base/log.h"
#include "src/cli/capture_options.h"
#include "src/cli/installation.h"
#include "src/cli/launch_command.h"
#include "src/cli/local_ranks.h"
#include "src/cli/runtime_folder.h"
#include "src/cli/verbs.h"
#include "src/engine/network_profile.h"
#include "src/graph/program.h"
#include "src/interchange/nccl_tests.h"
#include "src/netprofile/profile_rank.h"

namespace prism::cli {
namespace {

namespace fs = std::filesystem;
using engine::NetworkEntry;
using engine::NetworkProfile;
using netprofile::RankOptions;
using trace::CommOp;

// netprofile measures these; the others of a profile come from nccl-tests.
constexpr char kDefaultOperations[] =
    "AllReduce,AllGather,ReduceScatter,Broadcast,Reduce,AlltoAll,Send";
// A held stream takes about a thousand launches, then the host waits for it.
constexpr uint32_t kMaxIterations = 200;
constexpr uint32_t kMaxRepeats = 10'000;
constexpr uint32_t kMaxRanks = 1024;  // of one machine
constexpr int kDefaultMasterPort = 29500;

std::string Duration(double ns) {
  if (ns >= 1e6) return fmt::format("{:.3f} ms", ns / 1e6);
  return fmt::format("{:.2f} us", ns / 1e3);
}

std::string Bytes(uint64_t bytes) {
  const std::pair<int, const char*> units[] = {{30, "GiB"}, {20, "MiB"}, {10, "KiB"}};
  for (const auto& [shift, unit] : units) {
    if (bytes >= uint64_t{1} << shift) {
      return fmt::format("{:.4g} {}",
                         static_cast<double>(bytes) / static_cast<double>(1ull << shift), unit);
    }
  }
  return fmt::format("{} B", bytes);
}

// One table an operation, type and group: sizes with what is known of them.
std::string Table(const NetworkProfile& profile) {
  std::string text =
      fmt::format("{}, NCCL {}\n", profile.gpu().empty() ? "unknown GPU" : profile.gpu(),
                  profile.machine.value("nccl", "of unknown version"));
  std::vector<NetworkEntry> entries = profile.entries;
  const auto group = [](const NetworkEntry& e) {
    return std::tuple(e.op, e.type, e.nodes, e.ranks, e.rails, e.leaves);
  };
  std::stable_sort(entries.begin(), entries.end(), [&](const auto& x, const auto& y) {
    return std::pair(group(x), x.bytes) < std::pair(group(y), y.bytes);
  });
  const auto cell = [](const NetworkEntry* e) {
    return e == nullptr ? "-"
                        : fmt::format("{} ({} - {})", Duration(e->median_ns), Duration(e->p10_ns),
                                      Duration(e->p90_ns));
  };
  for (size_t i = 0; i < entries.size();) {
    const NetworkEntry& first = entries[i];
    if (i == 0 || group(entries[i - 1]) != group(first)) {
      text += fmt::format(
          "\n{}{}, {} ranks on {} node{}{}{}\n  {:>10}  {:<34}  {:<34}  {}\n",
          graph::CommOpName(first.op),
          first.type.has_value() ? " " + std::string(engine::TypeName(*first.type)) : "",
          first.ranks, first.nodes, first.nodes == 1 ? "" : "s",
          first.rails == 0 ? ""
                           : fmt::format(", {} NIC{}", first.rails, first.rails == 1 ? "" : "s"),
          first.leaves < 2 ? "" : fmt::format(", {} leaves", first.leaves), "bytes",
          "isolated (p10 - p90)", "in a row (p10 - p90)", "bytes/time");
    }
    const NetworkEntry *isolated = nullptr, *in_a_row = nullptr;
    for (;
         i < entries.size() && group(entries[i]) == group(first) && entries[i].bytes == first.bytes;
         ++i) {
      (entries[i].isolated ? isolated : in_a_row) = &entries[i];
    }
    const NetworkEntry& fastest = in_a_row != nullptr ? *in_a_row : first;
    text +=
        fmt::format("  {:>10}  {:<34}  {:<34}  {:.2f} GB/s\n", Bytes(first.bytes), cell(isolated),
                    cell(in_a_row), static_cast<double>(first.bytes) / fastest.median_ns);
  }
  return text;
}

absl::StatusOr<uint32_t> FromEnvironment(const char* name, uint32_t least, uint32_t most) {
  const char* text = std::getenv(name);
  uint32_t value = 0;
  if (text != nullptr && absl::SimpleAtoi(text, &value) && value >= least && value <= most)
    return value;
  return WithHint(
      absl::InvalidArgumentError(text == nullptr ? fmt::format("{} is not set", name)
                                                 : fmt::format("{}={} is no number from {} to {}",
                                                               name, text, least, most)),
      "torchrun sets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT");
}

class NetprofileVerb final : public Verb {
 public:
  const char* name() const override { return "netprofile"; }
  const char* summary() const override {
    return "Measure communications on the GPUs at hand, for predictions";
  }
  const char* examples() const override {
    return "  prism netprofile --ranks 8 --groups 2,4 --out h200.json\n"
           "  prism simulate job --network h200.json\n"
           "  torchrun --no-python --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d "
           "--rdzv-endpoint node0:29400 \\\n"
           "    prism netprofile --groups 8,2x1 --out two-nodes.json\n"
           "  prism netprofile --import all_reduce_perf.txt alltoall_perf.txt --out net.json\n"
           "  prism netprofile --merge two-nodes.json sixteen-nodes.json --out net.json\n"
           "  prism netprofile --device host --ranks 2 --sizes 1KiB:1MiB:4\n"
           "  HOSTCUDA_CLOCK=virtual prism netprofile --device host --ranks 16 --nodes 2 --groups "
           "8,2x1\n";
  }
  void AddOptions(CLI::App& app) override {
    app.add_option("--device", device_, "What communicates: cuda, or host (hostcuda and its NCCL)")
        ->capture_default_str()
        ->type_name("WHAT");
    app.add_option("--ranks", ranks_,
                   "Processes to start on this machine, one a GPU; without it this process is one "
                   "rank of those that torchrun or srun started")
        ->type_name("N");
    app.add_option("--sizes", sizes_,
                   "Sizes of what is passed to NCCL, with units B, KiB, MiB, GiB")
        ->capture_default_str()
        ->type_name("MIN:MAX:FACTOR");
    app.add_option("--operations", operations_, "Which operations, separated by commas")
        ->capture_default_str()
        ->type_name("LIST");
    app.add_option("--types", types_, "Types of reductions; all else is measured once")
        ->capture_default_str()
        ->type_name("LIST");
    app.add_option(
           "--groups", groups_,
           "Smaller groups to measure, too: ranks, NODESxRANKS a node, or every N-th of them "
           "(2,4,2x1,2x4/2)")
        ->type_name("LIST");
    app.add_option("--iterations", iterations_,
                   "Calls in a row of one sample, at most; fewer where they are long")
        ->capture_default_str()
        ->type_name("K");
    app.add_option("--repeats", repeats_, "Samples of each size, interleaved over the sizes")
        ->capture_default_str()
        ->type_name("R");
    app.add_option("--nccl", nccl_,
                   "NCCL library; otherwise that of the PyTorch of the python3 on PATH, else the "
                   "loader's")
        ->type_name("PATH");
    app.add_option(
           "--import", import_,
           "Measure nothing: make a profile of what nccl-tests (all_reduce_perf, ...) printed "
           "into these files")
        ->type_name("FILE")
        ->expected(1, -1);
    app.add_option("--operation", operation_,
                   "With --import: which operation it is, where neither text nor file name say so")
        ->type_name("NAME");
    app.add_option(
           "--merge", merge_,
           "Measure nothing: make one profile of these of one machine, whose ranks were placed in "
           "different ways; what is in several is the first's")
        ->type_name("FILE")
        ->expected(2, -1);
    app.add_option("--nodes", nodes_,
                   "With --ranks, on how many nodes: of --device host, which plays them; or with "
                   "--import, where the text lists no ranks")
        ->capture_default_str()
        ->type_name("N");
    app.add_option("--node-numbers", node_numbers_,
                   "With --nodes: which numbers these have, by which links place them; 0 to N-1 by "
                   "default")
        ->type_name("LIST")
        ->delimiter(',');
    app.add_option("--gpus", gpus_,
                   "With --ranks: which GPUs of a node its ranks have; the first ones by default")
        ->type_name("LIST")
        ->delimiter(',');
    app.add_option("--out", out_, "File to write the profile to")->type_name("FILE");
    app.add_flag("--force", force_, "Replace an earlier file");
  }

  absl::StatusOr<int> Run(const Invocation& invocation) override {
    std::optional<NetworkProfile> profile;
    RankOptions options;
    if (import_.empty() && merge_.empty()) {
      PRISM_RETURN_IF_ERROR(ParseOptions(&options));
      PRISM_RETURN_IF_ERROR(FindLibraries(invocation, &options));
    }
    if (!merge_.empty()) {
      PRISM_RETURN_IF_ERROR(CheckOut());
      PRISM_ASSIGN_OR_RETURN(profile, Merge());
    } else if (!import_.empty()) {
      PRISM_RETURN_IF_ERROR(CheckOut());
      PRISM_ASSIGN_OR_RETURN(profile, Import());
    } else if (ranks_ == 0) {
      PRISM_RETURN_IF_ERROR(PlaceAmongOthers(&options));
      if (options.rendezvous.rank == 0) PRISM_RETURN_IF_ERROR(CheckOut());
      PRISM_ASSIGN_OR_RETURN(profile, netprofile::ProfileAsRank(options));
    } else {
      PRISM_RETURN_IF_ERROR(CheckOut());
      PRISM_ASSIGN_OR_RETURN(const LocalRanks ended, StartRanks(&options));
      if (ended.interrupted_by != 0) return 128 + ended.interrupted_by;
      PRISM_ASSIGN_OR_RETURN(profile, engine::ParseNetworkProfile(ended.of_rank_0));
    }
    if (!profile.has_value()) return kExitOk;
    const std::string text = engine::SerializeNetworkProfile(*profile);
    if (!out_.empty()) PRISM_RETURN_IF_ERROR(Write(text));
    fmt::print("{}", invocation.json ? text : Table(*profile));
    return kExitOk;
  }

 private:
  absl::Status ParseOptions(RankOptions* options) const {
    netprofile::Plan& plan = options->plan;
    PRISM_RETURN_IF_ERROR(OneOf("--device", device_, {"cuda", "host"}));
    PRISM_RETURN_IF_ERROR(netprofile::ParseSizes(sizes_, &plan));
    PRISM_ASSIGN_OR_RETURN(plan.groups, netprofile::ParseGroups(groups_));
    const std::vector<std::string> measured = absl::StrSplit(kDefaultOperations, ','),
                                   operations = absl::StrSplit(operations_, ','),
                                   types = absl::StrSplit(types_, ',');
    for (const std::string& word : operations) {
      const std::optional<CommOp> op = engine::ProfiledOpOf(word);
      if (!op.has_value() || *op == CommOp::kGather || *op == CommOp::kScatter)
        return OneOf("--operations", word, measured);
      plan.operations.push_back(*op);
    }
    for (const std::string& word : types) {
      PRISM_RETURN_IF_ERROR(OneOf("--types", word, engine::TypeNames()));
      plan.types.push_back(*engine::TypeOf(word));
    }
    PRISM_ASSIGN_OR_RETURN(plan.iterations,
                           InRange("--iterations", iterations_, 1, kMaxIterations));
    PRISM_ASSIGN_OR_RETURN(plan.repeats, InRange("--repeats", repeats_, 1, kMaxRepeats));
    if (ranks_ != 0) PRISM_RETURN_IF_ERROR(InRange("--ranks", ranks_, 2, kMaxRanks).status());
    PRISM_RETURN_IF_ERROR(CheckNodes());
    if (ranks_ == 0) return absl::OkStatus();
    PRISM_RETURN_IF_ERROR(
        CheckList("--node-numbers", node_numbers_, static_cast<uint64_t>(nodes_)));
    return CheckList("--gpus", gpus_, static_cast<uint64_t>(ranks_ / nodes_));
  }

  // A list that says something of each of `wanted`, each number once.
  static absl::Status CheckList(const char* flag, const std::vector<uint32_t>& list,
                                uint64_t wanted) {
    const std::set<uint32_t> numbers(list.begin(), list.end());
    if (!numbers.empty() && *numbers.rbegin() > engine::kMaxProfiledRanks) {
      return WithHint(
          absl::InvalidArgumentError(fmt::format("{}: {} is too large", flag, *numbers.rbegin())),
          fmt::format("at most {}", engine::kMaxProfiledRanks));
    }
    if (list.empty() || (list.size() == wanted && numbers.size() == wanted))
      return absl::OkStatus();
    return WithHint(absl::InvalidArgumentError(
                        fmt::format("{} has {} different numbers", flag, numbers.size())),
                    fmt::format("{} different ones: {}", wanted,
                                flag == std::string("--gpus") ? "one for each rank of a node"
                                                              : "one for each of --nodes"));
  }

  absl::Status CheckNodes() const {
    if (nodes_ == 1) return absl::OkStatus();
    if (ranks_ == 0) {
      return WithHint(absl::InvalidArgumentError(fmt::format(
                          "--nodes {}: nothing says how many ranks are to be on them", nodes_)),
                      "give --ranks, too; ranks of torchrun or srun are told their node by it");
    }
    PRISM_RETURN_IF_ERROR(InRange("--nodes", nodes_, 1, static_cast<uint32_t>(ranks_)).status());
    if (device_ != "host") {
      return WithHint(absl::InvalidArgumentError(fmt::format(
                          "--nodes {}: the GPUs of this machine are on one node", nodes_)),
                      "start prism netprofile by torchrun --no-python on every node; --device host "
                      "plays several");
    }
    if (ranks_ % nodes_ != 0) {
      return WithHint(
          absl::InvalidArgumentError(
              fmt::format("--ranks {} is no multiple of --nodes {}", ranks_, nodes_)),
          fmt::format("every node has as many ranks: --ranks {}", (ranks_ / nodes_ + 1) * nodes_));
    }
    return absl::OkStatus();
  }

  static absl::StatusOr<uint32_t> InRange(const char* flag, int64_t value, uint32_t least,
                                          uint32_t most) {
    if (value >= least && value <= most) return static_cast<uint32_t>(value);
    return WithHint(absl::InvalidArgumentError(fmt::format("{} {} is out of range", flag, value)),
                    fmt::format("from {} to {}", least, most));
  }

  absl::Status FindLibraries(const Invocation& invocation, RankOptions* options) const {
    const Device device = device_ == "host" ? Device::kHost : Device::kCuda;
    const std::string python = FindProgram("python3");
    PRISM_ASSIGN_OR_RETURN(const CudaLibraries cuda,
                           FindCuda(device, HostcudaFolder(invocation.program), python));
    options->device = device_;
    options->driver = cuda.driver;
    options->nvml = cuda.nvml;
    options->nccl = nccl_;
    if (!nccl_.empty()) return absl::OkStatus();
    if (device == Device::kCuda) PRISM_RETURN_IF_ERROR(CheckNoStandIns(python));
    options->nccl = cuda.nccl;
    if (!options->nccl.empty()) return absl::OkStatus();
    return WithHint(absl::NotFoundError("there is no NCCL (libnccl.so.2) in the environment of the "
                                        "python3 on PATH, nor where the loader looks"),
                    "--nccl PATH names one; PyTorch's is in site-packages/nvidia/nccl/lib");
  }

  absl::StatusOr<NetworkProfile> Merge() const {
    std::vector<NetworkProfile> profiles;
    for (const std::string& path : merge_) {
      PRISM_ASSIGN_OR_RETURN(NetworkProfile profile, engine::ReadNetworkProfile(path));
      if (!profiles.empty() && profile.gpu() != profiles.front().gpu()) {
        return WithHint(
            absl::InvalidArgumentError(fmt::format("{} is of {}, {} of {}", path, profile.gpu(),
                                                   merge_.front(), profiles.front().gpu())),
            "--merge takes profiles of one machine");
      }
      profiles.push_back(std::move(profile));
    }
    return engine::MergeNetworkProfiles(std::move(profiles));
  }

  absl::StatusOr<NetworkProfile> Import() const {
    interchange::NcclTestsOptions options;
    if (!operation_.empty()) {
      options.operation = engine::ProfiledOpOf(operation_);
      if (!options.operation.has_value())
        return OneOf("--operation", operation_, engine::ProfiledOpNames());
    }
    if (ranks_ != 0) {
      PRISM_ASSIGN_OR_RETURN(options.ranks, InRange("--ranks", ranks_, 2, 1 << 20));
      PRISM_ASSIGN_OR_RETURN(options.nodes, InRange("--nodes", nodes_, 1, *options.ranks));
    }
    interchange::NcclTests tests(options);
    for (const std::string& path : import_) {
      std::ifstream file(path, std::ios::binary);
      std::error_code error;
      if (!file || fs::is_directory(path, error)) {
        return WithHint(absl::NotFoundError(fmt::format("there is no file {}", path)),
                        "--import FILE holds what nccl-tests printed");
      }
      const std::string text((std::istreambuf_iterator<char>(file)), {});
      PRISM_RETURN_IF_ERROR(tests.Add(path, text));
    }
    return tests.Profile();
  }

  // Where this process is among those that another launcher has started.
  absl::Status PlaceAmongOthers(RankOptions* options) const {
    if (std::getenv("RANK") == nullptr && std::getenv("WORLD_SIZE") == nullptr) {
      return WithHint(absl::InvalidArgumentError("how many ranks?"),
                      "--ranks N starts N of them here; on several nodes start prism netprofile by "
                      "torchrun --no-python");
    }
    netprofile::Rendezvous& r = options->rendezvous;
    PRISM_ASSIGN_OR_RETURN(r.world, FromEnvironment("WORLD_SIZE", 2, 1 << 20));
    PRISM_ASSIGN_OR_RETURN(r.rank, FromEnvironment("RANK", 0, r.world - 1));
    if (std::getenv("LOCAL_RANK") != nullptr) {
      PRISM_ASSIGN_OR_RETURN(options->local_rank, FromEnvironment("LOCAL_RANK", 0, r.world - 1));
    }
    const char* host = std::getenv("MASTER_ADDR");
    if (host == nullptr || *host == '\0') return FromEnvironment("MASTER_ADDR", 0, 0).status();
    r.host = host;
    uint32_t port = kDefaultMasterPort;
    if (std::getenv("MASTER_PORT") != nullptr) {
      PRISM_ASSIGN_OR_RETURN(port, FromEnvironment("MASTER_PORT", 1, 65534));
    }
    r.port = static_cast<uint16_t>(port + 1);  // torchrun itself listens on MASTER_PORT
    return absl::OkStatus();
  }

  absl::StatusOr<LocalRanks> StartRanks(RankOptions* options) const {
    const auto world = static_cast<uint32_t>(ranks_);
    const uint32_t per_node = world / static_cast<uint32_t>(nodes_);
    PRISM_ASSIGN_OR_RETURN(const std::unique_ptr<RuntimeFolder> runtime, RuntimeFolder::Make());
    if (device_ == "host") {
      setenv("HOSTCUDA_SESSION", runtime->session().c_str(), 1);
      setenv("HOSTCUDA_VALUES", "none", 0);
      // Ranks of all nodes with one LOCAL_RANK share a device of hostcuda's, and so its memory.
      if (nodes_ > 1) setenv("HOSTCUDA_MEMORY_LIMIT", "0", 1);
    }
    netprofile::Rendezvous& r = options->rendezvous;
    r.world = world;
    PRISM_ASSIGN_OR_RETURN(r.listener, netprofile::ListenOnLoopback(&r.port));
    options->local_world = per_node;
    auto ended = RunLocalRanks(world, [&](uint32_t rank) -> absl::StatusOr<std::string> {
      r.rank = rank;
      const uint32_t gpu = gpus_.empty() ? rank % per_node : gpus_[rank % per_node];
      const uint32_t node = rank / per_node;
      options->local_rank = gpu;
      // As another launcher would: hostcuda's clock and hostnccl's links go by them, and so does
      // what netprofile itself takes for a node.
      for (const auto& [name, value] :
           {std::pair{"RANK", rank}, std::pair{"WORLD_SIZE", world}, std::pair{"LOCAL_RANK", gpu},
            std::pair{"LOCAL_WORLD_SIZE", per_node},
            std::pair{"GROUP_RANK", node_numbers_.empty() ? node : node_numbers_[node]}})
        setenv(name, std::to_string(value).c_str(), 1);
      if (rank != 0) close(r.listener);
      PRISM_ASSIGN_OR_RETURN(const auto profile, netprofile::ProfileAsRank(*options));
      return profile.has_value() ? engine::SerializeNetworkProfile(*profile) : "";
    });
    close(r.listener);
    for (const std::string& file : LeftSharedMemory(runtime->session())) unlink(file.c_str());
    return ended;
  }

  // Before anything is measured.
  absl::Status CheckOut() const {
    if (out_.empty()) return absl::OkStatus();
    std::error_code error;
    if (fs::exists(out_, error) && !force_) {
      return WithHint(absl::AlreadyExistsError(fmt::format("{} is there already", out_)),
                      "--force replaces it");
    }
    const fs::path folder = fs::absolute(out_, error).parent_path();
    if (fs::is_directory(out_, error) || access(folder.c_str(), W_OK | X_OK) != 0) {
      return WithHint(absl::PermissionDeniedError(fmt::format("{} cannot be written", out_)),
                      "--out names a file in a folder that can be written");
    }
    return absl::OkStatus();
  }

  absl::Status Write(const std::string& text) const {
    const std::string temporary = out_ + ".tmp";
    {
      std::ofstream file(temporary, std::ios::trunc | std::ios::binary);
      file << text;
      file.close();
      if (!file) return ErrnoStatus(errno, "write " + temporary);
    }
    std::error_code error;
    fs::rename(temporary, out_, error);
    if (error) return absl::UnavailableError(fmt::format("write {}: {}", out_, error.message()));
    spdlog::info("wrote {}", out_);
    return absl::OkStatus();
  }

  std::string device_ = "cuda";
  int64_t ranks_ = 0;
  std::string sizes_ = "1KiB:1GiB:2";
  std::string operations_ = kDefaultOperations;
  std::string types_ = "bf16,fp32";
  std::string groups_;
  int64_t iterations_ = 20;
  int64_t repeats_ = 20;
  std::string nccl_;
  std::vector<std::string> import_;
  std::string operation_;
  int64_t nodes_ = 1;
  std::vector<uint32_t> node_numbers_, gpus_;
  std::vector<std::string> merge_;
  std::string out_;
  bool force_ = false;
};

}  // namespace

std::unique_ptr<Verb> MakeNetprofileVerb() { return std::make_unique<NetprofileVerb>(); }

}  // namespace prism::cli
