// FlowTable: the communications that are under way in a session on the virtual clock, and the links
// that they share.
//
// A flow has a time that it takes alone, and a share of each of its links meanwhile. Where the
// shares on a link come to more than a whole, all flows on it go slower by that factor; a flow on
// several such links by the largest. When flows begin or end, those that meet them go on at another
// speed and their ends move: so do their events, which wake the processes that end them.
//
// What comes out does not depend on who comes first at one time: shares are integers, so their sums
// have no order; and a flow's speed is that of the flows that are there when the time goes on,
// however often it has changed before at that time.
//
// Lives in a file of the session in /dev/shm that the last process removes; one robust mutex. Flows
// of a killed process end in time, or when whoever waits for them ends them. Thread-safe.
//
//   FlowTable* table = FlowTable::Open(session, SetEvent, &error);
//   uint64_t flow = table->Begin(now_ns, plan.ns, plan.shares, event);
//   ...                                   // the event fires
//   if (table->EndOf(flow) <= now_ns) table->End(now_ns, flow);
#ifndef HOSTCUDA_NCCL_FLOW_TABLE_H_
#define HOSTCUDA_NCCL_FLOW_TABLE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "hostcuda/nccl/communication_plan.h"

namespace hostnccl {

struct FlowSegment;

class FlowTable {
 public:
  using SetEvent = void (*)(uint32_t event, uint64_t at_ns);

  /// Opens the session's table. Null, and a message with the remedy, where that fails.
  static std::unique_ptr<FlowTable> Open(const std::string& session, SetEvent set_event,
                                         std::string* error);
  /// A table of this process alone.
  static std::unique_ptr<FlowTable> ForTesting(SetEvent set_event);
  ~FlowTable();
  FlowTable(const FlowTable&) = delete;
  FlowTable& operator=(const FlowTable&) = delete;

  /// Adds a flow that takes `alone_ns` where it meets no other, and sets `event` to its end, now
  /// and whenever it moves. Returns its number; 0 where there are too many.
  uint64_t Begin(uint64_t now_ns, double alone_ns, const std::vector<LinkShare>& shares,
                 uint32_t event);
  /// Returns when it ends, as things are; 0: it has been ended.
  uint64_t EndOf(uint64_t flow) const;
  /// Takes it away, finished or not.
  void End(uint64_t now_ns, uint64_t flow);

  /// Removes the file where no other process has it open; the table works on.
  void RemoveIfLast();

 private:
  FlowTable(FlowSegment* segment, int fd, std::string path, SetEvent set_event);
  void Lock(uint64_t now_ns);
  void Unlock();
  // All of the following need the lock.
  void Rebuild(uint64_t now_ns);
  bool Reserve(size_t offset, size_t bytes, uint32_t index);
  uint32_t NewUse();
  void FreeUses(uint32_t first);
  void PutOnLinks(uint32_t flow);
  /// Adds the links of the flow on which others went slower.
  void Remove(uint32_t flow, std::vector<uint32_t>* crowded);
  /// Gives the flows on these links their speeds; takes those away whose time is over.
  void SpeedsChange(uint64_t now_ns, std::vector<uint32_t> crowded);
  void Reschedule(uint64_t now_ns, uint32_t flow);

  FlowSegment* const segment_;
  const int fd_;
  const std::string path_;
  const SetEvent set_event_;
  const int pid_;
};

}  // namespace hostnccl

#endif  // HOSTCUDA_NCCL_FLOW_TABLE_H_
