"""Decides which calls are traced, and joins the frontend's and the engine's parts of a trace once it has ended.

The engine follows requests under a number that the frontend gives a call (`domain/tracing.py`), and keeps their traces
until it is asked for them. It is not asked while no call is traced.
"""

import asyncio
import logging
import re
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count

import msgspec

from latebind.domain.errors import LatebindError
from latebind.domain.tracing import Trace
from latebind.server.faults import request_id
from latebind.server.gateway import NO_DIMS
from latebind.server.settings import Traces

TRACEPARENT = re.compile(r"[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?")  # W3C
SAMPLED = 1
KEPT = 100  # calls
SOON = 0.05  # seconds after the end of a call when the engine is asked for traces
PATIENCE = 10.0  # seconds after which a call is complete without the rows that have not ended
MOST_OPEN = 1000  # calls that are traced at once

log = logging.getLogger(__name__)


class TracedCall(msgspec.Struct):
    """A traced call: what the frontend saw, and the trace of each row from the engine.

    `began` and `ended` are on the clock of `time.monotonic()`, like all times in `rows`; add `wall` to get Unix time.
    `outcome` is `answered`, `cancelled` or the class of the error. `parent` is the caller's span, if it sent one.
    `dims` are the sizes of the model's named dimensions in its rows. Its raw inputs, if it had any, were read until
    `read`.
    """

    number: int
    id: str
    model: str
    version: str
    count: int
    parent: str
    began: float
    wall: float
    sent: bool = False
    ended: float = 0.0
    outcome: str = ""
    rows: list[Trace] = msgspec.field(default_factory=list)
    dims: Mapping[str, int] = {}
    read: float = 0.0

    @property
    def complete(self) -> bool:
        """Whether the engine has reported every row that was sent to it."""
        return not self.sent or len(self.rows) == self.count

    def sends(self) -> int:
        """Note that the call is sent, and return its number for the engine."""
        self.sent = True
        return self.number

    def as_dict(self) -> dict[str, object]:
        """Return the call as plain types; the times of spans are seconds since the call began."""
        return {
            "id": self.id,
            "model": self.model,
            "version": self.version,
            "began": self.began + self.wall,
            "seconds": self.ended - self.began,
            **({"read": self.read - self.began} if self.read else {}),
            "outcome": self.outcome,
            "dims": self.dims,
            "rows": [self._row(trace) for trace in self.rows],
        }

    def _row(self, trace: Trace) -> dict[str, object]:
        at = self.began
        times = {"arrived": trace.arrived - at, "deadline": trace.deadline - at, "ended": trace.ended - at}
        about = {name: getattr(trace, name) for name in ("priority", "slack", "outcome", "left_at", "dropped")}
        spans = [
            {"what": span.what, "step": span.step, "start": span.start - at, "end": span.end - at, **span.facts}
            for span in trace.spans
        ]
        return {"request": trace.request, **times, **about, "spans": spans}


class Tracing:
    """Traces calls as `settings` say, and calls whose caller's own trace is sampled; keeps the last of them.

    `fetch` asks the engine for its traces, `soon` seconds after a call has ended. `export` gets each complete call. At
    most `most_open` calls are traced at once.
    """

    def __init__(
        self,
        fetch: Callable[[], Awaitable[Sequence[Trace]]],
        settings: Traces,
        *,
        export: Callable[[TracedCall], None] | None = None,
        soon: float = SOON,
        patience: float = PATIENCE,
        most_open: int = MOST_OPEN,
    ) -> None:
        self._soon, self._patience, self._most_open = soon, patience, most_open
        self._settings = settings
        self._fetch = fetch
        self._export = export
        self._numbers = count(1)
        self._open: dict[int, TracedCall] = {}
        self._kept: deque[TracedCall] = deque(maxlen=KEPT)
        self._collecting: asyncio.Task[None] | None = None

    def wanted(self, model: str, parent: str) -> bool:
        """Return whether to trace this call of `model`; `parent` is the caller's span, if it sent one."""
        sampled = TRACEPARENT.fullmatch(parent) is not None and int(parent[53:55], 16) & SAMPLED > 0
        return (sampled or self._settings.wanted(model)) and len(self._open) < self._most_open

    @contextmanager
    def following(
        self,
        model: str,
        version: str,
        rows: int,
        *,
        id: str,
        parent: str,
        dims: Mapping[str, int] = NO_DIMS,
        began: float | None = None,
    ) -> Iterator[TracedCall]:
        """Trace a call from here to the end of the block; one whose inputs have been read, from when it `began`."""
        number = next(self._numbers)
        known = parent if TRACEPARENT.fullmatch(parent) else ""
        now = time.monotonic()
        call = TracedCall(number, request_id(id), model, version, rows, known, now, time.time() - now, dims=dims)
        if began is not None:
            call.began, call.read = began, now
        self._open[number] = call
        try:
            yield call
            call.outcome = "answered"
        except BaseException as error:
            call.outcome = "cancelled" if isinstance(error, asyncio.CancelledError) else type(error).__name__
            raise
        finally:
            call.ended = time.monotonic()
            if self._collecting is None or self._collecting.done():
                self._collecting = asyncio.create_task(self._collect())

    def last(self) -> list[dict[str, object]]:
        """Return the last calls that were traced, the newest first."""
        return [call.as_dict() for call in reversed(self._kept)]

    async def close(self) -> None:
        """Collect the traces of calls that have ended, and stop."""
        if self._collecting is not None:
            self._collecting.cancel()
            await asyncio.gather(self._collecting, return_exceptions=True)
        if self._open:
            await self._take()
            self._settle(time.monotonic() + self._patience)

    async def _collect(self) -> None:
        """Ask the engine for traces until all calls that have ended are complete."""
        while any(call.ended for call in self._open.values()):
            await asyncio.sleep(self._soon)
            await self._take()
            self._settle(time.monotonic())

    async def _take(self) -> None:
        try:
            traces = await self._fetch()
        except LatebindError as error:
            log.warning("the engine's data about traced requests is lost (%s)", error)
            return
        for trace in traces:
            call = self._open.get(trace.number)
            if call is not None:
                call.rows.append(trace)

    def _settle(self, now: float) -> None:
        """Keep and export the calls that are complete or have waited long enough."""
        for call in [call for call in self._open.values() if call.ended]:
            if call.complete or now - call.ended >= self._patience:
                del self._open[call.number]
                self._kept.append(call)
                if self._export is not None:
                    self._export(call)
