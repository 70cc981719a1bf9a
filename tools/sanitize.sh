#!/usr/bin/env bash
# Builds and runs the C++ unit and integration tests under sanitizers: tools/sanitize.sh [asan] [tsan].
set -uo pipefail
cd "$(dirname "$0")/.."
# The libraries of foreign processes are the same in every sanitizer's build: compiled for one, taken from the cache by the others.
export CCACHE_NOHASHDIR=1
status=0
for preset in "${@:-asan}"; do
  cmake --preset "$preset" --log-level=WARNING -DCMAKE_CXX_COMPILER_LAUNCHER=ccache &&
    cmake --build --preset "$preset" --target prism_tests -j "$(nproc)" &&
    ctest --preset "$preset" -j "$(nproc)" || status=1
done
exit $status
