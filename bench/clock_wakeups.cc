// Measures hostcuda's virtual clock: N processes that do host work of stated lengths. Prints one
// JSON line: wake-ups a second of wall time, and a hash of every process's times, which must not
// change from run to run.
//
//   build/release/bench/clock_wakeups LIBRARIES PROCESSES WAKEUPS_OF_EACH alone|tied
//
// alone: all lengths differ; tied: all processes wake at the same times.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <vector>

namespace {

double Seconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

/// A process of the job; its result is the hash of its times.
int Process(const char* library, int rank, long wakeups, bool tied, int out) {
  void* driver = dlopen(library, RTLD_NOW);
  if (driver == nullptr) {
    fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  const auto init = reinterpret_cast<int (*)(unsigned)>(dlsym(driver, "cuInit"));
  const auto host_time =
      reinterpret_cast<int (*)(unsigned long long)>(dlsym(driver, "hostcudaHostTime"));
  const auto now = reinterpret_cast<unsigned long long (*)()>(dlsym(driver, "hostcudaNow"));
  if (init == nullptr || host_time == nullptr || now == nullptr || init(0) != 0) return 1;
  host_time(1);  // returns when all processes are there
  const char ready = 1;
  if (write(out, &ready, 1) != 1) return 1;
  uint64_t draw = static_cast<uint64_t>(rank) * 2654435761u + 7, hash = 0xcbf29ce484222325u;
  for (long i = 0; i < wakeups; ++i) {
    draw = draw * 6364136223846793005u + 1442695040888963407u;
    host_time(tied ? 1'000'000 : 1'000'000 + (draw >> 44));
    hash = (hash ^ now()) * 0x100000001b3u;
  }
  return write(out, &hash, sizeof hash) == sizeof hash ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 6) {
    return Process(argv[1], atoi(argv[2]), atol(argv[3]), strcmp(argv[4], "tied") == 0,
                   atoi(argv[5]));
  }
  if (argc != 5) {
    fprintf(stderr, "clock_wakeups LIBRARIES PROCESSES WAKEUPS_OF_EACH alone|tied\n");
    return 1;
  }
  const std::string library = std::string(argv[1]) + "/libcuda.so.1";
  const int processes = atoi(argv[2]);
  setenv("HOSTCUDA_CLOCK", "virtual", 1);
  setenv("HOSTCUDA_SESSION", ("bench-" + std::to_string(getpid())).c_str(), 1);
  setenv("HOSTCUDA_PROCESSES", argv[2], 1);
  std::vector<int> results;
  for (int rank = 0; rank < processes; ++rank) {
    int out[2];
    if (pipe(out) != 0) return 1;
    if (fork() == 0) {
      close(out[0]);
      for (const int fd : results) close(fd);
      setenv("HOSTCUDA_PROCESS", std::to_string(rank).c_str(), 1);
      execl("/proc/self/exe", argv[0], library.c_str(), std::to_string(rank).c_str(), argv[3],
            argv[4], std::to_string(out[1]).c_str(), nullptr);
      _exit(1);
    }
    close(out[1]);
    results.push_back(out[0]);
  }
  char ready = 0;
  if (read(results[0], &ready, 1) != 1) return 1;
  const double start = Seconds();
  for (size_t i = 1; i < results.size(); ++i) {
    if (read(results[i], &ready, 1) != 1) return 1;
  }
  uint64_t hash = 0;
  for (const int fd : results) {
    uint64_t one = 0;
    if (read(fd, &one, sizeof one) != sizeof one) return 1;
    hash = hash * 31 + one;
  }
  const double seconds = Seconds() - start;
  int failed = 0, status = 0;
  while (wait(&status) > 0) failed += status != 0;
  const double wakeups = static_cast<double>(processes) * static_cast<double>(atol(argv[3]));
  printf(
      "{\"processes\": %d, \"pattern\": \"%s\", \"wakeups\": %.0f, \"seconds\": %.3f, "
      "\"wakeups_per_s\": %.0f, \"hash\": \"%016llx\"}\n",
      processes, argv[4], wakeups, seconds, wakeups / seconds,
      static_cast<unsigned long long>(hash));
  return failed == 0 ? 0 : 1;
}
