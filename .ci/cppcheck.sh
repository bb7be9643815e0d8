#!/usr/bin/env bash
# cppcheck over the product's sources: .ci/cppcheck.sh [jobs]
# (with the string_view of the Abseil there is: both would take twice the time)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
cppcheck -j "${1:-$(nproc)}" --enable=warning,performance,portability --inline-suppr --std=c++20 --language=c++ -I . -UABSL_USES_STD_STRING_VIEW \
  --suppressions-list=.ci/cppcheck_suppressions.txt --suppress=missingInclude --suppress=unknownMacro \
  --suppress=unmatchedSuppression --template='{file}:{line}: {severity}: {id}: {message}' -q --error-exitcode=1 \
  common kernels prefill_node decode_node router tools
echo "cppcheck: nothing found"
