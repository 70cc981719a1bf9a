// IndexedHeap: a binary heap of numbered things, the one with the least key in front, of which any
// may be taken out or given another key.
//
// Where each of them lies is kept by the caller, in one array for all heaps that share the numbers:
// a thing is in one of them at a time. Not thread-safe.
//
//   std::vector<uint32_t> places(things);
//   IndexedHeap<int64_t> heap;
//   heap.Push(7, 1'000, &places);
//   heap.front().number
#ifndef PRISM_ENGINE_INDEXED_HEAP_H_
#define PRISM_ENGINE_INDEXED_HEAP_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace prism::engine {

template <class Key>
class IndexedHeap {
 public:
  struct Entry {
    Key key;
    uint32_t number;
  };
  using Places = std::vector<uint32_t>;  // by number

  bool empty() const { return entries_.empty(); }
  const Entry& front() const { return entries_.front(); }
  const std::vector<Entry>& entries() const { return entries_; }

  void Push(uint32_t number, Key key, Places* places) {
    entries_.push_back({key, number});
    Rise(entries_.size() - 1, places);
  }
  void Remove(uint32_t number, Places* places) {
    const size_t at = (*places)[number];
    const Entry last = entries_.back();
    entries_.pop_back();
    if (at == entries_.size()) return;
    entries_[at] = last;
    Restore(at, places);
  }
  void Change(uint32_t number, Key key, Places* places) {
    const size_t at = (*places)[number];
    entries_[at].key = key;
    Restore(at, places);
  }

 private:
  void Restore(size_t at, Places* places) { Sink(Rise(at, places), places); }
  void Put(size_t at, const Entry& entry, Places* places) {
    entries_[at] = entry;
    (*places)[entry.number] = static_cast<uint32_t>(at);
  }
  size_t Rise(size_t at, Places* places) {
    const Entry entry = entries_[at];
    for (; at > 0 && entry.key < entries_[(at - 1) / 2].key; at = (at - 1) / 2)
      Put(at, entries_[(at - 1) / 2], places);
    Put(at, entry, places);
    return at;
  }
  void Sink(size_t at, Places* places) {
    const Entry entry = entries_[at];
    while (true) {
      size_t child = 2 * at + 1;
      if (child >= entries_.size()) break;
      if (child + 1 < entries_.size() && entries_[child + 1].key < entries_[child].key) ++child;
      if (!(entries_[child].key < entry.key)) break;
      Put(at, entries_[child], places);
      at = child;
    }
    Put(at, entry, places);
  }

  std::vector<Entry> entries_;
};

}  // namespace prism::engine

#endif  // PRISM_ENGINE_INDEXED_HEAP_H_
