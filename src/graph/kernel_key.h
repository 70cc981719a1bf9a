// Kernel key: under what a table of kernel times keeps a launch, so that it is found from a trace
// of a GPU and from one of hostcuda. docs/reference/kernel-names.md defines it. Stateless;
// thread-safe.
//
//   table[KernelKey(program.kernels[i])]
#ifndef PRISM_GRAPH_KERNEL_KEY_H_
#define PRISM_GRAPH_KERNEL_KEY_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "src/graph/program.h"

namespace prism::graph {

/// Demangles a kernel's name; template arguments stay, names that the compiler makes up for one
/// source file (with hashes of it) go.
std::string NormalizedKernelName(std::string_view name);

/// FNV-1a 64 over the normalised name, then kind, grid, block, shared memory, bytes and the hash of
/// the scalar parameters (trace::KernelRecord::parameters), where that is known.
uint64_t KernelKey(const Kernel& kernel);

}  // namespace prism::graph

#endif  // PRISM_GRAPH_KERNEL_KEY_H_
