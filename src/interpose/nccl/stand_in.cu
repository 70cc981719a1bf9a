// Stand-in kernels: what runs on the GPU instead of a kernel of NCCL where the peers are played.
//
// A kernel of each name that NCCL launches, so that profilers and trace tools recognise it. It says
// when it starts, waits until the controller knows when the communication ends, moves the bytes
// through local memory, and ends then. One block a channel, as NCCL's.
//
// stand_in.ptx is made from this file by generate_stand_in.sh and checked in: no CUDA compiler is
// needed to build.
#include "src/interpose/nccl/stand_in_arguments.h"

namespace prism::interpose::nccl {
namespace {

__device__ unsigned long long GlobalTimer() {
  unsigned long long ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}

// Words in host memory, and of the other blocks.
__device__ unsigned LoadSystem(const unsigned* word) {
  unsigned value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}
__device__ void StoreSystem(unsigned* word, unsigned value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}
__device__ unsigned long long LoadDevice(const unsigned long long* word) {
  unsigned long long value;
  asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
}
__device__ void StoreDevice(unsigned long long* word, unsigned long long value) {
  asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}

__device__ void SleepUntil(unsigned long long ns) {
  while (GlobalTimer() < ns) __nanosleep(40);
}

constexpr unsigned kProbes = 32;

__device__ bool IsZero(const uint4& v) { return (v.x | v.y | v.z | v.w) == 0; }

// What stands for 16 bytes of zeros: the first that are none in places spread over all of `around`.
__device__ uint4 FromAround(const StandInSegment& s, unsigned long long i) {
  const auto* around = reinterpret_cast<const uint4*>(s.around);
  const unsigned long long length = s.around_bytes / 16;
  // Of all multiples, those of the golden section keep farthest apart.
  const unsigned long long stride = length * 382 / 1000 + 1;
  unsigned long long place = (s.from - s.around) / 16 + i;
  for (unsigned probe = 0; probe < kProbes; ++probe) {
    place += stride;
    if (place >= length) place -= length;
    const uint4 value = __ldcv(around + place);
    if (!IsZero(value)) return value;
  }
  return {0, 0, 0, 0};
}

// This block's part of one copy; 16 bytes a thread where everything is aligned.
__device__ void Move(const StandInSegment& s) {
  const unsigned long long thread = blockIdx.x * blockDim.x + threadIdx.x;
  const unsigned long long threads = gridDim.x * blockDim.x;
  unsigned long long wide = 0;
  if (((s.from | s.to | s.bytes) & 15) == 0) {
    wide = s.bytes / 16;
    const auto* from = reinterpret_cast<const uint4*>(s.from);
    for (unsigned repeat = 0; repeat < s.repeats; ++repeat) {
      auto* to = reinterpret_cast<uint4*>(s.to + repeat * s.bytes);
      for (unsigned long long i = thread; i < wide; i += threads) {
        uint4 value = {0, 0, 0, 0};
        if (from != nullptr) value = __ldcv(from + i);
        if (s.around_bytes != 0 && IsZero(value)) value = FromAround(s, i);
        if (s.to != 0) {
          to[i] = value;
        } else {
          asm volatile("" ::"r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w));
        }
      }
    }
    return;
  }
  const auto* from = reinterpret_cast<const unsigned char*>(s.from);
  for (unsigned repeat = 0; repeat < s.repeats; ++repeat) {
    auto* to = reinterpret_cast<unsigned char*>(s.to + repeat * s.bytes);
    for (unsigned long long i = thread; i < s.bytes; i += threads) {
      const unsigned char value = from == nullptr ? 0 : from[i];
      if (s.to != 0) to[i] = value;
    }
  }
}

__device__ __noinline__ void Run(const StandInArguments& a) {
  __shared__ unsigned long long end;
  auto* sync = reinterpret_cast<StandInSync*>(a.sync);
  auto* arrival = reinterpret_cast<unsigned*>(a.arrival_word);
  if (threadIdx.x == 0) {
    if (blockIdx.x == 0) {
      const unsigned long long start = GlobalTimer();
      StoreSystem(arrival, kStandInArrived);
      unsigned long long mine = start;
      if (a.waits != 0) {
        const auto* release = reinterpret_cast<const unsigned*>(a.release_word);
        unsigned units;
        while ((units = LoadSystem(release)) == 0) __nanosleep(100);
        mine = start + static_cast<unsigned long long>(units) * a.unit_ns;
        // Until everybody has come nothing moves.
        const unsigned met = LoadSystem(reinterpret_cast<const unsigned*>(a.met_word));
        SleepUntil(start + static_cast<unsigned long long>(met) * a.unit_ns);
      }
      end = mine;
      StoreDevice(&sync->end, mine);
    } else {
      unsigned long long known;
      while ((known = LoadDevice(&sync->end)) == 0) __nanosleep(100);
      end = known;
    }
  }
  __syncthreads();
  for (unsigned i = 0; i < a.segments; ++i) Move(a.segment[i]);
  __syncthreads();
  if (threadIdx.x != 0) return;
  SleepUntil(end);
  __threadfence();
  if (atomicAdd(&sync->finished, 1) != gridDim.x - 1) return;
  sync->finished = 0;
  StoreDevice(&sync->end, 0);
  StoreSystem(arrival, kStandInDone);
}

}  // namespace
}  // namespace prism::interpose::nccl

#define PRISM_STAND_IN(name)                                                     \
  extern "C" __global__ void __launch_bounds__(640)                              \
      name(const __grid_constant__ prism::interpose::nccl::StandInArguments a) { \
    prism::interpose::nccl::Run(a);                                              \
  }
PRISM_STAND_IN_KERNELS(PRISM_STAND_IN)
