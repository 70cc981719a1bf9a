#include "hostcuda/driver/driver.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <mutex>
#include <string>

#include "hostcuda/driver/gpu.h"
#include "hostcuda/driver/options.h"

namespace hostcuda {
namespace {

std::atomic<bool> forked{false};

const WorkTimes* ReadTimes(const std::string& path) {
  const GpuModel& gpu = Gpu();
  // Two transfers a clock; a multiprocessor's tensor cores since Hopper, and before it.
  const double flops_per_clock = gpu.major >= 9 ? 4096 : 2048;
  auto* times = new WorkTimes(
      {.memory_bytes_per_s = gpu.memory_clock_khz * 1e3 * 2 * gpu.memory_bus_bits / 8,
       .tensor_flops_per_s = gpu.multiprocessors * flops_per_clock * gpu.clock_khz * 1e3});
  std::string error;
  if (!path.empty() && !WorkTimes::Read(path, times, &error))
    Die("HOSTCUDA_TIMES=%s: %s", path.c_str(), error.c_str());
  return times;
}

/// A line of HOSTCUDA_TIMES_DIGEST.
void WriteDigest(const std::string& path, Engine& engine) {
  if (path.empty() || !Clock().is_virtual()) return;
  const Engine::Digest digest = engine.digest();
  char line[80];
  const int length = snprintf(line, sizeof line, "%u %llu %016llx\n", Clock().rank(),
                              static_cast<unsigned long long>(digest.operations),
                              static_cast<unsigned long long>(digest.hash));
  // In one write, so that lines of processes that end together stay whole.
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0 || write(fd, line, static_cast<size_t>(length)) != length)
    fprintf(stderr, "hostcuda: HOSTCUDA_TIMES_DIGEST=%s: %s\n", path.c_str(), strerror(errno));
  if (fd >= 0) close(fd);
}

}  // namespace

std::atomic<Driver*> Driver::instance_{nullptr};

CUresult Driver::Initialize() {
  if (forked.load(std::memory_order_relaxed)) return CUDA_ERROR_NOT_INITIALIZED;
  if (Get() != nullptr) return CUDA_SUCCESS;
  static std::mutex* const mutex = new std::mutex;
  std::lock_guard<std::mutex> lock(*mutex);
  if (Get() != nullptr) return CUDA_SUCCESS;
  const DriverOptions& options = Options();
  if (VisibleDevices() == 0) return CUDA_ERROR_NO_DEVICE;
  std::string error;
  auto* driver = new Driver;
  driver->session_ = Session::Join("/dev/shm", options.session, &error);
  if (driver->session_ != nullptr) driver->memory_ = DeviceMemory::Create(&error);
  if (driver->memory_ == nullptr) {
    fprintf(stderr, "hostcuda: %s\n", error.c_str());
    return CUDA_ERROR_SYSTEM_NOT_READY;
  }
  const WorkTimes* const times = Clock().takes_time() ? ReadTimes(options.times) : nullptr;
  Clock().Join(driver->session_->clock(), driver->session_->self());
  driver->engine_ = new Engine(driver->session_, times);
  Engine::Set(driver->engine_);
  // The child has neither the progress thread nor a place in the session.
  pthread_atfork(nullptr, nullptr, [] {
    forked.store(true, std::memory_order_relaxed);
    instance_.store(nullptr, std::memory_order_relaxed);
  });
  static Driver* leaving;
  leaving = driver;
  atexit([] {
    if (forked.load(std::memory_order_relaxed)) return;
    WriteDigest(Options().times_digest, leaving->engine());
    Clock().Leave();
    leaving->session().Leave();
  });
  instance_.store(driver, std::memory_order_release);
  return CUDA_SUCCESS;
}

bool Driver::Charge(int device, uint64_t bytes) {
  return session_->Charge(PhysicalDevice(device), bytes,
                          Options().memory_limit ? Gpu().memory_bytes : UINT64_MAX / 2);
}

void Driver::Discharge(int device, uint64_t bytes) {
  session_->Discharge(PhysicalDevice(device), bytes);
}

void Driver::MemoryInfo(int device, size_t* free_bytes, size_t* total_bytes) {
  const uint64_t used = session_->Used(PhysicalDevice(device)), total = Gpu().memory_bytes;
  if (free_bytes != nullptr) *free_bytes = used < total ? total - used : 0;
  if (total_bytes != nullptr) *total_bytes = total;
}

}  // namespace hostcuda
