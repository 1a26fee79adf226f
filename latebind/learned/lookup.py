"""A learned cache at work: one compiled call behind a stage, and its head. Loaded from data, never from code."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from latebind.domain.errors import RepositoryError
from latebind.learned.head import Floats, Head, HeadFunction
from latebind.learned.stored import LookupFiles, read_caches, read_lookup
from latebind.program.backends import StageFunction
from latebind.program.load import compile_graph
from latebind.program.stored import read_model, read_stages
from latebind.repository.directory import ModelDirectory


class LookupFunction:
    """`lookup(activation) -> (answers (B, classes), scores (B,))`, float32. Not for two threads at a time."""

    def __init__(self, features: StageFunction, head: Head) -> None:
        self.features = features
        self.head = head
        self._answer = HeadFunction(head)

    def __call__(self, activation: Tensor) -> tuple[Floats, Floats]:
        """Return what the base model would answer, and how sure that is."""
        (features,) = self.features(activation)
        return self._answer(features.numpy())


@dataclass(frozen=True, slots=True)
class Lookup:
    """The learned cache behind `stage`. Not for two threads at a time."""

    stage: int
    threshold: float
    function: LookupFunction

    def __call__(self, activation: Tensor) -> tuple[Floats, NDArray[np.bool_]]:
        """Return answers `(B, classes) float32` like the model's output, and for which rows they hold, `(B,) bool`."""
        answers, scores = self.function(activation)
        return answers, scores >= self.threshold

    def with_head(self, head: Head, threshold: float) -> "Lookup":
        """Return the same lookup with another head."""
        return Lookup(self.stage, threshold, LookupFunction(self.function.features, head))


def lookup_backend(backend: str) -> str:
    """Return the backend for the lookups of a model on `backend`.

    An answer of a lookup is as exact as its calibration says, not as its arithmetic is, so where the processor computes
    in bfloat16 lookups do too, half as long.
    """
    return f"{backend}-bf16" if backend == "openvino" and has_bfloat16() else backend


def has_bfloat16() -> bool:
    """Tell whether this processor computes in bfloat16 faster than in float32."""
    found = torch.cpu.get_capabilities()
    return bool(found.get("avx512_bf16") or found.get("amx_bf16"))


def load_lookups(directory: ModelDirectory, *, backend: str, threads: int = 1) -> dict[int, Lookup]:
    """Return the learned caches in use of a model by stage; empty if it has none.

    Raises `RepositoryError` if they do not fit the model, `ConfigError` for a backend that cannot be used here.
    """
    caches = read_caches(directory)
    if caches is None:
        return {}
    thresholds = {stored.stage: stored.threshold for stored in caches.lookups}
    functions = load_functions(directory, tuple(thresholds), backend=backend, threads=threads)
    return {stage: Lookup(stage, thresholds[stage], function) for stage, function in functions.items()}


def load_functions(
    directory: ModelDirectory, stages: Sequence[int], *, backend: str, threads: int
) -> dict[int, LookupFunction]:
    """Return the compiled networks of the learned caches behind `stages`, used or not; errors as `load_lookups`."""
    model = read_model(directory)
    graphs = read_stages(directory, model)
    found = {}
    for stage in stages:
        files = read_lookup(directory, stage)
        if files.graph.inputs[0].shape != graphs[stage + 1].inputs[0].shape:
            raise RepositoryError(
                f"{directory.path}: the learned cache behind stage {stage} takes another activation than the "
                "stage yields: build the caches again"
            )
        if (files.head.classes,) != model.outputs[0].shape:
            raise RepositoryError(
                f"{directory.path}: the learned cache behind stage {stage} answers in another shape than the "
                "model: build the caches again"
            )
        found[stage] = compile_lookup_files(files, backend=backend, threads=threads)
    return found


def compile_lookup_files(files: LookupFiles, *, backend: str, threads: int) -> LookupFunction:
    """Return a lookup ready to run beside a model on `backend`."""
    features = compile_graph(files.graph, dict(files.weights), backend=lookup_backend(backend), threads=threads)
    return LookupFunction(features, files.head)
