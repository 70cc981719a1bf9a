#include "examples/cpp/moe_trainer/checkpoint.h"

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace moe_trainer {

std::string CheckpointFile(const std::string& folder, int rank) {
  char name[32];
  snprintf(name, sizeof name, "rank-%05d.bin", rank);
  return folder + "/" + name;
}

void WriteCheckpoint(const std::string& folder, int rank, const std::vector<SavedShard>& shards) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  const std::string path = CheckpointFile(folder, rank);
  std::ofstream file(path, std::ios::binary);
  for (const SavedShard& shard : shards) {
    file << shard.name << " " << shard.row << " " << shard.column << " " << shard.rows << " "
         << shard.columns << "\n";
    file.write(reinterpret_cast<const char*>(shard.values.data()),
               static_cast<std::streamsize>(shard.values.size() * sizeof(float)));
  }
  if (!file.flush())
    throw std::runtime_error("--save: cannot write " + path + ": " + strerror(errno));
}

std::vector<SavedShard> ReadCheckpoint(const std::string& folder, int rank) {
  const std::string path = CheckpointFile(folder, rank);
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path + ": " + strerror(errno));
  std::vector<SavedShard> shards;
  for (std::string line; std::getline(file, line);) {
    SavedShard shard;
    std::istringstream words(line);
    if (!(words >> shard.name >> shard.row >> shard.column >> shard.rows >> shard.columns))
      throw std::runtime_error(path + " is damaged: '" + line + "' starts no shard");
    shard.values.resize(static_cast<size_t>(shard.rows) * static_cast<size_t>(shard.columns));
    if (!file.read(reinterpret_cast<char*>(shard.values.data()),
                   static_cast<std::streamsize>(shard.values.size() * sizeof(float))))
      throw std::runtime_error(path + " ends within " + shard.name);
    shards.push_back(std::move(shard));
  }
  return shards;
}

unsigned long long Checksum(const void* data, size_t bytes, unsigned long long hash) {
  const auto* byte = static_cast<const unsigned char*>(data);
  for (const auto* end = byte + bytes; byte != end; ++byte) hash = (hash ^ *byte) * 0x100000001b3;
  return hash;
}

unsigned long long Checksum(const std::vector<SavedShard>& shards) {
  unsigned long long hash = Checksum(nullptr, 0);
  for (const SavedShard& shard : shards)
    hash = Checksum(shard.values.data(), shard.values.size() * sizeof(float), hash);
  return hash;
}

}  // namespace moe_trainer
