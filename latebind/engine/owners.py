"""Who owns each slot while it runs: the one record that workers, lookups aside, activations and decoders share.

A request owns its slot from its first stage until the scheduler ends it; the driver calls `end` before the door hears
of that, and so before the slot can have another owner. From then on nothing writes to the slot on its behalf, and what
was kept for the request is gone: its activation lies in the record, and its decoder is told to free its row.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from threading import Lock

from latebind.domain.actions import Run


class By(IntEnum):
    """What answers a request. The first answer counts."""

    NOBODY = 0
    LOOKUP = 1
    NETWORK = 2


class Owner:
    """What is known of one request that runs: its slot, the output it goes on from, and what answers it.

    `activation` is an `activations.Batch`; the door maps slots too, and imports no torch.
    """

    __slots__ = ("activation", "answered", "ended", "slot")

    def __init__(self, slot: int, ended: deque[int] | None) -> None:
        self.slot = slot
        self.activation: object | None = None
        self.answered = By.NOBODY
        self.ended = ended


class Owners:
    """The requests that run in one engine, by number; each number is used once. From any thread."""

    def __init__(self) -> None:
        self._live: dict[int, Owner] = {}
        self._answering = Lock()  # held where a lookup writes to slots, and where a request ends

    def __len__(self) -> int:
        return len(self._live)

    def begin(self, action: Run, ended: deque[int] | None = None) -> None:
        """Register the requests of a first stage, also when it runs again; their slots go to `ended` when they end."""
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
    def answering(self, requests: Sequence[int], hits: Iterable[int]) -> Iterator[list[int]]:
        """Yield which of the places `hits` a lookup is to answer; within the context none of their requests can end."""
        with self._answering:
            found = list[int]()
            for place in hits:
                owner = self._live.get(requests[place])
                if owner is not None and owner.answered is By.NOBODY:
                    owner.answered = By.LOOKUP
                    found.append(place)
            yield found

    def left_to_network(self, requests: Sequence[int]) -> list[int]:
        """Return the places of the requests that no lookup has answered; from now on no lookup does.

        The network answers them without a lock, because the scheduler ends no request of a batch that runs, unless a
        lookup has answered it.
        """
        with self._answering:
            found = list[int]()
            for place, request in enumerate(requests):
                owner = self._live.get(request)
                if owner is not None and owner.answered is not By.LOOKUP:
                    owner.answered = By.NETWORK
                    found.append(place)
            return found
