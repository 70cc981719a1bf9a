// cuDNN's backend (graph) interface: descriptors hold typed attributes; one engine answers every
// heuristic query; executing a plan is one launch, named after what the operation graph computes.
//
// A descriptor that is stored in another one is shared, not copied: cuDNN's front end destroys its
// operations once the plan is built, and finalized descriptors do not change.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "hostcuda/api/tail_runtime.h"
#include "hostcuda/libraries/cudnn_descriptors.h"

namespace hostcuda {
namespace {

HostcudaLibrary kLibrary = {"libcudnn.so.9",
                            "hostcudnn",
                            CUDNN_STATUS_NOT_SUPPORTED,
                            CUDNN_STATUS_NOT_INITIALIZED,
                            CUDNN_STATUS_BAD_PARAM,
                            CUDNN_STATUS_EXECUTION_FAILED,
                            "CUDNN_STATUS_NOT_SUPPORTED",
                            {CUDNN_MAJOR, CUDNN_MINOR, CUDNN_PATCHLEVEL}};

struct Content;
using Shared = std::shared_ptr<Content>;

struct Attribute {
  cudnnBackendAttributeType_t type;
  int64_t count;
  std::vector<char> bytes;      // scalars
  std::vector<Shared> objects;  // descriptors
};

struct Content {
  cudnnBackendDescriptorType_t type;
  bool finalized = false;
  std::map<int, Attribute> attributes;
  std::string kernel;  // of a finalized execution plan
  uint64_t elements = 1;
  int64_t workspace_bytes = 0;

  const Attribute* Find(int name) const {
    auto found = attributes.find(name);
    return found == attributes.end() ? nullptr : &found->second;
  }
  int64_t Integer(int name, int64_t otherwise = 0) const {
    const Attribute* a = Find(name);
    if (!a || a->bytes.empty()) return otherwise;
    int64_t value = 0;
    memcpy(
        &value, a->bytes.data(),
        std::min<size_t>(a->bytes.size() / static_cast<size_t>(std::max<int64_t>(a->count, 1)), 8));
    return value;
  }
  std::vector<int64_t> Integers(int name) const {
    std::vector<int64_t> values;
    if (const Attribute* a = Find(name); a && a->type == CUDNN_TYPE_INT64) {
      values.resize(static_cast<size_t>(a->count));
      memcpy(values.data(), a->bytes.data(), a->bytes.size());
    }
    return values;
  }
  const Content* Object(int name) const {
    const Attribute* a = Find(name);
    return a && !a->objects.empty() ? a->objects.front().get() : nullptr;
  }
};

// What a cudnnBackendDescriptor_t points to.
struct Descriptor {
  static constexpr uint64_t kMagic = 0x636475646e6e42ull;
  uint64_t magic = kMagic;
  Shared content;
};

Descriptor* Of(cudnnBackendDescriptor_t handle) {
  auto* d = static_cast<Descriptor*>(handle);
  return d && d->magic == Descriptor::kMagic ? d : nullptr;
}

size_t TypeBytes(cudnnBackendAttributeType_t type) {
  switch (type) {
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_DOUBLE:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
      return 8;
    case CUDNN_TYPE_FRACTION:
      return sizeof(cudnnFraction_t);
    case CUDNN_TYPE_BOOLEAN:
    case CUDNN_TYPE_CHAR:
      return 1;
    default:
      return 4;  // INT32, FLOAT and the enumerations
  }
}

// Says once what was asked for that no descriptor of hostcuda knows.
cudnnStatus_t Unknown(const char* function, int attribute, int descriptor) {
  static std::mutex mutex;
  static auto* const said = new std::set<int>;
  std::lock_guard<std::mutex> lock(mutex);
  if (!said->insert(attribute).second) return CUDNN_STATUS_NOT_SUPPORTED;
  char text[120];
  snprintf(text, sizeof text, "%s(attribute %d of descriptor type %d)", function, attribute,
           descriptor);
  HostcudaTailCall call = {&kLibrary, text, 0};
  HostcudaUnsupported(&call);
  return CUDNN_STATUS_NOT_SUPPORTED;
}

// ---- names of operation graphs

std::vector<int64_t> Dims(const Content* tensor) {
  return tensor ? tensor->Integers(CUDNN_ATTR_TENSOR_DIMENSIONS) : std::vector<int64_t>{};
}
cudnnDataType_t Type(const Content* tensor) {
  return tensor ? static_cast<cudnnDataType_t>(tensor->Integer(CUDNN_ATTR_TENSOR_DATA_TYPE))
                : CUDNN_DATA_FLOAT;
}
uint64_t Product(const std::vector<int64_t>& dims) {
  uint64_t n = 1;
  for (int64_t d : dims) n *= static_cast<uint64_t>(std::max<int64_t>(d, 1));
  return n;
}
std::vector<int64_t> Tail(const std::vector<int64_t>& dims) {
  return dims.size() > 2 ? std::vector<int64_t>(dims.begin() + 2, dims.end())
                         : std::vector<int64_t>{};
}

struct Named {
  std::string name;
  uint64_t elements = 1;
  int64_t workspace_bytes = 0;
};

struct ConvolutionAttributes {
  const char* kind;
  int convolution, x, w, y;
};
bool ConvolutionOf(const Content& op, ConvolutionAttributes* a) {
  switch (op.type) {
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR:
      *a = {"fwd", CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y};
      return true;
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR:
      *a = {"dgrad", CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY};
      return true;
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR:
      *a = {"wgrad", CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY};
      return true;
    default:
      return false;
  }
}

Named NameConvolution(const Content& op, const ConvolutionAttributes& a) {
  const Content* convolution = op.Object(a.convolution);
  const auto x = Dims(op.Object(a.x)), w = Dims(op.Object(a.w)), y = Dims(op.Object(a.y));
  if (x.size() < 3 || w.size() != x.size() || y.size() != x.size())
    return {"hostcudnn_conv" + std::string(a.kind), 1};
  const auto in = Tail(x), kernel = Tail(w), out = Tail(y);
  const auto compute =
      convolution
          ? static_cast<cudnnDataType_t>(convolution->Integer(CUDNN_ATTR_CONVOLUTION_COMP_TYPE))
          : CUDNN_DATA_FLOAT;
  // The weights tell the groups: their second extent is the channels of one group.
  const int64_t groups = w[1] > 0 ? std::max<int64_t>(x[1] / w[1], 1) : 1;
  return {ConvolutionName(
              {a.kind, Type(op.Object(a.x)), compute, x[0], x[1], y[1], groups, in, kernel, out}),
          Product(y)};
}

// What cuDNN 9.19 asks for on an H200 beside the front end's own buffers; the caller's allocator
// counts it.
constexpr int64_t kAttentionWorkspaceBytes = 256;

// Attention over q [b, h, sq, d] and k^T [b, h, d, skv]; v's head size dv.
Named NameAttention(const char* kind, cudnnDataType_t type, const std::vector<int64_t>& q,
                    int64_t kv_heads, int64_t kv_length, int64_t value_size) {
  if (q.size() != 4) return {std::string("hostcudnn_sdpa") + kind, 1};
  return {std::string("hostcudnn_sdpa") + kind + "_" + CudnnTypeName(type) + "_b" +
              std::to_string(q[0]) + "_h" + std::to_string(q[1]) + "_hkv" +
              std::to_string(kv_heads) + "_sq" + std::to_string(q[2]) + "_skv" +
              std::to_string(kv_length) + "_d" + std::to_string(q[3]) + "_dv" +
              std::to_string(value_size),
          Product(q), kAttentionWorkspaceBytes};
}

Named NameGraph(const Content& graph) {
  const Attribute* ops = graph.Find(CUDNN_ATTR_OPERATIONGRAPH_OPS);
  if (!ops) return {"hostcudnn_graph", 1};
  std::map<int, int> counts;  // type of operation -> how many
  std::vector<const Content*> products;
  const Content* convolution = nullptr;
  ConvolutionAttributes attributes{};
  for (const Shared& op : ops->objects) {
    ++counts[op->type];
    if (op->type == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR) products.push_back(op.get());
    if (!convolution && ConvolutionOf(*op, &attributes)) convolution = op.get();
    if (op->type == CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR ||
        op->type == CUDNN_BACKEND_OPERATION_SDPA_BWD_DESCRIPTOR) {
      const bool forward = op->type == CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR;
      const Content* q = op->Object(forward ? CUDNN_ATTR_OPERATION_SDPA_FWD_QDESC
                                            : CUDNN_ATTR_OPERATION_SDPA_BWD_QDESC);
      const auto k = Dims(op->Object(forward ? CUDNN_ATTR_OPERATION_SDPA_FWD_KDESC
                                             : CUDNN_ATTR_OPERATION_SDPA_BWD_KDESC));
      const auto v = Dims(op->Object(forward ? CUDNN_ATTR_OPERATION_SDPA_FWD_VDESC
                                             : CUDNN_ATTR_OPERATION_SDPA_BWD_VDESC));
      if (k.size() == 4 && v.size() == 4)
        return NameAttention(forward ? "fwd" : "bwd", Type(q), Dims(q), k[1], k[2], v[3]);
    }
  }
  if (convolution) {
    Named named = NameConvolution(*convolution, attributes);
    if (int fused = counts[CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR])
      named.name += "_pw" + std::to_string(fused);
    return named;
  }
  auto tensor = [](const Content* op, int name) { return op->Object(name); };
  if (products.size() >= 2) {  // attention: q k^T, then p v; backward has more
    const Content* q = tensor(products[0], CUDNN_ATTR_OPERATION_MATMUL_ADESC);
    const auto kt = Dims(tensor(products[0], CUDNN_ATTR_OPERATION_MATMUL_BDESC)),
               v = Dims(tensor(products[1], CUDNN_ATTR_OPERATION_MATMUL_BDESC));
    if (Dims(q).size() == 4 && kt.size() == 4 && v.size() == 4)
      return NameAttention(products.size() == 2 ? "fwd" : "bwd", Type(q), Dims(q), kt[1], kt[3],
                           v[3]);
  }
  if (products.size() == 1) {
    const Content *a = tensor(products[0], CUDNN_ATTR_OPERATION_MATMUL_ADESC),
                  *b = tensor(products[0], CUDNN_ATTR_OPERATION_MATMUL_BDESC),
                  *c = tensor(products[0], CUDNN_ATTR_OPERATION_MATMUL_CDESC);
    const auto da = Dims(a), db = Dims(b);
    if (da.size() >= 2 && db.size() >= 2) {
      const uint64_t m = static_cast<uint64_t>(da[da.size() - 2]),
                     k = static_cast<uint64_t>(da.back()), n = static_cast<uint64_t>(db.back());
      const uint64_t batch = Product(da) / std::max<uint64_t>(m * k, 1);
      std::string name = std::string("hostcudnn_matmul_") + CudnnTypeName(Type(a)) + "_" +
                         CudnnTypeName(Type(c)) + "_m" + std::to_string(m) + "_n" +
                         std::to_string(n) + "_k" + std::to_string(k) + "_b" +
                         std::to_string(batch);
      if (int fused = counts[CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR])
        name += "_pw" + std::to_string(fused);
      return {name, m * n * batch};
    }
  }
  const Content* first = ops->objects.empty() ? nullptr : ops->objects.front().get();
  if (first && (first->type == CUDNN_BACKEND_OPERATION_NORM_FORWARD_DESCRIPTOR ||
                first->type == CUDNN_BACKEND_OPERATION_NORM_BACKWARD_DESCRIPTOR)) {
    const bool forward = first->type == CUDNN_BACKEND_OPERATION_NORM_FORWARD_DESCRIPTOR;
    const Content* x = first->Object(forward ? CUDNN_ATTR_OPERATION_NORM_FWD_XDESC
                                             : CUDNN_ATTR_OPERATION_NORM_BWD_XDESC);
    return {std::string("hostcudnn_norm") + (forward ? "fwd_" : "bwd_") + CudnnTypeName(Type(x)) +
                "_mode" +
                std::to_string(first->Integer(forward ? CUDNN_ATTR_OPERATION_NORM_FWD_MODE
                                                      : CUDNN_ATTR_OPERATION_NORM_BWD_MODE)) +
                "_x" + Extents(Dims(x)),
            Product(Dims(x))};
  }
  // Anything else: the kinds of operations and the largest tensor.
  Named named{"hostcudnn_graph", 1};
  for (auto [type, count] : counts)
    named.name += "_op" + std::to_string(type) + "x" + std::to_string(count);
  for (const Shared& op : ops->objects) {
    for (const auto& [name, attribute] : op->attributes) {
      for (const Shared& object : attribute.objects) {
        if (object->type == CUDNN_BACKEND_TENSOR_DESCRIPTOR)
          named.elements = std::max(named.elements, Product(Dims(object.get())));
      }
    }
  }
  named.name += "_elements" + std::to_string(named.elements);
  return named;
}

const Content* GraphOfPlan(const Content& plan) {
  const Content* config = plan.Object(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
  const Content* engine = config ? config->Object(CUDNN_ATTR_ENGINECFG_ENGINE) : nullptr;
  return engine ? engine->Object(CUDNN_ATTR_ENGINE_OPERATION_GRAPH) : nullptr;
}

cudnnStatus_t Finalize(Content* c) {
  switch (c->type) {
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR: {
      const Content* graph = GraphOfPlan(*c);
      if (!graph) return CUDNN_STATUS_BAD_PARAM;
      Named named = NameGraph(*graph);
      c->kernel = std::move(named.name);
      c->elements = named.elements;
      c->workspace_bytes = named.workspace_bytes;
      break;
    }
    case CUDNN_BACKEND_ENGINE_DESCRIPTOR:
      if (!c->Object(CUDNN_ATTR_ENGINE_OPERATION_GRAPH)) return CUDNN_STATUS_BAD_PARAM;
      if (c->Integer(CUDNN_ATTR_ENGINE_GLOBAL_INDEX) != 0)
        return CUDNN_STATUS_NOT_SUPPORTED;  // there is one engine
      break;
    case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR:
      if (!c->Find(CUDNN_ATTR_OPERATIONGRAPH_OPS)) return CUDNN_STATUS_BAD_PARAM;
      break;
    case CUDNN_BACKEND_TENSOR_DESCRIPTOR:
      if (Dims(c).empty()) return CUDNN_STATUS_BAD_PARAM;
      break;
    default:
      break;
  }
  c->finalized = true;
  return CUDNN_STATUS_SUCCESS;
}

// The configuration that every heuristic query gets: engine 0 for its graph.
Shared Configuration(const Content& heuristic) {
  auto engine = std::make_shared<Content>();
  engine->type = CUDNN_BACKEND_ENGINE_DESCRIPTOR;
  if (const Attribute* graph = heuristic.Find(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH))
    engine->attributes[CUDNN_ATTR_ENGINE_OPERATION_GRAPH] = *graph;
  engine->attributes[CUDNN_ATTR_ENGINE_GLOBAL_INDEX] = {
      CUDNN_TYPE_INT64, 1, std::vector<char>(8, 0), {}};
  engine->finalized = true;
  auto config = std::make_shared<Content>();
  config->type = CUDNN_BACKEND_ENGINECFG_DESCRIPTOR;
  config->attributes[CUDNN_ATTR_ENGINECFG_ENGINE] = {
      CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, {}, {engine}};
  config->finalized = true;
  return config;
}

// Attributes that hostcuda computes: lists that are empty, sizes that are 0, the plan's
// description.
bool Computed(const Content& c, int name, Attribute* a) {
  const std::vector<char> zero(8, 0);
  switch (name) {
    case CUDNN_ATTR_ENGINE_KNOB_INFO:
    case CUDNN_ATTR_ENGINE_LAYOUT_INFO:
    case CUDNN_ATTR_ENGINECFG_KNOB_CHOICES:
    case CUDNN_ATTR_ENGINECFG_INTERMEDIATE_INFO:
      *a = {CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, {}, {}};
      return true;
    case CUDNN_ATTR_ENGINE_NUMERICAL_NOTE:
      *a = {CUDNN_TYPE_NUMERICAL_NOTE, 0, {}, {}};
      return true;
    case CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE:
      *a = {CUDNN_TYPE_BEHAVIOR_NOTE, 0, {}, {}};
      return true;
    case CUDNN_ATTR_EXECUTION_PLAN_COMPUTED_INTERMEDIATE_UIDS:
    case CUDNN_ATTR_EXECUTION_PLAN_RUN_ONLY_INTERMEDIATE_UIDS:
      *a = {CUDNN_TYPE_INT64, 0, {}, {}};
      return true;
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE: {
      *a = {CUDNN_TYPE_INT64, 1, zero, {}};
      memcpy(a->bytes.data(), &c.workspace_bytes, sizeof c.workspace_bytes);
      return true;
    }
    case CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE:
    case CUDNN_ATTR_ENGINE_GLOBAL_INDEX:
      *a = {CUDNN_TYPE_INT64, 1, zero, {}};
      return true;
    case CUDNN_ATTR_ENGINECFG_SHARED_MEMORY_USED:
    case CUDNN_ATTR_ENGINE_SM_COUNT_TARGET:
      *a = {CUDNN_TYPE_INT32, 1, std::vector<char>(4, 0), {}};
      return true;
    case CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT: {
      const int64_t one = 1;
      *a = {CUDNN_TYPE_INT64, 1, zero, {}};
      memcpy(a->bytes.data(), &one, sizeof one);
      return true;
    }
    case CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION: {
      const std::string text = "{\"engine\": \"hostcuda\", \"kernel\": \"" + c.kernel + "\"}";
      *a = {CUDNN_TYPE_CHAR,
            static_cast<int64_t>(text.size() + 1),
            std::vector<char>(text.c_str(), text.c_str() + text.size() + 1),
            {}};
      return true;
    }
    case CUDNN_ATTR_ENGINEHEUR_RESULTS:
      *a = {CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, {}, {Configuration(c)}};
      return true;
    default:
      return false;
  }
}

}  // namespace
}  // namespace hostcuda

using namespace hostcuda;  // NOLINT: the rest of this file is the C interface

extern "C" {

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t* descriptor) {
  if (!descriptor) return CUDNN_STATUS_BAD_PARAM;
  auto* d = new Descriptor;
  d->content = std::make_shared<Content>();
  d->content->type = type;
  *descriptor = d;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  if (!descriptor) return CUDNN_STATUS_SUCCESS;
  Descriptor* d = Of(descriptor);
  if (!d) return CUDNN_STATUS_BAD_PARAM;
  d->magic = 0;
  delete d;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
  Descriptor* d = Of(descriptor);
  return d ? Finalize(d->content.get()) : CUDNN_STATUS_BAD_PARAM;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count,
                                       const void* elements) {
  Descriptor* d = Of(descriptor);
  if (!d || count < 0 || (count > 0 && !elements) || d->content->finalized)
    return CUDNN_STATUS_BAD_PARAM;
  Attribute a{type, count, {}, {}};
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    auto* handles = static_cast<const cudnnBackendDescriptor_t*>(elements);
    for (int64_t i = 0; i < count; ++i) {
      Descriptor* other = Of(handles[i]);
      if (!other || !other->content->finalized) return CUDNN_STATUS_BAD_PARAM;
      a.objects.push_back(other->content);
    }
  } else if (count > 0) {
    const char* bytes = static_cast<const char*>(elements);
    a.bytes.assign(bytes, bytes + static_cast<size_t>(count) * TypeBytes(type));
  }
  d->content->attributes[name] = std::move(a);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t requested,
                                       int64_t* count, void* elements) {
  Descriptor* d = Of(descriptor);
  if (!d || requested < 0) return CUDNN_STATUS_BAD_PARAM;
  Attribute computed;
  const Attribute* a = d->content->Find(name);
  if (!a && Computed(*d->content, name, &computed)) a = &computed;
  if (!a) return Unknown("cudnnBackendGetAttribute", name, d->content->type);
  if (a->type != type) return CUDNN_STATUS_BAD_PARAM;
  if (count) *count = a->count;
  const int64_t n = std::min(requested, a->count);
  if (!elements || n == 0) return CUDNN_STATUS_SUCCESS;
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    // The caller made the descriptors that receive the contents.
    auto* handles = static_cast<cudnnBackendDescriptor_t*>(elements);
    for (int64_t i = 0; i < n; ++i) {
      Descriptor* to = Of(handles[i]);
      if (!to || to->content->type != a->objects[static_cast<size_t>(i)]->type)
        return CUDNN_STATUS_BAD_PARAM;
      to->content = a->objects[static_cast<size_t>(i)];
    }
  } else {
    memcpy(elements, a->bytes.data(), static_cast<size_t>(n) * TypeBytes(type));
  }
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t pack) {
  if (!Valid(handle)) return CUDNN_STATUS_NOT_INITIALIZED;
  Descriptor *p = Of(plan), *v = Of(pack);
  if (!p || !v || !p->content->finalized ||
      p->content->type != CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)
    return CUDNN_STATUS_BAD_PARAM;
  return CudnnStatus(
      LaunchNamed(handle->stream, p->content->kernel, GridFor(p->content->elements)));
}

}  // extern "C"
