// Measures hostnccl on the virtual clock: N processes, eight a node, in four communicators each
// (all, node, rail, half). Prints one JSON line: operations of ranks a second of wall time, and a
// hash of every process's times, which must not change from run to run.
//
//   build/release/bench/clock_flows LIBRARIES PROCESSES ROUNDS collectives|messages
//
// collectives: an all-reduce in each communicator, which overlap on their links; messages: all to
// all in grouped sends and receives, of unequal sizes.
#include <cuda.h>
#include <dlfcn.h>
#include <nccl.h>
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

constexpr int kGpusPerNode = 8, kCommunicators = 4;

double Seconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

void* Open(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) {
    fprintf(stderr, "%s\n", dlerror());
    _exit(1);
  }
  return library;
}

template <typename Function>
Function* Find(void* library, const char* name) {
  void* symbol = dlsym(library, name);
  if (symbol == nullptr) {
    fprintf(stderr, "%s\n", dlerror());
    _exit(1);
  }
  return reinterpret_cast<Function*>(symbol);
}

#define TEXT_OF(name) #name
#define NAME_OF(name) TEXT_OF(name)  // cuda.h renames functions to their current versions
#define CALL(library, name, ...)                                                                   \
  if (const int result = Find<decltype(name)>(library, NAME_OF(name))(__VA_ARGS__); result != 0) { \
    fprintf(stderr, "%s failed with %d\n", #name, result);                                         \
    _exit(1);                                                                                      \
  }

/// A process of the job; its result is the hash of its times.
void Process(const std::string& libraries, const ncclUniqueId& id, int rank, int processes,
             int rounds, bool messages, int out) {
  setenv("HOSTCUDA_PROCESS", std::to_string(rank).c_str(), 1);
  setenv("GROUP_RANK", std::to_string(rank / kGpusPerNode).c_str(), 1);
  setenv("LOCAL_WORLD_SIZE", std::to_string(kGpusPerNode).c_str(), 1);
  void* cuda = Open(libraries + "/libcuda.so.1");
  void* nccl = Open(libraries + "/libnccl.so.2");
  const auto now = Find<unsigned long long()>(cuda, "hostcudaNow");
  CUcontext context;
  CALL(cuda, cuInit, 0);
  CALL(cuda, cuDevicePrimaryCtxRetain, &context, rank % kGpusPerNode);
  CALL(cuda, cuCtxSetCurrent, context);
  CUdeviceptr buffer;
  CALL(cuda, cuMemAlloc, &buffer, 64 << 20);
  ncclComm_t comms[kCommunicators];
  CUstream streams[kCommunicators];
  CALL(nccl, ncclCommInitRank, &comms[0], processes, id, rank);
  const int colors[] = {0, rank / kGpusPerNode, rank % kGpusPerNode, rank % 2};
  for (int i = 0; i < kCommunicators; ++i) {
    if (i > 0) CALL(nccl, ncclCommSplit, comms[0], colors[i], rank, &comms[i], nullptr);
    CALL(cuda, cuStreamCreate, &streams[i], CU_STREAM_NON_BLOCKING);
  }
  const char ready = 1;
  if (write(out, &ready, 1) != 1) _exit(1);
  uint64_t hash = 0xcbf29ce484222325u;
  for (int round = 0; round < rounds; ++round) {
    void* const data = reinterpret_cast<void*>(buffer);
    if (messages) {
      CALL(nccl, ncclGroupStart);
      const auto stream = reinterpret_cast<cudaStream_t>(streams[0]);
      const auto bytes = [&](int from, int to) {
        return size_t{1} << (12 + (from * 7 + to * 3 + round) % 8);
      };
      for (int peer = 0; peer < processes; ++peer) {
        CALL(nccl, ncclSend, data, bytes(rank, peer), ncclInt8, peer, comms[0], stream);
        CALL(nccl, ncclRecv, data, bytes(peer, rank), ncclInt8, peer, comms[0], stream);
      }
      CALL(nccl, ncclGroupEnd);
    }
    for (int i = 0; !messages && i < kCommunicators; ++i) {
      CALL(nccl, ncclAllReduce, data, data, size_t{1} << (18 + (round + 3 * i) % 7), ncclFloat,
           ncclSum, comms[i], reinterpret_cast<cudaStream_t>(streams[i]));
    }
    for (CUstream stream : streams) {
      CALL(cuda, cuStreamSynchronize, stream);
      hash = (hash ^ now()) * 0x100000001b3u;
    }
  }
  // Not _exit: the clock must know that the process is gone.
  exit(write(out, &hash, sizeof hash) == sizeof hash ? 0 : 1);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    fprintf(stderr, "clock_flows LIBRARIES PROCESSES ROUNDS collectives|messages\n");
    return 1;
  }
  const int processes = atoi(argv[2]), rounds = atoi(argv[3]);
  const bool messages = strcmp(argv[4], "messages") == 0;
  setenv("HOSTCUDA_CLOCK", "virtual", 1);
  setenv("HOSTCUDA_MEMORY_LIMIT", "0", 1);
  setenv("HOSTCUDA_SESSION", ("bench-" + std::to_string(getpid())).c_str(), 1);
  setenv("HOSTCUDA_PROCESSES", argv[2], 1);
  ncclUniqueId id;
  CALL(Open(std::string(argv[1]) + "/libnccl.so.2"), ncclGetUniqueId, &id);
  std::vector<int> results;
  for (int rank = 0; rank < processes; ++rank) {
    int out[2];
    if (pipe(out) != 0) return 1;
    if (fork() == 0) Process(argv[1], id, rank, processes, rounds, messages, out[1]);
    close(out[1]);
    results.push_back(out[0]);
  }
  char ready = 0;
  for (const int fd : results) {
    if (read(fd, &ready, 1) != 1) return 1;
  }
  const double start = Seconds();
  uint64_t hash = 0;
  for (const int fd : results) {
    uint64_t one = 0;
    if (read(fd, &one, sizeof one) != sizeof one) return 1;
    hash = hash * 31 + one;
  }
  const double seconds = Seconds() - start;
  int failed = 0, status = 0;
  while (wait(&status) > 0) failed += status != 0;
  const double operations =
      static_cast<double>(processes) * rounds * (messages ? processes : kCommunicators);
  printf(
      "{\"processes\": %d, \"pattern\": \"%s\", \"operations\": %.0f, \"seconds\": %.3f, "
      "\"operations_per_s\": %.0f, \"hash\": \"%016llx\"}\n",
      processes, argv[4], operations, seconds, operations / seconds,
      static_cast<unsigned long long>(hash));
  return failed == 0 ? 0 : 1;
}
