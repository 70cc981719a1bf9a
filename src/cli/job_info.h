// Job info: parts of job.json that every verb writes alike which runs a program.
//
// Stateless.
//
//   job.info()["target"] = DescribeTarget(target);
#ifndef PRISM_CLI_JOB_INFO_H_
#define PRISM_CLI_JOB_INFO_H_

#include <string>

#include "nlohmann/json.hpp"
#include "src/base/target.h"
#include "src/cli/installation.h"

namespace prism::cli {

nlohmann::ordered_json DescribeTarget(const Target& target);
nlohmann::ordered_json DescribeCuda(const CudaLibraries& cuda);

/// Versions of Python, PyTorch and NVIDIA's NCCL in the environment of an interpreter, told by the
/// names of its folders; what is not there is left out.
nlohmann::ordered_json InstalledVersions(const std::string& python);

}  // namespace prism::cli

#endif  // PRISM_CLI_JOB_INFO_H_
