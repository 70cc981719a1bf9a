#!/usr/bin/env bash
# Layers, formatting, static analysis of the C++ sources. `--fast` leaves out clang-tidy.
set -uo pipefail
cd "$(dirname "$0")/.."
failed=0
python3 tools/check_layers.py || failed=1
mapfile -t sources < <(git ls-files 'src/*.cc' 'src/*.h' 'hostcuda/*.cc' 'hostcuda/*.h' 'include/*.h' 'examples/*.cc' 'examples/*.h')
clang-format --dry-run -Werror "${sources[@]}" 2>&1 | head -40
[ "${PIPESTATUS[0]}" = 0 ] || { echo "lint: run \`make format\`" >&2; failed=1; }
if [ "${1:-}" != --fast ]; then
  build=build/${PRESET:-ci}
  [ -f "$build/compile_commands.json" ] || cmake --preset "${PRESET:-ci}" >/dev/null
  mapfile -t units < <(python3 - "$build" <<'PY'
import json, pathlib, subprocess, sys
tracked = set(subprocess.run(["git", "ls-files", "*.cc"], capture_output=True, text=True).stdout.split())
root = pathlib.Path.cwd()
for e in json.load(open(sys.argv[1] + "/compile_commands.json")):
    p = pathlib.Path(e["file"])
    if p.is_relative_to(root) and str(p.relative_to(root)) in tracked and not p.stem.endswith("_test") and "values" not in p.parts:
        print(p)
PY
)
  printf '%s\n' "${units[@]}" | sort -u | xargs -P "$(nproc)" -n 4 clang-tidy -p "$build" --quiet 2>/dev/null | tee /tmp/tidy.$$ | head -60
  grep -qE 'error:|warning:' /tmp/tidy.$$ && failed=1
  rm -f /tmp/tidy.$$
fi
[ $failed = 0 ] && echo "lint: ok"
exit $failed
