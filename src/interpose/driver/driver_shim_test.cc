// The built driver shim in front of a fake driver. Every case runs in a child process, where the
// shim is loaded afresh.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>

#include "src/interpose/core_table.h"

namespace prism::interpose {
namespace {

template <class Function>
Function* Symbol(void* library, const char* name) {
  return reinterpret_cast<Function*>(dlsym(library, name));
}

void* OpenShim(const char* real = PRISM_FAKE_DRIVER) {
  if (real == nullptr) {
    unsetenv("PRISM_REAL_LIBCUDA");
  } else {
    setenv("PRISM_REAL_LIBCUDA", real, 1);
  }
  for (const char* name : {"PRISM_SOCKET", "PRISM_RANK", "RANK", "PRISM_MODE", "PRISM_TRACE_DIR"}) {
    unsetenv(name);
  }
  void* shim = dlopen(PRISM_DRIVER_SHIM, RTLD_NOW | RTLD_GLOBAL);
  if (shim == nullptr) {
    fprintf(stderr, "%s\n", dlerror());
    _exit(99);
  }
  return shim;
}

#define REQUIRE(condition)                       \
  if (!(condition)) {                            \
    fprintf(stderr, "not so: %s\n", #condition); \
    _exit(1);                                    \
  }
#define IN_CHILD(...) \
  EXPECT_EXIT(        \
      {               \
        __VA_ARGS__;  \
        _exit(0);     \
      },              \
      ::testing::ExitedWithCode(0), "")

TEST(DriverShimTest, FirstCallKeepsEveryArgument) {
  IN_CHILD({
    void* shim = OpenShim();
    using Function = int(long, long, long, long, long, long, double, double, double, double, double,
                         double, double, double, long, double);
    auto* call = Symbol<Function>(shim, "cuTexRefSetBorderColor");
    for (int repeat = 0; repeat < 2; ++repeat) {  // the resolver's way, then the direct one
      REQUIRE(call(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16) == 1496);
    }
  });
}

TEST(DriverShimTest, LaunchArgumentsArrive) {
  IN_CHILD({
    void* shim = OpenShim();
    auto* launch = Symbol<int(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                              unsigned, void*, void**, void**)>(shim, "cuLaunchKernel");
    REQUIRE(launch(reinterpret_cast<void*>(1), 2, 3, 4, 5, 6, 7, 8, reinterpret_cast<void*>(9),
                   reinterpret_cast<void**>(10), reinterpret_cast<void**>(11)) == 0);
  });
}

TEST(DriverShimTest, NameThatTheDriverLacksIsNotSupported) {
  IN_CHILD({
    void* shim = OpenShim();
    REQUIRE(Symbol<int(void*)>(shim, "cuGraphDestroy")(nullptr) == 801);
    void* function = nullptr;
    int status = -1;
    auto* get = Symbol<int(const char*, void**, int, uint64_t, int*)>(shim, "cuGetProcAddress_v2");
    REQUIRE(get("cuGraphDestroy", &function, 13000, 0, &status) == 500);
    REQUIRE(function == nullptr && status == 1);
  });
}

TEST(DriverShimTest, ProcAddressAnswersPerVersionAndStream) {
  IN_CHILD({
    void* shim = OpenShim();
    auto* get = Symbol<int(const char*, void**, int, uint64_t, int*)>(shim, "cuGetProcAddress_v2");
    void* fake = dlopen(PRISM_FAKE_DRIVER, RTLD_NOW | RTLD_LOCAL);
    void* function = nullptr;
    int status = -1;
    REQUIRE(get("cuMemAlloc", &function, 12000, 0, &status) == 0);
    REQUIRE(status == 0);
    REQUIRE(function == dlsym(shim, "cuMemAlloc_v2"));
    REQUIRE(get("cuMemAlloc", &function, 2000, 0, &status) == 0);
    REQUIRE(function == dlsym(fake, "cuMemAlloc"));
    REQUIRE(get("cuLaunchKernel", &function, 12000, 0, &status) == 0);
    REQUIRE(function == dlsym(shim, "cuLaunchKernel"));
    REQUIRE(get("cuLaunchKernel", &function, 12000, 2, &status) == 0);
    REQUIRE(function == dlsym(shim, "cuLaunchKernel_ptsz"));
    REQUIRE(get("cuDriverGetVersion", &function, 12000, 0, &status) == 0);
    REQUIRE(function == dlsym(fake, "cuDriverGetVersion"));
    // The first form has no status, and its own wrapper.
    auto* old = Symbol<int(const char*, void**, int, uint64_t)>(shim, "cuGetProcAddress");
    REQUIRE(old("cuMemAlloc", &function, 12000, 0) == 0);
    REQUIRE(function == dlsym(shim, "cuMemAlloc_v2"));
  });
}

TEST(DriverShimTest, WithoutVariablesCallsGoStraightThrough) {
  IN_CHILD({
    void* shim = OpenShim();
    REQUIRE(Symbol<int(unsigned)>(shim, "cuInit")(0) == 0);
    int count = 0;
    REQUIRE(Symbol<int(int*)>(shim, "cuDeviceGetCount")(&count) == 0 && count == 3);
    int device = 0;
    REQUIRE(Symbol<int(int*, int)>(shim, "cuDeviceGet")(&device, 2) == 0 && device == 102);
    const void* table = nullptr;
    REQUIRE(Symbol<int(const void**, const CUuuid*)>(shim, "cuGetExportTable")(
                &table, &kPrismCoreUuid) == 0);
    const auto* core = static_cast<const CoreTable*>(table);
    REQUIRE(core->version == kCoreTableVersion && core->size == sizeof(CoreTable));
    REQUIRE(!core->is_rank());
    REQUIRE(core->welcome() == nullptr && core->writer() == nullptr);
    const CUuuid other = {{1}};
    REQUIRE(Symbol<int(const void**, const CUuuid*)>(shim, "cuGetExportTable")(&table, &other) ==
            500);
  });
}

TEST(DriverShimTest, WithoutARealDriverEveryCallFailsAndSaysWhy) {
  EXPECT_EXIT(
      {
        void* shim = OpenShim(nullptr);
        REQUIRE(Symbol<int(unsigned)>(shim, "cuInit")(0) == 801);
        const void* table = nullptr;
        REQUIRE(Symbol<int(const void**, const CUuuid*)>(shim, "cuGetExportTable")(
                    &table, &kPrismCoreUuid) == 0);
        _exit(0);
      },
      ::testing::ExitedWithCode(0), "PRISM_REAL_LIBCUDA: '' is not an absolute path");
}

TEST(DriverShimTest, TheShimItselfIsNoRealDriver) {
  EXPECT_EXIT(
      {
        void* shim = OpenShim(PRISM_DRIVER_SHIM);
        REQUIRE(Symbol<int(unsigned)>(shim, "cuInit")(0) == 801);
        _exit(0);
      },
      ::testing::ExitedWithCode(0), "is this shim itself");
}

TEST(DriverShimTest, UnknownModeIsRefusedByName) {
  EXPECT_EXIT(
      {
        void* shim = OpenShim();
        setenv("PRISM_MODE", "recrod", 1);
        REQUIRE(Symbol<int(unsigned)>(shim, "cuInit")(0) == 303);
        _exit(0);
      },
      ::testing::ExitedWithCode(0), "PRISM_MODE is 'recrod': it must be");
}

TEST(DriverShimTest, UnreachableControllerIsRefusedByName) {
  EXPECT_EXIT(
      {
        void* shim = OpenShim();
        setenv("PRISM_SOCKET", "/nonexistent/socket", 1);
        setenv("RANK", "3", 1);
        REQUIRE(Symbol<int(unsigned)>(shim, "cuInit")(0) == 303);
        _exit(0);
      },
      ::testing::ExitedWithCode(0), "rank 3: cannot reach the controller at /nonexistent/socket");
}

// A fork is inert although the environment names a rank, also if the parent had not used CUDA.
TEST(DriverShimTest, ForkIsInert) {
  IN_CHILD({
    void* shim = OpenShim();
    const pid_t child = fork();
    if (child == 0) {
      setenv("PRISM_SOCKET", "/nonexistent/socket", 1);
      setenv("RANK", "3", 1);
      REQUIRE(Symbol<int(unsigned)>(shim, "cuInit")(0) == 0);
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    REQUIRE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  });
}

}  // namespace
}  // namespace prism::interpose
