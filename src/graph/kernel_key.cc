#include "src/graph/kernel_key.h"

#include <cxxabi.h>

#include <cstdlib>
#include <memory>

#include "src/trace/content_hash.h"

namespace prism::graph {
namespace {

// Of nvcc, for what has internal linkage: _INTERNAL_<hash>_<length>_<file>_cu_<hash>_<number>.
constexpr std::string_view kInternal = "_INTERNAL_";

}  // namespace

std::string NormalizedKernelName(std::string_view name) {
  std::string text(name);
  if (name.starts_with("_Z")) {
    int status = 0;
    const std::unique_ptr<char, decltype(&std::free)> demangled(
        abi::__cxa_demangle(text.c_str(), nullptr, nullptr, &status), &std::free);
    if (status == 0 && demangled != nullptr) text = demangled.get();
  }
  for (size_t at = 0; (at = text.find(kInternal, at)) != std::string::npos;) {
    const size_t end = text.find("::", at);
    if (end == std::string::npos) break;
    text.erase(at, end + 2 - at);
  }
  return text;
}

uint64_t KernelKey(const Kernel& kernel) {
  const std::string name = NormalizedKernelName(kernel.name);
  uint64_t hash = trace::Fnv(trace::kFnvOffset, name.data(), name.size());
  hash = trace::Fnv(hash, &kernel.kind, sizeof kernel.kind);
  hash = trace::Fnv(hash, kernel.grid, sizeof kernel.grid);
  hash = trace::Fnv(hash, kernel.block, sizeof kernel.block);
  hash = trace::Fnv(hash, &kernel.shared_bytes, sizeof kernel.shared_bytes);
  hash = trace::Fnv(hash, &kernel.bytes, sizeof kernel.bytes);
  const uint32_t parameters =
      kernel.parameters == trace::kParametersVary ? trace::kParametersUnknown : kernel.parameters;
  return trace::Fnv(hash, &parameters, sizeof parameters);
}

}  // namespace prism::graph
