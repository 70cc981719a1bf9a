// Parameters of a rank in a file: what --save writes.
//
// rank-00003.bin in the folder: for each shard a line "name row column rows columns\n", then its
// values, float, by rows.
#ifndef MOE_TRAINER_CHECKPOINT_H_
#define MOE_TRAINER_CHECKPOINT_H_

#include <cstddef>
#include <string>
#include <vector>

namespace moe_trainer {

struct SavedShard {
  std::string name;
  int row = 0, column = 0, rows = 0, columns = 0;
  std::vector<float> values;
};

std::string CheckpointFile(const std::string& folder, int rank);
/// Creates the folder where it is missing. Throws std::runtime_error: which file, why.
void WriteCheckpoint(const std::string& folder, int rank, const std::vector<SavedShard>& shards);
std::vector<SavedShard> ReadCheckpoint(const std::string& folder, int rank);

/// FNV-1a, which `hash` goes on from.
unsigned long long Checksum(const void* data, size_t bytes,
                            unsigned long long hash = 0xcbf29ce484222325);
/// The same over all values, shard by shard.
unsigned long long Checksum(const std::vector<SavedShard>& shards);

}  // namespace moe_trainer

#endif  // MOE_TRAINER_CHECKPOINT_H_
