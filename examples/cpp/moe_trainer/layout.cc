#include "examples/cpp/moe_trainer/layout.h"

#include <algorithm>

namespace moe_trainer {

Place PlaceOf(const Parallelism& sizes, int rank) {
  Place place;
  place.stage = rank / sizes.token_ranks();
  place.token_rank = rank % sizes.token_ranks();
  place.data = place.token_rank / sizes.tensor;
  place.tensor = place.token_rank % sizes.tensor;
  place.expert_rank = place.token_rank % sizes.expert;
  return place;
}

int RankOf(const Parallelism& sizes, int stage, int token_rank) {
  return stage * sizes.token_ranks() + token_rank;
}

Membership MembershipIn(const Parallelism& sizes, Group group, int rank) {
  const Place place = PlaceOf(sizes, rank);
  const int block = place.token_rank / sizes.expert;
  switch (group) {
    case Group::kTensor:
      return {place.stage * sizes.data + place.data, place.tensor};
    case Group::kData:
      return {place.stage * sizes.tensor + place.tensor, place.data};
    case Group::kExpert:
      return {place.stage * (sizes.token_ranks() / sizes.expert) + block, place.expert_rank};
    case Group::kExpertData:
      return {place.stage * sizes.expert + place.expert_rank, block};
    case Group::kStage:
      return {place.stage, place.token_rank};
  }
  return {};
}

int SizeOf(const Parallelism& sizes, Group group) {
  switch (group) {
    case Group::kTensor:
      return sizes.tensor;
    case Group::kData:
      return sizes.data;
    case Group::kExpert:
      return sizes.expert;
    case Group::kExpertData:
      return sizes.token_ranks() / sizes.expert;
    case Group::kStage:
      return sizes.token_ranks();
  }
  return 1;
}

std::vector<int> Members(const Parallelism& sizes, Group group, int rank) {
  const int color = MembershipIn(sizes, group, rank).color;
  std::vector<int> members;
  for (int other = 0; other < sizes.world(); ++other)
    if (MembershipIn(sizes, group, other).color == color) members.push_back(other);
  std::sort(members.begin(), members.end(), [&](int a, int b) {
    return MembershipIn(sizes, group, a).key < MembershipIn(sizes, group, b).key;
  });
  return members;
}

int Links(const Parallelism& sizes) {
  if (sizes.pipeline == 1) return 0;
  return sizes.interleave > 1 ? sizes.pipeline : sizes.pipeline - 1;
}

int LinkRound(const Parallelism& sizes, int link) {
  return link == sizes.pipeline - 1 && sizes.pipeline % 2 == 1 ? 2 : link % 2;
}

int LinkInRound(const Parallelism& sizes, int stage, int round) {
  for (const int link : {stage, (stage + sizes.pipeline - 1) % sizes.pipeline})
    if (link < Links(sizes) && LinkRound(sizes, link) == round) return link;
  return -1;
}

Membership MembershipInRound(const Parallelism& sizes, int round, int rank) {
  const Place place = PlaceOf(sizes, rank);
  const int link = LinkInRound(sizes, place.stage, round);
  if (link < 0) return {-1, 0};
  return {link * sizes.token_ranks() + place.token_rank, place.stage == link ? 0 : 1};
}

}  // namespace moe_trainer
