// Which ranks form which parallel groups. Pure functions of the sizes.
//
// Tensor parallelism varies fastest, then data, then the pipeline stage:
//   rank = (stage * data + data_rank) * tensor + tensor_rank
// Within a stage the `token rank` data_rank * tensor + tensor_rank says which tokens a rank holds
// between the tensor-parallel blocks (sequence parallelism). Experts are spread over blocks of
// `expert` consecutive token ranks.
//
//   for (int peer : Members({.data = 2, .tensor = 2}, Group::kTensor, 3)) ...  // 2, 3
#ifndef MOE_TRAINER_LAYOUT_H_
#define MOE_TRAINER_LAYOUT_H_

#include <vector>

namespace moe_trainer {

struct Parallelism {
  int data = 1, tensor = 1, pipeline = 1, expert = 1;
  int interleave = 1;  // chunks of the model a stage holds

  int token_ranks() const { return data * tensor; }
  int world() const { return token_ranks() * pipeline; }
};

struct Place {
  int stage = 0, data = 0, tensor = 0;
  int token_rank = 0;   // within the stage
  int expert_rank = 0;  // within its block of `expert` token ranks
};

Place PlaceOf(const Parallelism& sizes, int rank);
int RankOf(const Parallelism& sizes, int stage, int token_rank);

enum class Group {
  kTensor,      // one data rank of a stage: shards of the same attention weights
  kData,        // the same shard of the attention weights
  kExpert,      // exchanges tokens: together they hold every expert of the stage once
  kExpertData,  // the same experts
  kStage,       // every rank of a stage: replicas of the router, the embedding, the head
};

/// What ncclCommSplit takes.
struct Membership {
  int color = 0, key = 0;
};
Membership MembershipIn(const Parallelism& sizes, Group group, int rank);
int SizeOf(const Parallelism& sizes, Group group);
/// The ranks of `rank`'s group in the order of their keys.
std::vector<int> Members(const Parallelism& sizes, Group group, int rank);

/// Neighbouring stages are linked in a ring; link i joins stage i with the next one. Every link has
/// communicators of its own, so that messages of one never wait for those of another. (The last
/// link, back to stage 0, exists with interleaving only.)
int Links(const Parallelism& sizes);
/// A stage has two links, so communicators are split in rounds in which it has at most one: link i
/// in round i mod 2, the last of an odd ring in a third.
inline constexpr int kLinkRounds = 3;
int LinkRound(const Parallelism& sizes, int link);
/// The link of `stage` in `round`, or -1.
int LinkInRound(const Parallelism& sizes, int stage, int round);
/// Key 0 is the link's first stage. Color -1 (NCCL_SPLIT_NOCOLOR) where it has none.
Membership MembershipInRound(const Parallelism& sizes, int round, int rank);

}  // namespace moe_trainer

#endif  // MOE_TRAINER_LAYOUT_H_
