"""A model of Triton's Python backend: all requests that come together are one batch. Runs inside Triton."""

import json
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from networks import load


class TritonPythonModel:
    """The class that Triton's stub looks for."""

    def initialize(self, args: dict[str, str]) -> None:
        """Take in what the model is."""
        name = json.loads(args["model_config"])["name"]
        self._run = load(name)

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer requests, each of one or several rows."""
        rows = [pb_utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        if len(rows) == 1:
            return [_answer(self._run(rows[0]))]
        answers = self._run(np.concatenate(rows))
        ends = np.cumsum([len(each) for each in rows])
        return [_answer(part) for part in np.split(answers, ends[:-1])]


def _answer(rows: Any) -> Any:
    return pb_utils.InferenceResponse([pb_utils.Tensor("y", rows)])
