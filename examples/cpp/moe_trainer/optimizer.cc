#include "examples/cpp/moe_trainer/optimizer.h"

#include <stdexcept>

namespace moe_trainer {

Optimizer::Optimizer(Gpu& gpu, Communication& communication, int rank)
    : gpu_(gpu), communication_(communication) {
  const Options& options = gpu.options();
  layout_ = LayOutParameters(
      options.model, options.sizes, PlaceOf(options.sizes, rank),
      static_cast<size_t>(options.bucket_mib * (1 << 20)) / gpu.element_bytes() + 1);
  for (int domain = 0; domain < kDomains; ++domain) {
    const size_t elements = layout_.elements[domain];
    if (elements == 0) continue;
    const auto ranks =
        static_cast<size_t>(SizeOf(options.sizes, GroupOf(static_cast<Domain>(domain))));
    Storage& storage = storages_[domain];
    storage.parameters = gpu.Elements(elements);
    storage.gradients = gpu.Elements(elements);
    storage.velocity = gpu.Allocate(elements / ranks * sizeof(float));
    if (gpu.element_bytes() != sizeof(float))
      storage.master = gpu.Allocate(elements / ranks * sizeof(float));
    MOE_TRAINER_CHECK(cudaMemsetAsync(storage.velocity.data(), 0, elements / ranks * sizeof(float),
                                      gpu.compute()));
    MOE_TRAINER_CHECK(cudaMemsetAsync(storage.parameters.data(), 0, elements * gpu.element_bytes(),
                                      gpu.compute()));
  }
  for (auto* events : {&reduced_, &gathered_}) {
    events->resize(layout_.buckets.size());
    for (cudaEvent_t& event : *events)
      MOE_TRAINER_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  }
  if (options.real) Initialize();
}

Optimizer::~Optimizer() {
  for (const auto* events : {&reduced_, &gathered_})
    for (cudaEvent_t event : *events) cudaEventDestroy(event);
}

void Optimizer::Initialize() {
  MOE_TRAINER_CHECK(cudaStreamSynchronize(gpu_.compute()));
  for (const auto& units : layout_.chunks) {
    for (const Unit& unit : units) {
      for (int domain = 0; domain < kDomains; ++domain) {
        for (const Shard& shard : unit.shards[domain]) {
          std::vector<float> values;
          for (int i = 0; i < shard.rows; ++i)
            for (int j = 0; j < shard.columns; ++j)
              values.push_back(InitialValue(gpu_.options().model, shard.matrix, shard.row + i,
                                            shard.column + j));
          MOE_TRAINER_CHECK(cudaMemcpy(ParameterAt(static_cast<Domain>(domain), shard.offset),
                                       values.data(), values.size() * sizeof(float),
                                       cudaMemcpyHostToDevice));
        }
      }
    }
  }
}

float* Optimizer::ParameterAt(Domain domain, size_t offset) const {
  return gpu_.At(Of(domain).parameters.data(), offset);
}

float* Optimizer::GradientAt(Domain domain, size_t offset) const {
  return gpu_.At(Of(domain).gradients.data(), offset);
}

void Optimizer::ZeroGradients() {
  for (int domain = 0; domain < kDomains; ++domain) {
    if (layout_.elements[domain] == 0) continue;
    MOE_TRAINER_CHECK(cudaMemsetAsync(storages_[domain].gradients.data(), 0,
                                      layout_.elements[domain] * gpu_.element_bytes(),
                                      gpu_.compute()));
  }
}

void Optimizer::UnitDone(int chunk, int unit) {
  for (size_t i = 0; i < layout_.buckets.size(); ++i) {
    const Bucket& bucket = layout_.buckets[i];
    if (bucket.chunk != chunk || bucket.first_unit != unit) continue;
    const Channel& channel = ChannelOf(bucket);
    if (!channel) continue;
    const size_t part = bucket.elements / static_cast<size_t>(channel.size);
    float* gradients = GradientAt(bucket.domain, bucket.begin);
    gpu_.Order(gpu_.compute(), channel.stream);
    channel.ReduceScatter(gpu_, gradients,
                          gpu_.At(gradients, part * static_cast<size_t>(channel.rank)), part);
    MOE_TRAINER_CHECK(cudaEventRecord(reduced_[i], channel.stream));
  }
}

void Optimizer::Update() {
  const Model& model = gpu_.options().model;
  size_t updated[kDomains] = {0, 0, 0};  // elements of this rank's parts
  for (size_t i = 0; i < layout_.buckets.size(); ++i) {
    const Bucket& bucket = layout_.buckets[i];
    const Channel& channel = ChannelOf(bucket);
    const size_t part = bucket.elements / static_cast<size_t>(channel.size);
    const size_t own = bucket.begin + part * static_cast<size_t>(channel.rank);
    size_t& state = updated[static_cast<int>(bucket.domain)];
    if (channel) MOE_TRAINER_CHECK(cudaStreamWaitEvent(gpu_.compute(), reduced_[i], 0));
    const double count = static_cast<double>(part);
    const double bytes = 2.0 * static_cast<double>(gpu_.element_bytes()) +
                         (gpu_.element_bytes() == sizeof(float) ? 8 : 16);
    gpu_.Launch(kSgd, count, Work{4 * count, bytes * count}, ParameterAt(bucket.domain, own),
                Of(bucket.domain).velocity.data() + state, GradientAt(bucket.domain, own),
                static_cast<int64_t>(part), model.learning_rate, model.momentum);
    state += part;
    if (!channel) continue;
    gpu_.Order(gpu_.compute(), channel.stream);
    channel.AllGather(gpu_, ParameterAt(bucket.domain, own),
                      ParameterAt(bucket.domain, bucket.begin), part);
    MOE_TRAINER_CHECK(cudaEventRecord(gathered_[i], channel.stream));
  }
}

void Optimizer::AwaitParameters(int chunk, int unit) {
  for (size_t i = 0; i < layout_.buckets.size(); ++i) {
    const Bucket& bucket = layout_.buckets[i];
    if (bucket.chunk == chunk && bucket.first_unit <= unit && unit <= bucket.last_unit &&
        ChannelOf(bucket))
      MOE_TRAINER_CHECK(cudaStreamWaitEvent(gpu_.compute(), gathered_[i], 0));
  }
}

std::vector<float> Optimizer::Read(Domain domain, const Shard& shard) const {
  std::vector<float> values(shard.elements());
  MOE_TRAINER_CHECK(cudaMemcpy(values.data(), ParameterAt(domain, shard.offset),
                               values.size() * sizeof(float), cudaMemcpyDeviceToHost));
  return values;
}

}  // namespace moe_trainer
