#include "src/cli/virtual_clock.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdlib>
#include <type_traits>
#include <utility>

#include "fmt/format.h"

namespace prism::cli {

absl::StatusOr<std::unique_ptr<VirtualClock>> VirtualClock::Join(
    const std::string& driver, const std::map<std::string, std::string>& environment) {
  PRISM_ASSIGN_OR_RETURN(std::unique_ptr<RuntimeFolder> folder, RuntimeFolder::Make());
  for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
  setenv("HOSTCUDA_CLOCK", "virtual", 1);
  setenv("HOSTCUDA_SESSION", folder->session().c_str(), 1);
  // The ranks say how many they are; this process is none of them.
  for (const char* name : {"HOSTCUDA_PROCESS", "HOSTCUDA_PROCESSES", "RANK", "WORLD_SIZE"})
    unsetenv(name);
  void* const library = dlopen(driver.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return absl::FailedPreconditionError(dlerror());
  Functions found{};
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    return function != nullptr;
  };
  int (*is_virtual)() = nullptr;
  int (*init)(unsigned flags) = nullptr;
  if (!find(init, "cuInit") || !find(is_virtual, "hostcudaClockIsVirtual") || is_virtual() == 0 ||
      !find(found.now, "hostcudaNow") || !find(found.hold, "hostcudaHold") ||
      !find(found.number, "hostcudaNumber") || !find(found.ring, "hostcudaRing") ||
      !find(found.wait, "hostcudaWait")) {
    return WithHint(absl::FailedPreconditionError(fmt::format("{} has no virtual clock", driver)),
                    "hostcuda's driver has one; it must be of the same version as prism");
  }
  if (const int error = init(0); error != 0) {
    return absl::FailedPreconditionError(
        fmt::format("{} cannot be initialized: CUDA error {}", driver, error));
  }
  return std::unique_ptr<VirtualClock>(new VirtualClock(found, std::move(folder)));
}

VirtualClock::VirtualClock(const Functions& functions, std::unique_ptr<RuntimeFolder> folder)
    : functions_(functions),
      folder_(std::move(folder)),
      wake_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  // Signals are the main thread's.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { Run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return joined_; });
}

VirtualClock::~VirtualClock() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  functions_.ring(number_ - 1);
  thread_.join();
  close(wake_fd_);
  for (const std::string& file : LeftSharedMemory(session())) unlink(file.c_str());
}

int64_t VirtualClock::NowNs() const { return static_cast<int64_t>(functions_.now()); }

void VirtualClock::Ring(uint32_t number) {
  if (number != 0) functions_.ring(number - 1);
}

void VirtualClock::Acknowledge() const {
  uint64_t count;
  [[maybe_unused]] const ssize_t bytes = read(wake_fd_, &count, sizeof count);
}

void VirtualClock::Continue(int64_t until_ns) {
  const std::lock_guard lock(mutex_);
  until_ns_ = until_ns;
  goes_on_ = true;
  changed_.notify_all();
}

void VirtualClock::Run() {
  functions_.hold(1);  // outside of wait() this process works
  unsigned rings = 0;
  std::unique_lock lock(mutex_);
  number_ = functions_.number() + 1;
  joined_ = goes_on_ = true;
  changed_.notify_all();
  while (true) {
    changed_.wait(lock, [&] { return goes_on_ || stop_; });
    if (stop_) break;
    goes_on_ = false;
    const uint64_t until_ns =
        until_ns_ == INT64_MAX ? UINT64_MAX : static_cast<uint64_t>(until_ns_);
    lock.unlock();
    functions_.wait(&rings, until_ns);
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t bytes = write(wake_fd_, &one, sizeof one);
    lock.lock();
  }
  functions_.hold(-1);
}

}  // namespace prism::cli
