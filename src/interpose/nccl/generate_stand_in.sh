#!/usr/bin/env bash
# Makes stand_in.ptx from stand_in.cu. Needs nvcc of CUDA 13 (NVCC: its path). PTX of the oldest architecture that it
# knows runs on every later one: the driver compiles it when it is loaded.
set -euo pipefail
cd "$(dirname "$0")/../../.."
"${NVCC:-nvcc}" --ptx -arch=compute_75 -std=c++17 -O3 -I. src/interpose/nccl/stand_in.cu -o src/interpose/nccl/stand_in.ptx
# Comments name the compiler's build.
sed -i '/^\/\//d; /^$/d' src/interpose/nccl/stand_in.ptx
