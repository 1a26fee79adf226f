"""What the door asks of the engine behind it, and what it gets back. Only types; `latebind.engine` has the real one."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NotRequired, Protocol, TypeAlias, TypedDict

import msgspec
from numpy.typing import NDArray

from latebind.domain.model import ModelSpec
from latebind.domain.picture import Picture
from latebind.domain.tracing import Trace

Array: TypeAlias = NDArray[Any]


@dataclass(frozen=True, slots=True)
class StepAnswer:
    """What became of one step of a query: `model` answered it and left at stage `left_at`.

    `budget` and `spent` are the seconds that it was planned to take and took.
    """

    step: str
    model: str
    left_at: int
    budget: float
    spent: float


class Answer(msgspec.Struct, frozen=True):
    """What became of the N rows of one call.

    `outputs` are arrays `(N, *shape)` by name; of each row, `left_at` is the stage that it left at, `waited` and `ran`
    are the seconds that it spent in the queue and with a worker. `steps` are those that a query ran for each row, in
    the order in which they ended; of a model there are none. `spec` is the model as it answered; None: as it was asked.
    """

    outputs: dict[str, Array]
    left_at: tuple[int, ...]
    waited: tuple[float, ...] = ()
    ran: tuple[float, ...] = ()
    steps: tuple[tuple[StepAnswer, ...], ...] = ()
    spec: ModelSpec | None = None


class Shown(NamedTuple):
    """A call of a model as observers see it: what it was given, by input an array for each row, and its answer."""

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
    """The figures of one model since the start. `requests` has ended ones by outcome, `left_at` answered ones by stage.

    `batches` counts them by their size as they start the network; `runs` and `run_seconds` are the stages that have
    ended, by how many requests were in them, and the time that they took. `latency_seconds` and `queue_seconds` are of
    requests that were answered: the difference of their sums is what those spent with a worker. `failed_seconds` are
    all that others spent from arrival to end. `slack_seconds` are of all, what they were taken to have to spare when
    they came. `last` is when the last was answered, on the clock of `Snapshot.now`; None: none was.
    """

    requests: dict[str, int]
    left_at: list[int]
    batches: dict[str, int]
    stage_runs: int
    row_stages: int
    runs: dict[str, int]
    run_seconds: dict[str, float]
    latency_seconds: Distribution
    queue_seconds: Distribution
    slack_seconds: Distribution
    failed_seconds: float
    last: float | None
    pending: int


class MemoryMetrics(TypedDict):
    """What came to memory of one model since the start and went; `bytes` is what all of it takes.

    Of `read_bytes`, which loads read, `cached_bytes` lay in the page cache.
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
    """The figures of one step of a query: how often each model answered it, what was planned for that and it took.

    `replanned` counts how often it was planned only when it began, another step having begun before.
    """

    answered: dict[str, int]
    replanned: int
    budget_seconds: float
    spent_seconds: Distribution


class Tally(TypedDict):
    """What became of the sub-batches of one model since the start.

    `merges` are two that became one, `preemptions` one that was made to rest for newcomers, `refills` requests that
    began on a worker that was not through with others.
    """

    merges: int
    preemptions: int
    refills: int


class Snapshot(TypedDict):
    """All metrics at one moment, by model and query; `memory` where that is limited.

    `steps` are those of each query, by name. `now` is the moment, in seconds of `time.monotonic()`. `restarts` is how
    often the engine had to be replaced, `gpu` the identity of the GPU that it computes on.
    """

    models: dict[str, ModelMetrics]
    now: NotRequired[float]
    batching: NotRequired[dict[str, Tally]]
    restarts: NotRequired[int]
    gpu: NotRequired[str]
    memory: NotRequired[Memory]
    steps: NotRequired[dict[str, dict[str, StepMetrics]]]


Then = Callable[[Answer | Exception], None]


class Claim(Protocol):
    """Places for the N rows of one call in the engine's memory. Whoever has one releases it, once."""

    @property
    def spec(self) -> ModelSpec:
        """The model that will answer: while calls are on their way, another version may have taken its place."""
        ...

    @property
    def rows(self) -> Mapping[str, Sequence[Array]]:
        """Of every input N arrays `shape`, to be written before `send` and read until `release`.

        What lies in them is anything, also past the end of a row that is shorter than the tensor.
        """
        ...

    @property
    def raw(self) -> Mapping[str, Sequence[memoryview]]:
        """Return the same places as bytes."""
        ...

    def dispatch(self, then: Then, *, deadline: float, priority: int = 0, trace: int = 0) -> None:
        """Have the rows answered, which are complete and checked, all by `deadline`, and `then` called, once.

        It gets the answer, whose arrays may be places of the claim: read them before `release`. Or it gets an error of
        those of `send`. Raises `Unavailable`, and then calls nobody.
        """
        ...

    def cancel(self) -> None:
        """Have nobody called, and what can be left undone left undone; a call that was dispatched is not sent too."""
        ...

    async def send(self, *, deadline: float, priority: int = 0, trace: int = 0) -> Answer:
        """Answer the rows, which are complete and checked, all by `deadline`.

        Of those that wait for a model, `priority` 1 goes first, up to 255, and 0, the default, last. Where `trace` is
        not 0, what becomes of each row is told under this number (`Gateway.traces`).

        Cancelling the call cancels the rows. Raises `Refused`, `Expired`, `Failed`, `Unavailable`, `InvalidRequest`.
        """
        ...

    def shown(self, answer: Answer) -> Iterable[Shown]:
        """Return the steps of a query that has been answered so, each as a call of one row, until `release`."""
        ...

    def release(self) -> None:
        """Give the places back; where the engine has them yet, they are free when it says that it ended."""
        ...


class Gateway(Protocol):
    """The engine as the door sees it. All calls come from the door's event loop."""

    @property
    def models(self) -> Mapping[str, ModelSpec]:
        """The models that are served, by name."""
        ...

    def live(self) -> bool:
        """Tell whether the engine's process runs."""
        ...

    def ready(self, model: str | None = None) -> bool:
        """Tell whether requests for `model`, or for every model, can be answered."""
        ...

    def claim_now(self, model: str, rows: int) -> Claim | None:
        """Return places for N rows, or None where the call had to wait for some, or would not get any."""
        ...

    async def claim(self, model: str, rows: int, *, deadline: float, priority: int = 0) -> Claim:
        """Return places for N rows, each a request of its own, once it is this call's turn.

        Calls wait for places behind those that came before and have no later priority, until the `deadline` (absolute,
        `time.monotonic()` seconds). Raises `Refused` or `Unavailable`.
        """
        ...

    async def metrics(self) -> Mapping[str, Any]:
        """Return the figures since the start, of the form of `Snapshot`."""
        ...

    async def picture(self) -> Picture:
        """Return what is under way at this moment."""
        ...

    async def traces(self) -> Sequence[Trace]:
        """Return what became of rows to be traced that have ended since this was asked last."""
        ...


class IndexEntry(TypedDict):
    """A model of the repository: `state` is READY, LOADING or UNAVAILABLE, `reason` why, or why it is no newer one."""

    name: str
    version: str
    state: str
    reason: str


class Catalogue(Protocol):
    """What there is beside what is served, and changes of that; `latebind.engine` has the real one."""

    def index(self) -> Sequence[IndexEntry]:
        """Return every model and query, by name."""
        ...

    def unavailable(self, name: str) -> str | None:
        """Return why a model is not served that should be; None for others."""
        ...

    async def load(self, name: str, version: str | None = None) -> None:
        """Serve the newest version of a model, or this one; nobody who calls meanwhile notices.

        Raises `NotFound`, and `RepositoryError` for one that is of no use; then what was served stays.
        """
        ...

    async def unload(self, name: str, *, dependents: bool = False) -> None:
        """Serve a model no more, with the queries that need it where `dependents`.

        Raises `NotFound`, and `InvalidRequest` where a query needs it.
        """
        ...


class AdaptationFigures(TypedDict):
    """What is known of a model's learned caches as they follow the traffic.

    `fidelity` is the share of the last samples that were answered as the base model does, None before there are any;
    `lower` and `upper` bound it with 95 % confidence. The caches were chosen for `target` or more.
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


class Observer(Protocol):
    """Whoever wants to know what was answered; `latebind.adaptation` has the real one."""

    def answered(self, spec: ModelSpec, rows: Mapping[str, Sequence[Array]], answer: Answer, client: str) -> None:
        """Take note of one call, soon after its answer; must not wait. `client` is the address that it came from.

        Behind a query's, its steps are told of as calls of their models.
        `rows` are those of `Claim`: others write there when this returns, so what is kept is copied.
        """
        ...

    def figures(self) -> Mapping[str, AdaptationFigures]:
        """Return what is known, by model."""
        ...
