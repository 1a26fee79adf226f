"""The verbs of the door, the same for every transport: who lives, what there is, infer. It knows no bytes."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import cast

from latebind import __version__
from latebind.domain.errors import NotFound, Unavailable
from latebind.domain.model import ModelSpec
from latebind.server.calls import Call
from latebind.server.description import told_of_steps
from latebind.server.gateway import AdaptationFigures, Answer, Array, Claim, Gateway, Observer, Snapshot
from latebind.server.statistics import statistics

EXTENSIONS = (
    "binary_tensor_data",
    "classification",
    "parameters",
    "model_configuration",
    "schedule_policy",
    "statistics",
)  # only what works
MICROSECOND = 1e-6

Fill = Callable[[Mapping[str, Sequence[Array]]], Awaitable[None]]  # writes the rows of a `Claim`


class Service:
    """Answers for the engine behind `gateway`.

    `deadlines` are the seconds of each model's requests that name no time-out, `deadline` those of models not in it,
    `longest` the most that a client may ask for.
    """

    def __init__(
        self,
        gateway: Gateway,
        *,
        deadline: float = 1.0,
        deadlines: Mapping[str, float] | None = None,
        longest: float = 3600.0,
        show_exit: bool = True,
        observer: Observer | None = None,
    ) -> None:
        self._gateway = gateway
        self._deadline = deadline
        self._deadlines = dict(deadlines or {})
        self._longest = longest
        self._show_exit = show_exit
        self._observer = observer
        self._draining = False

    def drain(self) -> None:
        """Take no more infer calls and say so to whoever asks for health; those under way go on."""
        self._draining = True

    def live(self) -> bool:
        """Tell whether the server and its engine run."""
        return self._gateway.live()

    def ready(self) -> bool:
        """Tell whether requests for every model can be answered."""
        return not self._draining and self._gateway.ready()

    def model_ready(self, name: str, version: str | None = None) -> bool:
        """Tell whether requests for this model can be answered. Raises `NotFound`."""
        return not self._draining and self._gateway.ready(self.model(name, version).name)

    def server_metadata(self) -> dict[str, object]:
        """Return the server's name, version and the extensions of the protocol that it has."""
        return {"name": "latebind", "version": __version__, "extensions": list(EXTENSIONS)}

    def models(self) -> list[ModelSpec]:
        """Return all models, by name."""
        return [spec for _, spec in sorted(self._gateway.models.items())]

    def index(self) -> list[dict[str, str]]:
        """Return every model with its version and state."""
        return [{"name": spec.name, "version": spec.version, "state": "READY", "reason": ""} for spec in self.models()]

    def model(self, name: str, version: str | None = None) -> ModelSpec:
        """Return the model of this name, in this version if one is given. Raises `NotFound`."""
        spec = self._gateway.models.get(name)
        if spec is None:
            raise NotFound(f"there is no model {name!r:.140}")
        if version is not None and version != spec.version:
            raise NotFound(f"model {name!r} has no version {version!r:.40}: it has {spec.version}")
        return spec

    async def infer(self, spec: ModelSpec, call: Call, fill: Fill, *, client: str = "") -> Answer:
        """Answer a call, whose rows `fill` writes, within its time-out; `client` is the address that it came from.

        The time that `fill` takes does not count, for it is the client's: it sends them. Raises what `Gateway.claim`,
        `fill` and `Claim.send` raise.
        """
        if self._draining:
            raise Unavailable("the server is shutting down: ask another one")
        deadline = time.monotonic() + self._seconds(spec, call.timeout)
        claim = await self._gateway.claim(spec.name, call.rows, deadline=deadline)
        with ExitStack() as held:
            held.callback(claim.release)
            begun = time.monotonic()
            await fill(claim.rows)
            answer = await claim.send(deadline=deadline + time.monotonic() - begun, priority=call.priority)
            if self._observer is not None:  # it sees the rows after the reply is on its way, and then lets go of them
                held.pop_all()
                asyncio.get_running_loop().call_soon(self._show, self._observer, spec, claim, answer, client)
        return answer

    def told(self, spec: ModelSpec, answer: Answer) -> dict[str, object]:
        """Return the parameters of the reply, unless the operator hides them: where each row left, or its steps."""
        if not self._show_exit:
            return {}
        if spec.steps:
            return told_of_steps(answer.steps, self._gateway.models)
        left_at = answer.left_at
        return {"left_at": left_at[0] if len(left_at) == 1 else left_at, "stages": spec.stages}

    def milliseconds(self, answer: Answer) -> tuple[float, float]:
        """Return how long the slowest row waited and ran; both 0 where the operator hides what answers tell."""
        if not self._show_exit:
            return 0.0, 0.0
        return max(answer.waited, default=0.0) * 1e3, max(answer.ran, default=0.0) * 1e3

    async def metrics(self) -> Snapshot:
        """Return the engine's figures."""
        return cast(Snapshot, await self._gateway.metrics())

    async def statistics(self, name: str | None = None, version: str | None = None) -> dict[str, object]:
        """Return the protocol's statistics of one model, or of all. Raises `NotFound`."""
        specs = self.models() if name is None else [self.model(name, version)]
        return statistics(specs, await self.metrics())

    def adaptation(self) -> Mapping[str, AdaptationFigures]:
        """Return what is known of learned caches that follow the traffic, by model."""
        return {} if self._observer is None else self._observer.figures()

    def versions(self) -> dict[str, str]:
        """Return every model's version, by name."""
        return {spec.name: spec.version for spec in self.models()}

    def _show(self, observer: Observer, spec: ModelSpec, claim: Claim, answer: Answer, client: str) -> None:
        """Let the observer see rows and answer while the rows are still there."""
        try:
            observer.answered(spec, claim.rows, answer, client)
        finally:
            claim.release()

    def _seconds(self, spec: ModelSpec, timeout: int) -> float:
        if not timeout:
            return self._deadlines.get(spec.name, self._deadline)
        return min(timeout, int(self._longest / MICROSECOND)) * MICROSECOND
