#include "hostcuda/nccl/mailbox.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

namespace hostnccl {
namespace {

struct Box {
  std::atomic<uint64_t> tail{0};
  std::unique_ptr<MailboxCell[]> cells = std::make_unique<MailboxCell[]>(8);
  Mailbox mailbox{&tail, cells.get(), 8};
};

Letter From(uint32_t rank, uint64_t number) {
  return Letter{.kind = LetterKind::kReady,
                .from = rank,
                .count = number,
                .type = 0,
                .slot = 0,
                .bytes = 0,
                .last = 0,
                .flow = 0};
}

TEST(MailboxTest, ZeroedMemoryIsEmptyAndAFullBoxRefuses) {
  Box box;
  uint64_t head = 0;
  Letter letter;
  EXPECT_FALSE(box.mailbox.Pop(&head, &letter));
  for (int lap = 0; lap < 3; ++lap) {
    for (uint64_t i = 0; i < 8; ++i) EXPECT_TRUE(box.mailbox.Push(From(1, i)));
    EXPECT_FALSE(box.mailbox.Push(From(1, 8)));
    for (uint64_t i = 0; i < 8; ++i) {
      ASSERT_TRUE(box.mailbox.Pop(&head, &letter));
      EXPECT_EQ(letter.count, i);
    }
    EXPECT_FALSE(box.mailbox.Pop(&head, &letter));
  }
}

TEST(MailboxTest, LettersOfOneProducerStayInOrder) {
  Box box;
  constexpr uint64_t kLetters = 2000;
  std::vector<std::thread> producers;
  for (uint32_t rank = 0; rank < 3; ++rank) {
    producers.emplace_back([&box, rank] {
      for (uint64_t i = 0; i < kLetters;) {
        if (box.mailbox.Push(From(rank, i))) {
          ++i;
        } else {
          std::this_thread::yield();
        }
      }
    });
  }
  uint64_t head = 0, next[3] = {};
  Letter letter;
  while (head < 3 * kLetters) {
    if (!box.mailbox.Pop(&head, &letter)) {
      std::this_thread::yield();
      continue;
    }
    ASSERT_EQ(letter.count, next[letter.from]++);
  }
  for (std::thread& producer : producers) producer.join();
}

TEST(MailboxTest, AClaimedCellThatIsNeverFilledIsStuck) {
  Box box;
  EXPECT_FALSE(box.mailbox.Stuck(0));
  box.tail = 1;  // a producer died here
  EXPECT_TRUE(box.mailbox.Stuck(0));
  EXPECT_TRUE(box.mailbox.Push(From(2, 0)));
  uint64_t head = 0;
  Letter letter;
  EXPECT_FALSE(box.mailbox.Pop(&head, &letter));
}

}  // namespace
}  // namespace hostnccl
