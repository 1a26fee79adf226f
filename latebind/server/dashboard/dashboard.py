"""What the page asks for: its files, current figures with their recent history, and pictures of the workers."""

from collections.abc import Mapping

import msgspec

from latebind import __version__
from latebind.domain.model import ModelSpec
from latebind.server.dashboard.files import SAFE, Files
from latebind.server.dashboard.watch import Watch
from latebind.server.gateway import IndexEntry
from latebind.server.rest.request import JSON, Reply
from latebind.server.service import Service

PAGE = "index.html"
FRESH = (*JSON, (b"cache-control", b"no-store"), *SAFE)


class Dashboard:
    """The dashboard of one door."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._watch = Watch(service)
        self._files = Files()

    async def file(self, name: str = PAGE) -> Reply:
        """Return a file of the page. Raises `NotFound`."""
        return await self._files.reply(name)

    async def figures(self, since: int, replies: Mapping[int, int]) -> Reply:
        """Return all figures, and the rows of the history after number `since`; `replies` are counted by status."""
        await self._watch.look()
        service = self._service
        listed = {entry["name"]: entry for entry in service.index()}
        served = {spec.name: spec for spec in service.models()}
        told = {
            "server": {"version": __version__, "live": service.live(), "ready": service.ready()},
            "models": [_described(listed.get(name), served.get(name)) for name in sorted({*listed, *served})],
            "snapshot": self._watch.snapshot,
            "adaptation": service.adaptation(),
            "replies": {str(status): count for status, count in replies.items()},
            "rows": self._watch.history.since(since),
        }
        return Reply(msgspec.json.encode(told), FRESH)

    async def picture(self) -> Reply:
        """Return what the engine is doing. Raises `Unavailable`."""
        return Reply(msgspec.json.encode(await self._watch.picture()), FRESH)

    async def close(self) -> None:
        """Stop watching."""
        await self._watch.close()


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
