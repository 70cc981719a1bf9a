// cuDNN's classic interface by hand: handles, tensor, filter, convolution and RNN descriptors,
// convolutions, and the layout of RNN weights. What only launches a kernel named after its
// descriptors is generated.
#include <algorithm>
#include <cstring>
#include <new>

#include "hostcuda/libraries/cudnn_descriptors.h"

namespace hostcuda {
namespace {

template <typename Descriptor>
cudnnStatus_t Create(Descriptor** out) noexcept {
  if (!out) return CUDNN_STATUS_BAD_PARAM;
  *out = new (std::nothrow) Descriptor;
  return *out ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_ALLOC_FAILED;
}
template <typename Descriptor>
cudnnStatus_t Destroy(Descriptor* descriptor) noexcept {
  if (descriptor && !Valid(descriptor)) return CUDNN_STATUS_BAD_PARAM;
  delete descriptor;
  return CUDNN_STATUS_SUCCESS;
}

template <typename Descriptor>
void Summarize(Descriptor* d) {
  std::array<int64_t, CUDNN_DIM_MAX> dims{};
  std::copy_n(d->dims.begin(), d->rank, dims.begin());
  d->summary = std::string(CudnnTypeName(d->type)) + "_" +
               Extents({dims.data(), static_cast<size_t>(d->rank)});
}

// Null strides: packed, in the order of `format`.
cudnnStatus_t SetTensor(cudnnTensorStruct* t, cudnnDataType_t type, int rank, const int* dims,
                        const int* strides,
                        cudnnTensorFormat_t format = CUDNN_TENSOR_NCHW) noexcept {
  if (!Valid(t) || !dims || rank < 1 || rank > CUDNN_DIM_MAX || CudnnTypeBytes(type) == 0)
    return CUDNN_STATUS_BAD_PARAM;
  if (std::any_of(dims, dims + rank, [](int d) { return d < 1; })) return CUDNN_STATUS_BAD_PARAM;
  t->type = type;
  t->rank = rank;
  std::copy_n(dims, rank, t->dims.begin());
  if (strides) {
    std::copy_n(strides, rank, t->strides.begin());
  } else {
    int stride = 1;
    if (format == CUDNN_TENSOR_NHWC && rank > 2) {
      t->strides[1] = 1;
      stride = dims[1];
      for (int i = rank - 1; i > 1; --i)
        stride *= (t->strides[static_cast<size_t>(i)] = stride, dims[i]);
      t->strides[0] = stride;
    } else {
      for (int i = rank - 1; i >= 0; --i)
        stride *= (t->strides[static_cast<size_t>(i)] = stride, dims[i]);
    }
  }
  Summarize(t);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t SetFilter(cudnnFilterStruct* f, cudnnDataType_t type, cudnnTensorFormat_t format,
                        int rank, const int* dims) noexcept {
  if (!Valid(f) || !dims || rank < 1 || rank > CUDNN_DIM_MAX || CudnnTypeBytes(type) == 0)
    return CUDNN_STATUS_BAD_PARAM;
  f->type = type;
  f->format = format;
  f->rank = rank;
  std::copy_n(dims, rank, f->dims.begin());
  Summarize(f);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t SetConvolution(cudnnConvolutionStruct* c, int spatial, const int* padding,
                             const int* stride, const int* dilation, cudnnConvolutionMode_t mode,
                             cudnnDataType_t compute) noexcept {
  if (!Valid(c) || !padding || !stride || !dilation || spatial < 1 || spatial > CUDNN_DIM_MAX - 2)
    return CUDNN_STATUS_BAD_PARAM;
  c->spatial = spatial;
  std::copy_n(padding, spatial, c->padding.begin());
  std::copy_n(stride, spatial, c->stride.begin());
  std::copy_n(dilation, spatial, c->dilation.begin());
  c->mode = mode;
  c->compute = compute;
  return CUDNN_STATUS_SUCCESS;
}

int OutputExtent(int in, int kernel, int padding, int stride, int dilation) {
  return 1 + (in + 2 * padding - ((kernel - 1) * dilation + 1)) / stride;
}

// The shape of a convolution whose input is x, weights w and output y; null if the three do not fit
// together.
bool Matches(const cudnnTensorStruct* x, const cudnnFilterStruct* w,
             const cudnnConvolutionStruct* c, const cudnnTensorStruct* y) noexcept {
  if (!Valid(x) || !Valid(w) || !Valid(c) || !Valid(y)) return false;
  if (x->rank != w->rank || x->rank != y->rank || x->rank != c->spatial + 2) return false;
  if (x->dims[0] != y->dims[0] || y->dims[1] != w->dims[0] || x->dims[1] != w->dims[1] * c->groups)
    return false;
  for (size_t i = 0; i < static_cast<size_t>(c->spatial); ++i) {
    if (y->dims[i + 2] !=
        OutputExtent(x->dims[i + 2], w->dims[i + 2], c->padding[i], c->stride[i], c->dilation[i]))
      return false;
  }
  return true;
}

cudnnStatus_t Convolve(cudnnHandle_t handle, const char* kind, const cudnnTensorStruct* x,
                       const cudnnFilterStruct* w, const cudnnConvolutionStruct* c,
                       const cudnnTensorStruct* y, const char* suffix = "") noexcept {
  if (!Valid(handle)) return CUDNN_STATUS_NOT_INITIALIZED;
  if (!Matches(x, w, c, y)) return CUDNN_STATUS_BAD_PARAM;
  std::array<int64_t, CUDNN_DIM_MAX> in{}, kernel{}, out{};
  const auto spatial = static_cast<size_t>(c->spatial);
  std::copy_n(x->dims.begin() + 2, spatial, in.begin());
  std::copy_n(w->dims.begin() + 2, spatial, kernel.begin());
  std::copy_n(y->dims.begin() + 2, spatial, out.begin());
  uint64_t elements = static_cast<uint64_t>(y->dims[0]) * static_cast<uint64_t>(y->dims[1]);
  for (size_t i = 0; i < spatial; ++i) elements *= static_cast<uint64_t>(out[i]);
  const ConvolutionShape shape{kind,
                               x->type,
                               c->compute,
                               x->dims[0],
                               x->dims[1],
                               y->dims[1],
                               c->groups,
                               {in.data(), spatial},
                               {kernel.data(), spatial},
                               {out.data(), spatial}};
  return CudnnStatus(
      LaunchNamed(handle->stream, ConvolutionName(shape) + suffix, GridFor(elements)));
}

// Fills the one entry of a list of algorithms. `time_ms` is -1 where nothing was measured, as
// cuDNN's heuristics say it.
template <typename Result, typename Algorithm>
cudnnStatus_t Algorithms(bool matches, Algorithm algorithm, cudnnMathType_t math, int requested,
                         int* returned, Result* results) noexcept {
  if (!matches || requested < 1 || !results) return CUDNN_STATUS_BAD_PARAM;
  memset(results, 0, sizeof *results);
  results->algo = algorithm;
  results->status = CUDNN_STATUS_SUCCESS;
  results->time = -1;
  results->determinism = CUDNN_DETERMINISTIC;
  results->mathType = math;
  if (returned) *returned = 1;
  return CUDNN_STATUS_SUCCESS;
}

// ---- RNN weights: for each pseudo-layer the matrices of the input, of the recurrence and of the
// projection; behind all matrices the biases in the same order. Gates of one kind are contiguous.
int Gates(cudnnRNNMode_t cell) {
  switch (cell) {
    case CUDNN_LSTM:
      return 4;
    case CUDNN_GRU:
      return 3;
    default:
      return 1;
  }
}
int Directions(const cudnnRNNStruct& r) { return r.direction == CUDNN_BIDIRECTIONAL ? 2 : 1; }
bool Projects(const cudnnRNNStruct& r) {
  return r.projection_size > 0 && r.projection_size != r.hidden_size;
}
int Recurrent(const cudnnRNNStruct& r) { return Projects(r) ? r.projection_size : r.hidden_size; }
int InputOf(const cudnnRNNStruct& r, int pseudo_layer) {
  return pseudo_layer / Directions(r) == 0 ? r.input_size : Recurrent(r) * Directions(r);
}
// With CUDNN_SKIP_INPUT the first layer has no input matrices.
bool HasInputMatrix(const cudnnRNNStruct& r, int pseudo_layer) {
  return r.input == CUDNN_LINEAR_INPUT || pseudo_layer / Directions(r) > 0;
}

size_t MatrixElements(const cudnnRNNStruct& r, int pseudo_layer) {
  const size_t gates = static_cast<size_t>(Gates(r.cell)),
               hidden = static_cast<size_t>(r.hidden_size);
  size_t n = gates * hidden * static_cast<size_t>(Recurrent(r));
  if (HasInputMatrix(r, pseudo_layer))
    n += gates * hidden * static_cast<size_t>(InputOf(r, pseudo_layer));
  if (Projects(r)) n += hidden * static_cast<size_t>(r.projection_size);
  return n;
}
int BiasSets(const cudnnRNNStruct& r) {
  switch (r.bias) {
    case CUDNN_RNN_NO_BIAS:
      return 0;
    case CUDNN_RNN_DOUBLE_BIAS:
      return 2;
    default:
      return 1;
  }
}
size_t BiasElements(const cudnnRNNStruct& r) {
  return static_cast<size_t>(BiasSets(r) * Gates(r.cell)) * static_cast<size_t>(r.hidden_size);
}
int PseudoLayers(const cudnnRNNStruct& r) { return r.layers * Directions(r); }

size_t AllMatrices(const cudnnRNNStruct& r) {
  size_t n = 0;
  for (int layer = 0; layer < PseudoLayers(r); ++layer) n += MatrixElements(r, layer);
  return n;
}

}  // namespace
}  // namespace hostcuda

using namespace hostcuda;  // NOLINT: the rest of this file is the C interface

extern "C" {

cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  if (!handle) return CUDNN_STATUS_BAD_PARAM;
  if (EnsureContext() != CUDA_SUCCESS) return CUDNN_STATUS_NOT_INITIALIZED;
  return Create(handle);
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) { return Destroy(handle); }
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  if (!Valid(handle)) return CUDNN_STATUS_NOT_INITIALIZED;
  handle->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t* stream) {
  if (!Valid(handle)) return CUDNN_STATUS_NOT_INITIALIZED;
  if (!stream) return CUDNN_STATUS_BAD_PARAM;
  *stream = handle->stream;
  return CUDNN_STATUS_SUCCESS;
}
size_t cudnnGetVersion(void) { return CUDNN_VERSION; }
size_t cudnnGetMaxDeviceVersion(void) { return CUDNN_VERSION; }
size_t cudnnGetCudartVersion(void) { return CUDA_VERSION; }
// Errors are announced on stderr where they arise; there is no text to repeat.
void cudnnGetLastErrorString(char* message, size_t size) {
  if (message && size) message[0] = '\0';
}
cudnnStatus_t cudnnQueryRuntimeError(cudnnHandle_t handle, cudnnStatus_t* status,
                                     cudnnErrQueryMode_t, cudnnRuntimeTag_t*) {
  if (!Valid(handle) || !status) return CUDNN_STATUS_BAD_PARAM;
  *status = CUDNN_STATUS_SUCCESS;
  return CUDNN_STATUS_SUCCESS;
}
// One library, so its parts are of one version.
cudnnStatus_t cudnnOpsVersionCheck(void) { return CUDNN_STATUS_SUCCESS; }
cudnnStatus_t cudnnCnnVersionCheck(void) { return CUDNN_STATUS_SUCCESS; }
cudnnStatus_t cudnnAdvVersionCheck(void) { return CUDNN_STATUS_SUCCESS; }
cudnnStatus_t cudnnGraphVersionCheck(void) { return CUDNN_STATUS_SUCCESS; }

// ---- tensors and filters
cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t* t) { return Create(t); }
cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t t) { return Destroy(t); }
cudnnStatus_t cudnnSetTensorNdDescriptor(cudnnTensorDescriptor_t t, cudnnDataType_t type, int rank,
                                         const int dims[], const int strides[]) {
  return strides ? SetTensor(t, type, rank, dims, strides) : CUDNN_STATUS_BAD_PARAM;
}
cudnnStatus_t cudnnSetTensorNdDescriptorEx(cudnnTensorDescriptor_t t, cudnnTensorFormat_t format,
                                           cudnnDataType_t type, int rank, const int dims[]) {
  return SetTensor(t, type, rank, dims, nullptr, format);
}
cudnnStatus_t cudnnSetTensor4dDescriptor(cudnnTensorDescriptor_t t, cudnnTensorFormat_t format,
                                         cudnnDataType_t type, int n, int c, int h, int w) {
  const int dims[] = {n, c, h, w};
  return SetTensor(t, type, 4, dims, nullptr, format);
}
cudnnStatus_t cudnnSetTensor4dDescriptorEx(cudnnTensorDescriptor_t t, cudnnDataType_t type, int n,
                                           int c, int h, int w, int ns, int cs, int hs, int ws) {
  const int dims[] = {n, c, h, w}, strides[] = {ns, cs, hs, ws};
  return SetTensor(t, type, 4, dims, strides);
}
cudnnStatus_t cudnnGetTensorNdDescriptor(const cudnnTensorDescriptor_t t, int requested,
                                         cudnnDataType_t* type, int* rank, int dims[],
                                         int strides[]) {
  if (!Valid(t)) return CUDNN_STATUS_BAD_PARAM;
  const int n = std::min(requested, t->rank);
  if (type) *type = t->type;
  if (rank) *rank = t->rank;
  if (dims && n > 0) std::copy_n(t->dims.begin(), n, dims);
  if (strides && n > 0) std::copy_n(t->strides.begin(), n, strides);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetTensor4dDescriptor(const cudnnTensorDescriptor_t t, cudnnDataType_t* type,
                                         int* n, int* c, int* h, int* w, int* ns, int* cs, int* hs,
                                         int* ws) {
  if (!Valid(t) || t->rank != 4) return CUDNN_STATUS_BAD_PARAM;
  if (type) *type = t->type;
  int* const dims[] = {n, c, h, w};
  int* const strides[] = {ns, cs, hs, ws};
  for (size_t i = 0; i < 4; ++i) {
    if (dims[i]) *dims[i] = t->dims[i];
    if (strides[i]) *strides[i] = t->strides[i];
  }
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetTensorSizeInBytes(const cudnnTensorDescriptor_t t, size_t* size) {
  if (!Valid(t) || !size) return CUDNN_STATUS_BAD_PARAM;
  size_t last = 0;  // the highest element that the strides reach
  for (size_t i = 0; i < static_cast<size_t>(t->rank); ++i)
    last += static_cast<size_t>(t->dims[i] - 1) * static_cast<size_t>(t->strides[i]);
  *size = t->rank ? (last + 1) * CudnnTypeBytes(t->type) : 0;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnCreateFilterDescriptor(cudnnFilterDescriptor_t* f) { return Create(f); }
cudnnStatus_t cudnnDestroyFilterDescriptor(cudnnFilterDescriptor_t f) { return Destroy(f); }
cudnnStatus_t cudnnSetFilterNdDescriptor(cudnnFilterDescriptor_t f, cudnnDataType_t type,
                                         cudnnTensorFormat_t format, int rank, const int dims[]) {
  return SetFilter(f, type, format, rank, dims);
}
cudnnStatus_t cudnnSetFilter4dDescriptor(cudnnFilterDescriptor_t f, cudnnDataType_t type,
                                         cudnnTensorFormat_t format, int k, int c, int h, int w) {
  const int dims[] = {k, c, h, w};
  return SetFilter(f, type, format, 4, dims);
}
cudnnStatus_t cudnnGetFilterNdDescriptor(const cudnnFilterDescriptor_t f, int requested,
                                         cudnnDataType_t* type, cudnnTensorFormat_t* format,
                                         int* rank, int dims[]) {
  if (!Valid(f)) return CUDNN_STATUS_BAD_PARAM;
  const int n = std::min(requested, f->rank);
  if (type) *type = f->type;
  if (format) *format = f->format;
  if (rank) *rank = f->rank;
  if (dims && n > 0) std::copy_n(f->dims.begin(), n, dims);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetFilter4dDescriptor(const cudnnFilterDescriptor_t f, cudnnDataType_t* type,
                                         cudnnTensorFormat_t* format, int* k, int* c, int* h,
                                         int* w) {
  if (!Valid(f) || f->rank != 4) return CUDNN_STATUS_BAD_PARAM;
  if (type) *type = f->type;
  if (format) *format = f->format;
  int* const dims[] = {k, c, h, w};
  for (size_t i = 0; i < 4; ++i) {
    if (dims[i]) *dims[i] = f->dims[i];
  }
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetFilterSizeInBytes(const cudnnFilterDescriptor_t f, size_t* size) {
  if (!Valid(f) || !size) return CUDNN_STATUS_BAD_PARAM;
  *size = CudnnTypeBytes(f->type);
  for (size_t i = 0; i < static_cast<size_t>(f->rank); ++i)
    *size *= static_cast<size_t>(f->dims[i]);
  return CUDNN_STATUS_SUCCESS;
}

// ---- convolutions
cudnnStatus_t cudnnCreateConvolutionDescriptor(cudnnConvolutionDescriptor_t* c) {
  return Create(c);
}
cudnnStatus_t cudnnDestroyConvolutionDescriptor(cudnnConvolutionDescriptor_t c) {
  return Destroy(c);
}
cudnnStatus_t cudnnSetConvolutionNdDescriptor(cudnnConvolutionDescriptor_t c, int spatial,
                                              const int padding[], const int stride[],
                                              const int dilation[], cudnnConvolutionMode_t mode,
                                              cudnnDataType_t compute) {
  return SetConvolution(c, spatial, padding, stride, dilation, mode, compute);
}
cudnnStatus_t cudnnSetConvolution2dDescriptor(cudnnConvolutionDescriptor_t c, int ph, int pw,
                                              int sh, int sw, int dh, int dw,
                                              cudnnConvolutionMode_t mode,
                                              cudnnDataType_t compute) {
  const int padding[] = {ph, pw}, stride[] = {sh, sw}, dilation[] = {dh, dw};
  return SetConvolution(c, 2, padding, stride, dilation, mode, compute);
}
cudnnStatus_t cudnnGetConvolutionNdDescriptor(const cudnnConvolutionDescriptor_t c, int requested,
                                              int* spatial, int padding[], int stride[],
                                              int dilation[], cudnnConvolutionMode_t* mode,
                                              cudnnDataType_t* compute) {
  if (!Valid(c)) return CUDNN_STATUS_BAD_PARAM;
  const int n = std::clamp(requested, 0, c->spatial);
  if (spatial) *spatial = c->spatial;
  if (padding) std::copy_n(c->padding.begin(), n, padding);
  if (stride) std::copy_n(c->stride.begin(), n, stride);
  if (dilation) std::copy_n(c->dilation.begin(), n, dilation);
  if (mode) *mode = c->mode;
  if (compute) *compute = c->compute;
  return CUDNN_STATUS_SUCCESS;
}
// NOLINTBEGIN(bugprone-macro-parentheses): the arguments are names and types.
#define HOSTCUDA_CONVOLUTION_MODE(Setter, Getter, Type, member)       \
  cudnnStatus_t Setter(cudnnConvolutionDescriptor_t c, Type value) {  \
    if (!Valid(c)) return CUDNN_STATUS_BAD_PARAM;                     \
    c->member = value;                                                \
    return CUDNN_STATUS_SUCCESS;                                      \
  }                                                                   \
  cudnnStatus_t Getter(cudnnConvolutionDescriptor_t c, Type* value) { \
    if (!Valid(c) || !value) return CUDNN_STATUS_BAD_PARAM;           \
    *value = c->member;                                               \
    return CUDNN_STATUS_SUCCESS;                                      \
  }
HOSTCUDA_CONVOLUTION_MODE(cudnnSetConvolutionGroupCount, cudnnGetConvolutionGroupCount, int, groups)
HOSTCUDA_CONVOLUTION_MODE(cudnnSetConvolutionMathType, cudnnGetConvolutionMathType, cudnnMathType_t,
                          math)
HOSTCUDA_CONVOLUTION_MODE(cudnnSetConvolutionReorderType, cudnnGetConvolutionReorderType,
                          cudnnReorderType_t, reorder)
// NOLINTEND(bugprone-macro-parentheses)
#undef HOSTCUDA_CONVOLUTION_MODE

cudnnStatus_t cudnnGetConvolutionNdForwardOutputDim(const cudnnConvolutionDescriptor_t c,
                                                    const cudnnTensorDescriptor_t x,
                                                    const cudnnFilterDescriptor_t w, int rank,
                                                    int dims[]) {
  if (!Valid(c) || !Valid(x) || !Valid(w) || !dims || rank != c->spatial + 2 || x->rank != rank ||
      w->rank != rank)
    return CUDNN_STATUS_BAD_PARAM;
  dims[0] = x->dims[0];
  dims[1] = w->dims[0];
  for (size_t i = 0; i < static_cast<size_t>(c->spatial); ++i)
    dims[i + 2] =
        OutputExtent(x->dims[i + 2], w->dims[i + 2], c->padding[i], c->stride[i], c->dilation[i]);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetConvolution2dForwardOutputDim(const cudnnConvolutionDescriptor_t c,
                                                    const cudnnTensorDescriptor_t x,
                                                    const cudnnFilterDescriptor_t f, int* n, int* k,
                                                    int* h, int* w) {
  int dims[4] = {};
  if (!n || !k || !h || !w) return CUDNN_STATUS_BAD_PARAM;
  if (cudnnStatus_t status = cudnnGetConvolutionNdForwardOutputDim(c, x, f, 4, dims);
      status != CUDNN_STATUS_SUCCESS)
    return status;
  *n = dims[0];
  *k = dims[1];
  *h = dims[2];
  *w = dims[3];
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnConvolutionForward(cudnnHandle_t handle, const void*,
                                      const cudnnTensorDescriptor_t x, const void*,
                                      const cudnnFilterDescriptor_t w, const void*,
                                      const cudnnConvolutionDescriptor_t c,
                                      cudnnConvolutionFwdAlgo_t, void*, size_t, const void*,
                                      const cudnnTensorDescriptor_t y, void*) {
  return Convolve(handle, "fwd", x, w, c, y);
}
cudnnStatus_t cudnnConvolutionBiasActivationForward(
    cudnnHandle_t handle, const void*, const cudnnTensorDescriptor_t x, const void*,
    const cudnnFilterDescriptor_t w, const void*, const cudnnConvolutionDescriptor_t c,
    cudnnConvolutionFwdAlgo_t, void*, size_t, const void*, const cudnnTensorDescriptor_t,
    const void*, const cudnnTensorDescriptor_t, const void*, const cudnnActivationDescriptor_t,
    const cudnnTensorDescriptor_t y, void*) {
  return Convolve(handle, "fwd", x, w, c, y, "_epibiasact");
}
cudnnStatus_t cudnnConvolutionBackwardData(cudnnHandle_t handle, const void*,
                                           const cudnnFilterDescriptor_t w, const void*,
                                           const cudnnTensorDescriptor_t dy, const void*,
                                           const cudnnConvolutionDescriptor_t c,
                                           cudnnConvolutionBwdDataAlgo_t, void*, size_t,
                                           const void*, const cudnnTensorDescriptor_t dx, void*) {
  return Convolve(handle, "dgrad", dx, w, c, dy);
}
cudnnStatus_t cudnnConvolutionBackwardFilter(cudnnHandle_t handle, const void*,
                                             const cudnnTensorDescriptor_t x, const void*,
                                             const cudnnTensorDescriptor_t dy, const void*,
                                             const cudnnConvolutionDescriptor_t c,
                                             cudnnConvolutionBwdFilterAlgo_t, void*, size_t,
                                             const void*, const cudnnFilterDescriptor_t dw, void*) {
  return Convolve(handle, "wgrad", x, dw, c, dy);
}

cudnnStatus_t cudnnGetConvolutionForwardAlgorithmMaxCount(cudnnHandle_t, int* count) {
  return count ? (*count = 1, CUDNN_STATUS_SUCCESS) : CUDNN_STATUS_BAD_PARAM;
}
cudnnStatus_t cudnnGetConvolutionBackwardDataAlgorithmMaxCount(cudnnHandle_t, int* count) {
  return count ? (*count = 1, CUDNN_STATUS_SUCCESS) : CUDNN_STATUS_BAD_PARAM;
}
cudnnStatus_t cudnnGetConvolutionBackwardFilterAlgorithmMaxCount(cudnnHandle_t, int* count) {
  return count ? (*count = 1, CUDNN_STATUS_SUCCESS) : CUDNN_STATUS_BAD_PARAM;
}

// There is one algorithm, so searching and asking are the same.
cudnnStatus_t cudnnGetConvolutionForwardAlgorithm_v7(cudnnHandle_t, const cudnnTensorDescriptor_t x,
                                                     const cudnnFilterDescriptor_t w,
                                                     const cudnnConvolutionDescriptor_t c,
                                                     const cudnnTensorDescriptor_t y,
                                                     const int requested, int* returned,
                                                     cudnnConvolutionFwdAlgoPerf_t* results) {
  return Algorithms(Matches(x, w, c, y), CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM,
                    Valid(c) ? c->math : CUDNN_DEFAULT_MATH, requested, returned, results);
}
cudnnStatus_t cudnnFindConvolutionForwardAlgorithm(
    cudnnHandle_t handle, const cudnnTensorDescriptor_t x, const cudnnFilterDescriptor_t w,
    const cudnnConvolutionDescriptor_t c, const cudnnTensorDescriptor_t y, const int requested,
    int* returned, cudnnConvolutionFwdAlgoPerf_t* results) {
  return cudnnGetConvolutionForwardAlgorithm_v7(handle, x, w, c, y, requested, returned, results);
}
cudnnStatus_t cudnnFindConvolutionForwardAlgorithmEx(
    cudnnHandle_t handle, const cudnnTensorDescriptor_t x, const void*,
    const cudnnFilterDescriptor_t w, const void*, const cudnnConvolutionDescriptor_t c,
    const cudnnTensorDescriptor_t y, void*, const int requested, int* returned,
    cudnnConvolutionFwdAlgoPerf_t* results, void*, size_t) {
  return cudnnGetConvolutionForwardAlgorithm_v7(handle, x, w, c, y, requested, returned, results);
}
cudnnStatus_t cudnnGetConvolutionBackwardDataAlgorithm_v7(
    cudnnHandle_t, const cudnnFilterDescriptor_t w, const cudnnTensorDescriptor_t dy,
    const cudnnConvolutionDescriptor_t c, const cudnnTensorDescriptor_t dx, const int requested,
    int* returned, cudnnConvolutionBwdDataAlgoPerf_t* results) {
  return Algorithms(Matches(dx, w, c, dy), CUDNN_CONVOLUTION_BWD_DATA_ALGO_1,
                    Valid(c) ? c->math : CUDNN_DEFAULT_MATH, requested, returned, results);
}
cudnnStatus_t cudnnFindConvolutionBackwardDataAlgorithm(
    cudnnHandle_t handle, const cudnnFilterDescriptor_t w, const cudnnTensorDescriptor_t dy,
    const cudnnConvolutionDescriptor_t c, const cudnnTensorDescriptor_t dx, const int requested,
    int* returned, cudnnConvolutionBwdDataAlgoPerf_t* results) {
  return cudnnGetConvolutionBackwardDataAlgorithm_v7(handle, w, dy, c, dx, requested, returned,
                                                     results);
}
cudnnStatus_t cudnnFindConvolutionBackwardDataAlgorithmEx(
    cudnnHandle_t handle, const cudnnFilterDescriptor_t w, const void*,
    const cudnnTensorDescriptor_t dy, const void*, const cudnnConvolutionDescriptor_t c,
    const cudnnTensorDescriptor_t dx, void*, const int requested, int* returned,
    cudnnConvolutionBwdDataAlgoPerf_t* results, void*, size_t) {
  return cudnnGetConvolutionBackwardDataAlgorithm_v7(handle, w, dy, c, dx, requested, returned,
                                                     results);
}
cudnnStatus_t cudnnGetConvolutionBackwardFilterAlgorithm_v7(
    cudnnHandle_t, const cudnnTensorDescriptor_t x, const cudnnTensorDescriptor_t dy,
    const cudnnConvolutionDescriptor_t c, const cudnnFilterDescriptor_t dw, const int requested,
    int* returned, cudnnConvolutionBwdFilterAlgoPerf_t* results) {
  return Algorithms(Matches(x, dw, c, dy), CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1,
                    Valid(c) ? c->math : CUDNN_DEFAULT_MATH, requested, returned, results);
}
cudnnStatus_t cudnnFindConvolutionBackwardFilterAlgorithm(
    cudnnHandle_t handle, const cudnnTensorDescriptor_t x, const cudnnTensorDescriptor_t dy,
    const cudnnConvolutionDescriptor_t c, const cudnnFilterDescriptor_t dw, const int requested,
    int* returned, cudnnConvolutionBwdFilterAlgoPerf_t* results) {
  return cudnnGetConvolutionBackwardFilterAlgorithm_v7(handle, x, dy, c, dw, requested, returned,
                                                       results);
}
cudnnStatus_t cudnnFindConvolutionBackwardFilterAlgorithmEx(
    cudnnHandle_t handle, const cudnnTensorDescriptor_t x, const void*,
    const cudnnTensorDescriptor_t dy, const void*, const cudnnConvolutionDescriptor_t c,
    const cudnnFilterDescriptor_t dw, void*, const int requested, int* returned,
    cudnnConvolutionBwdFilterAlgoPerf_t* results, void*, size_t) {
  return cudnnGetConvolutionBackwardFilterAlgorithm_v7(handle, x, dy, c, dw, requested, returned,
                                                       results);
}

// ---- recurrent networks
cudnnStatus_t cudnnCreateRNNDescriptor(cudnnRNNDescriptor_t* r) { return Create(r); }
cudnnStatus_t cudnnDestroyRNNDescriptor(cudnnRNNDescriptor_t r) { return Destroy(r); }
cudnnStatus_t cudnnSetRNNDescriptor_v8(cudnnRNNDescriptor_t r, cudnnRNNAlgo_t algorithm,
                                       cudnnRNNMode_t cell, cudnnRNNBiasMode_t bias,
                                       cudnnDirectionMode_t direction, cudnnRNNInputMode_t input,
                                       cudnnDataType_t type, cudnnDataType_t math,
                                       cudnnMathType_t math_type, int32_t input_size,
                                       int32_t hidden_size, int32_t projection_size, int32_t layers,
                                       cudnnDropoutDescriptor_t dropout, uint32_t flags) {
  if (!Valid(r) || input_size < 1 || hidden_size < 1 || layers < 1 ||
      projection_size > hidden_size || CudnnTypeBytes(type) == 0)
    return CUDNN_STATUS_BAD_PARAM;
  r->algorithm = algorithm;
  r->cell = cell;
  r->bias = bias;
  r->direction = direction;
  r->input = input;
  r->type = type;
  r->math = math;
  r->math_type = math_type;
  r->input_size = input_size;
  r->hidden_size = hidden_size;
  r->projection_size = projection_size;
  r->layers = layers;
  r->dropout = dropout;
  r->flags = flags;
  static constexpr const char* kCells[] = {"relu", "tanh", "lstm", "gru"};
  r->summary = std::string(static_cast<unsigned>(cell) < 4 ? kCells[cell] : "cell") + "_" +
               CudnnTypeName(type) + "_in" + std::to_string(input_size) + "_hidden" +
               std::to_string(hidden_size) + "_proj" + std::to_string(Recurrent(*r)) + "_layers" +
               std::to_string(layers) + "_dirs" + std::to_string(Directions(*r));
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetRNNWeightSpaceSize(cudnnHandle_t handle, cudnnRNNDescriptor_t r,
                                         size_t* size) {
  if (!Valid(handle) || !Valid(r) || !size) return CUDNN_STATUS_BAD_PARAM;
  *size = (AllMatrices(*r) + static_cast<size_t>(PseudoLayers(*r)) * BiasElements(*r)) *
          CudnnTypeBytes(r->type);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetRNNWeightParams(cudnnHandle_t handle, cudnnRNNDescriptor_t r,
                                      int32_t pseudo_layer, size_t size, const void* space,
                                      int32_t linear, cudnnTensorDescriptor_t matrix,
                                      void** matrix_address, cudnnTensorDescriptor_t bias,
                                      void** bias_address) {
  // PyTorch asks for the matrix or for the bias, with null for the other.
  if (!Valid(handle) || !Valid(r)) return CUDNN_STATUS_BAD_PARAM;
  void* unused = nullptr;
  if (!matrix_address) matrix_address = &unused;
  if (!bias_address) bias_address = &unused;
  const int gates = Gates(r->cell),
            last = 2 * gates + (Projects(*r) && r->cell == CUDNN_LSTM ? 1 : 0);
  if (pseudo_layer < 0 || pseudo_layer >= PseudoLayers(*r) || linear < 0 || linear >= last)
    return CUDNN_STATUS_BAD_PARAM;
  const int element = static_cast<int>(CudnnTypeBytes(r->type));
  const size_t hidden = static_cast<size_t>(r->hidden_size),
               input = static_cast<size_t>(InputOf(*r, pseudo_layer)),
               recurrent = static_cast<size_t>(Recurrent(*r));
  const bool has_input = HasInputMatrix(*r, pseudo_layer), is_input = linear < gates,
             is_projection = linear == 2 * gates;
  // Where the matrix begins, in elements.
  size_t offset = 0;
  for (int layer = 0; layer < pseudo_layer; ++layer) offset += MatrixElements(*r, layer);
  const size_t input_block = has_input ? static_cast<size_t>(gates) * hidden * input : 0;
  if (is_input)
    offset += static_cast<size_t>(linear) * hidden * input;
  else if (is_projection)
    offset += input_block + static_cast<size_t>(gates) * hidden * recurrent;
  else
    offset += input_block + static_cast<size_t>(linear - gates) * hidden * recurrent;
  const size_t rows = is_projection ? recurrent : hidden, cols = is_projection ? hidden
                                                                 : is_input    ? input
                                                                               : recurrent;
  auto* base = static_cast<char*>(const_cast<void*>(space));
  if ((offset + rows * cols) * static_cast<size_t>(element) > size && !(is_input && !has_input))
    return CUDNN_STATUS_BAD_PARAM;
  *matrix_address = is_input && !has_input ? nullptr : base + offset * static_cast<size_t>(element);
  if (matrix) {
    const int dims[] = {1, static_cast<int>(rows), static_cast<int>(cols)};
    if (cudnnStatus_t status = SetTensor(matrix, r->type, 3, dims, nullptr);
        status != CUDNN_STATUS_SUCCESS)
      return status;
  }
  // Bias sets: one of the input (or the only one), one of the recurrence.
  const int set = is_input ? 0 : 1;
  const bool has_bias = !is_projection && (r->bias == CUDNN_RNN_DOUBLE_BIAS ||
                                           (r->bias == CUDNN_RNN_SINGLE_INP_BIAS && set == 0) ||
                                           (r->bias == CUDNN_RNN_SINGLE_REC_BIAS && set == 1));
  if (!has_bias) {
    *bias_address = nullptr;
    return CUDNN_STATUS_SUCCESS;
  }
  const int row_of_gate = (r->bias == CUDNN_RNN_DOUBLE_BIAS ? set * gates : 0) + linear % gates;
  const auto row = static_cast<size_t>(row_of_gate);
  const size_t bias_offset =
      AllMatrices(*r) + static_cast<size_t>(pseudo_layer) * BiasElements(*r) + row * hidden;
  if ((bias_offset + hidden) * static_cast<size_t>(element) > size) return CUDNN_STATUS_BAD_PARAM;
  *bias_address = base + bias_offset * static_cast<size_t>(element);
  if (bias) {
    const int dims[] = {1, static_cast<int>(hidden), 1};
    return SetTensor(bias, r->type, 3, dims, nullptr);
  }
  return CUDNN_STATUS_SUCCESS;
}

}  // extern "C"
