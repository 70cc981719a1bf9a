// A layer's forward and backward pass on this rank, with the communication inside it.
//
// Between layers a rank holds the activations of its tokens only: sequence / tensor rows (sequence
// parallelism). Attention gathers the sequence over the tensor ranks and reduce-scatters its
// output; the mixture of experts sends rows to the ranks that hold the experts and takes them back.
// How many rows, the host reads from the GPU in the forward pass. Not thread-safe.
//
//   LayerState state;
//   Buffer y = layers.Forward(weights, layer, std::move(x), &state);
//   Buffer dx = layers.Backward(weights, std::move(dy), &state);
#ifndef MOE_TRAINER_LAYER_H_
#define MOE_TRAINER_LAYER_H_

#include <vector>

#include "examples/cpp/moe_trainer/communication.h"
#include "examples/cpp/moe_trainer/gpu.h"
#include "examples/cpp/moe_trainer/layout.h"

namespace moe_trainer {

/// A layer's parameters on this rank, and where their gradients are added.
struct LayerWeights {
  float *qkv, *projection, *router, *expert_up, *expert_down;
  float *qkv_gradient, *projection_gradient, *router_gradient, *expert_up_gradient,
      *expert_down_gradient;
};

/// What a micro-batch leaves for its backward pass.
struct LayerState {
  Buffer input, qkv, attention;  // of the whole sequence
  Buffer middle;                 // of this rank's rows: the experts' input
  Buffer gates, experts_of, positions, counts, received_counts;
  Buffer grouped, up, active;  // rows that came here, by expert
  Buffer returned;             // this rank's rows as the experts return them
  std::vector<int> send_rows, receive_rows;
  int received = 0;

  /// Rows that came here, by source and expert.
  const int* counts_here() const {
    return received_counts ? received_counts.integers() : counts.integers();
  }
};

class Layers {
 public:
  Layers(Gpu& gpu, Communication& communication, int rank);
  ~Layers();

  /// Consumes x (this rank's rows), returns the layer's output.
  Buffer Forward(const LayerWeights& weights, int layer, Buffer x, LayerState* state);
  /// Consumes the output's gradient and the state, returns the input's gradient.
  Buffer Backward(const LayerWeights& weights, Buffer gradient, LayerState* state);

  int rows() const { return rows_; }
  /// A product, as a kernel: c = a b, see GemmBody.
  void Gemm(float* c, const float* a, const float* b, int rows, int columns, int inner, int form);

 private:
  void Route(const LayerWeights& weights, int layer, LayerState* state);
  Buffer ExpertForward(const LayerWeights& weights, LayerState* state);
  Buffer ExpertBackward(const LayerWeights& weights, const Buffer& returned_gradient,
                        LayerState* state);
  void ExpertGemm(Buffer& c, const Buffer& a, const float* weights, const LayerState& state,
                  int columns, int inner, int form);
  /// Rows between their owners and the experts' ranks; `back` is the way home.
  Buffer Exchange(const Buffer& rows, const LayerState& state, bool back);
  Buffer Regroup(Buffer rows, const LayerState& state, bool inverse);

  Gpu& gpu_;
  Communication& communication_;
  const Model& model_;
  const Parallelism& sizes_;
  Place place_;
  int rows_;                        // of this rank
  int width_;                       // attention's columns on this rank
  int heads_, experts_;             // of this rank
  int* host_counts_;                // pinned: counts, received counts
  std::vector<Buffer> popularity_;  // of each layer
};

}  // namespace moe_trainer

#endif  // MOE_TRAINER_LAYER_H_
