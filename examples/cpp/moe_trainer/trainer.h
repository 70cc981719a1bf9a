// The training loop of a rank: the pipeline's passes, the optimizer, and what is reported.
//
//   Trainer trainer(gpu, communication, rank);
//   for (int step = 0; step < steps; ++step) StepResult result = trainer.Step(step);
#ifndef MOE_TRAINER_TRAINER_H_
#define MOE_TRAINER_TRAINER_H_

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "examples/cpp/moe_trainer/communication.h"
#include "examples/cpp/moe_trainer/gpu.h"
#include "examples/cpp/moe_trainer/layer.h"
#include "examples/cpp/moe_trainer/optimizer.h"
#include "examples/cpp/moe_trainer/schedule.h"

namespace moe_trainer {

struct StepResult {
  double milliseconds = 0;  // between events at the step's two ends on the compute stream
  float loss = 0;           // of the whole batch; --timed: no value
  uint64_t end_ns = 0;      // on the job's clock, when the host had waited for it
};

class Trainer {
 public:
  Trainer(Gpu& gpu, Communication& communication, int rank);
  ~Trainer();
  StepResult Step(int step);
  const Optimizer& optimizer() const { return optimizer_; }

 private:
  // A micro-batch in a chunk, from its forward pass to its backward pass.
  struct InFlight {
    std::vector<LayerState> layers;  // of the chunk's units; unused for embedding and head
    Buffer logits;                   // the head's, then their gradients
    Buffer output;                   // the chunk's, which the head or the next stage reads
  };

  void LoadTokens(int step);
  const Channel& LinkInto(const Pass& pass);
  /// Posts the receive of a pass's input; empty where it has none.
  Buffer Receive(const Pass& pass);
  void Forward(const Pass& pass, Buffer input);
  void Backward(const Pass& pass, Buffer gradient);
  void Send(const Channel& link, const Buffer& data);
  LayerWeights WeightsOf(const Unit& unit) const;
  bool First(int chunk) const { return place_.stage == 0 && chunk == 0; }
  bool Last(int chunk) const;
  size_t BoundaryElements() const;

  Gpu& gpu_;
  Communication& communication_;
  const Model& model_;
  const Parallelism& sizes_;
  Place place_;
  Optimizer optimizer_;
  Layers layers_;
  std::vector<Pass> schedule_;
  std::map<std::pair<int, int>, InFlight> in_flight_;  // by (chunk, micro-batch)
  std::vector<Buffer> leaving_;                        // gradients under way to the previous stage
  int* host_tokens_ = nullptr;  // pinned: the step's tokens, then their targets
  float* host_loss_ = nullptr;  // pinned
  Buffer tokens_, targets_, loss_;
  cudaEvent_t start_ = nullptr, end_ = nullptr;
};

}  // namespace moe_trainer

#endif  // MOE_TRAINER_TRAINER_H_
