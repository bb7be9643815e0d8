#!/usr/bin/env bash
# Every C++ and CUDA file is as clang-format 14 leaves it. `.ci/check_format.sh --fix` rewrites them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
files=$(git ls-files '*.h' '*.cc' '*.cu' '*.cuh')
if [ "${1:-}" = --fix ]; then
  echo "$files" | xargs clang-format -i
else
  echo "$files" | xargs clang-format --dry-run -Werror
  echo "check_format: $(echo "$files" | wc -l) files"
fi
