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
from latebind.engine.slots import ModelSlots
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

    `slots` are those of each model. `report` is called with requests answered here.
    """

    def __init__(self, slots: Mapping[str, ModelSlots]) -> None:
        self.report: Report = _to_nobody
        self._slots = slots
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

    def ask(self, lookup: Lookup, version: int, action: Run, activation: Tensor) -> None:
        """Queue a lookup of the activation `(B, ...)` behind `action.stage`; nobody else may change the activation.

        `version` is what the lookup is of.
        """
        self._thread.submit(self._look_up, lookup, version, action, activation)

    @contextmanager
    def ending(self, action: Run) -> Iterator[list[int]]:
        """Yield the places of requests that the network has to answer; lookups answer none of the batch after that."""
        with self._answering:
            yield [place for place in range(len(action.requests)) if self._unanswered.take(action, place)]

    def _look_up(self, lookup: Lookup, version: int, action: Run, activation: Tensor) -> None:
        """Root of the thread's work: if a lookup fails, that is logged, and the network answers."""
        try:
            with torch.inference_mode():
                self._answer(version, action, *lookup(activation))
        except NotResident:  # the lookup was evicted from memory while it waited for its turn
            return
        except Exception:
            logger.exception("a lookup of %s failed behind stage %d: the network answers", action.model, action.stage)

    def _answer(self, version: int, action: Run, answers: Floats, hits: NDArray[np.bool_]) -> None:
        slots, exited = self._slots[action.model], []
        with self._answering:
            for place in np.flatnonzero(hits).tolist():
                if self._unanswered.take(action, place):
                    slots.outputs[0][action.slots[place]] = answers[place]
                    slots.versions[action.slots[place]] = version
                    exited.append(action.requests[place])
        if exited:
            self.report(Exited(action.worker, action.stage, tuple(exited)))
