#include "src/interpose/driver/native_frames.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <unwind.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string_view>
#include <unordered_map>

namespace prism::interpose {
namespace {

constexpr char kMain[] = "main";

bool IsPlumbing(std::string_view base) {
  for (const char* name :
       {"libnccl", "libcuda", "libtorch", "libc10", "libc.so", "libstdc++", "libpython"}) {
    if (base.substr(0, strlen(name)) == name) return true;
  }
  return false;
}

/// Name of the function of an ELF file that holds `address`, as the file counts them; "".
std::string FunctionAt(const char* path, uint64_t address) {
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return {};
  struct stat about;
  void* map = MAP_FAILED;
  if (fstat(fd, &about) == 0)
    map = mmap(nullptr, static_cast<size_t>(about.st_size), PROT_READ, MAP_PRIVATE, fd, 0);
  close(fd);
  if (map == MAP_FAILED) return {};
  const auto bytes = static_cast<uint64_t>(about.st_size);
  const char* file = static_cast<const char*>(map);
  const auto holds = [&](uint64_t offset, uint64_t length) {
    return offset <= bytes && length <= bytes - offset;
  };
  std::string name;
  const auto* header = reinterpret_cast<const Elf64_Ehdr*>(file);
  const auto* sections = reinterpret_cast<const Elf64_Shdr*>(file + header->e_shoff);
  const bool readable = bytes >= sizeof *header && memcmp(file, ELFMAG, SELFMAG) == 0 &&
                        header->e_ident[EI_CLASS] == ELFCLASS64 &&
                        header->e_shentsize == sizeof *sections &&
                        holds(header->e_shoff, uint64_t{header->e_shnum} * sizeof *sections);
  for (uint32_t i = 0; readable && i < header->e_shnum && name.empty(); ++i) {
    const Elf64_Shdr& table = sections[i];
    if (table.sh_type != SHT_SYMTAB || table.sh_link >= header->e_shnum) continue;
    const Elf64_Shdr& strings = sections[table.sh_link];
    if (!holds(table.sh_offset, table.sh_size) || !holds(strings.sh_offset, strings.sh_size)) break;
    const auto* symbols = reinterpret_cast<const Elf64_Sym*>(file + table.sh_offset);
    for (uint64_t s = 0; s < table.sh_size / sizeof *symbols; ++s) {
      const Elf64_Sym& symbol = symbols[s];
      if (ELF64_ST_TYPE(symbol.st_info) != STT_FUNC || symbol.st_name >= strings.sh_size ||
          address < symbol.st_value || address - symbol.st_value >= symbol.st_size) {
        continue;
      }
      const char* text = file + strings.sh_offset + symbol.st_name;
      name.assign(text, strnlen(text, strings.sh_size - symbol.st_name));
      break;
    }
  }
  munmap(map, bytes);
  return name;
}

struct Frame {
  std::string text;  // "": plumbing
  bool is_main = false;
};

Frame Describe(uintptr_t address) {
  Dl_info info{};
  link_map* image = nullptr;
  if (dladdr1(reinterpret_cast<void*>(address), &info, reinterpret_cast<void**>(&image),
              RTLD_DL_LINKMAP) == 0 ||
      info.dli_fname == nullptr || image == nullptr) {
    return {};
  }
  const char* slash = strrchr(info.dli_fname, '/');
  const char* base = slash == nullptr ? info.dli_fname : slash + 1;
  if (IsPlumbing(base)) return {};
  const uint64_t offset = address - image->l_addr;
  char text[512];
  int length =
      snprintf(text, sizeof text, "%s+0x%llx", base, static_cast<unsigned long long>(offset));
  // The program itself has no path in the list of images.
  std::string name =
      FunctionAt(image->l_name[0] == '\0' ? "/proc/self/exe" : image->l_name, offset);
  if (name.empty() && info.dli_sname != nullptr) name = info.dli_sname;
  if (!name.empty() && length < static_cast<int>(sizeof text)) {
    snprintf(text + length, sizeof text - static_cast<size_t>(length), " in %s",
             ShortName(name.c_str()).c_str());
  }
  return {text, name == kMain};
}

struct Found {
  size_t most;
  size_t count = 0;
  std::string text;
};

_Unwind_Reason_Code Visit(_Unwind_Context* context, void* argument) {
  // A look-up reads a whole symbol table, which takes a millisecond in PyTorch's libraries.
  static std::mutex mutex;
  static auto* known = new std::unordered_map<uintptr_t, Frame>;
  auto* found = static_cast<Found*>(argument);
  const auto address = static_cast<uintptr_t>(_Unwind_GetIP(context)) - 1;  // in the call itself
  std::lock_guard lock(mutex);
  const auto [place, is_new] = known->try_emplace(address);
  if (is_new) place->second = Describe(address);
  const Frame& frame = place->second;
  if (frame.text.empty()) return _URC_NO_REASON;
  if (found->count++ > 0) found->text += " < ";
  found->text += frame.text;
  return frame.is_main || found->count == found->most ? _URC_END_OF_STACK : _URC_NO_REASON;
}

}  // namespace

std::string ShortName(const char* symbol) {
  int status = 0;
  char* demangled = abi::__cxa_demangle(symbol, nullptr, nullptr, &status);
  std::string name = demangled == nullptr ? symbol : demangled;
  free(demangled);
  constexpr std::string_view kAnonymous = "(anonymous namespace)::", kClone = " [clone ";
  for (size_t at; (at = name.find(kAnonymous)) != std::string::npos;)
    name.erase(at, kAnonymous.size());
  if (const size_t clone = name.find(kClone); clone != std::string::npos) name.resize(clone);
  if (const size_t qualifier = name.rfind(") const");
      qualifier != std::string::npos && qualifier + 7 == name.size()) {
    name.resize(qualifier + 1);
  }
  if (name.empty() || name.back() != ')') return name;
  size_t depth = 0;
  for (size_t i = name.size(); i-- > 0;) {
    depth += name[i] == ')' ? 1 : 0;
    if (name[i] == '(' && --depth == 0) return name.substr(0, i);
  }
  return name;
}

std::string NativeFrames(size_t most) {
  Found found{most, 0, {}};
  _Unwind_Backtrace(&Visit, &found);
  return found.text;
}

}  // namespace prism::interpose
