// Device memory through the public API: accounting, limits, attributes, other processes, virtual
// memory with faults.
#include <cuda.h>
#include <gtest/gtest.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>

#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "hostcuda/driver/options.h"
#include "hostcuda/driver/testing/roles.h"

namespace {

using hostcuda::testing::RegisterRole;
using hostcuda::testing::Role;

constexpr size_t kMiB = 1u << 20, kGiB = 1u << 30;

class MemoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
    ASSERT_EQ(cuDevicePrimaryCtxRetain(&context_, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxSetCurrent(context_), CUDA_SUCCESS);
  }
  void TearDown() override { ASSERT_EQ(cuDevicePrimaryCtxRelease(0), CUDA_SUCCESS); }
  static size_t Free() {
    size_t free = 0, total = 0;
    EXPECT_EQ(cuMemGetInfo(&free, &total), CUDA_SUCCESS);
    return free;
  }
  static CUdeviceptr Allocate(size_t bytes) {
    CUdeviceptr pointer = 0;
    EXPECT_EQ(cuMemAlloc(&pointer, bytes), CUDA_SUCCESS);
    return pointer;
  }
  CUcontext context_ = nullptr;
};

size_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  size_t size = 0, resident = 0;
  statm >> size >> resident;
  return resident * 4096;
}

TEST_F(MemoryTest, ContextTakesItsMemoryFromTheDevice) {
  size_t free = 0, total = 0;
  ASSERT_EQ(cuMemGetInfo(&free, &total), CUDA_SUCCESS);
  EXPECT_EQ(total, 150109880320u);  // an H200
  EXPECT_EQ(total - free, 550 * kMiB);
}

TEST_F(MemoryTest, LargeAllocationsAreChargedInWholePages) {
  const size_t before = Free();
  const struct {
    size_t bytes, charged;
  } cases[] = {{2 * kMiB, 2 * kMiB},
               {2 * kMiB + 1, 4 * kMiB},
               {kMiB + 1, 2 * kMiB},
               {20 * kMiB, 20 * kMiB},
               {kGiB + 5, kGiB + 2 * kMiB}};
  for (const auto& c : cases) {
    const CUdeviceptr pointer = Allocate(c.bytes);
    EXPECT_EQ(before - Free(), c.charged) << c.bytes;
    EXPECT_EQ(pointer % (2 * kMiB), 0u);
    ASSERT_EQ(cuMemFree(pointer), CUDA_SUCCESS);
    EXPECT_EQ(Free(), before);
  }
}

TEST_F(MemoryTest, SmallAllocationsShareAPage) {
  const size_t before = Free();
  std::vector<CUdeviceptr> pointers;
  for (int i = 0; i < 100; ++i) pointers.push_back(Allocate(1000));
  EXPECT_EQ(before - Free(), 2 * kMiB);
  for (size_t i = 0; i < pointers.size(); ++i) {
    EXPECT_EQ(pointers[i] % 512, 0u);
    for (size_t j = i + 1; j < pointers.size(); ++j) {
      EXPECT_TRUE(pointers[i] + 1000 <= pointers[j] || pointers[j] + 1000 <= pointers[i]);
    }
  }
  for (size_t i = 0; i < pointers.size(); i += 2) cuMemFree(pointers[i]);
  for (size_t i = 1; i < pointers.size(); i += 2) cuMemFree(pointers[i]);
  EXPECT_EQ(Free(), before);
}

TEST_F(MemoryTest, UntouchedMemoryCostsNothing) {
  const size_t before = ResidentBytes();
  const CUdeviceptr pointer = Allocate(100 * kGiB);
  ASSERT_EQ(cuMemsetD8(pointer, 0, 100 * kGiB), CUDA_SUCCESS);  // zeros need no pages
  std::vector<char> back(4096, 1);
  ASSERT_EQ(cuMemcpyDtoH(back.data(), pointer + 50 * kGiB, back.size()), CUDA_SUCCESS);
  EXPECT_EQ(back, std::vector<char>(4096, 0));
  EXPECT_LT(ResidentBytes(), before + 8 * kMiB);
  ASSERT_EQ(cuMemFree(pointer), CUDA_SUCCESS);
}

TEST_F(MemoryTest, OutOfMemoryLeavesEverythingAsItWas) {
  const size_t before = Free();
  CUdeviceptr pointer = 0;
  EXPECT_EQ(cuMemAlloc(&pointer, before + 2 * kMiB), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(pointer, 0u);
  EXPECT_EQ(Free(), before);
  EXPECT_EQ(cuMemAlloc(&pointer, before / (2 * kMiB) * (2 * kMiB)), CUDA_SUCCESS);
  CUdeviceptr one = 0;
  EXPECT_EQ(cuMemAlloc(&one, 1), CUDA_ERROR_OUT_OF_MEMORY);
  cuMemFree(pointer);
  EXPECT_EQ(Free(), before);
}

TEST_F(MemoryTest, FreeingWhatIsNotAllocatedIsAnError) {
  const CUdeviceptr pointer = Allocate(4096);
  EXPECT_EQ(cuMemFree(pointer + 512), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemFree(pointer), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFree(pointer), CUDA_ERROR_INVALID_VALUE);
  int local = 0;
  EXPECT_EQ(cuMemFree(reinterpret_cast<CUdeviceptr>(&local)), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(MemoryTest, LargeCopiesToTheDeviceMoveNothingWithoutValues) {
  // HOSTCUDA_VALUES is none: 1 MiB moves, more does not, and what comes back is what is there.
  const CUdeviceptr pointer = Allocate(4 * kMiB);
  std::vector<char> ones(2 * kMiB, 1), back(2 * kMiB, 2);
  ASSERT_EQ(cuMemcpyHtoD(pointer, ones.data(), kMiB), CUDA_SUCCESS);
  ASSERT_EQ(cuMemcpyHtoD(pointer + 2 * kMiB, ones.data(), 2 * kMiB), CUDA_SUCCESS);
  ASSERT_EQ(cuMemcpyDtoH(back.data(), pointer, 2 * kMiB), CUDA_SUCCESS);
  EXPECT_EQ(back[0], 1);
  EXPECT_EQ(back[kMiB - 1], 1);
  EXPECT_EQ(back[kMiB], 0);
  ASSERT_EQ(cuMemcpyDtoH(back.data(), pointer + 2 * kMiB, 2 * kMiB), CUDA_SUCCESS);
  EXPECT_EQ(back, std::vector<char>(2 * kMiB, 0));
  cuMemFree(pointer);
}

TEST_F(MemoryTest, TwoDimensionalCopiesAndSetsKeepToTheirRows) {
  size_t pitch = 0;
  CUdeviceptr device = 0;
  ASSERT_EQ(cuMemAllocPitch(&device, &pitch, 100, 8, 4), CUDA_SUCCESS);
  EXPECT_EQ(pitch, 512u);
  ASSERT_EQ(cuMemsetD8(device, 9, pitch * 8), CUDA_SUCCESS);
  ASSERT_EQ(cuMemsetD2D32(device + 4, pitch, 0x01020304, 2, 3), CUDA_SUCCESS);
  std::vector<unsigned char> host(8 * 100);
  CUDA_MEMCPY2D copy = {};
  copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = device;
  copy.srcPitch = pitch;
  copy.dstMemoryType = CU_MEMORYTYPE_HOST;
  copy.dstHost = host.data();
  copy.dstPitch = 100;
  copy.WidthInBytes = 100;
  copy.Height = 8;
  ASSERT_EQ(cuMemcpy2D(&copy), CUDA_SUCCESS);
  for (int y = 0; y < 8; ++y) {
    for (int x = 0; x < 100; ++x) {
      const bool inside = y < 3 && x >= 4 && x < 12;
      EXPECT_EQ(host[static_cast<size_t>(y * 100 + x)], inside ? 4 - x % 4 : 9) << x << "," << y;
    }
  }
  cuMemFree(device);
}

TEST_F(MemoryTest, PointerAttributesTellKindAndPlace) {
  const CUdeviceptr device = Allocate(3 * kMiB);
  void* pinned = nullptr;
  ASSERT_EQ(cuMemHostAlloc(&pinned, 4096, 0), CUDA_SUCCESS);
  unsigned type = 0;
  int ordinal = -1;
  CUdeviceptr start = 0;
  size_t bytes = 0;
  ASSERT_EQ(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, device + 100),
            CUDA_SUCCESS);
  EXPECT_EQ(type, static_cast<unsigned>(CU_MEMORYTYPE_DEVICE));
  ASSERT_EQ(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, device),
            CUDA_SUCCESS);
  EXPECT_EQ(ordinal, 0);
  ASSERT_EQ(cuMemGetAddressRange(&start, &bytes, device + 2 * kMiB), CUDA_SUCCESS);
  EXPECT_EQ(start, device);
  EXPECT_EQ(bytes, 3 * kMiB);
  ASSERT_EQ(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                  reinterpret_cast<CUdeviceptr>(pinned)),
            CUDA_SUCCESS);
  EXPECT_EQ(type, static_cast<unsigned>(CU_MEMORYTYPE_HOST));
  int local = 0;
  EXPECT_EQ(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                  reinterpret_cast<CUdeviceptr>(&local)),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemHostRegister(pinned, 4096, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  EXPECT_EQ(cuMemHostUnregister(&local), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  cuMemFree(device);
  cuMemFreeHost(pinned);
}

TEST_F(MemoryTest, PoolMemoryIsFreedInStreamOrder) {
  CUstream stream = nullptr;
  ASSERT_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  uint32_t* word = nullptr;
  ASSERT_EQ(cuMemHostAlloc(reinterpret_cast<void**>(&word), 4096, 0), CUDA_SUCCESS);
  *word = 0;
  const size_t before = Free();
  CUdeviceptr pointer = 0;
  ASSERT_EQ(cuMemAllocAsync(&pointer, 8 * kMiB, stream), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamWaitValue32(stream, reinterpret_cast<CUdeviceptr>(word), 1, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemFreeAsync(pointer, stream), CUDA_SUCCESS);
  EXPECT_EQ(before - Free(), 8 * kMiB);
  __atomic_store_n(word, 1, __ATOMIC_SEQ_CST);
  ASSERT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_EQ(Free(), before);
  cuMemFreeHost(word);
  cuStreamDestroy(stream);
}

// ---- virtual memory management

CUmemAllocationProp DeviceProperties(int device = 0) {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return properties;
}

void Permit(CUdeviceptr address, size_t bytes) {
  CUmemAccessDesc access = {};
  access.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  ASSERT_EQ(cuMemSetAccess(address, bytes, &access, 1), CUDA_SUCCESS);
}

sigjmp_buf after_fault;

/// True where a store to `address` raises SIGSEGV.
bool Faults(volatile char* address) {
  struct sigaction action = {}, before;
  action.sa_handler = [](int) { siglongjmp(after_fault, 1); };
  sigaction(SIGSEGV, &action, &before);
  volatile bool faulted = true;  // survives siglongjmp
  if (sigsetjmp(after_fault, 1) == 0) {
    *address = *address;
    faulted = false;
  }
  sigaction(SIGSEGV, &before, nullptr);
  return faulted;
}

TEST_F(MemoryTest, MappedMemoryFaultsUntilAccessIsGiven) {
  CUdeviceptr address = 0;
  CUmemGenericAllocationHandle handle = 0;
  const CUmemAllocationProp properties = DeviceProperties();
  const size_t before = Free();
  ASSERT_EQ(cuMemAddressReserve(&address, 8 * kMiB, 0, 0, 0), CUDA_SUCCESS);
  EXPECT_EQ(Free(), before);
  ASSERT_EQ(cuMemCreate(&handle, 4 * kMiB, &properties, 0), CUDA_SUCCESS);
  EXPECT_EQ(before - Free(), 4 * kMiB);
  auto* bytes = reinterpret_cast<volatile char*>(address);
  EXPECT_TRUE(Faults(bytes));
  ASSERT_EQ(cuMemMap(address, 4 * kMiB, 0, handle, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuMemMap(address, 4 * kMiB, 0, handle, 0), CUDA_ERROR_ALREADY_MAPPED);
  EXPECT_TRUE(Faults(bytes));
  Permit(address, 4 * kMiB);
  EXPECT_FALSE(Faults(bytes));
  bytes[5] = 7;
  EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
  EXPECT_EQ(before - Free(), 4 * kMiB);  // the mapping keeps it
  EXPECT_EQ(bytes[5], 7);
  EXPECT_EQ(cuMemAddressFree(address, 8 * kMiB), CUDA_ERROR_INVALID_VALUE);  // still mapped
  EXPECT_EQ(cuMemUnmap(address, 2 * kMiB), CUDA_ERROR_INVALID_VALUE);        // half a mapping
  ASSERT_EQ(cuMemUnmap(address, 4 * kMiB), CUDA_SUCCESS);
  EXPECT_EQ(Free(), before);
  EXPECT_TRUE(Faults(bytes));
  EXPECT_EQ(cuMemAddressFree(address, 8 * kMiB), CUDA_SUCCESS);
}

TEST_F(MemoryTest, CopyToMemoryWithoutAccessIsAnIllegalAddress) {
  CUcontext own = nullptr;
  ASSERT_EQ(cuCtxCreate(&own, nullptr, 0, 1), CUDA_SUCCESS);
  CUdeviceptr address = 0;
  CUmemGenericAllocationHandle handle = 0;
  const CUmemAllocationProp properties = DeviceProperties(1);
  ASSERT_EQ(cuMemAddressReserve(&address, 2 * kMiB, 0, 0, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemCreate(&handle, 2 * kMiB, &properties, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemMap(address, 2 * kMiB, 0, handle, 0), CUDA_SUCCESS);
  int value = 1;
  EXPECT_EQ(cuMemcpyHtoD(address, &value, 4), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);  // it stays
  ASSERT_EQ(cuMemUnmap(address, 2 * kMiB), CUDA_SUCCESS);
  ASSERT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
  ASSERT_EQ(cuMemAddressFree(address, 2 * kMiB), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxDestroy(own), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSetCurrent(context_), CUDA_SUCCESS);
}

// ---- between processes

int OpenMemory(int in, int out) {
  CUipcMemHandle handle;
  CUcontext context = nullptr;
  if (read(in, &handle, sizeof handle) != sizeof handle) return 1;
  if (cuInit(0) != CUDA_SUCCESS || cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS ||
      cuCtxSetCurrent(context) != CUDA_SUCCESS)
    return 2;
  size_t before = 0, after = 0, total = 0;
  cuMemGetInfo(&before, &total);
  CUdeviceptr pointer = 0;
  if (cuIpcOpenMemHandle(&pointer, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) != CUDA_SUCCESS)
    return 3;
  cuMemGetInfo(&after, &total);
  if (before != after) return 4;  // charged once, by its owner
  int value = 0;
  if (cuMemcpyDtoH(&value, pointer, 4) != CUDA_SUCCESS) return 5;
  if (write(out, &value, sizeof value) != sizeof value) return 6;
  value *= 2;
  if (cuMemcpyHtoD(pointer, &value, 4) != CUDA_SUCCESS) return 7;
  if (cuMemFree(pointer) != CUDA_ERROR_INVALID_VALUE) return 8;  // not its to free
  return cuIpcCloseMemHandle(pointer) == CUDA_SUCCESS ? 0 : 9;
}
const RegisterRole open_memory("open_memory", OpenMemory);

TEST_F(MemoryTest, AnotherProcessReadsAndWritesThroughAnIpcHandle) {
  const CUdeviceptr first = Allocate(1000),
                    pointer = Allocate(1000);  // the second of a shared page: an offset inside
  for (const CUdeviceptr own : {first, pointer}) {
    int value = own == first ? 111 : 222;
    ASSERT_EQ(cuMemcpyHtoD(own, &value, 4), CUDA_SUCCESS);
    CUipcMemHandle handle;
    ASSERT_EQ(cuIpcGetMemHandle(&handle, own), CUDA_SUCCESS);
    CUdeviceptr again = 0;
    EXPECT_EQ(cuIpcOpenMemHandle(&again, handle, 0),
              CUDA_ERROR_INVALID_CONTEXT);  // not in the same process
    Role peer("open_memory");
    peer.Send(handle);
    int seen = 0;
    ASSERT_TRUE(peer.Receive(&seen));
    EXPECT_EQ(seen, value);
    EXPECT_EQ(peer.Wait(), 0);
    int back = 0;
    ASSERT_EQ(cuMemcpyDtoH(&back, own, 4), CUDA_SUCCESS);
    EXPECT_EQ(back, 2 * value);
  }
  cuMemFree(first);
  cuMemFree(pointer);
}

int OccupyDevice(int in, int out) {
  CUcontext context = nullptr;
  if (cuInit(0) != CUDA_SUCCESS || cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS ||
      cuCtxSetCurrent(context) != CUDA_SUCCESS)
    return 2;
  CUdeviceptr pointer = 0;
  if (cuMemAlloc(&pointer, 100 * kGiB) != CUDA_SUCCESS) return 3;
  if (write(out, "x", 1) != 1) return 4;
  char go;
  return read(in, &go, 1) >= 0 ? 0 : 5;
}
const RegisterRole occupy_device("occupy_device", OccupyDevice);

TEST_F(MemoryTest, ProcessesShareADevicesMemoryAndKilledOnesGiveItBack) {
  const size_t before = Free();
  Role peer("occupy_device");
  char ready;
  ASSERT_TRUE(peer.Receive(&ready));
  EXPECT_EQ(before - Free(), 100 * kGiB + 550 * kMiB);
  CUdeviceptr pointer = 0;
  EXPECT_EQ(cuMemAlloc(&pointer, 60 * kGiB), CUDA_ERROR_OUT_OF_MEMORY);
  kill(peer.pid(), SIGKILL);
  peer.Wait();
  EXPECT_EQ(cuMemAlloc(&pointer, 60 * kGiB), CUDA_SUCCESS);
  cuMemFree(pointer);
  EXPECT_EQ(Free(), before);
}

TEST_F(MemoryTest, ExportedDescriptorIsImportedWithItsSizeAndDevice) {
  CUmemGenericAllocationHandle first = 0, second = 0, imported = 0;
  const CUmemAllocationProp properties = DeviceProperties();
  ASSERT_EQ(cuMemCreate(&first, 2 * kMiB, &properties, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemCreate(&second, 4 * kMiB, &properties, 0), CUDA_SUCCESS);
  int fd = -1;
  ASSERT_EQ(cuMemExportToShareableHandle(&fd, second, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
            CUDA_SUCCESS);
  ASSERT_EQ(
      cuMemImportFromShareableHandle(&imported, reinterpret_cast<void*>(static_cast<intptr_t>(fd)),
                                     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
      CUDA_SUCCESS);
  CUdeviceptr address = 0;
  ASSERT_EQ(cuMemAddressReserve(&address, 8 * kMiB, 0, 0, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemMap(address, 4 * kMiB, 0, second, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemMap(address + 4 * kMiB, 4 * kMiB, 0, imported, 0), CUDA_SUCCESS);
  Permit(address, 8 * kMiB);
  auto* bytes = reinterpret_cast<volatile char*>(address);
  bytes[10] = 5;
  EXPECT_EQ(bytes[4 * kMiB + 10], 5);
  ASSERT_EQ(cuMemUnmap(address, 8 * kMiB), CUDA_SUCCESS);
  ASSERT_EQ(cuMemAddressFree(address, 8 * kMiB), CUDA_SUCCESS);
  for (auto handle : {first, second, imported}) EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
  close(fd);
  const int other = memfd_create("other", 0);
  EXPECT_EQ(cuMemImportFromShareableHandle(&imported,
                                           reinterpret_cast<void*>(static_cast<intptr_t>(other)),
                                           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
            CUDA_ERROR_INVALID_VALUE);
  close(other);
}

int WaitForEvent(int in, int out) {
  CUipcEventHandle handle;
  CUcontext context = nullptr;
  if (read(in, &handle, sizeof handle) != sizeof handle) return 1;
  if (cuInit(0) != CUDA_SUCCESS || cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS ||
      cuCtxSetCurrent(context) != CUDA_SUCCESS)
    return 2;
  CUevent event = nullptr;
  CUstream stream = nullptr;
  if (cuIpcOpenEventHandle(&event, handle) != CUDA_SUCCESS ||
      cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS)
    return 3;
  if (cuEventQuery(event) != CUDA_ERROR_NOT_READY) return 4;
  if (cuStreamWaitEvent(stream, event, 0) != CUDA_SUCCESS ||
      cuStreamQuery(stream) != CUDA_ERROR_NOT_READY)
    return 5;
  if (write(out, "w", 1) != 1) return 6;
  const bool complete = cuStreamSynchronize(stream) == CUDA_SUCCESS &&
                        cuEventSynchronize(event) == CUDA_SUCCESS &&
                        cuEventQuery(event) == CUDA_SUCCESS;
  cuEventDestroy(event);
  cuStreamDestroy(stream);
  return complete ? 0 : 7;
}
const RegisterRole wait_for_event("wait_for_event", WaitForEvent);

TEST_F(MemoryTest, StreamOfAnotherProcessWaitsForAnIpcEvent) {
  CUevent event = nullptr;
  CUstream stream = nullptr;
  CUipcEventHandle handle;
  uint32_t* word = nullptr;
  EXPECT_EQ(cuEventCreate(&event, CU_EVENT_INTERPROCESS),
            CUDA_ERROR_INVALID_VALUE);  // timing must be off
  ASSERT_EQ(cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  ASSERT_EQ(cuMemHostAlloc(reinterpret_cast<void**>(&word), 64, 0), CUDA_SUCCESS);
  *word = 0;
  ASSERT_EQ(cuStreamWaitValue32(stream, reinterpret_cast<CUdeviceptr>(word), 1, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(event, stream), CUDA_SUCCESS);
  ASSERT_EQ(cuIpcGetEventHandle(&handle, event), CUDA_SUCCESS);
  Role peer("wait_for_event");
  peer.Send(handle);
  char waiting;
  ASSERT_TRUE(peer.Receive(&waiting));
  __atomic_store_n(word, 1, __ATOMIC_SEQ_CST);
  EXPECT_EQ(peer.Wait(), 0);
  EXPECT_EQ(cuEventQuery(event), CUDA_SUCCESS);
  cuMemFreeHost(word);
  cuEventDestroy(event);
  cuStreamDestroy(stream);
}

// ---- forking

int ForkEarly(int, int) {
  const pid_t child = fork();
  if (child == 0) {
    CUcontext context = nullptr;
    CUdeviceptr pointer = 0;
    _exit(cuInit(0) == CUDA_SUCCESS && cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS &&
                  cuCtxSetCurrent(context) == CUDA_SUCCESS &&
                  cuMemAlloc(&pointer, 1 << 22) == CUDA_SUCCESS
              ? 0
              : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (status != 0) return 1;
  return cuInit(0) == CUDA_SUCCESS ? 0 : 2;
}
const RegisterRole fork_early("fork_early", ForkEarly);

TEST(ForkTest, ChildForkedBeforeTheFirstCallWorks) {
  Role role("fork_early");
  EXPECT_EQ(role.Wait(), 0);
}

int ForkLate(int, int) {
  CUcontext context = nullptr;
  CUdeviceptr pointer = 0;
  if (cuInit(0) != CUDA_SUCCESS || cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS ||
      cuCtxSetCurrent(context) != CUDA_SUCCESS || cuMemAlloc(&pointer, 1 << 22) != CUDA_SUCCESS)
    return 9;
  const pid_t child = fork();
  if (child == 0) {
    int count = 0;
    const bool refused = cuInit(0) == CUDA_ERROR_NOT_INITIALIZED &&
                         cuDeviceGetCount(&count) == CUDA_ERROR_NOT_INITIALIZED &&
                         cuMemAlloc(&pointer, 16) == CUDA_ERROR_NOT_INITIALIZED;
    exit(refused ? 0 : 1);  // with exit handlers: the parent's membership must survive them
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (status != 0) return 1;
  size_t free = 0, total = 0;
  if (cuMemGetInfo(&free, &total) != CUDA_SUCCESS) return 2;
  return total - free == 554 * kMiB ? 0 : 3;
}
const RegisterRole fork_late("fork_late", ForkLate);

TEST(ForkTest, ChildForkedAfterInitializationIsRefused) {
  Role role("fork_late");
  EXPECT_EQ(role.Wait(), 0);
}

TEST(OptionsTest, ParsesByteSizes) {
  uint64_t bytes = 0;
  EXPECT_TRUE(hostcuda::ParseBytes("1048576", &bytes));
  EXPECT_EQ(bytes, kMiB);
  EXPECT_TRUE(hostcuda::ParseBytes("1.5GiB", &bytes));
  EXPECT_EQ(bytes, 3 * kGiB / 2);
  EXPECT_TRUE(hostcuda::ParseBytes("64MB", &bytes));
  EXPECT_EQ(bytes, 64 * kMiB);
  for (const char* wrong : {"", "x", "-1", "1QB", "1MiBs"})
    EXPECT_FALSE(hostcuda::ParseBytes(wrong, &bytes)) << wrong;
}

TEST(OptionsTest, ReferencePageListsEveryOption) {
  std::ifstream file(HOSTCUDA_SOURCE_DIR "/docs/reference/hostcuda-environment.md");
  const std::string page(std::istreambuf_iterator<char>(file), {});
  EXPECT_NE(page.find(hostcuda::OptionsMarkdown()), std::string::npos)
      << "put this table into the page:\n"
      << hostcuda::OptionsMarkdown();
}

int BadValues(int, int) {
  setenv("HOSTCUDA_VALUES", "some", 1);
  return cuInit(0) == CUDA_SUCCESS ? 0 : 1;
}
const RegisterRole bad_values("bad_values", BadValues);

TEST(OptionsTest, UnknownValueModeEndsTheProcessWith125) {
  Role role("bad_values");
  EXPECT_EQ(role.Wait(), 125);
}

}  // namespace

int main(int argc, char** argv) {
  hostcuda::testing::RunRole(argc, argv);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
