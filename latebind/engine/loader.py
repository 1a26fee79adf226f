"""Brings pieces of models into memory and lets them go, on a thread beside the workers: one after another, as told."""

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
from latebind.program.pieces import Piece, trim_heap
from latebind.repository.pages import Brought

logger = logging.getLogger(__name__)

TRIMS_EVERY = 1.0  # seconds at least: the next batch has to have its pages anew


class Loader:
    """Performs `Load` and `Evict` in the order in which it is told of them, once it has been started.

    `pieces` are those of each model, numbered as its `Footprint` counts them. Behind what goes, what the C library has
    kept of activations goes too: of batches of several sizes the workers' arenas keep more than one batch takes.
    """

    def __init__(self, pieces: Mapping[str, Sequence[Piece]]) -> None:
        self._pieces = pieces
        self._told: SimpleQueue[Load | Evict | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._trimmed = -inf  # when what the C library keeps was last given back

    def start(self, report: Callable[[Loaded | LoadFailed], None]) -> None:
        """Begin; `report` hears, on the thread, how each load ended."""
        self._thread = Thread(target=self._work, args=(report,), name="loader")
        self._thread.start()

    def perform(self, action: Load | Evict) -> None:
        """Have an action performed behind those before it. From any thread."""
        self._told.put(action)

    def close(self) -> None:
        """Return when all that was told has been performed; nothing may be told after that."""
        self._told.put(None)
        if self._thread is not None:
            self._thread.join()

    def _work(self, report: Callable[[Loaded | LoadFailed], None]) -> None:
        """Root of the thread. Whatever goes wrong fails those who wait for this model and nobody else."""
        while (action := self._told.get()) is not None:
            event: Loaded | LoadFailed | None = None
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
            if event is not None:
                report(event)

    def _load(self, action: Load) -> Loaded:
        """Load all pieces or none of them."""
        begun, brought = time.monotonic(), Brought()
        pieces = [self._pieces[action.model][number] for number in action.pieces]
        with ExitStack() as loaded:
            for piece in pieces:
                brought += piece.load()
                loaded.callback(piece.unload)
            loaded.pop_all()  # nothing went wrong: they stay
        seconds, sizes = time.monotonic() - begun, tuple([piece.size for piece in pieces])
        return Loaded(action.model, action.pieces, seconds, sizes, brought.size, brought.cached)

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
