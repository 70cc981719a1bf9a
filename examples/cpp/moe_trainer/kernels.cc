#include "examples/cpp/moe_trainer/kernels.h"

#include <sstream>
#include <stdexcept>
#include <vector>

// What nvcc's start-up code calls; no header of the runtime declares them.
extern "C" {
void** __cudaRegisterFatBinary(void* image);
void __cudaRegisterFatBinaryEnd(void** handle);
void __cudaRegisterFunction(void** handle, const char* stub, char* device_function,
                            const char* device_name, int thread_limit, uint3* thread, uint3* block,
                            dim3* block_size, dim3* grid_size, int* warp_size);
}

namespace moe_trainer {
namespace {

std::vector<const Kernel*>& AllKernels() {
  static std::vector<const Kernel*> kernels;
  return kernels;
}

// The layout of fatbinary.h, for one uncompressed PTX text.
struct FatHeader {
  uint32_t magic = 0xba55ed50;
  uint16_t version = 1, header_bytes = 16;
  uint64_t bytes = 0;  // behind this header
};
struct FatEntry {
  uint16_t kind = 1, version = 0x101;  // PTX
  uint32_t header_bytes = 64;
  uint64_t payload_bytes = 0;
  uint32_t compressed_bytes = 0, options_offset = 0;
  uint16_t minor = 0, major = 8;
  uint32_t arch = 80, name_offset = 0, name_bytes = 0;
  uint64_t flags = 0x11, reserved[2] = {};
};
struct FatWrapper {
  uint32_t magic = 0x466243b1, version = 1;
  const void* data = nullptr;
  void* file_name = nullptr;
};
static_assert(sizeof(FatHeader) == 16 && sizeof(FatEntry) == 64 && sizeof(FatWrapper) == 24);

std::string Ptx() {
  std::ostringstream text;
  text << ".version 8.0\n.target sm_80\n.address_size 64\n";
  for (const Kernel* kernel : AllKernels()) {
    text << ".visible .entry " << kernel->name() << "(";
    std::istringstream types(kernel->parameter_types());
    std::string type;
    for (int i = 0; types >> type; ++i)
      text << (i == 0 ? "" : ", ") << ".param " << type << " " << kernel->name() << "_param_" << i;
    text << ") { ret; }\n";
  }
  return text.str();
}

}  // namespace

Kernel::Kernel(const char* kernel_name, std::string types, KernelBody run, KernelTime takes)
    : name_(kernel_name), types_(std::move(types)), body_(run), time_(takes) {
  number_ = static_cast<int>(AllKernels().size());
  AllKernels().push_back(this);
}

void Kernel::LaunchWith(unsigned grid, cudaStream_t stream, void** arguments) const {
  const cudaError_t error = cudaLaunchKernel(stub(), dim3(grid), dim3(256), arguments, 0, stream);
  if (error != cudaSuccess)
    throw std::runtime_error("launch of " + std::string(name_) + " with " + std::to_string(grid) +
                             " blocks: " + cudaGetErrorString(error));
}

void RegisterKernels(bool real) {
  // The image must live as long as the process.
  static std::string image;
  static FatWrapper wrapper;
  std::string ptx = Ptx();
  ptx.resize((ptx.size() + 8) / 8 * 8, '\0');  // ends on a zero, padded to 8 bytes
  FatEntry entry;
  entry.payload_bytes = ptx.size();
  FatHeader header;
  header.bytes = sizeof entry + ptx.size();
  image.assign(reinterpret_cast<const char*>(&header), sizeof header);
  image.append(reinterpret_cast<const char*>(&entry), sizeof entry);
  image += ptx;
  wrapper.data = image.data();
  void** handle = __cudaRegisterFatBinary(&wrapper);
  for (const Kernel* kernel : AllKernels())
    __cudaRegisterFunction(handle, static_cast<const char*>(kernel->stub()),
                           const_cast<char*>(kernel->name()), kernel->name(), -1, nullptr, nullptr,
                           nullptr, nullptr, nullptr);
  __cudaRegisterFatBinaryEnd(handle);
  for (const Kernel* kernel : AllKernels()) {
    const bool decides = kernel == &kDrawCounts;
    RegisterWithHostcuda(kernel->name(), real || decides ? kernel->body() : nullptr,
                         kernel->time());
  }
}

}  // namespace moe_trainer
