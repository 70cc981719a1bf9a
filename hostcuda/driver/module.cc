#include "hostcuda/driver/module.h"

#include <elf.h>

#include <cctype>
#include <cstring>
#include <memory>
#include <shared_mutex>
#include <unordered_map>
#include <unordered_set>

#include "hostcuda/driver/gpu.h"

namespace hostcuda {
namespace {

constexpr uint32_t kFatWrapperMagic = 0x466243b1;
constexpr uint32_t kFatMagic = 0xba55ed50;
constexpr uint16_t kFatPtx = 1, kFatElf = 2;
constexpr uint64_t kFatCompressed = 0x2000 | 0x8000;

struct FatWrapper {
  uint32_t magic, version;
  const void* data;
  const void* file_name;
};

struct FatHeader {
  uint32_t magic;
  uint16_t version, header_bytes;
  uint64_t bytes;
};

struct FatEntry {
  uint16_t kind, version;
  uint32_t header_bytes;
  uint64_t payload_bytes;
  uint32_t compressed_bytes, options_offset;
  uint16_t minor, major;
  uint32_t arch, name_offset, name_bytes;
  uint64_t flags;
};

/// Reads `text` of one kernel's .nv.info section: EIATTR_KPARAM_INFO records tell ordinal, offset
/// and size.
void ReadParameterInfo(const uint8_t* data, uint64_t bytes, Module::Parameters* parameters) {
  constexpr uint8_t kFormatSized = 4, kKernelParameter = 0x17;
  for (uint64_t at = 0; at + 4 <= bytes;) {
    const uint8_t format = data[at], attribute = data[at + 1];
    uint16_t length;
    memcpy(&length, data + at + 2, 2);
    at += 4;
    if (format != kFormatSized) continue;
    if (at + length > bytes) return;
    if (attribute == kKernelParameter && length >= 12) {
      uint16_t ordinal, offset;
      uint32_t packed;
      memcpy(&ordinal, data + at + 4, 2);
      memcpy(&offset, data + at + 6, 2);
      memcpy(&packed, data + at + 8, 4);
      if (parameters->sizes.size() <= ordinal) {
        parameters->sizes.resize(ordinal + 1u);
        parameters->offsets.resize(ordinal + 1u);
      }
      parameters->sizes[ordinal] = packed >> 18;
      parameters->offsets[ordinal] = offset;
    }
    at += length;
  }
  parameters->known = true;
}

bool ReadElf(const uint8_t* image, Module* module) {
  Elf64_Ehdr header;
  memcpy(&header, image, sizeof header);
  if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_shentsize != sizeof(Elf64_Shdr))
    return false;
  std::vector<Elf64_Shdr> sections(header.e_shnum);
  if (header.e_shnum == 0 || header.e_shstrndx >= header.e_shnum) return false;
  memcpy(sections.data(), image + header.e_shoff, sections.size() * sizeof(Elf64_Shdr));
  const char* section_names =
      reinterpret_cast<const char*>(image + sections[header.e_shstrndx].sh_offset);
  for (const Elf64_Shdr& section : sections) {
    const char* name = section_names + section.sh_name;
    if (section.sh_type == SHT_PROGBITS && strncmp(name, ".text.", 6) == 0) module->names[name + 6];
  }
  for (const Elf64_Shdr& section : sections) {
    const char* name = section_names + section.sh_name;
    if (strncmp(name, ".nv.info.", 9) == 0) {
      const auto kernel = module->names.find(name + 9);
      if (kernel != module->names.end()) {
        ReadParameterInfo(image + section.sh_offset, section.sh_size, &kernel->second);
      }
    }
    if (section.sh_type != SHT_SYMTAB || section.sh_link >= sections.size()) continue;
    const char* names = reinterpret_cast<const char*>(image + sections[section.sh_link].sh_offset);
    for (uint64_t at = 0; at + sizeof(Elf64_Sym) <= section.sh_size; at += sizeof(Elf64_Sym)) {
      Elf64_Sym symbol;
      memcpy(&symbol, image + section.sh_offset + at, sizeof symbol);
      if (ELF64_ST_TYPE(symbol.st_info) != STT_OBJECT || symbol.st_shndx == SHN_UNDEF ||
          symbol.st_shndx >= sections.size()) {
        continue;
      }
      Module::Global& global = module->globals[names + symbol.st_name];
      global.bytes = symbol.st_size;
      const Elf64_Shdr& home = sections[symbol.st_shndx];
      if (home.sh_type == SHT_PROGBITS && symbol.st_value + symbol.st_size <= home.sh_size) {
        global.initial.assign(
            reinterpret_cast<const char*>(image + home.sh_offset + symbol.st_value),
            symbol.st_size);
      }
    }
  }
  return true;
}

/// PTX text: ".entry name(" declares a kernel, ".param .type name" in its list a parameter.
bool ReadPtx(std::string_view text, Module* module) {
  if (text.find(".version") == std::string_view::npos) return false;
  for (size_t at = text.find(".entry"); at != std::string_view::npos;
       at = text.find(".entry", at)) {
    at += 6;
    while (at < text.size() && isspace(static_cast<unsigned char>(text[at]))) ++at;
    size_t end = at;
    while (end < text.size() &&
           (isalnum(static_cast<unsigned char>(text[end])) || text[end] == '_' || text[end] == '$'))
      ++end;
    Module::Parameters& parameters = module->names[std::string(text.substr(at, end - at))];
    size_t next = end;
    while (next < text.size() && isspace(static_cast<unsigned char>(text[next]))) ++next;
    if (next >= text.size() || text[next] != '(') {
      parameters.known = true;  // no parameters
      continue;
    }
    const std::string_view list = text.substr(next, text.find(')', next) - next);
    uint32_t offset = 0;
    for (size_t p = list.find(".param"); p != std::string_view::npos;
         p = list.find(".param", p + 6)) {
      const size_t stop = std::min(list.find(',', p), list.size());
      const std::string_view item = list.substr(p, stop - p);
      uint32_t align = 0, element = 0, count = 1;
      for (size_t dot = item.find('.', 1); dot != std::string_view::npos;
           dot = item.find('.', dot + 1)) {
        const std::string_view word = item.substr(dot + 1);
        if (word.substr(0, 5) == "align") {
          align = static_cast<uint32_t>(strtoul(std::string(word.substr(5)).c_str(), nullptr, 10));
        } else if (!word.empty() && strchr("usbf", word[0]) != nullptr && word.size() > 1 &&
                   isdigit(static_cast<unsigned char>(word[1]))) {
          element =
              static_cast<uint32_t>(strtoul(std::string(word.substr(1)).c_str(), nullptr, 10)) / 8;
        }
      }
      const size_t bracket = item.find('[');
      if (bracket != std::string_view::npos) {
        count = static_cast<uint32_t>(
            strtoul(std::string(item.substr(bracket + 1)).c_str(), nullptr, 10));
      }
      if (element == 0) element = 8;
      if (align == 0) align = element;
      offset = (offset + align - 1) / align * align;
      parameters.sizes.push_back(element * count);
      parameters.offsets.push_back(offset);
      offset += element * count;
    }
    parameters.known = true;
  }
  return true;
}

bool ReadFat(const uint8_t* data, Module* module) {
  FatHeader header;
  memcpy(&header, data, sizeof header);
  if (header.magic != kFatMagic) return false;
  const uint8_t* at = data + header.header_bytes;
  const uint8_t* end = at + header.bytes;
  while (at + sizeof(FatEntry) <= end) {
    FatEntry entry;
    memcpy(&entry, at, sizeof entry);
    if (entry.header_bytes == 0) break;
    const uint8_t* payload = at + entry.header_bytes;
    if ((entry.flags & kFatCompressed) != 0) {
      module->every_name = true;
    } else if (entry.kind == kFatElf) {
      ReadElf(payload, module);
    } else if (entry.kind == kFatPtx) {
      ReadPtx(
          std::string_view(reinterpret_cast<const char*>(payload),
                           strnlen(reinterpret_cast<const char*>(payload), entry.payload_bytes)),
          module);
    } else {
      module->every_name = true;
    }
    at = payload + entry.payload_bytes;
  }
  return true;
}

struct Bodies {
  std::shared_mutex mutex;
  std::unordered_map<std::string, hostcudaKernelBody> by_name;
  std::unordered_map<std::string, std::vector<uint32_t>> sizes;
  std::unordered_map<std::string, KernelTime> times;
  std::atomic<bool> any{false};
  std::atomic<bool> any_time{false};
};

Bodies& AllBodies() {
  static Bodies* const bodies = new Bodies;
  return *bodies;
}

}  // namespace

namespace {

/// Offsets of parameters laid out as CUDA lays them out: each aligned to its size (structures: to
/// 8).
std::vector<uint32_t> PackedOffsets(const std::vector<uint32_t>& sizes) {
  std::vector<uint32_t> offsets;
  uint32_t offset = 0;
  for (const uint32_t size : sizes) {
    const uint32_t alignment = size == 1 || size == 2 || size == 4 ? size : 8;
    offset = (offset + alignment - 1) / alignment * alignment;
    offsets.push_back(offset);
    offset += size;
  }
  return offsets;
}

}  // namespace

const char* Intern(std::string_view text) {
  struct Pool {
    std::mutex mutex;
    std::unordered_set<std::string> texts;
  };
  static Pool* const pool = new Pool;
  std::lock_guard<std::mutex> lock(pool->mutex);
  return pool->texts.emplace(text).first->c_str();
}

Kernel* Module::Find(std::string_view name) {
  std::lock_guard<std::mutex> lock(mutex);
  const auto known = kernels.find(name);
  if (known != kernels.end()) return known->second;
  const auto listed = names.find(name);
  if (listed == names.end() && !every_name) return nullptr;
  auto* kernel = new Kernel;
  kernel->name = Intern(name);
  kernel->module = this;
  if (own) kernel->max_dynamic_shared = Gpu().shared_per_block_optin;
  if (listed != names.end() && listed->second.known) {
    kernel->sizes_known = true;
    kernel->parameter_sizes = listed->second.sizes;
    kernel->parameter_offsets = listed->second.offsets;
  } else {
    kernel->sizes_known = ParameterSizesFromName(kernel->name, &kernel->parameter_sizes);
    kernel->parameter_offsets = PackedOffsets(kernel->parameter_sizes);
  }
  kernels.emplace(std::string(name), kernel);
  return kernel;
}

Module* LoadImage(const void* image, CUresult* error) {
  if (image == nullptr) {
    *error = CUDA_ERROR_INVALID_VALUE;
    return nullptr;
  }
  auto module = std::make_unique<Module>();
  const auto* bytes = static_cast<const uint8_t*>(image);
  uint32_t magic;
  memcpy(&magic, bytes, sizeof magic);
  bool read = false;
  if (memcmp(bytes, kImageMagic, 4) == 0 &&
      strncmp(static_cast<const char*>(image), kImageMagic, sizeof kImageMagic) == 0) {
    read = module->every_name = module->own = true;
  } else if (magic == kFatWrapperMagic) {
    FatWrapper wrapper;
    memcpy(&wrapper, bytes, sizeof wrapper);
    read = ReadFat(static_cast<const uint8_t*>(wrapper.data), module.get());
  } else if (magic == kFatMagic) {
    read = ReadFat(bytes, module.get());
  } else if (memcmp(bytes, ELFMAG, SELFMAG) == 0) {
    read = ReadElf(bytes, module.get());
  } else if (isspace(bytes[0]) || bytes[0] == '/' || bytes[0] == '.') {
    read = ReadPtx(std::string_view(static_cast<const char*>(image)), module.get());
  }
  if (!read) {
    *error = CUDA_ERROR_INVALID_IMAGE;
    return nullptr;
  }
  *error = CUDA_SUCCESS;
  // Kept for good: kernels of it may be queued when it is unloaded, and profilers keep their names.
  static std::mutex* const mutex = new std::mutex;
  static auto* const modules = new std::vector<std::unique_ptr<Module>>;
  std::lock_guard<std::mutex> lock(*mutex);
  modules->push_back(std::move(module));
  return modules->back().get();
}

hostcudaKernelBody FindBody(const char* interned_name) {
  Bodies& bodies = AllBodies();
  if (!bodies.any.load(std::memory_order_acquire)) return nullptr;
  std::shared_lock lock(bodies.mutex);
  const auto found = bodies.by_name.find(interned_name);
  return found == bodies.by_name.end() ? nullptr : found->second;
}

void RegisterBody(const char* name, hostcudaKernelBody body) {
  Bodies& bodies = AllBodies();
  std::unique_lock lock(bodies.mutex);
  bodies.by_name[name] = body;
  bodies.any.store(true, std::memory_order_release);
}

std::optional<KernelTime> FindTime(const char* interned_name) {
  Bodies& bodies = AllBodies();
  if (!bodies.any_time.load(std::memory_order_acquire)) return std::nullopt;
  std::shared_lock lock(bodies.mutex);
  const auto found = bodies.times.find(interned_name);
  if (found == bodies.times.end()) return std::nullopt;
  return found->second;
}

void RegisterTime(const char* name, const KernelTime& time) {
  Bodies& bodies = AllBodies();
  std::unique_lock lock(bodies.mutex);
  bodies.times[name] = time;
  bodies.any_time.store(true, std::memory_order_release);
}

void RegisterParameters(const char* name, const std::vector<uint32_t>& sizes) {
  Bodies& bodies = AllBodies();
  std::unique_lock lock(bodies.mutex);
  bodies.sizes[name] = sizes;
}

void LearnParameters(Kernel& kernel) {
  if (kernel.sizes_known.load(std::memory_order_acquire)) return;
  Bodies& bodies = AllBodies();
  std::unique_lock lock(bodies.mutex);
  const auto known = bodies.sizes.find(kernel.name);
  if (known == bodies.sizes.end() || kernel.sizes_known.load(std::memory_order_relaxed)) return;
  kernel.parameter_sizes = known->second;
  kernel.parameter_offsets = PackedOffsets(known->second);
  kernel.sizes_known.store(true, std::memory_order_release);
}

bool AnyBody() { return AllBodies().any.load(std::memory_order_acquire); }

bool ParameterSizesFromName(const char* mangled, std::vector<uint32_t>* sizes) {
  // Itanium ABI, plain functions only: _Z <source name> <builtin or pointer>*. Templates and
  // structures by value are not told by the name.
  const char* p = mangled;
  if (strncmp(p, "_Z", 2) != 0) return false;
  p += 2;
  const bool nested = *p == 'N';
  if (nested) ++p;
  do {
    if (!isdigit(static_cast<unsigned char>(*p))) return false;
    char* end = nullptr;
    const unsigned long length = strtoul(p, &end, 10);
    if (strnlen(end, length) < length) return false;
    p = end + length;
  } while (nested && *p != 'E');
  if (nested) ++p;
  if (*p == 'I') return false;
  const auto builtin_size = [](char c) -> uint32_t {
    switch (c) {
      case 'b':
      case 'c':
      case 'a':
      case 'h':
        return 1;
      case 's':
      case 't':
        return 2;
      case 'i':
      case 'j':
      case 'f':
        return 4;
      case 'l':
      case 'm':
      case 'x':
      case 'y':
      case 'd':
        return 8;
      default:
        return 0;
    }
  };
  if (strcmp(p, "v") == 0) return true;
  bool seen_class = false;
  while (*p != '\0') {
    bool pointer = false;
    while (*p == 'P' || *p == 'R' || *p == 'K' || *p == 'V' || *p == 'r') {
      pointer |= *p == 'P' || *p == 'R';
      ++p;
    }
    uint32_t size = builtin_size(*p);
    if (*p == 'S') {  // a substitution repeats a type: which one matters only by value
      while (*p != '\0' && *p != '_') ++p;
      if (*p == '\0') return false;
      ++p;
      // Builtins are never substituted; without classes among the parameters it can only be a
      // pointer.
      if (seen_class && !pointer) return false;
      sizes->push_back(8);
      continue;
    }
    if (isdigit(static_cast<unsigned char>(*p)) && pointer) {
      char* end = nullptr;
      const unsigned long length = strtoul(p, &end, 10);
      if (strnlen(end, length) < length) return false;
      p = end + length;
      seen_class = true;
      sizes->push_back(8);
      continue;
    }
    if (*p == 'v' && pointer) size = 8;
    if (size == 0) return false;
    ++p;
    sizes->push_back(pointer ? 8 : size);
  }
  return true;
}

}  // namespace hostcuda
