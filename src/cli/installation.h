// Installation: where prism's own parts are, and what stands in for CUDA in the user's environment.
//
// Found beside the executable: of a build tree (build/dev/bin/prism) or an installed one
// (prefix/bin/prism). Looks at the file system; owns nothing.
//
//   PRISM_ASSIGN_OR_RETURN(Installation own, FindInstallation(invocation.program));
//   PRISM_ASSIGN_OR_RETURN(CudaLibraries cuda, FindCuda(Device::kHost, own.hostcuda, python));
#ifndef PRISM_CLI_INSTALLATION_H_
#define PRISM_CLI_INSTALLATION_H_

#include <map>
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

/// Folder of hostcuda's libraries beside the executable; "" when they are not there.
std::string HostcudaFolder(const std::string& program);

enum class Device { kHost, kCuda };

/// What the shims forward to; absolute paths. All but `driver` may be empty.
struct CudaLibraries {
  std::string driver, runtime, nvml, nccl;
  std::string search;  // folder of stand-ins, for programs that find CUDA by the loader's path; ""
                       // where the real ones are to be found
  std::string where;   // for people: "hostcuda in /x/site-packages/nvidia/cu13/lib"
};

/// Folders site-packages of the environment of an interpreter.
std::vector<std::string> SitePackages(const std::string& python);

/// `hostcuda`: HostcudaFolder(), where the environment of `python` has none; either may be "".
absl::StatusOr<CudaLibraries> FindCuda(Device device, const std::string& hostcuda,
                                       const std::string& python);

/// Fails where the environment of an interpreter has hostcuda's libraries: real kernels and
/// stand-ins do not mix. A program that loads hostcuda's runtime, BLAS and NCCL does not run on a
/// GPU, whatever driver there is.
absl::Status CheckNoStandIns(const std::string& python);

/// Environment of a program that the shims are preloaded into: LD_PRELOAD, before what the user
/// preloads, and where everything real is. With stand-ins LD_LIBRARY_PATH, too: a compiled program
/// would otherwise find an installed toolkit's CUDA runtime, which works on a real driver only.
std::map<std::string, std::string> ShimEnvironment(const Installation& installation,
                                                   const CudaLibraries& cuda);

}  // namespace prism::cli

#endif  // PRISM_CLI_INSTALLATION_H_
