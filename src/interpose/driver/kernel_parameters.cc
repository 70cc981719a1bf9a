#include "src/interpose/driver/kernel_parameters.h"

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "src/interpose/driver/ownership.h"
#include "src/interpose/driver/route.h"
#include "src/trace/format.h"
#include "src/wire/protocol.h"

namespace prism::interpose::driver {
namespace {

struct Place {
  size_t offset, bytes;
};

struct Known {
  std::mutex mutex;
  std::map<CUfunction, std::vector<Place>> places;
  using Shape =
      std::tuple<CUfunction, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t>;
  std::map<Shape, std::set<uint32_t>> seen;
};
Known& GetKnown() {
  static auto* known = new Known;
  return *known;
}

bool Wanted() {
  static const bool wanted = [] {
    const char* text = std::getenv(wire::kEnvKernelParameters);
    return text != nullptr && strcmp(text, "1") == 0;
  }();
  return wanted;
}

// Where a kernel's parameters are; empty where the driver does not tell.
std::vector<Place> PlacesOf(CUfunction function) {
  constexpr size_t kMost = 4096;  // each is a byte or more, all together at most 32,764 bytes
  std::vector<Place> places;
  for (size_t i = 0; i < kMost; ++i) {
    Place place{};
    // A launch takes kernels as well as functions.
    if (PRISM_REAL(cuFuncGetParamInfo)(function, i, &place.offset, &place.bytes) != CUDA_SUCCESS &&
        PRISM_REAL(cuKernelGetParamInfo)(reinterpret_cast<CUkernel>(function), i, &place.offset,
                                         &place.bytes) != CUDA_SUCCESS) {
      break;
    }
    places.push_back(place);
  }
  return places;
}

uint32_t Folded(uint64_t hash) {
  const auto folded = static_cast<uint32_t>(hash ^ hash >> 32);
  return folded == trace::kParametersUnknown || folded == trace::kParametersVary ? ~folded : folded;
}

bool IsDeviceAddress(uint64_t word) { return Ownership::Get().Contains(word); }

}  // namespace

uint64_t HashWithoutPointers(uint64_t hash, const void* data, size_t bytes,
                             bool (*is_pointer)(uint64_t word)) {
  static constexpr unsigned char kPointer[] = {'p', 'o', 'i', 'n', 't', 'e', 'r', '!'};
  const auto* at = static_cast<const unsigned char*>(data);
  while (bytes > 0) {
    const size_t step = bytes < sizeof(uint64_t) ? bytes : sizeof(uint64_t);
    const unsigned char* from = at;
    if (step == sizeof(uint64_t)) {
      uint64_t word = 0;
      memcpy(&word, at, sizeof word);
      if (is_pointer(word)) from = kPointer;
    }
    for (size_t i = 0; i < step; ++i) hash = (hash ^ from[i]) * trace::kFnvPrime;
    at += step;
    bytes -= step;
  }
  return hash;
}

uint32_t KernelParameters(const LaunchShape& shape, void** parameters, void** extra) {
  if (!Wanted()) return trace::kParametersUnknown;
  uint64_t hash = trace::kFnvOffset;
  Known& known = GetKnown();
  std::lock_guard lock(known.mutex);
  if (parameters != nullptr) {
    const auto [it, inserted] = known.places.try_emplace(shape.function);
    if (inserted) it->second = PlacesOf(shape.function);
    if (it->second.empty()) return trace::kParametersUnknown;
    for (size_t i = 0; i < it->second.size(); ++i) {
      hash = HashWithoutPointers(hash, parameters[i], it->second[i].bytes, IsDeviceAddress);
    }
  } else if (extra != nullptr) {
    const void* buffer = nullptr;
    size_t bytes = 0;
    for (; *extra != CU_LAUNCH_PARAM_END; extra += 2) {
      if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER) buffer = extra[1];
      if (*extra == CU_LAUNCH_PARAM_BUFFER_SIZE) bytes = *static_cast<const size_t*>(extra[1]);
    }
    if (buffer == nullptr) return trace::kParametersUnknown;
    hash = HashWithoutPointers(hash, buffer, bytes, IsDeviceAddress);
  } else {
    return trace::kParametersUnknown;
  }
  std::set<uint32_t>& seen =
      known.seen[{shape.function, shape.grid[0], shape.grid[1], shape.grid[2], shape.block[0],
                  shape.block[1], shape.block[2], shape.shared_bytes}];
  const uint32_t folded = Folded(hash);
  if (seen.count(folded) != 0) return folded;
  if (seen.size() >= kMostParameters) return trace::kParametersVary;
  seen.insert(folded);
  return folded;
}

void ForgetKernelParameters() {
  if (!Wanted()) return;
  Known& known = GetKnown();
  std::lock_guard lock(known.mutex);
  known.places.clear();
  known.seen.clear();
}

}  // namespace prism::interpose::driver
