#include "src/trace/writer.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "src/trace/crc32c.h"

namespace prism::trace {
namespace {

using ::testing::ElementsAre;

// Bit-by-bit CRC-32C, the oracle of the tables and of the instruction.
uint32_t SlowCrc(const std::string& bytes) {
  uint32_t crc = ~0u;
  for (unsigned char byte : bytes) {
    crc ^= byte;
    for (int i = 0; i < 8; ++i) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78u : 0u);
  }
  return ~crc;
}

struct Chunk {
  ChunkHeader header;
  std::string payload;
};

// Reads a file by the letter of format.h, and nothing else.
struct RawFile {
  FileHeader header{};
  std::vector<Chunk> chunks;
  std::map<uint32_t, std::vector<Node>> nodes;

  explicit RawFile(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    const std::string all((std::istreambuf_iterator<char>(in)), {});
    EXPECT_GE(all.size(), sizeof(header));
    std::memcpy(&header, all.data(), sizeof(header));
    size_t at = sizeof(header);
    while (at < all.size()) {
      Chunk chunk{};
      EXPECT_LE(at + sizeof(ChunkHeader), all.size());
      std::memcpy(&chunk.header, all.data() + at, sizeof(ChunkHeader));
      EXPECT_EQ(chunk.header.magic, kChunkMagic);
      EXPECT_LE(at + sizeof(ChunkHeader) + chunk.header.bytes, all.size());
      chunk.payload = all.substr(at + sizeof(ChunkHeader), chunk.header.bytes);
      ChunkHeader zeroed = chunk.header;
      zeroed.header_crc32c = 0;
      EXPECT_EQ(SlowCrc(std::string(reinterpret_cast<const char*>(&zeroed), sizeof(zeroed))),
                chunk.header.header_crc32c);
      EXPECT_EQ(SlowCrc(chunk.payload), chunk.header.crc32c);
      at += sizeof(ChunkHeader) + (chunk.header.bytes + 15) / 16 * 16;
      if (chunk.header.kind == ChunkKind::kNodes) {
        std::vector<Node>& sequence = nodes[chunk.header.sequence];
        EXPECT_EQ(chunk.header.first, sequence.size());
        EXPECT_EQ(chunk.header.bytes, chunk.header.count * sizeof(Node));
        sequence.resize(sequence.size() + chunk.header.count);
        std::memcpy(&sequence[chunk.header.first], chunk.payload.data(), chunk.payload.size());
      }
      chunks.push_back(std::move(chunk));
    }
  }

  const Chunk* Find(ChunkKind kind) const {
    for (const Chunk& c : chunks) {
      if (c.header.kind == kind) return &c;
    }
    return nullptr;
  }
  uint64_t Count(ChunkKind kind) const {
    uint64_t count = 0;
    for (const Chunk& c : chunks) count += c.header.kind == kind ? c.header.count : 0;
    return count;
  }
};

// "kind a b" of each node, the kind as its number.
std::vector<std::string> Text(const std::vector<Node>& nodes) {
  std::vector<std::string> out;
  for (const Node& n : nodes) {
    out.push_back(std::to_string(static_cast<int>(n.kind)) + " " + std::to_string(n.a) + " " +
                  std::to_string(n.b));
  }
  return out;
}

class WriterTest : public ::testing::Test {
 protected:
  std::string path_ = ::testing::TempDir() + "/writer_test_" + std::to_string(getpid()) + ".prt";
  void TearDown() override { unlink(path_.c_str()); }

  static uint32_t Kernel(Writer& w, const char* name) {
    const uint32_t one[3] = {1, 1, 1};
    return w.Kernel(KernelKind::kKernel, name, one, one, 0, 0);
  }
  static uint32_t Call(Writer& w, CommOp op, uint32_t group = 1) {
    CallRecord call{};
    call.comm = 1;
    call.op = static_cast<uint32_t>(op);
    call.peer = -1;
    call.group = group;
    return w.Call(call);
  }
};

TEST(Crc32cTest, PublishedVectors) {
  EXPECT_EQ(ExtendCrc32c(0, "123456789", 9), 0xe3069283u);
  const std::string zeros(32, '\0');  // RFC 3720, B.4
  EXPECT_EQ(ExtendCrc32c(0, zeros.data(), zeros.size()), 0x8a9136aau);
}

TEST(Crc32cTest, PortableAndInstructionAgreeWithBitwise) {
  std::string bytes;
  for (int i = 0; i < 300; ++i) {
    EXPECT_EQ(ExtendCrc32c(0, bytes.data(), bytes.size()), SlowCrc(bytes));
    EXPECT_EQ(~crc32c_internal::ExtendPortable(
                  ~0u, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size()),
              SlowCrc(bytes));
    bytes.push_back(static_cast<char>(i * 37));
  }
}

TEST_F(WriterTest, SpansEndAtOtherNodesAndAreStoredOnce) {
  Writer w;
  ASSERT_EQ(w.Open(path_.c_str(), 3, 8), 0);
  const uint32_t s = w.AddStream(0, 0, "default"), t = w.ThisThread();
  const uint32_t k = Kernel(w, "k"), l = Kernel(w, "l");
  EXPECT_EQ(Kernel(w, "k"), k);
  for (uint64_t version : {1, 2}) {
    for (uint32_t kernel : {k, l}) {
      w.HostCall(100);
      w.Launch(s, kernel);
    }
    w.HostCall(50);
    w.Record(s, 9, version);
  }
  w.SyncStream(s);
  ASSERT_EQ(w.Close(0), 0);

  const RawFile file(path_);
  EXPECT_EQ(file.header.rank, 3u);
  EXPECT_EQ(file.header.world, 8u);
  EXPECT_THAT(Text(file.nodes.at(s)), ElementsAre("1 0 2", "3 9 1", "1 0 2", "3 9 2"));
  EXPECT_THAT(Text(file.nodes.at(t)),
              ElementsAre("16 1 100", "17 0 0", "16 2 150", "21 0 0", "17 0 1", "16 1 100",
                          "17 0 2", "16 2 150", "21 0 2", "17 0 3", "18 0 4"));
  // The last launch ended 50 ns before the host came to the record.
  EXPECT_EQ(file.nodes.at(t)[3].detail, 50);
  EXPECT_EQ(file.Count(ChunkKind::kSpans), 1u);
  SealRecord seal{};
  ASSERT_NE(file.Find(ChunkKind::kSeal), nullptr);
  std::memcpy(&seal, file.Find(ChunkKind::kSeal)->payload.data(), sizeof(seal));
  EXPECT_EQ(seal.nodes, 15u);
  EXPECT_EQ(seal.dropped, 0u);
}

TEST_F(WriterTest, QueriesAndMarksLeaveTheOpenSpanAlone) {
  Writer w;
  ASSERT_EQ(w.Open(path_.c_str(), 0, 1), 0);
  const uint32_t s = w.AddStream(0, 0, "default"), t = w.ThisThread(), k = Kernel(w, "k");
  w.Launch(s, k);
  w.Launch(s, k);
  w.SyncEvent(5, 1, /*query=*/true);
  w.Mark(MarkKind::kInstant, "x");
  w.Launch(s, k);
  ASSERT_EQ(w.Close(0), 0);
  const RawFile file(path_);
  EXPECT_THAT(Text(file.nodes.at(s)), ElementsAre("1 0 3"));
  ASSERT_EQ(file.nodes.at(t).size(), 4u);
  EXPECT_EQ(file.nodes.at(t)[3].kind, NodeKind::kEnqueueLast);
}

TEST_F(WriterTest, LongTimeBehindALaunchIsANodeOfItsOwn) {
  Writer w;
  ASSERT_EQ(w.Open(path_.c_str(), 0, 1), 0);
  const uint32_t s = w.AddStream(0, 0, "default"), t = w.ThisThread(), k = Kernel(w, "k");
  w.Launch(s, k);
  w.HostCall(5);
  w.Launch(s, k);
  w.HostCall(UINT16_MAX);
  w.Record(s, 1, 1);
  w.Launch(s, k);
  w.HostCall(7);
  w.Launch(s, k);
  w.HostCall(UINT16_MAX + 1);
  ASSERT_EQ(w.Close(0), 0);
  const RawFile file(path_);
  EXPECT_THAT(Text(file.nodes.at(t)), ElementsAre("17 0 0", "16 2 65540", "21 0 0", "17 0 1",
                                                  "17 0 2", "16 2 7", "21 0 2", "16 0 65536"));
  EXPECT_EQ(file.nodes.at(t)[2].detail, UINT16_MAX);
  EXPECT_EQ(file.nodes.at(t)[6].detail, 0);
}

// The other thread's last launch and host time are written before the handoff names how much it
// did.
TEST_F(WriterTest, HandoffNamesEverythingThatTheOtherThreadDid) {
  Writer w;
  ASSERT_EQ(w.Open(path_.c_str(), 0, 1), 0);
  w.SetHostTimeSource(TimeSource::kMeasured);
  const uint32_t s = w.AddStream(0, 0, "default"), t = w.ThisThread(), k = Kernel(w, "k");
  uint32_t other = 0;
  w.Launch(s, k);
  w.Launch(s, k);
  w.HostCall(70);
  w.Handoff(t);    // the caller
  w.Handoff(s);    // a stream
  w.Handoff(100);  // nothing
  std::thread([&] {
    other = w.ThisThread();
    w.HostCall(5);
    w.Handoff(t);
    w.HostCall(6);
  }).join();
  w.Handoff(other);
  uint32_t idle = 0;
  std::thread([&] { idle = w.ThisThread(); }).join();
  w.Handoff(idle);  // has done nothing
  ASSERT_EQ(w.Close(0), 0);

  const RawFile file(path_);
  EXPECT_THAT(Text(file.nodes.at(t)), ElementsAre("17 0 0", "16 1 70", "21 0 0", "18 2 3"));
  EXPECT_THAT(Text(file.nodes.at(other)), ElementsAre("16 1 5", "18 1 3", "16 1 6"));
  EXPECT_EQ(file.nodes.at(t)[2].detail, 70);  // ns since the last launch
  EXPECT_EQ(file.nodes.at(t)[3].detail, static_cast<uint16_t>(SyncKind::kHandoff));
  EXPECT_EQ(TimeSourceOf(file.nodes.at(t)[1]), TimeSource::kMeasured);
  EXPECT_EQ(TimeSourceOf(file.nodes.at(t)[0]), TimeSource::kAssumed);
}

TEST_F(WriterTest, ThreadsThatHandOverToEachOtherAtOnceDoNotBlock) {
  Writer w;
  ASSERT_EQ(w.Open(path_.c_str(), 0, 1), 0);
  std::atomic<uint32_t> number[2] = {UINT32_MAX, UINT32_MAX};
  std::vector<std::thread> threads;
  for (int self : {0, 1}) {
    threads.emplace_back([&, self] {
      number[self] = w.ThisThread();
      while (number[1 - self] == UINT32_MAX) std::this_thread::yield();
      for (int i = 0; i < 20'000; ++i) {
        w.HostCall(1);
        w.Handoff(number[1 - self]);
      }
    });
  }
  for (std::thread& t : threads) t.join();
  ASSERT_EQ(w.Close(0), 0);
  const RawFile file(path_);
  for (int self : {0, 1}) {
    uint64_t ns = 0;
    for (const Node& n : file.nodes.at(number[self])) {
      if (n.kind == NodeKind::kHost) ns += n.b;
      if (n.kind == NodeKind::kSync) {
        EXPECT_LE(n.b, file.nodes.at(number[1 - self]).size());
      }
    }
    EXPECT_EQ(ns, 20'000u);
  }
}

TEST_F(WriterTest, SpanHashIsThatOfFormat) {
  Writer w;
  ASSERT_EQ(w.Open(path_.c_str(), 0, 1), 0);
  const uint32_t s = w.AddStream(0, 0, "default");
  const uint32_t grid[3] = {2, 3, 4}, block[3] = {5, 6, 7};
  Kernel(w, "other");
  w.Launch(s, w.Kernel(KernelKind::kKernel, "abc", grid, block, 8, 0));
  ASSERT_EQ(w.Close(0), 0);
  std::string key = "abc";
  for (uint32_t v : {0u, 2u, 3u, 4u, 5u, 6u, 7u, 8u, 0u, 0u})
    key.append(reinterpret_cast<char*>(&v), 4);
  uint64_t kernel = kFnvOffset;
  for (unsigned char byte : key) kernel = (kernel ^ byte) * kFnvPrime;
  SpanHeader span{};
  const RawFile file(path_);
  std::memcpy(&span, file.Find(ChunkKind::kSpans)->payload.data(), sizeof(span));
  EXPECT_EQ(span.hash, (kFnvOffset ^ kernel) * kFnvPrime);
}

TEST_F(WriterTest, CallsOfOneGroupShareTheirFirstEnqueue) {
  Writer w;
  ASSERT_EQ(w.Open(path_.c_str(), 0, 2), 0);
  const uint32_t s = w.AddStream(0, 0, "nccl"), t = w.ThisThread();
  const uint32_t send = Call(w, CommOp::kSend, 2), recv = Call(w, CommOp::kRecv, 2);
  for (uint64_t i : {0, 1}) {
    w.Comm(s, send, i, ValueSource::kExact);
    w.Comm(s, recv, i, ValueSource::kExact);
  }
  w.Comm(s, Call(w, CommOp::kAllReduce), 0, ValueSource::kExact);
  ASSERT_EQ(w.Close(0), 0);
  const RawFile file(path_);
  const std::vector<Node>& nodes = file.nodes.at(s);
  ASSERT_EQ(nodes.size(), 5u);
  EXPECT_NE(nodes[0].detail, 0);
  EXPECT_EQ(nodes[0].detail, nodes[1].detail);
  EXPECT_EQ(nodes[2].detail, nodes[3].detail);
  EXPECT_NE(nodes[1].detail, nodes[2].detail);
  EXPECT_EQ(nodes[4].detail, 0);
  EXPECT_EQ(ValueSourceOf(nodes[0]), ValueSource::kExact);
  EXPECT_THAT(Text(file.nodes.at(t)), ElementsAre("17 0 0", "17 0 2", "17 0 4"));
}

TEST_F(WriterTest, SpanOfAnotherThreadIsClosedByALaunch) {
  Writer w;
  ASSERT_EQ(w.Open(path_.c_str(), 0, 1), 0);
  const uint32_t s = w.AddStream(0, 0, "default"), t = w.ThisThread(), k = Kernel(w, "k");
  w.Launch(s, k);
  w.Launch(s, k);
  uint32_t other = 0;
  std::thread([&] {
    other = w.ThisThread();
    w.Launch(s, k);
  }).join();
  ASSERT_EQ(w.Close(0), 0);
  const RawFile file(path_);
  EXPECT_THAT(Text(file.nodes.at(s)), ElementsAre("1 0 2", "1 1 1"));
  EXPECT_THAT(Text(file.nodes.at(t)), ElementsAre("17 0 0", "21 0 0"));
  EXPECT_THAT(Text(file.nodes.at(other)), ElementsAre("17 0 1"));
}

TEST_F(WriterTest, EndlessLaunchesAreCutPeriodically) {
  Writer w;
  ASSERT_EQ(w.Open(path_.c_str(), 0, 1), 0);
  const uint32_t s = w.AddStream(0, 0, "default");
  std::vector<uint32_t> step;
  for (int i = 0; i < 700; ++i) step.push_back(Kernel(w, ("k" + std::to_string(i % 600)).c_str()));
  for (int i = 0; i < 100; ++i) {
    for (uint32_t k : step) w.Launch(s, k);
  }
  ASSERT_EQ(w.Close(0), 0);
  const RawFile file(path_);
  EXPECT_GT(file.nodes.at(s).size(), 50u);
  EXPECT_LT(file.Count(ChunkKind::kSpans), 20u);
}

TEST_F(WriterTest, LongHostTimeIsSeveralNodes) {
  Writer w;
  ASSERT_EQ(w.Open(path_.c_str(), 0, 1), 0);
  const uint32_t t = w.ThisThread();
  w.HostCall(10'000'000'000);
  w.Mark(MarkKind::kInstant, "x");
  ASSERT_EQ(w.Close(0), 0);
  uint64_t ns = 0;
  const RawFile file(path_);
  for (const Node& n : file.nodes.at(t)) ns += n.kind == NodeKind::kHost ? n.b : 0;
  EXPECT_EQ(ns, 10'000'000'000u);
}

TEST_F(WriterTest, HostTimeOfManyCallsWithoutANodeIsAllThere) {
  Writer w;
  ASSERT_EQ(w.Open(path_.c_str(), 0, 1), 0);
  const uint32_t t = w.ThisThread();
  constexpr uint64_t kCalls = 1'200'000, kPauses = 9'000, kPauseNs = 4'000'000'000;
  for (uint64_t i = 0; i < kPauses; ++i) w.HostTime(kPauseNs);  // ten hours
  for (uint64_t i = 0; i < kCalls; ++i) w.HostCall(3);
  w.Mark(MarkKind::kInstant, "x");
  ASSERT_EQ(w.Close(0), 0);
  uint64_t ns = 0, calls = 0;
  const RawFile file(path_);
  for (const Node& n : file.nodes.at(t)) {
    ns += n.kind == NodeKind::kHost ? n.b : 0;
    calls += n.kind == NodeKind::kHost ? n.a : 0;
  }
  EXPECT_EQ(ns, kPauses * kPauseNs + 3 * kCalls);
  EXPECT_EQ(calls, kCalls);
}

TEST_F(WriterTest, SixteenBytesANodeSuffice) {
  Writer w;
  ASSERT_EQ(w.Open(path_.c_str(), 0, 1), 0);
  const uint32_t compute = w.AddStream(0, 0, "default"), comm = w.AddStream(0, -1, "nccl");
  const uint32_t world[] = {0};
  w.Communicator({1, 1, 0, 0, 0}, world);
  // Shape of an FSDP2 run: 200 distinct kernels under names as long as PyTorch's, 25 collectives a
  // step, 10 steps.
  std::vector<uint32_t> kernels;
  for (int i = 0; i < 200; ++i) {
    kernels.push_back(Kernel(w, (std::string(180, 'a') + std::to_string(i)).c_str()));
  }
  for (int step = 0; step < 10; ++step) {
    uint64_t version = static_cast<uint64_t>(step) * 25;
    for (uint32_t c = 0; c < 25; ++c) {
      for (uint32_t k = 0; k < 14; ++k) {
        w.HostCall(4000);
        w.Launch(compute, kernels[(c * 14 + k) % 200]);
      }
      ++version;
      w.Record(compute, 1, version);
      w.Wait(comm, 1, version);
      w.HostCall(10000);
      w.Comm(comm, Call(w, CommOp::kAllGather), version, ValueSource::kExact);
      w.Record(comm, 2, version);
      w.Wait(compute, 2, version);
    }
    w.SyncStream(compute);
  }
  ASSERT_EQ(w.Close(0), 0);
  const RawFile file(path_);
  uint64_t nodes = 0, bytes = sizeof(FileHeader), tables = 0;
  for (const Chunk& c : file.chunks) {
    bytes += sizeof(ChunkHeader) + c.payload.size();
    if (c.header.kind == ChunkKind::kNodes) {
      nodes += c.header.count;
    } else {
      tables += c.payload.size();
    }
  }
  RecordProperty("bytes_per_node_times_100", static_cast<int>(100 * bytes / nodes));
  // 45 kB of names are not worth a limit on ten steps; over 100 steps they vanish.
  EXPECT_LE(static_cast<double>(bytes - tables) / static_cast<double>(nodes), 12.5);
}

TEST_F(WriterTest, ThreadsWriteConcurrently) {
  Writer w;
  ASSERT_EQ(w.Open(path_.c_str(), 0, 1), 0);
  const uint32_t shared = w.AddStream(0, 0, "shared");
  constexpr int kThreads = 4, kRounds = 5000;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      const uint32_t own = w.AddStream(0, 0, "own");
      for (int n = 0; n < kRounds; ++n) {
        const uint32_t k = Kernel(w, ("k" + std::to_string((n + i) % 50)).c_str());
        w.HostCall(1);
        w.Launch(own, k);
        w.Record(own, static_cast<uint32_t>(i), static_cast<uint64_t>(n) + 1);
        w.Wait(shared, static_cast<uint32_t>(i), static_cast<uint64_t>(n) + 1);
        w.Memory(MemoryKind::kDevice, 1, 4096);
        if (n % 1000 == 0) w.Flush();
      }
    });
  }
  for (std::thread& t : threads) t.join();
  ASSERT_EQ(w.Close(0), 0);
  const RawFile file(path_);
  EXPECT_EQ(file.nodes.at(shared).size(), static_cast<size_t>(kThreads * kRounds));
  EXPECT_EQ(file.Count(ChunkKind::kMemory), static_cast<uint64_t>(kThreads * kRounds));
  uint64_t host_ns = 0;
  for (const auto& [sequence, nodes] : file.nodes) {
    for (const Node& n : nodes) host_ns += n.kind == NodeKind::kHost ? n.b : 0;
  }
  EXPECT_EQ(host_ns, static_cast<uint64_t>(kThreads * kRounds));
}

TEST_F(WriterTest, WithoutCloseThereIsNoSeal) {
  {
    Writer w;
    ASSERT_EQ(w.Open(path_.c_str(), 0, 1), 0);
    w.Record(w.AddStream(0, 0, "default"), 1, 1);
  }
  const RawFile file(path_);
  EXPECT_EQ(file.nodes.at(0).size(), 1u);
  EXPECT_EQ(file.Find(ChunkKind::kSeal), nullptr);
}

TEST_F(WriterTest, ForkedChildWritesNothing) {
  Writer w;
  ASSERT_EQ(w.Open(path_.c_str(), 0, 1), 0);
  const uint32_t s = w.AddStream(0, 0, "default");
  w.Record(s, 1, 1);
  const pid_t child = fork();
  if (child == 0) {
    w.Record(s, 1, 2);
    w.Close(0);
    _exit(w.is_open() ? 1 : 0);
  }
  int exit_status = -1;
  ASSERT_EQ(waitpid(child, &exit_status, 0), child);
  EXPECT_EQ(exit_status, 0);
  ASSERT_EQ(w.Close(0), 0);
  EXPECT_EQ(RawFile(path_).nodes.at(s).size(), 1u);
}

TEST_F(WriterTest, FullDiskIsReportedAndCountedInTheSeal) {
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, SIG_IGN);
  Writer w;
  ASSERT_EQ(w.Open(path_.c_str(), 0, 1), 0);
  const uint32_t s = w.AddStream(0, 0, "default");
  const rlimit limit{200 * 1024, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &limit);
  for (uint64_t i = 1; i <= 20000; ++i) w.Record(s, 1, i);
  EXPECT_EQ(w.Close(0), EFBIG);
  setrlimit(RLIMIT_FSIZE, &before);
  const RawFile file(path_);
  uint64_t nodes = 0;
  for (const auto& [sequence, list] : file.nodes) nodes += list.size();
  SealRecord seal{};
  ASSERT_NE(file.Find(ChunkKind::kSeal), nullptr);
  std::memcpy(&seal, file.Find(ChunkKind::kSeal)->payload.data(), sizeof(seal));
  EXPECT_EQ(seal.nodes, nodes);
  EXPECT_EQ(seal.nodes + seal.dropped, 40000u);
  EXPECT_GT(seal.dropped, 0u);
}

TEST_F(WriterTest, UnwritablePathIsAnErrorAndCallsDoNothing) {
  Writer w;
  EXPECT_EQ(w.Open("/nonexistent/x.prt", 0, 1), ENOENT);
  EXPECT_FALSE(w.is_open());
  EXPECT_EQ(w.status(), ENOENT);
  w.Launch(0, 0);
  w.SyncDevice();
  EXPECT_EQ(w.AddStream(0, 0, ""), UINT32_MAX);
}

TEST_F(WriterTest, UnknownStreamIsDroppedAndCounted) {
  Writer w;
  ASSERT_EQ(w.Open(path_.c_str(), 0, 1), 0);
  w.Launch(77, Kernel(w, "k"));
  ASSERT_EQ(w.Close(4), 0);
  SealRecord seal{};
  const RawFile file(path_);
  std::memcpy(&seal, file.Find(ChunkKind::kSeal)->payload.data(), sizeof(seal));
  EXPECT_EQ(seal.dropped, 1u);
  EXPECT_EQ(seal.exit_code, 4);
}

}  // namespace
}  // namespace prism::trace
