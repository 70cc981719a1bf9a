// cuBLASLt by hand: descriptors are plain structures in the storage that the public headers reserve
// for them, because the caller may put them on its own stack; the matrix product is one launch.
#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <new>
#include <span>

#include "hostcuda/api/tail_runtime.h"
#include "hostcuda/libraries/driver_link.h"
#include "hostcuda/libraries/gemm_name.h"
#include "hostcuda/libraries/generic_object.h"

#pragma GCC visibility push(default)
#include <cublasLt.h>
#pragma GCC visibility pop

struct cublasLtContext : hostcuda::GenericObject {};

namespace hostcuda {
namespace {

HostcudaLibrary kLibrary = {
    "libcublasLt.so.13",           "hostcublasLt",
    CUBLAS_STATUS_NOT_SUPPORTED,   CUBLAS_STATUS_NOT_INITIALIZED,
    CUBLAS_STATUS_INVALID_VALUE,   CUBLAS_STATUS_EXECUTION_FAILED,
    "CUBLAS_STATUS_NOT_SUPPORTED", {CUBLAS_VER_MAJOR, CUBLAS_VER_MINOR, CUBLAS_VER_PATCH}};

// One attribute: where it lies in its structure and how long it is.
struct Field {
  int attribute;
  size_t offset, bytes;
};
#define HOSTCUDA_FIELD(attribute, Struct, member) \
  { attribute, offsetof(Struct, member), sizeof(Struct::member) }

struct Layout {
  int32_t type, order;
  uint64_t rows, cols;
  int64_t ld;
  int32_t batch, batch_mode;
  int64_t batch_stride, plane_offset;
};
constexpr Field kLayoutFields[] = {
    HOSTCUDA_FIELD(CUBLASLT_MATRIX_LAYOUT_TYPE, Layout, type),
    HOSTCUDA_FIELD(CUBLASLT_MATRIX_LAYOUT_ORDER, Layout, order),
    HOSTCUDA_FIELD(CUBLASLT_MATRIX_LAYOUT_ROWS, Layout, rows),
    HOSTCUDA_FIELD(CUBLASLT_MATRIX_LAYOUT_COLS, Layout, cols),
    HOSTCUDA_FIELD(CUBLASLT_MATRIX_LAYOUT_LD, Layout, ld),
    HOSTCUDA_FIELD(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, Layout, batch),
    HOSTCUDA_FIELD(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, Layout, batch_stride),
    HOSTCUDA_FIELD(CUBLASLT_MATRIX_LAYOUT_PLANE_OFFSET, Layout, plane_offset),
    HOSTCUDA_FIELD(CUBLASLT_MATRIX_LAYOUT_BATCH_MODE, Layout, batch_mode),
};

struct Operation {
  int32_t compute, scale, pointer_mode, transpose_a, transpose_b, transpose_c, fill_mode;
  uint32_t epilogue;
  const void* bias;
  int64_t bias_batch_stride;
  void* aux;
  int64_t aux_ld, aux_batch_stride, alpha_batch_stride;
  int32_t sm_count_target;
  int8_t fast_accumulation;
  const void *a_scale, *b_scale, *c_scale, *d_scale;
  void* d_amax;
  const void* aux_scale;
  void* aux_amax;
  void* d_out_scale;
  int32_t aux_type, bias_type, a_scale_mode, b_scale_mode, c_scale_mode, d_scale_mode,
      aux_scale_mode, d_out_scale_mode;
  void* emulation;
};
constexpr Field kOperationFields[] = {
    HOSTCUDA_FIELD(CUBLASLT_MATMUL_DESC_COMPUTE_TYPE, Operation, compute),
    HOSTCUDA_FIELD(CUBLASLT_MATMUL_DESC_SCALE_TYPE, Operation, scale),
    HOSTCUDA_FIELD(CUBLASLT_MATMUL_DESC_POINTER_MODE, Operation, pointer_mode),
    HOSTCUDA_FIELD(CUBLASLT_MATMUL_DESC_TRANSA, Operation, transpose_a),
    HOSTCUDA_FIELD(CUBLASLT_MATMUL_DESC_TRANSB, Operation, transpose_b),
    HOSTCUDA_FIELD(CUBLASLT_MATMUL_DESC_TRANSC, Operation, transpose_c),
    HOSTCUDA_FIELD(CUBLASLT_MATMUL_DESC_FILL_MODE, Operation, fill_mode),
    HOSTCUDA_FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE, Operation, epilogue),
    HOSTCUDA_FIELD(CUBLASLT_MATMUL_DESC_BIAS_POINTER, Operation, bias),
    HOSTCUDA_FIELD(CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE, Operation, bias_batch_stride),
    HOSTCUDA_FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, Operation, aux),
    HOSTCUDA_FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, Operation, aux_ld),
    HOSTCUDA_FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE, Operation, aux_batch_stride),
    HOSTCUDA_FIELD(CUBLASLT_MATMUL_DESC_ALPHA_VECTOR_BATCH_STRIDE, Operation, alpha_batch_stride),
    HOSTCUDA_FIELD(CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, Operation, sm_count_target),
    HOSTCUDA_FIELD(CUBLASLT_MATMUL_DESC_FAST_ACCUM, Operation, fast_accumulation),
    HOSTCUDA_FIELD(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, Operation, a_scale),
    HOSTCUDA_FIELD(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, Operation, b_scale),
    HOSTCUDA_FIELD(CUBLASLT_MATMUL_DESC_C_SCALE_POINTER, Operation, c_scale),
    HOSTCUDA_FIELD(CUBLASLT_MATMUL_DESC_D_SCALE_POINTER, Operation, d_scale),
    HOSTCUDA_FIELD(CUBLASLT_MATMUL_DESC_AMAX_D_POINTER, Operation, d_amax),
    HOSTCUDA_FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_SCALE_POINTER, Operation, aux_scale),
    HOSTCUDA_FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_AMAX_POINTER, Operation, aux_amax),
    HOSTCUDA_FIELD(CUBLASLT_MATMUL_DESC_D_OUT_SCALE_POINTER, Operation, d_out_scale),
    HOSTCUDA_FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, Operation, aux_type),
    HOSTCUDA_FIELD(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, Operation, bias_type),
    HOSTCUDA_FIELD(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, Operation, a_scale_mode),
    HOSTCUDA_FIELD(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, Operation, b_scale_mode),
    HOSTCUDA_FIELD(CUBLASLT_MATMUL_DESC_C_SCALE_MODE, Operation, c_scale_mode),
    HOSTCUDA_FIELD(CUBLASLT_MATMUL_DESC_D_SCALE_MODE, Operation, d_scale_mode),
    HOSTCUDA_FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_SCALE_MODE, Operation, aux_scale_mode),
    HOSTCUDA_FIELD(CUBLASLT_MATMUL_DESC_D_OUT_SCALE_MODE, Operation, d_out_scale_mode),
    HOSTCUDA_FIELD(CUBLASLT_MATMUL_DESC_EMULATION_DESCRIPTOR, Operation, emulation),
};

struct Transform {
  int32_t scale, pointer_mode, transpose_a, transpose_b;
};
constexpr Field kTransformFields[] = {
    HOSTCUDA_FIELD(CUBLASLT_MATRIX_TRANSFORM_DESC_SCALE_TYPE, Transform, scale),
    HOSTCUDA_FIELD(CUBLASLT_MATRIX_TRANSFORM_DESC_POINTER_MODE, Transform, pointer_mode),
    HOSTCUDA_FIELD(CUBLASLT_MATRIX_TRANSFORM_DESC_TRANSA, Transform, transpose_a),
    HOSTCUDA_FIELD(CUBLASLT_MATRIX_TRANSFORM_DESC_TRANSB, Transform, transpose_b),
};

struct Preference {
  uint32_t search_mode, reduction_mask;
  uint64_t max_workspace, implementation_mask;
  uint32_t alignment_a, alignment_b, alignment_c, alignment_d;
  float max_waves;
};
constexpr Field kPreferenceFields[] = {
    HOSTCUDA_FIELD(CUBLASLT_MATMUL_PREF_SEARCH_MODE, Preference, search_mode),
    HOSTCUDA_FIELD(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, Preference, max_workspace),
    HOSTCUDA_FIELD(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, Preference, reduction_mask),
    HOSTCUDA_FIELD(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, Preference, alignment_a),
    HOSTCUDA_FIELD(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, Preference, alignment_b),
    HOSTCUDA_FIELD(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, Preference, alignment_c),
    HOSTCUDA_FIELD(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, Preference, alignment_d),
    HOSTCUDA_FIELD(CUBLASLT_MATMUL_PREF_MAX_WAVES_COUNT, Preference, max_waves),
    HOSTCUDA_FIELD(CUBLASLT_MATMUL_PREF_IMPL_MASK, Preference, implementation_mask),
};

struct Emulation {
  int32_t strategy, special_values, mantissa_control, max_mantissa_bits, mantissa_bit_offset;
  void* mantissa_bits;
};
constexpr Field kEmulationFields[] = {
    HOSTCUDA_FIELD(CUBLASLT_EMULATION_DESC_STRATEGY, Emulation, strategy),
    HOSTCUDA_FIELD(CUBLASLT_EMULATION_DESC_SPECIAL_VALUES_SUPPORT, Emulation, special_values),
    HOSTCUDA_FIELD(CUBLASLT_EMULATION_DESC_FIXEDPOINT_MANTISSA_CONTROL, Emulation,
                   mantissa_control),
    HOSTCUDA_FIELD(CUBLASLT_EMULATION_DESC_FIXEDPOINT_MAX_MANTISSA_BIT_COUNT, Emulation,
                   max_mantissa_bits),
    HOSTCUDA_FIELD(CUBLASLT_EMULATION_DESC_FIXEDPOINT_MANTISSA_BIT_OFFSET, Emulation,
                   mantissa_bit_offset),
    HOSTCUDA_FIELD(CUBLASLT_EMULATION_DESC_FIXEDPOINT_MANTISSA_BIT_COUNT_POINTER, Emulation,
                   mantissa_bits),
};

// hostcuda knows one algorithm, number 0.
struct Algorithm {
  int32_t id;
  uint32_t tile;
  int32_t split_k;
  uint32_t reduction, swizzle, custom, stages;
  uint16_t inner_shape, cluster_shape;
};
constexpr Field kAlgorithmFields[] = {
    HOSTCUDA_FIELD(CUBLASLT_ALGO_CONFIG_ID, Algorithm, id),
    HOSTCUDA_FIELD(CUBLASLT_ALGO_CONFIG_TILE_ID, Algorithm, tile),
    HOSTCUDA_FIELD(CUBLASLT_ALGO_CONFIG_SPLITK_NUM, Algorithm, split_k),
    HOSTCUDA_FIELD(CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, Algorithm, reduction),
    HOSTCUDA_FIELD(CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, Algorithm, swizzle),
    HOSTCUDA_FIELD(CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, Algorithm, custom),
    HOSTCUDA_FIELD(CUBLASLT_ALGO_CONFIG_STAGES_ID, Algorithm, stages),
    HOSTCUDA_FIELD(CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, Algorithm, inner_shape),
    HOSTCUDA_FIELD(CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, Algorithm, cluster_shape),
};
#undef HOSTCUDA_FIELD

static_assert(sizeof(Layout) <= sizeof(cublasLtMatrixLayoutOpaque_t) &&
                  sizeof(Operation) <= sizeof(cublasLtMatmulDescOpaque_t) &&
                  sizeof(Transform) <= sizeof(cublasLtMatrixTransformDescOpaque_t) &&
                  sizeof(Preference) <= sizeof(cublasLtMatmulPreferenceOpaque_t) &&
                  sizeof(Emulation) <= sizeof(cublasLtEmulationDescOpaque_t) &&
                  sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t),
              "a descriptor must fit the storage that the public header gives it");

cublasStatus_t SetField(std::span<const Field> fields, void* object, int attribute,
                        const void* from, size_t bytes) noexcept {
  if (!object || !from) return CUBLAS_STATUS_INVALID_VALUE;
  for (const Field& f : fields) {
    if (f.attribute != attribute) continue;
    if (bytes != f.bytes) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(static_cast<char*>(object) + f.offset, from, bytes);
    return CUBLAS_STATUS_SUCCESS;
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t GetField(std::span<const Field> fields, const void* object, int attribute, void* to,
                        size_t bytes, size_t* written) noexcept {
  if (!object || (bytes == 0 && !written) || (bytes != 0 && !to))
    return CUBLAS_STATUS_INVALID_VALUE;
  for (const Field& f : fields) {
    if (f.attribute != attribute) continue;
    if (bytes != 0 && bytes != f.bytes) return CUBLAS_STATUS_INVALID_VALUE;
    if (bytes != 0) memcpy(to, static_cast<const char*>(object) + f.offset, f.bytes);
    if (written) *written = f.bytes;
    return CUBLAS_STATUS_SUCCESS;
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

Layout MakeLayout(cudaDataType type, uint64_t rows, uint64_t cols, int64_t ld) {
  return {type, CUBLASLT_ORDER_COL, rows, cols, ld, 1, CUBLASLT_BATCH_MODE_STRIDED, 0, 0};
}

Operation MakeOperation(cublasComputeType_t compute, cudaDataType_t scale) {
  Operation op{};
  op.compute = compute;
  op.scale = scale;
  op.fill_mode = CUBLAS_FILL_MODE_FULL;
  op.epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  op.aux_type = op.bias_type = -1;  // "as the output", the documented defaults
  return op;
}

Preference MakePreference() {
  Preference p{};
  p.reduction_mask = CUBLASLT_REDUCTION_SCHEME_MASK;
  p.alignment_a = p.alignment_b = p.alignment_c = p.alignment_d = 256;
  p.implementation_mask = ~uint64_t{0};
  return p;
}

template <typename Struct, typename Opaque>
cublasStatus_t Init(Opaque* storage, size_t bytes, const Struct& value) noexcept {
  if (!storage || bytes < sizeof(Struct)) return CUBLAS_STATUS_INVALID_VALUE;
  memset(storage, 0, bytes);
  memcpy(storage, &value, sizeof value);
  return CUBLAS_STATUS_SUCCESS;
}
template <typename Struct, typename Opaque>
cublasStatus_t Create(Opaque** out, const Struct& value) noexcept {
  if (!out) return CUBLAS_STATUS_INVALID_VALUE;
  *out = new (std::nothrow) Opaque;
  if (!*out) return CUBLAS_STATUS_ALLOC_FAILED;
  return Init(*out, sizeof(Opaque), value);
}

// Token of the epilogue in the kernel's name; null for one that does not exist.
const char* EpilogueName(uint32_t epilogue) noexcept {
  switch (epilogue) {
    case CUBLASLT_EPILOGUE_DEFAULT:
      return "";
    case CUBLASLT_EPILOGUE_RELU:
      return "_epirelu";
    case CUBLASLT_EPILOGUE_RELU_AUX:
      return "_epireluaux";
    case CUBLASLT_EPILOGUE_BIAS:
      return "_epibias";
    case CUBLASLT_EPILOGUE_RELU_BIAS:
      return "_epirelubias";
    case CUBLASLT_EPILOGUE_RELU_AUX_BIAS:
      return "_epireluauxbias";
    case CUBLASLT_EPILOGUE_DRELU:
      return "_epidrelu";
    case CUBLASLT_EPILOGUE_DRELU_BGRAD:
      return "_epidrelubgrad";
    case CUBLASLT_EPILOGUE_GELU:
      return "_epigelu";
    case CUBLASLT_EPILOGUE_GELU_AUX:
      return "_epigeluaux";
    case CUBLASLT_EPILOGUE_GELU_BIAS:
      return "_epigelubias";
    case CUBLASLT_EPILOGUE_GELU_AUX_BIAS:
      return "_epigeluauxbias";
    case CUBLASLT_EPILOGUE_DGELU:
      return "_epidgelu";
    case CUBLASLT_EPILOGUE_DGELU_BGRAD:
      return "_epidgelubgrad";
    case CUBLASLT_EPILOGUE_BGRADA:
      return "_epibgrada";
    case CUBLASLT_EPILOGUE_BGRADB:
      return "_epibgradb";
    default:
      return nullptr;
  }
}

// What a product computes, or why it cannot.
cublasStatus_t Plan(const Operation* op, const Layout* a, const Layout* b, const Layout* c,
                    const Layout* d, GemmShape* shape) noexcept {
  if (!op || !a || !b || !c || !d) return CUBLAS_STATUS_INVALID_VALUE;
  const char ta = TransposeLetter(op->transpose_a), tb = TransposeLetter(op->transpose_b);
  if (!ta || !tb) return CUBLAS_STATUS_INVALID_VALUE;
  const uint64_t m = ta == 'n' ? a->rows : a->cols, k = ta == 'n' ? a->cols : a->rows;
  const uint64_t n = tb == 'n' ? b->cols : b->rows, kb = tb == 'n' ? b->rows : b->cols;
  if (k != kb || m != d->rows || n != d->cols || c->rows != d->rows || c->cols != d->cols)
    return CUBLAS_STATUS_INVALID_VALUE;
  if (a->batch != d->batch || b->batch != d->batch || c->batch != d->batch)
    return CUBLAS_STATUS_INVALID_VALUE;
  const auto type_a = static_cast<cudaDataType_t>(a->type),
             type_b = static_cast<cudaDataType_t>(b->type),
             type_d = static_cast<cudaDataType_t>(d->type);
  const char* accumulate =
      AccumulateName(static_cast<cublasComputeType_t>(op->compute), type_a, false);
  if (!TypeName(type_a) || !TypeName(type_b) || !TypeName(type_d) || !accumulate ||
      !EpilogueName(op->epilogue))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  *shape = {type_a,
            type_b,
            type_d,
            accumulate,
            ta,
            tb,
            static_cast<int64_t>(m),
            static_cast<int64_t>(n),
            static_cast<int64_t>(k),
            d->batch};
  return CUBLAS_STATUS_SUCCESS;
}

void Choose(const GemmShape& shape, cublasLtMatmulHeuristicResult_t* result) noexcept {
  constexpr float kMultiprocessors = 132;
  memset(result, 0, sizeof *result);
  Algorithm algorithm{};
  algorithm.split_k = 1;
  memcpy(&result->algo, &algorithm, sizeof algorithm);
  result->state = CUBLAS_STATUS_SUCCESS;
  const Grid grid = GemmGrid(shape);
  result->wavesCount =
      static_cast<float>(grid.grid[0]) * static_cast<float>(grid.grid[2]) / kMultiprocessors;
}

const Operation* Of(cublasLtMatmulDesc_t d) { return reinterpret_cast<const Operation*>(d); }
const Layout* Of(cublasLtMatrixLayout_t l) { return reinterpret_cast<const Layout*>(l); }

// A cublasHandle_t is a valid cublasLtHandle_t, as the documentation promises.
bool Valid(cublasLtHandle_t handle) {
  return handle && reinterpret_cast<const GenericObject*>(handle)->magic == GenericObject::kMagic;
}

}  // namespace
}  // namespace hostcuda

using namespace hostcuda;  // NOLINT: the rest of this file is the C interface

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  if (!handle) return CUBLAS_STATUS_INVALID_VALUE;
  if (EnsureContext() != CUDA_SUCCESS) return CUBLAS_STATUS_NOT_INITIALIZED;
  *handle = new cublasLtContext;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  if (!Valid(handle)) return CUBLAS_STATUS_NOT_INITIALIZED;
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}
size_t cublasLtGetVersion(void) { return CUBLAS_VERSION; }
size_t cublasLtGetCudartVersion(void) { return CUDA_VERSION; }
cublasStatus_t cublasLtGetProperty(libraryPropertyType type, int* value) {
  if (!value || type < MAJOR_VERSION || type > PATCH_LEVEL) return CUBLAS_STATUS_INVALID_VALUE;
  *value = kLibrary.version[type];
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t layout, size_t bytes,
                                                 cudaDataType type, uint64_t rows, uint64_t cols,
                                                 int64_t ld) {
  return Init(layout, bytes, MakeLayout(type, rows, cols, ld));
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                          uint64_t rows, uint64_t cols, int64_t ld) {
  return Create(layout, MakeLayout(type, rows, cols, ld));
}
cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t desc, size_t bytes,
                                               cublasComputeType_t compute, cudaDataType_t scale) {
  return Init(desc, bytes, MakeOperation(compute, scale));
}
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  return Create(desc, MakeOperation(compute, scale));
}
cublasStatus_t cublasLtMatrixTransformDescInit_internal(cublasLtMatrixTransformDesc_t desc,
                                                        size_t bytes, cudaDataType scale) {
  return Init(desc, bytes, Transform{scale, 0, 0, 0});
}
cublasStatus_t cublasLtMatrixTransformDescCreate(cublasLtMatrixTransformDesc_t* desc,
                                                 cudaDataType scale) {
  return Create(desc, Transform{scale, 0, 0, 0});
}
cublasStatus_t cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t preference,
                                                     size_t bytes) {
  return Init(preference, bytes, MakePreference());
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  return Create(preference, MakePreference());
}
cublasStatus_t cublasLtEmulationDescInit_internal(cublasLtEmulationDesc_t desc, size_t bytes) {
  return Init(desc, bytes, Emulation{});
}
cublasStatus_t cublasLtEmulationDescCreate(cublasLtEmulationDesc_t* desc) {
  return Create(desc, Emulation{});
}

#define HOSTCUDA_DESCRIPTOR(Prefix, Handle, Attributes, fields)                                    \
  cublasStatus_t Prefix##Destroy(Handle object) {                                                  \
    delete object;                                                                                 \
    return CUBLAS_STATUS_SUCCESS;                                                                  \
  }                                                                                                \
  cublasStatus_t Prefix##SetAttribute(Handle object, Attributes attribute, const void* from,       \
                                      size_t bytes) {                                              \
    return SetField(fields, object, attribute, from, bytes);                                       \
  }                                                                                                \
  cublasStatus_t Prefix##GetAttribute(Handle object, Attributes attribute, void* to, size_t bytes, \
                                      size_t* written) {                                           \
    return GetField(fields, object, attribute, to, bytes, written);                                \
  }
HOSTCUDA_DESCRIPTOR(cublasLtMatrixLayout, cublasLtMatrixLayout_t, cublasLtMatrixLayoutAttribute_t,
                    kLayoutFields)
HOSTCUDA_DESCRIPTOR(cublasLtMatmulDesc, cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t,
                    kOperationFields)
HOSTCUDA_DESCRIPTOR(cublasLtMatrixTransformDesc, cublasLtMatrixTransformDesc_t,
                    cublasLtMatrixTransformDescAttributes_t, kTransformFields)
HOSTCUDA_DESCRIPTOR(cublasLtMatmulPreference, cublasLtMatmulPreference_t,
                    cublasLtMatmulPreferenceAttributes_t, kPreferenceFields)
#undef HOSTCUDA_DESCRIPTOR
cublasStatus_t cublasLtEmulationDescDestroy(cublasLtEmulationDesc_t object) {
  delete object;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtEmulationDescSetAttribute(cublasLtEmulationDesc_t object,
                                                 cublasLtEmulationDescAttributes_t attribute,
                                                 const void* from, size_t bytes) {
  return SetField(kEmulationFields, object, attribute, from, bytes);
}
cublasStatus_t cublasLtEmulationDescGetAttribute(cublasLtEmulationDesc_t object,
                                                 cublasLtEmulationDescAttributes_t attribute,
                                                 void* to, size_t bytes, size_t* written) {
  return GetField(kEmulationFields, object, attribute, to, bytes, written);
}

cublasStatus_t cublasLtMatmulAlgoConfigSetAttribute(cublasLtMatmulAlgo_t* algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    const void* from, size_t bytes) {
  return SetField(kAlgorithmFields, algo, attribute, from, bytes);
}
cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    void* to, size_t bytes, size_t* written) {
  return GetField(kAlgorithmFields, algo, attribute, to, bytes, written);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t op,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t, int requested,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int* returned) {
  if (!returned || !results || requested <= 0) return CUBLAS_STATUS_INVALID_VALUE;
  *returned = 0;
  if (!Valid(handle)) return CUBLAS_STATUS_NOT_INITIALIZED;
  GemmShape shape;
  if (cublasStatus_t status = Plan(Of(op), Of(a), Of(b), Of(c), Of(d), &shape);
      status != CUBLAS_STATUS_SUCCESS)
    return status;
  Choose(shape, &results[0]);
  *returned = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetIds(cublasLtHandle_t handle, cublasComputeType_t,
                                        cudaDataType_t, cudaDataType_t, cudaDataType_t,
                                        cudaDataType_t, cudaDataType_t, int requested, int ids[],
                                        int* returned) {
  if (!Valid(handle)) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!ids || requested <= 0) return CUBLAS_STATUS_INVALID_VALUE;
  ids[0] = 0;
  if (returned) *returned = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoInit(cublasLtHandle_t handle, cublasComputeType_t, cudaDataType_t,
                                      cudaDataType_t, cudaDataType_t, cudaDataType_t,
                                      cudaDataType_t, int id, cublasLtMatmulAlgo_t* algo) {
  if (!Valid(handle)) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!algo || id != 0) return CUBLAS_STATUS_INVALID_VALUE;
  memset(algo, 0, sizeof *algo);
  Algorithm algorithm{};
  algorithm.split_k = 1;
  memcpy(algo, &algorithm, sizeof algorithm);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t op,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t* algo,
                                       cublasLtMatmulHeuristicResult_t* result) {
  if (!Valid(handle)) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!algo || !result) return CUBLAS_STATUS_INVALID_VALUE;
  GemmShape shape;
  if (cublasStatus_t status = Plan(Of(op), Of(a), Of(b), Of(c), Of(d), &shape);
      status != CUBLAS_STATUS_SUCCESS)
    return status;
  const cublasLtMatmulAlgo_t configured = *algo;
  Choose(shape, result);
  result->algo = configured;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void*,
                              cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t*, void*,
                              size_t, cudaStream_t stream) {
  if (!Valid(handle)) return CUBLAS_STATUS_NOT_INITIALIZED;
  GemmShape shape;
  if (cublasStatus_t status =
          Plan(Of(desc), Of(a_layout), Of(b_layout), Of(c_layout), Of(d_layout), &shape);
      status != CUBLAS_STATUS_SUCCESS)
    return status;
  if (shape.m == 0 || shape.n == 0 || shape.batch == 0) return CUBLAS_STATUS_SUCCESS;
  if (!alpha || !beta || !d || (shape.k > 0 && (!a || !b))) return CUBLAS_STATUS_INVALID_VALUE;
  const Operation& op = *Of(desc);
  std::string name = GemmName("hostcublasLt_matmul", shape) + EpilogueName(op.epilogue);
  if (op.a_scale_mode || op.b_scale_mode)
    name += "_sa" + std::to_string(op.a_scale_mode) + "_sb" + std::to_string(op.b_scale_mode);
  switch (LaunchNamed(stream, name, GemmGrid(shape))) {
    case CUDA_SUCCESS:
      return CUBLAS_STATUS_SUCCESS;
    case CUDA_ERROR_OUT_OF_MEMORY:
      return CUBLAS_STATUS_ALLOC_FAILED;
    default:
      return CUBLAS_STATUS_EXECUTION_FAILED;
  }
}

cublasStatus_t cublasLtMatrixTransform(cublasLtHandle_t handle, cublasLtMatrixTransformDesc_t desc,
                                       const void*, const void*, cublasLtMatrixLayout_t a_layout,
                                       const void*, const void*, cublasLtMatrixLayout_t, void* c,
                                       cublasLtMatrixLayout_t c_layout, cudaStream_t stream) {
  if (!Valid(handle)) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!desc || !c || !c_layout) return CUBLAS_STATUS_INVALID_VALUE;
  const Layout& out = *Of(c_layout);
  const char* from =
      TypeName(static_cast<cudaDataType_t>(a_layout ? Of(a_layout)->type : out.type));
  const char* to = TypeName(static_cast<cudaDataType_t>(out.type));
  if (!from || !to) return CUBLAS_STATUS_NOT_SUPPORTED;
  char name[160];
  snprintf(name, sizeof name, "hostcublasLt_transform_%s_%s_m%llu_n%llu_b%d", from, to,
           static_cast<unsigned long long>(out.rows), static_cast<unsigned long long>(out.cols),
           out.batch);
  return LaunchNamed(stream, name,
                     GridFor(out.rows * out.cols *
                             static_cast<uint64_t>(std::max(out.batch, 1)))) == CUDA_SUCCESS
             ? CUBLAS_STATUS_SUCCESS
             : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // extern "C"
