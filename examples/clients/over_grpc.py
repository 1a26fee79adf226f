"""Asks over gRPC with tritonclient: `python -m examples.clients.over_grpc [localhost:8001]`."""

import sys

import numpy as np
import tritonclient.grpc as triton


def main(url: str) -> None:
    """Send two rows and print their scores."""
    with triton.InferenceServerClient(url) as client:
        rows = triton.InferInput("input", [2, 8], "FP32")
        rows.set_data_from_numpy(np.ones((2, 8), np.float32))
        answer = client.infer("tiny", [rows], client_timeout=2.0)  # seconds: the deadline of the call
        print("scores", answer.as_numpy("output"))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "localhost:8001")
