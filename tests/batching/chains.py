"""Small models for tests of who runs when: stages of one second each, so that seconds count stages."""

from collections.abc import Mapping, Sequence

from latebind.batching.requests import Lane, Models, Request
from latebind.batching.workers import BatchTable, SubBatch, Worker
from latebind.domain.actions import Run
from latebind.domain.config import PolicyConfig, SchedulerConfig, ServedModel
from latebind.domain.costs import Curve, ModelCosts, at_any_length
from latebind.domain.model import ModelSpec, StageKind, TensorSpec
from latebind.simulation.driver import Record, Simulator
from latebind.simulation.workloads import Arrival

STATIC, ENCODER, DECODER = StageKind.STATIC, StageKind.ENCODER, StageKind.DECODER
VECTOR = TensorSpec("x", "float32", (1,))
FLAT = Curve((1, 64), (1.0, 1.0))  # a batch takes as long as one


def chain(
    *kinds: StageKind,
    name: str = "net",
    max_batch: int = 64,
    curve: Curve = FLAT,
    output_steps: tuple[int, ...] = (1,),
    hit_rates: Mapping[int, float] | None = None,
) -> ServedModel:
    """A model of such stages, each of which takes what `curve` says; a share of requests leaves at some."""
    lookups = tuple(hit_rates or {})
    spec = ModelSpec(name, "1", (VECTOR,), (VECTOR,), len(kinds), max_batch, lookups, kinds)
    costs = ModelCosts(at_any_length(curve) * len(kinds), hit_rates=dict(hit_rates or {}), output_steps=output_steps)
    return ServedModel(spec, costs, 1000)


def config(policy: PolicyConfig, *models: ServedModel, workers: int = 1) -> SchedulerConfig:
    return SchedulerConfig(models, workers, policy)


class Timeline(Simulator):
    """A simulation that notes what ran when: `(start, stage, requests)`; requests count from 1 as in the figures."""

    def __init__(self, settings: SchedulerConfig) -> None:
        super().__init__(settings)
        self.ran: list[tuple[float, int, tuple[int, ...]]] = []

    def _run(self, action: Run, now: float) -> None:
        self.ran.append((now, action.stage, tuple(sorted(i + 1 for i in action.requests))))
        super()._run(action, now)


def play(policy: PolicyConfig, model: ServedModel, times: Sequence[float], *, allowed: float = 1000.0) -> Timeline:
    """Run requests for a model that come at these times."""
    timeline = Timeline(config(policy, model))
    timeline.run([Arrival(time, model.spec.name, allowed, model.spec.stages - 1) for time in times])
    return timeline


def ends(records: Sequence[Record]) -> dict[int, float]:
    """Return when each request was answered, counted from 1."""
    return {record.request + 1: record.ended for record in records}


def lane_of(served: ServedModel, *requests: Request, models: Models | None = None) -> Lane:
    """Return the lane of a model in which these requests wait, in this order."""
    lane = Lane(served, models or Models())
    for request in requests:
        lane.add(request)
    return lane


def view(served: ServedModel, *running: Request, stage: int = 0) -> tuple[Worker, Lane]:
    """Return a worker that has started these requests, before a stage, and the lane of their model."""
    models = Models()
    entries = [SubBatch(served.spec, {request.id: request for request in running}, stage)] if running else []
    return Worker(models, BatchTable(entries)), Lane(served, models)


def request(number: int, *, arrived: float, due: float, started: float = 0.0, steps: int = 0) -> Request:
    return Request(number, "net", number, due, arrived, started=started, steps=steps)
