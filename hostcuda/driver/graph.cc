#include "hostcuda/driver/graph.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "hostcuda/driver/context.h"
#include "hostcuda/driver/driver.h"
#include "hostcuda/driver/entry.h"

namespace hostcuda {
namespace {

// Guarded by the engine's mutex; the count is read without it to keep allocation cheap while
// nothing captures.
std::vector<std::shared_ptr<Capture>>& ActiveCaptures() {
  static auto* const captures = new std::vector<std::shared_ptr<Capture>>;
  return *captures;
}
std::atomic<int> active_captures{0};
uint64_t next_capture_id = 1;
thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

pid_t ThreadId() { return static_cast<pid_t>(syscall(SYS_gettid)); }

std::vector<GraphNode*> NodesOf(const std::vector<CUgraphNode>& handles) {
  std::vector<GraphNode*> nodes;
  for (CUgraphNode handle : handles) nodes.push_back(reinterpret_cast<GraphNode*>(handle));
  return nodes;
}

CUgraphNode HandleOf(GraphNode* node) { return reinterpret_cast<CUgraphNode>(node); }

GraphNode* AddCaptured(Stream& stream, const Label& label, std::shared_ptr<Work> work) {
  GraphNode* node =
      stream.capture->graph->Add(label, std::move(work), NodesOf(stream.capture_nodes));
  stream.capture_nodes = {HandleOf(node)};
  return node;
}

void JoinCapture(Stream& stream, const std::shared_ptr<Capture>& capture) {
  stream.capture = capture;
  stream.capture_nodes.clear();
  capture->streams.push_back(stream.shared_from_this());
  if (stream.blocking()) ++stream.context->capturing_blocking;
}

void CloseCapture(const std::shared_ptr<Capture>& capture) {
  capture->active = false;
  for (const StreamRef& stream : capture->streams) {
    stream->capture.reset();
    stream->capture_nodes.clear();
    if (stream->blocking()) --stream->context->capturing_blocking;
  }
  capture->streams.clear();
  std::erase(ActiveCaptures(), capture);
  active_captures.fetch_sub(1);
}

}  // namespace

GraphNode* Graph::Add(const Label& label, std::shared_ptr<Work> work,
                      const std::vector<GraphNode*>& dependencies) {
  auto node = std::make_unique<GraphNode>();
  node->graph = this;
  node->number = next_number++;
  node->label = label;
  node->work = std::move(work);
  for (GraphNode* dependency : dependencies) {
    if (std::find(node->dependencies.begin(), node->dependencies.end(), dependency) !=
        node->dependencies.end())
      continue;
    node->dependencies.push_back(dependency);
    dependency->dependents.push_back(node.get());
  }
  nodes.push_back(std::move(node));
  return nodes.back().get();
}

// ---- capture; all but Begin, End and Exchange are called by the engine with its mutex held

CUresult CaptureWork(Stream& stream, const Label& label, std::shared_ptr<Work> work) {
  if (stream.capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (work != nullptr && !work->replayable()) {
    stream.capture->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  AddCaptured(stream, label, std::move(work));
  return CUDA_SUCCESS;
}

CUresult CaptureRecord(Stream& stream, const EventRef& event, bool external) {
  if (stream.capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (external) {
    Label label;
    label.type = CU_GRAPH_NODE_TYPE_EVENT_RECORD;
    AddCaptured(stream, label, MakeEventRecord(event))->event = event;
    return CUDA_SUCCESS;
  }
  event->capture = stream.capture;
  event->capture_nodes = stream.capture_nodes;
  event->recorded = true;
  return CUDA_SUCCESS;
}

CUresult CaptureWait(Stream& stream, Event& event, bool external) {
  if (stream.capture != nullptr && stream.capture->invalid)
    return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (external && stream.capture != nullptr) {
    Label label;
    label.type = CU_GRAPH_NODE_TYPE_WAIT_EVENT;
    AddCaptured(stream, label, MakeEventWait(event.handle))->event = event.handle;
    return CUDA_SUCCESS;
  }
  if (event.capture == nullptr) {
    if (!event.recorded) return CUDA_SUCCESS;  // waiting for a record that never was: no effect
    stream.capture->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  }
  if (!event.capture->active) return CUDA_ERROR_CAPTURED_EVENT;
  if (event.capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (stream.capture == nullptr) {
    if (stream.legacy) {
      event.capture->invalid = true;
      return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    JoinCapture(stream, event.capture);
  } else if (stream.capture != event.capture) {
    stream.capture->invalid = event.capture->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_MERGE;
  }
  for (CUgraphNode node : event.capture_nodes) {
    if (std::find(stream.capture_nodes.begin(), stream.capture_nodes.end(), node) ==
        stream.capture_nodes.end()) {
      stream.capture_nodes.push_back(node);
    }
  }
  return CUDA_SUCCESS;
}

CUresult CaptureForbidden(Stream& stream) {
  if (stream.capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  stream.capture->invalid = true;
  return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult CaptureImplicit(Context& context) {
  for (const auto& capture : ActiveCaptures()) {
    if (capture->origin->context == &context) capture->invalid = true;
  }
  return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
}

CUresult CaptureUnsafe() {
  if (active_captures.load() == 0 || thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
    return CUDA_SUCCESS;
  std::lock_guard<std::mutex> lock(Driver::Get()->engine().mutex());
  const pid_t self = ThreadId();
  for (const auto& capture : ActiveCaptures()) {
    const bool own = capture->thread == self && capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    const bool others = thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
                        capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (!own && !others) continue;
    capture->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return CUDA_SUCCESS;
}

CUstreamCaptureMode ExchangeCaptureMode(CUstreamCaptureMode mode) {
  return std::exchange(thread_mode, mode);
}

CUresult BeginCapture(Stream& stream, Graph* into, const std::vector<GraphNode*>& dependencies,
                      CUstreamCaptureMode mode) {
  std::lock_guard<std::mutex> lock(Driver::Get()->engine().mutex());
  if (stream.legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (stream.capture != nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  auto capture = std::make_shared<Capture>();
  capture->id = next_capture_id++;
  capture->owns_graph = into == nullptr;
  capture->graph = into != nullptr ? into : new Graph;
  capture->origin = &stream;
  capture->mode = mode;
  capture->thread = ThreadId();
  ActiveCaptures().push_back(capture);
  active_captures.fetch_add(1);
  JoinCapture(stream, capture);
  for (GraphNode* node : dependencies) stream.capture_nodes.push_back(HandleOf(node));
  return CUDA_SUCCESS;
}

CUresult EndCapture(Stream& stream, Graph** graph) {
  *graph = nullptr;
  std::unique_lock<std::mutex> lock(Driver::Get()->engine().mutex());
  const std::shared_ptr<Capture> capture = stream.capture;
  if (capture == nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  if (capture->origin != &stream) {
    capture->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  }
  if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != ThreadId())
    return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  CUresult result = capture->invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
  if (result == CUDA_SUCCESS) {
    // Everything that was captured must have been joined to the origin: an ancestor of what the
    // origin stands at.
    std::unordered_set<GraphNode*> joined;
    std::vector<GraphNode*> open = NodesOf(stream.capture_nodes);
    while (!open.empty()) {
      GraphNode* node = open.back();
      open.pop_back();
      if (!joined.insert(node).second) continue;
      open.insert(open.end(), node->dependencies.begin(), node->dependencies.end());
    }
    for (const StreamRef& other : capture->streams) {
      for (GraphNode* node : NodesOf(other->capture_nodes)) {
        if (joined.count(node) == 0) result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
      }
    }
  }
  CloseCapture(capture);
  Graph* captured = capture->graph;
  lock.unlock();
  if (result == CUDA_SUCCESS) {
    *graph = captured;
  } else if (capture->owns_graph) {
    DestroyGraph(captured);
  }
  return result;
}

// ---- running

namespace {

class Run final : public Work {
 public:
  Run(std::shared_ptr<const Program> program, StreamRef stream, const Label& launch)
      : program_(std::move(program)), stream_(std::move(stream)), launch_(launch) {
    waits_.reserve(program_->steps.size());
    for (uint32_t i = 0; i < program_->steps.size(); ++i) {
      waits_.push_back(program_->steps[i].waits);
      if (waits_.back() == 0) open_.push_back({i, nullptr});
    }
  }

  /// Makes the works of this launch, while the host is at the call: the operations of a
  /// communicator, for one, take their turns in the order of the calls. Not for a launch that is
  /// itself captured.
  void Prepare() {
    works_.reserve(program_->steps.size());
    for (const Program::Step& step : program_->steps) {
      works_.push_back(step.work != nullptr ? step.work->Fresh() : nullptr);
    }
  }

  int Poll(PollState& state) override {
    Engine& engine = Driver::Get()->engine();
    for (bool progressed = true; progressed && !open_.empty();) {
      progressed = false;
      state.words = 0;
      std::vector<Open> still;
      for (size_t i = 0; i < open_.size(); ++i) {  // grows while it runs: successors come behind
        Open open = std::move(open_[i]);
        const Program::Step& step = program_->steps[open.step];
        if (open.work == nullptr) open.work = std::move(works_[open.step]);
        if (open.started_ns == 0) {
          open.started_ns = state.now_ns;
          // The launch is the head of its stream.
          open.ends_ns = state.now_ns + engine.Drawn(step.label.duration_ns, *stream_,
                                                     stream_->completed + 1, open.step + 1);
        }
        if (state.now_ns < open.ends_ns) {
          state.wake_at_ns = std::min(state.wake_at_ns, open.ends_ns);
          still.push_back(std::move(open));
          continue;
        }
        const int result = open.work == nullptr ? kDone : open.work->Poll(state);
        if (result < 0) return result;
        if (result == kPending) {
          still.push_back(std::move(open));
          continue;
        }
        progressed = true;
        if (engine.observed() && step.label.activity >= 0) {
          Label label = step.label;
          label.enqueue_start_ns = launch_.enqueue_start_ns;
          label.enqueue_end_ns = launch_.enqueue_end_ns;
          label.correlation = launch_.correlation;
          label.thread = launch_.thread;
          engine.Emit(label, *stream_, open.started_ns, engine.NowNs());
        }
        for (const uint32_t next : step.successors) {
          if (--waits_[next] == 0) open_.push_back({next, nullptr});
        }
      }
      open_ = std::move(still);
    }
    return open_.empty() ? kDone : kPending;
  }

  std::shared_ptr<Work> Fresh() override {
    auto run = std::make_shared<Run>(program_, stream_, launch_);
    run->Prepare();
    return run;
  }

 private:
  struct Open {
    uint32_t step;
    std::shared_ptr<Work> work;
    uint64_t started_ns = 0;
    uint64_t ends_ns = 0;
  };
  const std::shared_ptr<const Program> program_;
  const StreamRef stream_;
  const Label launch_;
  std::vector<uint32_t> waits_;
  std::vector<std::shared_ptr<Work>> works_;  // of steps that have not opened
  std::vector<Open> open_;
};

}  // namespace

std::shared_ptr<Work> MakeRun(std::shared_ptr<const Program> program, StreamRef stream,
                              const Label& launch) {
  return std::make_shared<Run>(std::move(program), std::move(stream), launch);
}

namespace {

/// Appends the nodes of `graph`; a child graph becomes its own nodes between two empty steps.
/// Returns its first and last step for every node.
struct Ends {
  uint32_t first, last;
};

void Append(const Graph& graph, Program* program) {
  std::unordered_map<const GraphNode*, Ends> ends;
  const auto link = [&](uint32_t from, uint32_t to) {
    program->steps[from].successors.push_back(to);
    ++program->steps[to].waits;
  };
  for (const auto& node : graph.nodes) {
    const auto first = static_cast<uint32_t>(program->steps.size());
    program->steps.emplace_back();
    uint32_t last = first;
    if (node->child != nullptr) {
      Append(*node->child, program);
      last = static_cast<uint32_t>(program->steps.size());
      program->steps.emplace_back();
      for (uint32_t i = first + 1; i < last; ++i) {
        if (program->steps[i].waits == 0) link(first, i);
        if (program->steps[i].successors.empty()) link(i, last);
      }
      if (last == first + 1) link(first, last);
    } else {
      program->steps[first].label = node->label;
      program->steps[first].work = node->work;
    }
    ends[node.get()] = {first, last};
  }
  for (const auto& node : graph.nodes) {
    for (const GraphNode* dependent : node->dependents)
      link(ends.at(node.get()).last, ends.at(dependent).first);
  }
}

}  // namespace

std::shared_ptr<const Program> Compile(const Graph& graph, CUresult* error) {
  auto program = std::make_shared<Program>();
  Append(graph, program.get());
  // A cycle leaves steps that never become ready.
  std::vector<uint32_t> waits, open;
  for (uint32_t i = 0; i < program->steps.size(); ++i) {
    waits.push_back(program->steps[i].waits);
    if (waits.back() == 0) open.push_back(i);
  }
  size_t reached = 0;
  for (; !open.empty(); ++reached) {
    const uint32_t at = open.back();
    open.pop_back();
    for (const uint32_t next : program->steps[at].successors) {
      if (--waits[next] == 0) open.push_back(next);
    }
  }
  if (reached != program->steps.size()) {
    *error = CUDA_ERROR_INVALID_VALUE;
    return nullptr;
  }
  *error = CUDA_SUCCESS;
  return program;
}

CUresult LaunchGraph(GraphExec& exec, const StreamRef& stream) {
  Engine& engine = Driver::Get()->engine();
  Label label;
  label.type = CU_GRAPH_NODE_TYPE_GRAPH;
  label.call = HostCall::kLaunch;
  engine.Stamp(label);
  if (engine.Capturing(*stream)) {
    // A captured launch is a child of the graph being captured.
    return engine.SubmitWork(*stream, label, MakeRun(exec.program, stream, label));
  }
  if (const CUresult waited = engine.WaitEvent(*stream, *exec.last, false); waited != CUDA_SUCCESS)
    return waited;
  if (const CUresult run =
          engine.SubmitWork(*stream, label, MakeRun(exec.program, stream, label)->Fresh());
      run != CUDA_SUCCESS)
    return run;
  return engine.Record(exec.last, *stream, false);
}

Graph* CloneGraph(const Graph& graph) {
  auto* clone = new Graph;
  std::unordered_map<const GraphNode*, GraphNode*> map;
  clone->next_number = graph.next_number;
  for (const auto& node : graph.nodes) {
    auto copy = std::make_unique<GraphNode>(*node);
    copy->graph = clone;
    if (node->child != nullptr) copy->child = CloneGraph(*node->child);
    map[node.get()] = copy.get();
    clone->nodes.push_back(std::move(copy));
  }
  for (const auto& node : clone->nodes) {
    for (GraphNode*& dependency : node->dependencies) dependency = map.at(dependency);
    for (GraphNode*& dependent : node->dependents) dependent = map.at(dependent);
  }
  for (const auto& [object, count] : graph.objects) {
    object->references += count;
    clone->objects.emplace_back(object, count);
  }
  return clone;
}

void ReleaseObject(UserObject* object, unsigned count) {
  object->references -= std::min(count, object->references);
  if (object->references != 0) return;
  object->magic = 0;
  if (object->destroy != nullptr) object->destroy(object->object);
  delete object;
}

void DestroyGraph(Graph* graph) {
  graph->magic = 0;
  for (const auto& node : graph->nodes) {
    node->magic = 0;
    if (node->child != nullptr) DestroyGraph(node->child);
  }
  for (const auto& [object, count] : graph->objects) ReleaseObject(object, count);
  delete graph;
}

std::shared_ptr<Work> MakeEventRecord(const EventRef& event) {
  auto function = [event](PollState&) {
    Driver::Get()->engine().CompleteNow(*event);
    return kDone;
  };
  return std::make_shared<FunctionWork<decltype(function)>>(std::move(function));
}

std::shared_ptr<Work> MakeEventWait(const EventRef& event) {
  auto function = [event](PollState&) {
    return Driver::Get()->engine().QueryEvent(*event, false) == CUDA_ERROR_NOT_READY ? kPending
                                                                                     : kDone;
  };
  return std::make_shared<FunctionWork<decltype(function)>>(std::move(function));
}

}  // namespace hostcuda
