"""What the dashboard shows: its files, current figures with their recent history, and pictures of the workers.

While anybody looks at the page, however many look, a snapshot of the engine is taken once a second.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

import msgspec
from msgspec.structs import astuple

from latebind import __version__
from latebind.domain.errors import LatebindError, NotFound
from latebind.domain.model import ModelSpec
from latebind.domain.picture import Picture
from latebind.server.gateway import IndexEntry, ModelMetrics, Snapshot
from latebind.server.rest.messages import JSON, Headers, Reply
from latebind.server.service import Service

EVERY = 1.0  # seconds from one snapshot to the next
LINGER = 300.0  # seconds after the last look until no more snapshots are taken
PATIENCE = 2.0  # seconds that the engine has to answer when the frontend closes
SOONEST = 0.1  # seconds from one picture to the next
KEPT_SECONDS = 300.0  # how long rows are kept
REFUSED = ("refused_full", "refused_late", "refused_loading", "not_loaded")
LOST = ("expired", "failed")
TYPES = {
    ".html": b"text/html; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
}
PLOTLY = "plotly.js"
POLICY = (  # inline styles are allowed because plotly writes some; they can fetch nothing from other sites
    b"default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    b"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SAFE: Headers = (
    (b"content-security-policy", POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
)
AGAIN = (b"cache-control", b"no-cache")
FOR_AN_HOUR = (b"cache-control", b"private, max-age=3600")
PAGE = "index.html"
FRESH = (*JSON, (b"cache-control", b"no-store"), *SAFE)

logger = logging.getLogger(__name__)


class Dashboard:
    """The dashboard of one frontend: its files, figures with their recent history, and pictures, the same for all.

    A snapshot is taken `every` so many seconds until nobody has looked for `linger` seconds. The engine has `patience`
    seconds to answer when the frontend closes.
    """

    def __init__(
        self, service: Service, *, every: float = EVERY, linger: float = LINGER, patience: float = PATIENCE
    ) -> None:
        self.history = History()
        self.snapshot: Snapshot = {"models": {}}
        self.watching: asyncio.Task[None] | None = None  # None: no snapshots are taken, because nobody looks
        self._service = service
        self._every = every
        self._linger = linger
        self._patience = patience
        self._looked = 0.0
        self._seen = asyncio.Event()
        self._closed = asyncio.Event()
        self._drawing = asyncio.Lock()
        self._drawn = 0.0
        self._picture = Picture()
        self._files: dict[str, bytes] = {}  # read once, when the first is asked for

    async def file(self, name: str = PAGE) -> Reply:
        """Return a file of the page; no other path can be read. Raises `NotFound`."""
        if name == PLOTLY:
            return await _plotly()
        if not self._files:
            self._files = await asyncio.to_thread(_read)
        if name not in self._files:
            raise NotFound("there is no such file of the dashboard")
        kind = TYPES[Path(name).suffix]
        return Reply(self._files[name], ((b"content-type", kind), AGAIN, *SAFE))

    async def figures(self, since: int, replies: Mapping[int, int]) -> Reply:
        """Return all figures, and the rows of the history after number `since`; `replies` are counted by status."""
        await self.look()
        service = self._service
        listed = {entry["name"]: entry for entry in service.index()}
        served = {spec.name: spec for spec in service.models()}
        told = {
            "server": {"version": __version__, "live": service.live(), "ready": service.ready()},
            "models": [_described(listed.get(name), served.get(name)) for name in sorted({*listed, *served})],
            "snapshot": self.snapshot,
            "adaptation": service.adaptation(),
            "replies": {str(status): count for status, count in replies.items()},
            "rows": self.history.since(since),
        }
        return Reply(msgspec.json.encode(told), FRESH)

    async def picture(self) -> Reply:
        """Return what the engine is doing; calls at about the same time get the same picture. Raises `Unavailable`."""
        async with self._drawing:
            if time.monotonic() - self._drawn >= SOONEST:
                self._picture = await self._service.gateway.picture()
                self._drawn = time.monotonic()
            return Reply(msgspec.json.encode(self._picture), FRESH)

    async def look(self) -> None:
        """Return once the snapshot is at most about a second old, and keep taking snapshots for a while."""
        self._looked = time.monotonic()
        if self._closed.is_set():
            return
        if self.watching is None:
            self.watching = asyncio.create_task(self._watch())
        await self._seen.wait()

    async def close(self) -> None:
        """Stop taking snapshots, but wait a while for one that was asked for.

        Otherwise its reply would be taken for that to a later question.
        """
        self._closed.set()
        if self.watching is not None:
            await asyncio.wait({self.watching}, timeout=self._patience)
        if self.watching is not None:
            self.watching.cancel()

    async def _watch(self) -> None:
        """Take snapshots while anybody looks; without an engine, keep the last one. The history only has new ones."""
        self.history.pause()
        try:
            while not self._closed.is_set() and time.monotonic() - self._looked < self._linger:
                try:
                    self.snapshot = await self._service.gateway.metrics()
                except LatebindError as error:
                    logger.debug("no snapshot for the dashboard: %s", error)
                else:
                    if "age" not in self.snapshot:
                        self.history.add(self.snapshot, time.time())
                self._seen.set()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._closed.wait(), self._every)
        finally:
            self._seen.set()  # so that nobody waits for a watch that has failed
            self._seen = asyncio.Event()
            self.watching = None


def _described(entry: IndexEntry | None, spec: ModelSpec | None) -> dict[str, object]:
    """Return what the page shows of a model of the repository; if it is served, with its stages and steps."""
    if spec is None:
        return {**(entry or {}), "stages": 0, "lookups": (), "steps": ()}
    state, reason = ("READY", "") if entry is None else (entry["state"], entry["reason"])
    return {
        "name": spec.name,
        "version": spec.version,
        "state": state,
        "reason": reason,
        "stages": spec.stages,
        "lookups": spec.lookups,
        "steps": [{"name": step.name, "models": step.models, "after": step.after} for step in spec.steps],
    }


class Change(msgspec.Struct, frozen=True, array_like=True):
    """How a model's requests ended in the time of a row. `latency` counts answers in the buckets of its histogram.

    `pending` is how many requests were accepted and had not ended at the end of the row.
    """

    answered: int
    refused: int
    lost: int
    cancelled: int
    pending: int
    latency: list[int]


class Row(msgspec.Struct, frozen=True):
    """What happened in the `seconds` before `at` (Unix time). Models without any change are left out."""

    number: int
    at: float
    seconds: float
    models: dict[str, Change]


class History:
    """Takes snapshots in order of time and keeps a row for each, for `KEPT_SECONDS`."""

    def __init__(self) -> None:
        self._rows: deque[Row] = deque()
        self._number = 0
        self._before: tuple[float, dict[str, ModelMetrics]] | None = None

    def add(self, snapshot: Snapshot, at: float) -> None:
        """Add a snapshot. The first one, and the first after a pause, only marks the beginning of the next row."""
        models = snapshot["models"]
        if self._before is not None and at > self._before[0]:
            then, before = self._before
            changes = {name: _change(figures, before.get(name)) for name, figures in models.items()}
            self._number += 1
            told = {name: change for name, change in changes.items() if any(astuple(change)[:-1])}
            self._rows.append(Row(self._number, at, at - then, told))
        self._before = at, models
        while self._rows and not at - KEPT_SECONDS <= self._rows[0].at <= at:  # too old, or the clock was set back
            self._rows.popleft()

    def pause(self) -> None:
        """Begin anew with the next snapshot: what happens until then appears in no row."""
        self._before = None

    def since(self, number: int) -> list[Row]:
        """Return the rows after the one with this number; all rows for 0 or for an unknown number."""
        if number > self._number:
            number = 0
        return [row for row in self._rows if row.number > number]


def _change(now: ModelMetrics, before: ModelMetrics | None) -> Change:
    """Return the change since `before`; everything if the counts have begun anew, as those of a new engine do."""
    ended, latency = now["requests"], now["latency_seconds"]["counts"]
    if before is not None and before["latency_seconds"]["count"] <= now["latency_seconds"]["count"]:
        were, earlier = before["requests"], before["latency_seconds"]["counts"]
        ended = {outcome: max(0, count - were.get(outcome, 0)) for outcome, count in ended.items()}
        latency = [max(0, count - old) for count, old in zip(latency, earlier, strict=True)]
    return Change(
        ended["answered"],
        sum(ended[outcome] for outcome in REFUSED),
        sum(ended[outcome] for outcome in LOST),
        ended["cancelled"],
        now["pending"],
        list(latency),
    )


def _read() -> dict[str, bytes]:
    found = {}
    for file in files(__package__).joinpath("page").iterdir():
        if Path(file.name).suffix in TYPES:
            found[file.name] = file.read_bytes()
    return found


async def _plotly() -> Reply:
    """Return plotly's script without importing plotly; the page works without it where it is not installed."""
    spec = find_spec("plotly")
    if spec is None or spec.origin is None:
        raise NotFound("charts need plotly: pip install 'latebind[report]'")
    file = Path(spec.origin).parent / "package_data" / "plotly.min.js"
    try:
        script = await asyncio.to_thread(file.read_bytes)
    except OSError:
        raise NotFound("the plotly that is installed has no script: pip install 'latebind[report]'") from None
    return Reply(script, ((b"content-type", TYPES[".js"]), FOR_AN_HOUR, *SAFE))
