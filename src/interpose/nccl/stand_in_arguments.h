// What a stand-in kernel is launched with: shared by the kernel (stand_in.cu) and who launches it.
#ifndef PRISM_INTERPOSE_NCCL_STAND_IN_ARGUMENTS_H_
#define PRISM_INTERPOSE_NCCL_STAND_IN_ARGUMENTS_H_

#include <stdint.h>

namespace prism::interpose::nccl {

/// `bytes` from `from` (0: zeros) to `to` (0: only read), `repeats` times, one behind the other.
/// Where `from` has 16 bytes of zeros, something else is taken of the `around_bytes` from `around`
/// (0: the zeros stay).
struct StandInSegment {
  uint64_t from, to, bytes;
  uint32_t repeats = 1, reserved = 0;
  uint64_t around = 0, around_bytes = 0;
};

/// In device memory, zero before and after each launch.
struct StandInSync {
  unsigned long long end;  // of the communication, by the GPU's clock
  unsigned int finished;   // blocks
  unsigned int reserved;
};

/// Values of the arrival word.
constexpr uint32_t kStandInArrived = 1, kStandInDone = 2;

struct StandInArguments {
  static constexpr uint32_t kMaxSegments = 64;
  uint64_t arrival_word, release_word, met_word;  // addresses, in host memory
  uint64_t sync;                                  // of a StandInSync
  uint32_t waits;                                 // 0: a send that ends by itself
  uint32_t unit_ns;                               // of the values of the release and met words
  uint32_t segments, reserved;
  StandInSegment segment[kMaxSegments];
};

// Names that NCCL 2.28 gives the kernels which it launches, as its profilers' users know them.
// clang-format off
#define PRISM_STAND_IN_REDUCTIONS(X, op) \
  X(ncclDevKernel_##op##_Sum_f32_RING_LL) \
  X(ncclDevKernel_##op##_Sum_f16_RING_LL) \
  X(ncclDevKernel_##op##_Sum_bf16_RING_LL) \
  X(ncclDevKernel_##op##_Sum_f64_RING_LL) \
  X(ncclDevKernel_##op##_Sum_i32_RING_LL) \
  X(ncclDevKernel_##op##_Sum_i64_RING_LL) \
  X(ncclDevKernel_##op##_Sum_u8_RING_LL)
#define PRISM_STAND_IN_KERNELS(X) \
  PRISM_STAND_IN_REDUCTIONS(X, AllReduce) \
  PRISM_STAND_IN_REDUCTIONS(X, ReduceScatter) \
  PRISM_STAND_IN_REDUCTIONS(X, Reduce) \
  X(ncclDevKernel_AllGather_RING_LL) \
  X(ncclDevKernel_Broadcast_RING_LL) \
  X(ncclDevKernel_SendRecv) \
  X(ncclDevKernel_Generic)
// clang-format on

}  // namespace prism::interpose::nccl

#endif  // PRISM_INTERPOSE_NCCL_STAND_IN_ARGUMENTS_H_
