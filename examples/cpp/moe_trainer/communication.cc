#include "examples/cpp/moe_trainer/communication.h"

#include <numeric>

namespace moe_trainer {

void Channel::AllGather(const Gpu& gpu, const float* sent, float* received, size_t count) const {
  gpu.HostTime(HostCosts::kCommunicate);
  MOE_TRAINER_CHECK(ncclAllGather(sent, received, count, gpu.type(), comm, stream));
}

void Channel::ReduceScatter(const Gpu& gpu, const float* sent, float* received,
                            size_t count) const {
  gpu.HostTime(HostCosts::kCommunicate);
  MOE_TRAINER_CHECK(ncclReduceScatter(sent, received, count, gpu.type(), ncclSum, comm, stream));
}

void Channel::Send(const Gpu& gpu, const float* data, size_t count, int peer) const {
  gpu.HostTime(HostCosts::kCommunicate);
  MOE_TRAINER_CHECK(ncclSend(data, count, gpu.type(), peer, comm, stream));
}

void Channel::Receive(const Gpu& gpu, float* data, size_t count, int peer) const {
  gpu.HostTime(HostCosts::kCommunicate);
  MOE_TRAINER_CHECK(ncclRecv(data, count, gpu.type(), peer, comm, stream));
}

void Channel::AllToAll(const Gpu& gpu, const float* sent, const std::vector<int>& send_rows,
                       float* received, const std::vector<int>& receive_rows, size_t width) const {
  gpu.HostTime(HostCosts::kCommunicate);
  MOE_TRAINER_CHECK(ncclGroupStart());
  size_t send_from = 0, receive_to = 0;
  for (int peer = 0; peer < size; ++peer) {
    const size_t out = static_cast<size_t>(send_rows[static_cast<size_t>(peer)]) * width;
    const size_t in = static_cast<size_t>(receive_rows[static_cast<size_t>(peer)]) * width;
    // Both sides know the counts: nothing is sent where there are no rows.
    if (out > 0)
      MOE_TRAINER_CHECK(
          ncclSend(reinterpret_cast<const char*>(sent) + send_from * gpu.element_bytes(), out,
                   gpu.type(), peer, comm, stream));
    if (in > 0)
      MOE_TRAINER_CHECK(
          ncclRecv(reinterpret_cast<char*>(received) + receive_to * gpu.element_bytes(), in,
                   gpu.type(), peer, comm, stream));
    send_from += out;
    receive_to += in;
  }
  MOE_TRAINER_CHECK(ncclGroupEnd());
}

void Channel::AllToAllCounts(const Gpu& gpu, const int* sent, int* received, size_t count) const {
  gpu.HostTime(HostCosts::kCommunicate);
  MOE_TRAINER_CHECK(ncclGroupStart());
  for (int peer = 0; peer < size; ++peer) {
    const size_t at = static_cast<size_t>(peer) * count;
    MOE_TRAINER_CHECK(ncclSend(sent + at, count, ncclInt32, peer, comm, stream));
    MOE_TRAINER_CHECK(ncclRecv(received + at, count, ncclInt32, peer, comm, stream));
  }
  MOE_TRAINER_CHECK(ncclGroupEnd());
}

Communication::Communication(Gpu& gpu, const Parallelism& sizes, int rank, const ncclUniqueId& id) {
  world_.size = sizes.world();
  world_.rank = rank;
  world_.stream = gpu.NewStream();
  MOE_TRAINER_CHECK(ncclCommInitRank(&world_.comm, world_.size, id, rank));
  for (const Group group :
       {Group::kTensor, Group::kData, Group::kExpert, Group::kExpertData, Group::kStage}) {
    if (SizeOf(sizes, group) > 1) Of(group) = Split(gpu, MembershipIn(sizes, group, rank));
  }
  const int stage = PlaceOf(sizes, rank).stage;
  for (int round = 0; round < kLinkRounds; ++round) {
    bool used = false;
    for (int link = 0; link < Links(sizes); ++link) used |= LinkRound(sizes, link) == round;
    if (!used) continue;
    const bool next = LinkInRound(sizes, stage, round) == stage;
    const Membership membership = MembershipInRound(sizes, round, rank);
    Channel activations = Split(gpu, membership), gradients = Split(gpu, membership);
    if (!activations) continue;
    (next ? activations_out : activations_in) = activations;
    (next ? gradients_in : gradients_out) = gradients;
  }
}

Communication::~Communication() {
  for (const Channel& link : {activations_out, activations_in, gradients_out, gradients_in})
    if (link) ncclCommDestroy(link.comm);
  for (const Channel& group : groups_)
    if (group) ncclCommDestroy(group.comm);
  if (world_) ncclCommDestroy(world_.comm);
}

Channel Communication::Split(Gpu& gpu, const Membership& membership) {
  static_assert(NCCL_SPLIT_NOCOLOR == -1);
  Channel channel;
  MOE_TRAINER_CHECK(
      ncclCommSplit(world_.comm, membership.color, membership.key, &channel.comm, nullptr));
  if (!channel) return channel;
  MOE_TRAINER_CHECK(ncclCommCount(channel.comm, &channel.size));
  MOE_TRAINER_CHECK(ncclCommUserRank(channel.comm, &channel.rank));
  channel.stream = gpu.NewStream();
  return channel;
}

}  // namespace moe_trainer
