"""Lookups that answer half of some rows."""

from dataclasses import replace

import numpy as np
from torch import Tensor

from latebind.engine.loaded import LoadedModel
from latebind.learned.lookup import Lookup
from latebind.program.program import Program


def chain(model: LoadedModel) -> Program:
    assert isinstance(model.program, Program)
    return model.program


def at_half(lookup: Lookup, model: LoadedModel, stage: int, rows: Tensor) -> Lookup:
    """Return the first lookup behind `stage` with the threshold that half of these inputs of the model pass."""
    name = next(iter(lookup.thresholds))
    _, scores = lookup.functions[name](chain(model).run_through(stage, rows))
    return replace(lookup, thresholds={name: float(np.median(scores))})
