#include "src/calibrate/retime.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "src/base/status.h"
#include "src/graph/measured.h"
#include "src/trace/chunk_file.h"
#include "src/trace/content_hash.h"

namespace prism::calibrate {
namespace {

using trace::ChunkKind;
using trace::Node;
using trace::NodeKind;
using trace::Reader;
using trace::SyncKind;

constexpr int64_t kUnknown = -1;

/// Of each sequence's nodes; a sequence without times has none.
std::vector<std::vector<int64_t>> TimesOf(const Reader& trace) {
  std::vector<std::vector<int64_t>> times = graph::MeasuredNs(trace);
  times.resize(trace.sequences().size());
  return times;
}

/// Launches of the same node, from item `first` on.
size_t LaunchesOf(const std::vector<Item>& items, size_t first) {
  size_t count = 1;
  while (first + count < items.size() && items[first + count].launches() &&
         items[first + count].node == items[first].node)
    ++count;
  return count;
}

uint64_t SizeOf(const std::vector<Item>& items, size_t first, size_t count) {
  uint64_t size = 0;
  for (size_t i = first; i < first + count; ++i) size += items[i].size;
  return size;
}

template <class Records>
std::string_view Bytes(const Records& records) {
  return {reinterpret_cast<const char*>(records.data()), records.size() * sizeof(records[0])};
}
template <class Record>
void Append(std::string* payload, const Record& record) {
  payload->append(reinterpret_cast<const char*>(&record), sizeof record);
}
void Pad(std::string* payload) { payload->resize((payload->size() + 7) / 8 * 8, '\0'); }

class Retiming {
 public:
  Retiming(const Outlined& measured, const Outlined& captured, LaunchTimes* times)
      : measured_(measured),
        captured_(captured),
        times_(times),
        strings_(static_cast<uint32_t>(captured.trace.string_count())),
        nodes_(measured.trace.sequences().size()),
        index_(nodes_.size()),
        ns_(nodes_.size()) {}

  absl::StatusOr<Work> WriteTo(const std::string& path) {
    PRISM_RETURN_IF_ERROR(Compare());
    const auto measured_ns = TimesOf(measured_.trace);
    for (uint32_t s = 0; s < measured_.outline.streams.size(); ++s)
      PRISM_RETURN_IF_ERROR(MakeStream(s, measured_ns[measured_.outline.streams[s]]));
    for (const uint32_t thread : measured_.outline.threads) MakeThread(thread);

    trace::FileHeader header{};
    std::memcpy(header.magic, trace::kMagic, sizeof header.magic);
    header.version = trace::kFormatVersion;
    header.rank = captured_.trace.rank();
    header.world = captured_.trace.world();
    header.start_unix_ns = measured_.trace.start_unix_ns();
    trace::ChunkFile out(path, header);
    AddTables(&out);
    uint64_t nodes = 0;
    for (uint32_t s = 0; s < nodes_.size(); ++s) {
      nodes += nodes_[s].size();
      if (!nodes_[s].empty()) out.Add(ChunkKind::kNodes, s, 0, nodes_[s].size(), Bytes(nodes_[s]));
    }
    for (uint32_t s = 0; s < ns_.size(); ++s) {
      if (!ns_[s].empty()) out.Add(ChunkKind::kTiming, s, 0, ns_[s].size(), Bytes(ns_[s]));
    }
    AddMemory(&out);
    for (const std::string_view meta : measured_.trace.meta())
      out.Add(ChunkKind::kMeta, 0, 0, 1, meta);
    const trace::SealRecord seal{nodes, 0, measured_.trace.seal()->exit_code};
    out.Add(ChunkKind::kSeal, 0, 0, 1, {reinterpret_cast<const char*>(&seal), sizeof seal});
    PRISM_RETURN_IF_ERROR(out.Close());
    return work_;
  }

 private:
  absl::Status Compare() const {
    const Outline &from = measured_.outline, &to = captured_.outline;
    const auto other = [&](const char* what) {
      return absl::FailedPreconditionError(absl::StrCat("rank ", captured_.trace.rank(), " ", what,
                                                        " rank ", measured_.trace.rank(),
                                                        ", which ran for it"));
    };
    if (!measured_.trace.seal().has_value()) return absl::DataLossError(measured_.trace.problem());
    if (from.communicators.size() != to.communicators.size())
      return other("makes other communicators than");
    if (from.streams.size() != to.streams.size() || from.threads.empty())
      return other("has other streams than");
    for (size_t s = 0; s < from.items.size(); ++s) {
      const bool same = std::equal(from.items[s].begin(), from.items[s].end(), to.items[s].begin(),
                                   to.items[s].end(),
                                   [](const Item& x, const Item& y) { return x.what == y.what; });
      if (!same) return other("does not do on its streams what is done by");
    }
    PRISM_RETURN_IF_ERROR(Sound(measured_));
    return Sound(captured_);
  }

  /// What is looked up below, and no reader has to know.
  static absl::Status Sound(const Outlined& of) {
    const auto bad = [&](const char* what) {
      return absl::DataLossError(absl::StrCat("the trace of rank ", of.trace.rank(), " names ",
                                              what, " that is not in it"));
    };
    const auto has = [](const std::vector<uint32_t>& all, uint32_t one) {
      return std::find(all.begin(), all.end(), one) != all.end();
    };
    for (const auto part : of.trace.memory()) {
      for (const trace::MemoryRecord& record : part) {
        if (!has(of.outline.threads, record.thread)) return bad("a thread");
      }
    }
    for (const uint32_t thread : of.outline.threads) {
      for (const Node& node : of.trace.nodes(thread)) {
        if (node.kind == NodeKind::kCommInit && !has(of.outline.communicators, node.a))
          return bad("a communicator");
        if (node.kind != NodeKind::kEnqueue) continue;
        const auto stream = std::find(of.outline.streams.begin(), of.outline.streams.end(), node.a);
        if (stream == of.outline.streams.end()) return bad("a stream");
        const std::vector<Item>& items =
            of.outline.items[static_cast<size_t>(stream - of.outline.streams.begin())];
        if (items.empty() || items.back().node < node.b) return bad("a node");
      }
    }
    return absl::OkStatus();
  }

  absl::Status MakeStream(uint32_t stream, const std::vector<int64_t>& measured_ns) {
    const uint32_t number = measured_.outline.streams[stream];
    const std::vector<Item>& from = measured_.outline.items[stream];
    const std::vector<Item>& to = captured_.outline.items[stream];
    const trace::NodeList& nodes = measured_.trace.nodes(number);
    const trace::NodeList& own = captured_.trace.nodes(captured_.outline.streams[stream]);
    std::vector<Node>& made = nodes_[number];
    std::vector<int64_t>& ns = ns_[number];
    std::vector<uint64_t>& index = index_[number];
    index.resize(nodes.size() + 1);
    for (size_t i = 0; i < from.size();) {
      for (uint32_t n = 0; n < from[i].nodes; ++n) index[from[i].node + n] = made.size();
      Node node = nodes[from[i].node];
      size_t items = 1;
      if (from[i].launches()) {
        items = LaunchesOf(from, i);
        node.a = SpanOf(to, i, items);
        int64_t span_ns = measured_ns.empty() ? kUnknown : measured_ns[from[i].node];
        if (span_ns >= 0) {
          const auto answer =
              times_->Draw(SiteOf(to, i, items), SizeOf(to, i, items), Key(stream, made.size()));
          if (!answer.has_value()) {
            return absl::FailedPreconditionError(absl::StrCat(
                "no time is known for a launch of '",
                std::string(captured_.trace.string(captured_.trace.kernels()[to[i].kernel].name)),
                "' of rank ", captured_.trace.rank()));
          }
          span_ns = answer->ns;
          work_.span_ns += span_ns;
          ++work_.spans;
          work_.interpolated += answer->measured ? 0 : 1;
          node.provenance = trace::Provenance(
              answer->measured ? trace::TimeSource::kMeasured : trace::TimeSource::kInterpolated,
              trace::ValueSourceOf(node));
        }
        made.push_back(node);
        ns.push_back(span_ns);
      } else if (node.kind == NodeKind::kComm) {
        for (uint64_t n = 0; n < to[i].nodes; ++n) made.push_back(own[to[i].node + n]);
        ns.resize(made.size(), kUnknown);
      } else {
        made.push_back(node);
        ns.push_back(kUnknown);
      }
      i += items;
    }
    index[nodes.size()] = made.size();
    if (measured_ns.empty()) ns.clear();
    return absl::OkStatus();
  }

  void MakeThread(uint32_t thread) {
    std::vector<Node>& made = nodes_[thread];
    for (Node node : measured_.trace.nodes(thread)) {
      switch (node.kind) {
        case NodeKind::kEnqueue:
          enqueues_[{node.a, node.b}] = {thread, made.size()};
          [[fallthrough]];
        case NodeKind::kEnqueueLast:
          node.b = static_cast<uint32_t>(index_[node.a][node.b]);
          break;
        case NodeKind::kSync: {
          const auto kind = static_cast<SyncKind>(node.detail);
          if (kind == SyncKind::kStream || kind == SyncKind::kDevice || kind == SyncKind::kCopy)
            node.b = static_cast<uint32_t>(index_[node.a][node.b]);
          break;
        }
        case NodeKind::kCommInit: {
          const std::vector<uint32_t>& comms = measured_.outline.communicators;
          const auto found = std::find(comms.begin(), comms.end(), node.a);
          node.a = captured_.outline.communicators[static_cast<size_t>(found - comms.begin())];
          break;
        }
        case NodeKind::kMark:
          node.a += strings_;
          break;
        default:
          break;
      }
      made.push_back(node);
    }
  }

  uint64_t Key(uint32_t stream, uint64_t node) const {
    uint64_t hash = trace::kFnvOffset;
    for (const uint64_t word : {uint64_t{captured_.trace.rank()}, uint64_t{stream}, node})
      hash = trace::Fnv(hash, &word, sizeof word);
    return hash >> 32 ^ hash;
  }

  uint32_t SpanOf(const std::vector<Item>& items, size_t first, size_t count) {
    std::vector<uint32_t> kernels;
    for (size_t i = first; i < first + count; ++i) kernels.push_back(items[i].kernel);
    const auto [it, inserted] =
        spans_.try_emplace(std::move(kernels), static_cast<uint32_t>(spans_.size()));
    if (inserted) {
      trace::SpanHeader span{trace::kFnvOffset, static_cast<uint32_t>(count), 0};
      for (const uint32_t id : it->first) {
        const trace::KernelRecord& kernel = captured_.trace.kernels()[id];
        span.hash = trace::ExtendSpanHash(
            span.hash, trace::KernelHash(captured_.trace.string(kernel.name), kernel));
      }
      Append(&span_table_, span);
      for (const uint32_t id : it->first) Append(&span_table_, id);
      Pad(&span_table_);
    }
    return it->second;
  }

  // Strings of the captured trace, whose tables name them, then of the measured one.
  void AddTables(trace::ChunkFile* out) const {
    std::string strings, comms;
    for (const Reader* source : {&captured_.trace, &measured_.trace}) {
      for (uint32_t i = 0; i < source->string_count(); ++i) {
        Append(&strings, static_cast<uint32_t>(source->string(i).size()));
        strings += source->string(i);
      }
    }
    out->Add(ChunkKind::kStrings, 0, 0, strings_ + measured_.trace.string_count(), strings);
    std::vector<trace::SequenceRecord> sequences(measured_.trace.sequences().begin(),
                                                 measured_.trace.sequences().end());
    for (trace::SequenceRecord& sequence : sequences) sequence.name += strings_;
    for (size_t s = 0; s < measured_.outline.streams.size(); ++s) {
      sequences[measured_.outline.streams[s]].device =
          captured_.trace.sequences()[captured_.outline.streams[s]].device;
    }
    out->Add(ChunkKind::kSequences, 0, 0, sequences.size(), Bytes(sequences));
    const auto kernels = captured_.trace.kernels();
    out->Add(ChunkKind::kKernels, 0, 0, kernels.size(), Bytes(kernels));
    out->Add(ChunkKind::kSpans, 0, 0, spans_.size(), span_table_);
    for (const trace::Communicator& comm : captured_.trace.communicators()) {
      Append(&comms, comm.record);
      comms += Bytes(comm.world_ranks);
      Pad(&comms);
    }
    out->Add(ChunkKind::kComms, 0, 0, captured_.trace.communicators().size(), comms);
    const auto calls = captured_.trace.calls();
    out->Add(ChunkKind::kCalls, 0, 0, calls.size(), Bytes(calls));
  }

  // What the rank allocated when it was captured, behind what it had enqueued by then.
  void AddMemory(trace::ChunkFile* out) const {
    std::vector<trace::MemoryRecord> records;
    for (const auto part : captured_.trace.memory())
      records.insert(records.end(), part.begin(), part.end());
    std::map<uint32_t, std::vector<std::pair<uint32_t, uint64_t>>> places;  // [thread][host node]
    for (const uint32_t thread : captured_.outline.threads)
      places[thread] = PlacesOf(captured_.trace.nodes(thread));
    for (trace::MemoryRecord& record : records) {
      const auto& own = places[record.thread];
      const auto [thread, node] = own[std::min<uint64_t>(record.host_node, own.size() - 1)];
      record.thread = thread;
      record.host_node = node;
    }
    if (!records.empty()) out->Add(ChunkKind::kMemory, 0, 0, records.size(), Bytes(records));
  }

  /// Of each node of a captured thread, and of its end: which thread and node of the measured trace
  /// comes behind what was enqueued before it.
  std::vector<std::pair<uint32_t, uint64_t>> PlacesOf(const trace::NodeList& thread) const {
    std::vector<std::pair<uint32_t, uint64_t>> places;
    std::pair<uint32_t, uint64_t> place{measured_.outline.threads.front(), 0};
    for (const Node& node : thread) {
      places.push_back(place);
      if (node.kind != NodeKind::kEnqueue) continue;
      const std::vector<uint32_t>& streams = captured_.outline.streams;
      const auto s =
          static_cast<size_t>(std::find(streams.begin(), streams.end(), node.a) - streams.begin());
      const std::vector<Item>& items = captured_.outline.items[s];
      const auto item = std::lower_bound(items.begin(), items.end(), uint64_t{node.b},
                                         [](const Item& x, uint64_t n) { return x.node < n; });
      const Item& same = measured_.outline.items[s][static_cast<size_t>(item - items.begin())];
      const auto enqueue = enqueues_.find({measured_.outline.streams[s], same.node});
      if (enqueue != enqueues_.end()) place = {enqueue->second.first, enqueue->second.second + 1};
    }
    places.push_back(place);
    return places;
  }

  const Outlined measured_, captured_;
  LaunchTimes* const times_;
  const uint32_t strings_;  // of the captured trace
  // By sequence of the measured trace
  std::vector<std::vector<Node>> nodes_;
  std::vector<std::vector<uint64_t>> index_;  // of each of its nodes in nodes_
  std::vector<std::vector<int64_t>> ns_;
  std::map<std::pair<uint32_t, uint64_t>, std::pair<uint32_t, uint64_t>>
      enqueues_;  // (stream, node) -> (thread, node)
  std::map<std::vector<uint32_t>, uint32_t> spans_;
  std::string span_table_;
  Work work_;
};

}  // namespace

void Learn(const Outlined& measured, LaunchTimes* times) {
  const auto all_ns = TimesOf(measured.trace);
  for (size_t s = 0; s < measured.outline.streams.size(); ++s) {
    const std::vector<int64_t>& ns = all_ns[measured.outline.streams[s]];
    const std::vector<Item>& items = measured.outline.items[s];
    for (size_t i = 0; i < items.size() && !ns.empty();) {
      const size_t count = items[i].launches() ? LaunchesOf(items, i) : 1;
      if (items[i].launches() && ns[items[i].node] >= 0)
        times->Add(SiteOf(items, i, count), SizeOf(items, i, count), ns[items[i].node]);
      i += count;
    }
  }
}

Work WorkOf(const Reader& measured) {
  Work work;
  const auto all_ns = TimesOf(measured);
  for (uint32_t s = 0; s < all_ns.size(); ++s) {
    uint64_t node = 0;
    for (const Node& n : measured.nodes(s)) {
      const int64_t ns = all_ns[s].empty() ? kUnknown : all_ns[s][node];
      ++node;
      if (n.kind != NodeKind::kSpan || ns < 0) continue;
      work.span_ns += ns;
      ++work.spans;
    }
  }
  return work;
}

absl::StatusOr<Work> Retime(const Outlined& measured, const Outlined& captured, LaunchTimes* times,
                            const std::string& path) {
  return Retiming(measured, captured, times).WriteTo(path);
}

}  // namespace prism::calibrate
