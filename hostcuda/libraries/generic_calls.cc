// The generic answers of generated calls (hostcuda/api/tail_runtime.h).
#include <algorithm>
#include <cstring>
#include <exception>
#include <limits>
#include <string>
#include <string_view>

#include "hostcuda/api/tail_runtime.h"
#include "hostcuda/libraries/driver_link.h"
#include "hostcuda/libraries/generic_object.h"

namespace hostcuda {
namespace {

// Generated calls pass every argument as 64 bits; of a pointer these are its address.
void* ToPointer(int64_t argument) {
  return reinterpret_cast<void*>(argument);  // NOLINT(performance-no-int-to-ptr)
}

constexpr int kSuccess = 0;

// The arguments of one call with what the description knows about them.
struct Call {
  HostcudaTailCall* call;
  const HostcudaParameter* parameters;
  const int64_t* args;
  int count;

  std::string_view Function() const { return call->function; }
  const HostcudaLibrary& Library() const { return *call->library; }
  void* Pointer(int i) const { return ToPointer(args[i]); }
  bool IsHandle(int i) const {
    return parameters[i].role == HOSTCUDA_HANDLE || parameters[i].role == HOSTCUDA_OBJECT ||
           parameters[i].role == HOSTCUDA_OBJECT_OUT;
  }
  // The library's own handle, as opposed to a descriptor.
  bool IsLibraryHandle(int i) const {
    return IsHandle(i) && std::string_view(parameters[i].type).ends_with("Handle_t");
  }

  GenericObject* Object(int i) const {
    void* p = Pointer(i);
    if (p && parameters[i].role != HOSTCUDA_HANDLE)
      p = *static_cast<void**>(p);  // the caller's storage begins with our pointer
    auto* object = static_cast<GenericObject*>(p);
    return object && object->magic == GenericObject::kMagic ? object : nullptr;
  }
};

void Store(void* to, int width, int64_t value) {
  if (width == 8)
    memcpy(to, &value, 8);
  else if (width == 4)
    memcpy(to, &value, 4);
  else if (width == 2)
    memcpy(to, &value, 2);
  else if (width == 1)
    memcpy(to, &value, 1);
}

bool IsScalar(const HostcudaParameter& p) {
  return p.role == HOSTCUDA_INTEGER || p.role == HOSTCUDA_FLOATING;
}

// Scalars that say how memory is laid out or lent, not what is computed.
bool InName(std::string_view name) {
  return !name.starts_with("ld") && !name.starts_with("inc") && !name.starts_with("stride") &&
         !name.starts_with("lwork") && !name.starts_with("Lwork") &&
         name.find("orkspace") == std::string_view::npos &&
         name.find("ufferSize") == std::string_view::npos &&
         name.find("lignment") == std::string_view::npos;
}

void AppendToken(std::string& name, std::string_view key, int64_t value) {
  name.append("_").append(key);
  if (!key.empty() && key.back() >= '0' && key.back() <= '9') name += 'v';
  if (value < 0)
    name.append("neg").append(std::to_string(-static_cast<uint64_t>(value)));
  else
    name.append(std::to_string(value));
}

// Sees to it that no exception leaves the C boundary.
template <typename Body>
int Guarded(const Call& call, Body body) noexcept {
  try {
    return body();
  } catch (const std::exception&) {
    return call.Library().execution_failed;
  }
}

// What a created object, or a compute call's name, learns from the descriptors among the arguments.
template <typename Sink>
void ForEachInherited(const Call& c, Sink sink) {
  for (int i = 0; i < c.count; ++i) {
    if (!c.IsHandle(i) || c.IsLibraryHandle(i)) continue;
    const GenericObject* object = c.Object(i);
    if (!object) continue;
    for (const GenericObject::Attribute& a : object->attributes) {
      // An attribute that was inherited already carries its origin: plan -> matmulDescr ->
      // matA_rows stays matA_rows.
      sink(a.name.find('_') == std::string::npos ? std::string(c.parameters[i].name) + "_" + a.name
                                                 : a.name,
           a);
    }
  }
}

int Compute(const Call& c) {
  CUstream stream = nullptr;
  bool have_stream = false;
  std::string name = std::string(c.Library().prefix) + "_" + c.call->function;
  uint64_t extent[2] = {1, 1};  // the two largest dimensions
  for (int i = 0; i < c.count; ++i) {
    const HostcudaParameter& p = c.parameters[i];
    switch (p.role) {
      case HOSTCUDA_STREAM:
        stream = static_cast<CUstream>(c.Pointer(i));
        have_stream = true;
        break;
      case HOSTCUDA_STREAMS:
        // An array of streams that the call may use; their number follows.
        if (c.Pointer(i) && i + 1 < c.count && c.args[i + 1] > 0) {
          stream = *static_cast<CUstream*>(c.Pointer(i));
          have_stream = true;
        }
        break;
      case HOSTCUDA_HANDLE:
      case HOSTCUDA_OBJECT:
      case HOSTCUDA_OBJECT_OUT:
        if (c.IsLibraryHandle(i) || i == 0) {
          const GenericObject* handle = c.Object(i);
          if (!handle) return c.Library().not_initialized;
          if (!have_stream) stream = handle->stream;
        } else if (c.Pointer(i) && !c.Object(i)) {
          return c.Library().invalid_value;
        }
        break;
      case HOSTCUDA_INTEGER:
        if (InName(p.name) && std::string_view(p.name) != "numStreams") {
          AppendToken(name, p.name, c.args[i]);
          uint64_t v = static_cast<uint64_t>(std::max<int64_t>(c.args[i], 1));
          if (v > extent[0]) std::swap(extent[0], v);
          extent[1] = std::max(extent[1], std::min(v, extent[0]));
        }
        break;
      default:
        break;
    }
  }
  for (int i = 0; i < c.count; ++i) {
    const GenericObject* object = c.IsHandle(i) && !c.IsLibraryHandle(i) ? c.Object(i) : nullptr;
    if (object && !object->summary.empty())
      name.append("_").append(c.parameters[i].name).append("_").append(object->summary);
  }
  ForEachInherited(c, [&name](const std::string& key, const GenericObject::Attribute& a) {
    std::string_view last = std::string_view(key).substr(key.rfind('_') + 1);
    if (!a.floating && InName(last)) AppendToken(name, key, a.value);
  });
  uint64_t elements =
      extent[0] > (uint64_t{1} << 40) / extent[1] ? uint64_t{1} << 40 : extent[0] * extent[1];
  if (LaunchNamed(stream, name, GridFor(elements)) != CUDA_SUCCESS)
    return c.Library().execution_failed;
  int64_t batch = 1;
  for (int i = 0; i < c.count; ++i) {
    if (std::string_view(c.parameters[i].name) == "batchSize")
      batch = std::max<int64_t>(c.args[i], 1);
  }
  // The one status word of potrsBatched is not an array.
  if (c.Function().find("potrsBatched") != std::string_view::npos) batch = 1;
  for (int i = 0; i < c.count; ++i) {
    const HostcudaParameter& p = c.parameters[i];
    if (!c.Pointer(i)) continue;
    if (p.role == HOSTCUDA_ZERO_OUT) Store(c.Pointer(i), p.width, 0);
    if (p.role == HOSTCUDA_NAN_OUT)
      std::fill_n(static_cast<double*>(c.Pointer(i)), batch,
                  std::numeric_limits<double>::quiet_NaN());
    if (p.role == HOSTCUDA_DEVICE_STATUS &&
        ClearOnStream(stream, c.Pointer(i), static_cast<size_t>(batch) * p.width) != CUDA_SUCCESS)
      return c.Library().execution_failed;
  }
  return kSuccess;
}

}  // namespace
}  // namespace hostcuda

using hostcuda::Call;
using hostcuda::GenericObject;
using hostcuda::Guarded;

extern "C" {

int HostcudaSize(HostcudaTailCall* call, const HostcudaParameter* parameters, const int64_t* args,
                 int count) {
  for (int i = 0; i < count; ++i) {
    if (parameters[i].role == HOSTCUDA_SIZE_OUT && args[i])
      hostcuda::Store(hostcuda::ToPointer(args[i]), parameters[i].width, 0);
  }
  static_cast<void>(call);
  return hostcuda::kSuccess;
}

int HostcudaCreate(HostcudaTailCall* call, const HostcudaParameter* parameters, const int64_t* args,
                   int count) {
  Call c{call, parameters, args, count};
  return Guarded(c, [&c] {
    int target = -1;
    for (int i = 0; i < c.count && target < 0; ++i) {
      if (c.parameters[i].role == HOSTCUDA_HANDLE_OUT ||
          c.parameters[i].role == HOSTCUDA_OBJECT_OUT)
        target = i;
    }
    if (target < 0 || !c.Pointer(target)) return c.Library().invalid_value;
    auto* object = new GenericObject;
    for (int i = 0; i < c.count; ++i) {
      if (hostcuda::IsScalar(c.parameters[i]))
        object->Set(c.parameters[i].name, c.args[i], c.parameters[i].role == HOSTCUDA_FLOATING);
    }
    Call inputs = c;
    inputs.count =
        0;  // storage that is being initialised holds no object yet, so it is left out below
    for (int i = 0; i < c.count; ++i) {
      if (i == target) continue;
      inputs.parameters = c.parameters + i;
      inputs.args = c.args + i;
      inputs.count = 1;
      hostcuda::ForEachInherited(
          inputs, [object](const std::string& key, const GenericObject::Attribute& a) {
            object->Set(key, a.value, a.floating);
          });
    }
    *static_cast<void**>(c.Pointer(target)) = object;
    return hostcuda::kSuccess;
  });
}

int HostcudaDestroy(HostcudaTailCall* call, const HostcudaParameter* parameters,
                    const int64_t* args, int count) {
  Call c{call, parameters, args, count};
  for (int i = count - 1; i >= 0;
       --i) {  // the last handle: a descriptor may follow the library's handle
    if (!c.IsHandle(i)) continue;
    if (!args[i]) return hostcuda::kSuccess;
    GenericObject* object = c.Object(i);
    if (!object) return c.Library().invalid_value;
    delete object;
    if (parameters[i].role != HOSTCUDA_HANDLE) *static_cast<void**>(c.Pointer(i)) = nullptr;
    return hostcuda::kSuccess;
  }
  return HostcudaUnsupported(call);
}

// The object a set or get call is about: a descriptor if there is one, else the library's handle.
static GenericObject* Subject(const Call& c, int* index) {
  int chosen = -1;
  for (int i = 0; i < c.count; ++i) {
    if (!c.IsHandle(i)) continue;
    if (chosen < 0 || (c.IsLibraryHandle(chosen) && !c.IsLibraryHandle(i))) chosen = i;
  }
  *index = chosen;
  return chosen < 0 ? nullptr : c.Object(chosen);
}

// (attribute id, data, bytes), the form of cusparseLt...SetAttribute; -1 if the call has another
// form.
static int DataParameter(const Call& c) {
  for (int i = 1; i + 1 < c.count; ++i) {
    if (c.parameters[i].role == HOSTCUDA_POINTER &&
        std::string_view(c.parameters[i].name) == "data" &&
        c.parameters[i - 1].role == HOSTCUDA_INTEGER &&
        c.parameters[i + 1].role == HOSTCUDA_INTEGER)
      return i;
  }
  return -1;
}

int HostcudaSet(HostcudaTailCall* call, const HostcudaParameter* parameters, const int64_t* args,
                int count) {
  Call c{call, parameters, args, count};
  return Guarded(c, [&c] {
    int subject;
    GenericObject* object = Subject(c, &subject);
    if (!object) return c.Library().not_initialized;
    if (int data = DataParameter(c); data >= 0) {
      int64_t value = 0, bytes = c.args[data + 1];
      if (!c.Pointer(data) || (bytes != 1 && bytes != 2 && bytes != 4 && bytes != 8))
        return HostcudaUnsupported(c.call);
      memcpy(&value, c.Pointer(data), static_cast<size_t>(bytes));
      object->Set("attribute" + std::to_string(c.args[data - 1]), value);
      return hostcuda::kSuccess;
    }
    const bool pointer_mode = c.Function().find("SetPointerMode") != std::string_view::npos;
    for (int i = 0; i < c.count; ++i) {
      if (c.parameters[i].role == HOSTCUDA_STREAM)
        object->stream = static_cast<CUstream>(c.Pointer(i));
      else if (pointer_mode && c.parameters[i].role == HOSTCUDA_INTEGER)
        object->pointer_mode = static_cast<int>(c.args[i]);
      else if (hostcuda::IsScalar(c.parameters[i]))
        object->Set(c.parameters[i].name, c.args[i], c.parameters[i].role == HOSTCUDA_FLOATING);
    }
    return hostcuda::kSuccess;
  });
}

int HostcudaGet(HostcudaTailCall* call, const HostcudaParameter* parameters, const int64_t* args,
                int count) {
  Call c{call, parameters, args, count};
  return Guarded(c, [&c] {
    int subject;
    GenericObject* object = Subject(c, &subject);
    if (!object) return c.Library().not_initialized;
    if (int data = DataParameter(c); data >= 0) {
      const GenericObject::Attribute* a =
          object->Find("attribute" + std::to_string(c.args[data - 1]));
      if (!a || !c.Pointer(data) || c.args[data + 1] > 8) return HostcudaUnsupported(c.call);
      memcpy(c.Pointer(data), &a->value, static_cast<size_t>(c.args[data + 1]));
      return hostcuda::kSuccess;
    }
    const bool pointer_mode = c.Function().find("GetPointerMode") != std::string_view::npos;
    for (int i = 0; i < c.count; ++i) {
      if (!c.Pointer(i)) continue;
      if (c.parameters[i].role == HOSTCUDA_STREAMS) {
        *static_cast<CUstream*>(c.Pointer(i)) = object->stream;
      } else if (c.parameters[i].role == HOSTCUDA_OUT) {
        const GenericObject::Attribute* a = object->Find(c.parameters[i].name);
        if (!a && !pointer_mode) return HostcudaUnsupported(c.call);
        hostcuda::Store(c.Pointer(i), c.parameters[i].width,
                        pointer_mode ? object->pointer_mode : a->value);
      }
    }
    return hostcuda::kSuccess;
  });
}

int HostcudaCompute(HostcudaTailCall* call, const HostcudaParameter* parameters,
                    const int64_t* args, int count) {
  Call c{call, parameters, args, count};
  return Guarded(c, [&c] { return hostcuda::Compute(c); });
}

int HostcudaResult(HostcudaTailCall* call, const HostcudaParameter* parameters, const int64_t* args,
                   int count) {
  Call c{call, parameters, args, count};
  int subject;
  const GenericObject* object = Subject(c, &subject);
  if (!object) return c.Library().not_initialized;
  // A result on the host would be read at once, and there is none.
  if (object->pointer_mode == GenericObject::kHostPointers) return HostcudaUnsupported(call);
  return HostcudaCompute(call, parameters, args, count);
}

int HostcudaVersion(HostcudaTailCall* call, const HostcudaParameter* parameters,
                    const int64_t* args, int count) {
  const int* v = call->library->version;
  for (int i = 0; i < count; ++i) {
    if (parameters[i].role == HOSTCUDA_OUT && args[i]) {
      hostcuda::Store(hostcuda::ToPointer(args[i]), parameters[i].width,
                      v[0] * 1000 + v[1] * 100 + v[2]);
      return hostcuda::kSuccess;
    }
  }
  return call->library->invalid_value;
}

int HostcudaProperty(HostcudaTailCall* call, const HostcudaParameter* parameters,
                     const int64_t* args, int count) {
  static_cast<void>(parameters);
  // (libraryPropertyType, int*): MAJOR_VERSION 0, MINOR_VERSION 1, PATCH_LEVEL 2.
  if (count != 2 || args[0] < 0 || args[0] > 2 || !args[1]) return call->library->invalid_value;
  hostcuda::Store(hostcuda::ToPointer(args[1]), 4, call->library->version[args[0]]);
  return hostcuda::kSuccess;
}

}  // extern "C"
