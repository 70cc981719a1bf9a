#!/usr/bin/env bash
# Installs what is missing on a Debian 12 machine, saying what: Debian packages, CUDA and NCCL headers, and a private
# Python environment (.env) with an unmodified PyTorch.
#
#   tools/setup.sh base    what `make demo` needs
#   tools/setup.sh test    base and what the tests need
#
# Environment: PRISM_ENV (default .env), PRISM_DEPS (default .deps). Idempotent; a finished step leaves a stamp.
set -euo pipefail
cd "$(dirname "$0")/.."
what=${1:-base}
env_dir=${PRISM_ENV:-.env}
deps_dir=${PRISM_DEPS:-.deps}

say() { printf 'setup: %s\n' "$*" >&2; }
die() { printf 'setup: %s\n' "$1" >&2; [ -z "${2:-}" ] || printf 'hint: %s\n' "$2" >&2; exit 1; }

# --- Debian packages
packages=(g++ cmake ninja-build ccache libabsl-dev libcli11-dev libspdlog-dev libfmt-dev nlohmann-json3-dev zlib1g-dev
          python3 python3-venv python3-dev)  # -dev: Triton compiles a module for Python
[ "$what" = test ] && packages+=(libgtest-dev libgmock-dev libbenchmark-dev clang libclang-rt-14-dev clang-format clang-tidy
                                 protobuf-compiler libprotobuf-dev)
missing=()
for p in "${packages[@]}"; do
  dpkg-query -W -f '${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing+=("$p")
done
if [ ${#missing[@]} -gt 0 ]; then
  say "installing Debian packages: ${missing[*]}"
  sudo=
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || die "Debian packages are missing and this is not root: ${missing[*]}" "apt-get install ${missing[*]}"
    sudo=sudo
  fi
  $sudo apt-get update -qq
  DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

# --- Python environment: the interpreter must be one that PyTorch 2.11 has a wheel for
python=${PRISM_BOOTSTRAP_PYTHON:-/usr/bin/python3}
[ -x "$python" ] || python=$(command -v python3)
"$python" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 14))' ||
  die "$python is $("$python" -V 2>&1), PyTorch 2.11 needs 3.10 to 3.14" "set PRISM_BOOTSTRAP_PYTHON"
install() {  # install STAMP pip-arguments...: once for each content of the requirement files
  local stamp=$env_dir/.installed-$1; shift
  local key; key=$(cat requirements/*.txt | sha256sum)
  [ "$(cat "$stamp" 2>/dev/null)" = "$key" ] && return
  say "pip install $*"
  "$env_dir/bin/python" -m pip install -q --disable-pip-version-check --no-warn-conflicts "$@"
  echo "$key" > "$stamp"
}
if [ ! -x "$env_dir/bin/python" ]; then
  say "creating a private Python environment in $env_dir"
  "$python" -m venv "$env_dir"
fi
install torch --no-deps -r requirements/torch.txt
install base -r requirements/base.txt
if [ "$what" = test ]; then
  install test -r requirements/test.txt
  install test-nodeps --no-deps -r requirements/test-nodeps.txt
fi

# --- Public headers: an installed toolkit, else those of the registry's packages (headers only are kept)
cuda_include=
for d in "${CUDA_HOME:-/usr/local/cuda}/include" /usr/local/cuda/include; do
  if [ -f "$d/cuda.h" ] && [ -f "$d/cupti.h" ] && [ -f "$d/cublas_v2.h" ]; then cuda_include=$d; break; fi
done
need=()
[ -n "$cuda_include" ] || need+=(nvidia-cuda-runtime==13.0.96 nvidia-cuda-crt==13.0.88 nvidia-cuda-cccl==13.0.85 nvidia-cuda-profiler-api==13.0.85 nvidia-cuda-cupti==13.0.85
  nvidia-cublas==13.1.0.3 nvidia-cusparse==12.6.3.3 nvidia-cusolver==12.0.4.66 nvidia-cufft==12.0.0.61 nvidia-curand==10.4.0.35)
[ -f "$cuda_include/cudnn.h" ] || need+=(nvidia-cudnn-cu13==9.19.0.56)
[ -f "$cuda_include/nccl.h" ] || need+=(nvidia-nccl-cu13==2.28.9)
if [ ${#need[@]} -gt 0 ] && [ "$(cat "$deps_dir/.headers" 2>/dev/null)" != "${need[*]}" ]; then
  say "no CUDA toolkit found: taking the public headers from ${need[*]}"
  wheels=$(mktemp -d); trap 'rm -rf "$wheels"' EXIT
  "$env_dir/bin/python" -m pip download -q --disable-pip-version-check --no-deps -d "$wheels" "${need[@]}"
  mkdir -p "$deps_dir/include"
  "$env_dir/bin/python" - "$wheels" "$deps_dir/include" <<'PY'
import pathlib, sys, zipfile
for wheel in pathlib.Path(sys.argv[1]).glob("*.whl"):
    with zipfile.ZipFile(wheel) as z:
        for name in z.namelist():
            if "/include/" in name and "/include/cccl/" not in name and not name.endswith("/"):
                out = pathlib.Path(sys.argv[2]) / name.split("/include/", 1)[1]
                out.parent.mkdir(parents=True, exist_ok=True)
                out.write_bytes(z.read(name))
PY
  echo "${need[*]}" > "$deps_dir/.headers"
fi
say "ready ($(du -sh "$env_dir" | cut -f1) in $env_dir)"
