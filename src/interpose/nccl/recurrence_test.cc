#include "src/interpose/nccl/recurrence.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "src/interpose/nccl/launch.h"
#include "src/interpose/nccl/mirror.h"

namespace prism::interpose::nccl {
namespace {

int g_taken = 0;

CoreTable Core() {
  CoreTable core{};
  core.arena_take = [](uint64_t bytes, ArenaSlot* slot) {
    ++g_taken;
    *slot = {malloc(bytes), 0, bytes};
    return true;
  };
  core.arena_give = [](const ArenaSlot* slot) {
    --g_taken;
    free(slot->host);
  };
  return core;
}

wire::OpRecord Record(wire::Op op, uint64_t count, int32_t peer = -1) {
  wire::OpRecord record{};
  record.op = op;
  record.dtype = ncclFloat32;
  record.count = count;
  record.peer = peer;
  record.in_bytes = op == wire::Op::kRecv ? 0 : 4 * count;
  record.out_bytes = op == wire::Op::kSend ? 0 : 4 * count;
  return record;
}

const wire::OpRecord kMessage = Record(wire::Op::kRecv, 1);

TEST(RecurrenceTest, WhatASetUpCommunicatesOtherwiseDisplacesNothing) {
  const CoreTable core = Core();
  Recurrence recurrence;
  const wire::OpRecord weights = Record(wire::Op::kBroadcast, 5000),
                       gather = Record(wire::Op::kAllGather, 600);
  recurrence.Begin(0, weights);
  recurrence.Begin(0, Record(wire::Op::kAllGather, 3));
  const auto* kept = recurrence.Keep(core, recurrence.Begin(0, gather), 0, gather);
  ASSERT_NE(kept, nullptr);
  EXPECT_EQ(recurrence.Find(recurrence.Begin(1, gather), 0, gather), kept);
}

TEST(RecurrenceTest, WhatRepeatsWithinARoundMovesAndRecursInTheNext) {
  Recurrence recurrence;
  const wire::OpRecord layer = Record(wire::Op::kAllGather, 1000);
  for (int i = 0; i < 48; ++i) EXPECT_FALSE(recurrence.Recurs(recurrence.Begin(0, layer), layer));
  EXPECT_TRUE(recurrence.Recurs(recurrence.Begin(1, layer), layer));
  // What comes for the first time moves, whenever that is, and for the rest of its round.
  const wire::OpRecord late = Record(wire::Op::kAllReduce, 1000);
  EXPECT_FALSE(recurrence.Recurs(recurrence.Begin(1, late), late));
  EXPECT_FALSE(recurrence.Recurs(recurrence.Begin(1, late), late));
  EXPECT_TRUE(recurrence.Recurs(recurrence.Begin(2, late), late));
}

TEST(RecurrenceTest, CollectivesAreAlikeBySizeAndMessagesByPeer) {
  Recurrence recurrence;
  const auto recurs = [&](const wire::OpRecord& record, uint32_t round) {
    return recurrence.Recurs(recurrence.Begin(round, record), record);
  };
  EXPECT_FALSE(recurs(Record(wire::Op::kAllReduce, 1024), 0));
  EXPECT_FALSE(recurs(Record(wire::Op::kSend, 1024, 1), 0));
  EXPECT_FALSE(recurs(Record(wire::Op::kAllReduce, 4096), 1));
  EXPECT_TRUE(recurs(Record(wire::Op::kAllReduce, 2047), 1));
  EXPECT_TRUE(recurs(Record(wire::Op::kSend, 9, 1), 1));
  EXPECT_FALSE(recurs(Record(wire::Op::kSend, 1024, 2), 1));
}

TEST(RecurrenceTest, SignaturesAreBoundedAndOthersMove) {
  Recurrence recurrence;
  const auto recurs = [&](uint32_t round, int peer) {
    const wire::OpRecord record = Record(wire::Op::kSend, 1, peer);
    return recurrence.Recurs(recurrence.Begin(round, record), record);
  };
  for (int peer = 0; peer < 5000; ++peer) EXPECT_FALSE(recurs(0, peer));
  EXPECT_TRUE(recurs(1, 4095));
  EXPECT_FALSE(recurs(1, 4096));
}

TEST(RecurrenceTest, KeptPayloadIsFoundAtTheSamePlaceOfALaterRound) {
  const CoreTable core = Core();
  {
    Recurrence recurrence;
    const Recurrence::Place first = recurrence.Begin(0, kMessage),
                            second = recurrence.Begin(0, kMessage);
    const auto* one = recurrence.Keep(core, first, 0, Record(wire::Op::kRecv, 100, 3));
    const auto* two = recurrence.Keep(core, second, 1, Record(wire::Op::kRecv, 200, 3));
    ASSERT_NE(one, nullptr);
    ASSERT_NE(two, nullptr);
    EXPECT_EQ(one->bytes, 400u);
    // In the next round another size, and a peer that sent nothing then.
    const Recurrence::Place again = recurrence.Begin(1, kMessage),
                            then = recurrence.Begin(1, kMessage);
    EXPECT_EQ(recurrence.Find(again, 0, Record(wire::Op::kRecv, 170, 3)), one);
    EXPECT_EQ(recurrence.Find(then, 0, Record(wire::Op::kRecv, 170, 5)), two);
    EXPECT_EQ(recurrence.Find(recurrence.Begin(1, kMessage), 0, Record(wire::Op::kRecv, 1, 3)),
              nullptr);
    // What is kept stays as it is.
    EXPECT_EQ(recurrence.Keep(core, again, 0, Record(wire::Op::kRecv, 100, 3)), nullptr);
    EXPECT_EQ(recurrence.Keep(core, again, 0, Record(wire::Op::kSend, 100, 4)), nullptr);
    EXPECT_EQ(g_taken, 2);
  }
  EXPECT_EQ(g_taken, 0);
}

TEST(RecurrenceTest, CollectivesAreKeptWholeOrNot) {
  const CoreTable core = Core();
  Recurrence recurrence;
  const wire::OpRecord gather = Record(wire::Op::kAllGather, 1);
  const Recurrence::Place place = recurrence.Begin(0, gather);
  const uint64_t most = Recurrence::kKeptBytes / 4;
  EXPECT_EQ(recurrence.Keep(core, place, 0, Record(wire::Op::kAllGather, most + 1)), nullptr);
  EXPECT_NE(recurrence.Keep(core, place, 1, Record(wire::Op::kAllGather, most)), nullptr);
  // Not yet there for its own round.
  EXPECT_EQ(recurrence.Find(place, 1, Record(wire::Op::kAllGather, most)), nullptr);
  const Recurrence::Place again = recurrence.Begin(1, gather);
  EXPECT_NE(recurrence.Find(again, 1, Record(wire::Op::kAllGather, most)), nullptr);
  EXPECT_EQ(recurrence.Find(again, 1, Record(wire::Op::kAllGather, most - 1)), nullptr);
  // Of a message its beginning.
  const auto* message = recurrence.Keep(core, place, 2, Record(wire::Op::kRecv, 2 * most, 0));
  ASSERT_NE(message, nullptr);
  EXPECT_EQ(message->bytes, Recurrence::kKeptBytes);
}

TEST(RecurrenceTest, WhatIsKeptIsBounded) {
  const CoreTable core = Core();
  const uint64_t count = Recurrence::kKeptBytes / 4;
  const auto room = Recurrence::kKeptTotalBytes / Recurrence::kKeptBytes;
  {
    Recurrence recurrence, other;
    for (uint64_t i = 0; i < room; ++i) {
      EXPECT_NE(recurrence.Keep(core, recurrence.Begin(0, kMessage), 0,
                                Record(wire::Op::kRecv, count, 0)),
                nullptr);
    }
    EXPECT_EQ(other.Keep(core, other.Begin(0, kMessage), 0, Record(wire::Op::kRecv, count, 0)),
              nullptr);
  }
  Recurrence later;
  EXPECT_NE(later.Keep(core, later.Begin(0, kMessage), 0, Record(wire::Op::kRecv, count, 0)),
            nullptr);
}

// Four members that bring 1.5 and 3 each.
TEST(MirrorTest, ReductionsOfOwnDataAreScaledAsTheyDemand) {
  wire::OpRecord record = Record(wire::Op::kAllReduce, 2);
  const auto floats = [&](uint32_t reduction) {
    record.reduction = reduction;
    std::array<float, 2> data{1.5f, 3.0f};
    Repeat(record, 4, data.data());
    return data;
  };
  EXPECT_EQ(floats(ncclSum), (std::array{6.0f, 12.0f}));
  EXPECT_EQ(floats(ncclProd), (std::array{5.0625f, 81.0f}));
  const float half = 0.5f;
  memcpy(&record.scalar_bits, &half, sizeof half);
  EXPECT_EQ(floats(wire::kRedOpPreMulSum), (std::array{3.0f, 6.0f}));

  record.reduction = ncclSum;
  record.dtype = ncclBfloat16;
  record.out_bytes = 4;
  std::array<uint16_t, 2> bfloat{0x3fc0, 0x4040};
  Repeat(record, 4, bfloat.data());
  EXPECT_EQ(bfloat, (std::array<uint16_t, 2>{0x40c0, 0x4140}));
  record.dtype = ncclFloat16;
  std::array<uint16_t, 2> half_floats{0x3e00, 0x4200};
  Repeat(record, 4, half_floats.data());
  EXPECT_EQ(half_floats, (std::array<uint16_t, 2>{0x4600, 0x4a00}));
  record.dtype = ncclInt8;
  std::array<int8_t, 4> bytes{1, -1, 63, 100};
  Repeat(record, 4, bytes.data());
  EXPECT_EQ(bytes, (std::array<int8_t, 4>{4, -4, -4, -112}));  // modular
}

TEST(MirrorTest, OnlyReductionsThatScaleNeedArithmetic) {
  Operation operation;
  operation.comm = std::make_shared<Communicator>(4, 0, 0, true);
  operation.record = Record(wire::Op::kAllReduce, 1);
  for (const auto& [reduction, needs] : {std::pair<uint32_t, bool>{ncclSum, true},
                                         {ncclAvg, false},
                                         {ncclMax, false},
                                         {ncclMin, false},
                                         {ncclProd, true},
                                         {wire::kRedOpPreMulSum, true}}) {
    operation.record.reduction = reduction;
    EXPECT_EQ(NeedsArithmetic(operation), needs) << reduction;
  }
  operation.record = Record(wire::Op::kAllGather, 1);
  EXPECT_FALSE(NeedsArithmetic(operation));
}

// Rank 2 of four: its own part is what it brings now, the others' what they brought then.
TEST(MirrorTest, KeptCollectiveTakesTheOwnPartAfresh) {
  Operation operation;
  operation.comm = std::make_shared<Communicator>(4, 2, 0, true);
  operation.record = Record(wire::Op::kAllGather, 4);
  operation.record.out_bytes = 64;
  operation.input = reinterpret_cast<void*>(0x1000);
  operation.output = reinterpret_cast<void*>(0x2000);
  Recurrence::Kept kept{wire::Op::kAllGather, 0, 64, {reinterpret_cast<void*>(0x3000), 0, 64}};
  std::vector<StandInSegment> segments;
  AddKept(operation, kept, &segments);
  ASSERT_EQ(segments.size(), 3u);
  const auto is = [&](size_t i, uint64_t from, uint64_t to, uint64_t bytes) {
    return segments[i].from == from && segments[i].to == to && segments[i].bytes == bytes;
  };
  EXPECT_TRUE(is(0, 0x3000, 0x2000, 32));
  EXPECT_TRUE(is(1, 0x1000, 0x2020, 16));
  EXPECT_TRUE(is(2, 0x3030, 0x2030, 16));

  // A message of two and a half times what was kept.
  operation.record = Record(wire::Op::kRecv, 40, 1);
  segments.clear();
  AddKept(operation, kept, &segments);
  ASSERT_EQ(segments.size(), 2u);
  EXPECT_TRUE(is(0, 0x3000, 0x2000, 64));
  EXPECT_EQ(segments[0].repeats, 2u);
  EXPECT_TRUE(is(1, 0x3000, 0x2080, 32));
}

TEST(RecurrenceTest, ARootThatGivesKeepsNothing) {
  const CoreTable core = Core();
  Recurrence recurrence;
  wire::OpRecord root = Record(wire::Op::kBroadcast, 1000, 0);
  EXPECT_EQ(recurrence.Keep(core, recurrence.Begin(0, root), 0, root), nullptr);
  wire::OpRecord other = root;
  other.in_bytes = 0;
  EXPECT_NE(recurrence.Keep(core, recurrence.Begin(0, other), 0, other), nullptr);
}

}  // namespace
}  // namespace prism::interpose::nccl
