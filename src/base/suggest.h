// "Did you mean": the known word nearest to a misspelt one. Stateless; thread-safe.
//
//   Nearest("captrue", {"capture", "check"}) == "capture"
#ifndef PRISM_BASE_SUGGEST_H_
#define PRISM_BASE_SUGGEST_H_

#include <string>
#include <string_view>
#include <vector>

namespace prism {

/// Returns the candidate with the smallest edit distance (insert, delete, replace, swap of
/// neighbours), or "" when even that one differs in more than a third of its letters.
std::string Nearest(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace prism

#endif  // PRISM_BASE_SUGGEST_H_
