// Measures what the commonest calls cost, and what a process that initialized hostcuda holds:
// prints one JSON line.
//
//   build/dev/hostcuda/driver/hostcuda_call_cost
#include <cuda.h>
#include <stdio.h>
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "hostcuda/internal_table.h"

namespace {

uint64_t NowNs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(now.tv_nsec);
}

/// Median over rounds of the mean cost of a call, in nanoseconds.
template <class Call>
double Cost(Call call) {
  constexpr int kRounds = 21, kCalls = 20'000;
  std::vector<double> rounds;
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t start = NowNs();
    for (int i = 0; i < kCalls; ++i) call();
    rounds.push_back(static_cast<double>(NowNs() - start) / kCalls);
  }
  std::nth_element(rounds.begin(), rounds.begin() + kRounds / 2, rounds.end());
  return rounds[kRounds / 2];
}

/// A "Name: n kB" line of /proc/self/status, in KiB.
long StatusKib(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind(name + ":", 0) == 0) return std::stol(line.substr(name.size() + 1));
  }
  return -1;
}

}  // namespace

int main() {
  const long anonymous_before = StatusKib("RssAnon"), shared_before = StatusKib("RssShmem");
  CUcontext context = nullptr;
  if (cuInit(0) != CUDA_SUCCESS || cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS) return 1;
  cuCtxSetCurrent(context);
  const long anonymous = StatusKib("RssAnon") - anonymous_before,
             shared = StatusKib("RssShmem") - shared_before;

  CUstream stream = nullptr, other = nullptr;
  CUevent event = nullptr;
  CUmodule module = nullptr;
  CUfunction kernel = nullptr;
  CUdeviceptr memory = 0;
  cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
  cuStreamCreate(&other, CU_STREAM_NON_BLOCKING);
  cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
  cuModuleLoadData(&module, "hostcuda-image-1");
  cuModuleGetFunction(&kernel, module, "kernel");
  cuMemAlloc(&memory, 1 << 22);
  const void* address = nullptr;
  cuGetExportTable(&address, &kHostcudaTableUuid);
  const auto* table = static_cast<const HostcudaTable*>(address);
  const uint32_t grid[3] = {1, 1, 1}, block[3] = {32, 1, 1};
  char buffer[64] = {};

  const double launch =
      Cost([&] { cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, stream, nullptr, nullptr); });
  const double named = Cost([&] { table->launch_named(stream, "gemm", grid, block, 0); });
  const double record = Cost([&] { cuEventRecord(event, stream); });
  const double wait = Cost([&] { cuStreamWaitEvent(other, event, 0); });
  const double copy = Cost([&] { cuMemcpyDtoDAsync(memory, memory + 4096, 64, stream); });
  const double synchronize = Cost([&] { cuStreamSynchronize(stream); });
  const double set = Cost([&] { cuMemsetD8Async(memory, 0, 64, stream); });
  (void)buffer;
  printf(
      "{\"launch_ns\": %.0f, \"launch_named_ns\": %.0f, \"event_record_ns\": %.0f, "
      "\"stream_wait_event_ns\": %.0f, "
      "\"copy_64B_ns\": %.0f, \"set_64B_ns\": %.0f, \"stream_synchronize_ns\": %.0f, "
      "\"rss_anonymous_kib\": %ld, "
      "\"rss_shared_kib\": %ld}\n",
      launch, named, record, wait, copy, set, synchronize, anonymous, shared);
  return 0;
}
