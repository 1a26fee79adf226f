#!/bin/sh
# Asks with curl, in JSON and in bytes: sh examples/clients/curl.sh [http://localhost:8000]
set -eu
url=${1:-http://localhost:8000}

curl -sS --fail-with-body "$url/v2/health/ready"
curl -sS --fail-with-body "$url/v2/models/tiny"
echo

# JSON both ways, due in 2 s.
curl -sS --fail-with-body "$url/v2/models/tiny/infer" -d '{
  "inputs": [{"name": "input", "shape": [1, 8], "datatype": "FP32", "data": [1, 1, 1, 1, 1, 1, 1, 1]}],
  "parameters": {"timeout": 2000000}
}'
echo

# Bytes both ways: JSON that says what follows, its length in a header, then 8 numbers of 4 bytes, little-endian.
about='{"inputs": [{"name": "input", "shape": [1, 8], "datatype": "FP32", "parameters": {"binary_data_size": 32}}],
  "parameters": {"binary_data_output": true}}'
body=$(mktemp)
trap 'rm -f "$body"' EXIT
printf '%s' "$about" > "$body"
for _ in 1 2 3 4 5 6 7 8; do printf '\000\000\200\077' >> "$body"; done # 1.0
length=$(printf '%s' "$about" | wc -c | tr -d ' ')
curl -sS --fail-with-body "$url/v2/models/tiny/infer" --data-binary "@$body" \
  -H "Inference-Header-Content-Length: $length" -o - | tail -c 12 | od -An -tf4
