"""A gateway that is real but small: models of one line each, computed on the frontend's own event loop."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import msgspec
import numpy as np

from latebind.domain.errors import Expired, Failed, Refused, StepFailed, Unavailable
from latebind.domain.model import LENGTH, About, Activation, ModelSpec, StepInputs, StepSpec, Task, TensorSpec
from latebind.domain.picture import BatchPicture, LanePicture, MemberPicture, Picture, WorkerPicture
from latebind.domain.sizes import Dim
from latebind.domain.tracing import Span, Trace
from latebind.preprocessing.preprocessor import Preprocessor
from latebind.server.gateway import NO_DIMS, Answer, Array, Shown, Snapshot, StepAnswer
from tests.server.words import LONGEST, RAW, Pixels, Words

Rows = Mapping[str, Array]
STAGES = 3
WAITED, RAN = 0.0005, 0.00125  # seconds


def spec(name: str, inputs: list[TensorSpec], outputs: list[TensorSpec], *dims: Dim) -> ModelSpec:
    return ModelSpec(name, "1", tuple(inputs), tuple(outputs), stages=STAGES, max_batch=8, lookups=(0,), dims=dims)


def one_to_one(name: str, dtype: str, *shape: int) -> ModelSpec:
    return spec(name, [TensorSpec("x", dtype, shape)], [TensorSpec("y", dtype, shape)])


def query(name: str, *steps: StepSpec) -> ModelSpec:
    """Over `scalar` and other models of its kind."""
    given, answer = TensorSpec("x", "float64", ()), TensorSpec("y", "float64", ())
    return ModelSpec(name, "1", (given,), (answer,), stages=len(steps), max_batch=8, steps=steps)


SPECS = (
    one_to_one("double", "float32", 16),
    one_to_one("half", "float16", 4),
    one_to_one("invert", "bool", 3),
    one_to_one("bytes", "uint8", 2, 3),
    one_to_one("scalar", "float64"),
    one_to_one("large", "float32", 1024, 1024),
    spec(
        "pair",
        [TensorSpec("a", "float32", (2, 2)), TensorSpec("b", "int64", (3,))],
        [TensorSpec("sum", "float64", ()), TensorSpec("b", "int64", (3,))],
    ),
    spec(
        "echo",
        [TensorSpec("x", "int64", (6,), 0, sizes=(LENGTH,))],
        [TensorSpec("y", "int64", (6,), 0)],
        Dim(LENGTH, 1, 6),
    ),
    spec(
        "text",
        [TensorSpec(name, "int64", (12,), 0, limit, sizes=("L",)) for name, limit in (("ids", 100), ("mask", 2))],
        [TensorSpec("y", "int64", (12,), sizes=("L",)), TensorSpec("length", "int64", ())],
        Dim("L", 2, 12),
    ),
    spec(
        "picture",
        [TensorSpec("x", "float32", (2, 8, 6), 0, sizes=(2, "H", "W"))],
        [TensorSpec("y", "float32", (2, 8, 3), sizes=(2, "H", "W//2"))],
        Dim("H", 4, 8, 4),
        Dim("W", 1, 6),
    ),
    spec(
        "sound",
        [TensorSpec("x", "float32", (2, 9), 0, sizes=(2, "T"))],
        [TensorSpec("y", "float32", (2, 9), sizes=(2, "T"))],
        Dim("T", 1, 9),
    ),
    replace(
        spec(
            "reads",
            [
                TensorSpec(name, "int64", (LONGEST,), 0, limit, sizes=("L",))
                for name, limit in (("ids", 100), ("mask", 2))
            ],
            [TensorSpec("scores", "float32", (3,)), TensorSpec("tags", "int64", (LONGEST,), sizes=("L",))],
            Dim("L", 1, LONGEST),
        ),
        about=About(Task.CLASSIFY, RAW, ("low", "middle", "high"), Activation.SOFTMAX),
    ),
    replace(
        spec("views", [TensorSpec("pixels", "float32", (4,))], [TensorSpec("y", "float32", (4,))]),
        about=About(raw=Pixels.raw),
    ),
    *(one_to_one(name, "float32", 1) for name in ("stuck", "full", "late", "gone", "failing", "crashing")),
    query(
        "traffic",
        StepSpec("gate", ("scalar",), (), (StepInputs(("x",)),)),
        StepSpec("cars", ("double", "scalar"), (0,), (StepInputs(("cars.inputs.x",)),) * 2),
    ),
    query("jammed", StepSpec("gate", ("scalar",), (), (StepInputs(("x",)),))),
)
SPECS_BY_NAME = {spec.name: spec for spec in SPECS}


def double(rows: Rows) -> dict[str, Array]:
    return {"y": (rows["x"] * 2).astype(rows["x"].dtype)}


def pair(rows: Rows) -> dict[str, Array]:
    return {"sum": rows["a"].sum(axis=(1, 2)).astype(np.float64) + rows["b"].sum(axis=1), "b": rows["b"]}


def reads(rows: Rows) -> dict[str, Array]:
    total, length = (rows["ids"] * rows["mask"]).sum(axis=1), rows["mask"].sum(axis=1)
    return {"scores": np.stack([total, length, -total], axis=1).astype(np.float32), "tags": rows["ids"]}


COMPUTE: dict[str, Callable[[Rows], dict[str, Array]]] = {
    "pair": pair,
    "echo": lambda rows: {"y": rows["x"]},
    "invert": lambda rows: {"y": ~rows["x"]},
    "text": lambda rows: {"y": rows["ids"] * rows["mask"], "length": rows["mask"].sum(axis=1)},
    "picture": lambda rows: {"y": rows["x"][..., : rows["x"].shape[-1] // 2]},
    "reads": reads,
    "views": lambda rows: {"y": rows["pixels"] * 2},
}
ERRORS: dict[str, Exception] = {
    "full": Refused("the queue of 'full' has 256 requests"),
    "late": Expired("the deadline passed"),
    "gone": Unavailable("the engine is gone"),
    "failing": Failed("RuntimeError in /srv/models/failing"),
    "jammed": StepFailed("step 'gate' of jammed raised"),
    "crashing": ValueError("a bug in /srv/latebind"),
}


STEPS = (StepAnswer("gate", "scalar", 1, 0.05, 0.02), StepAnswer("cars", "double", 2, 0.03, 0.0123456, 0.97))


class Arithmetic:
    """Answers y = 2 x, or what `COMPUTE` says; rows that begin below 0 leave at stage 0. `stuck` never answers.

    `echo` says its input; to a call that streams, one token for each item of `pace`, where there is a pace. An error in
    it is raised.

    A query takes `STEPS`, only the first for rows that begin below 0. `reads` reads texts (`words`).

    There are `slots` places for rows of each model; who claims more than are free waits for some. `claims` are the
    sizes of all claims so far. `ends` are requests by model and outcome beside those that are `answered`, which took
    longer than any bound of the histogram where their model is `beyond` it. The first row has waited `WAITED` and run
    `RAN` seconds, the second twice that.
    """

    def __init__(self, *specs: ModelSpec) -> None:
        self.ended: list[Trace] = []
        self.models: Mapping[str, ModelSpec] = {spec.name: spec for spec in specs or SPECS}
        self._taken = 0
        self._taken_changed = asyncio.Event()
        self.is_live = True
        self.tame: set[str] = set()  # models that answer although they would not
        self.unready: set[str] = set()
        self.answered: Counter[str] = Counter()
        self.ends: dict[str, dict[str, int]] = {}
        self.beyond: set[str] = set()
        self.stuck = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.deadlines: list[float] = []
        self.pictures = 0
        self.pace: asyncio.Queue[Exception | None] | None = None
        self.preprocessors: dict[str, Preprocessor] = {"reads": Words(), "views": Pixels()}
        self.slots = 256
        self.rows: Counter[str] = Counter()  # that are in places now, by model
        self.claims: list[tuple[int, dict[str, int]]] = []

    def preprocessor(self, model: str) -> Preprocessor | None:
        return self.preprocessors.get(model)

    def places(self, model: str) -> int:
        return self.slots

    @property
    def taken(self) -> int:
        """How many places nobody has given back."""
        return self._taken

    @taken.setter
    def taken(self, count: int) -> None:
        self._taken = count
        self._taken_changed.set()

    async def until_taken(self, count: int) -> None:
        """Return when so many places are taken."""
        while self._taken != count:
            self._taken_changed.clear()
            await self._taken_changed.wait()

    def live(self) -> bool:
        return self.is_live

    def ready(self, model: str | None = None) -> bool:
        return model not in self.unready if model else not self.unready

    async def claim(
        self, model: str, rows: int, *, deadline: float, priority: int = 0, dims: Mapping[str, int] = NO_DIMS
    ) -> "Places":
        assert rows <= self.slots
        while self.rows[model] + rows > self.slots:
            self._taken_changed.clear()
            try:
                async with asyncio.timeout(deadline - time.monotonic()):
                    await self._taken_changed.wait()
            except TimeoutError:
                raise Expired(f"{model} had no place by the deadline") from None
        self.claims.append((rows, dict(dims)))
        self.rows[model] += rows
        self.taken += 1
        return Places(self, self.models[model], rows, dims)

    async def answer(self, model: str, rows: Rows, *, deadline: float) -> Answer:
        self.deadlines.append(deadline)
        if model == "stuck" and model not in self.tame:
            await self._stick()
        if model in ERRORS and model not in self.tame:
            raise ERRORS[model]
        compute = COMPUTE.get(model, double)
        first = next(iter(rows.values()))
        starts = first.reshape(len(first), -1)[:, 0].tolist()
        self.answered[model] += len(first)
        waited, ran = (tuple([each * (row + 1) for row in range(len(starts))]) for each in (WAITED, RAN))
        if self.models[model].steps:
            steps = tuple([STEPS[: 1 if start < 0 else 2] for start in starts])
            return Answer(compute(rows), tuple([len(ran) - 1 for ran in steps]), waited, ran, steps)
        return Answer(compute(rows), tuple([0 if start < 0 else STAGES - 1 for start in starts]), waited, ran)

    async def traces(self) -> Sequence[Trace]:
        ended, self.ended = self.ended, []
        return ended

    async def metrics(self) -> Snapshot:
        found = {name: figures(count) for name, count in self.answered.items()}
        for name, told in found.items():
            told["requests"] |= self.ends.get(name, {})
            if name in self.beyond:
                told["latency_seconds"] |= {"counts": [0, 0, self.answered[name]]}
            if self.models[name].steps:  # batches are those of models
                told["batches"] = {}
            if self.models[name].dims:
                count = self.answered[name]
                told |= {"lengths": 6 * count, "run_lengths": 12 * count, "padded_lengths": 18 * count}
        return Snapshot(models=cast(Any, found))

    async def picture(self) -> Picture:
        self.pictures += 1
        member = MemberPicture(7, 0.002, 0.998, 1)
        batch = BatchPicture("double", 1, STAGES, 1, "runs", (member,))
        return Picture((WorkerPicture(0, 0.001, (batch,)),), {"double": LanePicture(2, 0, 0.003, 40.0)})

    async def _stick(self) -> None:
        self.stuck.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


class Places:
    """Memory for one call."""

    def __init__(self, gateway: Arithmetic, spec: ModelSpec, rows: int, dims: Mapping[str, int] = NO_DIMS) -> None:
        self._gateway = gateway
        self.released = False
        self.spec = spec
        self._arrays = {tensor.name: np.empty((rows, *tensor.shape_of(dims)), tensor.dtype) for tensor in spec.inputs}
        self.rows = {name: [array[i, ...] for i in range(rows)] for name, array in self._arrays.items()}

    async def send(self, *, deadline: float, priority: int = 0, trace: int = 0) -> Answer:
        if trace:
            self._gateway.ended.append(lived(self.spec.name, trace, deadline, priority))
        answer = await self._gateway.answer(self.spec.name, self._arrays, deadline=deadline)
        return msgspec.structs.replace(answer, spec=self.spec)

    async def stream(self, *, deadline: float, priority: int = 0, trace: int = 0) -> AsyncGenerator[Answer]:
        answer = await self.send(deadline=deadline, priority=priority, trace=trace)
        tokens = answer.outputs["y"].shape[1] if self.spec.name == "echo" else 1
        try:
            for token in range(tokens):
                if self._gateway.pace is not None and (error := await self._gateway.pace.get()) is not None:
                    raise error
                is_last = token == tokens - 1
                outputs = answer.outputs if tokens == 1 else {"y": answer.outputs["y"][:, token : token + 1]}
                yield msgspec.structs.replace(answer, outputs=outputs, complete=is_last)
        except (asyncio.CancelledError, GeneratorExit):
            self._gateway.cancelled.set()
            raise

    def shown(self, answer: Answer) -> Iterable[Shown]:
        return ()

    def release(self) -> None:
        assert not self.released, "released twice"
        self.released = True
        self._gateway.rows[self.spec.name] -= len(next(iter(self.rows.values())))
        self._gateway.taken -= 1


def lived(model: str, number: int, deadline: float, priority: int) -> Trace:
    """What the engine would tell of a row that ran one stage."""
    now = time.monotonic()
    stage = Span("stage", now, now, facts={"stage": 0, "worker": 0, "batch": 1, "runs": 1, "joined": 0})
    spans = [Span("wait", now, now), stage]
    return Trace(number, number, model, now, deadline, priority, spans, 0, now, "answered", 0, 0.5)


def figures(answered: int) -> dict[str, Any]:
    """What the engine would report after so many answers, all at the last stage, of a millisecond each."""
    seconds = {"le": [0.001, 0.01], "counts": [answered, 0, 0], "sum": 0.001 * answered, "count": answered}
    lost = ("refused_full", "refused_late", "refused_loading", "expired", "cancelled", "failed", "not_loaded")
    none = dict.fromkeys(lost, 0)
    return {
        "requests": {"answered": answered, **none},
        "left_at": [0, 0, answered],
        "batches": {"1": answered},
        "promised": {},
        "stage_runs": STAGES * answered,
        "row_stages": STAGES * answered,
        "stage_failures": 0,
        "runs": {"1": STAGES * answered},
        "run_seconds": {"1": 0.001 * answered},
        "latency_seconds": seconds,
        "queue_seconds": seconds,
        "slack_seconds": seconds,
        "failed_seconds": 0.0,
        "last": 1.5 if answered else None,
        "pending": 0,
    }
