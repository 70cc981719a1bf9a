// Copies and sets.
#include "hostcuda/driver/copy.h"
#include "hostcuda/driver/entry.h"

using hostcuda::CopyShape;
using hostcuda::Direction;
using hostcuda::SetShape;

namespace {

CUresult Flat(uintptr_t destination, uintptr_t source, size_t bytes, CUstream handle,
              Direction direction, bool synchronous) {
  HC_STREAM(stream, handle);
  CopyShape shape;
  shape.destination = destination;
  shape.source = source;
  shape.width = bytes;
  return hostcuda::Copy(stream, shape, direction, synchronous);
}

uintptr_t Address(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); }

}  // namespace

HC_ENTRY CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount) {
  return Flat(dst, src, ByteCount, nullptr, Direction::kInfer, true);
}
HC_ENTRY CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount,
                                CUstream hStream) {
  return Flat(dst, src, ByteCount, hStream, Direction::kInfer, false);
}
HC_ENTRY CUresult cuMemcpyHtoD_v2(CUdeviceptr dstDevice, const void* srcHost, size_t ByteCount) {
  return Flat(dstDevice, Address(srcHost), ByteCount, nullptr, Direction::kHostToDevice, true);
}
HC_ENTRY CUresult cuMemcpyDtoH_v2(void* dstHost, CUdeviceptr srcDevice, size_t ByteCount) {
  return Flat(Address(dstHost), srcDevice, ByteCount, nullptr, Direction::kDeviceToHost, true);
}
HC_ENTRY CUresult cuMemcpyDtoD_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount) {
  return Flat(dstDevice, srcDevice, ByteCount, nullptr, Direction::kDeviceToDevice, false);
}
HC_ENTRY CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dstDevice, const void* srcHost, size_t ByteCount,
                                       CUstream hStream) {
  return Flat(dstDevice, Address(srcHost), ByteCount, hStream, Direction::kHostToDevice, false);
}
HC_ENTRY CUresult cuMemcpyDtoHAsync_v2(void* dstHost, CUdeviceptr srcDevice, size_t ByteCount,
                                       CUstream hStream) {
  return Flat(Address(dstHost), srcDevice, ByteCount, hStream, Direction::kDeviceToHost, false);
}
HC_ENTRY CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice,
                                       size_t ByteCount, CUstream hStream) {
  return Flat(dstDevice, srcDevice, ByteCount, hStream, Direction::kDeviceToDevice, false);
}
HC_ENTRY CUresult cuMemcpyPeer(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice,
                               CUcontext srcContext, size_t ByteCount) {
  (void)dstContext, (void)srcContext;
  return Flat(dstDevice, srcDevice, ByteCount, nullptr, Direction::kPeer, false);
}
HC_ENTRY CUresult cuMemcpyPeerAsync(CUdeviceptr dstDevice, CUcontext dstContext,
                                    CUdeviceptr srcDevice, CUcontext srcContext, size_t ByteCount,
                                    CUstream hStream) {
  (void)dstContext, (void)srcContext;
  return Flat(dstDevice, srcDevice, ByteCount, hStream, Direction::kPeer, false);
}

// ---- 2D and 3D

namespace {

/// Host, device or unified address of one side; arrays are not emulated.
bool Side(CUmemorytype type, const void* host, CUdeviceptr device, uintptr_t* address) {
  switch (type) {
    case CU_MEMORYTYPE_HOST:
      *address = Address(host);
      return true;
    case CU_MEMORYTYPE_DEVICE:
    case CU_MEMORYTYPE_UNIFIED:
      *address = device;
      return true;
    default:
      return false;
  }
}

CUresult Copy2D(const CUDA_MEMCPY2D* p, CUstream handle, bool synchronous, const char* function) {
  if (p == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CopyShape shape;
  if (!Side(p->srcMemoryType, p->srcHost, p->srcDevice, &shape.source) ||
      !Side(p->dstMemoryType, p->dstHost, p->dstDevice, &shape.destination)) {
    return hostcuda::NotEmulated(function, "a copy from or to an array");
  }
  shape.width = p->WidthInBytes;
  shape.height = p->Height;
  if (shape.width == 0 || shape.height == 0) return CUDA_SUCCESS;
  shape.source_pitch = p->srcPitch != 0 ? p->srcPitch : shape.width;
  shape.destination_pitch = p->dstPitch != 0 ? p->dstPitch : shape.width;
  if (shape.source_pitch < p->srcXInBytes + shape.width && shape.height > 1)
    return CUDA_ERROR_INVALID_VALUE;
  if (shape.destination_pitch < p->dstXInBytes + shape.width && shape.height > 1)
    return CUDA_ERROR_INVALID_VALUE;
  shape.source += p->srcY * shape.source_pitch + p->srcXInBytes;
  shape.destination += p->dstY * shape.destination_pitch + p->dstXInBytes;
  HC_STREAM(stream, handle);
  return hostcuda::Copy(stream, shape, Direction::kInfer, synchronous);
}

template <class Parameters>
CUresult Copy3D(const Parameters* p, CUstream handle, bool synchronous, const char* function) {
  if (p == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (p->WidthInBytes == 0 || p->Height == 0 || p->Depth == 0) return CUDA_SUCCESS;
  CopyShape shape;
  if (!hostcuda::ShapeOf(*p, &shape))
    return hostcuda::NotEmulated(function, "a copy from or to an array");
  HC_STREAM(stream, handle);
  return hostcuda::Copy(stream, shape, Direction::kInfer, synchronous);
}

}  // namespace

HC_ENTRY CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D* pCopy) {
  return Copy2D(pCopy, nullptr, true, "cuMemcpy2D");
}
HC_ENTRY CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D* pCopy) {
  return Copy2D(pCopy, nullptr, true, "cuMemcpy2DUnaligned");
}
HC_ENTRY CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D* pCopy, CUstream hStream) {
  return Copy2D(pCopy, hStream, false, "cuMemcpy2DAsync");
}
HC_ENTRY CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D* pCopy) {
  return Copy3D(pCopy, nullptr, true, "cuMemcpy3D");
}
HC_ENTRY CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D* pCopy, CUstream hStream) {
  return Copy3D(pCopy, hStream, false, "cuMemcpy3DAsync");
}
HC_ENTRY CUresult cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER* pCopy) {
  return Copy3D(pCopy, nullptr, true, "cuMemcpy3DPeer");
}
HC_ENTRY CUresult cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER* pCopy, CUstream hStream) {
  return Copy3D(pCopy, hStream, false, "cuMemcpy3DPeerAsync");
}

HC_ENTRY CUresult cuMemcpyBatchAsync_v2(CUdeviceptr* dsts, CUdeviceptr* srcs, size_t* sizes,
                                        size_t count, CUmemcpyAttributes* attrs, size_t* attrsIdxs,
                                        size_t numAttrs, CUstream hStream) {
  (void)attrs, (void)attrsIdxs,
      (void)numAttrs;  // hints about access order: stream order satisfies all of them
  if (dsts == nullptr || srcs == nullptr || sizes == nullptr || count == 0)
    return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i) {
    const CUresult result = Flat(dsts[i], srcs[i], sizes[i], hStream, Direction::kInfer, false);
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

// ---- sets

namespace {

CUresult Fill(CUdeviceptr destination, size_t pitch, uint32_t value, uint32_t element, size_t width,
              size_t height, CUstream handle, bool synchronous) {
  HC_STREAM(stream, handle);
  SetShape shape;
  shape.destination = destination;
  shape.pitch = pitch;
  shape.value = value;
  shape.element = element;
  shape.width = width;
  shape.height = height;
  if (height > 1 && pitch < width * element) return CUDA_ERROR_INVALID_VALUE;
  return hostcuda::Set(stream, shape, synchronous);
}

}  // namespace

HC_ENTRY CUresult cuMemsetD8_v2(CUdeviceptr dstDevice, unsigned char uc, size_t N) {
  return Fill(dstDevice, 0, uc, 1, N, 1, nullptr, false);
}
HC_ENTRY CUresult cuMemsetD16_v2(CUdeviceptr dstDevice, unsigned short us, size_t N) {
  return Fill(dstDevice, 0, us, 2, N, 1, nullptr, false);
}
HC_ENTRY CUresult cuMemsetD32_v2(CUdeviceptr dstDevice, unsigned int ui, size_t N) {
  return Fill(dstDevice, 0, ui, 4, N, 1, nullptr, false);
}
HC_ENTRY CUresult cuMemsetD8Async(CUdeviceptr dstDevice, unsigned char uc, size_t N,
                                  CUstream hStream) {
  return Fill(dstDevice, 0, uc, 1, N, 1, hStream, false);
}
HC_ENTRY CUresult cuMemsetD16Async(CUdeviceptr dstDevice, unsigned short us, size_t N,
                                   CUstream hStream) {
  return Fill(dstDevice, 0, us, 2, N, 1, hStream, false);
}
HC_ENTRY CUresult cuMemsetD32Async(CUdeviceptr dstDevice, unsigned int ui, size_t N,
                                   CUstream hStream) {
  return Fill(dstDevice, 0, ui, 4, N, 1, hStream, false);
}
HC_ENTRY CUresult cuMemsetD2D8_v2(CUdeviceptr dstDevice, size_t dstPitch, unsigned char uc,
                                  size_t Width, size_t Height) {
  return Fill(dstDevice, dstPitch, uc, 1, Width, Height, nullptr, false);
}
HC_ENTRY CUresult cuMemsetD2D16_v2(CUdeviceptr dstDevice, size_t dstPitch, unsigned short us,
                                   size_t Width, size_t Height) {
  return Fill(dstDevice, dstPitch, us, 2, Width, Height, nullptr, false);
}
HC_ENTRY CUresult cuMemsetD2D32_v2(CUdeviceptr dstDevice, size_t dstPitch, unsigned int ui,
                                   size_t Width, size_t Height) {
  return Fill(dstDevice, dstPitch, ui, 4, Width, Height, nullptr, false);
}
HC_ENTRY CUresult cuMemsetD2D8Async(CUdeviceptr dstDevice, size_t dstPitch, unsigned char uc,
                                    size_t Width, size_t Height, CUstream hStream) {
  return Fill(dstDevice, dstPitch, uc, 1, Width, Height, hStream, false);
}
HC_ENTRY CUresult cuMemsetD2D16Async(CUdeviceptr dstDevice, size_t dstPitch, unsigned short us,
                                     size_t Width, size_t Height, CUstream hStream) {
  return Fill(dstDevice, dstPitch, us, 2, Width, Height, hStream, false);
}
HC_ENTRY CUresult cuMemsetD2D32Async(CUdeviceptr dstDevice, size_t dstPitch, unsigned int ui,
                                     size_t Width, size_t Height, CUstream hStream) {
  return Fill(dstDevice, dstPitch, ui, 4, Width, Height, hStream, false);
}
