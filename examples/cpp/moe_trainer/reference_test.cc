// The oracle's own oracle: its gradients against differences of its loss.
#include "examples/cpp/moe_trainer/reference.h"

#include <gtest/gtest.h>

#include <cmath>

#include "examples/cpp/moe_trainer/random.h"

namespace moe_trainer {
namespace {

Model SmallModel() {
  Model model;
  model.layers = 2;
  model.hidden = 8;
  model.heads = 2;
  model.expert_hidden = 6;
  model.experts = 4;
  model.sequence = 6;
  model.vocabulary = 11;
  model.micro_batches = 2;
  model.imbalance = 0.3;
  return model;
}

// d loss along a random direction d of one matrix: g . d against D(h) = (L(p + h d) - L(p - h d)) /
// 2h. D's truncation is c h^2 + O(h^4), so D(2h) - D(h) is three times it; its rounding is that of
// two losses, each a sum of fewer than 2^12 terms, over 2h.
TEST(ReferenceTest, GradientsAreThoseOfTheLoss) {
  const Model model = SmallModel();
  Reference<double> reference(model, {.data = 2, .tensor = 2, .expert = 2});
  std::map<std::string, Reference<double>::Values> gradients, unused;
  const double loss = reference.Gradients(0, &gradients);
  uint64_t matrix = 0;
  for (auto& [name, values] : reference.parameters()) {
    const auto original = values;
    auto direction = values;
    double expected = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      for (size_t j = 0; j < values[i].size(); ++j) {
        direction[i][j] = Normal(3, Stream::kParameter, {matrix, i, j});
        expected += gradients[name][i][j] * direction[i][j];
      }
    }
    ++matrix;
    auto& parameter = values;
    const auto difference = [&](double h) {
      double side[2];
      for (const int s : {0, 1}) {
        for (size_t i = 0; i < parameter.size(); ++i)
          for (size_t j = 0; j < parameter[i].size(); ++j)
            parameter[i][j] = original[i][j] + (s == 0 ? h : -h) * direction[i][j];
        side[s] = reference.Gradients(0, &unused);
      }
      parameter = original;
      return (side[0] - side[1]) / (2 * h);
    };
    const double h = 1e-5, near = difference(h), far = difference(2 * h);
    const double rounding = 0x1p12 * 0x1p-53 * loss / h;
    EXPECT_LE(std::abs(near - expected), std::abs(far - near) + rounding) << name;
    EXPECT_GT(std::abs(expected), 100 * rounding) << name << " is not looked at by this direction";
  }
}

TEST(ReferenceTest, OrdersOfSummationDifferByRoundingOnly) {
  const Model model = SmallModel();
  std::map<std::string, Reference<double>::Values> whole, cut;
  Model twice = model;
  twice.micro_batches = 2 * model.micro_batches;  // the same sequences
  const double loss = Reference<double>(twice, {}).Gradients(0, &whole);
  const double same =
      Reference<double>(model, {.data = 2, .tensor = 2, .expert = 4}).Gradients(0, &cut);
  EXPECT_NEAR(loss, same, 0x1p-40 * loss);
  for (const auto& [name, values] : whole)
    for (size_t i = 0; i < values.size(); ++i)
      for (size_t j = 0; j < values[i].size(); ++j)
        EXPECT_NEAR(values[i][j], cut[name][i][j], 0x1p-40) << name;
}

TEST(ReferenceTest, LossFalls) {
  Reference<float> reference(SmallModel(), {});
  const float first = reference.Step(0);
  float last = first;
  for (int step = 1; step < 20; ++step) last = reference.Step(step);
  EXPECT_LT(last, first);
}

}  // namespace
}  // namespace moe_trainer
