// Reads the members of an object of a table (HOSTCUDA_TIMES, HOSTNCCL_TOPOLOGY) and refuses what is
// not in the list. Throws std::runtime_error that names the place, the value and what is accepted.
//
//   JsonObject gpu(document["gpu"], "gpu");
//   gpu.Number("kernel_ns", &kernel_ns);
//   gpu.RefuseOthers();
#ifndef HOSTCUDA_CLOCK_JSON_OBJECT_H_
#define HOSTCUDA_CLOCK_JSON_OBJECT_H_

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace hostcuda {

class JsonObject {
 public:
  JsonObject(const nlohmann::json& object, std::string where)
      : object_(object), where_(std::move(where)) {
    if (!object.is_object()) throw std::runtime_error(where_ + " is no object");
  }
  /// Sets *out where the key is there.
  void Number(const char* key, double* out, double least = 0) {
    known_.push_back(key);
    const auto found = object_.find(key);
    if (found == object_.end()) return;
    if (!found->is_number() || !(found->get<double>() >= least))
      throw std::runtime_error(where_ + "." + key + " is " + found->dump() +
                               ": expected a number of at least " + nlohmann::json(least).dump());
    *out = found->get<double>();
  }
  void Rate(const char* key, double* out) { Number(key, out, 1); }
  /// Sets *out where the key is there; a whole number from `least` to `most`.
  template <typename Integer>
  void Whole(const char* key, Integer* out, uint64_t least, uint64_t most) {
    known_.push_back(key);
    const auto found = object_.find(key);
    if (found == object_.end()) return;
    if (!found->is_number_unsigned() || found->get<uint64_t>() < least ||
        found->get<uint64_t>() > most)
      throw std::runtime_error(where_ + "." + key + " is " + found->dump() +
                               ": expected a whole number from " + std::to_string(least) + " to " +
                               std::to_string(most));
    *out = static_cast<Integer>(found->get<uint64_t>());
  }
  /// Returns the member, null where it is not there.
  const nlohmann::json* Member(const char* key) {
    known_.push_back(key);
    const auto found = object_.find(key);
    return found == object_.end() ? nullptr : &*found;
  }
  void RefuseOthers() const {
    for (const auto& [key, value] : object_.items()) {
      if (std::find(known_.begin(), known_.end(), key) != known_.end()) continue;
      std::string accepted;
      for (const std::string& k : known_) accepted += (accepted.empty() ? "" : ", ") + k;
      throw std::runtime_error(where_ + " has the unknown key \"" + key + "\"; known are " +
                               accepted);
    }
  }

 private:
  const nlohmann::json& object_;
  const std::string where_;
  std::vector<std::string> known_;
};

}  // namespace hostcuda

#endif  // HOSTCUDA_CLOCK_JSON_OBJECT_H_
