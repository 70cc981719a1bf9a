// The test is the ranks: it speaks the wire protocol to a Coordinator and owns the arenas' other
// mapping.
#include "src/coordinator/coordinator.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <numeric>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "src/coordinator/arithmetic.h"
#include "src/coordinator/exchange.h"

namespace prism::coordinator {
namespace {

using testing::HasSubstr;
using testing::StartsWith;
using wire::Message;
using wire::Op;
using wire::OpRecord;

constexpr uint64_t kArena = wire::kControlBytes + 64 * 1024;
constexpr int64_t kSecond = 1'000'000'000;

class Mailbox final : public Outbox {
 public:
  void Send(ClientId client, const wire::Header* packet) override {
    packets[client].emplace_back(reinterpret_cast<const char*>(packet), packet->bytes);
  }
  template <typename T>
  std::vector<T> Of(ClientId client, Message type) {
    std::vector<T> found;
    for (const std::string& packet : packets[client]) {
      if (reinterpret_cast<const wire::Header*>(packet.data())->type != type) continue;
      found.emplace_back();
      std::memcpy(&found.back(), packet.data(), sizeof(T));
    }
    return found;
  }
  std::map<ClientId, std::vector<std::string>> packets;
};

// One group of operations on its way: its words, and the operations.
struct Group {
  uint32_t rank;
  uint32_t arrival, release;
};

class CoordinatorTest : public testing::Test {
 protected:
  struct Rank {
    int fd = -1;
    std::byte* base = nullptr;
    uint64_t next_offset = wire::kControlBytes;
    uint32_t next_word = wire::kFirstFreeWord;
    std::map<std::pair<int, uint32_t>, uint64_t> sequences;
  };

  void Start(uint32_t world, JobRules rules = {}) {
    rules.trace_directory = "/job/trace";
    coordinator_ = std::make_unique<Coordinator>(rules, &mail_);
    ranks_.resize(world);
    for (uint32_t rank = 0; rank < world; ++rank) ASSERT_TRUE(Greet(rank, world).ok());
  }
  // Rank 0 of `world` is real.
  void StartSandbox(uint32_t world, VirtualPeers* peers) {
    coordinator_ = std::make_unique<Coordinator>(JobRules{}, &mail_, peers);
    ranks_.resize(1);
    ASSERT_TRUE(Greet(0, world).ok());
  }
  absl::Status Greet(uint32_t rank, uint32_t world, uint32_t version = wire::kProtocolVersion,
                     ClientId client = 0) {
    Rank& r = ranks_[rank];
    r.fd = memfd_create("arena", MFD_CLOEXEC);
    EXPECT_EQ(ftruncate(r.fd, kArena), 0);
    r.base =
        static_cast<std::byte*>(mmap(nullptr, kArena, PROT_READ | PROT_WRITE, MAP_SHARED, r.fd, 0));
    wire::Hello hello{};
    hello.header = {Message::kHello, sizeof hello, 1};
    hello.version = version;
    hello.rank = rank;
    hello.world = world;
    hello.pid = 1000 + static_cast<int>(rank);
    hello.arena_bytes = kArena;
    return coordinator_->OnHello(client == 0 ? rank + 1 : client, hello, Arena::Map(r.fd, kArena),
                                 now_);
  }
  ~CoordinatorTest() override {
    coordinator_.reset();
    for (Rank& rank : ranks_) {
      if (rank.base != nullptr) munmap(rank.base, kArena);
      if (rank.fd >= 0) close(rank.fd);
    }
  }

  template <typename T>
  void Deliver(uint32_t rank, T packet, Message type, const void* more = nullptr,
               size_t more_bytes = 0) {
    packet.header = {type, static_cast<uint32_t>(sizeof packet + more_bytes), ++request_};
    std::string bytes(reinterpret_cast<const char*>(&packet), sizeof packet);
    if (more_bytes != 0) bytes.append(static_cast<const char*>(more), more_bytes);
    last_ = coordinator_->OnPacket(rank + 1, bytes, now_);
  }
  void Site(uint32_t rank, uint32_t id, std::string_view text) {
    wire::CallSite site{};
    site.id = id;
    site.text_bytes = static_cast<uint32_t>(text.size());
    Deliver(rank, site, Message::kCallSite, text.data(), text.size());
  }
  void Create(uint32_t rank, uint32_t comm_rank, uint32_t size, char id = 'a',
              uint32_t device = 0) {
    wire::CommCreate create{};
    std::memset(create.unique_id, id, sizeof create.unique_id);
    create.size = size;
    create.rank = comm_rank;
    create.device = device;
    Deliver(rank, create, Message::kCommCreate);
  }
  // A communicator of everybody; returns its number.
  uint32_t World() {
    for (uint32_t rank = 0; rank < ranks_.size(); ++rank)
      Create(rank, rank, static_cast<uint32_t>(ranks_.size()));
    const auto ready = mail_.Of<wire::CommReady>(1, Message::kCommReady);
    return ready.empty() ? 0 : ready.back().comm;
  }
  OpRecord Record(uint32_t comm, Op op, uint64_t count, int32_t peer = -1) {
    OpRecord record{};
    record.comm = comm;
    record.op = op;
    record.dtype = static_cast<uint32_t>(DataType::kInt32);
    record.count = count;
    record.peer = peer;
    record.comm_rank = UINT32_MAX;
    return record;
  }
  // Gives the record slots in the rank's arena for payloads of the exchange table.
  OpRecord WithPayload(uint32_t rank, OpRecord record, uint32_t size,
                       const std::vector<int32_t>& input) {
    const ExchangeShape shape = ShapeOf(record.op, size, rank, record.peer, record.count, 4);
    record.flags = wire::kOpPayload;
    record.in_bytes = shape.in_bytes;
    record.out_bytes = shape.out_bytes;
    record.in_offset = ranks_[rank].next_offset;
    record.out_offset = record.in_offset + shape.in_bytes;
    ranks_[rank].next_offset += shape.in_bytes + shape.out_bytes;
    EXPECT_GE(input.size() * 4, shape.in_bytes);
    if (shape.in_bytes != 0)
      std::memcpy(ranks_[rank].base + record.in_offset, input.data(), shape.in_bytes);
    return record;
  }
  std::vector<int32_t> Output(uint32_t rank, const OpRecord& record) {
    std::vector<int32_t> out(record.out_bytes / 4);
    if (record.out_bytes != 0)
      std::memcpy(out.data(), ranks_[rank].base + record.out_offset, record.out_bytes);
    return out;
  }
  Group Post(uint32_t rank, const std::vector<OpRecord>& records, uint32_t site = 0,
             uint32_t met_word = 0) {
    const Group group{rank, ranks_[rank].next_word, ranks_[rank].next_word + 1};
    ranks_[rank].next_word += 2;
    wire::OpPost post{};
    post.met_word = met_word;
    post.flags = met_word == 0 ? 0 : static_cast<uint32_t>(wire::kPostPaced);
    post.operations = static_cast<uint32_t>(records.size());
    post.arrival_word = group.arrival;
    post.release_word = group.release;
    post.arrival_value = post.release_value = 1;
    std::vector<OpRecord> sited = records;
    for (OpRecord& record : sited) record.call_site = site;
    Deliver(rank, post, Message::kOpPost, sited.data(), sited.size() * sizeof(OpRecord));
    return group;
  }
  uint32_t* Word(uint32_t rank, uint32_t index) {
    return reinterpret_cast<uint32_t*>(ranks_[rank].base) + index;
  }
  void Arrive(const Group& group) {
    *Word(group.rank, group.arrival) = 1;
    ++*Word(group.rank, wire::kBellWord);
    coordinator_->OnBells(now_);
  }
  Group PostAndArrive(uint32_t rank, const std::vector<OpRecord>& records, uint32_t site = 0) {
    const Group group = Post(rank, records, site);
    Arrive(group);
    return group;
  }
  bool Released(const Group& group) { return *Word(group.rank, group.release) == 1; }
  void Tick(int64_t after_ns, std::map<uint32_t, Idleness> idle = {}) {
    now_ += after_ns;
    coordinator_->Tick(now_, idle);
  }
  std::map<uint32_t, Idleness> AllIdle(int64_t ns) {
    std::map<uint32_t, Idleness> idle;
    for (uint32_t rank = 0; rank < ranks_.size(); ++rank) idle[rank] = {ns, false};
    return idle;
  }

  Mailbox mail_;
  std::vector<Rank> ranks_;
  std::unique_ptr<Coordinator> coordinator_;
  absl::Status last_;
  int64_t now_ = 100 * kSecond;
  uint64_t request_ = 0;
};

TEST_F(CoordinatorTest, HelloIsAnsweredWithTheJobsRules) {
  JobRules rules;
  rules.devices = 8;
  rules.device_name = "NVIDIA H200";
  rules.device_memory_bytes = 141ull << 30;
  Start(2, rules);
  const auto welcome = mail_.Of<wire::Welcome>(2, Message::kWelcome).at(0);
  EXPECT_EQ(welcome.devices, 8u);
  EXPECT_STREQ(welcome.device_name, "NVIDIA H200");
  EXPECT_STREQ(welcome.trace_path, "/job/trace/rank-00001.prt");
}

TEST_F(CoordinatorTest, OtherProtocolSameRankOrOtherWorldIsRefused) {
  Start(2);
  EXPECT_THAT(std::string(Greet(0, 2, wire::kProtocolVersion + 1, 9).message()),
              HasSubstr("speak protocol"));
  EXPECT_THAT(std::string(Greet(0, 2, wire::kProtocolVersion, 9).message()),
              HasSubstr("rank 0 is process 1000"));
  EXPECT_THAT(std::string(Greet(0, 3, wire::kProtocolVersion, 9).message()),
              HasSubstr("its world has 3 ranks"));
  EXPECT_EQ(mail_.Of<wire::Refuse>(9, Message::kRefuse).size(), 3u);
}

TEST_F(CoordinatorTest, ASecondProcessOfARankHasItsOwnTrace) {
  Start(1);
  coordinator_->OnDisconnect(1, now_);
  ASSERT_TRUE(Greet(0, 1, wire::kProtocolVersion, 7).ok());
  EXPECT_STREQ(mail_.Of<wire::Welcome>(7, Message::kWelcome).at(0).trace_path,
               "/job/trace/rank-00000-1.prt");
}

TEST_F(CoordinatorTest, CommunicatorIsReadyWhenAllHaveCome) {
  Start(3);
  Create(2, 0, 3);
  Create(0, 1, 3);
  EXPECT_TRUE(mail_.Of<wire::CommReady>(1, Message::kCommReady).empty());
  Create(1, 2, 3);
  const auto ready = mail_.Of<wire::CommReady>(2, Message::kCommReady).at(0);
  EXPECT_EQ(ready.comm, 1u);
  EXPECT_EQ(ready.rank, 2u);
  // World ranks follow, in the communicator's order.
  const std::string& packet = mail_.packets[2].back();
  uint32_t ranks[3];
  ASSERT_EQ(packet.size(), sizeof(wire::CommReady) + sizeof ranks);
  std::memcpy(ranks, packet.data() + sizeof(wire::CommReady), sizeof ranks);
  EXPECT_THAT(ranks, testing::ElementsAre(2, 0, 1));
}

TEST_F(CoordinatorTest, AllReduceRunsWhenDueOnAllAndNotBefore) {
  Start(2);
  const uint32_t comm = World();
  const OpRecord a = WithPayload(0, Record(comm, Op::kAllReduce, 3), 2, {1, 2, 3});
  const OpRecord b = WithPayload(1, Record(comm, Op::kAllReduce, 3), 2, {10, 20, 30});
  const Group on0 = PostAndArrive(0, {a});
  const Group on1 = Post(1, {b});
  EXPECT_FALSE(Released(on0));
  Arrive(on1);
  EXPECT_TRUE(Released(on0));
  EXPECT_TRUE(Released(on1));
  EXPECT_EQ(Output(0, a), (std::vector<int32_t>{11, 22, 33}));
  EXPECT_EQ(Output(1, b), (std::vector<int32_t>{11, 22, 33}));
}

TEST_F(CoordinatorTest, HostsRunAheadAndCallsAreMatchedByNumber) {
  Start(2);
  const uint32_t comm = World();
  const OpRecord a1 = WithPayload(0, Record(comm, Op::kAllReduce, 1), 2, {1});
  const OpRecord a2 = WithPayload(0, Record(comm, Op::kAllReduce, 1), 2, {100});
  const Group g1 = Post(0, {a1}), g2 = Post(0, {a2});
  const OpRecord b1 = WithPayload(1, Record(comm, Op::kAllReduce, 1), 2, {2});
  const OpRecord b2 = WithPayload(1, Record(comm, Op::kAllReduce, 1), 2, {200});
  PostAndArrive(1, {b1});
  // Two streams: the second call may be reached first.
  PostAndArrive(1, {b2});
  Arrive(g2);
  EXPECT_TRUE(Released(g2));
  EXPECT_FALSE(Released(g1));
  Arrive(g1);
  EXPECT_EQ(Output(0, a1)[0], 3);
  EXPECT_EQ(Output(0, a2)[0], 300);
}

TEST_F(CoordinatorTest, GroupOfSendAndReceiveIsOneUnit) {
  Start(2);
  const uint32_t comm = World();
  const OpRecord s0 = WithPayload(0, Record(comm, Op::kSend, 2, 1), 2, {1, 2});
  const OpRecord r0 = WithPayload(0, Record(comm, Op::kRecv, 2, 1), 2, {});
  const OpRecord s1 = WithPayload(1, Record(comm, Op::kSend, 2, 0), 2, {3, 4});
  const OpRecord r1 = WithPayload(1, Record(comm, Op::kRecv, 2, 0), 2, {});
  const Group on0 = PostAndArrive(0, {s0, r0});
  const Group half = PostAndArrive(1, {r1});
  EXPECT_TRUE(Released(half));
  EXPECT_FALSE(Released(on0)) << "its receive is not complete";
  PostAndArrive(1, {s1});
  EXPECT_TRUE(Released(on0));
  EXPECT_EQ(Output(1, r1), (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(Output(0, r0), (std::vector<int32_t>{3, 4}));
}

TEST_F(CoordinatorTest, SendToOneselfCompletes) {
  Start(1);
  const uint32_t comm = World();
  const OpRecord s = WithPayload(0, Record(comm, Op::kSend, 1, 0), 1, {7});
  const OpRecord r = WithPayload(0, Record(comm, Op::kRecv, 1, 0), 1, {});
  EXPECT_TRUE(Released(PostAndArrive(0, {s, r})));
  EXPECT_EQ(Output(0, r)[0], 7);
}

TEST_F(CoordinatorTest, WithoutPayloadOnlyTheOrderIsKept) {
  Start(2);
  const uint32_t comm = World();
  const Group a = PostAndArrive(0, {Record(comm, Op::kAllGather, 1 << 20)});
  EXPECT_FALSE(Released(a));
  const Group b = PostAndArrive(1, {Record(comm, Op::kAllGather, 1 << 20)});
  EXPECT_TRUE(Released(a) && Released(b));
  const auto operations = coordinator_->Matching()["communicators"][0]["operations"]["AllGather"];
  EXPECT_EQ(operations["skipped_calls"], 1);
  EXPECT_EQ(operations["moved_bytes"], 0);
  EXPECT_EQ(operations["bytes"], 2ull * 4 << 20);
}

TEST_F(CoordinatorTest, SeveralMembersInOneProcess) {
  // ncclCommInitAll: one process, one communicator, three devices.
  Start(1);
  for (uint32_t member = 0; member < 3; ++member) Create(0, member, 3, 'a', member);
  const auto ready = mail_.Of<wire::CommReady>(1, Message::kCommReady);
  ASSERT_EQ(ready.size(), 3u);
  std::vector<OpRecord> records;
  for (uint32_t member = 0; member < 3; ++member) {
    OpRecord record = WithPayload(0, Record(ready[0].comm, Op::kAllReduce, 1), 3,
                                  {static_cast<int32_t>(member + 1)});
    record.comm_rank = member;
    records.push_back(record);
  }
  EXPECT_TRUE(Released(PostAndArrive(0, records)));
  for (const OpRecord& record : records) EXPECT_EQ(Output(0, record)[0], 6);
  // Without the member's rank nobody can tell whose call it is.
  Post(0, {Record(ready[0].comm, Op::kAllReduce, 1)});
  EXPECT_FALSE(last_.ok());
}

TEST_F(CoordinatorTest, SplitOrdersByKeyAndLeavesOutWhoHasNoColor) {
  Start(4);
  const uint32_t comm = World();
  const int32_t colors[] = {1, 0, -1, 0}, keys[] = {0, 5, 0, 2};
  for (uint32_t rank = 0; rank < 4; ++rank) {
    wire::CommSplit split{};
    split.parent = comm;
    split.color = colors[rank];
    split.key = keys[rank];
    split.parent_rank = rank;
    Deliver(rank, split, Message::kCommSplit);
  }
  const auto of = [&](uint32_t rank) {
    return mail_.Of<wire::CommReady>(rank + 1, Message::kCommReady).back();
  };
  EXPECT_EQ(of(2).comm, 0u);
  EXPECT_EQ(of(1).comm, of(3).comm);
  EXPECT_EQ(of(3).rank, 0u);
  EXPECT_EQ(of(1).rank, 1u);
  EXPECT_EQ(of(0).size, 1u);
  EXPECT_NE(of(0).comm, of(1).comm);
}

TEST_F(CoordinatorTest, ShrinkDoesWithoutTheExcluded) {
  Start(3);
  const uint32_t comm = World();
  const uint32_t excluded = 1;
  for (const uint32_t rank : {0u, 2u}) {
    wire::CommSplit split{};
    split.parent = comm;
    split.flags = wire::kCommShrink;
    split.excluded = 1;
    split.parent_rank = rank;
    Deliver(rank, split, Message::kCommSplit, &excluded, sizeof excluded);
  }
  const auto ready = mail_.Of<wire::CommReady>(3, Message::kCommReady).back();
  EXPECT_EQ(ready.size, 2u);
  EXPECT_EQ(ready.rank, 1u);
}

// ---- Diagnosis
// -----------------------------------------------------------------------------------------------------

TEST_F(CoordinatorTest, WrongCountNamesTheOddRankAndBothCallSites) {
  Start(4);
  const uint32_t comm = World();
  for (uint32_t rank = 0; rank < 4; ++rank) {
    Site(rank, 1, rank == 2 ? "train.py:40 in step" : "train.py:42 in step");
    PostAndArrive(rank, {Record(comm, Op::kAllReduce, 8)}, 1);
  }
  for (uint32_t rank = 0; rank < 4; ++rank)
    PostAndArrive(rank, {Record(comm, Op::kAllReduce, rank == 2 ? 7 : 8)}, 1);
  const Diagnosis* d = coordinator_->diagnosis();
  ASSERT_NE(d, nullptr);
  EXPECT_EQ(d->kind, "mismatch");
  EXPECT_EQ(d->headline, "AllReduce #2 of communicator 1: rank 2 disagrees with the other 3");
  ASSERT_EQ(d->parties.size(), 2u);
  EXPECT_EQ(d->parties[0].text, "call AllReduce int32 sum, 8 elements");
  EXPECT_EQ(d->parties[0].call_site, "train.py:42 in step");
  EXPECT_EQ(d->parties[1].ranks, std::vector<uint32_t>{2});
  EXPECT_EQ(d->parties[1].text, "calls AllReduce int32 sum, 7 elements");
  EXPECT_EQ(d->parties[1].call_site, "train.py:40 in step");
  EXPECT_EQ(*d->call, 2u);
  for (ClientId client = 1; client <= 4; ++client) {
    const auto abort = mail_.Of<wire::Abort>(client, Message::kAbort);
    ASSERT_EQ(abort.size(), 1u);
    EXPECT_THAT(abort[0].reason, HasSubstr("rank 2 disagrees"));
  }
}

struct Disagreement {
  const char* what;
  void (*change)(OpRecord*);
  const char* expected;
};

class DisagreementTest : public CoordinatorTest,
                         public testing::WithParamInterface<Disagreement> {};

TEST_P(DisagreementTest, IsNamedOnBothSides) {
  Start(3);
  const uint32_t comm = World();
  // The odd one comes before a lower rank: who comes first is chance.
  for (const uint32_t rank : {2u, 1u, 0u}) {
    OpRecord record = Record(comm, Op::kReduce, 8, 1);
    if (rank == 1) GetParam().change(&record);
    PostAndArrive(rank, {record});
  }
  const Diagnosis* d = coordinator_->diagnosis();
  ASSERT_NE(d, nullptr);
  EXPECT_EQ(d->kind, "mismatch");
  EXPECT_EQ(d->parties[0].text, "call Reduce int32 sum to member 1, 8 elements");
  EXPECT_EQ(d->parties[1].text, GetParam().expected);
  EXPECT_EQ(d->parties[1].ranks, std::vector<uint32_t>{1});
}

INSTANTIATE_TEST_SUITE_P(
    All, DisagreementTest,
    testing::Values(Disagreement{"count", [](OpRecord* r) { r->count = 9; },
                                 "calls Reduce int32 sum to member 1, 9 elements"},
                    Disagreement{"type", [](OpRecord* r) { r->dtype = 9; },
                                 "calls Reduce bfloat16 sum to member 1, 8 elements"},
                    Disagreement{"root", [](OpRecord* r) { r->peer = 0; },
                                 "calls Reduce int32 sum to member 0, 8 elements"},
                    Disagreement{"reduction", [](OpRecord* r) { r->reduction = 2; },
                                 "calls Reduce int32 max to member 1, 8 elements"},
                    Disagreement{"operation", [](OpRecord* r) { r->op = Op::kBroadcast; },
                                 "calls Broadcast int32 from member 1, 8 elements"}),
    [](const auto& instance) { return instance.param.what; });

TEST_F(CoordinatorTest, DisagreementIsJudgedAfterAWhileWhenTheRestDoesNotCome) {
  Start(3);
  const uint32_t comm = World();
  PostAndArrive(0, {Record(comm, Op::kAllReduce, 8)});
  PostAndArrive(1, {Record(comm, Op::kBroadcast, 8, 0)});
  EXPECT_EQ(coordinator_->diagnosis(), nullptr);
  Tick(kSecond);
  ASSERT_NE(coordinator_->diagnosis(), nullptr);
  EXPECT_EQ(coordinator_->diagnosis()->headline, "call #1 of communicator 1: ranks 0,1 disagree");
}

TEST_F(CoordinatorTest, SendAndReceiveOfDifferentSizesDisagree) {
  Start(2);
  const uint32_t comm = World();
  PostAndArrive(0, {Record(comm, Op::kSend, 8, 1)});
  PostAndArrive(1, {Record(comm, Op::kRecv, 4, 0)});
  ASSERT_NE(coordinator_->diagnosis(), nullptr);
  EXPECT_THAT(coordinator_->diagnosis()->Text(), HasSubstr("Send #1 from rank 0 to rank 1"));
  EXPECT_THAT(coordinator_->diagnosis()->Text(),
              HasSubstr("calls Recv int32 from member 0, 4 elements"));
}

TEST_F(CoordinatorTest, RankThatDoesNotComeIsNamedWhenAllAreBlocked) {
  Start(3);
  const uint32_t comm = World();
  Site(0, 1, "train.py:12 in step");
  Site(1, 1, "train.py:12 in step");
  PostAndArrive(0, {Record(comm, Op::kAllReduce, 8)}, 1);
  PostAndArrive(1, {Record(comm, Op::kAllReduce, 8)}, 1);
  Tick(kSecond, AllIdle(3 * kSecond));
  EXPECT_EQ(coordinator_->diagnosis(), nullptr) << "rank 2 may still compute";
  Tick(kSecond, AllIdle(4 * kSecond));
  const Diagnosis* d = coordinator_->diagnosis();
  ASSERT_NE(d, nullptr);
  EXPECT_EQ(d->kind, "missing");
  EXPECT_EQ(d->headline, "AllReduce #1 of communicator 1: rank 2 did not come");
  EXPECT_EQ(d->parties[0].call_site, "train.py:12 in step");
  EXPECT_THAT(d->parties[0].ranks, testing::ElementsAre(0, 1));
}

TEST_F(CoordinatorTest, RankThatSleepsForATimeIsAwaitedWithAStatusLine) {
  Start(2);
  const uint32_t comm = World();
  Site(0, 1, "train.py:12 in step < train.py:40 in main");
  PostAndArrive(0, {Record(comm, Op::kAllReduce, 8)}, 1);
  auto idle = AllIdle(60 * kSecond);
  idle[1].timed_sleep = true;
  Tick(60 * kSecond, idle);
  EXPECT_EQ(coordinator_->diagnosis(), nullptr);
  EXPECT_EQ(coordinator_->Status(now_),
            "waiting for rank 1: rank 0 waits in AllReduce #1 of communicator 1 at train.py:12 in "
            "step < train.py:40 in main; rank 1: sleeps");
  idle[1].where = "train.py:30 in load";
  Tick(kSecond, idle);
  EXPECT_THAT(coordinator_->Status(now_),
              testing::EndsWith("; rank 1: sleeps at train.py:30 in load"));
}

TEST_F(CoordinatorTest, RanksThatNothingInTheJobCanWakeAreBlocked) {
  Start(2);
  auto idle = AllIdle(3 * kSecond);
  idle[1].where = "train.py:30 in load";
  Tick(kSecond, idle);
  EXPECT_EQ(coordinator_->diagnosis(), nullptr);
  for (auto& [rank, idleness] : idle) idleness.idle_ns = 60 * kSecond;
  idle[0].outside = true;  // input, or the network
  Tick(kSecond, idle);
  EXPECT_EQ(coordinator_->diagnosis(), nullptr);
  EXPECT_EQ(coordinator_->Status(now_),
            "no rank works or communicates: rank 0: is blocked; rank 1: is blocked at train.py:30 "
            "in load (for 60 s)");
  idle[0].outside = false;
  idle[1].timed_sleep = true;
  Tick(kSecond, idle);
  EXPECT_EQ(coordinator_->diagnosis(), nullptr);
  idle[1].timed_sleep = false;
  Tick(kSecond, {{1, idle[1]}});  // rank 0 works
  EXPECT_EQ(coordinator_->diagnosis(), nullptr);
  EXPECT_EQ(coordinator_->Status(now_), "");
  Tick(kSecond, idle);
  const Diagnosis* d = coordinator_->diagnosis();
  ASSERT_NE(d, nullptr);
  EXPECT_EQ(d->kind, "blocked");
  EXPECT_EQ(d->headline, "ranks 0,1 have been blocked outside of any communication for 60 s");
  ASSERT_EQ(d->parties.size(), 2u);
  EXPECT_EQ(d->parties[1].call_site, "train.py:30 in load");
}

TEST_F(CoordinatorTest, NothingIsSaidOfRanksThatHaveDoneTheirWork) {
  Start(2);
  coordinator_->OnRankEnded(0, {0, 0, "", "", ""}, now_);
  coordinator_->OnRankEnded(1, {0, 0, "", "", ""}, now_);
  Tick(60 * kSecond, {});
  EXPECT_EQ(coordinator_->Status(now_), "");
  EXPECT_EQ(coordinator_->diagnosis(), nullptr);
}

TEST_F(CoordinatorTest, RankThatIsBlockedAfterOthersHaveEndedIsNamed) {
  Start(2);
  ProcessEnd end;
  end.exit_code = 0;
  coordinator_->OnRankEnded(0, end, now_);
  Tick(kSecond, {{1, {60 * kSecond, false}}});
  const Diagnosis* d = coordinator_->diagnosis();
  ASSERT_NE(d, nullptr);
  EXPECT_EQ(d->headline,
            "rank 1 has been blocked outside of any communication for 60 s, and rank 0 has ended");
  EXPECT_THAT(d->Text(), testing::HasSubstr("rank 0: exited with code 0"));
}

TEST_F(CoordinatorTest, BusyRankIsAwaited) {
  Start(2);
  const uint32_t comm = World();
  PostAndArrive(0, {Record(comm, Op::kAllReduce, 8)});
  Tick(60 * kSecond, {{0, {60 * kSecond, false}}});
  EXPECT_EQ(coordinator_->diagnosis(), nullptr);
}

TEST_F(CoordinatorTest, SendCycleIsNamed) {
  Start(3);
  const uint32_t comm = World();
  for (uint32_t rank = 0; rank < 3; ++rank) {
    Site(rank, 1, "ring.py:" + std::to_string(rank));
    PostAndArrive(rank, {Record(comm, Op::kSend, 8, static_cast<int32_t>((rank + 1) % 3))}, 1);
    Post(rank, {Record(comm, Op::kRecv, 8, static_cast<int32_t>((rank + 2) % 3))}, 1);
  }
  Tick(kSecond, AllIdle(2 * kSecond));
  const Diagnosis* d = coordinator_->diagnosis();
  ASSERT_NE(d, nullptr);
  EXPECT_EQ(d->kind, "cycle");
  EXPECT_THAT(
      d->headline,
      StartsWith("ranks 0-2 wait for each other in a cycle: rank 0 in Send #1 from rank 0"));
  ASSERT_EQ(d->parties.size(), 3u);
  EXPECT_THAT(d->parties[0].text,
              HasSubstr("for rank 1, which has called it at ring.py:1 but is held"));
  EXPECT_EQ(d->parties[2].call_site, "ring.py:2");
}

TEST_F(CoordinatorTest, CommunicatorsInDifferentOrderAreACycle) {
  Start(4);
  const uint32_t first = World();
  for (uint32_t rank = 0; rank < 4; ++rank) Create(rank, rank, 4, 'b');
  for (uint32_t rank = 0; rank < 4; ++rank) {
    Site(rank, 1, rank == 2 ? "faulty.py:1" : "loop.py:1");
    PostAndArrive(rank, {Record(rank == 2 ? first + 1 : first, Op::kAllReduce, 8)}, 1);
  }
  Tick(kSecond, AllIdle(2 * kSecond));
  const Diagnosis* d = coordinator_->diagnosis();
  ASSERT_NE(d, nullptr);
  EXPECT_EQ(d->kind, "cycle");
  EXPECT_EQ(d->headline,
            "ranks 0-3 wait for each other in a cycle: ranks 0,1,3 in AllReduce #1 of communicator "
            "1, rank 2 in AllReduce #1 of communicator 2");
  ASSERT_EQ(d->parties.size(), 2u);
  EXPECT_EQ(d->parties[0].ranks, (std::vector<uint32_t>{0, 1, 3}));
  EXPECT_EQ(d->parties[0].call_site, "loop.py:1");
  EXPECT_EQ(d->parties[0].comm, first);
  EXPECT_THAT(d->parties[1].text, HasSubstr("for ranks 0,1,3"));
  EXPECT_EQ(d->parties[1].call_site, "faulty.py:1");
  EXPECT_EQ(d->parties[1].comm, first + 1);
  EXPECT_EQ(d->parties[1].call, 1u);
  EXPECT_THAT(d->hint, HasSubstr("same order"));
}

TEST_F(CoordinatorTest, DiagnosisIsReadBackAsItWasWritten) {
  Diagnosis d;
  d.kind = "cycle";
  d.headline = "ranks 0,1 wait";
  d.comm = 3;
  d.comm_ranks = {0, 1};
  d.call = 7;
  d.parties = {{{0}, "waits", "a.py:1", 3, 7}, {{1}, "waits too", ""}};
  d.hint = "mend it";
  const Diagnosis read = Diagnosis::FromJson(d.Json());
  EXPECT_EQ(read.Json(), d.Json());
  EXPECT_EQ(read.Text(), d.Text());
  EXPECT_EQ(
      Diagnosis::FromJson({{"parties", 3}, {"headline", false}, {"communicator", "x"}}).Text(), "");
}

TEST_F(CoordinatorTest, FailureIsToldWhenItIsKnownWhatNeedsTheRank) {
  Start(2);
  const uint32_t comm = World();
  coordinator_->OnRankEnded(1, {-1, 9, "", "", ""}, now_);
  Tick(kSecond / 2);
  EXPECT_EQ(coordinator_->diagnosis(), nullptr);
  PostAndArrive(0, {Record(comm, Op::kAllReduce, 8)});
  Tick(kSecond / 10);
  ASSERT_NE(coordinator_->diagnosis(), nullptr);
  EXPECT_EQ(coordinator_->diagnosis()->headline,
            "rank 1 was killed by SIGKILL (9), while AllReduce #1 of communicator 1 needs it");
}

TEST_F(CoordinatorTest, RankThatRaisesIsNamedWithItsErrorAndWhoWaits) {
  Start(2);
  const uint32_t comm = World();
  PostAndArrive(0, {Record(comm, Op::kAllReduce, 8)});
  coordinator_->OnDisconnect(2, now_);
  coordinator_->OnRankEnded(1, {1, 0, "RuntimeError: boom", "Traceback ...", "train.py:7 in step"},
                            now_);
  Tick(kSecond / 2);
  const Diagnosis* d = coordinator_->diagnosis();
  ASSERT_NE(d, nullptr);
  EXPECT_EQ(d->kind, "raised");
  EXPECT_THAT(d->headline,
              StartsWith("rank 1 exited with code 1: RuntimeError: boom, while AllReduce #1"));
  EXPECT_EQ(d->parties.back().call_site, "train.py:7 in step");
}

TEST_F(CoordinatorTest, FirstFailureIsTheCause) {
  Start(3);
  coordinator_->OnRankEnded(2, {1, 0, "", "", ""}, now_);
  coordinator_->OnRankEnded(0, {1, 0, "", "", ""}, now_ + 1000);
  Tick(kSecond);
  EXPECT_THAT(coordinator_->diagnosis()->headline, StartsWith("rank 2 exited"));
}

TEST_F(CoordinatorTest, KilledRankIsNamedWithoutAnybodyWaiting) {
  Start(2);
  World();
  coordinator_->OnRankEnded(1, {-1, 9, "", "", ""}, now_);
  Tick(kSecond);
  ASSERT_NE(coordinator_->diagnosis(), nullptr);
  EXPECT_EQ(coordinator_->diagnosis()->kind, "died");
  EXPECT_EQ(coordinator_->diagnosis()->headline, "rank 1 was killed by SIGKILL (9)");
}

TEST_F(CoordinatorTest, EarlyCleanExitIsFatalOnlyToWhomItConcerns) {
  Start(3);
  const uint32_t comm = World();
  for (uint32_t rank = 0; rank < 2; ++rank) Create(rank, rank, 2, 'b');
  coordinator_->OnRankEnded(2, {0, 0, "", "", ""}, now_);
  const Group g = PostAndArrive(0, {Record(comm + 1, Op::kAllReduce, 8)});
  Tick(5 * kSecond);
  EXPECT_EQ(coordinator_->diagnosis(), nullptr);
  PostAndArrive(1, {Record(comm + 1, Op::kAllReduce, 8)});
  EXPECT_TRUE(Released(g));
  PostAndArrive(0, {Record(comm, Op::kAllReduce, 8)});
  Tick(kSecond);
  ASSERT_NE(coordinator_->diagnosis(), nullptr);
  EXPECT_EQ(coordinator_->diagnosis()->kind, "exited");
  EXPECT_THAT(coordinator_->diagnosis()->headline,
              HasSubstr("rank 2 exited with code 0, while AllReduce #1"));
}

TEST_F(CoordinatorTest, WhatAGoneRankHasSentStillArrives) {
  Start(2);
  const uint32_t comm = World();
  const OpRecord s = WithPayload(0, Record(comm, Op::kSend, 1, 1), 2, {5});
  PostAndArrive(0, {s});
  coordinator_->OnDisconnect(1, now_);
  coordinator_->OnRankEnded(0, {0, 0, "", "", ""}, now_);
  Tick(5 * kSecond);
  const OpRecord r = WithPayload(1, Record(comm, Op::kRecv, 1, 0), 2, {});
  EXPECT_TRUE(Released(PostAndArrive(1, {r})));
  EXPECT_EQ(Output(1, r)[0], 5);
}

TEST_F(CoordinatorTest, CommunicatorWhoseMemberNeverComesNamesTheRank) {
  Start(3);
  Create(0, 0, 3);
  Create(1, 1, 3);
  Tick(kSecond, AllIdle(10 * kSecond));
  ASSERT_NE(coordinator_->diagnosis(), nullptr);
  EXPECT_EQ(coordinator_->diagnosis()->headline,
            "ncclCommInitRank of 3 ranks (rank 2 has not come): rank 2 did not come");
}

TEST_F(CoordinatorTest, MembersDisagreeAboutTheSize) {
  Start(2);
  Create(0, 0, 2);
  Create(1, 1, 3);
  ASSERT_NE(coordinator_->diagnosis(), nullptr);
  EXPECT_EQ(coordinator_->diagnosis()->kind, "communicator");
}

TEST_F(CoordinatorTest, DamagedPacketsAreFaultsOfOurs) {
  Start(1);
  const uint32_t comm = World();
  OpRecord record = WithPayload(0, Record(comm, Op::kAllReduce, 4), 1, {1, 2, 3, 4});
  record.in_offset = kArena - 4;
  Post(0, {record});
  EXPECT_THAT(std::string(last_.message()), HasSubstr("an input of 16 bytes"));
  EXPECT_EQ(coordinator_->diagnosis()->kind, "internal");
  EXPECT_FALSE(coordinator_->OnPacket(1, "short", now_).ok());
}

TEST(RankListTest, RangesAreShort) {
  EXPECT_EQ(RankList({0, 1, 2, 4, 6, 7}), "0-2,4,6,7");
  EXPECT_EQ(Ranks({3, 3}), "rank 3");
}

// Peers that make one collective of 6 elements each, come `late_ns` after the real rank, and need
// `cost_ns`.
class StubPeers final : public VirtualPeers {
 public:
  absl::StatusOr<Group> Join(uint32_t rank, uint32_t size, uint32_t comm_rank, int64_t) override {
    if (size != 0 && size != world) return absl::FailedPreconditionError("another communicator");
    EXPECT_EQ(rank, 0u);
    Group group{7, 1, {}, comm_rank};
    for (uint32_t r = 0; r < world; ++r) group.world_ranks.push_back(r);
    return group;
  }
  std::optional<Call> Collective(uint32_t comm, uint32_t member, uint64_t order) override {
    EXPECT_EQ(comm, 7u);
    EXPECT_NE(member, 0u);
    if (order >= calls) return std::nullopt;
    Call call;
    call.record.op = op;
    call.record.dtype = static_cast<uint32_t>(DataType::kInt32);
    call.record.count = count;
    call.record.peer = -1;
    call.call_site = "peer.py:5 in step";
    return call;
  }
  std::optional<Call> Message(uint32_t, uint32_t, wire::Op message, uint32_t peer,
                              uint64_t order) override {
    if (order >= calls) return std::nullopt;
    Call call;
    call.record.op = message;
    call.record.dtype = static_cast<uint32_t>(DataType::kInt32);
    call.record.count = count;
    call.record.peer = static_cast<int32_t>(peer);
    return call;
  }
  void Arrive(uint32_t, uint32_t, const OpRecord&, uint64_t, uint64_t token, uint64_t /*group*/,
              int64_t now_ns) override {
    if (!blocked) met.push_back({token, now_ns + late_ns, now_ns + late_ns + cost_ns});
  }
  std::vector<Meeting> Advance(int64_t) override { return std::exchange(met, {}); }

  uint32_t world = 3;
  uint64_t calls = 1, count = 6;
  Op op = Op::kAllReduce;
  int64_t late_ns = 1000, cost_ns = 500;
  bool blocked = false;
  std::vector<Meeting> met;
};

TEST_F(CoordinatorTest, PlayedPeersReleaseWhenTheySayThatItEnds) {
  StubPeers peers;
  StartSandbox(3, &peers);
  Create(0, 0, 3);
  const auto ready = mail_.Of<wire::CommReady>(1, Message::kCommReady).at(0);
  EXPECT_EQ(ready.size, 3u);
  EXPECT_EQ(ready.rank, 0u);
  const OpRecord record =
      WithPayload(0, Record(ready.comm, Op::kAllReduce, 6), 3, {1, 2, 3, 4, 5, 6});
  const Group group = PostAndArrive(0, {record});
  EXPECT_EQ(coordinator_->NextReleaseNs(), now_ + 1500);
  coordinator_->ReleaseDue(now_ + 1499);
  EXPECT_FALSE(Released(group));
  coordinator_->ReleaseDue(now_ + 1500);
  EXPECT_TRUE(Released(group));
  EXPECT_EQ(coordinator_->NextReleaseNs(), INT64_MAX);
  // Everybody brought what this rank did.
  EXPECT_THAT(Output(0, record), testing::ElementsAre(3, 6, 9, 12, 15, 18));
}

TEST_F(CoordinatorTest, PacedGroupIsToldHowLongAfterItsArrival) {
  StubPeers peers;
  StartSandbox(3, &peers);
  Create(0, 0, 3);
  const Group group = Post(0, {Record(1, Op::kAllReduce, 6)}, 0, /*met_word=*/900);
  Arrive(group);
  EXPECT_EQ(*Word(0, 900), 1000u / wire::kPacedUnitNs);
  EXPECT_EQ(*Word(0, group.release), 1500u / wire::kPacedUnitNs);
  EXPECT_EQ(coordinator_->NextReleaseNs(), INT64_MAX);
}

TEST_F(CoordinatorTest, AllToAllOfPlayedPeersIsSymmetric) {
  StubPeers peers;
  peers.op = Op::kAllToAll;
  peers.count = 2;
  StartSandbox(3, &peers);
  Create(0, 0, 3);
  const OpRecord record = WithPayload(0, Record(1, Op::kAllToAll, 2), 3, {10, 11, 20, 21, 30, 31});
  PostAndArrive(0, {record});
  EXPECT_THAT(Output(0, record), testing::ElementsAre(10, 11, 20, 21, 30, 31));
}

TEST_F(CoordinatorTest, MessagesOfPlayedPeersAreWhatIsSentToThem) {
  StubPeers peers;
  StartSandbox(2, &peers);
  peers.world = 2;
  Create(0, 0, 2);
  // Their sizes follow from values: the real rank's hold.
  const OpRecord send = WithPayload(0, Record(1, Op::kSend, 2, 1), 2, {8, 9});
  const OpRecord receive = WithPayload(0, Record(1, Op::kRecv, 2, 1), 2, {});
  PostAndArrive(0, {send, receive});
  coordinator_->ReleaseDue(now_ + kSecond);
  EXPECT_THAT(Output(0, receive), testing::ElementsAre(8, 9));
  EXPECT_EQ(coordinator_->diagnosis(), nullptr);
}

TEST_F(CoordinatorTest, CallThatPlayedPeersMakeOtherwiseIsAMismatch) {
  StubPeers peers;
  peers.count = 8;
  StartSandbox(3, &peers);
  Create(0, 0, 3);
  Site(0, 4, "real.py:9 in step");
  Post(0, {Record(1, Op::kAllReduce, 6)}, 4);
  ASSERT_NE(coordinator_->diagnosis(), nullptr);
  EXPECT_EQ(coordinator_->diagnosis()->kind, "mismatch");
  EXPECT_THAT(coordinator_->diagnosis()->Text(),
              testing::AllOf(HasSubstr("real.py:9"), HasSubstr("peer.py:5")));
}

TEST_F(CoordinatorTest, CallThatPlayedPeersNeverMakeIsMissing) {
  StubPeers peers;
  StartSandbox(3, &peers);
  Create(0, 0, 3);
  PostAndArrive(0, {Record(1, Op::kAllReduce, 6)});
  Post(0, {Record(1, Op::kAllReduce, 6)});
  ASSERT_NE(coordinator_->diagnosis(), nullptr);
  EXPECT_EQ(coordinator_->diagnosis()->kind, "missing");
}

TEST_F(CoordinatorTest, CommunicatorThatPlayedPeersDoNotMakeIsRefused) {
  StubPeers peers;
  StartSandbox(3, &peers);
  Create(0, 0, 2);
  ASSERT_NE(coordinator_->diagnosis(), nullptr);
  EXPECT_EQ(coordinator_->diagnosis()->headline, "another communicator");
}

// Played ranks have no process that sleeps: while one of them is to come nobody is blocked.
TEST_F(CoordinatorTest, RankThatWaitsForALatePlayedPeerIsNotBlocked) {
  StubPeers peers;
  peers.late_ns = 100 * kSecond;
  StartSandbox(3, &peers);
  Create(0, 0, 3);
  PostAndArrive(0, {Record(1, Op::kAllReduce, 6)});
  Tick(50 * kSecond, AllIdle(50 * kSecond));
  EXPECT_EQ(coordinator_->diagnosis(), nullptr);
}

TEST_F(CoordinatorTest, RankThatPlayedPeersWaitForElsewhereIsBlocked) {
  StubPeers peers;
  peers.blocked = true;
  StartSandbox(3, &peers);
  Create(0, 0, 3);
  PostAndArrive(0, {Record(1, Op::kAllReduce, 6)});
  Tick(50 * kSecond, AllIdle(50 * kSecond));
  ASSERT_NE(coordinator_->diagnosis(), nullptr);
}

}  // namespace
}  // namespace prism::coordinator
