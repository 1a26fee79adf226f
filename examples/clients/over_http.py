"""Asks over HTTP with tritonclient: `python -m examples.clients.over_http [localhost:8000]`."""

import sys

import numpy as np
import tritonclient.http as triton


def main(url: str) -> None:
    """Send two rows and print their scores and classes, then how the server fared."""
    with triton.InferenceServerClient(url) as client:
        rows = triton.InferInput("input", [2, 8], "FP32")
        rows.set_data_from_numpy(np.ones((2, 8), np.float32))
        answer = client.infer("tiny", [rows], timeout=2_000_000)  # microseconds: what comes later is of no use
        print("scores", answer.as_numpy("output"))
        print("left at", answer.get_response()["parameters"])
        best = triton.InferRequestedOutput("output", class_count=1)
        print("classes", client.infer("tiny", [rows], outputs=[best]).as_numpy("output"))
        print("answered", client.get_inference_statistics("tiny")["model_stats"][0]["inference_count"])


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "localhost:8000")
