// Launches, graphs, host functions and module loads.
#include <cuda.h>

#include <atomic>
#include <cstdio>
#include <mutex>
#include <unordered_map>

#include "src/interpose/driver/kernel_parameters.h"
#include "src/interpose/driver/numbers.h"
#include "src/interpose/driver/rounds.h"
#include "src/interpose/driver/route.h"
#include "src/interpose/driver/span_timer.h"

namespace prism::interpose::driver {
namespace {

void Launching(CUstream stream, bool per_thread) {
  if (InNccl()) {
    SpanTimer::Get().BeforeNcclKernel(stream);
  } else {
    SpanTimer::Get().BeforeLaunch(stream, per_thread);
  }
}

void Launched(CUfunction function, const uint32_t (&grid)[3], const uint32_t (&block)[3],
              uint32_t shared_bytes, CUstream stream, bool per_thread, void** parameters,
              void** extra) {
  if (InNccl()) return SpanTimer::Get().AfterNcclKernel(stream);
  trace::Writer* writer = Rank::Get().writer();
  if (writer == nullptr || IsCapturing(stream, per_thread)) return;
  HostClock::Enqueued(writer);
  const LaunchShape shape{
      function, {grid[0], grid[1], grid[2]}, {block[0], block[1], block[2]}, shared_bytes};
  const LaunchKind kind = LaunchKindOf(writer, function, grid, block, shared_bytes,
                                       KernelParameters(shape, parameters, extra));
  writer->Launch(StreamNumber(writer, stream, per_thread), kind.number);
  Rounds::Get().Launched(kind.updates);
}

CUresult LaunchKernel(Route real, CUfunction function, unsigned grid_x, unsigned grid_y,
                      unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z,
                      unsigned shared_bytes, CUstream stream, void** parameters, void** extra) {
  Launching(stream, real.per_thread);
  const CUresult result = real(function, grid_x, grid_y, grid_z, block_x, block_y, block_z,
                               shared_bytes, stream, parameters, extra);
  if (result == CUDA_SUCCESS) {
    Launched(function, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes, stream,
             real.per_thread, parameters, extra);
  }
  return result;
}

CUresult LaunchCooperativeKernel(Route real, CUfunction function, unsigned grid_x, unsigned grid_y,
                                 unsigned grid_z, unsigned block_x, unsigned block_y,
                                 unsigned block_z, unsigned shared_bytes, CUstream stream,
                                 void** parameters) {
  Launching(stream, real.per_thread);
  const CUresult result = real(function, grid_x, grid_y, grid_z, block_x, block_y, block_z,
                               shared_bytes, stream, parameters);
  if (result == CUDA_SUCCESS) {
    Launched(function, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes, stream,
             real.per_thread, parameters, nullptr);
  }
  return result;
}

CUresult LaunchKernelEx(Route real, const CUlaunchConfig* config, CUfunction function,
                        void** parameters, void** extra) {
  Launching(config->hStream, real.per_thread);
  const CUresult result = real(config, function, parameters, extra);
  if (result == CUDA_SUCCESS) {
    Launched(function, {config->gridDimX, config->gridDimY, config->gridDimZ},
             {config->blockDimX, config->blockDimY, config->blockDimZ}, config->sharedMemBytes,
             config->hStream, real.per_thread, parameters, extra);
  }
  return result;
}

CUresult LaunchHostFunc(Route real, CUstream stream, CUhostFn function, void* argument) {
  SpanTimer::Get().BeforeNode(stream, real.per_thread);
  const CUresult result = real(stream, function, argument);
  if (trace::Writer* writer = Rank::Get().writer();
      writer != nullptr && result == CUDA_SUCCESS && !IsCapturing(stream, real.per_thread)) {
    HostClock::CountSoFar(writer);
    writer->StreamNode(StreamNumber(writer, stream, real.per_thread), trace::NodeKind::kHostFunc);
  }
  return result;
}

CUresult StreamAddCallback(Route real, CUstream stream, CUstreamCallback callback, void* argument,
                           unsigned flags) {
  SpanTimer::Get().BeforeNode(stream, real.per_thread);
  const CUresult result = real(stream, callback, argument, flags);
  if (trace::Writer* writer = Rank::Get().writer(); writer != nullptr && result == CUDA_SUCCESS) {
    HostClock::CountSoFar(writer);
    writer->StreamNode(StreamNumber(writer, stream, real.per_thread), trace::NodeKind::kHostFunc);
  }
  return result;
}

struct Graphs {
  std::mutex mutex;
  std::unordered_map<CUgraphExec, uint32_t> kernel;  // the writer's number
};
Graphs& GetGraphs() {
  static auto* graphs = new Graphs;
  return *graphs;
}

void Instantiated(CUgraphExec exec, CUgraph graph) {
  trace::Writer* writer = Rank::Get().writer();
  if (writer == nullptr) return;
  size_t nodes = 0;
  PRISM_REAL(cuGraphGetNodes)(graph, static_cast<CUgraphNode*>(nullptr), &nodes);
  char name[64];
  snprintf(name, sizeof name, "graph of %zu nodes", nodes);
  const uint32_t one[3] = {1, 1, 1};
  const uint32_t number = writer->Kernel(trace::KernelKind::kGraph, name, one, one, 0, 0);
  Graphs& graphs = GetGraphs();
  std::lock_guard lock(graphs.mutex);
  graphs.kernel[exec] = number;
}

CUresult GraphInstantiateWithFlags(Route real, CUgraphExec* exec, CUgraph graph,
                                   unsigned long long flags) {
  const CUresult result = real(exec, graph, flags);
  if (result == CUDA_SUCCESS) Instantiated(*exec, graph);
  return result;
}

CUresult GraphInstantiateWithParams(Route real, CUgraphExec* exec, CUgraph graph,
                                    CUDA_GRAPH_INSTANTIATE_PARAMS* parameters) {
  const CUresult result = real(exec, graph, parameters);
  if (result == CUDA_SUCCESS) Instantiated(*exec, graph);
  return result;
}

CUresult GraphExecDestroy(Route real, CUgraphExec exec) {
  {
    Graphs& graphs = GetGraphs();
    std::lock_guard lock(graphs.mutex);
    graphs.kernel.erase(exec);
  }
  return real(exec);
}

CUresult GraphLaunch(Route real, CUgraphExec exec, CUstream stream) {
  SpanTimer::Get().BeforeLaunch(stream, real.per_thread);
  const CUresult result = real(exec, stream);
  trace::Writer* writer = Rank::Get().writer();
  if (writer == nullptr || result != CUDA_SUCCESS) return result;
  Graphs& graphs = GetGraphs();
  uint32_t number;
  {
    std::lock_guard lock(graphs.mutex);
    const auto found = graphs.kernel.find(exec);
    if (found == graphs.kernel.end()) return result;
    number = found->second;
  }
  HostClock::CountSoFar(writer);
  writer->Launch(StreamNumber(writer, stream, real.per_thread), number);
  return result;
}

CUresult ModuleUnload(Route real, CUmodule module) {
  const CUresult result = real(module);
  KernelsUnloaded();
  return result;
}

CUresult LibraryUnload(Route real, CUlibrary library) {
  const CUresult result = real(library);
  KernelsUnloaded();
  return result;
}

// Loads are only counted and timed (CallScope): their device memory is part of the context's.
CUresult ModuleLoad(Route real, CUmodule* module, const char* path) { return real(module, path); }
CUresult ModuleLoadData(Route real, CUmodule* module, const void* image) {
  return real(module, image);
}
CUresult ModuleLoadDataEx(Route real, CUmodule* module, const void* image, unsigned count,
                          CUjit_option* options, void** values) {
  return real(module, image, count, options, values);
}
CUresult LibraryLoadData(Route real, CUlibrary* library, const void* code,
                         CUjit_option* jit_options, void** jit_values, unsigned jit_count,
                         CUlibraryOption* options, void** values, unsigned count) {
  return real(library, code, jit_options, jit_values, jit_count, options, values, count);
}

const Wrapper kWrappers[] = {
    PRISM_WRAP_PTSZ(cuLaunchKernel, LaunchKernel),
    PRISM_WRAP_PTSZ(cuLaunchKernelEx, LaunchKernelEx),
    PRISM_WRAP_PTSZ(cuLaunchCooperativeKernel, LaunchCooperativeKernel),
    PRISM_WRAP_PTSZ(cuLaunchHostFunc, LaunchHostFunc),
    PRISM_WRAP_PTSZ(cuStreamAddCallback, StreamAddCallback),
    PRISM_WRAP(cuGraphInstantiateWithFlags, GraphInstantiateWithFlags),
    PRISM_WRAP_PTSZ(cuGraphInstantiateWithParams, GraphInstantiateWithParams),
    PRISM_WRAP(cuGraphExecDestroy, GraphExecDestroy),
    PRISM_WRAP_PTSZ(cuGraphLaunch, GraphLaunch),
    PRISM_WRAP(cuModuleLoad, ModuleLoad),
    PRISM_WRAP(cuModuleLoadData, ModuleLoadData),
    PRISM_WRAP(cuModuleLoadDataEx, ModuleLoadDataEx),
    PRISM_WRAP(cuModuleUnload, ModuleUnload),
    PRISM_WRAP(cuLibraryLoadData, LibraryLoadData),
    PRISM_WRAP(cuLibraryUnload, LibraryUnload),
};

}  // namespace

std::span<const Wrapper> LaunchWrappers() { return kWrappers; }

}  // namespace prism::interpose::driver
