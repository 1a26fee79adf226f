"""The networks that peers serve: float32 rows in, float32 rows out.

ResNet-18 comes as code and weights that environment variables name. Eager torch or OpenVINO runs it, in float32, with
as many threads as each worker may have.
"""

import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

Rows = np.ndarray[Any, np.dtype[np.float32]]
Model = Callable[[Rows], Rows]

CODE, WEIGHTS, BACKEND, BATCH = (f"LATEBIND_PEER_{name}" for name in ("CODE", "WEIGHTS", "BACKEND", "BATCH"))


def load(name: str) -> Model:
    """Return the model of this name."""
    if name == "identity":
        return _identity
    if name == "resnet18":
        return _openvino() if os.environ[BACKEND] == "openvino" else _eager()
    raise ValueError(f"there is no model {name!r}")


def _identity(rows: Rows) -> Rows:
    return rows


def _module() -> Any:
    """Return the network, one thread of torch for each worker."""
    import torch  # noqa: PLC0415

    sys.path.insert(0, os.environ[CODE])
    from safetensors.torch import load_file  # noqa: PLC0415

    from examples.cifar10.resnet18 import resnet18  # noqa: PLC0415

    torch.set_num_threads(1)
    module = resnet18().eval()
    module.load_state_dict(load_file(os.environ[WEIGHTS]))
    return module


def _eager() -> Model:
    import torch  # noqa: PLC0415

    module = _module()

    def run(rows: Rows) -> Rows:
        with torch.inference_mode():
            answers: Rows = module(torch.from_numpy(np.array(rows))).numpy()
        return answers

    run(np.zeros((1, 3, 32, 32), np.float32))
    return run


def _openvino() -> Model:
    import openvino  # noqa: PLC0415
    import torch  # noqa: PLC0415

    model = openvino.convert_model(_module(), example_input=torch.zeros(1, 3, 32, 32), input=[("x", [-1, 3, 32, 32])])
    settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1}
    compiled = openvino.compile_model(model, "CPU", settings)
    request = compiled.create_infer_request()

    def run(rows: Rows) -> Rows:
        answers: Rows = request.infer([np.ascontiguousarray(rows)])[0].copy()
        return answers

    for batch in range(1, int(os.environ[BATCH]) + 1):  # every shape is compiled at its first use
        run(np.zeros((batch, 3, 32, 32), np.float32))
    return run
