// Fused LSTM and GRU cells: the gates' activations are the workspace that the backward reads.
#include <ATen/ATen.h>

#include "hostcuda/values/table/forms.h"

namespace hostcuda::values::forms {
namespace {

std::vector<at::Tensor> Wide(const at::Tensor& tensor, int64_t parts) {
  return tensor.to(tensor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat).chunk(parts, 1);
}

at::Tensor OneMinus(const at::Tensor& tensor) { return at::rsub(tensor, 1); }

at::Tensor Biased(const Invocation& call, const char* gates, const char* bias) {
  const at::Tensor tensor = call.Tensor(gates);
  const at::Tensor wide = tensor.to(tensor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  const auto offset = call.OptionalTensor(bias);
  return offset ? wide.add(offset->to(wide.scalar_type())) : wide;
}

}  // namespace

void LstmCell(Invocation& call) {
  const std::vector<at::Tensor> gates = Biased(call, "input_gates", "input_bias")
                                            .add(Biased(call, "hidden_gates", "hidden_bias"))
                                            .chunk(4, 1);
  const at::Tensor in = gates[0].sigmoid(), forget = gates[1].sigmoid(), cell = gates[2].tanh(),
                   out = gates[3].sigmoid();
  const at::Tensor next = forget.mul(call.Tensor("cx").to(in.scalar_type())).add(in.mul(cell));
  call.Store(0, out.mul(next.tanh()));
  call.Store(1, next);
  if (call.Result(2).defined())
    call.Store(2, at::cat({in, forget, cell, out}, 1).view(call.Result(2).sizes()));
}

void LstmCellBackward(Invocation& call) {
  const std::vector<at::Tensor> gates = Wide(call.Tensor("workspace"), 4);
  const at::Tensor &in = gates[0], &forget = gates[1], &cell = gates[2], &out = gates[3];
  const at::ScalarType type = in.scalar_type();
  const at::Tensor next = call.Tensor("cy").to(type).tanh(), previous = call.Tensor("cx").to(type);
  const auto hidden = call.OptionalTensor("grad_hy"), state = call.OptionalTensor("grad_cy");
  const at::Tensor grad_hidden = hidden ? hidden->to(type) : at::zeros_like(next);
  const at::Tensor grad_state = state ? state->to(type) : at::zeros_like(next);
  const at::Tensor grad_next = grad_hidden.mul(out).mul(OneMinus(next.mul(next))).add(grad_state);
  const auto through_sigmoid = [](const at::Tensor& gradient, const at::Tensor& y) {
    return gradient.mul(y).mul(OneMinus(y));
  };
  const at::Tensor gradient = at::cat(
      {through_sigmoid(grad_next.mul(cell), in), through_sigmoid(grad_next.mul(previous), forget),
       grad_next.mul(in).mul(OneMinus(cell.mul(cell))),
       through_sigmoid(grad_hidden.mul(next), out)},
      1);
  call.Store(0, gradient);
  call.Store(1, grad_next.mul(forget));
  if (call.Bool("has_bias")) call.Store(2, gradient.sum(at::IntArrayRef{0}, false));
}

void GruCell(Invocation& call) {
  const std::vector<at::Tensor> input = Biased(call, "input_gates", "input_bias").chunk(3, 1);
  const std::vector<at::Tensor> hidden = Biased(call, "hidden_gates", "hidden_bias").chunk(3, 1);
  const at::Tensor state = call.Tensor("hx").to(input[0].scalar_type());
  const at::Tensor reset = input[0].add(hidden[0]).sigmoid(),
                   update = input[1].add(hidden[1]).sigmoid();
  const at::Tensor proposal = input[2].add(reset.mul(hidden[2])).tanh();
  call.Store(0, proposal.add(update.mul(state.sub(proposal))));
  if (call.Result(1).defined()) {
    call.Store(
        1, at::cat({reset, update, proposal, state, hidden[2]}, 1).view(call.Result(1).sizes()));
  }
}

void GruCellBackward(Invocation& call) {
  const std::vector<at::Tensor> saved = Wide(call.Tensor("workspace"), 5);
  const at::Tensor &reset = saved[0], &update = saved[1], &proposal = saved[2], &state = saved[3],
                   &hidden = saved[4];
  const at::Tensor gradient = call.Tensor("grad_hy").to(reset.scalar_type());
  const at::Tensor grad_update =
      gradient.mul(state.sub(proposal)).mul(OneMinus(update)).mul(update);
  const at::Tensor grad_input =
      gradient.mul(OneMinus(update)).mul(OneMinus(proposal.mul(proposal)));
  const at::Tensor grad_reset = grad_input.mul(hidden).mul(OneMinus(reset)).mul(reset);
  const at::Tensor input_gates = at::cat({grad_reset, grad_update, grad_input}, 1);
  const at::Tensor hidden_gates = at::cat({grad_reset, grad_update, grad_input.mul(reset)}, 1);
  call.Store(0, input_gates);
  call.Store(1, hidden_gates);
  call.Store(2, gradient.mul(update));
  if (call.Bool("has_bias")) {
    call.Store(3, input_gates.sum(at::IntArrayRef{0}, false));
    call.Store(4, hidden_gates.sum(at::IntArrayRef{0}, false));
  }
}

}  // namespace hostcuda::values::forms
