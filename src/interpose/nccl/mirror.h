// Mirror: what a rank receives in an emulated communication whose payload does not move.
//
// The others have no process, so they bring what this rank brings: a gather is its own part n
// times, a reduction its own input (unscaled), an all-to-all and a group of messages what it sends
// itself. A broadcast's receiver keeps what it has; a message that nothing corresponds to is zero.
// All of it is finite if the rank's own data is.
//
// In a capture, where a payload has moved before (recurrence.h), reductions are scaled as they
// demand, and what was received then takes the place of the others' parts.
//
// A member of a reduction may have nothing but zeros where others have something: an embedding that
// is split by vocabulary has rows for its own tokens. Rows of zeros would stay in all that follows,
// and a GPU at its power limit is up to 15 % faster on zeros. So a stand-in kernel gives another
// place's value where the rank's own floating-point input is zero.
#ifndef PRISM_INTERPOSE_NCCL_MIRROR_H_
#define PRISM_INTERPOSE_NCCL_MIRROR_H_

#include <cuda.h>

#include <vector>

#include "src/interpose/nccl/driver_calls.h"
#include "src/interpose/nccl/launch.h"
#include "src/interpose/nccl/stand_in_arguments.h"

namespace prism::interpose::nccl {

/// Appends the copies that fill `operation`'s output; `group` are the calls it is one of.
void AddMirror(const Operation& operation, const std::vector<Operation*>& group,
               std::vector<StandInSegment>* segments);
/// Appends the copies that fill `operation`'s output with what was kept of an earlier exchange,
/// over and over where it was smaller, and the rank's own part of a collective with what it is now.
void AddKept(const Operation& operation, const Recurrence::Kept& kept,
             std::vector<StandInSegment>* segments);
/// Whether what the operation gives if every member brings what this one does takes arithmetic:
/// sums and products of several members, of types that it is done for.
bool NeedsArithmetic(const Operation& operation);
/// Does that arithmetic on the operation's part of the rank's own data, in host memory.
void Repeat(const wire::OpRecord& record, uint32_t members, void* data);
/// Appends what NCCL's rings read and write of local memory beyond that.
void AddTraffic(const Operation& operation, std::vector<StandInSegment>* segments);
/// Does on a stream what a stand-in kernel does with segments.
CUresult EnqueueSegments(const DriverCalls& driver, const std::vector<StandInSegment>& segments,
                         CUstream stream);

}  // namespace prism::interpose::nccl

#endif  // PRISM_INTERPOSE_NCCL_MIRROR_H_
