// The parameters' storage and the sharded optimizer: gradients are reduce-scattered bucket by
// bucket while the backward pass goes on, each rank updates its part, and parameters are
// all-gathered while the next forward pass begins. Not thread-safe.
//
//   optimizer.ZeroGradients();
//   ... backward pass of a unit's last micro-batch ...
//   optimizer.UnitDone(chunk, unit);   // reduces the buckets that are complete
//   optimizer.Update();
//   optimizer.AwaitParameters(chunk, unit);  // before the unit's forward pass
#ifndef MOE_TRAINER_OPTIMIZER_H_
#define MOE_TRAINER_OPTIMIZER_H_

#include <vector>

#include "examples/cpp/moe_trainer/communication.h"
#include "examples/cpp/moe_trainer/gpu.h"
#include "examples/cpp/moe_trainer/parameters.h"

namespace moe_trainer {

class Optimizer {
 public:
  Optimizer(Gpu& gpu, Communication& communication, int rank);
  ~Optimizer();

  const ParameterLayout& layout() const { return layout_; }
  float* ParameterAt(Domain domain, size_t offset) const;
  float* GradientAt(Domain domain, size_t offset) const;

  void ZeroGradients();
  void UnitDone(int chunk, int unit);
  void Update();
  void AwaitParameters(int chunk, int unit);

  /// The values of a shard, once everything has run. Of fp32 only.
  std::vector<float> Read(Domain domain, const Shard& shard) const;

 private:
  struct Storage {
    Buffer parameters, gradients;
    Buffer velocity, master;  // fp32, of this rank's parts; master: where parameters are not
  };
  Storage& Of(Domain domain) { return storages_[static_cast<int>(domain)]; }
  const Storage& Of(Domain domain) const { return storages_[static_cast<int>(domain)]; }
  const Channel& ChannelOf(const Bucket& bucket) {
    return communication_.Of(GroupOf(bucket.domain));
  }
  void Initialize();

  Gpu& gpu_;
  Communication& communication_;
  ParameterLayout layout_;
  Storage storages_[kDomains];
  std::vector<cudaEvent_t> reduced_, gathered_;  // of each bucket
};

}  // namespace moe_trainer

#endif  // MOE_TRAINER_OPTIMIZER_H_
