// Measures hostnccl on this machine: `hostnccl_bench [ranks ...]` prints one line a number of
// ranks.
//
//   create_ms   from the first rank's ncclCommInitRank to the last rank's return
//   small_us    one 4 KiB float all-reduce with a wait after it, median over 300
//   queued_us   the same, 300 enqueued and one wait: time per operation
//   large_gb_s  64 MiB float all-reduce: bytes of one rank's buffer / time, best of 5
//   rss_mib     resident memory of a rank after all of it: own pages, and shared memory mapped by
//   it
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "hostcuda/nccl/testing/machine.h"

namespace hostnccl::testing {
namespace {

struct Results {
  std::atomic<int> arrived;
  std::atomic<uint64_t> first_ns, last_ns;
  double small_us, queued_us, large_gb_s, own_mib, shared_mib;
};

uint64_t NowNs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

void Check(ncclResult_t result) {
  if (result == ncclSuccess) return;
  fprintf(stderr, "%s: %s\n", nccl().GetErrorString(result), nccl().GetLastError(nullptr));
  _exit(1);
}

double StatusMib(const char* field) {
  FILE* file = fopen("/proc/self/status", "r");
  char line[256];
  double kib = 0;
  while (fgets(line, sizeof line, file) != nullptr) {
    if (strncmp(line, field, strlen(field)) == 0) kib = atof(line + strlen(field) + 1);
  }
  fclose(file);
  return kib / 1024;
}

void Rank(int rank, int ranks, const ncclUniqueId& id, Results* results, bool large) {
  StartMachine(rank % 64);
  setenv("HOSTNCCL_ALLOW_DUPLICATE_DEVICE", "1", 1);
  nccl();
  // Everybody starts together, with the libraries loaded.
  results->arrived.fetch_add(1);
  while (results->arrived.load() < ranks) usleep(1000);
  uint64_t none = 0;
  results->first_ns.compare_exchange_strong(none, NowNs());
  ncclComm_t comm;
  Check(nccl().CommInitRank(&comm, ranks, id, rank));
  const uint64_t created = NowNs();
  uint64_t last = results->last_ns.load();
  while (last < created && !results->last_ns.compare_exchange_weak(last, created)) {
  }
  cudaStream_t stream = NewStream();
  constexpr size_t kSmall = 1024, kLarge = size_t{16} << 20;
  auto* data = static_cast<float*>(DeviceAlloc((large ? kLarge : kSmall) * sizeof(float)));
  const auto reduce = [&](size_t count) {
    Check(nccl().AllReduce(data, data, count, ncclFloat32, ncclSum, comm, stream));
  };
  for (int i = 0; i < 20; ++i) reduce(kSmall);
  Synchronize(stream);
  std::vector<uint64_t> times;
  for (int i = 0; i < 300; ++i) {
    const uint64_t begin = NowNs();
    reduce(kSmall);
    Synchronize(stream);
    times.push_back(NowNs() - begin);
  }
  const uint64_t begin = NowNs();
  for (int i = 0; i < 300; ++i) reduce(kSmall);
  Synchronize(stream);
  const uint64_t queued = NowNs() - begin;
  uint64_t best = UINT64_MAX;
  for (int i = 0; large && i < 5; ++i) {
    const uint64_t start = NowNs();
    reduce(kLarge);
    Synchronize(stream);
    best = std::min(best, NowNs() - start);
  }
  if (rank == 0) {
    std::sort(times.begin(), times.end());
    results->small_us = static_cast<double>(times[times.size() / 2]) / 1000;
    results->queued_us = static_cast<double>(queued) / 300 / 1000;
    if (large)
      results->large_gb_s = static_cast<double>(kLarge * sizeof(float)) / static_cast<double>(best);
    results->own_mib = StatusMib("RssAnon") + StatusMib("RssFile");
    results->shared_mib = StatusMib("RssShmem");
  }
  Check(nccl().CommDestroy(comm));
  _exit(0);
}

int Measure(int ranks) {
  auto* results = static_cast<Results*>(
      mmap(nullptr, sizeof(Results), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  ncclUniqueId id;
  if (nccl().GetUniqueId(&id) != ncclSuccess) return 1;
  const bool large = ranks <= 16;
  for (int rank = 0; rank < ranks; ++rank) {
    if (fork() == 0) Rank(rank, ranks, id, results, large);
  }
  int failures = 0, status = 0;
  while (wait(&status) > 0) failures += status != 0;
  const double create_ms =
      static_cast<double>(results->last_ns.load() - results->first_ns.load()) / 1e6;
  printf(
      "ranks %4d  create_ms %8.1f  small_us %8.1f  queued_us %8.1f  large_gb_s %6.2f  rss_mib %.1f "
      "+ %.1f shared%s\n",
      ranks, create_ms, results->small_us, results->queued_us, results->large_gb_s,
      results->own_mib, results->shared_mib, failures != 0 ? "  FAILED" : "");
  fflush(stdout);
  munmap(results, sizeof(Results));
  return failures;
}

}  // namespace
}  // namespace hostnccl::testing

int main(int argc, char** argv) {
  int failures = 0;
  if (argc < 2) {
    for (int ranks : {2, 8, 64}) failures += hostnccl::testing::Measure(ranks);
  }
  for (int i = 1; i < argc; ++i) failures += hostnccl::testing::Measure(atoi(argv[i]));
  return failures == 0 ? 0 : 1;
}
