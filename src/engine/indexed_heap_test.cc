#include "src/engine/indexed_heap.h"

#include <map>
#include <random>

#include "gtest/gtest.h"

namespace prism::engine {
namespace {

// Against a map from number to key, of which the least is looked for.
TEST(IndexedHeapTest, FrontIsTheLeastOfWhatIsThere) {
  constexpr uint32_t kThings = 60;
  std::mt19937 random(7);
  std::vector<uint32_t> places(kThings);
  IndexedHeap<int64_t> heap;
  std::map<uint32_t, int64_t> expected;
  for (int round = 0; round < 20'000; ++round) {
    const auto number = static_cast<uint32_t>(random() % kThings);
    const auto key = static_cast<int64_t>(random() % 100);
    if (expected.count(number) == 0) {
      heap.Push(number, key, &places);
      expected[number] = key;
    } else if (random() % 2 == 0) {
      heap.Change(number, key, &places);
      expected[number] = key;
    } else {
      heap.Remove(number, &places);
      expected.erase(number);
    }
    ASSERT_EQ(heap.entries().size(), expected.size());
    int64_t least = INT64_MAX;
    for (const auto& [thing, its_key] : expected) {
      ASSERT_EQ(heap.entries()[places[thing]].number, thing);
      ASSERT_EQ(heap.entries()[places[thing]].key, its_key);
      least = std::min(least, its_key);
    }
    if (!heap.empty()) {
      ASSERT_EQ(heap.front().key, least);
    }
  }
}

}  // namespace
}  // namespace prism::engine
