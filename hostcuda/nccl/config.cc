#include "hostcuda/nccl/config.h"

#include <algorithm>
#include <cstring>

#include "hostcuda/nccl/environment.h"

namespace hostnccl {
namespace {

struct IntegerField {
  const char* name;
  int ncclConfig_t::*field;
  int least, greatest;
  int fallback;
};

constexpr IntegerField kFields[] = {
    {"blocking", &ncclConfig_t::blocking, 0, 1, 1},
    {"cgaClusterSize", &ncclConfig_t::cgaClusterSize, 0, INT_MAX, 4},
    {"minCTAs", &ncclConfig_t::minCTAs, 1, INT_MAX, 1},
    {"maxCTAs", &ncclConfig_t::maxCTAs, 1, INT_MAX, 64},
    {"splitShare", &ncclConfig_t::splitShare, 0, 1, 0},
    {"trafficClass", &ncclConfig_t::trafficClass, 0, INT_MAX, NCCL_CONFIG_UNDEF_INT},
    {"collnetEnable", &ncclConfig_t::collnetEnable, 0, 1, 0},
    {"CTAPolicy", &ncclConfig_t::CTAPolicy, NCCL_CTA_POLICY_DEFAULT,
     NCCL_CTA_POLICY_EFFICIENCY | NCCL_CTA_POLICY_ZERO, NCCL_CTA_POLICY_DEFAULT},
    {"shrinkShare", &ncclConfig_t::shrinkShare, 0, 1, 0},
    {"nvlsCTAs", &ncclConfig_t::nvlsCTAs, 1, INT_MAX, NCCL_CONFIG_UNDEF_INT},
    {"nChannelsPerNetPeer", &ncclConfig_t::nChannelsPerNetPeer, 1, INT_MAX, NCCL_CONFIG_UNDEF_INT},
    {"nvlinkCentricSched", &ncclConfig_t::nvlinkCentricSched, 0, 1, 0},
};

}  // namespace

Status CompleteConfig(const ncclConfig_t* user, const ncclConfig_t* inherited, ncclConfig_t* out) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  if (user != nullptr) {
    if (user->magic != config.magic || user->size < offsetof(ncclConfig_t, blocking)) {
      return Error(Code::kInvalidArgument,
                   "ncclConfig_t argument not initialized via NCCL_CONFIG_INITIALIZER");
    }
    const ncclConfig_t defaults = config;
    memcpy(&config, user, std::min(user->size, sizeof config));
    config.size = defaults.size;
    config.version = defaults.version;
  }
  for (const IntegerField& field : kFields) {
    int& value = config.*field.field;
    if (value == NCCL_CONFIG_UNDEF_INT) {
      value = inherited != nullptr ? inherited->*field.field : field.fallback;
    } else if (value < field.least || value > field.greatest) {
      return Error(Code::kInvalidArgument, "Invalid config %s attribute value %d", field.name,
                   value);
    }
  }
  if (config.minCTAs > config.maxCTAs) {
    return Error(Code::kInvalidArgument, "Invalid config min/max channels attribute value %d/%d",
                 config.minCTAs, config.maxCTAs);
  }
  if (const char* blocking = EnvironmentText("NCCL_COMM_BLOCKING");
      *blocking == '0' || *blocking == '1') {
    config.blocking = *blocking - '0';
  }
  // The texts belong to the caller and nothing here uses them.
  config.netName = nullptr;
  config.commName = nullptr;
  *out = config;
  return {};
}

}  // namespace hostnccl
