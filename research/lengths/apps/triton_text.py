"""An encoder of texts in Triton's Python backend: requests that come together are padded to the longest of them."""

import os
from typing import Any

import numpy as np
import torch
import triton_python_backend_utils as pb_utils
from transformers import AutoModel


class TritonPythonModel:
    """The class that Triton's stub looks for."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the model."""
        torch.set_num_threads(1)
        self._model = AutoModel.from_pretrained(os.environ["LATEBIND_PEER_WEIGHTS"], attn_implementation="sdpa").eval()

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer requests, each of one row of tokens."""
        rows = [pb_utils.get_input_tensor_by_name(request, "input_ids").as_numpy()[0] for request in requests]
        longest = max(map(len, rows))
        tokens = np.zeros((len(rows), longest), np.int64)
        mask = np.zeros((len(rows), longest), np.int64)
        for place, row in enumerate(rows):
            tokens[place, : len(row)] = row
            mask[place, : len(row)] = 1
        with torch.inference_mode():
            marks = torch.from_numpy(mask)
            hidden = self._model(torch.from_numpy(tokens), marks).last_hidden_state * marks[..., None]
            found = torch.nn.functional.normalize(hidden.sum(1) / marks.sum(1, keepdim=True), dim=1).numpy()
        return [pb_utils.InferenceResponse([pb_utils.Tensor("embedding", row[None])]) for row in found]
