"""The dashboard: its files, figures, troubles and pictures of the workers, shared by all pages that are open."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from importlib.resources import files
from importlib.util import find_spec
from math import inf
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from latebind import __version__
from latebind.domain.errors import LatebindError, NotFound
from latebind.domain.model import ModelSpec
from latebind.server.gateway import IndexEntry
from latebind.server.rest.messages import JSON, Headers, Reply
from latebind.server.service import Service
from latebind.server.troubles import Minute, ServerState, troubles

T = TypeVar("T")

FIGURES_EVERY, PICTURES_EVERY = 0.5, 0.1  # seconds from one to the next; a page asks for figures once a second
LOOK_EVERY = 10.0  # seconds, while no page is open: one opened later shows what went wrong in the last minute
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


class Shared(Generic[T]):
    """A value that the engine is asked for once in `every` seconds at most: all requests in between get the same."""

    def __init__(self, ask: Callable[[], Awaitable[T]], every: float) -> None:
        self.value: T | None = None
        self.at = 0.0  # when the engine sent it, in Unix time
        self._ask = ask
        self._every = every
        self._asked = -inf
        self._asking = asyncio.Lock()

    async def get(self) -> T:
        """Return it. Raises what asking raises."""
        async with self._asking:
            if self.value is None or time.monotonic() - self._asked >= self._every:
                self.value = await self._ask()
                self._asked, self.at = time.monotonic(), time.time()
            return self.value


class Dashboard:
    """The dashboard of one frontend: its files, figures, troubles and pictures. Pages keep the history of figures."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._snapshot = Shared(service.gateway.metrics, FIGURES_EVERY)
        self._picture = Shared(service.gateway.picture, PICTURES_EVERY)
        self._minute = Minute(time.monotonic())
        self._files: dict[str, bytes] = {}  # read once, when the first is asked for

    async def file(self, name: str = PAGE) -> Reply:
        """Return a file of the page; no other path can be read. Raises `NotFound`."""
        if name == PLOTLY:
            return await _plotly()
        if not self._files:
            self._files = await asyncio.to_thread(_read)
        if name not in self._files:
            raise NotFound("the dashboard has no such file")
        kind = TYPES[Path(name).suffix]
        return Reply(self._files[name], ((b"content-type", kind), AGAIN, *SAFE))

    async def follow(self, replies: Mapping[int, int]) -> None:
        """Take a state every `LOOK_EVERY` seconds, so that the next page has the last minute; until cancelled."""
        while True:
            with suppress(LatebindError):  # the engine has just ended
                await self._look(replies)
            await asyncio.sleep(LOOK_EVERY)

    async def _look(self, replies: Mapping[int, int]) -> ServerState:
        """Return the server's state; `replies` are counted by status. Raises `Unavailable`."""
        service, snapshot = self._service, await self._snapshot.get()
        counts = service.shadows.counts
        splits = [chooser.split for chooser in service.splits.values()]
        state = ServerState(
            time.monotonic(),
            snapshot,
            live=service.live(),
            ready=service.ready(),
            draining=service.draining,
            entries=service.entries(),
            turned_away=service.turned_away,
            replies=replies,
            adaptation=service.adaptation(),
            unwatched=service.unwatched(),
            shadows={(name := split.served[version]): counts(name) for split in splits for version in split.shadows},
        )
        self._minute.take(state)
        return state

    async def figures(self, replies: Mapping[int, int]) -> Reply:
        """Return all figures, the time that they are of, and what is wrong. Raises `Unavailable`."""
        service, state = self._service, await self._look(replies)
        listed = {entry["name"]: entry for entry in state.entries}
        served = {spec.name: spec for spec in service.models()}
        found = {
            "server": {"version": __version__, "live": state.live, "ready": state.ready},
            "troubles": troubles(state, self._minute),
            "minute": self._minute.summary(),
            "models": [_described(listed.get(name), served.get(name)) for name in sorted({*listed, *served})],
            "at": self._snapshot.at,
            "snapshot": state.snapshot,
            "adaptation": state.adaptation,
            "turned_away": state.turned_away,
        }
        return Reply(msgspec.json.encode(found), FRESH)

    async def picture(self) -> Reply:
        """Return what the engine is doing. Raises `Unavailable`."""
        return Reply(msgspec.json.encode(await self._picture.get()), FRESH)


def _described(entry: IndexEntry | None, spec: ModelSpec | None) -> dict[str, object]:
    """Return what the page shows of a model in the repository, with stages and steps if it is served."""
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
        raise NotFound("the installed plotly has no script: pip install 'latebind[report]'") from None
    return Reply(script, ((b"content-type", TYPES[".js"]), FOR_AN_HOUR, *SAFE))
