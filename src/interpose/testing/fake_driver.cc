// A driver for tests of the driver shim: a few calls that show what arrived, the rest absent.
#include <cstdint>
#include <cstring>

#define FAKE extern "C" __attribute__((visibility("default")))

static int g_device_count_calls = 0;

FAKE int cuInit(unsigned flags) { return flags == 0 ? 0 : 1; }
FAKE int cuDriverGetVersion(int* version) {
  *version = 13000;
  return 0;
}
FAKE int cuDeviceGetCount(int* count) {
  ++g_device_count_calls;
  *count = 3;
  return 0;
}
FAKE int cuDeviceGet(int* device, int ordinal) {
  *device = 100 + ordinal;
  return ordinal < 3 ? 0 : 101;
}
// Arguments in registers, floating point registers and on the stack: the sum shows that all of them
// came through. The name is one that the shim does not wrap and whose parameters it does not know.
FAKE int cuTexRefSetBorderColor(long a, long b, long c, long d, long e, long f, double g, double h,
                                double i, double j, double k, double l, double m, double n, long o,
                                double p) {
  return static_cast<int>(a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f + 7 * g + 8 * h + 9 * i +
                          10 * j + 11 * k + 12 * l + 13 * m + 14 * n + 15 * o + 16 * p);
}
// Eleven parameters, wrapped by the shim.
FAKE int cuLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                        unsigned by, unsigned bz, unsigned shared, void* stream, void** parameters,
                        void** extra) {
  const bool good =
      function == reinterpret_cast<void*>(1) && gx == 2 && gy == 3 && gz == 4 && bx == 5 &&
      by == 6 && bz == 7 && shared == 8 && stream == reinterpret_cast<void*>(9) &&
      parameters == reinterpret_cast<void**>(10) && extra == reinterpret_cast<void**>(11);
  return good ? 0 : 700;
}
FAKE int cuLaunchKernel_ptsz(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                             unsigned, void*, void**, void**) {
  return 0;
}
FAKE int cuMemAlloc_v2(uint64_t* address, size_t bytes) {
  static uint64_t next = 0x10000000;
  *address = next;
  next += bytes;
  return 0;
}
FAKE int cuMemAlloc(unsigned* address, unsigned) {
  *address = 32;
  return 0;
}
FAKE int cuMemFree_v2(uint64_t) { return 0; }
FAKE int cuGetProcAddress_v2(const char* name, void** function, int version, uint64_t flags,
                             int* status) {
  *function = nullptr;
  if (strcmp(name, "cuMemAlloc") == 0) {
    *function = version >= 3020 ? reinterpret_cast<void*>(&cuMemAlloc_v2)
                                : reinterpret_cast<void*>(&cuMemAlloc);
  } else if (strcmp(name, "cuLaunchKernel") == 0) {
    *function = flags == 2 ? reinterpret_cast<void*>(&cuLaunchKernel_ptsz)
                           : reinterpret_cast<void*>(&cuLaunchKernel);
  } else if (strcmp(name, "cuDriverGetVersion") == 0) {
    *function = reinterpret_cast<void*>(&cuDriverGetVersion);
  }
  if (status != nullptr) *status = *function == nullptr ? 1 : 0;
  return *function == nullptr ? 500 : 0;
}
FAKE int cuGetProcAddress(const char* name, void** function, int version, uint64_t flags) {
  int status;
  return cuGetProcAddress_v2(name, function, version, flags, &status);
}
FAKE int cuGetExportTable(const void** table, const void*) {
  *table = nullptr;
  return 500;
}
