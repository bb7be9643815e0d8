#!/usr/bin/env bash
# Checks and measures the CUDA kernels on a machine with a GPU, in under six minutes:
#
#   scripts/gpu_check.sh [OUT]             on the GPU machine; JSON goes to OUT (default: $OUT, docs/results)
#   scripts/gpu_check.sh --prepare         here, before: what the GPU machine lacks, into build/gpu_check/carry
#   scripts/gpu_check.sh --dry-run [BUILD] here: everything that needs no GPU; BUILD (build/release) says
#                                          with which CUDA, Torch and options
#
# The GPU machine needs CUDA 13, CMake, Ninja and a C++20 compiler; Python with torch adds what
# LibTorch reaches (products, SDPA) and the tests of kernels/torch. GoogleTest's sources for those
# travel in build/gpu_check/carry; nothing else is needed. docs/gpu_check.md says more.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
work=build/gpu_check
carry=$work/carry
alone=(-G Ninja -DBATON_KERNELS_ONLY=ON -DBATON_WITH_RPC=OFF -DBATON_GTEST_SOURCE="$root/$carry/googletest")
say() { printf '[gpu_check] %s\n' "$*"; }
die() { say "$*" >&2; exit 1; }

prepare() {
  local source=/usr/src/googletest
  [ -f "$source/CMakeLists.txt" ] || die "$source is missing: install libgtest-dev (scripts/setup.sh test)"
  mkdir -p "$carry"
  rm -rf "$carry/googletest"
  cp -rp "$source" "$carry/googletest"
  say "prepared $carry ($(du -sh "$carry" | cut -f1)); take it along with the working tree"
}

# Every function of cuda_ops.h that queues work has a check, and no check names anything else.
check_list() {  # BINARY
  local declared listed
  declared=$(grep -oP '^LaunchStatus \K\w+(?=\()' kernels/cuda/cuda_ops.h | sort -u)
  listed=$("$1" --list | cut -d' ' -f1 | sort -u)
  [ -n "$declared" ] || die "found no op in kernels/cuda/cuda_ops.h"
  diff <(echo "$declared") <(echo "$listed") >&2 ||
    die "the ops of kernels/cuda/cuda_ops.h (<) and those $1 checks (>) differ"
  say "$1 checks all $(echo "$declared" | wc -l) ops of cuda_ops.h"
}

# A setting of another build, as an option; nothing if it has none.
option_of() {  # BUILD NAME
  sed -n "s/^$2:[A-Z]*=\(..*\)/-D$2=\1/p" "$1/CMakeCache.txt"
}

# The kernel rooms alone, as the GPU machine builds them, but for the run itself.
dry_run() {  # BUILD
  local build=$1 dry=build/gpu_dry options=() targets name
  for tool in cmake ninja python3; do command -v "$tool" >/dev/null || die "$tool is missing"; done
  bash -n "${BASH_SOURCE[0]}"
  python3 -c "import ast, pathlib; ast.parse(pathlib.Path('scripts/gpu_peers.py').read_text())"
  prepare
  [ -f "$build/CMakeCache.txt" ] || die "$build is no build: configure it first (scripts/test.sh)"
  for name in BATON_WITH_CUDA BATON_WITH_TORCH BATON_TORCH_ROOT BATON_TORCH_CUDA_LIBS BATON_UNITY; do
    mapfile -t -O "${#options[@]}" options < <(option_of "$build" "$name")
  done
  # Beside BUILD and with its options, so that the compiler's cache knows most of it.
  cmake -S . -B "$dry" "${alone[@]}" "${options[@]}" >"$work/dry.log" 2>&1 ||
    { cat "$work/dry.log" >&2; die "the kernel rooms alone do not configure"; }
  targets=(kernels_cuda_emulated_test gtest)
  grep -q '^BATON_WITH_CUDA:BOOL=ON' "$dry/CMakeCache.txt" && targets+=(cuda_check cuda_bench)
  ninja -C "$dry" "${targets[@]}" >>"$work/dry.log" 2>&1 ||
    { tail -40 "$work/dry.log" >&2; die "the kernel rooms alone do not build"; }
  # What is too long to build once more is at least complete: every file it needs has a rule.
  ninja -C "$dry" -n all >>"$work/dry.log" 2>&1 || { tail -5 "$work/dry.log" >&2; die "the build is incomplete"; }
  for name in "$dry"/bin/*cuda*_test "$dry"/bin/cuda_check; do
    if [ -x "$name" ]; then check_list "$name"; fi
  done
  say "dry run passed after $SECONDS s; nothing ran on a GPU"
}

configure() {  # torch's folder, or nothing
  local arch torch=(-DBATON_WITH_TORCH=OFF)
  arch=${BATON_CUDA_ARCH:-$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -1 | tr -d .)}
  [ -n "$1" ] && torch=(-DBATON_WITH_TORCH=ON -DBATON_TORCH_ROOT="$1")
  timeout 40 cmake -S . -B "$work/build" "${alone[@]}" -DBATON_WITH_CUDA=ON \
    -DBATON_CUDA_ARCHITECTURES="$arch" -DCMAKE_CUDA_ARCHITECTURES="$arch" "${torch[@]}" >"$out/configure.log" 2>&1
}

# What was measured, in one file.
summary() {
  python3 - "$out" <<'PY'
import json, pathlib, sys
out = pathlib.Path(sys.argv[1])
name, driver, memory, clock = out.joinpath("chip.txt").read_text().splitlines()[0].split(", ")
whole = {"chip": name, "driver": driver, "memory": memory, "clock": clock}
for part in ("checks", "bench", "peers"):
    path = out / f"{part}.json"
    whole[part] = json.loads(path.read_text()) if path.exists() and path.stat().st_size else None
out.joinpath("gpu_check.json").write_text(json.dumps(whole, indent=1))
PY
}

measure() {
  local site="" failed=0 targets=(cuda_check cuda_bench)
  command -v nvcc >/dev/null || export PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin
  for tool in cmake ninja nvcc nvidia-smi python3; do command -v "$tool" >/dev/null || die "$tool is missing"; done
  [ -d "$carry/googletest" ] || die "$carry is missing: run scripts/gpu_check.sh --prepare where the tree comes from"
  mkdir -p "$out"
  nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm --format=csv,noheader >"$out/chip.txt"
  say "$(cat "$out/chip.txt")"
  site=$(python3 -c 'import os, torch; print(os.path.dirname(torch.__file__))' 2>/dev/null || true)
  configure "$site" || { cat "$out/configure.log" >&2; die "cmake failed"; }
  [ -n "$site" ] && targets+=(bin/kernels_torch_ops_test)
  timeout 150 ninja -C "$work/build" "${targets[@]}" >"$out/build.log" 2>&1 ||
    { tail -40 "$out/build.log" >&2; die "the build failed"; }
  timeout 60 "$work/build/bin/cuda_check" --json "$out/checks.json" | tee "$out/checks.txt" || failed=1
  if [ -n "$site" ]; then
    timeout 30 "$work/build/bin/kernels_torch_ops_test" >"$out/torch_ops.txt" 2>&1 || failed=1
    tail -5 "$out/torch_ops.txt"
  fi
  timeout 45 "$work/build/bin/cuda_bench" --json "$out/bench.json" | tee "$out/bench.txt" || failed=1
  [ -z "$site" ] || timeout 30 python3 scripts/gpu_peers.py "$out/peers.json" | tee "$out/peers.txt" || failed=1
  summary || failed=1
  say "results in $out after $SECONDS s"
  return "$failed"
}

case "${1:-}" in
  --prepare) mkdir -p "$work" && prepare ;;
  --dry-run) mkdir -p "$work" && dry_run "${2:-build/release}" ;;
  -*) die "unknown option $1" ;;
  *)
    out=${1:-${OUT:-docs/results}}/gpu_$(date -u +%Y%m%d)
    measure
    ;;
esac
