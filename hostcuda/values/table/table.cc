#include "hostcuda/values/table/table.h"

#include <string>
#include <unordered_map>

#include "hostcuda/values/table/forms.h"

namespace hostcuda::values {
namespace {

const std::unordered_map<std::string, TableEntry>& Table() {
  static const auto* table = new std::unordered_map<std::string, TableEntry>{
#define PLAIN(name, reason) {"aten::" name, {Rule::kPlain, nullptr, nullptr, reason}},
#define FIRST(name, reason) {"aten::" name, {Rule::kComputeFirst, nullptr, CallCpuKernel, reason}},
#define FIRST_BY(name, function, reason) \
  {"aten::" name, {Rule::kComputeFirst, nullptr, forms::function, reason}},
#define FORM(name, function, reason) \
  {"aten::" name, {Rule::kForm, forms::function, nullptr, reason}},
#define NONE(name, reason) {"aten::" name, {Rule::kUnsupported, nullptr, nullptr, reason}},
#include "hostcuda/values/table/operations.inc"
#undef PLAIN
#undef FIRST
#undef FIRST_BY
#undef FORM
#undef NONE
  };
  return *table;
}

}  // namespace

const TableEntry* FindTableEntry(const std::string& name, const std::string& overload) {
  const auto& table = Table();
  if (!overload.empty()) {
    if (const auto found = table.find(name + "." + overload); found != table.end())
      return &found->second;
  }
  const auto found = table.find(name);
  return found == table.end() ? nullptr : &found->second;
}

}  // namespace hostcuda::values
