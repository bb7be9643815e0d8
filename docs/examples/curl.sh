#!/usr/bin/env bash
# The OpenAI-compatible HTTP API: curl.sh [host:port]
set -euo pipefail
base="http://${1:-127.0.0.1:8080}"

curl -sS --fail "$base/v1/models"
echo
model=$(curl -sS --fail "$base/v1/models" | sed -n 's/.*"id":"\([^"]*\)".*/\1/p')

# A whole reply.
curl -sS --fail "$base/v1/chat/completions" -H 'Content-Type: application/json' -d '{
  "model": "'"$model"'", "max_tokens": 32, "temperature": 0,
  "messages": [{"role": "user", "content": "What is the capital of France?"}]}'
echo

# A stream: one "data:" line per event, "data: [DONE]" at the end.
curl -sS --fail -N "$base/v1/completions" -H 'Content-Type: application/json' -d '{
  "model": "'"$model"'", "max_tokens": 16, "temperature": 0, "stream": true,
  "stream_options": {"include_usage": true}, "prompt": "The capital of France is"}'
