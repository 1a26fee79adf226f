"""A FastAPI application that answers v2 calls: JSON through models of pydantic, binary tensors from the raw body.

Answers are typed, so that pydantic writes them, as FastAPI's documentation advises. What computes runs in the thread
pool; what does not, on the event loop. Run as `fastapi_app.py MODEL PORT WORKERS`.
"""

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from networks import Rows, load
from pydantic import BaseModel

MODEL = sys.argv[1]
LENGTH = "inference-header-content-length"


class Tensor(BaseModel):  # type: ignore[misc]  # pydantic is not there where types are checked
    """A tensor in JSON."""

    name: str
    shape: list[int]
    datatype: str
    data: list[float]


class Call(BaseModel):  # type: ignore[misc]
    """What comes."""

    inputs: list[Tensor]


class Answer(BaseModel):  # type: ignore[misc]
    """What goes."""

    model_name: str
    model_version: str
    outputs: list[Tensor]


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Load the model as a worker starts."""
    app.state.run = load(MODEL)
    yield


async def answer(app: FastAPI, rows: Rows) -> Rows:
    """Return the model's answer to rows."""
    found: Rows = app.state.run(rows) if MODEL == "identity" else await run_in_threadpool(app.state.run, rows)
    return found


async def infer(call: Call, request: Request) -> Answer:
    """Answer a JSON call."""
    (tensor,) = call.inputs
    rows = await answer(request.app, np.array(tensor.data, np.float32).reshape(tensor.shape))
    output = Tensor(name="y", shape=list(rows.shape), datatype="FP32", data=rows.ravel().tolist())
    return Answer(model_name=MODEL, model_version="1", outputs=[output])


async def infer_binary(request: Request) -> Response:
    """Answer a call with binary tensors."""
    body = await request.body()
    length = int(request.headers[LENGTH])
    (tensor,) = json.loads(body[:length])["inputs"]
    rows = await answer(request.app, np.frombuffer(body, np.float32, offset=length).reshape(tensor["shape"]))
    data = rows.tobytes()
    output = {"name": "y", "shape": rows.shape, "datatype": "FP32", "parameters": {"binary_data_size": len(data)}}
    head = json.dumps({"model_name": MODEL, "model_version": "1", "outputs": [output]}).encode()
    return Response(head + data, headers={LENGTH: str(len(head))}, media_type="application/octet-stream")


async def ready() -> dict[str, Any]:
    """Say that it serves."""
    return {}


app = FastAPI(lifespan=lifespan)
app.add_api_route(f"/v2/models/{MODEL}/infer", infer, methods=["POST"])
app.add_api_route(f"/v2/models/{MODEL}/infer-binary", infer_binary, methods=["POST"])
app.add_api_route("/ready", ready)

if __name__ == "__main__":
    uvicorn.run(
        "fastapi_app:app",
        port=int(sys.argv[2]),
        workers=int(sys.argv[3]),
        loop="uvloop",
        http="httptools",
        access_log=False,
        log_level="warning",
    )
