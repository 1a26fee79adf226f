"""A LitServe server that answers v2 calls in JSON; larger tensors come as base64, as its documentation sends images.

Run as `litserve_app.py MODEL PORT WORKERS BATCH`: so many workers of the model, batches of so many.
"""

import base64
import sys
from typing import Any

import litserve
import numpy as np
from networks import Rows, load

MODEL = sys.argv[1]
LARGEST = int(sys.argv[4])


class Api(litserve.LitAPI):  # type: ignore[misc]  # LitServe is not there where types are checked
    """What LitServe calls."""

    def setup(self, device: str) -> None:
        """Load the model."""
        del device
        self._run = load(MODEL)

    def decode_request(self, request: dict[str, Any]) -> Rows:
        """Return the rows of a call."""
        (tensor,) = request["inputs"]
        if "base64" in tensor:
            return np.frombuffer(base64.b64decode(tensor["base64"]), np.float32).reshape(tensor["shape"])
        return np.array(tensor["data"], np.float32).reshape(tensor["shape"])

    def batch(self, inputs: list[Rows]) -> Rows:
        """Put calls of one row together."""
        return np.concatenate(inputs)

    def predict(self, rows: Rows) -> Rows:
        """Run the model."""
        return self._run(rows)

    def unbatch(self, output: Rows) -> list[Rows]:
        """Return each call its row."""
        return np.split(output, len(output))

    def encode_response(self, output: Rows) -> dict[str, Any]:
        """Return a call's answer."""
        tensor = {"name": "y", "shape": list(output.shape), "datatype": "FP32", "data": output.ravel().tolist()}
        return {"model_name": MODEL, "model_version": "1", "outputs": [tensor]}


if __name__ == "__main__":
    api = Api(max_batch_size=LARGEST, batch_timeout=0.0, api_path=f"/v2/models/{MODEL}/infer")
    server = litserve.LitServer(
        api,
        accelerator="cpu",
        workers_per_device=int(sys.argv[3]),
        fast_queue=True,
        disable_openapi_url=True,
    )
    server.run(
        host="127.0.0.1",
        port=int(sys.argv[2]),
        num_api_servers=1,
        log_level="warning",
        generate_client_file=False,
        pretty_logs=False,
        loop="uvloop",
        access_log=False,
    )
