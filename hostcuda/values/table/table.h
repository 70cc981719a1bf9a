// The checked table: operations whose CPU form is not simply the CPU kernel of the same name.
//
// operations.inc is the table itself, one line an operation, with the reason. An operation in
// neither (no CPU kernel and no line) raises when it is called.
//
// Threading: constant after static initialisation.
#ifndef HOSTCUDA_VALUES_TABLE_TABLE_H_
#define HOSTCUDA_VALUES_TABLE_TABLE_H_

#include <string>

#include "hostcuda/values/form.h"

namespace hostcuda::values {

enum class Rule {
  // Launch as before, then the CPU kernel of the same name: the default.
  kCpuKernel,
  // Launch as before, then a form of our own.
  kForm,
  // The shape of the result depends on values, or the CUDA kernel reads intermediate values on the
  // host: wait for the
  // stream, compute on the CPU, return a copy on the device. Also when nested in another operation.
  kComputeFirst,
  // The CUDA kernel moves no values (views, allocation), or only calls other operations, which
  // compute: launch as before.
  kPlain,
  // No CPU form: raise, naming the operation.
  kUnsupported,
};

struct TableEntry {
  Rule rule = Rule::kCpuKernel;
  Form form = nullptr;
  Compute compute = nullptr;  // kComputeFirst
  const char* reason = "";
};

// Returns the entry for an operation ("aten::mm", "dtype"): the overload's own, else the one of all
// overloads; null if the table has none.
const TableEntry* FindTableEntry(const std::string& name, const std::string& overload);

}  // namespace hostcuda::values

#endif  // HOSTCUDA_VALUES_TABLE_TABLE_H_
