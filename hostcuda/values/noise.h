// Seeded stand-in values for control mode: finite and legal for the operation, so that masks,
// routing and loss scaling of a model whose large tensors are not computed still take a legal path.
//
// Threading: pure functions of their arguments.
#ifndef HOSTCUDA_VALUES_NOISE_H_
#define HOSTCUDA_VALUES_NOISE_H_

#include "hostcuda/values/form.h"

namespace hostcuda::values {

// True when control mode computes with `tensor` and fills it: at most `limit_bytes`; integers and
// truth values, which choose paths and index memory, at most 16 times that.
bool IsSmall(const at::Tensor& tensor, int64_t limit_bytes);

// Fills every small fresh result and out= argument of `call`; arguments changed in place keep what
// they hold. Returns the number of tensors filled. Floats are N(0, 1) (their magnitude where the
// operation cannot be negative), indices are spread over the dimension they index, truth values say
// that nothing is wrong. Large ones are not computed: the memory behind their pages is given back,
// so that what small tensors left there at other times does not add up to the size of the model.
//
// Like the operation, its noise is a function of its arguments: of their shapes, of what small ones
// hold, of the generator's state. So a layer that is recomputed for the backward pass routes its
// tokens as in the forward pass, and layers with other weights route otherwise.
int FillWithNoise(Invocation& call, int64_t limit_bytes);

}  // namespace hostcuda::values

#endif  // HOSTCUDA_VALUES_NOISE_H_
