// The exports of nccl_device.h: kernels that communicate by themselves. There are no kernels here,
// so all of them refuse.
#include "hostcuda/nccl/exports.h"
// First: it decides which symbols are visible.
#include <unistd.h>

#include <cstdio>

#include "hostcuda/nccl/driver.h"
#include "hostcuda/nccl/last_error.h"

namespace hostnccl {
namespace {

ncclResult_t Refuse(const char* call) {
  const Status status = Error(
      Code::kInvalidUsage,
      "%s: hostnccl does not implement NCCL's device API (kernels that communicate by themselves)",
      call);
  fprintf(stderr, "hostnccl: %s\n", status.message.c_str());
  return Report(status);
}

// For calls that return a value: there is no way to say no.
[[noreturn]] void End(const char* call) {
  const DriverFunctions* driver = nullptr;
  if (LoadDriver(&driver).ok()) driver->table->unimplemented("libnccl.so.2", call);
  fprintf(stderr, "hostnccl: %s is not implemented (NCCL's device API)\n", call);
  _exit(125);
}

}  // namespace
}  // namespace hostnccl

// The parameters are nobody's business: none is looked at.
#define HOSTNCCL_REFUSED(name)                                                            \
  extern "C" HOSTNCCL_VISIBLE ncclResult_t pnccl##name() {                                \
    return hostnccl::Refuse("nccl" #name);                                                \
  }                                                                                       \
  extern "C" HOSTNCCL_VISIBLE ncclResult_t nccl##name() __attribute__((weak, alias("pncc" \
                                                                                   "l" #name)));
#define HOSTNCCL_ENDS(name)                                                       \
  extern "C" HOSTNCCL_VISIBLE void pnccl##name() { hostnccl::End("nccl" #name); } \
  extern "C" HOSTNCCL_VISIBLE void nccl##name() __attribute__((weak, alias("pnccl" #name)));

HOSTNCCL_REFUSED(DevCommCreate)
HOSTNCCL_REFUSED(DevCommDestroy)
HOSTNCCL_REFUSED(GinBarrierCreateRequirement)
HOSTNCCL_REFUSED(LLA2ACreateRequirement)
HOSTNCCL_REFUSED(LsaBarrierCreateRequirement)
HOSTNCCL_ENDS(LLA2ACalcSlots)
HOSTNCCL_ENDS(TeamLsa)
HOSTNCCL_ENDS(TeamRail)
HOSTNCCL_ENDS(TeamRankToLsa)
HOSTNCCL_ENDS(TeamRankToWorld)
HOSTNCCL_ENDS(TeamWorld)
