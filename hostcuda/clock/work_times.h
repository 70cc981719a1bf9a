// How long kernels, copies and host calls take on the virtual clock.
//
//   kernels   a time registered by the program, else the first rule of the table whose pattern
//             matches the name, else `modelled` by the shapes in a library kernel's name
//             (docs/reference/kernel-names.md), else `assumed`: threads times a stated number of
//             bytes
//   copies    a latency and bytes over the bandwidth of the way they take
//   host      a stated time for each kind of call
//
// The table is a JSON file (HOSTCUDA_TIMES); docs/design/0009-virtual-clock.md shows one. All keys
// are optional, unknown ones are refused. Times of work are multiplied by a factor drawn from a
// log-normal distribution of mean 1 where the table names a sigma: a function of seed, process,
// stream and number of the operation, so it does not depend on who runs first.
//
// Immutable once read; thread-safe.
//
//   WorkTimes times(gpu);
//   if (!WorkTimes::Read("times.json", &times, &error)) ...
//   uint64_t ns = times.KernelNs("axpy", grid, block);
#ifndef HOSTCUDA_CLOCK_WORK_TIMES_H_
#define HOSTCUDA_CLOCK_WORK_TIMES_H_

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace hostcuda {

/// Kinds of host calls that are charged.
enum class HostCall { kLaunch, kCopy, kEvent, kSync, kQuery, kCommunication, kNone };
inline constexpr int kHostCalls = 6;  // that take time

/// Peak figures of the GPU that is presented.
struct GpuFigures {
  double memory_bytes_per_s;
  double tensor_flops_per_s;  // bf16, dense
};

/// Ways of a copy.
enum class CopyWay { kDevice, kHost, kPeer };

class WorkTimes {
 public:
  explicit WorkTimes(const GpuFigures& gpu);
  /// Applies the table in `path` to `times`. False, and what is wrong with it, where it is no such
  /// table.
  static bool Read(const std::string& path, WorkTimes* times, std::string* error);

  uint64_t KernelNs(std::string_view name, const uint32_t grid[3], const uint32_t block[3]) const;
  uint64_t CopyNs(CopyWay way, uint64_t bytes) const;
  uint64_t SetNs(uint64_t bytes) const;
  uint64_t HostNs(HostCall call) const {
    return call == HostCall::kNone ? 0 : host_ns_[static_cast<size_t>(call)];
  }
  /// `ns` as drawn for the `sequence`-th operation of a stream; `part` tells the nodes of a graph
  /// apart.
  uint64_t Drawn(uint64_t ns, uint64_t process, uint64_t stream, uint64_t sequence,
                 uint64_t part) const;

 private:
  struct Rule {
    std::string pattern;
    double ns = -1;  // else a roofline
    double bytes = 0, flops = 0, bytes_per_thread = 0, flops_per_thread = 0;
  };
  uint64_t RooflineNs(double bytes, double flops, double flops_per_s) const;

  std::vector<Rule> rules_;
  double bytes_per_s_, flops_per_s_;
  double kernel_ns_ = 2000;       // what any kernel takes at least, beside its roofline
  double bytes_per_thread_ = 16;  // of kernels of which only the shape is known
  double copy_latency_ns_ = 2000;
  double host_bytes_per_s_ = 50e9, peer_bytes_per_s_ = 350e9;
  std::array<uint64_t, kHostCalls> host_ns_ = {4000, 4000, 1000, 2000, 1000, 10000};
  double sigma_ = 0;
  uint64_t seed_ = 0;
};

}  // namespace hostcuda

#endif  // HOSTCUDA_CLOCK_WORK_TIMES_H_
