#include "src/trace/reader.h"

#include <unistd.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "src/trace/crc32c.h"
#include "src/trace/writer.h"

namespace prism::trace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string((std::istreambuf_iterator<char>(in)), {});
}

void WriteFile(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

// One of everything. testdata/v1.prt is its output at the time version 1 was fixed.
void WriteExample(const std::string& path, bool close = true) {
  Writer w;
  ASSERT_EQ(w.Open(path.c_str(), 1, 4), 0);
  const uint32_t compute = w.AddStream(0, 0, "default"), comm = w.AddStream(0, -5, "nccl");
  w.ThisThread();
  const uint32_t ranks[] = {0, 1, 2};
  w.Communicator({7, 3, 1, 0, 4096}, ranks);
  w.CommInit(7);
  const uint32_t grid[3] = {4, 2, 1}, block[3] = {256, 1, 1};
  const uint32_t gemm = w.Kernel(KernelKind::kKernel, "gemm", grid, block, 1024, 0);
  const uint32_t copy = w.Kernel(KernelKind::kCopy, "HtoD", nullptr, nullptr, 0, 4096);
  CallRecord call{7, static_cast<uint32_t>(CommOp::kAllReduce), 7, 0, -1, 0, 1000, 4000, 1, 0};
  call.call_site = w.String("train.py:12 in step");
  const uint32_t all_reduce = w.Call(call);
  w.Memory(MemoryKind::kDevice, 1 << 20, 0x7000000000);
  for (uint64_t step = 0; step < 3; ++step) {
    w.Mark(MarkKind::kRangePush, "step");
    for (uint32_t kernel : {copy, gemm, gemm}) {
      w.HostCall(5000);
      w.Launch(compute, kernel);
    }
    w.Record(compute, 1, step + 1);
    w.Wait(comm, 1, step + 1);
    w.HostCall(9000);
    w.Comm(comm, all_reduce, step, ValueSource::kExact);
    w.StreamNode(compute, NodeKind::kHostFunc);
    w.SyncDevice();
    w.Mark(MarkKind::kRangePop, "");
    w.Flush();
  }
  w.Memory(MemoryKind::kDevice, -(1 << 20), 0x7000000000);
  const int64_t ns[] = {100, 0, 0, 110, 0, 0};
  w.Flush();
  w.Timing(compute, 0, ns, 6);
  w.Meta(R"({"command":["python","train.py"],"gaps":[]})");
  if (close) {
    ASSERT_EQ(w.Close(0), 0);
  }
}

// Everything a reader hands out, as text: two files are equal if this is.
std::string Digest(const Reader& r) {
  std::string out = std::to_string(r.rank()) + "/" + std::to_string(r.world()) + "\n";
  for (uint32_t s = 0; s < r.sequences().size(); ++s) {
    out += "sequence " + std::string(r.string(r.sequences()[s].name)) + " " +
           std::to_string(r.sequences()[s].priority) + "\n";
    for (const Node& n : r.nodes(s)) {
      out += std::to_string(static_cast<int>(n.kind)) + " " + std::to_string(n.a) + " " +
             std::to_string(n.b) + " " + std::to_string(n.detail) + " " +
             std::to_string(n.provenance) + "\n";
      switch (n.kind) {
        case NodeKind::kSpan:
          for (uint32_t k : r.span(n.a).kernels)
            out += std::string(r.string(r.kernels()[k].name)) + "\n";
          break;
        case NodeKind::kComm:
          out += std::string(r.string(r.calls()[n.a].call_site)) + "\n";
          break;
        case NodeKind::kMark:
          out += std::string(r.string(n.a)) + "\n";
          break;
        default:
          break;
      }
    }
  }
  for (const Communicator& c : r.communicators()) {
    for (uint32_t rank : c.world_ranks) out += std::to_string(rank) + ",";
  }
  for (const auto& chunk : r.memory()) {
    for (const MemoryRecord& m : chunk)
      out += std::to_string(m.bytes) + "@" + std::to_string(m.host_node) + "\n";
  }
  for (const Timing& t : r.timings()) {
    for (int64_t ns : t.ns) out += std::to_string(ns) + " ";
  }
  for (std::string_view meta : r.meta()) out += std::string(meta);
  return out;
}

class ReaderTest : public ::testing::Test {
 protected:
  std::string path_ = ::testing::TempDir() + "/reader_test_" + std::to_string(getpid()) + ".prt";
  void TearDown() override { unlink(path_.c_str()); }
};

void ExpectExample(const Reader& r) {
  EXPECT_EQ(r.completeness(), Completeness::kSealed);
  EXPECT_EQ(r.version(), 1u);
  EXPECT_EQ(r.rank(), 1u);
  EXPECT_EQ(r.world(), 4u);
  ASSERT_EQ(r.sequences().size(), 3u);
  EXPECT_EQ(r.string(r.sequences()[1].name), "nccl");
  EXPECT_EQ(r.sequences()[1].priority, -5);
  ASSERT_EQ(r.nodes(0).size(), 9u);
  EXPECT_EQ(r.nodes(0)[3].kind, NodeKind::kSpan);
  EXPECT_EQ(r.nodes(0)[3].b, 3u);
  EXPECT_EQ(r.nodes(0)[8].kind, NodeKind::kHostFunc);
  EXPECT_EQ(r.nodes(1)[5].kind, NodeKind::kComm);
  EXPECT_EQ(r.nodes(1)[5].b, 2u);
  ASSERT_EQ(r.span_count(), 1u);
  ASSERT_EQ(r.span(0).kernels.size(), 3u);
  EXPECT_EQ(r.string(r.kernels()[r.span(0).kernels[1]].name), "gemm");
  EXPECT_EQ(r.kernels()[r.span(0).kernels[0]].bytes, 4096u);
  ASSERT_EQ(r.communicators().size(), 1u);
  EXPECT_THAT(r.communicators()[0].world_ranks, ElementsAre(0, 1, 2));
  ASSERT_EQ(r.calls().size(), 1u);
  EXPECT_EQ(r.string(r.calls()[0].call_site), "train.py:12 in step");
  ASSERT_EQ(r.timings().size(), 1u);
  EXPECT_THAT(r.timings()[0].ns, ElementsAre(100, 0, 0, 110, 0, 0));
  ASSERT_EQ(r.meta().size(), 1u);
  EXPECT_THAT(std::string(r.meta()[0]), HasSubstr("train.py"));
  EXPECT_EQ(r.seal()->exit_code, 0);
}

TEST_F(ReaderTest, ReadsWhatTheWriterWrote) {
  WriteExample(path_);
  const auto reader = Reader::Open(path_);
  ASSERT_TRUE(reader.ok()) << reader.status();
  ExpectExample(*reader);
}

TEST_F(ReaderTest, VersionOneFixtureStaysReadable) {
  const auto reader = Reader::Open(PRISM_TESTDATA "/v1.prt");
  ASSERT_TRUE(reader.ok()) << reader.status();
  ExpectExample(*reader);
  EXPECT_EQ(reader->span(0).hash, 0x468cd612d6e01020u);
}

TEST_F(ReaderTest, MissingFileIsNotFound) {
  const auto status = Reader::Open("/nonexistent/rank-00000.prt").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(status.ToString(), HasSubstr("/nonexistent/rank-00000.prt"));
}

TEST_F(ReaderTest, OtherFilesAreInvalidArguments) {
  EXPECT_EQ(Reader::Open("/tmp").status().code(), absl::StatusCode::kInvalidArgument);
  WriteFile(path_, "hello");
  EXPECT_EQ(Reader::Open(path_).status().code(), absl::StatusCode::kInvalidArgument);
  WriteFile(path_, std::string(1000, 'x'));
  EXPECT_EQ(Reader::Open(path_).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(ReaderTest, EmptyFileIsDataLoss) {
  WriteFile(path_, "");
  EXPECT_EQ(Reader::Open(path_).status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(ReaderTest, LaterVersionIsRefusedWithARemedy) {
  WriteExample(path_);
  std::string bytes = ReadFile(path_);
  FileHeader header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  header.version = 2;
  header.header_crc32c = 0;
  header.header_crc32c = ExtendCrc32c(0, &header, sizeof(header));
  std::memcpy(bytes.data(), &header, sizeof(header));
  WriteFile(path_, bytes);
  const auto status = Reader::Open(path_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.ToString(), HasSubstr("version 2; this prism reads versions 1 to 1"));
}

TEST_F(ReaderTest, UnsealedTraceIsDataLossAndReadableOnDemand) {
  WriteExample(path_, false);
  const auto strict = Reader::Open(path_).status();
  EXPECT_EQ(strict.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(strict.ToString(), HasSubstr("no seal"));
  EXPECT_THAT(strict.ToString(), HasSubstr("readable: "));
  const auto reader = Reader::Open(path_, {.allow_incomplete = true});
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ(reader->completeness(), Completeness::kUnsealed);
  EXPECT_EQ(reader->nodes(0).size(), 9u);
}

TEST_F(ReaderTest, FileCutAnywhereIsReadableUpToTheCut) {
  WriteExample(path_);
  const std::string bytes = ReadFile(path_);
  uint64_t nodes = 0;
  for (size_t cut = sizeof(FileHeader); cut < bytes.size(); ++cut) {
    WriteFile(path_, bytes.substr(0, cut));
    const auto reader = Reader::Open(path_, {.allow_incomplete = true});
    ASSERT_TRUE(reader.ok()) << cut << ": " << reader.status();
    EXPECT_GE(reader->node_count(), nodes);  // more of the file never reads as less
    nodes = reader->node_count();
    if (reader->completeness() != Completeness::kSealed) {  // only the last padding may be missing
      EXPECT_EQ(Reader::Open(path_).status().code(), absl::StatusCode::kDataLoss);
    } else {
      EXPECT_GT(cut + kChunkAlignment, bytes.size());
    }
  }
  EXPECT_GT(nodes, 30u);
}

TEST_F(ReaderTest, DamageInTheMiddleIsNotATornTail) {
  WriteExample(path_);
  std::string bytes = ReadFile(path_);
  bytes[sizeof(FileHeader) + sizeof(ChunkHeader) + 2] ^= 1;
  WriteFile(path_, bytes);
  const auto status = Reader::Open(path_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(status.ToString(), HasSubstr("damaged at byte 64"));
}

// Any change to a file is either detected or harmless (padding): never a crash, never other
// contents.
TEST_F(ReaderTest, RandomCorruptionIsDetected) {
  WriteExample(path_);
  const std::string bytes = ReadFile(path_);
  const std::string digest = Digest(*Reader::Open(path_));
  std::mt19937_64 random(1);
  int accepted = 0;
  for (int round = 0; round < 4000; ++round) {
    std::string broken = bytes;
    for (uint64_t flips = 1 + random() % 4; flips > 0; --flips) {
      broken[random() % broken.size()] = static_cast<char>(random());
    }
    WriteFile(path_, broken);
    if (const auto reader = Reader::Open(path_); reader.ok()) {
      ++accepted;
      ASSERT_EQ(Digest(*reader), digest) << "round " << round;
    }
    if (const auto reader = Reader::Open(path_, {.allow_incomplete = true}); reader.ok())
      Digest(*reader);
  }
  EXPECT_LT(accepted, 400);
}

// The same with the checksums made right again: a file that lies on purpose.
TEST_F(ReaderTest, ForgedContentsNeverReachOutsideTheFile) {
  WriteExample(path_);
  const std::string bytes = ReadFile(path_);
  std::mt19937_64 random(2);
  int accepted = 0;
  for (int round = 0; round < 6000; ++round) {
    std::string forged = bytes;
    for (uint64_t flips = 1 + random() % 3; flips > 0; --flips) {
      const size_t at = sizeof(FileHeader) + random() % (forged.size() - sizeof(FileHeader));
      const uint64_t value = random() % 3 == 0 ? ~uint64_t{0} >> random() % 64 : random() % 64;
      std::memcpy(forged.data() + at / 4 * 4, &value,
                  std::min<size_t>(4, forged.size() - at / 4 * 4));
    }
    size_t at = sizeof(FileHeader);
    while (at + sizeof(ChunkHeader) <= bytes.size()) {
      ChunkHeader original, chunk;
      std::memcpy(&original, bytes.data() + at, sizeof(original));
      std::memcpy(&chunk, forged.data() + at, sizeof(chunk));
      chunk.magic = kChunkMagic;
      if (chunk.bytes <= forged.size() - at - sizeof(chunk)) {
        chunk.crc32c = ExtendCrc32c(0, forged.data() + at + sizeof(chunk), chunk.bytes);
      }
      chunk.header_crc32c = 0;
      chunk.header_crc32c = ExtendCrc32c(0, &chunk, sizeof(chunk));
      std::memcpy(forged.data() + at, &chunk, sizeof(chunk));
      at += sizeof(chunk) + (original.bytes + 15) / 16 * 16;
    }
    WriteFile(path_, forged);
    if (const auto reader = Reader::Open(path_, {.allow_incomplete = true}); reader.ok()) {
      ++accepted;
      Digest(*reader);
    }
  }
  EXPECT_GT(accepted, 100);  // else the test does not reach the contents
}

// Offset of the payload of the first chunk of nodes of `sequence`.
size_t NodesAt(const std::string& bytes, uint32_t sequence) {
  for (size_t at = sizeof(FileHeader); at + sizeof(ChunkHeader) <= bytes.size();) {
    ChunkHeader chunk;
    std::memcpy(&chunk, bytes.data() + at, sizeof(chunk));
    if (chunk.kind == ChunkKind::kNodes && chunk.sequence == sequence) return at + sizeof(chunk);
    at += sizeof(chunk) + (chunk.bytes + 15) / 16 * 16;
  }
  return 0;
}

TEST_F(ReaderTest, HandoffsNameAnotherThreadsNodes) {
  uint32_t stream = 0, first = 0, second = 0;
  {
    Writer w;
    ASSERT_EQ(w.Open(path_.c_str(), 0, 1), 0);
    stream = w.AddStream(0, 0, "default");
    first = w.ThisThread();
    w.Record(stream, 1, 1);
    std::thread([&] {
      second = w.ThisThread();
      w.Handoff(first);
    }).join();
    ASSERT_EQ(w.Close(0), 0);
  }
  const auto reader = Reader::Open(path_);
  ASSERT_TRUE(reader.ok()) << reader.status();
  ASSERT_EQ(reader->nodes(second).size(), 1u);
  const Node good = reader->nodes(second)[0];
  EXPECT_EQ(good.a, first);
  EXPECT_EQ(good.b, 1u);

  const std::string bytes = ReadFile(path_);
  const size_t at = NodesAt(bytes, second);
  for (const auto& [a, b] :
       {std::pair<uint32_t, uint32_t>{stream, 1}, {second, 0}, {9, 0}, {first, 2}}) {
    std::string forged = bytes;
    Node bad = good;
    bad.a = a;
    bad.b = b;
    std::memcpy(forged.data() + at, &bad, sizeof(bad));
    ChunkHeader chunk;
    std::memcpy(&chunk, forged.data() + at - sizeof(chunk), sizeof(chunk));
    chunk.crc32c = ExtendCrc32c(0, &bad, sizeof(bad));
    chunk.header_crc32c = 0;
    chunk.header_crc32c = ExtendCrc32c(0, &chunk, sizeof(chunk));
    std::memcpy(forged.data() + at - sizeof(chunk), &chunk, sizeof(chunk));
    WriteFile(path_, forged);
    EXPECT_THAT(Reader::Open(path_).status().ToString(), HasSubstr("names nothing"))
        << a << " " << b;
  }
}

TEST_F(ReaderTest, NodesOfManyChunksAreOneList) {
  Writer w;
  ASSERT_EQ(w.Open(path_.c_str(), 0, 1), 0);
  const uint32_t s = w.AddStream(0, 0, "default");
  for (uint64_t i = 1; i <= 50000; ++i) w.Record(s, 1, i);
  ASSERT_EQ(w.Close(0), 0);
  const auto reader = Reader::Open(path_);
  ASSERT_TRUE(reader.ok()) << reader.status();
  ASSERT_EQ(reader->nodes(s).size(), 50000u);
  EXPECT_GT(reader->nodes(s).runs().size(), 5u);
  uint32_t expected = 0;
  for (const Node& n : reader->nodes(s)) ASSERT_EQ(n.b, ++expected);
  for (uint64_t i = 0; i < 50000; i += 77) ASSERT_EQ(reader->nodes(s)[i].b, i + 1);
}

}  // namespace
}  // namespace prism::trace
