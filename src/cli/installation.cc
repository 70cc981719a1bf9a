#include "src/cli/installation.h"

#include <dlfcn.h>
#include <link.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "fmt/format.h"
#include "src/wire/protocol.h"

namespace prism::cli {
namespace {

namespace fs = std::filesystem;

std::string FirstFolderWith(const std::vector<fs::path>& folders, const char* file) {
  for (const fs::path& folder : folders) {
    std::error_code error;
    if (fs::exists(folder / file, error)) return fs::weakly_canonical(folder, error).string();
  }
  return "";
}

std::string FirstFile(const std::vector<std::string>& candidates) {
  for (const std::string& candidate : candidates) {
    std::error_code error;
    if (fs::exists(candidate, error)) return candidate;
  }
  return "";
}

// Path of a library where the loader finds it; "" when it does not.
std::string LoadedFrom(const char* name) {
  std::string path;
  if (void* handle = dlopen(name, RTLD_LAZY | RTLD_LOCAL)) {
    link_map* map = nullptr;
    if (dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0) path = map->l_name;
    dlclose(handle);
  }
  return path;
}

}  // namespace

std::string HostcudaFolder(const std::string& program) {
  const fs::path bin = fs::path(program).parent_path();
  return FirstFolderWith({bin / "../hostcuda/lib", bin / "../lib/hostcuda"}, "libcuda.so.1");
}

absl::StatusOr<Installation> FindInstallation(const std::string& program) {
  Installation installation;
  installation.program = program;
  const fs::path bin = fs::path(program).parent_path();
  std::vector<fs::path> shim_folders, python_folders;
  if (const char* folder = std::getenv("PRISM_SHIM_DIR")) shim_folders.emplace_back(folder);
  shim_folders.insert(shim_folders.end(), {bin / "../shims", bin / "../lib/prism/shims"});
  if (const char* folder = std::getenv("PRISM_PYTHON_DIR")) python_folders.emplace_back(folder);
  python_folders.insert(python_folders.end(),
                        {bin / "../share/prism/python/prism", bin / "../../../python/prism"});
  installation.shims = FirstFolderWith(shim_folders, "libcuda.so.1");
  installation.python = FirstFolderWith(python_folders, "zygote.py");
  installation.hostcuda = HostcudaFolder(program);
  if (installation.python.empty()) {
    return WithHint(
        absl::NotFoundError(fmt::format("prism's Python part is not beside {}", program)),
        "run prism from its build or installation, or set PRISM_PYTHON_DIR to the folder with "
        "zygote.py");
  }
  if (!installation.shims.empty()) {
    for (const char* name :
         {"libcuda.so.1", "libnccl.so.2", "libprism_ordinals.so", "libnvidia-ml.so.1"}) {
      const std::string path = installation.shims + "/" + name;
      if (std::error_code error; fs::exists(path, error)) installation.preload.push_back(path);
    }
  }
  return installation;
}

std::vector<std::string> SitePackages(const std::string& python) {
  // The environment is told by the path as given: a virtual environment's python is a link to
  // another's.
  std::vector<std::string> folders;
  const fs::path prefix = fs::path(python).parent_path().parent_path();
  for (const char* lib : {"lib", "lib64"}) {
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(prefix / lib, error)) {
      if (entry.path().filename().string().rfind("python3", 0) != 0) continue;
      for (const char* name : {"site-packages", "dist-packages"}) {
        if (fs::is_directory(entry.path() / name, error))
          folders.push_back((entry.path() / name).string());
      }
    }
  }
  return folders;
}

absl::StatusOr<CudaLibraries> FindCuda(Device device, const std::string& hostcuda,
                                       const std::string& python) {
  CudaLibraries libraries;
  std::vector<std::string> packages =
      python.empty() ? std::vector<std::string>() : SitePackages(python);
  const auto in_packages = [&](const char* folder, const char* name) {
    std::vector<std::string> candidates;
    for (const std::string& package : packages)
      candidates.push_back(fmt::format("{}/nvidia/{}/lib/{}", package, folder, name));
    return candidates;
  };
  libraries.runtime = FirstFile(in_packages("cu13", "libcudart.so.13"));
  libraries.nccl = FirstFile(in_packages("nccl", "libnccl.so.2"));
  if (device == Device::kHost) {
    std::vector<std::string> drivers = in_packages("cu13", "libcuda.so.1");
    if (!hostcuda.empty()) drivers.push_back(hostcuda + "/libcuda.so.1");
    libraries.driver = FirstFile(drivers);
    if (libraries.driver.empty()) {
      return WithHint(
          absl::NotFoundError(fmt::format("hostcuda is not installed in the environment of {}",
                                          python.empty() ? "the command" : python)),
          "tools/setup.sh installs it; 'prism doctor' shows what is there");
    }
    const std::string folder = fs::path(libraries.driver).parent_path().string();
    libraries.nvml = FirstFile({folder + "/libnvidia-ml.so.1"});
    if (libraries.runtime.empty()) libraries.runtime = FirstFile({folder + "/libcudart.so.13"});
    if (libraries.nccl.empty() && !hostcuda.empty())
      libraries.nccl = FirstFile({hostcuda + "/libnccl.so.2"});
    libraries.search = hostcuda;
    libraries.where = "hostcuda in " + folder;
    return libraries;
  }
  // The real driver: where the loader finds it, which a stand-in beside torch does not change.
  libraries.driver = LoadedFrom("libcuda.so.1");
  if (libraries.driver.empty()) {
    return WithHint(
        absl::NotFoundError("--device cuda: this machine has no CUDA driver (libcuda.so.1)"),
        "--device host needs no GPU");
  }
  libraries.nvml = LoadedFrom("libnvidia-ml.so.1");
  if (libraries.nccl.empty()) libraries.nccl = LoadedFrom("libnccl.so.2");
  libraries.where = "CUDA driver " + libraries.driver;
  return libraries;
}

absl::Status CheckNoStandIns(const std::string& python) {
  if (python.empty()) return absl::OkStatus();
  for (const std::string& packages : SitePackages(python)) {
    const std::string driver = packages + "/nvidia/cu13/lib/libcuda.so.1";
    if (std::error_code error; !fs::exists(driver, error)) continue;
    return WithHint(
        absl::FailedPreconditionError(fmt::format(
            "--device cuda: hostcuda is installed in the environment of {}: {}", python, driver)),
        "use an environment with NVIDIA's libraries, or --device host");
  }
  return absl::OkStatus();
}

std::map<std::string, std::string> ShimEnvironment(const Installation& installation,
                                                   const CudaLibraries& cuda) {
  const auto before_theirs = [](std::string own, const char* variable) {
    const char* theirs = std::getenv(variable);
    if (theirs != nullptr && *theirs != '\0') own += std::string(own.empty() ? "" : ":") + theirs;
    return own;
  };
  std::string preload;
  for (const std::string& library : installation.preload)
    preload += (preload.empty() ? "" : ":") + library;
  std::map<std::string, std::string> environment = {
      {wire::kEnvRealDriver, cuda.driver},
      {wire::kEnvRealRuntime, cuda.runtime},
      {wire::kEnvRealNvml, cuda.nvml},
      {wire::kEnvRealNccl, cuda.nccl},
      {"LD_PRELOAD", before_theirs(preload, "LD_PRELOAD")}};
  if (!cuda.search.empty())
    environment["LD_LIBRARY_PATH"] = before_theirs(cuda.search, "LD_LIBRARY_PATH");
  return environment;
}

}  // namespace prism::cli
