// examples/faults.py in C++, on the CUDA runtime and NCCL alone: the same steps, mistakes and
// options. What the GPU would compute is left out: memory is copied instead.
//
//   torchrun --no-python --nproc-per-node 4 faults --fault count --fault-rank 2 --fault-step 3
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <stdexcept>
#include <string>

#include "CLI/CLI.hpp"
#include "examples/cpp/moe_trainer/processes.h"

namespace {

constexpr size_t kFeatures = 1000;
constexpr size_t kHalo = size_t{2} << 20;  // elements: more than NCCL's FIFOs hold
constexpr int kEvents = 300;

void Check(cudaError_t error, const char* call) {
  if (error != cudaSuccess)
    throw std::runtime_error(std::string(call) + ": " + cudaGetErrorString(error));
}
void Check(ncclResult_t result, const char* call) {
  if (result != ncclSuccess)
    throw std::runtime_error(std::string(call) + ": " + ncclGetErrorString(result));
}
#define CHECK(call) Check((call), #call)

struct Options {
  std::string fault;
  int fault_rank = 1, fault_step = 2, steps = 5;
};

class Trainer {
 public:
  Trainer(const Options& options, const moe_trainer::Identity& identity)
      : options_(options), rank_(identity.rank), world_(identity.world) {
    CHECK(cudaSetDevice(identity.local_rank));
    ncclUniqueId id;
    const std::string bytes =
        moe_trainer::FromRankZero(identity, "faults/id", std::chrono::minutes(5), [&] {
          CHECK(ncclGetUniqueId(&id));
          return std::string(id.internal, sizeof id.internal);
        });
    memcpy(id.internal, bytes.data(), sizeof id.internal);
    CHECK(ncclCommInitRank(&job_, world_, id, rank_));
    CHECK(ncclCommSplit(job_, 0, rank_, &metrics_, nullptr));
    const int pair = partner() < 0 ? NCCL_SPLIT_NOCOLOR : rank_ / 2;
    CHECK(ncclCommSplit(job_, pair, rank_, &pair_, nullptr));
    CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&second_stream_, cudaStreamNonBlocking));
    CHECK(cudaEventCreate(&event_));
    for (float** buffer : {&weight_, &gradient_, &sent_, &received_})
      CHECK(cudaMalloc(reinterpret_cast<void**>(buffer), (kHalo + 1) * sizeof(float)));
  }

  void Step(int step) {
    const bool faulty = rank_ == options_.fault_rank && !options_.fault.empty();
    fault_ = faulty && step == options_.fault_step ? options_.fault : "";
    if (!fault_.empty()) {
      printf("step %d: rank %d makes the mistake: %s\n", step, rank_, fault_.c_str());
      fflush(stdout);
    }
    const bool slow = faulty && step >= options_.fault_step;
    const int root = fault_ == "root" ? rank_ : 0;
    CHECK(ncclBroadcast(weight_, weight_, kFeatures, ncclFloat, root, job_, stream_));
    if (slow && options_.fault == "straggler") Profile();
    Compute(slow && options_.fault == "imbalance" ? 40 : 2);
    if (options_.fault == "overlap") {
      AverageBoth(fault_ == "overlap");
    } else if (fault_ == "order") {
      AverageLoss();
      Average();
    } else {
      fault_.empty() ? Average() : AverageFaulty();
      AverageLoss();
    }
    Exchange();
    if (rank_ == 0) {
      CHECK(cudaStreamSynchronize(stream_));
      printf("step %d\n", step);
      fflush(stdout);
    }
  }

  void Finish() {
    CHECK(cudaDeviceSynchronize());
    for (ncclComm_t comm : {pair_, metrics_, job_}) {
      if (comm != nullptr) CHECK(ncclCommDestroy(comm));
    }
  }

 private:
  /// Who this rank exchanges with; -1: nobody, the last of an odd number.
  int partner() const { return (rank_ ^ 1) < world_ ? rank_ ^ 1 : -1; }

  [[gnu::noinline]] void Profile() {
    for (int i = 0; i < kEvents; ++i) CHECK(cudaEventRecord(event_, stream_));
  }

  [[gnu::noinline]] void Compute(int passes) {
    for (int pass = 0; pass < passes; ++pass)
      CHECK(cudaMemcpyAsync(received_, sent_, kHalo * sizeof(float), cudaMemcpyDeviceToDevice,
                            stream_));
  }

  [[gnu::noinline]] void Average(size_t count = kFeatures, ncclDataType_t type = ncclFloat) {
    CHECK(ncclAllReduce(gradient_, gradient_, count, type, ncclSum, job_, stream_));
  }

  [[gnu::noinline]] void AverageLoss() {
    CHECK(ncclAllReduce(weight_, weight_, 1, ncclFloat, ncclSum, metrics_, stream_));
  }

  /// Makes the mistake in the place of Average().
  [[gnu::noinline]] void AverageFaulty() {
    if (fault_ == "count") return Average(kFeatures + 1);
    if (fault_ == "type") return Average(kFeatures, ncclHalf);
    if (fault_ == "op") {
      CHECK(ncclAllGather(gradient_, received_, kFeatures, ncclFloat, job_, stream_));
      return;
    }
    if (fault_ == "missing") return;
    // It ends, or is stuck, with the steps before behind it.
    CHECK(cudaStreamSynchronize(stream_));
    if (fault_ == "absent") {
      std::mutex mutex;
      std::unique_lock lock(mutex);
      std::condition_variable batch;
      batch.wait(lock, [] { return false; });
    }
    if (fault_ == "exit") exit(0);
    if (fault_ == "raise")
      throw std::runtime_error("rank " + std::to_string(rank_) + " met a bad sample");
    if (fault_ == "kill") raise(SIGKILL);
    Average();
  }

  /// Side by side: each on a stream of its own.
  [[gnu::noinline]] void AverageBoth(bool loss_first) {
    const auto average_loss = [&] {
      CHECK(ncclAllReduce(weight_, weight_, 1, ncclFloat, ncclSum, metrics_, second_stream_));
    };
    if (loss_first) average_loss();
    Average();
    if (!loss_first) average_loss();
    CHECK(cudaStreamSynchronize(second_stream_));
  }

  void Send(size_t count) {
    CHECK(ncclSend(sent_, count, ncclFloat, 1 - rank_ % 2, pair_, stream_));
  }
  void Receive() { CHECK(ncclRecv(received_, kHalo, ncclFloat, 1 - rank_ % 2, pair_, stream_)); }

  /// The even rank of a pair sends first, the odd one receives first.
  [[gnu::noinline]] void Exchange() {
    if (partner() < 0) return;
    const size_t count = fault_ == "message" ? kHalo + 1 : kHalo;
    const bool sends_first = rank_ % 2 == (fault_ == "cycle" ? 1 : 0);
    if (sends_first) Send(count);
    Receive();
    if (!sends_first) Send(count);
  }

  const Options options_;
  const int rank_, world_;
  std::string fault_;  // of this rank in this step
  ncclComm_t job_ = nullptr, metrics_ = nullptr, pair_ = nullptr;
  cudaStream_t stream_ = nullptr, second_stream_ = nullptr;
  cudaEvent_t event_ = nullptr;
  float *weight_ = nullptr, *gradient_ = nullptr, *sent_ = nullptr, *received_ = nullptr;
};

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Shows mistakes that bring a distributed job down");
  app.add_option("--fault", options.fault)
      ->check(
          CLI::IsMember({"count", "type", "root", "op", "message", "missing", "absent", "order",
                         "overlap", "cycle", "exit", "raise", "kill", "straggler", "imbalance"}));
  app.add_option("--fault-rank", options.fault_rank)->capture_default_str();
  app.add_option("--fault-step", options.fault_step)->capture_default_str();
  app.add_option("--steps", options.steps)->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    Trainer trainer(options, moe_trainer::IdentityFromEnvironment());
    for (int step = 0; step < options.steps; ++step) trainer.Step(step);
    trainer.Finish();
  } catch (const std::exception& error) {
    fprintf(stderr, "faults: %s\n", error.what());
    // Not through destructors: they would wait for peers that may wait for this rank.
    fflush(stdout);
    _Exit(1);
  }
  return 0;
}
