#!/usr/bin/env bash
# scripts/install_test.sh BUILD_DIR: installs a build into an empty folder, moves it, and serves a
# tiny model from there with nothing of the build in reach of the binaries.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$(cd "$1" && pwd)
work=$(mktemp -d)
up_pid=
cleanup() {
  [ -n "$up_pid" ] && kill -TERM "$up_pid" 2>/dev/null && wait "$up_pid" 2>/dev/null
  rm -rf "$work"
}
trap cleanup EXIT
fail() { echo "install_test: $*" >&2; exit 1; }

cmake --install "$build" --prefix "$work/first" >"$work/install.log" || { cat "$work/install.log" >&2; exit 1; }
mv "$work/first" "$work/prefix"
prefix=$work/prefix
for f in bin/baton bin/baton-prefill bin/baton-decode bin/baton-router share/baton/config/quickstart.yaml \
  share/baton/proto/router.proto share/doc/baton/README.md share/doc/baton/docs/config_reference.md; do
  [ -f "$prefix/$f" ] || fail "$f was not installed"
done
for f in "$prefix"/bin/*; do
  # A path in RPATH or RUNPATH must not lead into the build, the source or the first prefix.
  if path=$(readelf -d "$f" | grep -E 'RPATH|RUNPATH') && grep -qE "$build|$root|$work" <<<"$path"; then
    fail "$f keeps a path of the build: $path"
  fi
done

clean=(env -i PATH=/usr/bin:/bin HOME="$work" BATON_MODEL="$work/model" BATON_QUICKSTART_MODEL="$work/model" BATON_MODELS="$root/deploy/models")
cd "$work"
"${clean[@]}" "$prefix/bin/baton" --version
for role in prefill decode router; do
  "${clean[@]}" "$prefix/bin/baton" config check "$prefix/share/baton/config/$role.yaml" --role "$role" >"$work/check.log" 2>&1 ||
    { cat "$work/check.log" >&2; fail "config check of $role.yaml"; }
done
for up in quickstart finetunes; do
  "${clean[@]}" "$prefix/bin/baton" config check "$prefix/share/baton/config/$up.yaml" --role up >/dev/null
done

python=${BATON_PYTHON:-$root/build/venv/bin/python}
PYTHONPATH="$root/tests/e2e" BATON_BIN_DIR="$prefix/bin" BATON_PY_STUBS="$build/gen_py" "$python" -c \
  'import sys; from harness import write_tiny_model; write_tiny_model(sys.argv[1])' "$work/model"
"${clean[@]}" "$prefix/bin/baton" up "$prefix/share/baton/config/quickstart.yaml" --ports-file "$work/ports" >"$work/out" 2>"$work/log" &
up_pid=$!
for _ in $(seq 1 300); do
  [ -s "$work/ports" ] && break
  kill -0 "$up_pid" 2>/dev/null || break
  sleep 0.2
done
[ -s "$work/ports" ] || { cat "$work/log" >&2; fail "the daemons did not start"; }
for pid in $(pgrep -P "$up_pid" | while read -r p; do echo "$p"; pgrep -P "$p" || true; done); do
  exe=$(readlink "/proc/$pid/exe" || true)
  case "$exe" in "$prefix"/bin/* | "") ;; *) fail "$exe runs, not the installed binary" ;; esac
done
grpc=$(sed 's/.*"grpc":\([0-9]*\).*/\1/' "$work/ports")
timeout 60 "${clean[@]}" "$prefix/bin/baton" generate --router "127.0.0.1:$grpc" --max-tokens 4 "hello" >"$work/answer" 2>&1 ||
  { cat "$work/answer" "$work/log" >&2; fail "no answer"; }
kill -TERM "$up_pid"
wait "$up_pid" || fail "baton up did not end with 0"
up_pid=
echo "install_test: installed, moved, served $(stat -c %s "$work/answer") bytes of answer"
