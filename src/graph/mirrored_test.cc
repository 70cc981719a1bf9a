#include "src/graph/mirrored.h"

#include <gtest/gtest.h>

#include <vector>

#include "src/trace/format.h"

namespace prism::graph {
namespace {

struct Sent {
  uint64_t count;
  bool mirrored;
};

// A thread that enqueues on one stream, step by step, one call of `counts` after the other; `ends`
// gets the last call of each step, and of what is before the first.
Program Steps(const std::vector<std::vector<Sent>>& steps, std::vector<Place>* ends) {
  Program program;
  program.participants.push_back({2, 0, 0, false});
  Sequence thread{}, stream{};
  thread.kind = trace::SequenceKind::kThread;
  stream.kind = trace::SequenceKind::kStream;
  for (const std::vector<Sent>& step : steps) {
    for (const Sent& sent : step) {
      const auto call = static_cast<uint32_t>(program.calls.size());
      program.calls.push_back(
          {0, trace::CommOp::kAllReduce, 7, 0, sent.count, 4 * sent.count, 1, kNone});
      Op op{};
      op.slot = kNone;
      op.kind = OpKind::kComm;
      op.a = call;
      op.b = call;
      op.detail = 1;
      Op enqueue{};
      enqueue.slot = kNone;
      enqueue.kind = OpKind::kEnqueue;
      enqueue.a = 1;
      enqueue.b = call;
      thread.ops.push_back(enqueue);
      thread.provenance.push_back(0);
      stream.ops.push_back(op);
      stream.provenance.push_back(trace::Provenance(
          {}, sent.mirrored ? trace::ValueSource::kMirrored : trace::ValueSource::kExact));
    }
    ends->push_back({1, static_cast<uint32_t>(stream.ops.size()) - 1});
  }
  program.sequences = {thread, stream};
  return program;
}

MirroredSteps Compared(const std::vector<std::vector<Sent>>& steps) {
  std::vector<Place> ends;
  const Program program = Steps(steps, &ends);
  return CompareMirrored(program, ends);
}

TEST(MirroredTest, StepsThatAreAllExactAreNotCompared) {
  const MirroredSteps of = Compared({{{9, false}}, {{1, false}}, {{2, false}}});
  EXPECT_EQ(of.mirrored, 0u);
  EXPECT_EQ(of.different, 0u);
}

TEST(MirroredTest, StepsAreComparedWithTheLastExactOne) {
  const MirroredSteps of = Compared({{{9, false}},
                                     {{1, false}, {2, false}},
                                     {{1, true}, {2, true}},
                                     {{1, true}, {3, true}},
                                     {{1, true}}});
  EXPECT_TRUE(of.any_exact);
  EXPECT_EQ(of.mirrored, 3u);
  EXPECT_EQ(of.different, 2u);
}

// A first step that is unlike the others lies behind what set the program up.
TEST(MirroredTest, ExactStepMayLieBeforeThoseThatWereFound) {
  const MirroredSteps same =
      Compared({{{9, false}, {1, false}, {2, false}}, {{1, false}, {2, true}}});
  EXPECT_TRUE(same.any_exact);
  EXPECT_EQ(same.different, 0u);
  EXPECT_EQ(Compared({{{9, false}, {1, false}, {2, false}}, {{2, false}, {2, true}}}).different,
            1u);
}

}  // namespace
}  // namespace prism::graph
