"""A first request for each model, so that nobody calls a model ready that cannot answer."""

import time
from collections.abc import Iterable

import numpy as np

from latebind.domain.errors import LatebindError
from latebind.domain.model import TensorSpec
from latebind.engine.client import EngineClient
from latebind.engine.slots import Rows

SECONDS = 60.0  # that a model may take for it


class Unfit(LatebindError):
    """A model that does not answer."""

    def __init__(self, model: str, error: LatebindError) -> None:
        super().__init__(f"{model} does not answer a trial request: {error}")
        self.model = model


async def probe(client: EngineClient, models: Iterable[str]) -> None:
    """Have each of the models answer one row of made-up numbers, one after another; raises `Unfit`.

    The engine counts from then on. Nothing is tried of queries: they were checked as they were read, and what they
    make of one tensor for another may need a real one.
    """
    for model in models:
        rows = {tensor.name: _made_up(tensor) for tensor in client.models[model].inputs}
        try:
            await client.infer(model, rows, deadline=time.monotonic() + SECONDS)
        except LatebindError as error:
            raise Unfit(model, error) from error
    await client.forget()


def _made_up(spec: TensorSpec) -> Rows:
    """Return a row as models are profiled with: normal numbers, or zeros, which are valid as any index."""
    shape = (1, *spec.shape) if spec.padding is None else (1, 1, *spec.shape[1:])
    if spec.dtype.startswith("float"):
        return np.random.default_rng(0).standard_normal(shape).astype(spec.dtype)
    return np.zeros(shape, spec.dtype)
