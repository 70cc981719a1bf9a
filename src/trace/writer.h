// Writes one rank's PrismTrace from inside the user's process.
//
// Owner: the driver shim; the other shims reach it through the shim core. No dependency but libc,
// no exception, nothing printed: a failure (disk full, no permission) is kept in status() and shows
// up as `dropped` in the seal. Thread-safe: each sequence has its own buffer and lock; tables have
// one lock. Buffers are flushed at 64 KiB, and by Flush(); they survive the process beside the
// trace (pending.h), and who reads the trace of a rank that was killed gets them too. What only the
// open span of a stream knows is lost then.
//
// Spans are formed here: Launch() extends the stream's open span; any other node on the stream
// closes it, and so does a synchronization that waits for it, a launch from another thread, and a
// very long span (at a place that depends on its content alone, so that repeating work is cut
// alike). Host time between two visible host nodes is aggregated the same way (HostCall()). After
// fork() the child's copy is closed and writes nothing.
//
//   Writer w; w.Open(path, rank, world);
//   uint32_t s = w.AddStream(0, 0, "default"), t = w.ThisThread();
//   w.Launch(s, kernel); w.Record(s, event, 1); w.Close(0);
#ifndef PRISM_TRACE_WRITER_H_
#define PRISM_TRACE_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "src/trace/format.h"

namespace prism::trace {

class Writer {
 public:
  Writer();
  ~Writer();  // flushes, does not seal: a process that dies leaves an incomplete trace
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  /// Creates `path`. Returns 0 or an errno value. Calls before Open, or after a failed one, do
  /// nothing.
  int Open(const char* path, uint32_t rank, uint32_t world);
  bool is_open() const;
  int status() const;  // 0, or the errno of the first failed write

  /// Sequences. AddStream returns the number to use as `stream` below.
  uint32_t AddStream(uint32_t device, int priority, std::string_view name);
  uint32_t ThisThread();  // registers the calling thread at its first call

  /// Where the host times of later nodes come from: kAssumed until it is called.
  void SetHostTimeSource(TimeSource source);
  /// From now on a launch is a span: for a clock on which measuring each costs nothing.
  void CutEveryLaunch();

  /// Interns a string, a distinct launch, a distinct call; cheap when seen before (one hash
  /// look-up).
  uint32_t String(std::string_view text);
  uint32_t Kernel(KernelKind kind, std::string_view name, const uint32_t grid[3],
                  const uint32_t block[3], uint32_t shared_bytes, uint64_t bytes,
                  uint32_t parameters = kParametersUnknown);
  uint32_t Call(const CallRecord& call);
  void Communicator(const CommRecord& comm, const uint32_t* world_ranks);

  /// Stream nodes, called by the enqueuing thread; each adds the thread's kEnqueue (spans: also
  /// kEnqueueLast) node. Calls of one ncclGroup (CallRecord::group > 1) follow each other on the
  /// thread. A version or sequence beyond 32 bits is not representable: the node is dropped and
  /// counted.
  void Launch(uint32_t stream, uint32_t kernel);
  void Comm(uint32_t stream, uint32_t call, uint64_t sequence, ValueSource values);
  void Record(uint32_t stream, uint32_t event, uint64_t version);
  void Wait(uint32_t stream, uint32_t event, uint64_t version);
  void StreamNode(uint32_t stream, NodeKind kind);  // kHostFunc, kValueWrite, kValueWait

  /// For who measures spans: what is enqueued between these calls and the node's own is measured.
  /// EndSpan ends the stream's open span; BeginsSpan ends one that the calling thread's next Launch
  /// would not extend, and tells whether that launch begins a span. `ended` is called for every
  /// span that has ended, under the stream's lock: it must not call the writer.
  void EndSpan(uint32_t stream);
  bool BeginsSpan(uint32_t stream);
  void OnSpanEnd(void (*ended)(uint32_t stream, uint64_t node));
  /// Index of the stream's next node, where no span is open.
  uint64_t NextNode(uint32_t stream);

  /// Host nodes of the calling thread.
  void HostCall(uint64_t ns);        // aggregated into the next kHost node
  void HostTime(uint64_t ns);        // the same for time between calls
  void SyncStream(uint32_t stream);  // waits for everything enqueued on it so far
  void SyncCopy(uint32_t stream);  // the same, by a copy that blocks the host (kSync of kind kCopy)
  void SyncDevice();               // kSync of kind kDevice, for every stream with work
  void SyncEvent(uint32_t event, uint64_t version, bool query);
  /// The calling thread goes on after everything that the thread of sequence `thread` (ThisThread()
  /// there) has done so far, whose pending host time is written first. Nothing where that is the
  /// caller itself, no thread, or one that has done nothing.
  void Handoff(uint32_t thread);
  void CommInit(uint32_t comm);
  void Mark(MarkKind kind, std::string_view text);

  void Memory(MemoryKind kind, int64_t bytes, uint64_t address);
  void Timing(uint32_t sequence, uint64_t first_node, const int64_t* ns, size_t count);
  void Meta(std::string_view json);  // one JSON object

  void Flush();
  /// Flushes, and ends open spans: for a process that is about to be killed.
  void FlushForDeath();
  /// Closes open spans, writes everything and the seal. Returns 0 or an errno value.
  int Close(int64_t exit_code);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace prism::trace

#endif  // PRISM_TRACE_WRITER_H_
