// This rank's communicators, each with a stream of its own.
//
// A channel's calls run on its stream; Gpu::Order says what they wait for and who waits for them.
// Communicators of one rank are not made: such channels do nothing. Not thread-safe.
//
//   Communication all(gpu, options.sizes, rank, id);
//   gpu.Order(gpu.compute(), all.tensor.stream);
//   all.tensor.AllGather(gpu, shard, full, count);
//   gpu.Order(all.tensor.stream, gpu.compute());
#ifndef MOE_TRAINER_COMMUNICATION_H_
#define MOE_TRAINER_COMMUNICATION_H_

#include <nccl.h>

#include <vector>

#include "examples/cpp/moe_trainer/gpu.h"
#include "examples/cpp/moe_trainer/layout.h"

namespace moe_trainer {

struct Channel {
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  int size = 1, rank = 0;

  explicit operator bool() const { return comm != nullptr; }

  // Counts are elements of the model's type.
  /// `received` holds `size` times `count`; in place where `sent` is this rank's part of it.
  void AllGather(const Gpu& gpu, const float* sent, float* received, size_t count) const;
  /// `sent` holds `size` times `count`; in place where `received` is this rank's part of it.
  void ReduceScatter(const Gpu& gpu, const float* sent, float* received, size_t count) const;
  void Send(const Gpu& gpu, const float* data, size_t count, int peer) const;
  void Receive(const Gpu& gpu, float* data, size_t count, int peer) const;
  /// Rows of `width` elements: to and from each rank of the channel, one after the other.
  void AllToAll(const Gpu& gpu, const float* sent, const std::vector<int>& send_rows,
                float* received, const std::vector<int>& receive_rows, size_t width) const;
  /// `count` 32-bit integers to and from each rank.
  void AllToAllCounts(const Gpu& gpu, const int* sent, int* received, size_t count) const;
};

class Communication {
 public:
  /// Joins the job's communicator and splits it; all ranks must call it. Throws.
  Communication(Gpu& gpu, const Parallelism& sizes, int rank, const ncclUniqueId& id);
  ~Communication();
  Communication(const Communication&) = delete;
  Communication& operator=(const Communication&) = delete;

  Channel& Of(Group group) { return groups_[static_cast<int>(group)]; }
  Channel& world() { return world_; }

  // To and from the neighbouring stages of the ring; the peer's rank in the channel is Peer().
  /// Activations of this stage to the next, of the previous to this; gradients of this to the
  /// previous, of the next to this.
  Channel activations_out, activations_in, gradients_out, gradients_in;
  static int Peer(const Channel& link) { return 1 - link.rank; }

 private:
  Channel Split(Gpu& gpu, const Membership& membership);

  Channel world_;
  Channel groups_[5];
};

}  // namespace moe_trainer

#endif  // MOE_TRAINER_COMMUNICATION_H_
