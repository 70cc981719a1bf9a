#include "src/interpose/forward_table.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstring>

namespace prism::interpose {
namespace {

void Store(void** slot, void* value) { __atomic_store_n(slot, value, __ATOMIC_RELEASE); }

}  // namespace

bool ForwardTable::Open(const char* path, char* error, size_t error_bytes) {
  if (path == nullptr || path[0] != '/') {
    snprintf(error, error_bytes, "'%s' is not an absolute path", path == nullptr ? "" : path);
    Close();
    return false;
  }
  // The real library's own references must not come back to us. Sanitizer runtimes refuse
  // RTLD_DEEPBIND.
  int flags = RTLD_NOW | RTLD_LOCAL;
  const bool sanitized = dlsym(RTLD_DEFAULT, "__asan_init") != nullptr ||
                         dlsym(RTLD_DEFAULT, "__tsan_init") != nullptr;
  if (!sanitized) flags |= RTLD_DEEPBIND;
  void* library = dlopen(path, flags);
  if (library == nullptr) {
    const char* reason = dlerror();
    snprintf(error, error_bytes, "%s", reason == nullptr ? "unknown error" : reason);
    Close();
    return false;
  }
  for (uint32_t i = 0; i < symbols_.count; ++i) {
    void* found = dlsym(library, symbols_.names[i]);
    if (found == symbols_.exported[i] && found != nullptr) {
      snprintf(error, error_bytes, "%s is this shim itself", path);
      dlclose(library);
      Close();
      return false;
    }
    Store(&symbols_.real[i], found == nullptr ? reinterpret_cast<void*>(symbols_.missing) : found);
  }
  library_ = library;
  return true;
}

void ForwardTable::Close() {
  for (uint32_t i = 0; i < symbols_.count; ++i) {
    Store(&symbols_.real[i], reinterpret_cast<void*>(symbols_.missing));
    Store(&symbols_.entry[i], reinterpret_cast<void*>(symbols_.missing));
  }
}

void ForwardTable::Install(uint32_t index, void* wrapper) {
  Store(&symbols_.entry[index], wrapper);
}

void ForwardTable::Forward(uint32_t index) { Store(&symbols_.entry[index], symbols_.real[index]); }

uint32_t ForwardTable::Find(const char* name) const {
  // The list is sorted; a linear probe would cost 600 comparisons at every look-up of a program's
  // start.
  uint32_t low = 0, high = symbols_.count;
  while (low < high) {
    const uint32_t middle = (low + high) / 2;
    const int order = strcmp(symbols_.names[middle], name);
    if (order == 0) return middle;
    if (order < 0) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return symbols_.count;
}

}  // namespace prism::interpose
