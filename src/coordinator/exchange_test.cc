#include "src/coordinator/exchange.h"

#include <numeric>

#include "gtest/gtest.h"
#include "src/coordinator/arithmetic.h"

namespace prism::coordinator {
namespace {

using wire::Op;
constexpr uint32_t kInt32 = static_cast<uint32_t>(DataType::kInt32);
constexpr uint32_t kSum = static_cast<uint32_t>(Reduction::kSum);

// Three ranks; element i of rank r's input is 100 r + i.
class ExchangeTest : public testing::Test {
 protected:
  static constexpr uint32_t kRanks = 3;

  void Run(Op op, uint64_t count, int32_t root) {
    in_.assign(kRanks, {});
    out_.assign(kRanks, {});
    std::vector<ExchangeBuffers> buffers(kRanks);
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      const ExchangeShape shape = ShapeOf(op, kRanks, rank, root, count, 4);
      in_[rank].resize(shape.in_bytes / 4);
      std::iota(in_[rank].begin(), in_[rank].end(), static_cast<int32_t>(100 * rank));
      out_[rank].assign(shape.out_bytes / 4, -1);
      if (shape.in_bytes != 0)
        buffers[rank].in = reinterpret_cast<const std::byte*>(in_[rank].data());
      if (shape.out_bytes != 0) buffers[rank].out = reinterpret_cast<std::byte*>(out_[rank].data());
    }
    ASSERT_TRUE(ExecuteCollective({op, kInt32, kSum, root, count, {}}, buffers).ok());
  }
  std::vector<std::vector<int32_t>> in_, out_;
  using V = std::vector<int32_t>;
};

TEST_F(ExchangeTest, AllReduce) {
  Run(Op::kAllReduce, 2, -1);
  for (const V& out : out_) EXPECT_EQ(out, (V{300, 303}));
}
TEST_F(ExchangeTest, ReduceReachesTheRootOnly) {
  Run(Op::kReduce, 2, 1);
  EXPECT_EQ(out_[1], (V{300, 303}));
  EXPECT_TRUE(out_[0].empty());
}
TEST_F(ExchangeTest, Broadcast) {
  Run(Op::kBroadcast, 2, 2);
  for (const V& out : out_) EXPECT_EQ(out, (V{200, 201}));
}
TEST_F(ExchangeTest, AllGather) {
  Run(Op::kAllGather, 2, -1);
  for (const V& out : out_) EXPECT_EQ(out, (V{0, 1, 100, 101, 200, 201}));
}
TEST_F(ExchangeTest, ReduceScatter) {
  Run(Op::kReduceScatter, 2, -1);
  EXPECT_EQ(out_[0], (V{300, 303}));
  EXPECT_EQ(out_[1], (V{306, 309}));
  EXPECT_EQ(out_[2], (V{312, 315}));
}
TEST_F(ExchangeTest, AllToAll) {
  Run(Op::kAllToAll, 1, -1);
  EXPECT_EQ(out_[0], (V{0, 100, 200}));
  EXPECT_EQ(out_[2], (V{2, 102, 202}));
}
TEST_F(ExchangeTest, GatherAndScatter) {
  Run(Op::kGather, 1, 1);
  EXPECT_EQ(out_[1], (V{0, 100, 200}));
  Run(Op::kScatter, 2, 1);
  EXPECT_EQ(out_[0], (V{100, 101}));
  EXPECT_EQ(out_[2], (V{104, 105}));
}

TEST_F(ExchangeTest, InPlaceAsNcclDefinesIt) {
  // AllGather: the input is part r of the output; ReduceScatter: the output is part r of the input.
  std::vector<std::vector<int32_t>> memory{{1, 0, 0}, {0, 2, 0}, {0, 0, 3}};
  std::vector<ExchangeBuffers> buffers;
  for (uint32_t r = 0; r < kRanks; ++r) {
    auto* base = reinterpret_cast<std::byte*>(memory[r].data());
    buffers.push_back({base + 4 * r, base});
  }
  ASSERT_TRUE(ExecuteCollective({Op::kAllGather, kInt32, kSum, -1, 1, {}}, buffers).ok());
  for (const V& m : memory) EXPECT_EQ(m, (V{1, 2, 3}));
  for (uint32_t r = 0; r < kRanks; ++r) {
    auto* base = reinterpret_cast<std::byte*>(memory[r].data());
    buffers[r] = {base, base + 4 * r};
  }
  ASSERT_TRUE(ExecuteCollective({Op::kReduceScatter, kInt32, kSum, -1, 1, {}}, buffers).ok());
  EXPECT_EQ(memory[0][0], 3);
  EXPECT_EQ(memory[1][1], 6);
  EXPECT_EQ(memory[2][2], 9);
}

TEST_F(ExchangeTest, MissingInputIsNamed) {
  int32_t x = 0;
  auto* p = reinterpret_cast<std::byte*>(&x);
  const absl::Status status =
      ExecuteCollective({Op::kAllReduce, kInt32, kSum, -1, 1, {}}, {{p, p}, {nullptr, p}});
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(), "AllReduce: rank 1 brought no input");
}

}  // namespace
}  // namespace prism::coordinator
