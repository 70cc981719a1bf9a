#include "src/calibrate/outline.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "src/graph/kernel_key.h"
#include "src/trace/content_hash.h"

namespace prism::calibrate {
namespace {

using trace::Node;
using trace::NodeKind;
using trace::Reader;
using trace::SequenceKind;
using trace::SyncKind;

constexpr size_t kContext = 2;  // items on each side that tell launches of a kernel apart

class Hash {
 public:
  Hash& Add(uint64_t word) {
    value_ = trace::Fnv(value_, &word, sizeof word);
    return *this;
  }
  Hash& Add(std::string_view text) {
    value_ = trace::Fnv(value_, text.data(), text.size());
    return *this;
  }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = trace::kFnvOffset;
};

/// A node of a stream: stream, in order of creation, and item.
using Place = std::pair<uint32_t, uint64_t>;

class Maker {
 public:
  Maker(const Reader& trace, std::vector<uint32_t> communicators) : trace_(trace) {
    if (communicators.empty()) {
      for (const trace::Communicator& c : trace.communicators())
        communicators.push_back(c.record.comm);
    }
    for (const uint32_t comm : communicators) comms_.try_emplace(comm, comms_.size());
    outline_.communicators = std::move(communicators);
  }

  Outline Make() {
    Number(SequenceKind::kStream, &outline_.streams);
    Number(SequenceKind::kThread, &outline_.threads);
    for (const trace::KernelRecord& kernel : trace_.kernels()) kernels_.push_back(WhatOf(kernel));
    for (uint32_t s = 0; s < outline_.streams.size(); ++s) outline_.items.push_back(ItemsOf(s));
    Hash shape;
    for (const trace::Communicator& c : trace_.communicators()) shape.Add(c.record.size);
    for (uint32_t s = 0; s < outline_.streams.size(); ++s) AddStream(s, &shape);
    for (const uint32_t thread : outline_.threads) AddThread(thread, &shape);
    outline_.shape = shape.value();
    return std::move(outline_);
  }

 private:
  void Number(SequenceKind kind, std::vector<uint32_t>* numbers) {
    const auto sequences = trace_.sequences();
    for (uint32_t i = 0; i < sequences.size(); ++i) {
      if (sequences[i].kind == kind) numbers->push_back(i);
    }
    // A thread's handle says nothing of the order.
    if (kind == SequenceKind::kStream) {
      std::sort(numbers->begin(), numbers->end(),
                [&](uint32_t x, uint32_t y) { return sequences[x].handle < sequences[y].handle; });
    }
    for (uint32_t i = 0; i < numbers->size(); ++i) ordinal_[(*numbers)[i]] = i;
  }

  uint64_t WhatOf(const trace::KernelRecord& kernel) const {
    Hash hash;
    hash.Add(graph::NormalizedKernelName(trace_.string(kernel.name)));
    hash.Add(static_cast<uint64_t>(kernel.kind)).Add(kernel.shared_bytes);
    for (const uint32_t threads : kernel.block) hash.Add(threads);
    return hash.value();
  }

  static uint64_t SizeOf(const trace::KernelRecord& kernel) {
    if (kernel.bytes != 0) return kernel.bytes;
    return uint64_t{kernel.grid[0]} * kernel.grid[1] * kernel.grid[2];
  }

  uint64_t CommOrdinal(uint32_t comm) const {
    const auto found = comms_.find(comm);
    return found == comms_.end() ? UINT64_MAX : found->second;
  }

  std::vector<Item> ItemsOf(uint32_t stream) {
    std::vector<Item> items;
    std::vector<uint64_t>& first = first_item_.emplace_back();
    const trace::NodeList& nodes = trace_.nodes(outline_.streams[stream]);
    uint16_t group = 0;
    uint64_t message = UINT64_MAX;  // communicator of the group's last one
    Hash what;
    uint64_t number = 0;
    for (const Node& node : nodes) {
      const bool follows = node.kind == NodeKind::kComm && node.detail != 0 && node.detail == group;
      group = node.kind == NodeKind::kComm ? node.detail : 0;
      first.push_back(follows ? items.size() - 1 : items.size());
      if (node.kind == NodeKind::kSpan) {
        for (const uint32_t id : trace_.span(node.a).kernels) {
          const trace::KernelRecord& kernel = trace_.kernels()[id];
          items.push_back({kernels_[id], SizeOf(kernel), kernel.parameters, id, number});
        }
      } else if (node.kind == NodeKind::kComm) {
        const trace::CallRecord& call = trace_.calls()[node.a];
        if (!follows) {
          what = Hash().Add(static_cast<uint64_t>(node.kind));
          message = UINT64_MAX;
        }
        // Which messages there are, and to whom, is how much.
        const uint64_t comm = CommOrdinal(call.comm);
        const bool collective = call.op < static_cast<uint32_t>(trace::CommOp::kSend);
        if (collective || message != comm) what.Add(comm).Add(collective ? call.op : UINT64_MAX);
        message = collective ? UINT64_MAX : comm;
        if (follows) {
          items.back().what = what.value();
          ++items.back().nodes;
        } else {
          items.push_back({what.value(), 0, 0, UINT32_MAX, number});
        }
      } else {
        if (node.kind == NodeKind::kRecord) records_[{node.a, node.b}] = {stream, items.size()};
        items.push_back(
            {Hash().Add(static_cast<uint64_t>(node.kind)).value(), 0, 0, UINT32_MAX, number});
      }
      ++number;
    }
    first.push_back(items.size());
    return items;
  }

  void AddPlace(uint32_t event, uint32_t version, Hash* shape) const {
    const auto record = records_.find({event, version});
    if (record == records_.end()) {
      shape->Add(UINT64_MAX);
    } else {
      shape->Add(record->second.first).Add(record->second.second);
    }
  }

  void AddStream(uint32_t stream, Hash* shape) const {
    const trace::NodeList& nodes = trace_.nodes(outline_.streams[stream]);
    shape->Add(outline_.items[stream].size());
    for (const Item& item : outline_.items[stream]) {
      shape->Add(item.what);
      if (item.launches()) continue;
      const Node& node = nodes[item.node];
      if (node.kind == NodeKind::kWait) AddPlace(node.a, node.b, shape);
    }
  }

  // Launches have the streams' order; where in it spans are cut does not matter.
  void AddThread(uint32_t thread, Hash* shape) const {
    for (const Node& node : trace_.nodes(thread)) {
      if (node.kind == NodeKind::kEnqueue) {
        const uint32_t stream = ordinal_.at(node.a);
        if (trace_.nodes(node.a)[node.b].kind == NodeKind::kSpan) continue;
        shape->Add(stream).Add(first_item_[stream][node.b]);
      } else if (node.kind == NodeKind::kSync) {
        const auto kind = static_cast<SyncKind>(node.detail);
        // How many queries succeed is chance.
        if (kind == SyncKind::kQueryTrue) continue;
        shape->Add(node.detail);
        if (kind == SyncKind::kEvent) {
          AddPlace(node.a, node.b, shape);
        } else if (kind == SyncKind::kHandoff) {
          shape->Add(ordinal_.at(node.a));
        } else {
          const uint32_t stream = ordinal_.at(node.a);
          shape->Add(stream).Add(first_item_[stream][node.b]);
        }
      } else if (node.kind == NodeKind::kCommInit) {
        shape->Add(CommOrdinal(node.a));
      } else if (node.kind == NodeKind::kMark) {
        shape->Add(node.detail).Add(trace_.string(node.a));
      }
    }
    shape->Add(UINT64_MAX);
  }

  const Reader& trace_;
  std::map<uint32_t, uint64_t> comms_;    // number -> ordinal
  std::map<uint32_t, uint32_t> ordinal_;  // sequence -> number among its kind
  std::vector<uint64_t> kernels_;
  std::vector<std::vector<uint64_t>> first_item_;           // [stream][node], and one past the end
  std::map<std::pair<uint32_t, uint32_t>, Place> records_;  // (event, version)
  Outline outline_;
};

}  // namespace

Outline OutlineOf(const Reader& trace, std::vector<uint32_t> communicators) {
  return Maker(trace, std::move(communicators)).Make();
}

uint64_t SiteOf(const std::vector<Item>& items, size_t first, size_t count) {
  Hash hash;
  const size_t begin = first < kContext ? 0 : first - kContext;
  const size_t end = std::min(first + count + kContext, items.size());
  hash.Add(first - begin).Add(count);
  for (size_t i = begin; i < end; ++i) hash.Add(items[i].what);
  return hash.value();
}

}  // namespace prism::calibrate
