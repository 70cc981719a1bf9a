#include "src/calibrate/kinds.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <span>
#include <utility>

#include "src/base/status.h"
#include "src/calibrate/outline.h"
#include "src/trace/format.h"

namespace prism::calibrate {
namespace {

/// Hashes of parameters of launches that have the same ones whenever the rank makes them.
class Constants {
 public:
  Constants() = default;
  explicit Constants(const Outline& outline) {
    std::map<Launch, uint32_t> seen;
    std::set<Launch> once, vary;
    for (const std::vector<Item>& items : outline.items) {
      for (size_t i = 0; i < items.size(); ++i) {
        if (!items[i].launches() || items[i].parameters == trace::kParametersUnknown) continue;
        const Launch launch{SiteOf(items, i, 1), items[i].size};
        const auto [found, inserted] = seen.try_emplace(launch, items[i].parameters);
        if (inserted) {
          once.insert(launch);
          continue;
        }
        once.erase(launch);
        if (found->second != items[i].parameters) vary.insert(launch);
      }
    }
    for (const auto& [launch, parameters] : seen) {
      // Of what is launched once nobody knows whether it would be the same again.
      if (once.count(launch) == 0 && vary.count(launch) == 0 &&
          parameters != trace::kParametersVary)
        of_.emplace(launch, parameters);
    }
  }

  bool Contradict(const Constants& other) const {
    return std::any_of(of_.begin(), of_.end(), [&](const auto& own) {
      const auto found = other.of_.find(own.first);
      return found != other.of_.end() && found->second != own.second;
    });
  }

 private:
  using Launch = std::pair<uint64_t, uint64_t>;  // site, size
  std::map<Launch, uint32_t> of_;
};

/// Ranks of one program that say the same of their launches whenever they make them.
struct Part {
  Slice slice;
  Outline outline;  // of its first rank
  Constants constants;
  std::vector<trace::KernelRecord> kernels;
};

bool SameKernels(const std::vector<trace::KernelRecord>& one,
                 std::span<const trace::KernelRecord> other) {
  return one.size() == other.size() && !one.empty() &&
         std::memcmp(one.data(), other.data(), other.size_bytes()) == 0;
}

/// A program does not know its kernels' parameters, and a straggler may state its time in them.
absl::StatusOr<std::vector<Part>> PartsOf(const graph::Graph& graph, const Slice& slice) {
  std::vector<Part> parts;
  for (const uint32_t rank : slice.ranks) {
    PRISM_ASSIGN_OR_RETURN(const trace::Reader trace, trace::Reader::Open(graph.ranks[rank].path));
    auto part = std::find_if(parts.begin(), parts.end(), [&](const Part& p) {
      return SameKernels(p.kernels, trace.kernels());
    });
    if (part == parts.end()) {
      Outline outline = OutlineOf(trace);
      Constants constants(outline);
      part = std::find_if(parts.begin(), parts.end(),
                          [&](const Part& p) { return !p.constants.Contradict(constants); });
      if (part == parts.end()) {
        part = parts.insert(part, {{rank, {}},
                                   std::move(outline),
                                   std::move(constants),
                                   {trace.kernels().begin(), trace.kernels().end()}});
      }
    }
    part->slice.ranks.push_back(rank);
  }
  return parts;
}

struct Candidate {
  Slice slice;
  uint64_t size;  // of all launches
};

struct Family {
  uint64_t shape;
  Constants constants;  // of its first rank
  std::vector<Candidate> members;
};

}  // namespace

absl::StatusOr<std::vector<Kind>> KindsOf(const graph::Graph& graph, uint32_t most_slices) {
  std::vector<Family> families;
  for (const Slice& slice : Slices(graph)) {
    PRISM_ASSIGN_OR_RETURN(std::vector<Part> parts, PartsOf(graph, slice));
    for (Part& part : parts) {
      uint64_t size = 0;
      for (const std::vector<Item>& items : part.outline.items) {
        for (const Item& item : items) size += item.size;
      }
      auto family = families.end();
      if (most_slices != 0) {
        family = std::find_if(families.begin(), families.end(), [&](const Family& f) {
          return f.shape == part.outline.shape && !f.constants.Contradict(part.constants);
        });
      }
      if (family == families.end())
        family = families.insert(family, {part.outline.shape, std::move(part.constants), {}});
      family->members.push_back({std::move(part.slice), size});
    }
  }
  std::vector<Kind> kinds;
  for (Family& family : families) {
    std::vector<Candidate>& members = family.members;
    std::stable_sort(members.begin(), members.end(),
                     [](const Candidate& x, const Candidate& y) { return x.size < y.size; });
    Kind& kind = kinds.emplace_back();
    // Evenly from the first to the last, or all.
    const size_t last = members.size() - 1;
    const size_t run =
        most_slices == 0 ? members.size() : std::min<size_t>(most_slices, members.size());
    std::set<size_t> chosen;
    for (size_t i = 0; i < run; ++i) chosen.insert(run == 1 ? last / 2 : i * last / (run - 1));
    for (size_t i = 0; i < members.size(); ++i) {
      Slice& slice = members[i].slice;
      if (chosen.count(i) != 0) {
        kind.slices.push_back(std::move(slice));
      } else {
        kind.retimed.insert(kind.retimed.end(), slice.ranks.begin(), slice.ranks.end());
      }
    }
    std::sort(kind.slices.begin(), kind.slices.end(),
              [](const Slice& x, const Slice& y) { return x.representative < y.representative; });
    std::sort(kind.retimed.begin(), kind.retimed.end());
  }
  return kinds;
}

std::vector<uint32_t> Sampled(const std::vector<Kind>& kinds, uint32_t count) {
  std::vector<uint32_t> all;
  for (const Kind& kind : kinds) all.insert(all.end(), kind.retimed.begin(), kind.retimed.end());
  std::set<uint32_t> sampled;
  for (uint64_t i = 0; i < count && !all.empty(); ++i)
    sampled.insert(all[(2 * i + 1) * all.size() / (2 * uint64_t{count})]);
  return {sampled.begin(), sampled.end()};
}

}  // namespace prism::calibrate
