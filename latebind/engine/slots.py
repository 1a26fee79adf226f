"""The memory that frontend and engine share, row by row ("slots"), and which process may write to a slot when.

The slot of a request passes through the hands of both processes. Each keeps the part of the record that it decides on:

    frontend (`claim.Pool`)   FREE -> FILLING -> READY -> ANSWERED -> FREE     TRANSITIONS has all moves
    engine (`Owners`)                             |  NOBODY -> LOOKUP or NETWORK, whichever answers first (MAY_ANSWER)

While a slot is FILLING, the call that claimed it writes the inputs. While it is READY (or ABANDONED: its call has
gone), the engine alone writes to it, on behalf of one request, and the first answer counts. The engine forgets the
request before the frontend hears of its end, and so before the slot can have another owner: no late lookup writes to
it.

Behind a model's own slots lie the rows of query steps (`domain.query.lay_out`), which belong to the slot of their
query. With each answer of a model that has learned caches, the worker notes there which version of them it used: what
was adopted between a request and its reply must not be blamed for it.
"""

import mmap
import os
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from math import prod
from threading import Lock
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from latebind.domain.actions import Run
from latebind.domain.model import ModelSpec, TensorSpec

ALIGNMENT = 64
VERSION = TensorSpec("version", "int32", ())  # of the learned caches that answered
Rows: TypeAlias = NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class ModelSlots:
    """The slots of one model: arrays `(slots, *shape)`, in the order of its inputs and outputs.

    `versions`, `(slots,) int32`, is the version of the learned caches that each answer was given by, as a number
    (`adaptation.controller.number_of`); it has no slots where the model has no learned caches.
    """

    inputs: tuple[Rows, ...]
    outputs: tuple[Rows, ...]
    versions: Rows = field(default_factory=lambda: np.zeros(0, np.int32))

    def first(self, count: int) -> "ModelSlots":
        """Return the first `count` slots."""
        inputs, outputs = (tuple([rows[:count] for rows in each]) for each in (self.inputs, self.outputs))
        return ModelSlots(inputs, outputs, self.versions[:count])


class SlotMemory:
    """Maps the shared file `fd` as the slots of `models`; `rows` gives the number of rows of each model by name.

    The file must be large enough (`file_bytes`). Both processes see the same rows if they pass the same models in the
    same order. `whole` is the whole memory as bytes. `owners` says in the engine which request
    has which slot while it runs.
    """

    def __init__(self, fd: int, models: Sequence[ModelSpec], rows: Mapping[str, int]) -> None:
        self._map = mmap.mmap(fd, file_bytes(models, rows))
        self.whole = np.frombuffer(self._map, np.uint8)
        self.owners = Owners()
        self._offset = 0
        self.models = tuple(
            ModelSlots(
                tuple(self._rows(tensor, rows[spec.name]) for tensor in spec.inputs),
                tuple(self._rows(tensor, rows[spec.name]) for tensor in spec.outputs),
                self._rows(VERSION, rows[spec.name] if spec.lookups else 0),
            )
            for spec in models
        )
        self.by_name = {spec.name: slots for spec, slots in zip(models, self.models, strict=True)}

    def _rows(self, tensor: TensorSpec, slots: int) -> Rows:
        count = slots * prod(tensor.shape)
        rows = np.frombuffer(self._map, np.dtype(tensor.dtype), count, self._offset)
        self._offset += _aligned(slots * tensor.row_bytes)
        return rows.reshape(slots, *tensor.shape)


def file_bytes(models: Sequence[ModelSpec], rows: Mapping[str, int]) -> int:
    """Return the size of the shared file in bytes, at least one page.

    Pages are allocated when they are first written to, and stay allocated.
    """
    tensors = [(rows[spec.name], tensor) for spec in models for tensor in (*spec.inputs, *spec.outputs)]
    tensors += [(rows[spec.name], VERSION) for spec in models if spec.lookups]
    return max(mmap.PAGESIZE, sum(_aligned(count * tensor.row_bytes) for count, tensor in tensors))


def create_file() -> int:
    """Return the descriptor of an empty, nameless file in memory; it vanishes when the last process closes it."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("latebind-slots")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


class By(IntEnum):
    """What answers a request. The first answer counts."""

    NOBODY = 0
    LOOKUP = 1
    NETWORK = 2


MAY_ANSWER: Final = {
    By.LOOKUP: (By.NOBODY,),  # each request at most once, also where two lookups run aside
    By.NETWORK: (By.NOBODY, By.NETWORK),  # again, if the last stage raised for others of its batch
}


class Owner:
    """What the engine knows of one request that runs: its slot, the output it goes on from, and what answers it.

    `activation` is a `worker.Batch`; the frontend maps slots too, and imports no torch. The slot goes to `ended`, if
    there is such a queue, when the request ends: a decoder frees its row.
    """

    __slots__ = ("activation", "answered", "ended", "slot")

    def __init__(self, slot: int, ended: deque[int] | None) -> None:
        self.slot = slot
        self.activation: object | None = None
        self.answered = By.NOBODY
        self.ended = ended


class Owners:
    """The requests that run in one engine, by number; each number is used once. From any thread.

    A request owns its slot from its first stage until the scheduler ends it. From then on nothing writes to the slot on
    its behalf, and what was kept for the request is gone: its activation lies in the record.
    """

    def __init__(self) -> None:
        self._live: dict[int, Owner] = {}
        self._answering = Lock()  # held where a lookup writes to slots, and where a request ends

    def __len__(self) -> int:
        return len(self._live)

    def begin(self, action: Run, ended: deque[int] | None = None) -> None:
        """Register the requests of a first stage, also when it runs again."""
        for request, slot in zip(action.requests, action.slots, strict=True):
            self._live[request] = Owner(slot, ended)

    def end(self, request: int) -> None:
        """Forget a request, if it has begun. On return nothing writes to its slot and nothing is kept for it."""
        if request not in self._live:  # it has not begun
            return
        with self._answering:
            owner = self._live.pop(request)
        if owner.ended is not None:
            owner.ended.append(owner.slot)

    def keep(self, requests: Iterable[int], activation: object) -> None:
        """Keep the activation that these requests go on from; of those that have ended nothing is kept."""
        for request in requests:
            owner = self._live.get(request)
            if owner is not None:
                owner.activation = activation

    def activation(self, request: int) -> object | None:
        """Return what a request goes on from; None if it has ended or nothing is kept."""
        owner = self._live.get(request)
        return None if owner is None else owner.activation

    def any_unanswered(self, requests: Iterable[int]) -> bool:
        """Return whether a lookup could still answer one of these requests."""
        owners = [self._live.get(request) for request in requests]
        return any(owner is not None and owner.answered is By.NOBODY for owner in owners)

    @contextmanager
    def answering(self, by: By, requests: Sequence[int], places: Iterable[int]) -> Iterator[list[int]]:
        """Yield which of these places are to be answered, as `MAY_ANSWER` says; within, none of their requests can end.

        Lookups write within the context. The network need not: the scheduler ends no request of a batch that runs
        unless a lookup has answered it, and from here on none does.
        """
        with self._answering:
            found = list[int]()
            for place in places:
                owner = self._live.get(requests[place])
                if owner is not None and owner.answered in MAY_ANSWER[by]:
                    owner.answered = by
                    found.append(place)
            yield found
