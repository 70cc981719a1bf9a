// What a group becomes on streams, before a driver that writes down what it is asked and a core
// whose controller is absent.
#include "src/interpose/nccl/launch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <vector>

namespace prism::interpose::nccl {
namespace {

using ::testing::ElementsAre;

// One log of everything, in order: "A: copy", "A: host", "A: wait", ...
std::vector<std::string> g_log;
std::vector<std::pair<CUhostFn, void*>> g_host_functions;
std::vector<wire::OpPost> g_posts;
std::vector<wire::OpRecord> g_records;
int g_fail_at = -1;  // the n-th wait fails
int g_slots = 0, g_words = 0, g_rings = 0;
uint32_t g_round = 0;
bool g_capturing = false, g_controller_gone = false;
uint32_t g_word_memory[4096];
wire::Welcome g_welcome{};
int64_t g_memory_left = INT64_MAX;
struct Taken {
  uint32_t device;
  int64_t bytes;
  uint32_t comm;
};
std::vector<Taken> g_memory;

const CUstream kA = reinterpret_cast<CUstream>(0x100), kB = reinterpret_cast<CUstream>(0x200);
std::string Name(CUstream stream) { return stream == kA ? "A" : "B"; }

CUresult Copy(CUdeviceptr, CUdeviceptr, size_t bytes, CUstream stream) {
  g_log.push_back(Name(stream) + ": copy " + std::to_string(bytes));
  return CUDA_SUCCESS;
}
CUresult Host(CUstream stream, CUhostFn function, void* argument) {
  g_log.push_back(Name(stream) + ": host");
  g_host_functions.emplace_back(function, argument);
  return CUDA_SUCCESS;
}
CUresult Wait(CUstream stream, CUdeviceptr, cuuint32_t, unsigned) {
  if (g_fail_at-- == 0) return CUDA_ERROR_INVALID_VALUE;
  g_log.push_back(Name(stream) + ": wait");
  return CUDA_SUCCESS;
}
CUresult Capturing(CUstream, CUstreamCaptureStatus* status) {
  *status = g_capturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}

CUcontext g_context = reinterpret_cast<CUcontext>(1);  // the current one

// What a stand-in kernel is launched with.
std::vector<std::pair<std::string, StandInArguments>> g_kernels;
CUresult LaunchKernel(CUfunction function, unsigned grid, unsigned, unsigned, unsigned, unsigned,
                      unsigned, unsigned, CUstream stream, void** parameters, void**) {
  StandInArguments arguments;
  memcpy(&arguments, parameters[0], sizeof arguments);
  g_kernels.emplace_back(reinterpret_cast<const char*>(function), arguments);
  g_log.push_back(Name(stream) + ": kernel of " + std::to_string(grid));
  return CUDA_SUCCESS;
}

DriverCalls Driver() {
  DriverCalls driver{};
  driver.memset_async = [](CUdeviceptr, unsigned char, size_t bytes, CUstream stream) {
    g_log.push_back(Name(stream) + ": zero " + std::to_string(bytes));
    return CUDA_SUCCESS;
  };
  driver.memset = [](CUdeviceptr, unsigned char, size_t) { return CUDA_SUCCESS; };
  driver.mem_alloc = [](CUdeviceptr* address, size_t) {
    *address = 0x5000;
    return CUDA_SUCCESS;
  };
  driver.module_load_data = [](CUmodule* module, const void* image) {
    *module = reinterpret_cast<CUmodule>(1);
    return strstr(static_cast<const char*>(image), ".entry ncclDevKernel_") == nullptr
               ? CUDA_ERROR_INVALID_PTX
               : CUDA_SUCCESS;
  };
  // A function is its name.
  driver.module_get_function = [](CUfunction* function, CUmodule, const char* name) {
    *function = reinterpret_cast<CUfunction>(const_cast<char*>(name));
    return CUDA_SUCCESS;
  };
  driver.launch_kernel = &LaunchKernel;
  driver.ctx_get_current = [](CUcontext* context) {
    *context = g_context;
    return CUDA_SUCCESS;
  };
  driver.ctx_set_current = [](CUcontext context) {
    g_context = context;
    return CUDA_SUCCESS;
  };
  driver.primary_ctx_retain = [](CUcontext* context, CUdevice) {
    *context = reinterpret_cast<CUcontext>(1);
    return CUDA_SUCCESS;
  };
  driver.memcpy_async = &Copy;
  driver.launch_host_func = &Host;
  driver.stream_wait_value = &Wait;
  driver.stream_is_capturing = &Capturing;
  driver.event_create = [](CUevent* event, unsigned) {
    *event = reinterpret_cast<CUevent>(1);
    return CUDA_SUCCESS;
  };
  driver.event_record = [](CUevent, CUstream stream) {
    g_log.push_back(Name(stream) + ": record");
    return CUDA_SUCCESS;
  };
  driver.stream_wait_event = [](CUstream stream, CUevent, unsigned) {
    g_log.push_back(Name(stream) + ": wait event");
    return CUDA_SUCCESS;
  };
  driver.event_destroy = [](CUevent) { return CUDA_SUCCESS; };
  driver.get_error_name = [](CUresult, const char** name) {
    *name = "CUDA_ERROR_INVALID_VALUE";
    return CUDA_SUCCESS;
  };
  return driver;
}

CoreTable Core() {
  CoreTable core{};
  core.welcome = []() -> const wire::Welcome* { return &g_welcome; };
  core.mode = [] { return g_welcome.mode; };
  core.writer = []() -> trace::Writer* { return nullptr; };
  core.stream_number = [](CUstream) { return 7u; };
  core.call_site = [] { return 3u; };
  core.gap = [](const char*) {};
  core.charge = [](int) {};
  core.work = [](uint64_t) {};
  core.nccl_memory = [](uint32_t device, int64_t bytes, uint32_t comm) {
    if (g_memory_left < bytes) return false;
    g_memory_left -= bytes;
    g_memory.push_back({device, bytes, comm});
    return true;
  };
  core.request = [](wire::Header* packet, void*, size_t) -> int64_t {
    if (g_controller_gone) return -1;
    wire::OpPost post;
    memcpy(&post, packet, sizeof post);
    g_posts.push_back(post);
    for (uint32_t i = 0; i < post.operations; ++i) {
      wire::OpRecord record;
      memcpy(&record, reinterpret_cast<char*>(packet) + sizeof post + i * sizeof record,
             sizeof record);
      g_records.push_back(record);
    }
    return 0;
  };
  core.arena_take = [](uint64_t bytes, ArenaSlot* slot) {
    *slot = {malloc(bytes), 0x1000u * static_cast<uint64_t>(++g_slots), bytes};
    return true;
  };
  core.arena_give = [](const ArenaSlot* slot) {
    --g_slots;
    free(slot->host);
  };
  core.word_take = [] {
    static uint32_t next = 16;
    ++g_words;
    return next++ % 4096;
  };
  core.word_give = [](uint32_t) { --g_words; };
  core.word = [](uint32_t index) { return &g_word_memory[index]; };
  core.ring = [] { ++g_rings; };
  core.round = [] { return g_round; };
  return core;
}

class LaunchTest : public ::testing::Test {
 protected:
  void SetUp() override {
    g_log.clear();
    g_host_functions.clear();
    g_posts.clear();
    g_records.clear();
    g_fail_at = -1;
    g_capturing = g_controller_gone = false;
    g_slots = g_words = g_rings = 0;
    g_round = 0;
    memset(g_word_memory, 0, sizeof g_word_memory);
    g_memory.clear();
    g_memory_left = INT64_MAX;
    g_welcome.exact_payload_bytes = UINT64_MAX;
    g_welcome.devices = 8;
    g_welcome.flags = 0;
    g_welcome.mode = wire::Mode::kCapture;
    g_kernels.clear();
  }

  static std::shared_ptr<Communicator> Comm(uint32_t id) {
    auto comm = std::make_shared<Communicator>(2, 0, 0, true);
    comm->Ready(id, {0, 1}, 0);
    return comm;
  }

  Operation AllReduce(const std::shared_ptr<Communicator>& comm, CUstream stream,
                      uint64_t bytes = 64) {
    Operation operation;
    operation.comm = comm;
    operation.record.op = wire::Op::kAllReduce;
    operation.record.in_bytes = operation.record.out_bytes = operation.payload_bytes = bytes;
    operation.input = operation.output = buffer_;
    operation.stream = stream;
    return operation;
  }

  void RunHostFunctions() {
    for (const auto& [function, argument] : g_host_functions) function(argument);
    g_host_functions.clear();
  }

  const CoreTable core_ = Core();
  const DriverCalls driver_ = Driver();
  char buffer_[64] = {};  // nothing is copied to or from it
};

TEST_F(LaunchTest, OneCallIsCopyArrivalStallCopyCompletion) {
  const auto comm = Comm(1);
  ASSERT_EQ(Launch(core_, driver_, {AllReduce(comm, kA)}), ncclSuccess);
  EXPECT_THAT(g_log, ElementsAre("A: copy 64", "A: host", "A: wait", "A: copy 64", "A: host"));
  ASSERT_EQ(g_posts.size(), 1u);
  EXPECT_EQ(g_records[0].sequence, 0u);
  EXPECT_EQ(g_records[0].stream, 7u);
  EXPECT_EQ(g_records[0].call_site, 3u);
  EXPECT_EQ(g_records[0].flags & wire::kOpPayload, wire::kOpPayload);
  EXPECT_EQ(g_slots, 2);
  RunHostFunctions();
  EXPECT_EQ(g_rings, 1);
  EXPECT_EQ(g_word_memory[g_posts[0].arrival_word], g_posts[0].arrival_value);
  EXPECT_EQ(g_slots, 0);
  EXPECT_EQ(g_words, 0);
  comm->WaitIdle();
}

TEST_F(LaunchTest, LargePayloadIsNotCopied) {
  g_welcome.exact_payload_bytes = 63;
  ASSERT_EQ(Launch(core_, driver_, {AllReduce(Comm(1), kA)}), ncclSuccess);
  EXPECT_THAT(g_log, ElementsAre("A: host", "A: wait", "A: host"));
  EXPECT_EQ(g_records[0].flags & wire::kOpPayload, 0u);
  EXPECT_EQ(g_records[0].in_bytes, 64u);  // the true size all the same
  RunHostFunctions();
}

TEST_F(LaunchTest, FirstOperationTakesTheMemoryOfItsConnectionsAndTheEndGivesItBack) {
  const auto comm = Comm(5);
  ASSERT_TRUE(comm->TakeMemory(core_, {0, 1}, 0, 5, {}));
  const int64_t made = g_memory[0].bytes;
  EXPECT_EQ(made, static_cast<int64_t>(comm->memory_bytes()));
  ASSERT_EQ(Launch(core_, driver_, {AllReduce(comm, kA)}), ncclSuccess);
  ASSERT_EQ(g_memory.size(), 2u);
  EXPECT_EQ(g_memory[1].bytes, int64_t{24 * 12} << 20);
  EXPECT_EQ(g_memory[1].comm, 5u);
  ASSERT_EQ(Launch(core_, driver_, {AllReduce(comm, kA)}), ncclSuccess);
  EXPECT_EQ(g_memory.size(), 2u);
  RunHostFunctions();
  comm->GiveMemory(core_);
  EXPECT_EQ(g_memory.back().bytes, -made - (int64_t{24 * 12} << 20));
  EXPECT_EQ(comm->memory_bytes(), 0u);
}

TEST_F(LaunchTest, ConnectionsThatDoNotFitFailTheGroupBeforeItIsPosted) {
  const auto comm = Comm(5);
  ASSERT_TRUE(comm->TakeMemory(core_, {0, 1}, 0, 5, {}));
  g_memory_left = (int64_t{24 * 12} << 20) - 1;
  EXPECT_EQ(Launch(core_, driver_, {AllReduce(comm, kA)}), ncclUnhandledCudaError);
  EXPECT_THAT(ThreadError(), ::testing::HasSubstr("out of memory"));
  EXPECT_TRUE(g_posts.empty());
  EXPECT_EQ(comm->state(), ncclUnhandledCudaError);
}

TEST_F(LaunchTest, AllCommunicatorsOfAGroupArriveBeforeOneStalls) {
  g_welcome.exact_payload_bytes = 0;
  const auto one = Comm(1), two = Comm(2);
  ASSERT_EQ(Launch(core_, driver_, {AllReduce(one, kA), AllReduce(two, kA), AllReduce(one, kA)}),
            ncclSuccess);
  EXPECT_THAT(g_log, ElementsAre("A: host", "A: host", "A: wait", "A: host", "A: wait", "A: host"));
  ASSERT_EQ(g_posts.size(), 2u);
  EXPECT_EQ(g_posts[0].operations, 2u);
  EXPECT_EQ(g_posts[1].operations, 1u);
  EXPECT_EQ(g_records[1].sequence, 1u);
  EXPECT_NE(g_posts[0].release_word, g_posts[1].release_word);
  RunHostFunctions();
}

TEST_F(LaunchTest, StreamsOfOneCommunicatorAreJoinedBeforeAndAfter) {
  g_welcome.exact_payload_bytes = 0;
  const auto comm = Comm(1);
  ASSERT_EQ(Launch(core_, driver_, {AllReduce(comm, kA), AllReduce(comm, kB)}), ncclSuccess);
  EXPECT_THAT(g_log, ElementsAre("B: record", "A: wait event", "A: host", "A: wait", "A: host",
                                 "A: record", "B: wait event"));
  RunHostFunctions();
}

TEST_F(LaunchTest, SendsThatFitIntoTheFifosDoNotStall) {
  const auto comm = Comm(1);
  const auto send = [&](int peer, uint64_t bytes) {
    Operation operation = AllReduce(comm, kA, bytes);
    operation.record.op = wire::Op::kSend;
    operation.record.peer = peer;
    operation.record.out_bytes = 0;
    return operation;
  };
  constexpr uint64_t kMiB = uint64_t{1} << 20;
  ASSERT_EQ(Launch(core_, driver_, {send(1, 3 * kMiB)}), ncclSuccess);
  EXPECT_THAT(g_log, ElementsAre("A: copy 3145728", "A: host"));
  RunHostFunctions();
  EXPECT_EQ(g_rings, 1);
  EXPECT_EQ(g_slots, 1);  // until the controller has read it

  g_log.clear();
  ASSERT_EQ(Launch(core_, driver_, {send(1, 2 * kMiB)}), ncclSuccess);  // no room beside the first
  EXPECT_THAT(g_log, ElementsAre("A: copy 2097152", "A: host", "A: wait", "A: host"));
  RunHostFunctions();
  EXPECT_EQ(g_slots, 1);

  __atomic_store_n(&g_word_memory[g_posts[0].release_word], g_posts[0].release_value,
                   __ATOMIC_RELEASE);
  g_log.clear();
  ASSERT_EQ(Launch(core_, driver_, {send(1, 4 * kMiB)}), ncclSuccess);
  EXPECT_THAT(g_log, ElementsAre("A: copy 4194304", "A: host"));
  EXPECT_EQ(g_slots, 1);
  g_log.clear();
  Operation receive = send(1, 64);
  receive.record.op = wire::Op::kRecv;
  ASSERT_EQ(Launch(core_, driver_, {send(0, 64), receive}), ncclSuccess);  // waits for the receive
  EXPECT_THAT(g_log, ::testing::Contains("A: wait"));
  RunHostFunctions();

  std::thread controller([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    __atomic_store_n(&g_word_memory[g_posts[2].release_word], g_posts[2].release_value,
                     __ATOMIC_RELEASE);
  });
  comm->WaitIdle();
  controller.join();
  EXPECT_EQ(g_slots, 0);
  EXPECT_EQ(g_words, 0);
}

TEST_F(LaunchTest, EmulatedPayloadThatDoesNotMoveIsFilledFromTheRanksOwn) {
  g_welcome.mode = wire::Mode::kEmulate;
  g_welcome.flags = wire::kMirrorPayloads;
  g_welcome.exact_payload_bytes = 0;
  auto comm = std::make_shared<Communicator>(5, 3, 0, true);
  comm->Ready(1, {0, 1, 2, 3, 4}, 3);
  const auto operation = [&](wire::Op op, uint64_t in, uint64_t out) {
    Operation made = AllReduce(comm, kA);
    made.record.op = op;
    made.record.peer = 1;
    made.record.in_bytes = in;
    made.record.out_bytes = out;
    made.input = reinterpret_cast<void*>(0x10000);
    made.output = reinterpret_cast<void*>(0x20000);
    return made;
  };
  const auto log_of = [&](std::vector<Operation> operations) {
    g_log.clear();
    EXPECT_EQ(Launch(core_, driver_, std::move(operations)), ncclSuccess);
    RunHostFunctions();
    return std::vector<std::string>(g_log.begin() + 2, g_log.end() - 1);  // host, wait ... host
  };
  EXPECT_THAT(log_of({operation(wire::Op::kAllReduce, 64, 64)}), ElementsAre("A: copy 64"));
  // Five parts: one, two, four, and the fifth.
  EXPECT_THAT(log_of({operation(wire::Op::kAllGather, 16, 80)}),
              ElementsAre("A: copy 16", "A: copy 16", "A: copy 32", "A: copy 16"));
  EXPECT_THAT(log_of({operation(wire::Op::kReduceScatter, 80, 16)}), ElementsAre("A: copy 16"));
  EXPECT_THAT(log_of({operation(wire::Op::kBroadcast, 0, 64)}), ElementsAre());
  EXPECT_THAT(log_of({operation(wire::Op::kRecv, 0, 64)}), ElementsAre("A: zero 64"));
  EXPECT_THAT(log_of({operation(wire::Op::kSend, 64, 0), operation(wire::Op::kRecv, 0, 64)}),
              ElementsAre("A: copy 64"));
}

TEST_F(LaunchTest, LargePayloadsMoveUntilTheyRecur) {
  g_welcome.flags = wire::kMirrorPayloads | wire::kMoveUntilRecurring;
  g_welcome.exact_payload_bytes = 16;
  auto comm = Comm(1);
  const auto log_of = [&](Operation operation) {
    g_log.clear();
    g_records.clear();
    EXPECT_EQ(Launch(core_, driver_, {std::move(operation)}), ncclSuccess);
    RunHostFunctions();
    return g_log;
  };
  const auto receive = [&](uint64_t bytes) {
    Operation operation = AllReduce(comm, kA, bytes);
    operation.record.op = wire::Op::kRecv;
    operation.record.peer = 1;
    operation.record.in_bytes = 0;
    return operation;
  };
  // What nobody may bring any more is there before it comes.
  EXPECT_THAT(log_of(receive(64)),
              ElementsAre("A: copy 64", "A: host", "A: wait", "A: copy 64", "A: host"));
  EXPECT_THAT(log_of(AllReduce(comm, kA)),
              ElementsAre("A: copy 64", "A: host", "A: wait", "A: copy 64", "A: host"));
  g_round = 1;
  // What was kept, once and a half.
  EXPECT_THAT(log_of(receive(96)),
              ElementsAre("A: host", "A: wait", "A: copy 64", "A: copy 32", "A: host"));
  EXPECT_EQ(g_records[0].flags & wire::kOpPayload, 0u);
  // Own data, scaled by a host function behind the stall.
  EXPECT_THAT(log_of(AllReduce(comm, kA)),
              ElementsAre("A: host", "A: wait", "A: copy 64", "A: host", "A: copy 64", "A: host"));
  EXPECT_THAT(log_of(AllReduce(comm, kA, 16)),
              ElementsAre("A: copy 16", "A: host", "A: wait", "A: copy 16", "A: host"));
  EXPECT_EQ(g_slots, 1);  // what is kept
  comm.reset();
  EXPECT_EQ(g_slots, 0);
  EXPECT_EQ(g_words, 0);
}

TEST_F(LaunchTest, StandInsBeginTheDeviceOfAProgramThatHasNotYet) {
  g_context = nullptr;
  EXPECT_EQ(StandIn::Get().Prepare(driver_), CUDA_SUCCESS);
  EXPECT_EQ(g_context, reinterpret_cast<CUcontext>(1));
}

TEST_F(LaunchTest, StandInIsOneKernelThatIsGivenBackWhenItSaysSo) {
  g_welcome.mode = wire::Mode::kEmulate;
  g_welcome.flags = wire::kMirrorPayloads | wire::kStandInKernels;
  g_welcome.exact_payload_bytes = 0;
  ASSERT_EQ(StandIn::Get().Prepare(driver_), CUDA_SUCCESS);
  const auto comm = Comm(1);
  Operation operation = AllReduce(comm, kA, uint64_t{1} << 20);
  operation.record.dtype = ncclBfloat16;
  operation.input = reinterpret_cast<void*>(0x10000);
  ASSERT_EQ(Launch(core_, driver_, {operation}), ncclSuccess);
  EXPECT_THAT(g_log, ElementsAre("A: kernel of 16"));  // 64 KiB a channel
  ASSERT_EQ(g_kernels.size(), 1u);
  EXPECT_EQ(g_kernels[0].first, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL");
  const StandInArguments& arguments = g_kernels[0].second;
  const auto word = [](uint32_t index) {
    return reinterpret_cast<uint64_t>(&g_word_memory[index]);
  };
  EXPECT_EQ(arguments.arrival_word, word(g_posts[0].arrival_word));
  EXPECT_EQ(arguments.release_word, word(g_posts[0].release_word));
  EXPECT_EQ(arguments.met_word, word(g_posts[0].met_word));
  EXPECT_EQ(g_posts[0].flags, wire::kPostPaced);
  EXPECT_EQ(arguments.waits, 1u);
  EXPECT_EQ(arguments.unit_ns, wire::kPacedUnitNs);
  ASSERT_EQ(arguments.segments, 1u);
  EXPECT_EQ(arguments.segment[0].bytes, uint64_t{1} << 20);
  // Zeros of a sum of floating-point numbers are taken from elsewhere.
  EXPECT_EQ(arguments.segment[0].around, uint64_t{0x10000});
  EXPECT_EQ(arguments.segment[0].around_bytes, uint64_t{1} << 20);
  EXPECT_EQ(g_words, 3);

  comm->GiveBackWatched();
  EXPECT_EQ(g_words, 3);  // it has not even arrived
  g_word_memory[g_posts[0].release_word] = 9;
  g_word_memory[g_posts[0].arrival_word] = kStandInArrived;
  comm->GiveBackWatched();
  EXPECT_EQ(g_words, 3);  // released, and still running
  g_word_memory[g_posts[0].arrival_word] = kStandInDone;
  comm->GiveBackWatched();
  EXPECT_EQ(g_words, 0);
  comm->WaitIdle();
}

TEST_F(LaunchTest, StandInWithAPayloadThatMovesHoldsItUntilItIsCopied) {
  g_welcome.mode = wire::Mode::kEmulate;
  g_welcome.flags = wire::kStandInKernels;
  ASSERT_EQ(StandIn::Get().Prepare(driver_), CUDA_SUCCESS);
  ASSERT_EQ(Launch(core_, driver_, {AllReduce(Comm(1), kA)}), ncclSuccess);
  EXPECT_THAT(g_log, ElementsAre("A: copy 64", "A: kernel of 1", "A: copy 64", "A: host"));
  EXPECT_EQ(g_slots, 2);
  RunHostFunctions();
  EXPECT_EQ(g_slots, 0);
  EXPECT_EQ(g_words, 0);
}

TEST(StandInTest, EveryOperationHasAKernelOfNcclsName) {
  wire::OpRecord record{};
  for (uint32_t op = 0; op < wire::kOpCount; ++op) {
    for (uint32_t dtype = 0; dtype < ncclNumTypes; ++dtype) {
      for (const uint32_t reduction : {0u, 1u, 2u, 3u, 4u, wire::kRedOpPreMulSum}) {
        record.op = static_cast<wire::Op>(op);
        record.dtype = dtype;
        record.reduction = reduction;
        ASSERT_NE(StandIn::KernelName(record), nullptr) << op << " " << dtype << " " << reduction;
      }
    }
  }
  record.op = wire::Op::kAllGather;
  EXPECT_STREQ(StandIn::KernelName(record), "ncclDevKernel_AllGather_RING_LL");
  EXPECT_EQ(StandIn::Channels(0), 1u);
  EXPECT_EQ(StandIn::Channels(uint64_t{1} << 30), 24u);
}

TEST_F(LaunchTest, GroupThatDoesNotFitAPacketIsCut) {
  g_welcome.exact_payload_bytes = 0;
  const auto comm = Comm(1);
  std::vector<Operation> many;
  for (int i = 0; i < 3000; ++i) many.push_back(AllReduce(comm, kA));
  ASSERT_EQ(Launch(core_, driver_, std::move(many)), ncclSuccess);
  ASSERT_GT(g_posts.size(), 1u);
  uint32_t operations = 0;
  for (const wire::OpPost& post : g_posts) {
    EXPECT_LE(post.header.bytes, wire::kMaxPacketBytes);
    operations += post.operations;
  }
  EXPECT_EQ(operations, 3000u);
  for (uint64_t i = 0; i < g_records.size(); ++i) EXPECT_EQ(g_records[i].sequence, i);
  RunHostFunctions();
}

TEST_F(LaunchTest, CapturedStreamIsRefusedAndNothingIsPosted) {
  g_capturing = true;
  EXPECT_EQ(Launch(core_, driver_, {AllReduce(Comm(1), kA)}), ncclInvalidUsage);
  EXPECT_TRUE(g_posts.empty());
  EXPECT_EQ(g_words, 0);
}

TEST_F(LaunchTest, FailedEnqueueBreaksTheCommunicator) {
  g_fail_at = 0;
  const auto comm = Comm(1);
  EXPECT_EQ(Launch(core_, driver_, {AllReduce(comm, kA)}), ncclUnhandledCudaError);
  EXPECT_EQ(comm->state(), ncclUnhandledCudaError);
  EXPECT_NE(comm->last_error().find("CUDA_ERROR_INVALID_VALUE"), std::string::npos);
  comm->WaitIdle();  // does not wait for what will never run
}

TEST_F(LaunchTest, AbsentControllerIsASystemError) {
  g_controller_gone = true;
  EXPECT_EQ(Launch(core_, driver_, {AllReduce(Comm(1), kA)}), ncclSystemError);
  EXPECT_TRUE(g_log.empty());
  EXPECT_EQ(g_words, 0);
}

TEST_F(LaunchTest, GroupsNestAndAnErrorInsideFailsTheEnd) {
  g_welcome.exact_payload_bytes = 0;
  Group& group = Group::OfThread();
  const auto comm = Comm(1);
  group.Start();
  group.Start();
  EXPECT_EQ(group.Add(core_, driver_, AllReduce(comm, kA)), ncclSuccess);
  EXPECT_EQ(group.End(core_, driver_), ncclSuccess);
  EXPECT_TRUE(g_posts.empty());
  EXPECT_EQ(group.End(core_, driver_), ncclSuccess);
  EXPECT_EQ(g_posts.size(), 1u);
  RunHostFunctions();

  group.Start();
  EXPECT_EQ(group.Add(core_, driver_, AllReduce(comm, kA)), ncclSuccess);
  group.Failed(ncclInvalidArgument);
  EXPECT_EQ(group.End(core_, driver_), ncclInvalidArgument);
  EXPECT_EQ(g_posts.size(), 1u);
  EXPECT_EQ(group.End(core_, driver_), ncclInvalidUsage);
}

TEST_F(LaunchTest, BlockingWorkOfAGroupRunsSideBySide) {
  Group& group = Group::OfThread();
  std::atomic<int> inside{0};
  group.Start();
  for (int i = 0; i < 3; ++i) {
    group.AddBlocking([&inside] {
      ++inside;
      while (inside < 3) std::this_thread::yield();  // a member that waits for the others
      return ncclSuccess;
    });
  }
  EXPECT_EQ(inside, 0);
  EXPECT_EQ(group.End(core_, driver_), ncclSuccess);
  EXPECT_EQ(inside, 3);
}

TEST(CommunicatorTest, HandleIsFoundUntilItIsGone) {
  auto comm = std::make_shared<Communicator>(1, 0, 0, true);
  const ncclComm_t handle = Register(comm);
  std::shared_ptr<Communicator> found;
  EXPECT_EQ(FindReady(handle, "f", &found), ncclInvalidArgument);  // in progress
  comm->Ready(5, {0}, 0);
  EXPECT_EQ(FindReady(handle, "f", &found), ncclSuccess);
  EXPECT_EQ(found, comm);
  wire::Abort abort{};
  abort.comm = 4;
  abort.nccl_result = ncclRemoteError;
  strcpy(abort.reason, "rank 1 died");
  FailFromController(abort);
  EXPECT_EQ(comm->state(), ncclSuccess);  // another communicator's
  abort.comm = 5;
  FailFromController(abort);
  EXPECT_EQ(FindReady(handle, "f", &found), ncclRemoteError);
  EXPECT_EQ(ThreadError(), "rank 1 died");
  std::string elsewhere;
  std::thread([&] { elsewhere = ProcessError(); }).join();
  EXPECT_EQ(elsewhere, "rank 1 died");
  Unregister(handle);
  EXPECT_EQ(FindReady(handle, "f", &found), ncclInvalidArgument);
}

}  // namespace
}  // namespace prism::interpose::nccl
