// Installation: where prism's own parts are, and what stands in for CUDA in the user's environment.
//
// Found beside the executable: of a build tree (build/dev/bin/prism) or an installed one
// (prefix/bin/prism). Looks at the file system; owns nothing.
//
//   PRISM_ASSIGN_OR_RETURN(Installation own, FindInstallation(invocation.program));
//   PRISM_ASSIGN_OR_RETURN(CudaLibraries cuda, FindCuda(Device::kHost, own, python));
#ifndef PRISM_CLI_INSTALLATION_H_
#define PRISM_CLI_INSTALLATION_H_

#include <string>
#include <vector>

#include "src/base/status.h"

namespace prism::cli {

struct Installation {
  std::string program;   // this executable
  std::string shims;     // folder of the preloaded libraries; "" when they are not there
  std::string python;    // folder `prism` with zygote.py
  std::string hostcuda;  // folder of hostcuda's libraries of this build; "" when they are not there
  std::vector<std::string> preload;  // the shims, in the order of LD_PRELOAD
};

/// PRISM_SHIM_DIR and PRISM_PYTHON_DIR win over what is beside the executable.
absl::StatusOr<Installation> FindInstallation(const std::string& program);

enum class Device { kHost, kCuda };

/// What the shims forward to; absolute paths. `nvml` may be empty.
struct CudaLibraries {
  std::string driver, runtime, nvml, nccl;
  std::string where;  // for people: "hostcuda in /x/site-packages/nvidia/cu13/lib"
};

/// Folders site-packages of the environment of an interpreter.
std::vector<std::string> SitePackages(const std::string& python);

absl::StatusOr<CudaLibraries> FindCuda(Device device, const Installation& installation,
                                       const std::string& python);

}  // namespace prism::cli

#endif  // PRISM_CLI_INSTALLATION_H_
