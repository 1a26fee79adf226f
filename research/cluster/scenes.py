"""Models and traffic of a large cluster: a trace's services scaled to a number of models and a request rate."""

from dataclasses import dataclass
from functools import cached_property
from math import log

import numpy as np
from numpy.typing import NDArray

from latebind.domain.config import ServedModel
from latebind.domain.costs import Curve, Footprint, ModelCosts
from latebind.domain.model import ModelSpec, TensorSpec
from latebind.simulation.cluster.fleet import ClusterModel, Requests
from latebind.simulation.cluster.traffic import MINUTE, laid_over, spread_out
from research.mcache.traces import Service

MEDIAN, SPREAD = 0.4e9, 0.8  # bytes of a model, and the deviation of their logarithm, as in `research residency`
WORD = TensorSpec("x", "float32", (1,))
TOGETHER = 0.4  # of a request's time is shared by all of its batch


@dataclass(frozen=True, slots=True)
class Shape:
    """What models of a scene have in common: so many `stages`, and batches up to `batch`.

    The median one runs a request in `run` seconds and loads in `load`, others by their size. An answer may take
    `allowed` seconds, or `times` as long as a request alone, whichever is longer.
    """

    stages: int = 1
    run: float = 0.1
    load: float = 4.0
    fixed: float = 0.15
    allowed: float = 1.0
    times: float = 4.0
    batch: int = 8

    def models(self, count: int, seed: int) -> tuple[ClusterModel, ...]:
        """Return models with sizes drawn from a log-normal distribution."""
        sizes = np.random.default_rng(seed).lognormal(log(MEDIAN), SPREAD, count)
        return tuple([self._model(f"model-{i}", size / self.stages) for i, size in enumerate(sizes)])

    def _model(self, name: str, stage: float) -> ClusterModel:
        share = stage / MEDIAN
        alone, n = self.run * share**0.5 * self.stages**-0.5, self.batch
        curve = Curve((1, n), (alone, alone * (TOGETHER + (1 - TOGETHER) * n)))
        footprint = Footprint((int(stage),) * self.stages, (self.load * share,) * self.stages, fixed=self.fixed)
        spec = ModelSpec(name, "1", (WORD,), (WORD,), self.stages, n)
        served = ServedModel(spec, ModelCosts((curve,) * self.stages), 1024, footprint)
        return ClusterModel(served, max(self.allowed, self.times * alone * self.stages))


@dataclass(frozen=True)
class Traced:
    """Traffic after a trace: each model has the counts of one service, all together `rate` a second on average.

    With more models than services the trace is laid over itself (`laid_over`). Which model gets which service is drawn
    by seed, and requests come at any instant of their minute. Of `minutes` of the trace the first are taken, all of
    them where it is 0.
    """

    services: tuple[Service, ...]
    models: int
    rate: float
    minutes: int = 0

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """The counts of the services `(services, minutes)` that are ever called."""
        counts = np.array([service.counts for service in self.services], dtype=np.int64)
        return counts[counts.any(axis=1)]

    def rates(self, seed: int) -> NDArray[np.float64]:
        """Return requests a minute that are expected for each model `(models, minutes)`."""
        minutes = self.minutes or self.counts.shape[1]
        laid = laid_over(self.counts, self.models, np.arange(minutes), np.random.default_rng([seed, 1]))
        scaled: NDArray[np.float64] = laid * (self.rate * MINUTE * minutes / laid.sum())
        return scaled

    def requests(self, *, seed: int, scale: float = 1.0) -> Requests:
        """Return all requests of a run, for models of one stage."""
        expected, random = self.rates(seed) * scale, np.random.default_rng([seed, 2])
        slots = [
            spread_out(random.poisson(some), place * MINUTE, MINUTE, random) for place, some in enumerate(expected.T)
        ]
        times, models = (np.concatenate(column) for column in zip(*slots, strict=True))
        return Requests(times, models, np.zeros(len(models), dtype=np.int16))
