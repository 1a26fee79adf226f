"""Changes what is served while serving: loads and unloads models and replaces versions, one change at a time.

Each change starts a new generation (`engines`). If a model turns out to be faulty, what is served stays as it is, and
the index gives the reason.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from functools import partial

from latebind.domain.errors import InvalidRequest, LatebindError, NotFound, RepositoryError
from latebind.domain.split import BESIDE, Chooser, Split
from latebind.domain.wording import instead
from latebind.engine.engines import Engines, EngineStartFailed
from latebind.repository.listing import Fingerprint, Selection, Serving
from latebind.server.gateway import IndexEntry

logger = logging.getLogger(__name__)


class _CannotServe(RepositoryError):
    """A change that no engine can serve. `blamed` are the new models and queries that prevent it, or all if unknown."""

    def __init__(self, reason: str, blamed: frozenset[str]) -> None:
        super().__init__(reason)
        self.blamed = blamed


class Catalogue:
    """The models of a repository. `engines` serves some of them, at first the whole selection."""

    def __init__(self, engines: Engines, selection: Selection) -> None:
        self._engines = engines
        self._selection = selection
        self._changing = asyncio.Lock()
        self._asked = asyncio.Event()
        self._loading: set[str] = set()
        self._reasons: dict[str, str] = {}  # why a model is not served, or not its newest version
        self._unloaded: set[str] = set()  # on request, so that `reload` does not bring them back
        self._pinned: dict[str, str] = {}  # versions that were loaded on request
        self._fingerprints = _fingerprints(engines.serving)
        self._refused: dict[str, Fingerprint | None] = {}  # what no engine could serve, in the state it was in
        self.splits = {model: Chooser(split) for model, split in selection.splits.items()}

    def index(self) -> list[IndexEntry]:
        """Return every model and query, by name."""
        engines, found = self._engines, []
        for name in sorted({*engines.models, *engines.unavailable, *self._reasons, *self._loading, *self._unloaded}):
            served = engines.models.get(name)
            reason = engines.unavailable.get(name) or self._reasons.get(name) or engines.too_large.get(name, "")
            state = "READY"
            if name in self._loading:
                state = "LOADING"
            elif served is None:
                state, reason = "UNAVAILABLE", reason or "unloaded"
            version = "" if served is None else served.version
            found.append(IndexEntry(name=name, version=version, state=state, reason=reason))
        return found

    def unavailable(self, name: str) -> str | None:
        """Return why a model that should be served is not; None for others."""
        engines = self._engines
        return engines.unavailable.get(name) or (None if name in engines.models else self._reasons.get(name))

    async def begin(self, first: Serving, wrong: Mapping[str, LatebindError | OSError]) -> None:
        """Serve all of `first` that is not `wrong` and that an engine can serve; `index` gives the reason for the rest.

        Raises `RepositoryError` if there is nothing that can be served.
        """
        async with self._changing:
            for name, error in wrong.items():
                self._note(name, error)
            await self._serve(self._left(first, wrong))
        if not self._engines.serving.names:
            reasons = [f"{name}: {reason}" for name, reason in self._reasons.items()]
            raise RepositoryError("; ".join(["there is no model that can be served", *reasons]))

    async def load(self, name: str, version: str | None = None) -> None:
        """Serve the newest version of a model, or the given one, without interrupting calls.

        Raises `NotFound`, and `RepositoryError` for a faulty model; then what was served stays.
        """
        async with self._changing:
            split = self._selection.splits.get(name)
            if split is not None and version is None:
                await self._serve_split(split)
                return
            found = await self._found(name, partial(self._selection.fresh, name, version))
            beside = self._beside(name)
            await self._change(self._engines.serving.without(beside).with_(found), [name])
            self._unsplit(name)
            self._unloaded -= {*found.names}
            self._pinned.pop(name, None)
            if version is not None:
                self._pinned[name] = version

    async def split(self, split: Split) -> None:
        """Serve several versions of a model, or one, with these shares, without interrupting calls.

        If the same versions are served already, only the shares change, at once. Raises what `load` raises.
        """
        async with self._changing:
            await self._serve_split(split)

    async def _serve_split(self, split: Split) -> None:
        """Serve what a split names; the caller holds the lock of changes."""
        before = self._selection.splits.get(split.model)
        split = split if before is None else split.as_served(before)
        found = await self._found(split.model, partial(self._selection.versions_of, split))
        serving = self._engines.serving
        gone = [name for name in self._beside(split.model) if name not in found.models]
        served = {name: serving.models.get(name) for name in found.models}
        if gone or served != found.models:
            await self._change(serving.without(gone).with_(found), [*found.models])
        self._unsplit(split.model)
        self._unloaded.discard(split.model)
        if len(split.versions) == 1:
            self._pinned[split.model] = split.main
            return
        self._pinned.pop(split.model, None)
        self._selection.splits[split.model] = split
        self.splits[split.model] = Chooser(split)

    def _unsplit(self, model: str) -> None:
        self._selection.splits.pop(model, None)
        self.splits.pop(model, None)

    def _beside(self, model: str) -> list[str]:
        """Return the names under which other versions of a model than its main one are served."""
        return [name for name in self._engines.serving.models if name.startswith(f"{model}{BESIDE}")]

    async def _found(self, name: str, find: Callable[[], Serving]) -> Serving:
        """Return what `find` finds; raises `NotFound`, and `RepositoryError`, which is noted, for what is faulty."""
        try:
            return await asyncio.to_thread(find)
        except NotFound:
            raise
        except (LatebindError, OSError) as error:
            raise RepositoryError(self._note(name, error)) from error

    async def unload(self, name: str, *, dependents: bool = False) -> None:
        """Stop serving a model, and with `dependents` the queries that need it.

        Raises `NotFound`, and `InvalidRequest` if a query needs the model.
        """
        async with self._changing:
            serving = self._engines.serving
            if name not in serving.names:
                raise NotFound(f"no model {name!r:.140} is served{instead(name, serving.names)}")
            queries = serving.needing([name])
            if queries and not dependents:
                needing = f"{queries[0]} needs" if len(queries) == 1 else f"{', '.join(queries)} need"
                raise InvalidRequest(
                    f"{needing} {name}: unload what needs it first, or set unload_dependents to unload all of them"
                )
            await self._change(serving.without([name, *self._beside(name)]), [])
            self._unsplit(name)
            self._unloaded |= {name, *queries}

    async def reload(self) -> list[str]:
        """Read the repository again: serve new models and versions, stop serving what has gone. Return what changed.

        What was unloaded on request stays unloaded, and what was loaded in a requested version keeps it. Faulty models
        are left out. What was noted of models that have gone from the repository is forgotten.
        """
        async with self._changing:
            try:
                names = await asyncio.to_thread(self._selection.names)
            except (LatebindError, OSError) as error:
                logger.error("the repository cannot be read: %s", error)
                return []
            await self._forget_gone(names)
            fingerprints = _fingerprints(self._engines.serving)
            gone = {name for name, seen in fingerprints.items() if seen is None and name not in names}
            found = await self._changed([name for name in names if name not in self._unloaded])
            return await self._serve(found, gone)

    async def _serve(self, found: Serving, gone: Collection[str] = ()) -> list[str]:
        """Serve what is new, except what no engine can serve, and no longer what has gone. Return what changed."""
        while gone or found.names:
            try:
                await self._change(self._engines.serving.without(gone).with_(found), found.names)
                break
            except _CannotServe as error:
                logger.error("%s", error)
                if not error.blamed:
                    return []
                found = self._left(found, error.blamed)
        return sorted({*gone, *found.names})

    def _left(self, found: Serving, faulty: Collection[str]) -> Serving:
        """Return what was found without what is faulty and without queries that need it; note the reason for those."""
        for query in found.needing(faulty):
            if query not in faulty:
                needed = ", ".join(model for model in found.queries[query].models if model in faulty)
                self._note(query, RepositoryError(f"it needs {needed}, which cannot be served"))
                self._refused[query] = found.fingerprint_of(query)  # it is tried again when one of these is
        return found.without(faulty)

    def look(self) -> None:
        """Make `follow` read the repository now."""
        self._asked.set()

    async def follow(self, seconds: float) -> None:
        """Reload the repository when asked to, and every `seconds` unless that is 0, until cancelled."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds or None):
                    await self._asked.wait()
            asked = self._asked.is_set()
            self._asked.clear()
            try:
                changed = await self.reload()
            except Exception:  # the root of this task: the next attempt may succeed
                logger.exception("the repository could not be read")
                continue
            if changed or asked:
                logger.info("the repository was read again: %s", ", ".join(changed) or "nothing has changed")

    async def _forget_gone(self, names: Collection[str]) -> None:
        """Forget what was noted of models that have gone from the repository, which has these `names`."""
        for name in {*self._reasons, *self._unloaded, *self._pinned}.difference(names):
            try:  # it may have been loaded by name although it is not among those to serve
                await asyncio.to_thread(self._selection.find, name)
            except NotFound:
                self._reasons.pop(name, None)
                self._refused.pop(name, None)
                self._unloaded.discard(name)
                self._pinned.pop(name, None)
            except (LatebindError, OSError):
                pass  # it is there, and faulty

    async def _changed(self, names: Iterable[str]) -> Serving:
        """Return those of the named models that are new or replaced, and complete."""
        found = Serving()
        for name in names:
            try:
                newest = await asyncio.to_thread(self._selection.find, name, self._pinned.get(name))
            except (LatebindError, OSError) as error:
                self._note(name, error)
                continue
            wanted = newest.without([model for model in newest.models if model != name and model in self._pinned])
            new = [
                each
                for each, seen in _fingerprints(wanted).items()
                if seen not in (self._fingerprints.get(each), self._refused.get(each))
            ]
            found = found.with_(newest.only(new))
        return found

    async def _change(self, serving: Serving, names: Iterable[str]) -> None:
        """Serve this, in which `names` are new. Raises `_CannotServe`."""
        wanted = set(names)
        self._loading |= wanted
        try:
            await self._engines.change(serving, tried=wanted)
        except EngineStartFailed as error:
            blamed = frozenset(wanted.intersection(error.models) or wanted)
            for name in blamed:
                self._note(name, error)
                self._refused[name] = serving.fingerprint_of(name)
            raise _CannotServe(self._selection.explain(error), blamed) from error
        finally:
            self._loading -= wanted
        for name in wanted:
            self._reasons.pop(name, None)
        self._fingerprints = _fingerprints(self._engines.serving)

    def _note(self, name: str, error: LatebindError | OSError) -> str:
        """Record the reason for the index, and log it unless it is the one already recorded."""
        reason = self._selection.explain(error)
        if self._reasons.get(name) != reason:
            what = "stays as it is" if name in self._engines.serving.names else "is not served"
            logger.error("%s %s: %s", name, what, error)
        self._reasons[name] = reason
        return reason


def _fingerprints(serving: Serving) -> dict[str, Fingerprint | None]:
    """Return the fingerprint of each model and query, which changes when it is replaced."""
    return {name: serving.fingerprint_of(name) for name in serving.names}
