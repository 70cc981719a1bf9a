#include "src/graph/mirrored.h"

#include <algorithm>
#include <map>
#include <utility>

#include "src/graph/step.h"
#include "src/trace/format.h"

namespace prism::graph {
namespace {

struct Communicated {
  std::vector<uint64_t> calls;  // hashes, in the order of the host
  bool mirrored = false;
};

bool IsMirrored(const Program& program, const Place& place) {
  const Sequence& sequence = program.sequences[place.sequence];
  for (uint32_t i = place.op; i < place.op + sequence.ops[place.op].detail; ++i) {
    if (static_cast<trace::ValueSource>(sequence.provenance[i] >> 2 & 3) ==
        trace::ValueSource::kMirrored)
      return true;
  }
  return false;
}

}  // namespace

MirroredSteps CompareMirrored(const Program& program, const std::vector<Place>& ends) {
  MirroredSteps result;
  if (ends.size() < 2) return result;
  std::map<std::pair<uint32_t, uint32_t>, size_t> position;
  for (const Place& place : program.EnqueueOrder())
    position.emplace(std::pair{place.sequence, place.op}, position.size() + 1);
  const auto at = [&](const Place& place) {
    const auto found = position.find({place.sequence, place.op});
    return found == position.end() ? size_t{0} : found->second;
  };
  // The first is what lies before the steps: what sets the program up, and steps unlike the others.
  std::vector<Communicated> steps(ends.size());
  size_t step = 0;
  for (const Token& token : Tokens(program, TokenDetail::kShapes)) {
    if (token.comm == 0) continue;
    const size_t where = at(token.place);
    while (step < steps.size() && where > at(ends[step])) ++step;
    if (step == steps.size()) break;
    steps[step].calls.push_back(token.comm);
    if (IsMirrored(program, token.place)) steps[step].mirrored = true;
  }
  const Communicated* exact = nullptr;
  for (const Communicated& of : steps) {
    if (!of.mirrored) {
      if (result.mirrored == 0) exact = &of;
      continue;
    }
    ++result.mirrored;
    if (exact == nullptr) continue;
    const bool fits = exact == steps.data() ? exact->calls.size() >= of.calls.size()
                                            : exact->calls.size() == of.calls.size();
    if (!fits || !std::equal(of.calls.rbegin(), of.calls.rend(), exact->calls.rbegin()))
      ++result.different;
  }
  result.any_exact = exact != nullptr;
  return result;
}

}  // namespace prism::graph
