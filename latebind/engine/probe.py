"""A trial request for each model, so that no model is reported ready that cannot answer."""

import time
from collections.abc import Iterable

import numpy as np

from latebind.domain.errors import LatebindError
from latebind.domain.model import TensorSpec
from latebind.engine.client import EngineClient
from latebind.engine.slots import Rows

SECONDS = 60.0  # that a model may take to answer


class ProbeFailed(LatebindError):
    """A model did not answer its trial request."""

    def __init__(self, model: str, error: LatebindError) -> None:
        super().__init__(f"{model} does not answer a trial request: {error}")
        self.model = model


async def probe(client: EngineClient, models: Iterable[str]) -> None:
    """Let each model answer one row of made-up numbers, one after another, then reset the metrics.

    Raises `ProbeFailed`.

    Queries are not tried: they were checked when they were read, and what they compute from one model's outputs for the
    next may need real values.
    """
    for model in models:
        rows = {tensor.name: _made_up(tensor) for tensor in client.models[model].inputs}
        try:
            await client.infer(model, rows, deadline=time.monotonic() + SECONDS)
        except LatebindError as error:
            raise ProbeFailed(model, error) from error
    await client.forget()


def _made_up(spec: TensorSpec) -> Rows:
    """Return a row like those that models are profiled with: normal numbers, or zeros where these are valid."""
    shape = (1, *spec.shape) if spec.padding is None else (1, 1, *spec.shape[1:])
    if spec.dtype.startswith("float"):
        return np.random.default_rng(0).standard_normal(shape).astype(spec.dtype)
    return np.full(shape, spec.filler, spec.dtype)
