#include "src/trace/copy_as.h"

#include <cerrno>
#include <cstring>
#include <fstream>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "src/trace/chunk_file.h"

namespace prism::trace {
namespace {

using Payload = std::vector<char>;

template <class Record>
Record At(const Payload& payload, size_t offset) {
  Record record;
  std::memcpy(&record, payload.data() + offset, sizeof record);
  return record;
}
template <class Record>
void Put(Payload* payload, size_t offset, const Record& record) {
  std::memcpy(payload->data() + offset, &record, sizeof record);
}

absl::StatusOr<const RankIdentity::Membership*> Member(const RankIdentity& identity,
                                                       uint32_t comm) {
  const auto found = identity.comms.find(comm);
  if (found == identity.comms.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", identity.rank, " has no communicator for number ", comm));
  }
  return &found->second;
}

uint32_t Device(const RankIdentity& identity, uint32_t device) {
  const auto found = identity.devices.find(device);
  return found == identity.devices.end() ? device : found->second;
}

absl::Status Communicators(const RankIdentity& identity, const ChunkHeader& chunk,
                           Payload* payload) {
  size_t at = 0;
  for (uint64_t i = 0; i < chunk.count; ++i) {
    auto record = At<CommRecord>(*payload, at);
    const auto member = Member(identity, record.comm);
    if (!member.ok()) return member.status();
    const std::vector<uint32_t>& ranks = (*member)->world_ranks;
    if (ranks.size() != record.size || (*member)->rank >= record.size) {
      return absl::InvalidArgumentError(
          absl::StrCat("communicator ", (*member)->comm, " of rank ", identity.rank, " has ",
                       ranks.size(), " members, the source's ", record.comm, " has ", record.size));
    }
    record.comm = (*member)->comm;
    record.rank = (*member)->rank;
    record.device = Device(identity, record.device);
    Put(payload, at, record);
    at += sizeof record;
    std::memcpy(payload->data() + at, ranks.data(), ranks.size() * sizeof(uint32_t));
    at += (uint64_t{record.size} + 1) / 2 * 8;
  }
  return absl::OkStatus();
}

absl::Status Calls(const RankIdentity& identity, const ChunkHeader& chunk, Payload* payload) {
  for (uint64_t i = 0; i < chunk.count; ++i) {
    const size_t at = i * sizeof(CallRecord);
    auto call = At<CallRecord>(*payload, at);
    const auto member = Member(identity, call.comm);
    if (!member.ok()) return member.status();
    if (call.peer >= 0) {
      const auto peer = identity.peers.find({call.comm, call.peer});
      if (peer == identity.peers.end()) {
        return absl::InvalidArgumentError(absl::StrCat("rank ", identity.rank, " has no peer for ",
                                                       call.peer, " of communicator ", call.comm));
      }
      call.peer = peer->second;
    }
    call.comm = (*member)->comm;
    Put(payload, at, call);
  }
  return absl::OkStatus();
}

absl::Status Nodes(const RankIdentity& identity, const ChunkHeader& chunk, Payload* payload) {
  for (uint64_t i = 0; i < chunk.count; ++i) {
    const size_t at = i * sizeof(Node);
    auto node = At<Node>(*payload, at);
    if (node.kind != NodeKind::kCommInit) continue;
    const auto member = Member(identity, node.a);
    if (!member.ok()) return member.status();
    node.a = (*member)->comm;
    Put(payload, at, node);
  }
  return absl::OkStatus();
}

absl::Status Memory(const RankIdentity& identity, const ChunkHeader& chunk, Payload* payload) {
  for (uint64_t i = 0; i < chunk.count; ++i) {
    const size_t at = i * sizeof(MemoryRecord);
    auto record = At<MemoryRecord>(*payload, at);
    if (record.kind != MemoryKind::kModelled || record.address == 0) continue;
    const auto member = Member(identity, static_cast<uint32_t>(record.address));
    if (!member.ok()) return member.status();
    record.address = (*member)->comm;
    Put(payload, at, record);
  }
  return absl::OkStatus();
}

absl::Status Rename(const RankIdentity& identity, const ChunkHeader& chunk, Payload* payload) {
  switch (chunk.kind) {
    case ChunkKind::kComms:
      return Communicators(identity, chunk, payload);
    case ChunkKind::kCalls:
      return Calls(identity, chunk, payload);
    case ChunkKind::kNodes:
      return Nodes(identity, chunk, payload);
    case ChunkKind::kMemory:
      return Memory(identity, chunk, payload);
    default:
      return absl::OkStatus();
  }
}

}  // namespace

absl::Status CopyAs(const Reader& source, const RankIdentity& identity, const std::string& path) {
  if (source.completeness() != Completeness::kSealed) {
    return absl::DataLossError(absl::StrCat(source.path(), ": ", source.problem()));
  }
  // What the reader has checked is what is copied: chunks, their sizes and what is in them.
  if (absl::Status status = source.CheckNodes(); !status.ok()) return status;
  std::ifstream in(source.path(), std::ios::binary);
  const auto failed = [&] {
    return absl::UnavailableError(absl::StrCat(source.path(), ": ", std::strerror(errno)));
  };
  FileHeader file;
  if (!in.read(reinterpret_cast<char*>(&file), sizeof file)) return failed();
  file.rank = identity.rank;
  ChunkFile out(path, file);
  ChunkHeader chunk;
  while (in.read(reinterpret_cast<char*>(&chunk), sizeof chunk)) {
    const uint64_t padded = (chunk.bytes + kChunkAlignment - 1) / kChunkAlignment * kChunkAlignment;
    Payload payload(padded, '\0');
    in.read(payload.data(), static_cast<std::streamsize>(padded));
    if (static_cast<uint64_t>(in.gcount()) < chunk.bytes) return failed();
    if (absl::Status status = Rename(identity, chunk, &payload); !status.ok()) return status;
    out.Add(chunk.kind, chunk.sequence, chunk.first, chunk.count, {payload.data(), chunk.bytes});
  }
  return out.Close();
}

}  // namespace prism::trace
