// NCCL's interface, by programs of several processes. Built twice: against a driver played inside
// the test, and against hostcuda's libraries. Expected values are closed forms in small integers
// that every data type holds exactly, or sums in rank order.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "hostcuda/nccl/arithmetic.h"
#include "hostcuda/nccl/testing/machine.h"

namespace hostnccl::testing {
namespace {

using Bytes = std::vector<unsigned char>;

constexpr ncclDataType_t kAllTypes[] = {ncclInt8,    ncclUint8,    ncclInt32,      ncclUint32,
                                        ncclInt64,   ncclUint64,   ncclFloat16,    ncclFloat32,
                                        ncclFloat64, ncclBfloat16, ncclFloat8e4m3, ncclFloat8e5m2};

/// 0 .. 8 in a format with `mantissa` bits below a leading 1 and an exponent bias, by hand: 2^e (1
/// + m).
uint64_t SmallInteger(unsigned value, int mantissa, int bias) {
  if (value == 0) return 0;
  int exponent = 0;
  while (value >> (exponent + 1)) ++exponent;
  const uint64_t fraction = static_cast<uint64_t>(value - (1u << exponent)) << mantissa >> exponent;
  return static_cast<uint64_t>(exponent + bias) << mantissa | fraction;
}

uint64_t Encoded(ncclDataType_t type, unsigned value) {
  switch (type) {
    case ncclFloat16:
      return SmallInteger(value, 10, 15);
    case ncclFloat32:
      return SmallInteger(value, 23, 127);
    case ncclFloat64:
      return SmallInteger(value, 52, 1023);
    case ncclBfloat16:
      return SmallInteger(value, 7, 127);
    case ncclFloat8e4m3:
      return SmallInteger(value, 3, 7);
    case ncclFloat8e5m2:
      return SmallInteger(value, 2, 15);
    default:
      return value;
  }
}

size_t Size(ncclDataType_t type) { return ElementBytes(static_cast<DataType>(type)); }

/// A buffer of `count` elements whose i-th is value(i).
template <typename Value>
Bytes Buffer(ncclDataType_t type, size_t count, Value value) {
  Bytes bytes(count * Size(type));
  for (size_t i = 0; i < count; ++i) {
    const uint64_t bits = Encoded(type, static_cast<unsigned>(value(i)));
    memcpy(&bytes[i * Size(type)], &bits, Size(type));
  }
  return bytes;
}

struct Device {
  explicit Device(const Bytes& bytes) : size(bytes.size()), data(DeviceAlloc(bytes.size() + 64)) {
    if (size != 0) memcpy(data, bytes.data(), size);
  }
  explicit Device(size_t bytes) : size(bytes), data(DeviceAlloc(bytes + 64)) {
    memset(data, 0xee, size);
  }
  Bytes Read() const {
    return Bytes(static_cast<unsigned char*>(data), static_cast<unsigned char*>(data) + size);
  }
  unsigned char* at(size_t offset) const { return static_cast<unsigned char*>(data) + offset; }
  size_t size;
  void* data;
};

#define ASSERT_NCCL(call)                                                                 \
  do {                                                                                    \
    const ncclResult_t nccl_result = (call);                                              \
    ASSERT_EQ(nccl_result, ncclSuccess) << #call << ": " << nccl().GetLastError(nullptr); \
  } while (0)

class NcclTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(nccl().GetUniqueId(&id_), ncclSuccess); }
  // Nothing may be left behind, however the ranks ended.
  void TearDown() override { EXPECT_FALSE(SegmentExists()); }

  /// Whether the communicator's shared memory still has a name; the unique id holds it behind a
  /// mark of 12 bytes.
  bool SegmentExists() const {
    const std::string name =
        "/dev/shm/hostnccl-" + std::to_string(getuid()) + "-" + (id_.internal + 12);
    return access(name.c_str(), F_OK) == 0;
  }

  /// Runs `body(rank, comm, stream)` on ranks of one communicator.
  template <typename Body>
  void Run(int ranks, Body body, std::vector<int> expect_killed = {}) {
    RunRanks(
        ranks,
        [&](int rank) {
          ncclComm_t comm = nullptr;
          ASSERT_NCCL(nccl().CommInitRank(&comm, ranks, id_, rank));
          body(rank, comm, NewStream());
        },
        expect_killed);
  }

  ncclUniqueId id_;
};

/// Waits until the communicator reports an error, at most `seconds`.
ncclResult_t AwaitAsyncError(ncclComm_t comm, int seconds) {
  ncclResult_t error = ncclSuccess;
  for (int i = 0; i < seconds * 100 && error == ncclSuccess; ++i) {
    usleep(10000);
    if (nccl().CommGetAsyncError(comm, &error) != ncclSuccess) return ncclInternalError;
  }
  return error;
}

// ---- every collective, type, reduction

unsigned Input(int rank, size_t i) {
  return (static_cast<unsigned>(rank) + static_cast<unsigned>(i)) % 2;
}

void CheckCollectives(int rank, int ranks, ncclComm_t comm, cudaStream_t stream,
                      ncclDataType_t type, size_t count, bool in_place) {
  const size_t bytes = count * Size(type);
  const size_t all = count * static_cast<size_t>(ranks);
  const int root = static_cast<int>(count) % ranks;
  const auto mine = [&](size_t i) { return Input(rank, i); };
  const std::string where = "type " + std::to_string(type) + " count " + std::to_string(count) +
                            " ranks " + std::to_string(ranks) + (in_place ? " in place" : "");
  SCOPED_TRACE(where);
  const auto reduced = [&](ncclRedOp_t op, size_t i) -> unsigned {
    unsigned sum = 0, product = 1, most = 0, least = 9;
    for (int r = 0; r < ranks; ++r) {
      const unsigned value = Input(r, i);
      sum += value;
      product *= value;
      most = std::max(most, value);
      least = std::min(least, value);
    }
    return op == ncclSum ? sum : op == ncclProd ? product : op == ncclMax ? most : least;
  };

  for (ncclRedOp_t op : {ncclSum, ncclProd, ncclMax, ncclMin}) {
    const Bytes expected = Buffer(type, count, [&](size_t i) { return reduced(op, i); });
    Device send(Buffer(type, count, mine)), recv(bytes);
    void* out = in_place ? send.data : recv.data;
    ASSERT_NCCL(nccl().AllReduce(send.data, out, count, type, op, comm, stream));
    ASSERT_EQ(Synchronize(stream), 0);
    ASSERT_EQ((in_place ? send : recv).Read(), expected) << "AllReduce " << op;

    Device reduce_send(Buffer(type, count, mine)), reduce_recv(bytes);
    out = rank != root ? nullptr : in_place ? reduce_send.data : reduce_recv.data;
    ASSERT_NCCL(nccl().Reduce(reduce_send.data, out, count, type, op, root, comm, stream));
    ASSERT_EQ(Synchronize(stream), 0);
    if (rank == root) {
      ASSERT_EQ((in_place ? reduce_send : reduce_recv).Read(), expected) << "Reduce " << op;
    }

    Device scatter_send(Buffer(type, all, mine)), scatter_recv(bytes);
    const size_t own = static_cast<size_t>(rank) * bytes;
    out = in_place ? scatter_send.at(own) : scatter_recv.data;
    ASSERT_NCCL(nccl().ReduceScatter(scatter_send.data, out, count, type, op, comm, stream));
    ASSERT_EQ(Synchronize(stream), 0);
    const Bytes part = Buffer(
        type, count, [&](size_t i) { return reduced(op, i + static_cast<size_t>(rank) * count); });
    ASSERT_EQ(memcmp(out, part.data(), bytes), 0) << "ReduceScatter " << op;
  }
  {
    Device send(Buffer(type, count, [](size_t i) { return i % 3; })),
        recv(bytes);  // equal on all ranks
    ASSERT_NCCL(nccl().AllReduce(send.data, recv.data, count, type, ncclAvg, comm, stream));
    ASSERT_EQ(Synchronize(stream), 0);
    ASSERT_EQ(recv.Read(), send.Read()) << "average";
  }
  {
    Device send(Buffer(type, count, mine)), recv(bytes);
    void* out = in_place ? send.data : recv.data;
    ASSERT_NCCL(
        nccl().Broadcast(rank == root ? send.data : nullptr, out, count, type, root, comm, stream));
    ASSERT_EQ(Synchronize(stream), 0);
    ASSERT_EQ((in_place ? send : recv).Read(),
              Buffer(type, count, [&](size_t i) { return Input(root, i); }))
        << "Broadcast";
  }
  const Bytes gathered =
      Buffer(type, all, [&](size_t i) { return Input(static_cast<int>(i / count), i % count); });
  {
    Device send(Buffer(type, count, mine)), recv(bytes * static_cast<size_t>(ranks));
    const void* in = send.data;
    if (in_place) {
      memcpy(recv.at(static_cast<size_t>(rank) * bytes), send.data, bytes);
      in = recv.at(static_cast<size_t>(rank) * bytes);
    }
    ASSERT_NCCL(nccl().AllGather(in, recv.data, count, type, comm, stream));
    ASSERT_EQ(Synchronize(stream), 0);
    ASSERT_EQ(recv.Read(), gathered) << "AllGather";
  }
  {
    Device send(Buffer(type, count, mine)), recv(bytes * static_cast<size_t>(ranks));
    ASSERT_NCCL(nccl().Gather(send.data, rank == root ? recv.data : nullptr, count, type, root,
                              comm, stream));
    ASSERT_EQ(Synchronize(stream), 0);
    if (rank == root) {
      ASSERT_EQ(recv.Read(), gathered) << "Gather";
    }
  }
  {
    Device send(gathered), recv(bytes);
    ASSERT_NCCL(nccl().Scatter(rank == root ? send.data : nullptr, recv.data, count, type, root,
                               comm, stream));
    ASSERT_EQ(Synchronize(stream), 0);
    ASSERT_EQ(recv.Read(), Buffer(type, count, mine)) << "Scatter";
  }
  {
    // Part p of rank r holds values of (r + 2 p); rank r receives, from p, values of (p + 2 r).
    const auto part = [&](int from, int to, size_t i) {
      return (static_cast<unsigned>(from + 2 * to) + i) % 5;
    };
    Device send(Buffer(
        type, all, [&](size_t i) { return part(rank, static_cast<int>(i / count), i % count); }));
    Device recv(bytes * static_cast<size_t>(ranks));
    ASSERT_NCCL(nccl().AlltoAll(send.data, recv.data, count, type, comm, stream));
    ASSERT_EQ(Synchronize(stream), 0);
    ASSERT_EQ(recv.Read(), Buffer(type, all, [&](size_t i) {
                return part(static_cast<int>(i / count), rank, i % count);
              }));
  }
}

TEST_F(NcclTest, CollectivesOfAllTypes) {
  for (int ranks : {2, 3, 8}) {
    SetUp();
    Run(ranks, [&](int rank, ncclComm_t comm, cudaStream_t stream) {
      for (ncclDataType_t type : kAllTypes) {
        for (size_t count : {1, 257}) {
          for (bool in_place : {false, true})
            CheckCollectives(rank, ranks, comm, stream, type, count, in_place);
          if (::testing::Test::HasFailure()) return;
        }
      }
      ASSERT_NCCL(nccl().CommDestroy(comm));
    });
  }
}

TEST_F(NcclTest, CollectivesLargerThanTheSlots) {
  setenv("HOSTNCCL_SLOT_BYTES", "4096", 1);
  for (int ranks : {1, 2, 5}) {
    SetUp();
    Run(ranks, [&](int rank, ncclComm_t comm, cudaStream_t stream) {
      for (ncclDataType_t type : {ncclInt8, ncclBfloat16, ncclFloat32, ncclFloat64}) {
        for (bool in_place : {false, true})
          CheckCollectives(rank, ranks, comm, stream, type, 20011, in_place);
      }
    });
  }
  unsetenv("HOSTNCCL_SLOT_BYTES");
}

TEST_F(NcclTest, LargeSumsAreInRankOrder) {
  constexpr int kRanks = 4;
  constexpr size_t kCount = 700001;  // more than one step of the default slots, reduced in shares
  const auto values = [](int rank) {
    std::mt19937 random(static_cast<unsigned>(rank) + 1);
    std::vector<float> data(kCount);
    for (float& value : data)
      value = std::ldexp(static_cast<float>(static_cast<int>(random())),
                         static_cast<int>(random() % 30));
    return data;
  };
  Run(kRanks, [&](int rank, ncclComm_t comm, cudaStream_t stream) {
    const std::vector<float> mine = values(rank);
    auto* data = static_cast<float*>(DeviceAlloc(kCount * sizeof(float)));
    memcpy(data, mine.data(), kCount * sizeof(float));
    ASSERT_NCCL(nccl().AllReduce(data, data, kCount, ncclFloat32, ncclSum, comm, stream));
    ASSERT_EQ(Synchronize(stream), 0);
    std::vector<float> expected = values(0);
    for (int r = 1; r < kRanks; ++r) {
      const std::vector<float> other = values(r);
      for (size_t i = 0; i < kCount; ++i)
        expected[i] = static_cast<float>(static_cast<double>(expected[i]) + other[i]);
    }
    ASSERT_EQ(memcmp(data, expected.data(), kCount * sizeof(float)), 0);
  });
}

TEST_F(NcclTest, PreMulSumTakesEachRanksOwnScalar) {
  Run(3, [](int rank, ncclComm_t comm, cudaStream_t stream) {
    for (bool on_device : {false, true}) {
      auto* scalar = static_cast<float*>(DeviceAlloc(sizeof(float)));
      *scalar = static_cast<float>(rank + 1);
      ncclRedOp_t op;
      ASSERT_NCCL(nccl().RedOpCreatePreMulSum(
          &op, scalar, ncclFloat32, on_device ? ncclScalarDevice : ncclScalarHostImmediate, comm));
      if (!on_device) *scalar = 100;  // was read before the call returned
      for (size_t count : {5, 300000}) {
        Device data(Buffer(ncclFloat32, count,
                           [&](size_t i) { return (i + static_cast<size_t>(rank)) % 2; }));
        ASSERT_NCCL(nccl().AllReduce(data.data, data.data, count, ncclFloat32, op, comm, stream));
        ASSERT_EQ(Synchronize(stream), 0);
        ASSERT_EQ(data.Read(),
                  Buffer(ncclFloat32, count, [](size_t i) { return i % 2 == 0 ? 2 : 1 + 3; }));
      }
      EXPECT_EQ(nccl().AllReduce(scalar, scalar, 1, ncclFloat64, op, comm, stream),
                ncclInvalidArgument);
      ASSERT_NCCL(nccl().RedOpDestroy(op, comm));
      EXPECT_EQ(nccl().AllReduce(scalar, scalar, 1, ncclFloat32, op, comm, stream),
                ncclInvalidArgument);
      EXPECT_EQ(nccl().RedOpDestroy(op, comm), ncclInvalidArgument);
    }
    EXPECT_EQ(nccl().RedOpDestroy(ncclSum, comm), ncclInvalidArgument);
  });
}

// ---- messages and groups

TEST_F(NcclTest, MessagesInACycleProgressTogether) {
  setenv("HOSTNCCL_SLOT_BYTES", "4096", 1);
  constexpr int kRanks = 3;
  Run(kRanks, [](int rank, ncclComm_t comm, cudaStream_t stream) {
    const int next = (rank + 1) % kRanks, previous = (rank + kRanks - 1) % kRanks;
    for (size_t count : {0, 1, 1000, 200000}) {
      Device send(
          Buffer(ncclInt32, count, [&](size_t i) { return i + static_cast<size_t>(rank); })),
          recv(count * 4);
      ASSERT_NCCL(nccl().GroupStart());
      ASSERT_NCCL(nccl().Send(send.data, count, ncclInt32, next, comm, stream));
      ASSERT_NCCL(nccl().Recv(recv.data, count, ncclInt32, previous, comm, stream));
      ASSERT_NCCL(nccl().GroupEnd());
      ASSERT_EQ(Synchronize(stream), 0);
      ASSERT_EQ(recv.Read(), Buffer(ncclInt32, count,
                                    [&](size_t i) { return i + static_cast<size_t>(previous); }));
    }
  });
  unsetenv("HOSTNCCL_SLOT_BYTES");
}

TEST_F(NcclTest, AllToAllByMessagesOfDifferentSizes) {
  setenv("HOSTNCCL_SLOT_BYTES", "4096", 1);
  constexpr int kRanks = 5;
  Run(kRanks, [](int rank, ncclComm_t comm, cudaStream_t stream) {
    const auto count = [](int from, int to) {
      return static_cast<size_t>(from * 3001 + to * 17);
    };  // 0 from 0 to 0
    for (int round = 0; round < 3; ++round) {
      std::vector<Device> sends, receives;
      for (int r = 0; r < kRanks; ++r) {
        sends.emplace_back(Buffer(ncclUint8, count(rank, r), [&](size_t i) {
          return (i * 7 + static_cast<size_t>(rank + r)) % 251;
        }));
        receives.emplace_back(count(r, rank));
      }
      ASSERT_NCCL(nccl().GroupStart());
      for (int r = 0; r < kRanks; ++r) {
        ASSERT_NCCL(nccl().Recv(receives[r].data, receives[r].size, ncclUint8, r, comm, stream));
        ASSERT_NCCL(nccl().Send(sends[r].data, sends[r].size, ncclUint8, r, comm, stream));
      }
      ASSERT_NCCL(nccl().GroupEnd());
      ASSERT_EQ(Synchronize(stream), 0);
      for (int r = 0; r < kRanks; ++r) {
        ASSERT_EQ(receives[r].Read(), Buffer(ncclUint8, count(r, rank), [&](size_t i) {
                    return (i * 7 + static_cast<size_t>(rank + r)) % 251;
                  }));
      }
    }
  });
  unsetenv("HOSTNCCL_SLOT_BYTES");
}

TEST_F(NcclTest, ManyMessagesToOnePeerStayInOrder) {
  constexpr int kMessages = 700;  // more than a mailbox holds
  Run(2, [](int rank, ncclComm_t comm, cudaStream_t stream) {
    auto* data = static_cast<int*>(DeviceAlloc(kMessages * sizeof(int)));
    for (int i = 0; i < kMessages; ++i) data[i] = rank == 0 ? i * i : -1;
    ASSERT_NCCL(nccl().GroupStart());
    for (int i = 0; i < kMessages; ++i) {
      if (rank == 0) {
        ASSERT_NCCL(nccl().Send(&data[i], 1, ncclInt32, 1, comm, stream));
      } else {
        ASSERT_NCCL(nccl().Recv(&data[i], 1, ncclInt32, 0, comm, stream));
      }
    }
    ASSERT_NCCL(nccl().GroupEnd());
    ASSERT_EQ(Synchronize(stream), 0);
    for (int i = 0; i < kMessages; ++i) ASSERT_EQ(data[i], i * i);
  });
}

TEST_F(NcclTest, SendsThatFitIntoTheFifoEndBeforeTheirReceives) {
  for (const bool moves : {true, false}) {
    SCOPED_TRACE(moves);
    if (!moves) {
      setenv("HOSTCUDA_VALUES", "none", 1);
      setenv("HOSTNCCL_EXACT_BYTES", "1K", 1);
    }
    SetUp();
    ncclUniqueId second;
    ASSERT_EQ(nccl().GetUniqueId(&second), ncclSuccess);
    Run(2, [&](int rank, ncclComm_t comm, cudaStream_t stream) {
      ncclComm_t gate = nullptr;
      ASSERT_NCCL(nccl().CommInitRank(&gate, 2, second, rank));
      cudaStream_t gate_stream = NewStream();
      constexpr int kSmall = 3 << 18, kLarge = 5 << 18;  // 3 and 5 MiB, around 4
      auto* data = static_cast<int*>(DeviceAlloc(kLarge * sizeof(int)));
      auto* word = static_cast<int*>(DeviceAlloc(sizeof(int)));
      const auto pass_gate = [&] {
        ASSERT_NCCL(nccl().AllReduce(word, word, 1, ncclInt32, ncclSum, gate, gate_stream));
        ASSERT_EQ(Synchronize(gate_stream), 0);
      };
      for (const int count : {kSmall, kLarge}) {
        for (int i = 0; i < count; ++i) data[i] = rank == 0 ? i : -1;
        if (rank == 0) {
          ASSERT_NCCL(nccl().Send(data, count, ncclInt32, 1, comm, stream));
          if (count == kSmall) {
            ASSERT_EQ(Synchronize(stream), 0);
            for (int i = 0; i < count; ++i) data[i] = -2;  // the message is on its way
          } else {
            EXPECT_NE(Query(stream), 0);
          }
          pass_gate();
        } else {
          pass_gate();
          ASSERT_NCCL(nccl().Recv(data, count, ncclInt32, 0, comm, stream));
        }
        ASSERT_EQ(Synchronize(stream), 0);
        for (int i = 0; rank == 1 && i < count; ++i) ASSERT_EQ(data[i], moves ? i : -1);
      }
    });
  }
  unsetenv("HOSTCUDA_VALUES");
  unsetenv("HOSTNCCL_EXACT_BYTES");
}

TEST_F(NcclTest, AGroupMixesCollectivesAndMessages) {
  Run(3, [](int rank, ncclComm_t comm, cudaStream_t stream) {
    auto* data = static_cast<int*>(DeviceAlloc(8 * sizeof(int)));
    data[0] = data[1] = rank + 1;
    data[2] = rank == 0 ? 42 : 0;
    ASSERT_NCCL(nccl().GroupStart());
    ASSERT_NCCL(nccl().GroupStart());
    if (rank == 0) ASSERT_NCCL(nccl().Send(&data[2], 1, ncclInt32, 2, comm, stream));
    ASSERT_NCCL(nccl().AllReduce(&data[0], &data[0], 1, ncclInt32, ncclSum, comm, stream));
    ASSERT_NCCL(nccl().GroupEnd());
    ASSERT_NCCL(nccl().AllReduce(&data[1], &data[1], 1, ncclInt32, ncclMax, comm, stream));
    if (rank == 2) ASSERT_NCCL(nccl().Recv(&data[2], 1, ncclInt32, 0, comm, stream));
    EXPECT_EQ(data[0], rank + 1) << "nothing starts before the group's end";
    ASSERT_NCCL(nccl().GroupEnd());
    ASSERT_EQ(Synchronize(stream), 0);
    EXPECT_EQ(data[0], 6);
    EXPECT_EQ(data[1], 3);
    EXPECT_EQ(data[2], rank == 1 ? 0 : 42);
  });
}

TEST_F(NcclTest, AGroupOnSeveralStreamsWaitsForAllOfThem) {
  Run(2, [](int rank, ncclComm_t comm, cudaStream_t stream) {
    cudaStream_t other = NewStream();
    auto* flag = static_cast<uint32_t*>(DeviceAlloc(4));
    auto* data = static_cast<int*>(DeviceAlloc(8));
    data[0] = data[1] = 1;
    HoldUntil(other, flag);
    ASSERT_NCCL(nccl().GroupStart());
    ASSERT_NCCL(nccl().AllReduce(&data[0], &data[0], 1, ncclInt32, ncclSum, comm, stream));
    ASSERT_NCCL(nccl().AllReduce(&data[1], &data[1], 1, ncclInt32, ncclSum, comm, other));
    ASSERT_NCCL(nccl().GroupEnd());
    usleep(20000);
    EXPECT_EQ(Query(stream), CUDA_ERROR_NOT_READY) << rank;
    __atomic_store_n(flag, 1, __ATOMIC_RELEASE);
    Poke();
    ASSERT_EQ(Synchronize(stream), 0);
    ASSERT_EQ(Synchronize(other), 0);
    EXPECT_EQ(data[0], 2);
    EXPECT_EQ(data[1], 2);
  });
}

TEST_F(NcclTest, TheHostRunsAheadAndStreamOrderHolds) {
  Run(2, [](int rank, ncclComm_t comm, cudaStream_t stream) {
    auto* flag = static_cast<uint32_t*>(DeviceAlloc(4));
    auto* data = static_cast<int*>(DeviceAlloc(4));
    *data = rank + 1;
    if (rank == 0) HoldUntil(stream, flag);
    for (int i = 0; i < 20; ++i)
      ASSERT_NCCL(nccl().AllReduce(data, data, 1, ncclInt32, ncclSum, comm, stream));
    if (rank == 0) {
      EXPECT_EQ(Query(stream), CUDA_ERROR_NOT_READY);
      EXPECT_EQ(*data, 1);
      __atomic_store_n(flag, 1, __ATOMIC_RELEASE);
      Poke();
    }
    ASSERT_EQ(Synchronize(stream), 0);
    EXPECT_EQ(*data, 3 << 19);
  });
}

TEST_F(NcclTest, OneCommunicatorOnTwoStreamsRunsInTheOrderOfTheCalls) {
  Run(2, [](int rank, ncclComm_t comm, cudaStream_t stream) {
    cudaStream_t other = NewStream();
    auto* flag = static_cast<uint32_t*>(DeviceAlloc(4));
    auto* data = static_cast<int*>(DeviceAlloc(8));
    data[0] = data[1] = rank + 1;
    HoldUntil(stream, flag);
    ASSERT_NCCL(nccl().AllReduce(&data[0], &data[0], 1, ncclInt32, ncclSum, comm, stream));
    ASSERT_NCCL(nccl().AllReduce(&data[1], &data[1], 1, ncclInt32, ncclSum, comm, other));
    usleep(20000);
    EXPECT_EQ(Query(other), CUDA_ERROR_NOT_READY);
    __atomic_store_n(flag, 1, __ATOMIC_RELEASE);
    Poke();
    ASSERT_EQ(Synchronize(other), 0);
    ASSERT_EQ(Synchronize(stream), 0);
    EXPECT_EQ(data[0], 3);
    EXPECT_EQ(data[1], 3);
  });
}

TEST_F(NcclTest, TwoCommunicatorsOnTwoStreamsDoNotWaitForEachOther) {
  ncclUniqueId second;
  ASSERT_EQ(nccl().GetUniqueId(&second), ncclSuccess);
  Run(2, [&](int rank, ncclComm_t comm, cudaStream_t stream) {
    ncclComm_t other = nullptr;
    ASSERT_NCCL(nccl().CommInitRank(&other, 2, second, 1 - rank));
    cudaStream_t other_stream = NewStream();
    auto* data = static_cast<int*>(DeviceAlloc(8));
    for (int round = 0; round < 50; ++round) {
      data[0] = data[1] = 1;
      // Opposite orders on the two ranks: a deadlock if one waited for the other.
      for (int i = 0; i < 2; ++i) {
        const bool first = (i == 0) == (rank == 0);
        int* value = &data[first ? 0 : 1];
        ASSERT_NCCL(nccl().AllReduce(value, value, 1, ncclInt32, ncclSum, first ? comm : other,
                                     first ? stream : other_stream));
      }
      ASSERT_EQ(Synchronize(stream), 0);
      ASSERT_EQ(Synchronize(other_stream), 0);
      ASSERT_EQ(data[0], 2);
      ASSERT_EQ(data[1], 2);
    }
  });
}

TEST_F(NcclTest, AnEmptyCollectiveWaitsForNobody) {
  Run(2, [](int rank, ncclComm_t comm, cudaStream_t stream) {
    if (rank == 0) {
      ASSERT_NCCL(nccl().AllReduce(nullptr, nullptr, 0, ncclFloat32, ncclSum, comm, stream));
      ASSERT_EQ(Synchronize(stream), 0);
    }
  });
}

TEST_F(NcclTest, SimulatedGroupsRunNothing) {
  Run(2, [](int, ncclComm_t comm, cudaStream_t stream) {
    auto* data = static_cast<int*>(DeviceAlloc(4));
    *data = 5;
    ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
    ASSERT_NCCL(nccl().GroupStart());
    ASSERT_NCCL(nccl().AllReduce(data, data, 1, ncclInt32, ncclSum, comm, stream));
    ASSERT_NCCL(nccl().GroupSimulateEnd(&info));
    EXPECT_EQ(info.estimatedTime, 0.0f);
    ASSERT_EQ(Synchronize(stream), 0);
    EXPECT_EQ(*data, 5);
    EXPECT_EQ(nccl().GroupSimulateEnd(&info), ncclInvalidUsage);
  });
}

TEST_F(NcclTest, CapturedCollectivesReplay) {
  Run(2, [](int rank, ncclComm_t comm, cudaStream_t stream) {
    auto* data = static_cast<int*>(DeviceAlloc(8));
    data[0] = data[1] = rank + 1;
    Graph* graph = Capture(stream, [&] {
      ASSERT_NCCL(nccl().AllReduce(data, data, 1, ncclInt32, ncclSum, comm, stream));
    });
    if (graph == nullptr) return;
    EXPECT_EQ(data[0], rank + 1);
    for (int i = 0; i < 3; ++i) {
      Replay(graph, stream);
      ASSERT_NCCL(nccl().AllReduce(data + 1, data + 1, 1, ncclInt32, ncclMax, comm, stream));
    }
    ASSERT_EQ(Synchronize(stream), 0);
    EXPECT_EQ(data[0], 12);
    EXPECT_EQ(data[1], 2);
  });
}

TEST_F(NcclTest, WithoutValuesLargePayloadsSynchronizeButDoNotMove) {
  setenv("HOSTCUDA_VALUES", "none", 1);
  setenv("HOSTNCCL_EXACT_BYTES", "1K", 1);
  Run(2, [](int rank, ncclComm_t comm, cudaStream_t stream) {
    auto* data = static_cast<int*>(DeviceAlloc(4096));
    for (int i = 0; i < 1024; ++i) data[i] = rank + 1;
    ASSERT_NCCL(
        nccl().AllReduce(data, data, 256, ncclInt32, ncclSum, comm, stream));  // 1 KiB moves
    ASSERT_NCCL(nccl().AllReduce(data + 512, data + 512, 257, ncclInt32, ncclSum, comm, stream));
    ASSERT_NCCL(nccl().AllGather(data + 512 + 300, data + 512 + 300, 129, ncclInt32, comm,
                                 stream));  // 2 x 516 bytes do not
    ASSERT_NCCL(nccl().GroupStart());
    ASSERT_NCCL(nccl().Send(data, 257, ncclInt32, 1 - rank, comm, stream));
    ASSERT_NCCL(nccl().Recv(data + 512, 257, ncclInt32, 1 - rank, comm, stream));
    ASSERT_NCCL(nccl().GroupEnd());
    ASSERT_NCCL(nccl().GroupStart());  // 516 bytes to each of two ranks do not
    for (const int peer : {0, 1}) {
      ASSERT_NCCL(nccl().Send(data, 129, ncclInt32, peer, comm, stream));
      ASSERT_NCCL(nccl().Recv(data + 512, 129, ncclInt32, peer, comm, stream));
    }
    ASSERT_NCCL(nccl().GroupEnd());
    ASSERT_NCCL(nccl().GroupStart());  // 512 do
    for (const int peer : {0, 1}) {
      ASSERT_NCCL(nccl().Send(data, 128, ncclInt32, peer, comm, stream));
      ASSERT_NCCL(nccl().Recv(data + 256 + 128 * peer, 128, ncclInt32, peer, comm, stream));
    }
    ASSERT_NCCL(nccl().GroupEnd());
    ASSERT_EQ(Synchronize(stream), 0);
    EXPECT_EQ(data[255], 3);
    for (int i = 256; i < 512; ++i) ASSERT_EQ(data[i], 3);
    for (int i = 512; i < 1024; ++i) ASSERT_EQ(data[i], rank + 1);
  });
  unsetenv("HOSTCUDA_VALUES");
  unsetenv("HOSTNCCL_EXACT_BYTES");
}

// ---- communicators

TEST_F(NcclTest, RanksCountsAndDevicesAreAnswered) {
  Run(3, [](int rank, ncclComm_t comm, cudaStream_t) {
    int value = -1;
    ASSERT_NCCL(nccl().CommUserRank(comm, &value));
    EXPECT_EQ(value, rank);
    ASSERT_NCCL(nccl().CommCount(comm, &value));
    EXPECT_EQ(value, 3);
    ASSERT_NCCL(nccl().CommCuDevice(comm, &value));
    EXPECT_EQ(value, rank);
    ASSERT_NCCL(nccl().GetVersion(&value));
    EXPECT_EQ(value, 22809);
    ASSERT_NCCL(nccl().CommFinalize(comm));
    EXPECT_EQ(nccl().CommFinalize(comm), ncclInvalidArgument);
    ASSERT_NCCL(nccl().CommDestroy(comm));
    EXPECT_EQ(nccl().CommCount(comm, &value), ncclInvalidArgument) << "destroyed";
    EXPECT_EQ(nccl().CommDestroy(nullptr), ncclSuccess);
  });
}

TEST_F(NcclTest, SplitOrdersByKeyAndLeavesOutWhoHasNoColor) {
  Run(5, [](int rank, ncclComm_t comm, cudaStream_t stream) {
    for (int round = 0; round < 3; ++round) {
      // Rank 4 takes part without a colour; 0 and 2 (colour 0) reversed by key, 1 and 3 (colour 1)
      // in order.
      ncclComm_t half = reinterpret_cast<ncclComm_t>(1);
      ASSERT_NCCL(nccl().CommSplit(comm, rank == 4 ? NCCL_SPLIT_NOCOLOR : rank % 2,
                                   rank % 2 == 0 ? -rank : 7, &half, nullptr));
      if (rank == 4) {
        EXPECT_EQ(half, nullptr);
        continue;
      }
      int value = -1;
      ASSERT_NCCL(nccl().CommUserRank(half, &value));
      EXPECT_EQ(value, rank == 0 || rank == 3 ? 1 : 0);
      auto* data = static_cast<int*>(DeviceAlloc(4));
      *data = rank;
      ASSERT_NCCL(nccl().AllReduce(data, data, 1, ncclInt32, ncclSum, half, stream));
      ASSERT_EQ(Synchronize(stream), 0);
      EXPECT_EQ(*data, rank % 2 == 0 ? 2 : 4);
      ASSERT_NCCL(nccl().CommDestroy(half));
    }
  });
}

TEST_F(NcclTest, NonBlockingInitializationSplitAndFinalization) {
  RunRanks(3, [&](int rank) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclComm_t comm = nullptr;
    const auto await = [](ncclComm_t waited) {
      ncclResult_t state = ncclInProgress;
      while (state == ncclInProgress) {
        usleep(1000);
        ASSERT_NCCL(nccl().CommGetAsyncError(waited, &state));
      }
      EXPECT_EQ(state, ncclSuccess);
    };
    if (rank == 2) usleep(100000);
    EXPECT_EQ(nccl().CommInitRankConfig(&comm, 3, id_, rank, &config), ncclInProgress);
    ASSERT_NE(comm, nullptr);
    if (rank == 0) {
      int count;
      EXPECT_EQ(nccl().CommCount(comm, &count), ncclInvalidArgument) << "not ready yet";
    }
    await(comm);
    ncclComm_t child = nullptr;
    EXPECT_EQ(nccl().CommSplit(comm, rank == 1 ? NCCL_SPLIT_NOCOLOR : 0, 0, &child, nullptr),
              ncclInProgress);
    EXPECT_EQ(child == nullptr, rank == 1);
    await(comm);
    if (child != nullptr) await(child);
    cudaStream_t stream = NewStream();
    auto* data = static_cast<int*>(DeviceAlloc(4));
    *data = 1;
    if (child != nullptr) {
      ASSERT_NCCL(nccl().AllReduce(data, data, 1, ncclInt32, ncclSum, child, stream));
      ASSERT_EQ(Synchronize(stream), 0);
      EXPECT_EQ(*data, 2);
    }
    const ncclResult_t finalized = nccl().CommFinalize(comm);
    EXPECT_TRUE(finalized == ncclInProgress || finalized == ncclSuccess);
    await(comm);
    ASSERT_NCCL(nccl().CommDestroy(comm));
  });
}

TEST_F(NcclTest, OneProcessMayHoldAllRanks) {
  RunRanks(1, [&](int) {
    constexpr int kDevices = 4;
    ncclComm_t comms[kDevices];
    const int devices[kDevices] = {3, 1, 0, 2};
    ASSERT_NCCL(nccl().CommInitAll(comms, kDevices, devices));
    cudaStream_t streams[kDevices];
    int* data[kDevices];
    for (int i = 0; i < kDevices; ++i) {
      int device = -1, rank = -1;
      ASSERT_NCCL(nccl().CommCuDevice(comms[i], &device));
      ASSERT_NCCL(nccl().CommUserRank(comms[i], &rank));
      EXPECT_EQ(device, devices[i]);
      EXPECT_EQ(rank, i);
      UseDevice(devices[i]);
      streams[i] = NewStream();
      data[i] = static_cast<int*>(DeviceAlloc(400000 * sizeof(int)));
    }
    for (size_t count : {1, 400000}) {
      for (int i = 0; i < kDevices; ++i) std::fill(data[i], data[i] + count, i + 1);
      ASSERT_NCCL(nccl().GroupStart());
      for (int i = 0; i < kDevices; ++i) {
        ASSERT_NCCL(
            nccl().AllReduce(data[i], data[i], count, ncclInt32, ncclSum, comms[i], streams[i]));
      }
      ASSERT_NCCL(nccl().GroupEnd());
      for (int i = 0; i < kDevices; ++i) {
        ASSERT_EQ(Synchronize(streams[i]), 0);
        EXPECT_EQ(data[i][0], 10);
        EXPECT_EQ(data[i][count - 1], 10);
      }
    }
    ncclComm_t halves[kDevices];
    ASSERT_NCCL(nccl().GroupStart());
    for (int i = 0; i < kDevices; ++i)
      ASSERT_NCCL(nccl().CommSplit(comms[i], i / 2, 0, &halves[i], nullptr));
    ASSERT_NCCL(nccl().GroupEnd());
    for (int i = 0; i < kDevices; ++i) {
      int count = 0;
      ASSERT_NCCL(nccl().CommCount(halves[i], &count));
      EXPECT_EQ(count, 2);
    }
    // One after the other, as single-threaded programs do.
    for (ncclComm_t comm : comms) ASSERT_NCCL(nccl().CommFinalize(comm));
    for (ncclComm_t comm : comms) ASSERT_NCCL(nccl().CommDestroy(comm));
    EXPECT_EQ(nccl().CommInitAll(comms, 2, std::vector<int>{1, 1}.data()), ncclInvalidUsage);
  });
}

TEST_F(NcclTest, RanksOfOneProcessInitializeInAGroup) {
  RunRanks(2, [&](int process) {
    ncclComm_t comms[2];
    ASSERT_NCCL(nccl().GroupStart());
    for (int i = 0; i < 2; ++i) {
      UseDevice(2 * process + i);
      ASSERT_NCCL(nccl().CommInitRank(&comms[i], 4, id_, 2 * process + i));
    }
    ASSERT_NCCL(nccl().GroupEnd());
    auto* data = static_cast<int*>(DeviceAlloc(8));
    cudaStream_t streams[2] = {NewStream(), NewStream()};
    data[0] = data[1] = 1;
    ASSERT_NCCL(nccl().GroupStart());
    for (int i = 0; i < 2; ++i)
      ASSERT_NCCL(
          nccl().AllReduce(&data[i], &data[i], 1, ncclInt32, ncclSum, comms[i], streams[i]));
    ASSERT_NCCL(nccl().GroupEnd());
    for (int i = 0; i < 2; ++i) {
      ASSERT_EQ(Synchronize(streams[i]), 0);
      EXPECT_EQ(data[i], 4);
    }
  });
}

TEST_F(NcclTest, ScalableInitializationTakesSeveralIds) {
  ncclUniqueId ids[2] = {id_, {}};
  ASSERT_EQ(nccl().GetUniqueId(&ids[1]), ncclSuccess);
  RunRanks(3, [&](int rank) {
    ncclComm_t comm = nullptr;
    ASSERT_NCCL(nccl().CommInitRankScalable(&comm, 3, rank, 2, ids, nullptr));
    int count = 0;
    ASSERT_NCCL(nccl().CommCount(comm, &count));
    EXPECT_EQ(count, 3);
    EXPECT_EQ(nccl().CommInitRankScalable(&comm, 3, rank, 4, ids, nullptr), ncclInvalidArgument);
  });
}

TEST_F(NcclTest, MemoryAndWindowsAreRegisteredAndChecked) {
  Run(1, [](int, ncclComm_t comm, cudaStream_t) {
    void* memory = nullptr;
    ASSERT_NCCL(nccl().MemAlloc(&memory, 10000));
    memset(memory, 1, 10000);
    void* handle = nullptr;
    ASSERT_NCCL(nccl().CommRegister(comm, memory, 10000, &handle));
    ASSERT_NE(handle, nullptr);
    ASSERT_NCCL(nccl().CommDeregister(comm, handle));
    EXPECT_EQ(nccl().CommDeregister(comm, handle), ncclInvalidArgument);
    ncclWindow_t window = nullptr;
    void* aligned =
        reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(memory) + 4095) / 4096 * 4096);
    ASSERT_NCCL(nccl().CommWindowRegister(comm, aligned, 4096, &window, NCCL_WIN_COLL_SYMMETRIC));
    ASSERT_NE(window, nullptr);
    ASSERT_NCCL(nccl().CommWindowDeregister(comm, window));
    EXPECT_EQ(nccl().CommWindowRegister(comm, static_cast<char*>(aligned) + 8, 64, &window, 0),
              ncclInvalidArgument);
    ASSERT_NCCL(nccl().MemFree(memory));
  });
}

TEST_F(NcclTest, InvalidArgumentsAreRefusedWithAReason) {
  Run(2, [&](int, ncclComm_t comm, cudaStream_t stream) {
    int data[4] = {};
    const auto expect = [&](ncclResult_t result, ncclResult_t expected, const char* text) {
      EXPECT_EQ(result, expected) << text;
      EXPECT_NE(std::string(nccl().GetLastError(nullptr)).find(text), std::string::npos)
          << nccl().GetLastError(nullptr);
    };
    expect(nccl().AllReduce(data, data, 1, ncclInt32, ncclSum, nullptr, stream),
           ncclInvalidArgument, "comm argument is NULL");
    expect(nccl().AllReduce(data, data, 1, ncclInt32, ncclSum, reinterpret_cast<ncclComm_t>(data),
                            stream),
           ncclInvalidArgument, "not a communicator");
    expect(nccl().AllReduce(nullptr, data, 1, ncclInt32, ncclSum, comm, stream),
           ncclInvalidArgument, "sendbuff argument is NULL");
    expect(nccl().AllReduce(data, nullptr, 1, ncclInt32, ncclSum, comm, stream),
           ncclInvalidArgument, "recvbuff argument is NULL");
    expect(nccl().AllReduce(data, data, 1, static_cast<ncclDataType_t>(12), ncclSum, comm, stream),
           ncclInvalidArgument, "invalid type 12");
    expect(nccl().AllReduce(data, data, 1, ncclInt32, static_cast<ncclRedOp_t>(77), comm, stream),
           ncclInvalidArgument, "reduction operation 77 unknown");
    expect(nccl().Broadcast(data, data, 1, ncclInt32, 2, comm, stream), ncclInvalidArgument,
           "invalid root 2");
    expect(nccl().Reduce(data, data, 1, ncclInt32, ncclSum, -1, comm, stream), ncclInvalidArgument,
           "invalid root -1");
    expect(nccl().Send(data, 1, ncclInt32, 2, comm, stream), ncclInvalidArgument, "invalid peer 2");
    expect(nccl().GroupEnd(), ncclInvalidUsage, "not in a group");
    ncclComm_t other = nullptr;
    expect(nccl().CommInitRank(&other, 2, id_, 2), ncclInvalidArgument,
           "Invalid rank requested : 2/2");
    expect(nccl().CommInitRank(&other, 2, ncclUniqueId{}, 0), ncclInvalidArgument, "unique id");
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 3;
    expect(nccl().CommInitRankConfig(&other, 2, id_, 0, &config), ncclInvalidArgument,
           "blocking attribute value 3");
    config.magic = 0;
    expect(nccl().CommInitRankConfig(&other, 2, id_, 0, &config), ncclInvalidArgument,
           "NCCL_CONFIG_INITIALIZER");
    expect(nccl().CommSplit(comm, -5, 0, &other, nullptr), ncclInvalidArgument, "invalid color -5");
    // A failed call fails its group, and nothing of it runs.
    ASSERT_NCCL(nccl().GroupStart());
    ASSERT_NCCL(nccl().AllReduce(data, data, 1, ncclInt32, ncclSum, comm, stream));
    EXPECT_EQ(nccl().Send(data, 1, ncclInt32, 9, comm, stream), ncclInvalidArgument);
    expect(nccl().GroupEnd(), ncclInvalidArgument, "invalid peer 9");
    EXPECT_EQ(Query(stream), 0);
  });
}

TEST_F(NcclTest, JoiningIsChecked) {
  RunRanks(2, [&](int rank) {
    ncclComm_t comm = nullptr;
    EXPECT_NE(nccl().CommInitRank(&comm, 2 + rank, id_, rank), ncclSuccess) << "another size";
    EXPECT_NE(std::string(nccl().GetLastError(nullptr)).find(" joins a communicator of "),
              std::string::npos)
        << nccl().GetLastError(nullptr);
    EXPECT_EQ(comm, nullptr);
  });
  SetUp();
  RunRanks(2, [&](int) {
    ncclComm_t comm = nullptr;
    EXPECT_EQ(nccl().CommInitRank(&comm, 2, id_, 0), ncclInvalidUsage) << "the same rank";
    EXPECT_NE(
        std::string(nccl().GetLastError(nullptr)).find("rank 0 joined the communicator twice"),
        std::string::npos);
  });
  SetUp();
  RunRanks(2, [&](int rank) {
    UseDevice(5);
    ncclComm_t comm = nullptr;
    EXPECT_EQ(nccl().CommInitRank(&comm, 2, id_, rank), ncclInvalidUsage) << "the same device";
    EXPECT_NE(std::string(nccl().GetLastError(nullptr)).find("Duplicate GPU detected"),
              std::string::npos);
  });
  SetUp();
  RunRanks(2, [&](int rank) {
    UseDevice(5);
    setenv("NCCL_HOSTID", rank == 0 ? "a" : "b", 1);
    ncclComm_t comm = nullptr;
    ASSERT_NCCL(nccl().CommInitRank(&comm, 2, id_, rank));
  });
}

// ---- failures

TEST_F(NcclTest, MismatchedCallsNameBothOnAllRanks) {
  struct Case {
    const char* what;
    std::vector<const char*> texts;
    std::function<ncclResult_t(int rank, int* data, ncclComm_t, cudaStream_t)> call;
  };
  const Case cases[] = {
      {"count",
       {"count=4", "count=5"},
       [](int rank, int* d, ncclComm_t comm, cudaStream_t s) {
         return nccl().AllReduce(d, d, rank == 2 ? 5 : 4, ncclInt32, ncclSum, comm, s);
       }},
      {"type",
       {"ncclInt32", "ncclFloat32"},
       [](int rank, int* d, ncclComm_t comm, cudaStream_t s) {
         return nccl().AllReduce(d, d, 4, rank == 2 ? ncclFloat32 : ncclInt32, ncclSum, comm, s);
       }},
      {"reduction",
       {"ncclSum", "ncclMax"},
       [](int rank, int* d, ncclComm_t comm, cudaStream_t s) {
         return nccl().AllReduce(d, d, 4, ncclInt32, rank == 2 ? ncclMax : ncclSum, comm, s);
       }},
      {"root",
       {"root=0", "root=1"},
       [](int rank, int* d, ncclComm_t comm, cudaStream_t s) {
         return nccl().Broadcast(d, d, 4, ncclInt32, rank == 2 ? 1 : 0, comm, s);
       }},
      {"operation",
       {"ncclAllReduce", "ncclBroadcast"},
       [](int rank, int* d, ncclComm_t comm, cudaStream_t s) {
         return rank == 2 ? nccl().Broadcast(d, d, 4, ncclInt32, 0, comm, s)
                          : nccl().AllReduce(d, d, 4, ncclInt32, ncclSum, comm, s);
       }},
      {"message",
       {"ncclSend(count=3", "ncclRecv(count=4"},
       [](int rank, int* d, ncclComm_t comm, cudaStream_t s) {
         if (rank == 0) return nccl().Recv(d, 4, ncclInt32, 2, comm, s);
         return rank == 1 ? ncclSuccess : nccl().Send(d, 3, ncclInt32, 0, comm, s);
       }},
  };
  setenv("HOSTNCCL_ERROR_GRACE_MS", "300", 1);
  for (const Case& test : cases) {
    SetUp();
    Run(3, [&](int rank, ncclComm_t comm, cudaStream_t stream) {
      SCOPED_TRACE(test.what);
      auto* data = static_cast<int*>(DeviceAlloc(64));
      ASSERT_NCCL(nccl().AllReduce(data, data, 1, ncclInt32, ncclSum, comm, stream));
      // A slow rank may learn of it before its own call.
      const ncclResult_t called = test.call(rank, data, comm, stream);
      EXPECT_TRUE(called == ncclSuccess || called == ncclInvalidUsage) << called;
      EXPECT_EQ(AwaitAsyncError(comm, 5), ncclInvalidUsage);
      const std::string text = nccl().GetLastError(comm);
      for (const char* part : test.texts) EXPECT_NE(text.find(part), std::string::npos) << text;
      EXPECT_NE(text.find("rank 2"), std::string::npos) << text;
      EXPECT_EQ(nccl().AllReduce(data, data, 1, ncclInt32, ncclSum, comm, stream), ncclInvalidUsage)
          << "the communicator is lost";
      // A small message leaves its sender before anybody can compare.
      if (called != ncclSuccess || (rank != 0 && strcmp(test.what, "message") == 0)) return;
      EXPECT_NE(Synchronize(stream), 0) << "streams fail, they do not hang";
    });
  }
  unsetenv("HOSTNCCL_ERROR_GRACE_MS");
}

TEST_F(NcclTest, AKilledPeerIsNoticed) {
  setenv("HOSTNCCL_ERROR_GRACE_MS", "500", 1);
  for (bool message : {false, true}) {
    SetUp();
    Run(3,
        [&](int rank, ncclComm_t comm, cudaStream_t stream) {
          auto* data = static_cast<int*>(DeviceAlloc(64));
          ASSERT_NCCL(nccl().AllReduce(data, data, 1, ncclInt32, ncclSum, comm, stream));
          ASSERT_EQ(Synchronize(stream), 0);
          if (rank == 1) {
            usleep(100000);
            raise(SIGKILL);
          }
          if (message) {
            ASSERT_NCCL(nccl().Recv(data, 1, ncclInt32, 1, comm, stream));
          } else {
            ASSERT_NCCL(nccl().AllReduce(data, data, 1, ncclInt32, ncclSum, comm, stream));
          }
          EXPECT_EQ(AwaitAsyncError(comm, 5), ncclRemoteError);
          const std::string text = nccl().GetLastError(comm);
          EXPECT_NE(text.find("rank 1 (process "), std::string::npos) << text;
          EXPECT_EQ(Synchronize(stream), CUDA_ERROR_LAUNCH_FAILED);
          EXPECT_EQ(nccl().CommAbort(comm), ncclSuccess);
        },
        {1});
  }
  unsetenv("HOSTNCCL_ERROR_GRACE_MS");
}

TEST_F(NcclTest, AnUninvolvedDeathDoesNotDisturb) {
  Run(3,
      [](int rank, ncclComm_t comm, cudaStream_t stream) {
        if (rank == 2) raise(SIGKILL);
        usleep(50000);
        auto* data = static_cast<int*>(DeviceAlloc(64));
        for (int i = 0; i < 10; ++i) {
          if (rank == 0) {
            ASSERT_NCCL(nccl().Send(data, 1, ncclInt32, 1, comm, stream));
          } else {
            ASSERT_NCCL(nccl().Recv(data, 1, ncclInt32, 0, comm, stream));
          }
          if (i == 5) usleep(1200000);
        }
        ASSERT_EQ(Synchronize(stream), 0);
        ncclResult_t error = ncclInternalError;
        ASSERT_NCCL(nccl().CommGetAsyncError(comm, &error));
        EXPECT_EQ(error, ncclSuccess);
      },
      {2});
}

TEST_F(NcclTest, AbortEndsWhatIsPendingHereAndFailsWhatPeersWaitFor) {
  setenv("HOSTNCCL_ERROR_GRACE_MS", "300", 1);
  Run(3, [](int rank, ncclComm_t comm, cudaStream_t stream) {
    auto* data = static_cast<int*>(DeviceAlloc(64));
    if (rank == 2) {
      // Never calls: leaves properly instead.
      usleep(300000);
      ASSERT_NCCL(nccl().CommAbort(comm));
      return;
    }
    ASSERT_NCCL(nccl().AllReduce(data, data, 1, ncclInt32, ncclSum, comm, stream));
    EXPECT_EQ(Query(stream), CUDA_ERROR_NOT_READY);
    if (rank == 0) {
      ASSERT_NCCL(nccl().CommAbort(comm));
      EXPECT_EQ(Synchronize(stream), 0) << "an aborted operation ends, as NCCL's kernels do";
      return;
    }
    EXPECT_EQ(AwaitAsyncError(comm, 5), ncclRemoteError);
    EXPECT_NE(std::string(nccl().GetLastError(comm)).find("aborted the communicator"),
              std::string::npos);
    EXPECT_EQ(Synchronize(stream), CUDA_ERROR_LAUNCH_FAILED);
  });
  unsetenv("HOSTNCCL_ERROR_GRACE_MS");
}

TEST_F(NcclTest, WhoLeavesEarlyIsNamed) {
  Run(2, [](int rank, ncclComm_t comm, cudaStream_t stream) {
    auto* data = static_cast<int*>(DeviceAlloc(64));
    ASSERT_NCCL(nccl().AllReduce(data, data, 1, ncclInt32, ncclSum, comm, stream));
    if (rank == 1) {
      ASSERT_NCCL(nccl().CommDestroy(comm));
      usleep(1000000);
      return;
    }
    ASSERT_NCCL(nccl().AllReduce(data, data, 1, ncclInt32, ncclSum, comm, stream));
    EXPECT_EQ(AwaitAsyncError(comm, 5), ncclRemoteError);
    const std::string text = nccl().GetLastError(comm);
    EXPECT_NE(text.find("rank 1"), std::string::npos);
    EXPECT_NE(text.find("destroyed the communicator"), std::string::npos) << text;
    EXPECT_NE(text.find("collective number 2"), std::string::npos) << text;
    ASSERT_NCCL(nccl().CommAbort(comm));
    EXPECT_EQ(Synchronize(stream), 0);
  });
}

TEST_F(NcclTest, ARevokedCommunicatorMayBeShrunk) {
  Run(3, [](int rank, ncclComm_t comm, cudaStream_t stream) {
    auto* data = static_cast<int*>(DeviceAlloc(64));
    *data = rank + 1;
    if (rank == 1) {
      usleep(300000);
      return;  // exits without a word
    }
    ASSERT_NCCL(nccl().AllReduce(data, data, 1, ncclInt32, ncclSum, comm, stream));
    EXPECT_EQ(AwaitAsyncError(comm, 5), ncclRemoteError);
    if (rank == 0) {
      ASSERT_NCCL(nccl().CommRevoke(comm, NCCL_REVOKE_DEFAULT));
      ASSERT_EQ(Synchronize(stream), 0);
      EXPECT_EQ(nccl().AllReduce(data, data, 1, ncclInt32, ncclSum, comm, stream),
                ncclInvalidUsage);
      EXPECT_EQ(nccl().CommFinalize(comm), ncclInvalidUsage);
    }
    int excluded[] = {1};
    ncclComm_t rest = nullptr;
    ASSERT_NCCL(nccl().CommShrink(comm, excluded, 1, &rest, nullptr,
                                  rank == 0 ? NCCL_SHRINK_DEFAULT : NCCL_SHRINK_ABORT));
    ASSERT_EQ(Synchronize(stream), 0);
    int value = -1;
    ASSERT_NCCL(nccl().CommUserRank(rest, &value));
    EXPECT_EQ(value, rank / 2);
    *data = rank + 1;
    ASSERT_NCCL(nccl().AllReduce(data, data, 1, ncclInt32, ncclSum, rest, stream));
    ASSERT_EQ(Synchronize(stream), 0);
    EXPECT_EQ(*data, 4);
  });
}

TEST_F(NcclTest, ADeathDuringInitializationEndsIt) {
  RunRanks(3,
           [&](int rank) {
             if (rank == 2) return;  // never comes
             ncclComm_t comm = nullptr;
             if (rank == 1) {
               std::thread([] {
                 usleep(200000);
                 raise(SIGKILL);
               }).detach();
             }
             EXPECT_EQ(nccl().CommInitRank(&comm, 3, id_, rank), ncclRemoteError);
             EXPECT_NE(std::string(nccl().GetLastError(nullptr)).find("rank 1"), std::string::npos)
                 << nccl().GetLastError(nullptr);
           },
           {1});
}

TEST_F(NcclTest, RemainsOfKilledProcessesAreSwept) {
  RunRanks(1,
           [&](int) {
             std::thread([this] {
               usleep(200000);
               // Looked at before the end: other processes sweep too.
               if (!SegmentExists()) _exit(1);
               raise(SIGKILL);
             }).detach();
             ncclComm_t comm = nullptr;
             nccl().CommInitRank(&comm, 2, id_, 0);
           },
           {0});
  ncclUniqueId next;
  ASSERT_EQ(nccl().GetUniqueId(&next), ncclSuccess);
  EXPECT_FALSE(SegmentExists());
}

TEST_F(NcclTest, ADeathInTheMiddleOfTransfersIsNoticed) {
  setenv("HOSTNCCL_ERROR_GRACE_MS", "500", 1);
  for (bool message : {false, true}) {
    SetUp();
    Run(3,
        [&](int rank, ncclComm_t comm, cudaStream_t stream) {
          constexpr size_t kCount = 1 << 20;
          auto* data = static_cast<int*>(DeviceAlloc(2 * kCount * sizeof(int)));
          if (rank == 1) {
            std::thread([] {
              usleep(150000);
              raise(SIGKILL);
            }).detach();
          }
          int error = 0;
          while (error == 0) {
            if (message) {
              nccl().GroupStart();
              nccl().Send(data, kCount, ncclInt32, (rank + 1) % 3, comm, stream);
              nccl().Recv(data + kCount, kCount, ncclInt32, (rank + 2) % 3, comm, stream);
              nccl().GroupEnd();
            } else {
              nccl().AllReduce(data, data, kCount, ncclInt32, ncclSum, comm, stream);
            }
            error = Synchronize(stream);
          }
          EXPECT_EQ(error, CUDA_ERROR_LAUNCH_FAILED);
          EXPECT_EQ(AwaitAsyncError(comm, 5), ncclRemoteError);
        },
        {1});
  }
  unsetenv("HOSTNCCL_ERROR_GRACE_MS");
}

TEST_F(NcclTest, WaitingCostsNoProcessorTime) {
  Run(2, [](int rank, ncclComm_t comm, cudaStream_t stream) {
    auto* data = static_cast<int*>(DeviceAlloc(64));
    if (rank == 1) usleep(2500000);
    rusage before, after;
    getrusage(RUSAGE_SELF, &before);
    ASSERT_NCCL(nccl().AllReduce(data, data, 1, ncclInt32, ncclSum, comm, stream));
    ASSERT_EQ(Synchronize(stream), 0);
    getrusage(RUSAGE_SELF, &after);
    const auto micros = [](const rusage& usage) {
      return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000 + usage.ru_utime.tv_usec +
             usage.ru_stime.tv_usec;
    };
    EXPECT_LT(micros(after) - micros(before), 100000);
  });
}

// The same random program on all ranks: three communicators, two streams, groups, messages, sizes
// around the slots'. Only the ranks' delays differ. Every result has a closed form.
TEST_F(NcclTest, RandomPrograms) {
  setenv("HOSTNCCL_SLOT_BYTES", "4096", 1);
  constexpr int kRanks = 4;
  const auto value = [](int rank, int op, size_t i) {
    return (rank * 31 + op * 7 + static_cast<int>(i % 1000)) % 97;
  };
  for (unsigned seed = 1; seed <= 4; ++seed) {
    SetUp();
    Run(kRanks, [&](int rank, ncclComm_t world, cudaStream_t stream) {
      SCOPED_TRACE("seed " + std::to_string(seed));
      struct Group {
        ncclComm_t comm;
        std::vector<int> ranks;  // world ranks in order
      };
      std::vector<Group> groups = {{world, {0, 1, 2, 3}}, {nullptr, {3, 2, 1, 0}}, {nullptr, {}}};
      ASSERT_NCCL(nccl().CommSplit(world, 0, -rank, &groups[1].comm, nullptr));
      ASSERT_NCCL(nccl().CommSplit(world, rank % 2, rank, &groups[2].comm, nullptr));
      groups[2].ranks = {rank % 2, rank % 2 + 2};
      const cudaStream_t streams[2] = {stream, NewStream()};
      struct Check {
        int op;
        int kind;
        Group* group;
        size_t count;
        int root;
        int* recv;
      };
      std::vector<Check> checks;
      std::mt19937 program(seed), delays(seed * 100 + static_cast<unsigned>(rank));
      for (int op = 0; op < 150; ++op) {
        const unsigned group_size = 1 + program() % 3;  // calls in one group
        if (group_size > 1) ASSERT_NCCL(nccl().GroupStart());
        Group& group = groups[program() % 3];
        const int n = static_cast<int>(group.ranks.size());
        const int me = static_cast<int>(std::find(group.ranks.begin(), group.ranks.end(), rank) -
                                        group.ranks.begin());
        cudaStream_t on = streams[program() % 2];
        for (unsigned call = 0; call < group_size; ++call) {
          const int kind = static_cast<int>(program() % 7);
          const size_t count = 1 + program() % (program() % 4 == 0 ? 9000 : 40);
          const int root = static_cast<int>(program() % 2);
          const int shift = 1 + static_cast<int>(program() % 3);
          const int id = op * 4 + static_cast<int>(call);
          const size_t all = count * static_cast<size_t>(n);
          auto* send = static_cast<int*>(DeviceAlloc(all * sizeof(int)));
          auto* recv = static_cast<int*>(DeviceAlloc(all * sizeof(int)));
          for (size_t i = 0; i < all; ++i) send[i] = value(rank, id, i);
          const int to = (me + shift) % n, from = (me + n * 3 - shift) % n;
          switch (kind) {
            case 0:
              ASSERT_NCCL(nccl().AllReduce(send, recv, count, ncclInt32, ncclSum, group.comm, on));
              break;
            case 1:
              ASSERT_NCCL(nccl().AllGather(send, recv, count, ncclInt32, group.comm, on));
              break;
            case 2:
              ASSERT_NCCL(
                  nccl().ReduceScatter(send, recv, count, ncclInt32, ncclSum, group.comm, on));
              break;
            case 3:
              ASSERT_NCCL(nccl().Broadcast(send, recv, count, ncclInt32, root, group.comm, on));
              break;
            case 4:
              ASSERT_NCCL(nccl().AlltoAll(send, recv, count, ncclInt32, group.comm, on));
              break;
            case 5:
              ASSERT_NCCL(
                  nccl().Reduce(send, recv, count, ncclInt32, ncclSum, root, group.comm, on));
              break;
            default:
              ASSERT_NCCL(nccl().GroupStart());
              ASSERT_NCCL(nccl().Send(send, count, ncclInt32, to, group.comm, on));
              ASSERT_NCCL(nccl().Recv(recv, count, ncclInt32, from, group.comm, on));
              ASSERT_NCCL(nccl().GroupEnd());
          }
          checks.push_back({id, kind, &group, count, kind == 6 ? from : root, recv});
        }
        if (group_size > 1) ASSERT_NCCL(nccl().GroupEnd());
        if (delays() % 10 == 0) usleep(delays() % 3000);
        if (delays() % 25 == 0) {
          ASSERT_EQ(Synchronize(streams[delays() % 2]), 0);
        }
      }
      for (cudaStream_t each : streams) ASSERT_EQ(Synchronize(each), 0);
      for (const Check& check : checks) {
        const std::vector<int>& ranks = check.group->ranks;
        const int me =
            static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
        const size_t parts = check.kind == 1 || check.kind == 4 ? ranks.size() : 1;
        if (check.kind == 5 && check.root != me) continue;
        for (size_t i = 0; i < check.count * parts; ++i) {
          const size_t part = i / check.count, inside = i % check.count,
                       mine = static_cast<size_t>(me) * check.count + inside;
          int expected = 0;
          for (size_t r = 0; r < ranks.size(); ++r) {
            if (check.kind == 0 || check.kind == 5) expected += value(ranks[r], check.op, i);
            if (check.kind == 2) expected += value(ranks[r], check.op, mine);
          }
          if (check.kind == 1) expected = value(ranks[part], check.op, inside);
          if (check.kind == 4) expected = value(ranks[part], check.op, mine);
          if (check.kind == 3 || check.kind == 6)
            expected = value(ranks[static_cast<size_t>(check.root)], check.op, i);
          ASSERT_EQ(check.recv[i], expected)
              << "operation " << check.op << " kind " << check.kind << " element " << i;
        }
      }
    });
  }
  unsetenv("HOSTNCCL_SLOT_BYTES");
}

TEST_F(NcclTest, ManyRanks) {
  constexpr int kRanks = 24;
  Run(kRanks, [](int rank, ncclComm_t comm, cudaStream_t stream) {
    auto* data = static_cast<int*>(DeviceAlloc(400000));
    for (size_t count : {1, 20000, 100000}) {
      for (size_t i = 0; i < count; ++i) data[i] = rank;
      ASSERT_NCCL(nccl().AllReduce(data, data, count, ncclInt32, ncclSum, comm, stream));
      ASSERT_EQ(Synchronize(stream), 0);
      ASSERT_EQ(data[0], kRanks * (kRanks - 1) / 2);
      ASSERT_EQ(data[count - 1], kRanks * (kRanks - 1) / 2);
    }
    ncclComm_t row = nullptr;
    ASSERT_NCCL(nccl().CommSplit(comm, rank / 4, rank, &row, nullptr));
    *data = 1;
    ASSERT_NCCL(nccl().AllReduce(data, data, 1, ncclInt32, ncclSum, row, stream));
    ASSERT_EQ(Synchronize(stream), 0);
    EXPECT_EQ(*data, 4);
  });
}

}  // namespace
}  // namespace hostnccl::testing
