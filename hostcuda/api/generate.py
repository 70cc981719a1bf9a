#!/usr/bin/env python3
"""Generates the part of a library that is not written by hand, or the reference page of all of them.

  generate.py tail --api libcublas.json --c tail.c --map exports.map --hand a.o b.o ...
      tail.c: every export of the description that no --hand object defines, answered by its policy.
      exports.map: the linker's version script: the description's exports and every other global symbol of the --hand
      objects (not mangled C++ names), under the library's version node.
  generate.py page --out docs/reference/hostcuda-api.md --library libcublas.json --hand-list libcublas.hand ...
      The reference page: counts a library and policy, and the functions of each.

Plain Python 3, run by the build.
"""
import argparse
import json
import os
import re
import subprocess
import sys

ROLES = {
    "": "HOSTCUDA_POINTER", "callback": "HOSTCUDA_POINTER", "stream": "HOSTCUDA_STREAM", "streams": "HOSTCUDA_STREAMS",
    "handle": "HOSTCUDA_HANDLE", "handle_out": "HOSTCUDA_HANDLE_OUT", "object": "HOSTCUDA_OBJECT", "object_out": "HOSTCUDA_OBJECT_OUT",
    "size_out": "HOSTCUDA_SIZE_OUT", "zero_out": "HOSTCUDA_ZERO_OUT", "nan_out": "HOSTCUDA_NAN_OUT",
    "device_status": "HOSTCUDA_DEVICE_STATUS", "out": "HOSTCUDA_OUT",
}
GENERIC = {"size": "HostcudaSize", "create": "HostcudaCreate", "destroy": "HostcudaDestroy", "set": "HostcudaSet", "get": "HostcudaGet",
           "compute": "HostcudaCompute", "result": "HostcudaResult", "version": "HostcudaVersion", "property": "HostcudaProperty"}
C_TYPES = {"ptr": "void*", "f32": "float", "f64": "double", **{f"{s}{b}": f"{'u' if s == 'u' else ''}int{b}_t" for s in "iu" for b in (8, 16, 32, 64)}}


def fail(message):
    sys.exit(f"generate.py: {message}")


def load(path):
    with open(path) as f:
        return json.load(f)


def defined_symbols(paths):
    """Global, visible, unmangled symbols that the objects define."""
    names = set()
    if paths:
        # readelf and not nm: only it shows visibility, and a hidden symbol is not an export.
        out = subprocess.run(["readelf", "-sW", *paths], check=True, capture_output=True, text=True).stdout
        for line in out.splitlines():
            f = line.split()
            if len(f) == 8 and f[4] in ("GLOBAL", "WEAK") and f[5] == "DEFAULT" and f[6] not in ("UND", "Ndx"):
                if not f[7].startswith("_Z") and f[3] in ("FUNC", "OBJECT", "NOTYPE", "IFUNC"):
                    names.add(f[7].split("@")[0])
    return names


def status_code(api, pattern, default):
    for name, value in api["status_values"].items():
        if re.search(pattern, name):
            return value
    return default


def library_definition(api):
    unsupported = api["not_supported"]
    name = next((n for n, v in api["status_values"].items() if v == unsupported), str(unsupported))
    values = [unsupported, status_code(api, r"NOT_INITIALIZED|UNINITIALIZED", unsupported), status_code(api, r"INVALID_VALUE|INVALID_ARG|TYPE_ERROR", unsupported),
              status_code(api, r"EXECUTION_FAILED|LAUNCH_FAILURE|EXEC_FAILED|LAUNCH_FAILED", unsupported)]
    version = ", ".join(str(v) for v in api.get("version", [0, 0, 0]))
    return (f'static const struct HostcudaLibrary kLibrary = {{"{api["soname"]}", "host{api["library"][3:]}", '
            f'{", ".join(str(v) for v in values)}, "{name}", {{{version}}}}};')


def parameter_fields(text):
    """("handle", "ptr", "handle", "cublasHandle_t") of "handle:ptr:handle:cublasHandle_t"."""
    fields = (text.split(":") + ["", ""])[:4]
    return fields


def usable(policy, function):
    """The policy that can be generated: one that needs what the description does not hold becomes unsupported."""
    if policy in GENERIC:
        parameters = [parameter_fields(p) for p in function.get("params", [])]
        if "params" not in function or function["returns"] != "status" or any(p[1] not in C_TYPES for p in parameters):
            return "unsupported"
        if policy == "size" and not any(p[2] == "size_out" for p in parameters):
            return "unsupported"
    return policy


def function_source(api, function, index):
    name, policy = function["name"], usable(function["policy"], function)
    # Without a prototype the library's usual status is assumed, where it has one.
    returns = function.get("returns", "status" if api["status"] else "unknown")
    call = f'static struct HostcudaTailCall call_{index} = {{&kLibrary, "{name}", 0}};\n'
    if policy == "status_name":
        texts = {}
        for text, value in api["status_values"].items():
            texts.setdefault(value, text)
        cases = "".join(f'    case {value}: return "{text}";\n' for value, text in texts.items())
        return f'const char* {name}(int status) {{\n  switch (status) {{\n{cases}    default: return "unknown status of {api["soname"]}";\n  }}\n}}\n'
    if policy in GENERIC:
        parameters = [parameter_fields(p) for p in function["params"]]
        # A description's parameter name may be a C keyword or repeat, so arguments are numbered.
        declared = ", ".join(f"{C_TYPES[abi]} a{i}" for i, (_, abi, _, _) in enumerate(parameters)) or "void"
        rows, values = [], []
        for i, (label, abi, role, type_) in enumerate(parameters):
            if abi in ("f32", "f64"):
                constant, value = "HOSTCUDA_FLOATING", f"Bits(a{i})"
            elif abi != "ptr":
                constant, value = "HOSTCUDA_INTEGER", f"(int64_t)a{i}"
            else:
                constant, value = ROLES[role], f"(int64_t)(intptr_t)a{i}"
            width = int(re.sub(r"\D", "", type_)) // 8 if re.fullmatch(r"[iuf]\d+", type_) else 0
            rows.append(f'{{"{label}", "{type_ if "handle" in role or "object" in role else ""}", {constant}, {width}}}')
            values.append(value)
        return (f"{call}int {name}({declared}) {{\n  static const struct HostcudaParameter parameters[] = {{{', '.join(rows)}}};\n"
                f"  const int64_t args[] = {{{', '.join(values)}}};\n  return {GENERIC[policy]}(&call_{index}, parameters, args, {len(rows)});\n}}\n")
    # Unsupported. The arguments are not looked at, and with the x86-64 convention the caller removes them.
    if returns == "status":
        if api["status"] == "CUfileError_t":  # a structure of two ints, in one register
            return f"{call}int64_t {name}(void) {{ return HostcudaUnsupported(&call_{index}); }}\n"
        return f"{call}int {name}(void) {{ return HostcudaUnsupported(&call_{index}); }}\n"
    if returns == "text":
        return f'{call}const char* {name}(void) {{ HostcudaUnsupported(&call_{index}); return "not implemented by hostcuda: {name}"; }}\n'
    if returns == "i64" and api["status"] == "CUfileError_t":
        return f"{call}int64_t {name}(void) {{ return -HostcudaUnsupported(&call_{index}); }}\n"
    return f"{call}void {name}(void) {{ HostcudaUnimplemented(&call_{index}); }}\n"


def tail(arguments):
    api = load(arguments.api)
    hand = defined_symbols(arguments.hand)
    names = {f["name"] for f in api["functions"]}
    source = ['// Generated by hostcuda/api/generate.py from ' + os.path.basename(arguments.api) + ': do not edit.',
              '#include "hostcuda/api/tail_runtime.h"', "", library_definition(api), ""]
    functions = [(i, f) for i, f in enumerate(api["functions"]) if f["name"] not in hand]
    body = [function_source(api, f, i) for i, f in functions]
    if any("Bits(" in b for b in body):
        source.append("static int64_t Bits(double value) {\n  int64_t bits;\n  __builtin_memcpy(&bits, &value, sizeof bits);\n  return bits;\n}\n")
    for name, size in api.get("data", []):
        if name not in hand:
            source.append(f"_Alignas(64) char {name}[{size}];\n")
    if not any("kLibrary" in b for b in body):
        source.append("// Everything is written by hand.\nconst struct HostcudaLibrary* HostcudaUnusedLibrary(void);\nconst struct HostcudaLibrary* HostcudaUnusedLibrary(void) { return &kLibrary; }\n")
    with open(arguments.c, "w") as out:
        out.write("\n".join(source + body))
    # Every name is listed: a wildcard would export whatever a static library brings along.
    exported = sorted(names | {n for n, _ in api.get("data", [])} | (hand - {"HostcudaUnusedLibrary"}))
    with open(arguments.map, "w") as out:
        out.write(f"{api['node']} {{\n  global:\n" + "".join(f"    {n};\n" for n in exported) + "  local: *;\n};\n")
    if arguments.hand_list:
        with open(arguments.hand_list, "w") as out:
            out.write("\n".join(sorted(hand & names)) + "\n")


def page(arguments):
    order = ["by hand", "compute", "result", "size", "create", "destroy", "set", "get", "version", "property", "status_name", "unsupported"]
    rows, details = [], []
    for path, listing in zip(arguments.library, arguments.hand_list):
        api = load(path)
        hand = set()
        for part in listing.split(":"):
            with open(part) as f:
                text = f.read()
            # A list of names, or sources that mark what they implement (the driver and the runtime).
            hand |= set(re.findall(r"^HC_ENTRY [\w ]+?[ *]+(\w+)\(", text, re.M) if part.endswith(".cc") else text.split())
        # The driver's and the runtime's per-thread-stream forms are generated wrappers of what is there.
        hand |= {f["name"] for f in api["functions"] if re.sub(r"_pts[zd]$", "", f["name"]) in hand}
        groups = {}
        for function in api["functions"]:
            policy = "by hand" if function["name"] in hand else usable(function["policy"], function)
            groups.setdefault(policy, []).append(function["name"])
        rows.append(f"| `{api['soname']}` | {len(api['functions'])} | " + " | ".join(str(len(groups.get(p, []))) for p in order) + " |")
        details.append(f"## {api['soname']}\n")
        for policy in order:
            if policy in groups and policy != "unsupported":
                details.append(f"**{policy}**: " + ", ".join(f"`{n}`" for n in groups[policy]) + "\n")
        if "unsupported" in groups:
            details.append(f"**unsupported**: the other {len(groups['unsupported'])} exports.\n")
    head = f"""# What hostcuda's libraries answer

Generated by `hostcuda/api/generate.py page` from the API description and the hand-written objects; do not edit.

Every export of the real libraries is there. A function is either written by hand or answered by one of these policies:

| policy | a call |
|---|---|
| compute | launches a kernel that exists by name only ([its grammar](kernel-names.md)); memory stays untouched, but for the status words of factorizations (`devInfo`), which become 0 (no numerical failure) in stream order. With `values cpu` the value layer computes over it. |
| result | the same, where the result goes to device memory; with a host result it is unsupported |
| size | answers the size: 0, because hostcuda's libraries need no workspace |
| create, destroy, set, get | works on a handle that remembers its attributes; `get` of an unknown attribute is unsupported |
| version, property, status_name | answers from the description |
| unsupported | writes one line to stderr that names function and library, and returns the library's not-supported status; a function without a status ends the process with exit code 125 |

| library | exports | {" | ".join(order)} |
|---|---|{"---|" * len(order)}
"""
    with open(arguments.out, "w") as out:
        out.write(head + "\n".join(rows) + "\n\n" + "\n".join(details))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    t = verbs.add_parser("tail")
    t.add_argument("--api", required=True)
    t.add_argument("--c", required=True)
    t.add_argument("--map", required=True)
    t.add_argument("--hand", nargs="*", default=[])
    t.add_argument("--hand-list", default="")
    p = verbs.add_parser("page")
    p.add_argument("--out", required=True)
    p.add_argument("--library", action="append", default=[])
    p.add_argument("--hand-list", action="append", default=[])
    arguments = parser.parse_args()
    if arguments.verb == "page" and len(arguments.library) != len(arguments.hand_list):
        fail(f"{len(arguments.library)} --library, {len(arguments.hand_list)} --hand-list: give one --hand-list for each")
    {"tail": tail, "page": page}[arguments.verb](arguments)


if __name__ == "__main__":
    main()
