"""Loads pieces of models into memory and evicts them, on a thread of its own, one action after another."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from math import inf
from queue import SimpleQueue
from threading import Thread

from latebind.domain.actions import Evict, Load
from latebind.domain.errors import LatebindError
from latebind.domain.events import Loaded, LoadFailed
from latebind.engine.running import LOAD_SECONDS, LOADS, Running
from latebind.program.pieces import Piece, trim_heap
from latebind.repository.tensors import BytesRead

logger = logging.getLogger(__name__)

END_SECONDS = 10.0  # in which a load may end as the engine closes
TRIMS_EVERY = 1.0  # seconds at least: after a trim, the next batch has to allocate its pages again


class Loader:
    """Performs `Load` and `Evict` in the order in which they were given, once it has been started.

    `pieces` are those of each model, numbered as in its `Footprint`; models are in the order in which the engine has
    them, and `running` says which is being loaded. After an eviction, memory that the C library kept
    from activations is returned to the system too: for batches of several sizes, the workers' arenas keep more than one
    batch takes.
    """

    def __init__(self, pieces: Mapping[str, Sequence[Piece]], running: Running | None = None) -> None:
        self._pieces = pieces
        self._running = Running(0) if running is None else running
        self._numbers = {name: number for number, name in enumerate(pieces, 1)}
        self._actions: SimpleQueue[Load | Evict | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._trimmed = -inf  # when the heap was last trimmed

    def start(self, report: Callable[[Loaded | LoadFailed], None]) -> None:
        """Start the thread, which calls `report` with the outcome of each load."""
        self._thread = Thread(target=self._work, args=(report,), name="loader", daemon=True)
        self._thread.start()

    def perform(self, action: Load | Evict) -> None:
        """Queue an action. From any thread."""
        self._actions.put(action)

    def close(self) -> None:
        """Return when all queued actions have been performed, or one does not end; none may be queued after that."""
        self._actions.put(None)
        if self._thread is not None:
            self._thread.join(END_SECONDS)

    def _work(self, report: Callable[[Loaded | LoadFailed], None]) -> None:
        """Root of the thread. An error fails those who wait for this model and nobody else."""
        while (action := self._actions.get()) is not None:
            event: Loaded | LoadFailed | None = None
            self._running.begin(self._running.loader, self._numbers[action.model], LOADS, LOAD_SECONDS)
            try:
                if isinstance(action, Load):
                    event = self._load(action)
                else:
                    self._evict(action)
            except Exception as error:
                expected = isinstance(error, LatebindError | OSError | MemoryError)
                logger.error("%s: %s", action, error, exc_info=not expected)
                if isinstance(action, Load):
                    event = LoadFailed(action.model, action.pieces)
            self._running.rest(self._running.loader)
            if event is not None:
                report(event)

    def _load(self, action: Load) -> Loaded:
        """Load all of the pieces or none."""
        begun, read = time.monotonic(), BytesRead()
        pieces = [self._pieces[action.model][number] for number in action.pieces]
        with ExitStack() as loaded:
            for piece in pieces:
                read += piece.load()
                loaded.callback(piece.unload)
            loaded.pop_all()  # all have been loaded: keep them
        seconds, sizes = time.monotonic() - begun, tuple([piece.size for piece in pieces])
        return Loaded(action.model, action.pieces, seconds, sizes, read.size, read.cached)

    def _evict(self, action: Evict) -> None:
        pieces = self._pieces[action.model]
        for number in action.pieces:
            pieces[number].unload()
        if action.part is not None:
            number, stays = action.part
            pieces[number].trim(stays)
        if time.monotonic() - self._trimmed >= TRIMS_EVERY:
            trim_heap()
            self._trimmed = time.monotonic()
