// The program's kernels: a host stub of each, registered with the CUDA runtime as nvcc's start-up
// code registers them, and its launch.
//
// A kernel has the parameters of its body and one more, the last: how long it takes, in
// nanoseconds. The device image is PTX in which every kernel returns at once; what it computes is
// its body, which hostcuda runs.
//
//   RegisterKernels(options.real);
//   kGemm.Launch(grid, stream, duration_ns, c, a, b, rows, columns, inner, form);
#ifndef MOE_TRAINER_KERNELS_H_
#define MOE_TRAINER_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

#include "examples/cpp/moe_trainer/hostcuda_link.h"
#include "examples/cpp/moe_trainer/kernel_bodies.h"

namespace moe_trainer {

class Kernel {
 public:
  const char* name() const { return name_; }
  const std::string& parameter_types() const { return types_; }  // PTX, separated by spaces
  KernelBody body() const { return body_; }
  KernelTime time() const { return time_; }
  /// What the runtime knows the kernel by.
  const void* stub() const { return this; }
  int number() const { return number_; }

 protected:
  Kernel(const char* kernel_name, std::string types, KernelBody run, KernelTime takes);
  void LaunchWith(unsigned grid, cudaStream_t stream, void** arguments) const;

 private:
  const char* name_;
  int number_;
  std::string types_;
  KernelBody body_;
  KernelTime time_;
};

template <class... Arguments>
class KernelOf : public Kernel {
 public:
  KernelOf(const char* kernel_name, KernelBody run)
      : Kernel(kernel_name, (... + PtxType<Arguments>()) + ".u64", run, &DurationOf) {}
  KernelOf(const KernelOf&) = delete;

  /// Throws where the launch is refused. Blocks of 256 threads.
  void Launch(unsigned grid, cudaStream_t stream, uint64_t duration_ns,
              std::type_identity_t<Arguments>... arguments) const {
    void* pointers[] = {const_cast<void*>(static_cast<const void*>(&arguments))..., &duration_ns};
    LaunchWith(grid, stream, pointers);
  }

 private:
  static unsigned long long DurationOf(const hostcudaLaunch* launch) {
    return *static_cast<uint64_t*>(launch->args[sizeof...(Arguments)]);
  }
  template <class T>
  static std::string PtxType() {
    if (std::is_pointer_v<T>) return ".u64 ";
    const std::string kind = std::is_floating_point_v<T> ? ".f" : ".u";
    return kind + std::to_string(8 * sizeof(T)) + " ";
  }
};

template <auto kBody>
struct BodyOf;
template <class... Arguments, void (*kBody)(Arguments...)>
struct BodyOf<kBody> {
  using KernelType = KernelOf<Arguments...>;
  static void Run(const hostcudaLaunch* launch) {
    [&]<size_t... kIndex>(std::index_sequence<kIndex...>) {
      kBody(*static_cast<Arguments*>(launch->args[kIndex])...);
    }
    (std::index_sequence_for<Arguments...>{});
  }
};
template <auto kBody>
using KernelFor = typename BodyOf<kBody>::KernelType;

#define MOE_TRAINER_KERNEL(variable, body, name) \
  inline const KernelFor<&body> variable { name, &BodyOf<&body>::Run }

MOE_TRAINER_KERNEL(kGemm, GemmBody, "gemm");
MOE_TRAINER_KERNEL(kEmbed, EmbedBody, "embed");
MOE_TRAINER_KERNEL(kEmbedGradient, EmbedGradientBody, "embed_gradient");
MOE_TRAINER_KERNEL(kAttention, AttentionBody, "attention");
MOE_TRAINER_KERNEL(kAttentionGradient, AttentionGradientBody, "attention_gradient");
MOE_TRAINER_KERNEL(kAdd, AddBody, "add");
MOE_TRAINER_KERNEL(kSilu, SiluBody, "silu");
MOE_TRAINER_KERNEL(kSiluGradient, SiluGradientBody, "silu_gradient");
MOE_TRAINER_KERNEL(kRoute, RouteBody, "route");
MOE_TRAINER_KERNEL(kRouteGradient, RouteGradientBody, "route_gradient");
MOE_TRAINER_KERNEL(kDispatch, DispatchBody, "dispatch");
MOE_TRAINER_KERNEL(kDispatchGradient, DispatchGradientBody, "dispatch_gradient");
MOE_TRAINER_KERNEL(kCombine, CombineBody, "combine");
MOE_TRAINER_KERNEL(kCombineGradient, CombineGradientBody, "combine_gradient");
MOE_TRAINER_KERNEL(kGroupRows, GroupRowsBody, "group_rows");
MOE_TRAINER_KERNEL(kExpertGemm, ExpertGemmBody, "expert_gemm");
MOE_TRAINER_KERNEL(kExpertWeightGradient, ExpertWeightGradientBody, "expert_weight_gradient");
MOE_TRAINER_KERNEL(kCrossEntropy, CrossEntropyBody, "cross_entropy");
MOE_TRAINER_KERNEL(kSgd, SgdBody, "sgd");
MOE_TRAINER_KERNEL(kDrawCounts, DrawCountsBody, "draw_counts");

#undef MOE_TRAINER_KERNEL

/// Registers all kernels with the runtime, and with hostcuda: under --real with their bodies, under
/// --timed with their durations only, except for those that decide what is communicated.
void RegisterKernels(bool real);

}  // namespace moe_trainer

#endif  // MOE_TRAINER_KERNELS_H_
