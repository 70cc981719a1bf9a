// The same training in one process, in plain C++: no CUDA, no NCCL, nothing of the program but the
// definition of the model (model.h). The program's oracle.
//
// Sums of floating-point numbers depend on their order, and a job of several ranks fixes one:
// - a product of matrices adds over the inner index from 0 up; where tensor ranks share the inner
//   index, each adds its part, and the parts are added from rank 0 up;
// - a gradient is the sum over the tokens that a rank sees in a micro-batch, these are added over
//   its micro-batches, and the ranks' results from rank 0 up;
// - of an expert's gradient, "the tokens that a rank sees" are those of the token ranks of its
//   block, from the first up.
// The reference takes the three sizes that decide this and so is bitwise the program's, whatever
// the pipeline. Everything else is a value of its own: computed for whole sequences, nothing is cut
// or exchanged. With T = double it serves for checking gradients against differences.
//
// Not thread-safe.
#ifndef MOE_TRAINER_REFERENCE_H_
#define MOE_TRAINER_REFERENCE_H_

#include <map>
#include <string>
#include <vector>

#include "examples/cpp/moe_trainer/model.h"

namespace moe_trainer {

struct SummationOrder {
  int data = 1, tensor = 1, expert = 1;
};

template <class T>
class Reference {
 public:
  /// A matrix by rows.
  using Values = std::vector<std::vector<T>>;

  Reference(const Model& model, const SummationOrder& order);

  /// One step: gradients, then the update. Returns the loss before it.
  T Step(int step);
  /// The loss and gradients at the present parameters.
  T Gradients(int step, std::map<std::string, Values>* gradients) const;

  std::map<std::string, Values>& parameters() { return parameters_; }

 private:
  struct Sequence;     // one sequence's pass through the model
  struct LayerValues;  // what a layer keeps for the backward pass
  struct Sums;         // gradients, summed apart as the ranks do

  void Forward(Sequence& sequence) const;
  void Backward(Sequence& sequence, Sums& sums) const;
  const Values& Parameter(Role role, int layer = 0, int expert = 0) const;

  Model model_;
  SummationOrder order_;
  std::map<std::string, Values> parameters_, velocity_;
};

}  // namespace moe_trainer

#endif  // MOE_TRAINER_REFERENCE_H_
