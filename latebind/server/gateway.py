"""The interface between frontend and engine. Only types; `latebind.engine` has the implementation."""

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, NotRequired, Protocol, TypeAlias, TypedDict

import msgspec
import numpy as np
from numpy.typing import NDArray

from latebind.domain.model import ModelSpec
from latebind.domain.picture import Picture
from latebind.domain.split import Chooser, Split
from latebind.domain.tracing import Trace
from latebind.preprocessing.preprocessor import Preprocessor

Array: TypeAlias = NDArray[Any]
NO_DIMS: Mapping[str, int] = {}
BFLOAT16: Final = "bfloat16"


def array_dtype(dtype: str) -> "np.dtype[Any]":
    """Return numpy's dtype for a tensor of this dtype: for bfloat16, which numpy lacks, uint16 holds the bits."""
    return np.dtype("uint16" if dtype == BFLOAT16 else dtype)


def as_numbers(array: Array, dtype: str) -> Array:
    """Return the numbers in a tensor of this dtype: those of bfloat16 as float32, which represents all of them."""
    return (array.astype(np.uint32) << 16).view(np.float32) if dtype == BFLOAT16 else array


@dataclass(frozen=True, slots=True)
class StepAnswer:
    """The result of one step of a query: `model` answered it and its request left the network at stage `left_at`.

    `budget` is how many seconds the step was planned to take, `spent` how many it took. `fidelity` is that promised
    for its answer; None for a network in full precision.
    """

    step: str
    model: str
    left_at: int
    budget: float
    spent: float
    fidelity: float | None = None


class Answer(msgspec.Struct, frozen=True):
    """The result of a call of N rows.

    `outputs` are arrays `(N, *shape)` by name, of the shape that rows of these sizes have. For each row, `left_at` is
    the stage at which it left the network, `waited` and `ran` are the seconds that it spent in the queue and with a
    worker. `steps` are the steps that a query ran for each row, in the order in which they ended; it is empty for a
    model. `spec` is the version that answered; None: the one that was asked. If an answer comes in pieces
    (`Claim.stream`), only the last is `complete`; each has the tokens that the one before it did not have. `caches` is
    the version of the learned caches that the engine used for each row, as a number
    (`adaptation.controller.number_of`), empty without learned caches, and `promised` the fidelity promised for each
    answer, empty for a network in full precision.
    """

    outputs: dict[str, Array]
    left_at: tuple[int, ...]
    waited: tuple[float, ...] = ()
    ran: tuple[float, ...] = ()
    steps: tuple[tuple[StepAnswer, ...], ...] = ()
    spec: ModelSpec | None = None
    complete: bool = True
    caches: tuple[int, ...] = ()
    promised: tuple[float, ...] = ()


class Shown(NamedTuple):
    """A call as an observer sees it: its model, its rows (for each input an array for each row) and its answer."""

    spec: ModelSpec
    rows: Mapping[str, Sequence[Array]]
    answer: Answer


class Distribution(TypedDict):
    """A histogram: `counts[i]` values were at most `le[i]` and above `le[i - 1]`; `count` and `sum` are of all."""

    le: list[float]
    counts: list[int]
    sum: float
    count: int


class ModelMetrics(TypedDict):
    """The figures of one model since the start.

    `requests` counts those that have ended, by outcome; `left_at` answered ones by the stage at which they left;
    `batches` those by their size at the start, and `promised` by the fidelity that they are promised, where that
    follows the load, or the network is in less than full precision. `runs` and `run_seconds` are number and time of
    stage runs by how many requests were in them. `latency_seconds` and `queue_seconds` are of answered requests,
    `failed_seconds` is the time of all others from arrival to end, `slack_seconds` what was estimated on arrival. For a
    sequence model, `tokens` counts those written and `first_token_seconds` is from arrival to the first. For a model
    whose rows differ in length, `lengths` sums those of answered requests, `run_lengths` those of the rows in all runs
    of stages, `padded_lengths` the lengths that these were padded to. `last` is when the last request was answered, on
    the clock of `Snapshot.now`.
    """

    requests: dict[str, int]
    left_at: list[int]
    batches: dict[str, int]
    promised: dict[str, int]
    stage_runs: int
    row_stages: int
    stage_failures: int
    runs: dict[str, int]
    run_seconds: dict[str, float]
    latency_seconds: Distribution
    queue_seconds: Distribution
    slack_seconds: Distribution
    failed_seconds: float
    last: float | None
    pending: int
    tokens: NotRequired[int]
    first_token_seconds: NotRequired[Distribution]
    lengths: NotRequired[int]
    run_lengths: NotRequired[int]
    padded_lengths: NotRequired[int]


class MemoryMetrics(TypedDict):
    """What was loaded of one model and evicted since the start; `bytes` is what the whole model takes in memory.

    Of the `read_bytes` that loads read, `cached_bytes` were in the page cache.
    """

    resident_bytes: int
    bytes: int
    loads: int
    evictions: int
    failures: int
    read_bytes: int
    cached_bytes: int
    load_seconds: Distribution


class Memory(TypedDict):
    """The memory that models share."""

    budget_bytes: int
    models: dict[str, MemoryMetrics]


class StepMetrics(TypedDict):
    """The figures of one step of a query: how often each model answered it, the time planned for it and taken.

    `replanned` counts how often the step was planned only when it began, after another step had begun.
    """

    answered: dict[str, int]
    replanned: int
    budget_seconds: float
    spent_seconds: Distribution


class Snapshot(TypedDict):
    """All metrics at one moment, by model and query.

    `batching` counts how sub-batches of each model changed: `merges` of two that became one, `preemptions` of those
    that paused so that newer requests could catch up, `refills` of workers that still ran others. `memory` is there
    where memory is limited. `age` is there if the engine has not answered: how many seconds old the figures, its last,
    are. `steps` are those of each query, by name. `now` is the moment, in seconds of `time.monotonic()`.
    `restarts` counts how often the engine was replaced; `gpu` is the UUID of the GPU that it computes on.
    """

    models: dict[str, ModelMetrics]
    now: NotRequired[float]
    age: NotRequired[float]
    batching: NotRequired[dict[str, dict[str, int]]]
    restarts: NotRequired[int]
    gpu: NotRequired[str]
    memory: NotRequired[Memory]
    steps: NotRequired[dict[str, dict[str, StepMetrics]]]


class Claim(Protocol):
    """Slots for the N rows of one call in the engine's memory. The holder of a claim releases it exactly once."""

    @property
    def spec(self) -> ModelSpec:
        """The model that will answer; another version may have replaced the one that was asked for."""

    @property
    def rows(self) -> Mapping[str, Sequence[Array]]:
        """For every input, N arrays, written before `send`, and readable until `release`.

        Each has the input's `shape`, or the one that it has for the sizes that were claimed. They are not cleared
        before: their contents are arbitrary, also past the end of a row that is shorter than the tensor.
        """

    async def send(self, *, deadline: float, priority: int = 0, trace: int = 0) -> Answer:
        """Send the rows, which must be complete and checked, and return their answer by `deadline`.

        Among requests that wait for a model, `priority` 1 goes first, up to 255; 0, the default, goes last. If `trace`
        is not 0, the engine reports what happened to each row under this number (`Gateway.traces`).

        Cancelling the call cancels the rows. Raises `Refused`, `Expired`, `Failed`, `Unavailable`, `InvalidRequest`.
        """

    def stream(self, *, deadline: float, priority: int = 0, trace: int = 0) -> AsyncGenerator[Answer]:
        """Do what `send` does for a call of one row, and yield its answer in pieces as they are written.

        The last piece is `complete`. Closing the iterator cancels the row.
        """

    def shown(self, answer: Answer) -> Iterable[Shown]:
        """Return the steps of an answered query, each as a call of one row; valid until `release`."""

    def release(self) -> None:
        """Give the slots back. Slots that the engine still uses become free when it reports their end."""


class Gateway(Protocol):
    """The engine as the frontend sees it. All calls come from the frontend's event loop."""

    @property
    def models(self) -> Mapping[str, ModelSpec]:
        """The models that are served, by name."""

    def live(self) -> bool:
        """Return whether the engine's process runs."""

    def ready(self, model: str | None = None) -> bool:
        """Return whether requests for `model`, or for every model, can be answered."""

    def preprocessor(self, model: str) -> Preprocessor | None:
        """Return what makes rows of the raw inputs of a model in `models`; None for one that takes only tensors."""

    def places(self, model: str) -> int:
        """Return how many rows of a model in `models` there may be at once: no claim has more."""

    async def claim(
        self, model: str, rows: int, *, deadline: float, priority: int = 0, dims: Mapping[str, int] = NO_DIMS
    ) -> Claim:
        """Return slots for N rows, each a request of its own; waits until they are free and it is this call's turn.

        `dims` are the sizes of the model's named dimensions in all of the rows. Calls wait behind earlier calls whose
        priority is as good or better, until `deadline` (absolute, in `time.monotonic()` seconds). Raises `Refused`,
        `Expired` or `Unavailable`.
        """

    async def metrics(self) -> Snapshot:
        """Return the figures since the start."""

    async def picture(self) -> Picture:
        """Return what the engine is doing at this moment."""

    async def traces(self) -> Sequence[Trace]:
        """Return the traces of rows that have ended since this was last called."""


class IndexEntry(TypedDict):
    """A model of the repository. `state` is READY, LOADING or UNAVAILABLE.

    `reason` says why it is not ready, or why a newer version is not served.
    """

    name: str
    version: str
    state: str
    reason: str


class Catalogue(Protocol):
    """All models of the repository, served or not, and changes of what is served; `latebind.engine` implements it."""

    @property
    def splits(self) -> Mapping[str, Chooser]:
        """What chooses the version for a request, by model, for those in several versions; kept up to date."""

    def index(self) -> Sequence[IndexEntry]:
        """Return every model and query, by name."""

    def unavailable(self, name: str) -> str | None:
        """Return why a model that should be served is not; None for all others."""

    async def load(self, name: str, version: str | None = None) -> None:
        """Serve the newest version of a model, or this one, without disturbing calls that come meanwhile.

        Raises `NotFound`, and `RepositoryError` for a version that cannot be used: then what was served before stays.
        """

    async def split(self, split: Split) -> None:
        """Serve these versions of a model, each with its share of requests, without disturbing calls.

        Raises what `load` raises.
        """

    async def unload(self, name: str, *, dependents: bool = False) -> None:
        """Stop serving a model, and with `dependents` also the queries that need it.

        Raises `NotFound`, and `InvalidRequest` if a query needs it.
        """


class LevelFigures(TypedDict):
    """How a level of the operating curve would have answered the last samples, as `AdaptationFigures`.

    It promises a fidelity of `promised`; `used` says whether requests may run at it.
    """

    promised: float
    fidelity: float | None
    lower: float
    upper: float
    alarms: int
    used: bool


class AdaptationFigures(TypedDict):
    """How a model's learned caches fare as they adapt to the traffic.

    `fidelity` is the share of the last samples that were answered as the base model answers them; None before there are
    any. `lower` and `upper` bound it with 95 % confidence. The caches were chosen for a fidelity of `target` or more;
    with a floor, that is the lowest that may be promised now, and `levels` has each level.
    """

    version: str
    sampled: int
    retrained: int
    refused: int
    alarms: int
    fidelity: float | None
    lower: float
    upper: float
    target: NotRequired[float]
    levels: NotRequired[list[LevelFigures]]


class Observer(Protocol):
    """Gets every answer; `latebind.adaptation` implements it."""

    def answered(self, spec: ModelSpec, rows: Mapping[str, Sequence[Array]], answer: Answer) -> None:
        """Take note of one call soon after its answer; must not block.

        After a query, its steps are reported as calls of their models. `rows` are those of the `Claim`: they are
        overwritten after this returns, so copy what is to be kept.
        """

    def figures(self) -> Mapping[str, AdaptationFigures]:
        """Return the figures by model."""

    def unwatched(self) -> str:
        """Return why answers that are to be watched are not at the moment, "" if they are or none are to be."""
