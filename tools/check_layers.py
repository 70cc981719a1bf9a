#!/usr/bin/env python3
"""Checks that includes follow the layers of docs/design/0002-layers.md. Prints each offending line; exit code 1 if any."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

# folder of src/ -> folders it may include (itself is always allowed)
ALLOWED = {
    "base": set(),
    "wire": set(),
    "trace": {"base"},
    "graph": {"base", "trace"},
    "engine": {"base", "trace", "graph"},
    "interpose": {"base", "wire", "trace"},
    "coordinator": {"base", "wire", "trace", "graph", "engine"},
    "calibrate": {"base", "wire", "trace", "graph", "engine"},
    "emulate": {"base", "wire", "trace", "graph", "engine", "coordinator"},
    "netprofile": {"base", "trace", "graph", "engine"},
    "report": {"base", "trace", "graph", "engine"},
    "interchange": {"base", "trace", "graph", "engine"},
}
ALLOWED["cli"] = set(ALLOWED) | {"cli"}
# Shims run inside foreign processes: of these layers they may only use what needs nothing but libc.
INTERPOSE_ONLY = {
    "base": {"src/base/participant.h", "src/base/clock.h", "src/base/float_formats.h", "src/base/optimizer_kernel.h"},
    "trace": {"src/trace/format.h", "src/trace/writer.h"},
}
INCLUDE = re.compile(r'^\s*#\s*include\s+[<"]([^>"]+)[>"]')
THIRD_PARTY = re.compile(r"^(absl|fmt|spdlog|CLI|nlohmann|google)/")


def includes(path):
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
        if match := INCLUDE.match(line):
            yield number, match[1]


def check(path):
    relative = path.relative_to(ROOT).as_posix()
    parts = relative.split("/")
    is_test = path.stem.endswith("_test") or "testing" in parts
    for number, target in includes(path):
        where = f"{relative}:{number}: "
        if parts[0] == "hostcuda":
            if target.startswith(("src/", "prism/")):
                yield where + f"hostcuda must not use prism ({target})"
            continue
        if target.startswith("hostcuda/"):
            yield where + f"prism must not use hostcuda ({target})"
            continue
        if parts[0] != "src":
            continue
        layer = parts[1]
        if layer not in ALLOWED:
            yield where + f"unknown layer {layer}: add it to tools/check_layers.py and the design note"
            continue
        if target.startswith("src/"):
            other = target.split("/")[1]
            if other != layer and other not in ALLOWED[layer]:
                yield where + f"{layer} must not use {other} ({target})"
            elif layer == "interpose" and not is_test and target not in INTERPOSE_ONLY.get(other, {target}):
                yield where + f"a shim may not use {target}"
        elif layer in ("interpose", "wire") and not is_test and THIRD_PARTY.match(target):
            yield where + f"a shim has no third-party dependency ({target})"


def main():
    problems = []
    for top in ("src", "hostcuda", "include"):
        for path in sorted((ROOT / top).rglob("*")):
            if path.suffix in (".h", ".cc", ".c", ".inc") and path.is_file():
                problems += check(path)
    print("\n".join(problems) if problems else "layers: ok")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
