// JSON from outside: nlohmann's parser takes any depth, but copies and destroys what is nested by
// recursion, which a hostile file makes end by a signal.
#ifndef PRISM_BASE_PARSE_JSON_H_
#define PRISM_BASE_PARSE_JSON_H_

#include <utility>

namespace prism {

inline constexpr int kDeepestJson = 64;

/// `Json`: nlohmann's. is_discarded() if the input is no JSON, or nested deeper than kDeepestJson.
template <typename Json, typename Input>
Json ParseJson(Input&& input) {
  bool deep = false;
  const auto shallow = [&](int depth, typename Json::parse_event_t, Json&) {
    deep = deep || depth > kDeepestJson;
    return !deep;
  };
  Json json = Json::parse(std::forward<Input>(input), shallow, /*allow_exceptions=*/false);
  return deep ? Json(Json::value_t::discarded) : json;
}

}  // namespace prism

#endif  // PRISM_BASE_PARSE_JSON_H_
