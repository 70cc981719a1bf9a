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

  using Launch = std::pair<uint64_t, uint64_t>;  // site, size
  const std::map<Launch, uint32_t>& of() const { return of_; }

 private:
  std::map<Launch, uint32_t> of_;
};

/// Ranks of one program whose launches say the same.
struct Part {
  uint32_t program;
  std::vector<uint32_t> ranks;  // ascending
  uint64_t shape;
  uint64_t size = 0;  // of all launches
  Constants constants;
  std::vector<trace::KernelRecord> kernels;
};

bool SameKernels(const std::vector<trace::KernelRecord>& one,
                 std::span<const trace::KernelRecord> other) {
  return one.size() == other.size() && !one.empty() &&
         std::memcmp(one.data(), other.data(), other.size_bytes()) == 0;
}

/// A program does not know its kernels' parameters, and a straggler may state its time in them.
absl::StatusOr<std::vector<Part>> PartsOf(const graph::Graph& graph) {
  std::vector<Part> parts;
  for (const Slice& slice : Slices(graph)) {
    const size_t first = parts.size();
    for (const uint32_t rank : slice.ranks) {
      PRISM_ASSIGN_OR_RETURN(const trace::Reader trace,
                             trace::Reader::Open(graph.ranks[rank].path));
      auto part =
          std::find_if(parts.begin() + static_cast<ptrdiff_t>(first), parts.end(),
                       [&](const Part& p) { return SameKernels(p.kernels, trace.kernels()); });
      if (part == parts.end()) {
        const Outline outline = OutlineOf(trace);
        part = parts.insert(part, {graph.ranks[rank].program,
                                   {},
                                   outline.shape,
                                   0,
                                   Constants(outline),
                                   {trace.kernels().begin(), trace.kernels().end()}});
        for (const std::vector<Item>& items : outline.items) {
          for (const Item& item : items) part->size += item.size;
        }
      }
      part->ranks.push_back(rank);
    }
  }
  return parts;
}

/// Of each of `parts`, which others say something else of a launch.
std::vector<std::set<size_t>> Contradictions(const std::vector<const Part*>& parts) {
  std::map<Constants::Launch, std::map<uint32_t, std::vector<size_t>>> said;
  for (size_t i = 0; i < parts.size(); ++i) {
    for (const auto& [launch, parameters] : parts[i]->constants.of())
      said[launch][parameters].push_back(i);
  }
  std::vector<std::set<size_t>> contradicted(parts.size());
  for (const auto& [launch, by_parameters] : said) {
    for (const auto& [parameters, ones] : by_parameters) {
      for (const auto& [others_parameters, others] : by_parameters) {
        if (parameters == others_parameters) continue;
        for (const size_t one : ones) contradicted[one].insert(others.begin(), others.end());
      }
    }
  }
  return contradicted;
}

/// `members`: of one kind.
Kind KindOf(const std::vector<const Part*>& members, uint32_t most_slices) {
  struct Candidate {
    Slice slice;
    uint64_t size = 0;
  };
  std::map<uint32_t, Candidate> by_program;
  for (const Part* part : members) {
    Candidate& candidate = by_program[part->program];
    std::vector<uint32_t>& ranks = candidate.slice.ranks;
    ranks.insert(ranks.end(), part->ranks.begin(), part->ranks.end());
    candidate.size = part->size;  // the program's
  }
  std::vector<Candidate> candidates;
  for (auto& [program, candidate] : by_program) {
    std::sort(candidate.slice.ranks.begin(), candidate.slice.ranks.end());
    candidate.slice.representative = candidate.slice.ranks.front();
    candidates.push_back(std::move(candidate));
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& x, const Candidate& y) { return x.size < y.size; });
  // Evenly from the first to the last, or all.
  const size_t last = candidates.size() - 1;
  const size_t run =
      most_slices == 0 ? candidates.size() : std::min<size_t>(most_slices, candidates.size());
  std::set<size_t> chosen;
  for (size_t i = 0; i < run; ++i) chosen.insert(run == 1 ? last / 2 : i * last / (run - 1));
  Kind kind;
  for (size_t i = 0; i < candidates.size(); ++i) {
    (chosen.count(i) != 0 ? kind.slices : kind.retimed).push_back(std::move(candidates[i].slice));
  }
  for (std::vector<Slice>* slices : {&kind.slices, &kind.retimed}) {
    std::sort(slices->begin(), slices->end(),
              [](const Slice& x, const Slice& y) { return x.representative < y.representative; });
  }
  return kind;
}

}  // namespace

absl::StatusOr<std::vector<Kind>> KindsOf(const graph::Graph& graph, uint32_t most_slices) {
  PRISM_ASSIGN_OR_RETURN(const std::vector<Part> parts, PartsOf(graph));
  std::map<uint64_t, std::vector<const Part*>> by_shape;
  for (const Part& part : parts) by_shape[part.shape].push_back(&part);
  std::vector<Kind> kinds;
  for (const auto& [shape, alike] : by_shape) {
    const std::vector<std::set<size_t>> contradicted = Contradictions(alike);
    std::map<std::set<size_t>, std::vector<const Part*>> members;
    for (size_t i = 0; i < alike.size(); ++i) members[contradicted[i]].push_back(alike[i]);
    for (const auto& [others, of_kind] : members) kinds.push_back(KindOf(of_kind, most_slices));
  }
  std::sort(kinds.begin(), kinds.end(), [](const Kind& x, const Kind& y) {
    return x.slices.front().representative < y.slices.front().representative;
  });
  return kinds;
}

std::vector<uint32_t> Sampled(const std::vector<Kind>& kinds, uint32_t count) {
  std::vector<uint32_t> all;
  for (const Kind& kind : kinds) {
    for (const Slice& slice : kind.retimed)
      all.insert(all.end(), slice.ranks.begin(), slice.ranks.end());
  }
  std::set<uint32_t> sampled;
  for (uint64_t i = 0; i < count && !all.empty(); ++i)
    sampled.insert(all[(2 * i + 1) * all.size() / (2 * uint64_t{count})]);
  return {sampled.begin(), sampled.end()};
}

}  // namespace prism::calibrate
