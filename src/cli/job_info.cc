#include "src/cli/job_info.h"

#include <filesystem>
#include <utility>

namespace prism::cli {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

Json DescribeTarget(const Target& target) {
  return {{"text", target.text},
          {"gpu", target.gpu.key},
          {"gpu_name", target.gpu.name},
          {"gpu_memory_bytes", target.gpu.memory_bytes},
          {"gpu_context_bytes", target.gpu.context_bytes},
          {"gpus_per_node", target.gpus_per_node},
          {"nodes", target.nodes}};
}

Json DescribeCuda(const CudaLibraries& cuda) {
  return {{"where", cuda.where},
          {"driver", cuda.driver},
          {"runtime", cuda.runtime},
          {"nvml", cuda.nvml},
          {"nccl", cuda.nccl}};
}

Json InstalledVersions(const std::string& python) {
  Json versions = Json::object();
  if (python.empty()) return versions;
  const std::pair<std::string, const char*> packages[] = {{"torch-", "torch"},
                                                          {"nvidia_nccl_cu13-", "nccl"}};
  constexpr std::string_view kSuffix = ".dist-info";
  for (const std::string& folder : SitePackages(python)) {
    // ".../lib/python3.11/site-packages"
    const std::string parent = fs::path(folder).parent_path().filename().string();
    if (!versions.contains("python")) versions["python"] = parent.substr(parent.rfind('n') + 1);
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(folder, error)) {
      const std::string name = entry.path().filename().string();
      for (const auto& [prefix, key] : packages) {
        if (name.starts_with(prefix) && name.ends_with(kSuffix))
          versions[key] = name.substr(prefix.size(), name.size() - prefix.size() - kSuffix.size());
      }
    }
  }
  return versions;
}

}  // namespace prism::cli
