#include "src/emulate/router.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/status/status.h"
#include "fmt/format.h"
#include "src/base/split_mix.h"
#include "src/base/status.h"

namespace prism::emulate {
namespace {

constexpr uint32_t kFewestSamples = 8, kMostSamples = 65536;
constexpr size_t kPoints = 4097;  // at most, of a distribution's support
constexpr size_t kMoments = 4;    // t, t^2, t^3, which side of the median
constexpr size_t kBlocks = 256;   // that are kept

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Below(uint64_t n) { return SplitMix(state_++) % n; }

 private:
  uint64_t state_;
};

template <class T>
void Shuffle(std::vector<T>* values, Random* random) {
  for (size_t i = values->size(); i > 1; --i)
    std::swap((*values)[i - 1], (*values)[random->Below(i)]);
}

// Solves a x = b by elimination with pivots; false: singular.
bool Solve(std::array<std::array<double, kMoments>, kMoments> a, std::array<double, kMoments> b,
           std::array<double, kMoments>* x) {
  for (size_t i = 0; i < kMoments; ++i) {
    size_t pivot = i;
    for (size_t r = i + 1; r < kMoments; ++r) {
      if (std::abs(a[r][i]) > std::abs(a[pivot][i])) pivot = r;
    }
    if (std::abs(a[pivot][i]) < 1e-300) return false;
    std::swap(a[i], a[pivot]);
    std::swap(b[i], b[pivot]);
    for (size_t r = i + 1; r < kMoments; ++r) {
      const double factor = a[r][i] / a[i][i];
      for (size_t c = i; c < kMoments; ++c) a[r][c] -= factor * a[i][c];
      b[r] -= factor * b[i];
    }
  }
  for (size_t i = kMoments; i-- > 0;) {
    double sum = b[i];
    for (size_t c = i + 1; c < kMoments; ++c) sum -= a[i][c] * (*x)[c];
    (*x)[i] = sum / a[i][i];
  }
  return true;
}

using Features = std::array<double, kMoments>;

// Probabilities proportional to exp(weights * features), and the logarithm of their sum less
// weights * target: the dual of greatest entropy, whose minimum has the target's moments.
double Dual(const std::vector<Features>& features, const Features& target, const Features& weights,
            std::vector<double>* p) {
  double highest = -1e300;
  for (size_t i = 0; i < features.size(); ++i) {
    (*p)[i] = std::inner_product(weights.begin(), weights.end(), features[i].begin(), 0.0);
    highest = std::max(highest, (*p)[i]);
  }
  double sum = 0;
  for (double& value : *p) sum += value = std::exp(value - highest);
  for (double& value : *p) value /= sum;
  return std::log(sum) + highest -
         std::inner_product(weights.begin(), weights.end(), target.begin(), 0.0);
}

// Newton's method on the dual. False: it has no minimum, no distribution has these moments.
bool GreatestEntropy(const std::vector<Features>& features, const Features& target,
                     std::vector<double>* p) {
  Features weights{};
  double value = Dual(features, target, weights, p);
  for (int round = 0; round < 200; ++round) {
    Features gradient{};
    std::array<std::array<double, kMoments>, kMoments> hessian{};
    for (size_t i = 0; i < features.size(); ++i) {
      for (size_t a = 0; a < kMoments; ++a) gradient[a] += (*p)[i] * features[i][a];
    }
    for (size_t i = 0; i < features.size(); ++i) {
      for (size_t a = 0; a < kMoments; ++a) {
        for (size_t b = 0; b < kMoments; ++b)
          hessian[a][b] +=
              (*p)[i] * (features[i][a] - gradient[a]) * (features[i][b] - gradient[b]);
      }
    }
    double error = 0;
    for (size_t a = 0; a < kMoments; ++a) {
      gradient[a] -= target[a];
      error = std::max(error, std::abs(gradient[a]));
      hessian[a][a] += 1e-12;
    }
    if (error < 1e-6) return true;
    Features step{};
    if (!Solve(hessian, gradient, &step)) return false;
    double length = 1;
    for (;; length /= 2) {
      if (length < 1e-12) return error < 1e-3;
      Features next = weights;
      for (size_t a = 0; a < kMoments; ++a) next[a] -= length * step[a];
      const double reached = Dual(features, target, next, p);
      if (!std::isfinite(reached) || reached >= value) continue;
      weights = next;
      value = reached;
      break;
    }
  }
  return false;
}

absl::Status Impossible(const SplitStatistics& s, std::string_view why) {
  return WithHint(
      absl::InvalidArgumentError(fmt::format(
          "no distribution has minimum {}, maximum {}, mean {}, deviation {}, median {} and skew "
          "{}: {}",
          s.minimum, s.maximum, s.mean, s.deviation, s.median, s.skew, why)),
      "take all six from the same counts");
}

}  // namespace

absl::StatusOr<std::vector<int64_t>> SampleWith(const SplitStatistics& s, uint32_t samples) {
  if (samples < kFewestSamples || samples > kMostSamples) {
    return absl::InvalidArgumentError(
        fmt::format("{} samples, {} to {} are possible", samples, kFewestSamples, kMostSamples));
  }
  for (const double value : {s.minimum, s.maximum, s.mean, s.deviation, s.median, s.skew}) {
    if (!std::isfinite(value) || std::abs(value) > 1e15)
      return Impossible(s, "not all of them are numbers below 1e15");
  }
  if (s.minimum < 0 || s.deviation < 0) return Impossible(s, "counts are not negative");
  if (s.mean < s.minimum || s.mean > s.maximum || s.median < s.minimum || s.median > s.maximum)
    return Impossible(s, "mean and median lie between the extremes");
  const double low = std::round(s.minimum), high = std::round(s.maximum);
  if (low == high || s.deviation == 0) {
    if (low != high) return Impossible(s, "without deviation the extremes are equal");
    return std::vector<int64_t>(samples, static_cast<int64_t>(low));
  }
  if (s.deviation * s.deviation > (s.maximum - s.mean) * (s.mean - s.minimum) + 1e-9)
    return Impossible(s, "the deviation is larger than the extremes allow");

  // In t from -1 to 1; one sample at either extreme, the others by their distribution.
  const double middle = (low + high) / 2, half = (high - low) / 2;
  const auto n = static_cast<double>(samples);
  const double mean = (s.mean - middle) / half, deviation = s.deviation / half;
  const double second = mean * mean + deviation * deviation;
  const double third =
      s.skew * deviation * deviation * deviation + 3 * mean * second - 2 * mean * mean * mean;
  const Features target{n * mean / (n - 2), (n * second - 2) / (n - 2), n * third / (n - 2), 0};
  const auto points = static_cast<size_t>(std::min<double>(kPoints, high - low + 1));
  std::vector<double> at(points);
  std::vector<Features> features(points);
  for (size_t i = 0; i < points; ++i) {
    const double t = -1 + 2 * static_cast<double>(i) / static_cast<double>(points - 1);
    at[i] = middle + half * t;
    const double side = at[i] - s.median;
    features[i] = {t, t * t, t * t * t, std::abs(side) < 0.5 ? 0.0 : side < 0 ? -1.0 : 1.0};
  }
  std::vector<double> p(points);
  if (!GreatestEntropy(features, target, &p)) {
    return Impossible(s, fmt::format("not of {} counts with these extremes, at least", samples));
  }
  std::vector<int64_t> values{static_cast<int64_t>(low)};
  double below = 0;
  size_t point = 0;
  for (uint32_t i = 0; i + 2 < samples; ++i) {
    const double quantile = (i + 0.5) / (n - 2);
    while (point + 1 < points && below + p[point] < quantile) below += p[point++];
    values.push_back(std::llround(at[point]));
  }
  values.push_back(static_cast<int64_t>(high));
  return values;
}

absl::StatusOr<MockRouter::Block> MockRouter::Draw(uint64_t seed, uint32_t members,
                                                   int64_t total) const {
  if (spec_.members.size() != 1 && spec_.members.size() != members) {
    return WithHint(
        absl::InvalidArgumentError(fmt::format("a router for {} members on a communicator of {}",
                                               spec_.members.size(), members)),
        "state one set of statistics for all members, or one for each");
  }
  const auto of = [&](uint32_t member) {
    return spec_.members[spec_.members.size() == 1 ? 0 : member];
  };
  double means = 0;
  for (uint32_t j = 0; j < members; ++j) means += of(j).mean;
  if (means <= 0) return absl::InvalidArgumentError("a router whose means are all 0");
  const double scale = static_cast<double>(total) / means;
  const uint32_t samples = spec_.samples;
  Random random(seed);
  std::vector<std::vector<int64_t>> columns(members);
  std::vector<int64_t> sums(samples, 0);
  for (uint32_t j = 0; j < members; ++j) {
    SplitStatistics s = of(j);
    for (double* value : {&s.minimum, &s.maximum, &s.mean, &s.deviation, &s.median})
      *value *= scale;
    PRISM_ASSIGN_OR_RETURN(columns[j], SampleWith(s, samples));
    Shuffle(&columns[j], &random);
    for (uint32_t k = 0; k < samples; ++k) sums[k] += columns[j][k];
  }
  // Each column in the order opposite to what the others add up to, until nothing changes.
  std::vector<uint32_t> order(samples);
  for (int sweep = 0; sweep < 32 && members > 1; ++sweep) {
    bool changed = false;
    for (std::vector<int64_t>& column : columns) {
      for (uint32_t k = 0; k < samples; ++k) sums[k] -= column[k];
      std::iota(order.begin(), order.end(), 0u);
      std::stable_sort(order.begin(), order.end(),
                       [&](uint32_t a, uint32_t b) { return sums[a] < sums[b]; });
      std::vector<int64_t> sorted = column;
      std::sort(sorted.begin(), sorted.end(), std::greater<>());
      for (uint32_t i = 0; i < samples; ++i) {
        const uint32_t k = order[i];
        changed = changed || column[k] != sorted[i];
        column[k] = sorted[i];
        sums[k] += sorted[i];
      }
    }
    if (!changed) break;
  }
  std::iota(order.begin(), order.end(), 0u);
  Shuffle(&order, &random);
  Block block;
  for (const uint32_t k : order) {
    std::vector<int64_t> row(members);
    for (uint32_t j = 0; j < members; ++j) row[j] = columns[j][k];
    // Within the extremes first, then wherever there is room.
    int64_t left = total - sums[k];
    for (const bool bounded : {true, false}) {
      uint32_t idle = 0;
      for (uint64_t j = random.Below(members); left != 0 && idle < members; j = (j + 1) % members) {
        const int64_t step = left > 0 ? 1 : -1;
        const int64_t next = row[j] + step;
        const SplitStatistics s = of(static_cast<uint32_t>(j));
        const bool fits = next >= 0 && (!bounded || (next >= std::llround(s.minimum * scale) &&
                                                     next <= std::llround(s.maximum * scale)));
        idle = fits ? 0 : idle + 1;
        if (!fits) continue;
        row[j] = next;
        left -= step;
      }
    }
    block.push_back(std::move(row));
  }
  return block;
}

absl::StatusOr<std::vector<int64_t>> MockRouter::Row(uint32_t comm, uint32_t source,
                                                     uint64_t exchange, uint32_t members,
                                                     int64_t total) {
  const uint64_t number = exchange / spec_.samples;
  const auto key = std::tuple(comm, source, number, members, total);
  auto found = blocks_.find(key);
  if (found == blocks_.end()) {
    if (blocks_.size() >= kBlocks) blocks_.clear();
    const uint64_t seed =
        SplitMix(SplitMix(SplitMix(SplitMix(spec_.seed) ^ comm) ^ source) ^ number);
    PRISM_ASSIGN_OR_RETURN(Block block, Draw(seed, members, total));
    found = blocks_.emplace(key, std::move(block)).first;
  }
  return found->second[exchange % spec_.samples];
}

std::vector<int64_t> Divide(int64_t tokens, uint32_t parts, uint64_t key) {
  std::vector<int64_t> divided(parts, tokens / parts);
  const uint64_t first = SplitMix(key) % parts;
  for (int64_t i = 0; i < tokens % parts; ++i)
    ++divided[(first + static_cast<uint64_t>(i)) % parts];
  return divided;
}

absl::StatusOr<RouterSpec> ParseRouter(const nlohmann::json& json, const std::string& where) {
  const auto bad = [&](std::string what, std::string remedy) {
    return WithHint(absl::InvalidArgumentError(where + what), remedy);
  };
  if (!json.is_object()) return bad(" is no object", "{\"seed\": 1, \"members\": [...]}");
  RouterSpec spec;
  for (const auto& [key, value] : json.items()) {
    if (key == "schema" || key == "schema_version") continue;
    if (key == "seed" && value.is_number_unsigned()) {
      spec.seed = value.get<uint64_t>();
    } else if (key == "samples" && value.is_number_unsigned() &&
               value.get<uint64_t>() >= kFewestSamples && value.get<uint64_t>() <= kMostSamples) {
      spec.samples = value.get<uint32_t>();
    } else if (key == "members" && value.is_array() && !value.empty()) {
      for (const nlohmann::json& member : value) {
        SplitStatistics s;
        const std::pair<const char*, double*> fields[] = {
            {"minimum", &s.minimum},     {"maximum", &s.maximum}, {"mean", &s.mean},
            {"deviation", &s.deviation}, {"median", &s.median},   {"skew", &s.skew}};
        const std::string at = fmt::format("{}.members[{}]", where, spec.members.size());
        for (const auto& [name, to] : fields) {
          if (!member.is_object() || !member.contains(name) || !member[name].is_number()) {
            return WithHint(
                absl::InvalidArgumentError(fmt::format("{} has no number '{}'", at, name)),
                "minimum, maximum, mean, deviation, median and skew are needed");
          }
          *to = member[name].get<double>();
        }
        if (const auto sample = SampleWith(s, spec.samples); !sample.ok()) {
          return WithHint(
              absl::InvalidArgumentError(at + ": " + std::string(sample.status().message())),
              HintOf(sample.status()));
        }
        spec.members.push_back(s);
      }
    } else {
      return bad(fmt::format(".{} is {}", key, value.dump().substr(0, 80)),
                 fmt::format("seed: a number; samples: {} to {}; members: a list of statistics",
                             kFewestSamples, kMostSamples));
    }
  }
  if (spec.members.empty()) return bad(" has no members", "members: a list of statistics");
  return spec;
}

}  // namespace prism::emulate
