// ncclConfig_t: what users set, checked and completed as NCCL does.
#ifndef HOSTCUDA_NCCL_CONFIG_H_
#define HOSTCUDA_NCCL_CONFIG_H_

#include <nccl.h>

#include "hostcuda/nccl/status.h"

namespace hostnccl {

/// Checks `user` (null: nothing set) and completes it from `inherited` (null: from NCCL's
/// defaults). Older, shorter structures are accepted.
Status CompleteConfig(const ncclConfig_t* user, const ncclConfig_t* inherited, ncclConfig_t* out);

}  // namespace hostnccl

#endif  // HOSTCUDA_NCCL_CONFIG_H_
