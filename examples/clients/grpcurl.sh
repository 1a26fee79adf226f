#!/bin/sh
# Asks with grpcurl: sh examples/clients/grpcurl.sh [localhost:8001]
#
# The protocol's description, open_inference_grpc.proto, is in https://github.com/kserve/open-inference-protocol; say in
# PROTO where it lies. Numbers go as JSON, so this is for looking, not for load.
set -eu
url=${1:-localhost:8001}
proto=${PROTO:?set PROTO to the path of open_inference_grpc.proto}
call() {
  grpcurl -plaintext -import-path "$(dirname "$proto")" -proto "$(basename "$proto")" "$@"
}

call "$url" inference.GRPCInferenceService/ServerReady
call -d '{"name": "tiny"}' "$url" inference.GRPCInferenceService/ModelMetadata
call -max-time 2 -d '{
  "model_name": "tiny",
  "inputs": [{"name": "input", "shape": [1, 8], "datatype": "FP32", "contents": {"fp32_contents": [1, 1, 1, 1, 1, 1, 1, 1]}}]
}' "$url" inference.GRPCInferenceService/ModelInfer
