// Communication on hostcuda's virtual clock: real processes and libraries, times in closed form.
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <fstream>
#include <string>

#define HOSTCUDA_OPTIONAL
#include "hostcuda/hostcuda.h"
#include "hostcuda/nccl/testing/machine.h"

namespace hostnccl::testing {
namespace {

// Of the topology that the tests write; what hostcuda charges a thread for a call.
constexpr uint64_t kBaseNs = 5000, kPortNs = 1000, kRailNs = 3000, kCallNs = 10'000;
constexpr const char* kTopology = R"({"schema": 1, "gpus_per_node": 4, "base_ns": 5000,
  "port": {"latency_ns": 1000, "bytes_per_s": 1e9}, "protocols": [{}])";
constexpr const char* kRail = R"(, "rail": {"latency_ns": 3000, "bytes_per_s": 1e8})";

#define ASSERT_NCCL(call) ASSERT_EQ((call), ncclSuccess) << nccl().GetLastError(nullptr)

class NcclClockTest : public ::testing::Test {
 protected:
  static constexpr int kRanks = 4;

  void SetUp() override { Prepare(kRanks, kRail); }
  void TearDown() override { unlink(topology_.c_str()); }

  /// A new job; `more` keys go to the topology.
  void Prepare(int ranks, const std::string& more) {
    static int jobs = 0;
    const std::string session = "nccl-clock-" + std::to_string(getpid()) + std::to_string(++jobs);
    setenv("HOSTCUDA_CLOCK", "virtual", 1);
    setenv("HOSTCUDA_SESSION", session.c_str(), 1);
    setenv("HOSTCUDA_PROCESSES", std::to_string(ranks).c_str(), 1);
    topology_ = ::testing::TempDir() + "/" + session + ".json";
    std::ofstream(topology_) << kTopology << more << "}";
    setenv("HOSTNCCL_TOPOLOGY", topology_.c_str(), 1);
    ranks_ = ranks;
    ASSERT_EQ(nccl().GetUniqueId(&id_), ncclSuccess);
  }

  template <typename Body>
  void Run(Body body, const std::vector<int>& expect_killed = {}) {
    RunRanks(
        ranks_,
        [&](int rank) {
          ncclComm_t comm = nullptr;
          ASSERT_NCCL(nccl().CommInitRank(&comm, ranks_, id_, rank));
          void* buffer = DeviceAlloc(8 << 20);
          start_ns_ = hostcudaNow();
          body(rank, comm, NewStream(), buffer);
        },
        expect_killed);
  }
  uint64_t Now() const { return hostcudaNow() - start_ns_; }
  /// Ranks that end at different times hold the clock until they are found dead.
  void EndTogether(ncclComm_t comm, cudaStream_t stream, void* buffer) {
    ASSERT_NCCL(nccl().AllReduce(buffer, buffer, 1, ncclFloat, ncclSum, comm, stream));
    ASSERT_EQ(Synchronize(stream), 0);
  }

  ncclUniqueId id_;
  std::string topology_;
  int ranks_ = 0;
  uint64_t start_ns_ = 0;
};

TEST_F(NcclClockTest, AllReduce_EndsWhenTheLastRankHasComeAndTheRingHasRun) {
  Run([&](int rank, ncclComm_t comm, cudaStream_t stream, void* buffer) {
    hostcudaHostTime(static_cast<unsigned>(rank) * 50'000);
    ASSERT_NCCL(nccl().AllReduce(buffer, buffer, 250'000, ncclFloat, ncclSum, comm, stream));
    ASSERT_EQ(Synchronize(stream), 0);
    // Each rank sends 2 (n - 1) / n of a megabyte.
    const uint64_t one = kBaseNs + 6 * kPortNs + 1'500'000;
    EXPECT_EQ(Now(), 3 * 50'000 + kCallNs + one);
    // The next start together, one after the other.
    const uint64_t before = Now();
    ASSERT_NCCL(nccl().AllReduce(buffer, buffer, 250'000, ncclFloat, ncclSum, comm, stream));
    ASSERT_NCCL(nccl().ReduceScatter(buffer, buffer, 1000, ncclInt8, ncclSum, comm, stream));
    ASSERT_EQ(Synchronize(stream), 0);
    EXPECT_EQ(Now() - before, kCallNs + one + kBaseNs + 3 * kPortNs + 3000);
  });
}

TEST_F(NcclClockTest, LargePayloadThatDoesNotMove_TakesTheTimeOfItsBytes) {
  Run([&](int, ncclComm_t comm, cudaStream_t stream, void* buffer) {
    ASSERT_NCCL(nccl().AllGather(buffer, buffer, 1'000'000, ncclInt8, comm, stream));
    ASSERT_EQ(Synchronize(stream), 0);
    EXPECT_EQ(Now(), kCallNs + kBaseNs + 3 * kPortNs + 3'000'000);
  });
}

TEST_F(NcclClockTest, Message_EndsALinksTimeAfterBothSidesHaveCome) {
  Run([&](int rank, ncclComm_t comm, cudaStream_t stream, void* buffer) {
    if (rank == 0) {
      hostcudaHostTime(300'000);
      ASSERT_NCCL(nccl().Send(buffer, 1'000'000, ncclInt8, 1, comm, stream));
    } else if (rank == 1) {
      ASSERT_NCCL(nccl().Recv(buffer, 1'000'000, ncclInt8, 0, comm, stream));
    } else {
      return;
    }
    ASSERT_EQ(Synchronize(stream), 0);
    EXPECT_EQ(Now(), 300'000 + kCallNs + kBaseNs + kPortNs + 1'000'000);
  });
}

TEST_F(NcclClockTest, SmallMessageWhoseReceiverComesLate_EndsWithTheReceivesCall) {
  Run([&](int rank, ncclComm_t comm, cudaStream_t stream, void* buffer) {
    if (rank == 0) {
      ASSERT_NCCL(nccl().Send(buffer, 1000, ncclInt8, 1, comm, stream));
      ASSERT_EQ(Synchronize(stream), 0);
      EXPECT_EQ(Now(), kCallNs + kBaseNs + kPortNs + 1000);
    } else if (rank == 1) {
      hostcudaHostTime(300'000);
      ASSERT_NCCL(nccl().Recv(buffer, 1000, ncclInt8, 0, comm, stream));
      ASSERT_EQ(Synchronize(stream), 0);
      EXPECT_EQ(Now(), 300'000 + kCallNs + kBaseNs);
    }
  });
}

TEST_F(NcclClockTest, SmallMessagesForWhichThereIsNoRoom_BeginWhenTheirReceiverComes) {
  Run([&](int rank, ncclComm_t comm, cudaStream_t stream, void* buffer) {
    if (rank > 1) return;
    hostcudaHostTime(static_cast<unsigned>(rank) * 300'000);
    // Room for eight; the others are on their way when the first have long come.
    ASSERT_NCCL(nccl().GroupStart());
    for (int i = 0; i < 10; ++i) {
      ASSERT_NCCL(rank == 0 ? nccl().Send(buffer, 1000, ncclInt8, 1, comm, stream)
                            : nccl().Recv(buffer, 1000, ncclInt8, 0, comm, stream));
    }
    ASSERT_NCCL(nccl().GroupEnd());
    ASSERT_EQ(Synchronize(stream), 0);
    EXPECT_EQ(Now(), 300'000 + kCallNs + kBaseNs + kPortNs + 1000);
  });
}

TEST_F(NcclClockTest, SmallMessages_HaveRoomForEachPeer) {
  constexpr uint64_t kFifoBytes = 4 << 20;
  Run([&](int rank, ncclComm_t comm, cudaStream_t stream, void* buffer) {
    hostcudaHostTime(static_cast<unsigned>(rank) * 20'000'000);
    ASSERT_NCCL(nccl().GroupStart());
    if (rank == 0) {
      for (int peer = 1; peer < kRanks; ++peer)
        ASSERT_NCCL(nccl().Send(buffer, kFifoBytes, ncclInt8, peer, comm, stream));
    } else {
      ASSERT_NCCL(nccl().Recv(buffer, kFifoBytes, ncclInt8, 0, comm, stream));
    }
    ASSERT_NCCL(nccl().GroupEnd());
    ASSERT_EQ(Synchronize(stream), 0);
    // All three have gone by one port before anybody comes.
    if (rank == 0) {
      EXPECT_NEAR(static_cast<double>(Now() - kCallNs), 3.0 * kFifoBytes, 1);
    } else {
      EXPECT_EQ(Now(), static_cast<unsigned>(rank) * 20'000'000 + kCallNs + kBaseNs);
    }
    EndTogether(comm, stream, buffer);
  });
}

TEST_F(NcclClockTest, MessageForWhichThereIsNoRoom_BeginsWhenAnEarlierOneIsReceived) {
  Run([&](int rank, ncclComm_t comm, cudaStream_t stream, void* buffer) {
    if (rank == 0) {
      ASSERT_NCCL(nccl().Send(buffer, 4 << 20, ncclInt8, 1, comm, stream));
      ASSERT_NCCL(nccl().Send(buffer, 1000, ncclInt8, 1, comm, stream));
      ASSERT_EQ(Synchronize(stream), 0);
      EXPECT_EQ(Now(), 10'000'000 + kCallNs + kBaseNs + kPortNs + 1000);
    } else if (rank == 1) {
      hostcudaHostTime(10'000'000);
      ASSERT_NCCL(nccl().Recv(buffer, 4 << 20, ncclInt8, 0, comm, stream));
      ASSERT_EQ(Synchronize(stream), 0);
      EXPECT_EQ(Now(), 10'000'000 + kCallNs + kBaseNs);
      hostcudaHostTime(5'000'000);
      ASSERT_NCCL(nccl().Recv(buffer, 1000, ncclInt8, 0, comm, stream));
      ASSERT_EQ(Synchronize(stream), 0);
      EXPECT_EQ(Now(), 15'000'000 + 2 * kCallNs + 2 * kBaseNs);
    }
    EndTogether(comm, stream, buffer);
  });
}

// Payloads that move, more of them than a rank has slots for.
TEST_F(NcclClockTest, SmallMessagesWithoutSlots_AreThereWhenTheirReceiversCome) {
  constexpr int kJobRanks = 8, kEach = 8;
  Prepare(kJobRanks, kRail);
  Run([&](int rank, ncclComm_t comm, cudaStream_t stream, void* buffer) {
    hostcudaHostTime(static_cast<unsigned>(rank) * 100'000);
    ASSERT_NCCL(nccl().GroupStart());
    for (int i = 0; i < kEach; ++i) {
      if (rank != 0) {
        ASSERT_NCCL(nccl().Recv(buffer, 100, ncclInt8, 0, comm, stream));
        continue;
      }
      for (int peer = 1; peer < kJobRanks; ++peer)
        ASSERT_NCCL(nccl().Send(buffer, 100, ncclInt8, peer, comm, stream));
    }
    ASSERT_NCCL(nccl().GroupEnd());
    ASSERT_EQ(Synchronize(stream), 0);
    const uint64_t comes_ns = static_cast<unsigned>(rank) * 100'000;
    if (rank != 0) {
      EXPECT_EQ(Now(), comes_ns + kCallNs + kBaseNs);
    }
    EndTogether(comm, stream, buffer);
  });
}

TEST_F(NcclClockTest, AllReduceOverTwoNodes_UsesTheirRails) {
  Prepare(8, kRail);
  Run([&](int, ncclComm_t comm, cudaStream_t stream, void* buffer) {
    ASSERT_NCCL(nccl().AllReduce(buffer, buffer, 1'000'000, ncclInt8, ncclSum, comm, stream));
    ASSERT_EQ(Synchronize(stream), 0);
    // Chains of four and one step between two nodes, there and back; each of four rails carries a
    // quarter of the bytes.
    EXPECT_EQ(Now(), kCallNs + kBaseNs + 2 * (3 * kPortNs + kRailNs) + 2'500'000);
  });
}

TEST_F(NcclClockTest, GroupsThatShareANic_ShareItsBandwidth) {
  // Two nodes of four; one NIC for all GPUs of a node.
  Prepare(8, R"(, "rail": {"nics_per_node": 1, "latency_ns": 3000, "bytes_per_s": 1e8})");
  Run([&](int rank, ncclComm_t comm, cudaStream_t stream, void* buffer) {
    ncclComm_t pair = nullptr;
    ASSERT_NCCL(nccl().CommSplit(comm, rank % 4, rank, &pair, nullptr));
    const uint64_t before = Now();
    // Four pairs at once, a megabyte each way: each alone would take 10 ms of the NIC.
    ASSERT_NCCL(nccl().AllGather(buffer, buffer, 1'000'000, ncclInt8, pair, stream));
    ASSERT_EQ(Synchronize(stream), 0);
    // What they ask of the NIC are shares of the time that each takes alone, so latencies overlap.
    EXPECT_NEAR(static_cast<double>(Now() - before - kCallNs), 4 * 10e6, 1);
  });
}

TEST_F(NcclClockTest, LateFlow_SlowsWhatIsUnderWay) {
  Prepare(4, kRail);
  Run([&](int rank, ncclComm_t comm, cudaStream_t stream, void* buffer) {
    ncclComm_t second = nullptr;
    ASSERT_NCCL(nccl().CommSplit(comm, 0, rank, &second, nullptr));
    const cudaStream_t other = NewStream();
    const uint64_t before = Now();
    ASSERT_NCCL(nccl().AllGather(buffer, buffer, 1'000'000, ncclInt8, comm, stream));
    hostcudaHostTime(1'000'000);
    ASSERT_NCCL(nccl().AllGather(buffer, buffer, 1'000'000, ncclInt8, second, other));
    ASSERT_EQ(Synchronize(stream), 0);
    const uint64_t first_ns = Now() - before;
    ASSERT_EQ(Synchronize(other), 0);
    const uint64_t second_ns = Now() - before;
    // Alone each takes D = 5000 + 3000 + 3e6 ns, of which it needs the ports 3e6: together they go
    // at the speed D / 6e6. The first has 1 ms + kCallNs of it done when the second begins.
    const double alone = kBaseNs + 3 * kPortNs + 3e6, stretch = 6e6 / alone;
    const double begins = 1e6 + 2 * kCallNs;
    const double first = begins + (alone - (begins - kCallNs)) * stretch;
    const double second_left = alone - (first - begins) / stretch;
    EXPECT_NEAR(static_cast<double>(first_ns), first, 1.5);
    EXPECT_NEAR(static_cast<double>(second_ns), first + second_left, 2);
  });
}

// Four communicators whose operations overlap in ways that depend on each other, with jitter.
TEST_F(NcclClockTest, OverlappingCommunicators_TakeTheSameTimesInEveryRun) {
  constexpr int kJobRanks = 8, kSteps = 6;
  using Times = uint64_t[kJobRanks][kSteps];
  auto* const times = static_cast<Times*>(
      mmap(nullptr, 2 * sizeof(Times), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  for (int run = 0; run < 2; ++run) {
    Prepare(kJobRanks,
            R"(, "rail": {"nics_per_node": 2, "bytes_per_s": 5e8}, "jitter": {"sigma": 0.1})");
    Run([&](int rank, ncclComm_t comm, cudaStream_t stream, void* buffer) {
      ncclComm_t comms[3];
      cudaStream_t streams[3];
      for (int i = 0; i < 3; ++i) {
        ASSERT_NCCL(nccl().CommSplit(comm,
                                     i == 0   ? rank / 4
                                     : i == 1 ? rank % 4
                                              : rank % 2,
                                     rank, &comms[i], nullptr));
        streams[i] = NewStream();
      }
      for (int step = 0; step < kSteps; ++step) {
        hostcudaHostTime(static_cast<unsigned>(rank * step % 5) * 20'000);
        for (int i = 0; i < 3; ++i) {
          ASSERT_NCCL(nccl().AllReduce(buffer, buffer, 20'000u << i, ncclFloat, ncclSum, comms[i],
                                       streams[i]));
        }
        ASSERT_NCCL(nccl().GroupStart());
        for (int peer = 0; peer < kJobRanks; ++peer) {
          const size_t sent = 1000u * static_cast<unsigned>(1 + (rank + peer) % 7);
          ASSERT_NCCL(nccl().Send(buffer, sent, ncclInt8, peer, comm, stream));
          ASSERT_NCCL(nccl().Recv(buffer, sent, ncclInt8, peer, comm, stream));
        }
        ASSERT_NCCL(nccl().GroupEnd());
        ASSERT_EQ(Synchronize(stream), 0);
        ASSERT_EQ(Synchronize(streams[step % 3]), 0);
        times[run][rank][step] = hostcudaNow();
      }
      for (const cudaStream_t one : streams) ASSERT_EQ(Synchronize(one), 0);
      EndTogether(comm, stream, buffer);
    });
  }
  for (int rank = 0; rank < kJobRanks; ++rank) {
    for (int step = 0; step < kSteps; ++step) {
      EXPECT_GT(times[0][rank][step], 0u);
      EXPECT_EQ(times[0][rank][step], times[1][rank][step]) << "rank " << rank << ", step " << step;
    }
  }
  munmap(times, 2 * sizeof(Times));
}

// More to each peer than its FIFO holds, by ranks of which some come at the same times: what is
// sent early must not depend on who comes first.
TEST_F(NcclClockTest, MessagesOfAll_TakeTheSameTimesInEveryRun) {
  constexpr int kJobRanks = 12, kSteps = 10, kRuns = 3;
  using Times = uint64_t[kJobRanks][kSteps];
  constexpr size_t kBytes = kRuns * sizeof(Times);
  auto* const times = static_cast<Times*>(
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  for (int run = 0; run < kRuns; ++run) {
    Prepare(kJobRanks, kRail);
    Run([&](int rank, ncclComm_t comm, cudaStream_t stream, void* buffer) {
      for (int step = 0; step < kSteps; ++step) {
        const auto bytes = [&](int from, int to) {
          return size_t{1} << (16 + (from * 7 + to * 3 + step) % 7);
        };
        hostcudaHostTime(static_cast<unsigned>(rank % 3) * 1000);
        ASSERT_NCCL(nccl().GroupStart());
        for (int i = 0; i < 2; ++i) {
          for (int peer = 0; peer < kJobRanks; ++peer) {
            ASSERT_NCCL(nccl().Send(buffer, bytes(rank, peer), ncclInt8, peer, comm, stream));
            ASSERT_NCCL(nccl().Recv(buffer, bytes(peer, rank), ncclInt8, peer, comm, stream));
          }
        }
        ASSERT_NCCL(nccl().GroupEnd());
        ASSERT_EQ(Synchronize(stream), 0);
        times[run][rank][step] = hostcudaNow();
      }
      EndTogether(comm, stream, buffer);
    });
  }
  for (int run = 1; run < kRuns; ++run) EXPECT_EQ(memcmp(times[0], times[run], sizeof(Times)), 0);
  munmap(times, kBytes);
}

TEST_F(NcclClockTest, RankKilledWhileItsFlowGoesOn_LeavesTheOthersTheirTimes) {
  Run(
      [&](int rank, ncclComm_t comm, cudaStream_t stream, void* buffer) {
        ncclComm_t half = nullptr;
        ASSERT_NCCL(nccl().CommSplit(comm, rank / 2, rank, &half, nullptr));
        ASSERT_NCCL(nccl().AllGather(buffer, buffer, 1'000'000, ncclInt8, half, stream));
        if (rank == 3) {
          // By then the operation has begun: what is to be exchanged is.
          hostcudaHostTime(100'000);
          raise(SIGKILL);
        }
        ASSERT_EQ(Synchronize(stream), 0);
        // Of a killed rank's flow the end may be noticed late, but no other flow's.
        if (rank < 2) {
          EXPECT_EQ(Now(), kCallNs + kBaseNs + kPortNs + 1'000'000);
        } else {
          EXPECT_GE(Now(), kCallNs + kBaseNs + kPortNs + 1'000'000);
        }
      },
      {3});
}

TEST_F(NcclClockTest, RanksWithDifferentTopologies_GetNoCommunicator) {
  RunRanks(2, [&](int rank) {
    if (rank == 1) unsetenv("HOSTNCCL_TOPOLOGY");
    ncclComm_t comm = nullptr;
    setenv("HOSTCUDA_PROCESSES", "2", 1);
    EXPECT_EQ(nccl().CommInitRank(&comm, 2, id_, rank), ncclInvalidUsage);
    EXPECT_NE(std::string(nccl().GetLastError(nullptr)).find("HOSTNCCL_TOPOLOGY"),
              std::string::npos);
  });
}

TEST_F(NcclClockTest, CommunicatorOfRanksThatComeLate_IsMadeWithoutStoppingTheClock) {
  RunRanks(kRanks, [&](int rank) {
    // The first ranks wait in the rendezvous while the last still works.
    hostcudaHostTime(static_cast<unsigned>(rank) * 1'000'000);
    ncclComm_t comm = nullptr, part = nullptr;
    ASSERT_NCCL(nccl().CommInitRank(&comm, kRanks, id_, rank));
    EXPECT_EQ(hostcudaNow(), 1'000'000'000u + 3'000'000);
    hostcudaHostTime(static_cast<unsigned>(kRanks - rank) * 1'000'000);
    ASSERT_NCCL(nccl().CommSplit(comm, rank % 2, 0, &part, nullptr));
    EXPECT_EQ(hostcudaNow(), 1'000'000'000u + 7'000'000);
  });
}

}  // namespace
}  // namespace hostnccl::testing
