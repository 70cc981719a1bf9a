#include "src/graph/testing/synthetic.h"

#include <errno.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <numeric>
#include <vector>

#include "src/trace/writer.h"

namespace prism::graph::testing {
namespace {

using trace::CallRecord;
using trace::CommOp;
using trace::KernelKind;
using trace::ValueSource;
using trace::Writer;

class RankProgram {
 public:
  RankProgram(Writer& w, const SyntheticJob& job, uint32_t rank) : w_(w), job_(job), rank_(rank) {
    compute_ = w_.AddStream(0, 0, "default");
    comm_ = w_.AddStream(0, -1, "nccl");
    w_.ThisThread();
    if (job_.kind != JobKind::kSingle) {
      std::vector<uint32_t> world(job_.world);
      std::iota(world.begin(), world.end(), 0);
      Communicator(kWorld, rank_, world);
    }
    if (job_.kind == JobKind::kHybrid) HybridGroups();
  }

  void Step(uint32_t step) {
    if (step == 0) {
      for (uint32_t i = 0; i < job_.warm_up_kernels; ++i) Launch("warm_up" + std::to_string(i));
    }
    switch (job_.kind) {
      case JobKind::kSingle:
        Layers("forward");
        Layers("backward");
        break;
      case JobKind::kDataParallel:
        Layers("forward");
        for (uint32_t layer = job_.layers; layer-- > 0;) {
          Layer("backward", layer);
          Collective(CommOp::kAllReduce);
        }
        Join();
        break;
      case JobKind::kFullyShardedDP:
        for (uint32_t layer = 0; layer < job_.layers; ++layer) {
          Collective(CommOp::kAllGather);
          Join();
          Layer("forward", layer);
        }
        for (uint32_t layer = job_.layers; layer-- > 0;) {
          Collective(CommOp::kAllGather);
          Join();
          Layer("backward", layer);
          Collective(CommOp::kReduceScatter);
        }
        Join();
        break;
      case JobKind::kPipeline:
        Pipeline();
        break;
      case JobKind::kHybrid:
        Pipeline();
        for (const CommOp op : {CommOp::kReduceScatter, CommOp::kAllGather})
          Collective(op, data_comm_, data_stream_);
        Join(data_stream_);
        Collective(CommOp::kAllReduce);
        Join();
        break;
      case JobKind::kExpertParallel:
        for (uint32_t layer = 0; layer < job_.layers; ++layer) {
          Layer("attention", layer);
          AllToAll();
          Layer("expert", layer);
          AllToAll();
        }
        break;
    }
    for (uint32_t i = 0; i < 2; ++i) Launch("multi_tensor_apply_adam" + std::to_string(i));
    if (job_.synchronize) w_.SyncStream(compute_);
    if (job_.evaluate_every != 0 && (step + 1) % job_.evaluate_every == 0) {
      Layers("evaluate");
      if (job_.kind != JobKind::kSingle) {
        Collective(CommOp::kAllReduce);
        Join();
      }
      Launch("metric");
      if (job_.synchronize) w_.SyncStream(compute_);
    }
  }

 private:
  void Launch(const std::string& name) {
    const uint32_t grid[3] = {132, 1, 1}, block[3] = {256, 1, 1};
    w_.HostCall(host_ns_);
    w_.Launch(compute_, w_.Kernel(KernelKind::kKernel, name, grid, block, 0, 0));
  }

  void Layer(const char* what, uint32_t layer) {
    for (uint32_t k = 0; k < job_.kernels_per_layer; ++k) {
      Launch(std::string(what) + std::to_string(layer) + "_" + std::to_string(k));
    }
  }
  void Layers(const char* what) {
    for (uint32_t layer = 0; layer < job_.layers; ++layer) Layer(what, layer);
  }

  void Communicator(uint32_t number, uint32_t rank, const std::vector<uint32_t>& world_ranks) {
    const auto size = static_cast<uint32_t>(world_ranks.size());
    w_.Communicator({number, size, rank, 0, 64 << 20}, world_ranks.data());
    w_.CommInit(number);
  }

  // Ranks count the tensor-parallel group first, then the data-parallel one, then the stage.
  void HybridGroups() {
    const uint32_t replica = job_.tensor * job_.data;
    const uint32_t tensor = rank_ % job_.tensor, data = rank_ / job_.tensor % job_.data;
    stages_ = job_.world / replica;
    stage_ = rank_ / replica;
    const auto group = [&](uint32_t number, uint32_t first, uint32_t size, uint32_t distance) {
      std::vector<uint32_t> world_ranks;
      for (uint32_t i = 0; i < size; ++i) world_ranks.push_back(first + i * distance);
      Communicator(number, (rank_ - first) / distance, world_ranks);
      return number;
    };
    // A group's number is its first rank's, behind those of the groups before.
    const uint32_t first_tensor = kWorld + 1, first_data = first_tensor + job_.world;
    const uint32_t first_pipeline = first_data + job_.world;
    tensor_comm_ = group(first_tensor + rank_ - tensor, rank_ - tensor, job_.tensor, 1);
    const uint32_t first_of_data = rank_ - data * job_.tensor;
    data_comm_ = group(first_data + first_of_data, first_of_data, job_.data, job_.tensor);
    const uint32_t first_stage = rank_ - stage_ * replica;
    pipeline_comm_ = group(first_pipeline + first_stage, first_stage, stages_, replica);
    tensor_stream_ = w_.AddStream(0, -1, "tensor");
    data_stream_ = w_.AddStream(0, -1, "data");
  }

  uint32_t Call(CommOp op, int32_t peer, uint32_t group, uint32_t comm = kWorld) {
    CallRecord call{};
    call.comm = comm;
    call.op = static_cast<uint32_t>(op);
    call.dtype = 7;  // ncclFloat32
    call.peer = peer;
    call.count = job_.bytes / 4;
    call.bytes = op == CommOp::kRecv ? 0 : job_.bytes;
    call.group = group;
    call.call_site = w_.String("train.py:42 in step");
    return w_.Call(call);
  }

  // What torch does around a communication: the communication stream first waits for the compute
  // stream.
  void Fork(uint32_t stream) {
    w_.HostCall(host_ns_);
    w_.Record(compute_, 1, ++forks_);
    w_.Wait(stream, 1, forks_);
    w_.HostCall(host_ns_);
  }
  void Fork() { Fork(comm_); }
  void Join(uint32_t stream) {
    w_.HostCall(host_ns_);
    w_.Record(stream, 2, ++joins_);
    w_.Wait(compute_, 2, joins_);
  }
  void Join() { Join(comm_); }
  void Collective(CommOp op, uint32_t comm, uint32_t stream) {
    Fork(stream);
    w_.Comm(stream, Call(op, -1, 1, comm), collectives_[comm]++, ValueSource::kExact);
  }
  void Collective(CommOp op) { Collective(op, kWorld, comm_); }
  void AllToAll() {
    Fork();
    const uint32_t group = 2 * job_.world;
    for (uint32_t peer = 0; peer < job_.world; ++peer) {
      w_.Comm(comm_, Call(CommOp::kSend, static_cast<int32_t>(peer), group), exchanges_,
              ValueSource::kExact);
      w_.Comm(comm_, Call(CommOp::kRecv, static_cast<int32_t>(peer), group), exchanges_,
              ValueSource::kExact);
    }
    ++exchanges_;
    Join();
  }

  void Send(int peer, uint64_t* order) {
    Fork();
    w_.Comm(comm_, Call(CommOp::kSend, peer, 1, pipeline_comm_), (*order)++, ValueSource::kExact);
  }
  void Recv(int peer, uint64_t* order) {
    Fork();
    w_.Comm(comm_, Call(CommOp::kRecv, peer, 1, pipeline_comm_), (*order)++, ValueSource::kExact);
    Join();
  }

  // A stage's share of a pass.
  void Pass(const char* what) {
    if (job_.kind != JobKind::kHybrid) return Layer(what, 0);
    for (uint32_t layer = 0; layer < job_.layers; ++layer) {
      Collective(CommOp::kAllGather, tensor_comm_, tensor_stream_);
      Join(tensor_stream_);
      Layer(what, layer);
      Collective(CommOp::kReduceScatter, tensor_comm_, tensor_stream_);
      Join(tensor_stream_);
    }
  }
  int self() const { return static_cast<int>(stage_); }
  int last() const { return static_cast<int>(stages_) - 1; }
  void Forward() {
    if (self() > 0) Recv(self() - 1, &from_previous_);
    Pass("forward");
    if (self() < last()) Send(self() + 1, &to_next_);
  }
  void Backward() {
    if (self() < last()) Recv(self() + 1, &from_next_);
    Pass("backward");
    if (self() > 0) Send(self() - 1, &to_previous_);
  }
  // The steady phase exchanges in one group, as every implementation does: separate sends would
  // wait for each other.
  void Exchange(int peer, uint64_t* sent, uint64_t* received) {
    Fork();
    const uint32_t group = received != nullptr ? 2 : 1;
    w_.Comm(comm_, Call(CommOp::kSend, peer, group, pipeline_comm_), (*sent)++,
            ValueSource::kExact);
    if (received != nullptr) {
      w_.Comm(comm_, Call(CommOp::kRecv, peer, group, pipeline_comm_), (*received)++,
              ValueSource::kExact);
    }
    Join();
  }
  void ForwardBackwardPair(bool receive_next) {
    Pass("forward");
    if (self() < last()) Exchange(self() + 1, &to_next_, &from_next_);
    Pass("backward");
    if (self() > 0) {
      Exchange(self() - 1, &to_previous_, receive_next ? &from_previous_ : nullptr);
    }
  }
  void Pipeline() {
    const uint32_t m = job_.micro_batches;
    const uint32_t warm_up = std::min(m, stages_ - 1 - stage_);
    for (uint32_t i = 0; i < warm_up; ++i) Forward();
    const uint32_t steady = m - warm_up;
    if (steady > 0 && stage_ > 0) Recv(self() - 1, &from_previous_);
    for (uint32_t i = 0; i < steady; ++i) ForwardBackwardPair(i + 1 < steady);
    for (uint32_t i = 0; i < warm_up; ++i) Backward();
    Join();
  }

  static constexpr uint32_t kWorld = 1;  // number of the communicator of all

  Writer& w_;
  const SyntheticJob& job_;
  const uint32_t rank_;
  const uint64_t host_ns_ = job_.host_ns_per_call + uint64_t{job_.host_ns_of_rank} * rank_;
  uint32_t stage_ = rank_, stages_ = job_.world;
  uint32_t compute_ = 0, comm_ = 0, tensor_stream_ = 0, data_stream_ = 0;
  uint32_t tensor_comm_ = 0, data_comm_ = 0, pipeline_comm_ = kWorld;
  std::map<uint32_t, uint64_t> collectives_;  // of each communicator
  uint64_t forks_ = 0, joins_ = 0, exchanges_ = 0;
  uint64_t to_next_ = 0, from_next_ = 0, to_previous_ = 0, from_previous_ = 0;
};

}  // namespace

int WriteJob(const std::string& directory, const SyntheticJob& job) {
  mkdir(directory.c_str(), 0755);
  mkdir((directory + "/trace").c_str(), 0755);
  for (uint32_t rank = 0; rank < job.world; ++rank) {
    char name[32];
    std::snprintf(name, sizeof(name), "/trace/rank-%05u.prt", rank);
    Writer w;
    if (const int error = w.Open((directory + name).c_str(), rank, job.world); error != 0)
      return error;
    RankProgram program(w, job, rank);
    for (uint32_t step = 0; step < job.steps; ++step) program.Step(step);
    w.Meta(R"({"command":["python","train.py"],"fidelity_gaps":["cuMulticastCreate"]})");
    if (job.seal) {
      if (const int error = w.Close(0); error != 0) return error;
    }
  }
  return 0;
}

std::vector<int64_t> WriteRecordedJob(const std::string& directory, const RecordedJob& job) {
  mkdir(directory.c_str(), 0755);
  mkdir((directory + "/trace").c_str(), 0755);
  // When everything happens.
  std::vector<int64_t> host(job.world, 0), gpu(job.world, 0), ends;
  std::vector<std::vector<int64_t>> measured(job.world);
  const auto host_ns = [&](uint32_t rank, uint32_t step) {
    return job.host_ns(rank, step) + (rank == job.delayed_rank ? job.delay_ns : 0);
  };
  for (uint32_t step = 0; step < job.steps; ++step) {
    int64_t met = 0, end = 0;
    for (uint32_t r = 0; r < job.world; ++r) {
      host[r] += host_ns(r, step);
      gpu[r] = std::max(gpu[r], host[r]) + job.span_ns(r, step);
      met = std::max(met, gpu[r]);
    }
    for (uint32_t r = 0; r < job.world; ++r) {
      const int64_t communication = met + job.transfer_ns(step) - gpu[r];
      measured[r].insert(measured[r].end(),
                         {job.span_ns(r, step), communication, RecordedJob::kOptimizerNs, -1});
      gpu[r] += communication + RecordedJob::kOptimizerNs;
      if (job.synchronize) host[r] = gpu[r];
      end = std::max(end, gpu[r]);
    }
    ends.push_back(end);
  }
  const uint32_t grid[3] = {132, 1, 1}, block[3] = {256, 1, 1};
  std::vector<uint32_t> world(job.world);
  std::iota(world.begin(), world.end(), 0);
  for (uint32_t rank = 0; rank < job.world; ++rank) {
    char name[32];
    std::snprintf(name, sizeof(name), "/trace/rank-%05u.prt", rank);
    Writer w;
    if (w.Open((directory + name).c_str(), rank, job.world) != 0) return {};
    w.SetHostTimeSource(trace::TimeSource::kMeasured);
    const uint32_t stream = w.AddStream(0, 0, "default");
    w.Communicator({1, job.world, rank, 0, 0}, world.data());
    CallRecord call{};
    call.comm = 1;
    call.dtype = 7;  // ncclFloat32
    call.peer = -1;
    call.count = 1 << 20;
    call.group = 1;
    for (uint32_t step = 0; step < job.steps; ++step) {
      w.HostCall(static_cast<uint64_t>(host_ns(rank, step)));
      w.Launch(stream, w.Kernel(KernelKind::kKernel, "forward", grid, block, 0, 0));
      w.Comm(stream, w.Call(call), step, ValueSource::kExact);
      w.Launch(stream, w.Kernel(KernelKind::kKernel, "adam", grid, block, 0, 0));
      w.Record(stream, 1, step + 1);
      if (job.synchronize) w.SyncStream(stream);
    }
    w.Flush();
    w.Timing(stream, 0, measured[rank].data(), measured[rank].size());
    if (w.Close(0) != 0) return {};
  }
  return ends;
}

}  // namespace prism::graph::testing
