"""Lookups aside: learned caches asked on another thread while their network runs on (GATI, section 6)."""

import logging
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Lock

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from latebind.domain.actions import Run
from latebind.domain.events import Exited
from latebind.engine.unanswered import Unanswered
from latebind.learned.head import Floats
from latebind.learned.lookup import Lookup
from latebind.program.backends import NotResident

logger = logging.getLogger(__name__)

Report = Callable[[Exited], None]


def _to_nobody(_event: Exited) -> None:
    """Ignore the event: there is no scheduler to report to yet."""


class Aside:
    """One thread that performs the lookups of one worker, in order.

    Each request is answered once: here or by its network.

    `answers` are the rows of outputs by model, one for each slot. `report` is called with requests answered here.
    """

    def __init__(self, answers: Mapping[str, NDArray[np.generic]]) -> None:
        self.report: Report = _to_nobody
        self._answers = answers
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="lookups")
        self._answering = Lock()  # guards `_unanswered`, and the output rows of the requests in it
        self._unanswered = Unanswered()

    def close(self) -> None:
        """Return when the last lookup has ended."""
        self._thread.shutdown()

    def begin(self, action: Run) -> None:
        """Register the requests that begin; earlier owners of their slots have ended."""
        with self._answering:
            self._unanswered.begin(action)

    def ask(self, lookup: Lookup, action: Run, activation: Tensor) -> None:
        """Queue a lookup of the activation `(B, ...)` behind `action.stage`; nobody else may change the activation."""
        self._thread.submit(self._look_up, lookup, action, activation)

    @contextmanager
    def ending(self, action: Run) -> Iterator[list[int]]:
        """Yield the places of requests that the network has to answer; lookups answer none of the batch after that."""
        with self._answering:
            yield [place for place in range(len(action.requests)) if self._unanswered.take(action, place)]

    def _look_up(self, lookup: Lookup, action: Run, activation: Tensor) -> None:
        """Root of the thread's work: if a lookup fails, that is logged, and the network answers."""
        try:
            with torch.inference_mode():
                self._answer(action, *lookup(activation))
        except NotResident:  # the lookup was evicted from memory while it waited for its turn
            return
        except Exception:
            logger.exception("a lookup of %s failed behind stage %d: the network answers", action.model, action.stage)

    def _answer(self, action: Run, answers: Floats, hits: NDArray[np.bool_]) -> None:
        rows, exited = self._answers[action.model], []
        with self._answering:
            for place in np.flatnonzero(hits).tolist():
                if self._unanswered.take(action, place):
                    rows[action.slots[place]] = answers[place]
                    exited.append(action.requests[place])
        if exited:
            self.report(Exited(action.worker, action.stage, tuple(exited)))
