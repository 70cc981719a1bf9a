// prism doctor: what is installed here, and what prism can do with it.
#include <sys/statvfs.h>
#include <sys/utsname.h>

#include "fmt/format.h"
#include "src/base/version.h"
#include "src/cli/verbs.h"

namespace prism::cli {
namespace {

class DoctorVerb final : public Verb {
 public:
  const char* name() const override { return "doctor"; }
  const char* summary() const override {
    return "Show what is installed and what prism can do with it";
  }
  void AddOptions(CLI::App&) override {}

  absl::StatusOr<int> Run(const Invocation& invocation) override {
    nlohmann::ordered_json found;
    found["version"] = kVersion;
    found["program"] = invocation.program;
    if (utsname system{}; uname(&system) == 0) found["kernel"] = system.release;
    if (struct statvfs shm{}; statvfs("/dev/shm", &shm) == 0) {
      found["shared_memory_bytes"] = static_cast<uint64_t>(shm.f_bavail) * shm.f_frsize;
    }
    if (invocation.json) {
      PrintJson("prism.doctor", 1, found);
    } else {
      for (const auto& [key, value] : found.items()) fmt::print("{:<24} {}\n", key, value.dump());
    }
    return kExitOk;
  }
};

}  // namespace

std::unique_ptr<Verb> MakeDoctorVerb() { return std::make_unique<DoctorVerb>(); }

}  // namespace prism::cli
