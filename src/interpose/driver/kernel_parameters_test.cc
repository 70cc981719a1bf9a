#include "src/interpose/driver/kernel_parameters.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>

#include "src/trace/format.h"

namespace prism::interpose::driver {
namespace {

bool IsPointer(uint64_t word) { return word >= 0x7f0000000000 && word < 0x7f1000000000; }

template <class T>
uint64_t HashOf(const T& parameters) {
  return HashWithoutPointers(trace::kFnvOffset, &parameters, sizeof parameters, IsPointer);
}

TEST(KernelParametersTest, PointersDoNotCountAndEverythingElseDoes) {
  struct Problem {
    uint64_t a;
    uint32_t m, n;
    uint64_t b;
    float alpha;
    uint32_t end;
  };
  const Problem problem{0x7f0000000000, 64, 32, 0x7f0000001000, 1.0F, 0};
  Problem other = problem;
  other.a = 0x7f0fffffffff;
  other.b = 0x7f0000000008;
  EXPECT_EQ(HashOf(other), HashOf(problem));
  other.b = 0x7f1000000000;  // no address of device memory: a number
  EXPECT_NE(HashOf(other), HashOf(problem));
  for (const Problem& changed : {Problem{problem.a, 65, 32, problem.b, 1.0F, 0},
                                 Problem{problem.a, 64, 33, problem.b, 1.0F, 0},
                                 Problem{problem.a, 64, 32, problem.b, 2.0F, 0},
                                 Problem{problem.a, 64, 32, problem.b, 1.0F, 1}}) {
    EXPECT_NE(HashOf(changed), HashOf(problem));
  }
}

TEST(KernelParametersTest, ShortTailsCount) {
  const unsigned char eleven[11] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
  unsigned char other[11];
  for (size_t i = 0; i < sizeof other; ++i) {
    std::copy(std::begin(eleven), std::end(eleven), other);
    other[i] ^= 0x80;
    EXPECT_NE(HashOf(other), HashOf(eleven)) << i;
  }
}

TEST(KernelParametersTest, HashIsFnvOfTheBytes) {
  uint64_t expected = trace::kFnvOffset;
  const unsigned char bytes[] = {7, 0, 0, 0};
  for (unsigned char byte : bytes) expected = (expected ^ byte) * trace::kFnvPrime;
  EXPECT_EQ(HashOf(uint32_t{7}), expected);
}

TEST(KernelParametersTest, NobodyAskedMeansUnknown) {
  uint32_t value = 1;
  void* parameters[] = {&value};
  EXPECT_EQ(KernelParameters({}, parameters, nullptr), trace::kParametersUnknown);
}

}  // namespace
}  // namespace prism::interpose::driver
