#include "examples/cpp/moe_trainer/trainer.h"

#include <utility>

namespace moe_trainer {
namespace {

size_t Elements(int rows, int columns) {
  return static_cast<size_t>(rows) * static_cast<size_t>(columns);
}

}  // namespace

Trainer::Trainer(Gpu& gpu, Communication& communication, int rank)
    : gpu_(gpu),
      communication_(communication),
      model_(gpu.options().model),
      sizes_(gpu.options().sizes),
      place_(PlaceOf(sizes_, rank)),
      optimizer_(gpu, communication, rank),
      layers_(gpu, communication, rank),
      schedule_(PipelineSchedule({sizes_.pipeline, sizes_.interleave, model_.micro_batches},
                                 place_.stage)) {
  const size_t tokens = Elements(model_.micro_batches, layers_.rows());
  void* pinned = nullptr;
  MOE_TRAINER_CHECK(cudaMallocHost(&pinned, 2 * tokens * sizeof(int)));
  host_tokens_ = static_cast<int*>(pinned);
  MOE_TRAINER_CHECK(cudaMallocHost(&pinned, sizeof(float)));
  host_loss_ = static_cast<float*>(pinned);
  tokens_ = gpu.Allocate(tokens * sizeof(int));
  targets_ = gpu.Allocate(tokens * sizeof(int));
  loss_ = gpu.Allocate(sizeof(float));
  MOE_TRAINER_CHECK(cudaEventCreate(&start_));
  MOE_TRAINER_CHECK(cudaEventCreate(&end_));
}

Trainer::~Trainer() {
  cudaEventDestroy(start_);
  cudaEventDestroy(end_);
  cudaFreeHost(host_tokens_);
  cudaFreeHost(host_loss_);
}

bool Trainer::Last(int chunk) const {
  return place_.stage == sizes_.pipeline - 1 && chunk == sizes_.interleave - 1;
}

size_t Trainer::BoundaryElements() const { return Elements(layers_.rows(), model_.hidden); }

LayerWeights Trainer::WeightsOf(const Unit& unit) const {
  const auto offset = [&](Domain domain, size_t shard) {
    return unit.shards[static_cast<int>(domain)][shard].offset;
  };
  const size_t experts = unit.shards[static_cast<int>(Domain::kExperts)].size() / 2;
  const size_t qkv = offset(Domain::kDense, 0), projection = offset(Domain::kDense, 1),
               router = offset(Domain::kReplicated, 0), up = offset(Domain::kExperts, 0),
               down = offset(Domain::kExperts, experts);
  return {.qkv = optimizer_.ParameterAt(Domain::kDense, qkv),
          .projection = optimizer_.ParameterAt(Domain::kDense, projection),
          .router = optimizer_.ParameterAt(Domain::kReplicated, router),
          .expert_up = optimizer_.ParameterAt(Domain::kExperts, up),
          .expert_down = optimizer_.ParameterAt(Domain::kExperts, down),
          .qkv_gradient = optimizer_.GradientAt(Domain::kDense, qkv),
          .projection_gradient = optimizer_.GradientAt(Domain::kDense, projection),
          .router_gradient = optimizer_.GradientAt(Domain::kReplicated, router),
          .expert_up_gradient = optimizer_.GradientAt(Domain::kExperts, up),
          .expert_down_gradient = optimizer_.GradientAt(Domain::kExperts, down)};
}

void Trainer::LoadTokens(int step) {
  const int rows = layers_.rows();
  const size_t all = Elements(model_.micro_batches, rows);
  for (int m = 0; m < model_.micro_batches; ++m) {
    for (int i = 0; i < rows; ++i) {
      const int token =
          TokenAt(model_, step, place_.data * model_.micro_batches + m, place_.tensor * rows + i);
      host_tokens_[Elements(m, rows) + static_cast<size_t>(i)] = token;
      host_tokens_[all + Elements(m, rows) + static_cast<size_t>(i)] = TargetOf(model_, token);
    }
  }
  gpu_.HostTime(HostCosts::kStep);
  MOE_TRAINER_CHECK(cudaMemcpyAsync(tokens_.data(), host_tokens_, all * sizeof(int),
                                    cudaMemcpyHostToDevice, gpu_.compute()));
  MOE_TRAINER_CHECK(cudaMemcpyAsync(targets_.data(), host_tokens_ + all, all * sizeof(int),
                                    cudaMemcpyHostToDevice, gpu_.compute()));
}

const Channel& Trainer::LinkInto(const Pass& pass) {
  return pass.backward ? communication_.gradients_in : communication_.activations_in;
}

Buffer Trainer::Receive(const Pass& pass) {
  if (pass.backward ? Last(pass.chunk) : First(pass.chunk)) return {};
  const Channel& link = LinkInto(pass);
  Buffer data = gpu_.Elements(BoundaryElements());
  gpu_.Order(gpu_.compute(), link.stream);  // whose memory it was
  link.Receive(gpu_, data.data(), BoundaryElements(), Communication::Peer(link));
  return data;
}

void Trainer::Send(const Channel& link, const Buffer& data) {
  gpu_.Order(gpu_.compute(), link.stream);
  link.Send(gpu_, data.data(), BoundaryElements(), Communication::Peer(link));
}

StepResult Trainer::Step(int step) {
  gpu_.occasion = {.step = step};
  MOE_TRAINER_CHECK(cudaEventRecord(start_, gpu_.compute()));
  LoadTokens(step);
  optimizer_.ZeroGradients();
  MOE_TRAINER_CHECK(cudaMemsetAsync(loss_.data(), 0, sizeof(float), gpu_.compute()));
  Buffer next = Receive(schedule_[0]);
  for (size_t i = 0; i < schedule_.size(); ++i) {
    const Pass& pass = schedule_[i];
    gpu_.HostTime(HostCosts::kPass);
    Buffer input = std::exchange(next, {});
    if (input) gpu_.Order(LinkInto(pass).stream, gpu_.compute());
    // The next pass's input arrives while this one computes.
    if (i + 1 < schedule_.size()) next = Receive(schedule_[i + 1]);
    gpu_.occasion.micro_batch = pass.micro_batch;
    gpu_.occasion.backward = pass.backward;
    pass.backward ? Backward(pass, std::move(input)) : Forward(pass, std::move(input));
  }
  gpu_.occasion = {.step = step};
  optimizer_.Update();
  // Nothing else tells that the last gradients have left.
  if (communication_.gradients_out) gpu_.Order(communication_.gradients_out.stream, gpu_.compute());
  leaving_.clear();
  const Channel& world = communication_.world();
  gpu_.Order(gpu_.compute(), world.stream);
  MOE_TRAINER_CHECK(
      ncclAllReduce(loss_.data(), loss_.data(), 1, ncclFloat32, ncclSum, world.comm, world.stream));
  gpu_.Order(world.stream, gpu_.compute());
  MOE_TRAINER_CHECK(cudaMemcpyAsync(host_loss_, loss_.data(), sizeof(float), cudaMemcpyDeviceToHost,
                                    gpu_.compute()));
  MOE_TRAINER_CHECK(cudaEventRecord(end_, gpu_.compute()));
  MOE_TRAINER_CHECK(cudaStreamSynchronize(gpu_.compute()));
  float milliseconds = 0;
  MOE_TRAINER_CHECK(cudaEventElapsedTime(&milliseconds, start_, end_));
  return {.milliseconds = milliseconds, .loss = *host_loss_, .end_ns = HostNow()};
}

void Trainer::Forward(const Pass& pass, Buffer input) {
  const auto& units = optimizer_.layout().chunks[static_cast<size_t>(pass.chunk)];
  const int rows = layers_.rows(), hidden = model_.hidden, classes = model_.vocabulary;
  const size_t first_token = Elements(pass.micro_batch, rows);
  InFlight& flight = in_flight_[{pass.chunk, pass.micro_batch}];
  flight.layers.resize(units.size());
  Buffer x = std::move(input);
  for (size_t u = 0; u < units.size(); ++u) {
    const Unit& unit = units[u];
    gpu_.occasion.layer = unit.kind == Unit::Kind::kLayer ? unit.layer : -1;
    if (pass.micro_batch == 0) optimizer_.AwaitParameters(pass.chunk, static_cast<int>(u));
    const auto parameter = [&] {
      const auto& shards = unit.shards[static_cast<int>(Domain::kReplicated)];
      return optimizer_.ParameterAt(Domain::kReplicated, shards[0].offset);
    };
    switch (unit.kind) {
      case Unit::Kind::kEmbedding: {
        x = gpu_.Elements(BoundaryElements());
        const double values = static_cast<double>(BoundaryElements());
        gpu_.Launch(kEmbed, values, gpu_.Moved(2 * values), x.data(), parameter(),
                    tokens_.integers() + first_token, rows, hidden);
        break;
      }
      case Unit::Kind::kLayer:
        x = layers_.Forward(WeightsOf(unit), unit.layer, std::move(x), &flight.layers[u]);
        break;
      case Unit::Kind::kHead: {
        const double values = 1.0 * rows * classes;
        flight.logits = gpu_.Elements(Elements(rows, classes));
        layers_.Gemm(flight.logits.data(), x.data(), parameter(), rows, classes, hidden, 0);
        const float scale =
            1.0f / static_cast<float>(sizes_.data * model_.micro_batches * model_.sequence);
        gpu_.Launch(kCrossEntropy, values, gpu_.Moved(2 * values), loss_.data(),
                    flight.logits.data(), targets_.integers() + first_token, rows, classes, scale);
        break;
      }
    }
  }
  flight.output = std::move(x);
  if (!Last(pass.chunk)) Send(communication_.activations_out, flight.output);
}

void Trainer::Backward(const Pass& pass, Buffer gradient) {
  const auto& units = optimizer_.layout().chunks[static_cast<size_t>(pass.chunk)];
  const int rows = layers_.rows(), hidden = model_.hidden, classes = model_.vocabulary;
  const auto found = in_flight_.find({pass.chunk, pass.micro_batch});
  InFlight flight = std::move(found->second);
  in_flight_.erase(found);
  // A gradient that came shows that the output has arrived: its memory is free.
  if (!Last(pass.chunk)) flight.output.Reset();
  for (size_t u = units.size(); u-- > 0;) {
    const Unit& unit = units[u];
    gpu_.occasion.layer = unit.kind == Unit::Kind::kLayer ? unit.layer : -1;
    const size_t offset = unit.shards[static_cast<int>(Domain::kReplicated)][0].offset;
    switch (unit.kind) {
      case Unit::Kind::kHead:
        layers_.Gemm(optimizer_.GradientAt(Domain::kReplicated, offset), flight.output.data(),
                     flight.logits.data(), hidden, classes, rows, kTransposeA | kAccumulate);
        gradient = gpu_.Elements(BoundaryElements());
        layers_.Gemm(gradient.data(), flight.logits.data(),
                     optimizer_.ParameterAt(Domain::kReplicated, offset), rows, hidden, classes,
                     kTransposeB);
        break;
      case Unit::Kind::kLayer:
        gradient = layers_.Backward(WeightsOf(unit), std::move(gradient), &flight.layers[u]);
        break;
      case Unit::Kind::kEmbedding: {
        const double values = static_cast<double>(BoundaryElements());
        gpu_.Launch(kEmbedGradient, values, gpu_.Moved(3 * values),
                    optimizer_.GradientAt(Domain::kReplicated, offset), gradient.data(),
                    tokens_.integers() + Elements(pass.micro_batch, rows), rows, hidden);
        break;
      }
    }
    if (pass.micro_batch == model_.micro_batches - 1)
      optimizer_.UnitDone(pass.chunk, static_cast<int>(u));
  }
  if (First(pass.chunk)) return;
  Send(communication_.gradients_out, gradient);
  leaving_.push_back(std::move(gradient));
}

}  // namespace moe_trainer
