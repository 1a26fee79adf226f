"""Lookups aside: learned caches asked on another thread while their network runs on (GATI, section 6)."""

import logging
from collections import deque
from collections.abc import Callable, Mapping
from threading import Condition, Thread
from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from latebind.domain.actions import Run
from latebind.domain.events import Exited
from latebind.engine.failures import Failures
from latebind.engine.owners import Owners
from latebind.engine.slots import ModelSlots
from latebind.learned.lookup import Lookup
from latebind.program.backends import NotResident

logger = logging.getLogger(__name__)

# How many lookups of one worker wait for the one that runs. Where lookups are slower than stages, the oldest gives way:
# its network is the furthest on, so an answer would save it the least.
MOST_WAITING: Final = 2

Report = Callable[[Exited], None]


class Asked(NamedTuple):
    """A lookup, of this `version` of the learned caches, of an activation `(B, ...)` behind `action.stage`."""

    lookup: Lookup
    version: int
    action: Run
    activation: Tensor


class Aside:
    """The lookups of one worker, performed in order, on a thread of their own once it is started.

    `slots` are those of each model.
    """

    def __init__(self, owners: Owners, slots: Mapping[str, ModelSlots]) -> None:
        self._owners = owners
        self._slots = slots
        self._failures = Failures(logger)
        self._waiting: deque[Asked] = deque(maxlen=MOST_WAITING)
        self._changed = Condition()  # guards `_waiting` and `_closed`
        self._closed = False
        self._thread: Thread | None = None

    def start(self, report: Report) -> None:
        """Perform lookups as they are asked for, until this is closed; call `report` with the requests answered."""
        self._thread = Thread(target=self._serve, args=(report,), name="lookups", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Return when the lookup under way has ended; those that wait are dropped."""
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def ask(self, lookup: Lookup, version: int, action: Run, activation: Tensor) -> None:
        """Queue a lookup of the activation `(B, ...)` behind `action.stage`; nobody else may change the activation.

        `version` is what the lookup is of.
        """
        with self._changed:
            self._waiting.append(Asked(lookup, version, action, activation))
            self._changed.notify()

    def _serve(self, report: Report) -> None:
        """Root of the thread: if a lookup fails, the network answers."""
        while (asked := self._next()) is not None:
            try:
                with torch.inference_mode():
                    exited = self.perform(asked)
                if exited is not None:
                    report(exited)
            except NotResident:  # the lookup was evicted from memory while it waited for its turn
                continue
            except Exception as error:
                what = f"a lookup of {asked.action.model} behind stage {asked.action.stage}"
                self._failures.log(what, error, ": the network answers")

    def _next(self) -> Asked | None:
        """Wait for a lookup that is of use; None once this is closed."""
        with self._changed:
            while not self._closed:
                if (asked := self.take()) is not None:
                    return asked
                self._changed.wait()
        return None

    def take(self) -> Asked | None:
        """Return the next lookup for a request without an answer; those that nobody waits for are dropped."""
        while self._waiting:
            asked = self._waiting.popleft()
            if self._owners.any_unanswered(asked.action.requests):
                return asked
        return None

    def perform(self, asked: Asked) -> Exited | None:
        """Look up, and answer the requests that hit and still have no answer; return who they are, if any."""
        action = asked.action
        answers, hits = asked.lookup(asked.activation)
        slots = self._slots[action.model]
        with self._owners.answering(action.requests, np.flatnonzero(hits).tolist()) as places:
            for place in places:
                slots.outputs[0][action.slots[place]] = answers[place]
                slots.versions[action.slots[place]] = asked.version
        answered = tuple([action.requests[place] for place in places])
        return Exited(action.worker, action.stage, answered) if answered else None
