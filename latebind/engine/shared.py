"""What frontend and engine share: who owns a slot, messages of fixed size, and what each thread of the engine does.

**Slots** are rows of shared memory (`slots`). Both processes use that of a request in turn, and each keeps the part of
its state that it decides on:

    frontend (`client.Claim`)  a slot is free again when its call has released it and its request is not with the engine
    engine (`Owners`)          NOBODY -> LOOKUP or NETWORK answers, whichever is first

Until a call sends it, the call writes the inputs. From then on only the engine writes to it, on behalf of one request,
and the first answer counts. The engine forgets the request before the frontend learns of its end, and so before the
slot can have another owner: no late lookup writes to it.

The rows of query steps (`domain.query.lay_out`) follow a model's own slots and belong to the slots of their query. With
each answer of a model that has learned caches, the worker notes in its slot which version of them it used: a version
that was adopted between a request and its reply must not be blamed for it.

**Messages** go through a socket. Tensors never do, and nothing is pickled.

**Places** say what each thread of the engine does, and until when it should have done it, in memory that outlives the
engine. The frontend reads them without asking: so it knows which models ran when an engine died, and notices that one
hangs, or that a worker is stuck in a stage while others go on. There is no lock: each place has one writer at a time. A
reader may find a place half written, so it trusts only what it finds twice.
"""

import mmap
import os
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from math import inf
from struct import Struct
from threading import Lock
from typing import Any, NamedTuple, Self, TypeVar

import msgspec

from latebind.domain.actions import Outcome, Reply, Run, StepEnded
from latebind.domain.events import Arrived, Cancelled, Event

T = TypeVar("T")

# Owners ---------------------------------------------------------------------------------------------------------------


class By(IntEnum):
    """What answers a request. The first answer counts."""

    NOBODY = 0
    LOOKUP = 1
    NETWORK = 2


class Owner:
    """What the engine knows of one request that runs: its slot, the output it continues from, and what answers it.

    `activation` is a `worker.Batch`, untyped because the frontend maps slots too and imports no torch. The slot goes to
    `ended`, if there is such a queue, when the request ends: a decoder frees its row.
    """

    __slots__ = ("activation", "answered", "ended", "slot")

    def __init__(self, slot: int, ended: deque[int] | None) -> None:
        self.slot = slot
        self.activation: Any = None
        self.answered = By.NOBODY
        self.ended = ended


class Owners:
    """The requests that run in one engine, by number; each number is used once. Thread-safe.

    A request owns its slot, and is `live`, from its first stage until the scheduler ends it. From then on nothing
    writes to the slot on its behalf, and what was kept for the request is gone: its activation lies in the record.
    """

    def __init__(self) -> None:
        self.live: dict[int, Owner] = {}
        self._answering = Lock()  # held where a lookup writes to slots, and where a request ends

    def __len__(self) -> int:
        return len(self.live)

    def begin(self, action: Run, ended: deque[int] | None = None) -> None:
        """Register the requests of a first stage, also when it runs again."""
        for request, slot in zip(action.requests, action.slots, strict=True):
            self.live[request] = Owner(slot, ended)

    def end(self, request: int) -> None:
        """Forget a request, if it has begun. On return nothing writes to its slot and nothing is kept for it."""
        if request not in self.live:
            return
        with self._answering:
            owner = self.live.pop(request)
        if owner.ended is not None:
            owner.ended.append(owner.slot)

    def any_unanswered(self, requests: Iterable[int]) -> bool:
        """Return whether a lookup could still answer one of these requests."""
        owners = [self.live.get(request) for request in requests]
        return any(owner is not None and owner.answered is By.NOBODY for owner in owners)

    @contextmanager
    def answering(self, by: By, requests: Sequence[int], places: Iterable[int]) -> Iterator[list[int]]:
        """Yield which of these places are to be answered; within the context, none of their requests can end.

        A lookup answers requests without an answer, also if two lookups run aside. So does the network, which answers
        again if the last stage raised for others of its batch. Lookups write within the context. The network need not:
        the scheduler ends no request of a running batch unless a lookup has answered it, and from here on none does.
        """
        with self._answering:
            found = list[int]()
            for place in places:
                owner = self.live.get(requests[place])
                if owner is not None and (owner.answered is By.NOBODY or owner.answered is by is By.NETWORK):
                    owner.answered = by
                    found.append(place)
            yield found


# Messages -------------------------------------------------------------------------------------------------------------

# kind, more follows, priority, streams, model, trace, slot, input length, sizes, request, deadline
TO_ENGINE = Struct("<BBB?HIIIQQd")
ARRIVED, CANCELLED = 0, 1  # the kinds
TO_FRONTEND = Struct("<BxhhHQff")  # the fields of `Notice`
NO_STEP = -1  # the node in a message about the end of a whole request
WROTE = -2  # the node in a message about tokens
MOST_TOKENS = (1 << 16) - 1  # the largest count in a message; the end of the request implies the others
Numbers = tuple[int, ...]


class Notice(NamedTuple):
    """A message of the engine about a request; its `node` says what kind.

    NO_STEP: it has ended. If the outcome is ANSWERED, its outputs are in its slot. `stage` is the stage at which it
    left, for a query the step that it had reached; `first` and `second` are the seconds in the queue and with a worker.

    WROTE: the first `option` tokens of its answer are in its slot; its end implies the last one.

    A step of a query: it has ended, run by the model of index `option`, which it left at `stage`. It was planned to
    take `first` seconds and took `second`.
    """

    outcome: int
    stage: int
    node: int
    option: int
    request: int
    first: float
    second: float


def pack_arrived(
    model: int,
    deadline: float,
    requests: Sequence[int],
    slots: Sequence[int],
    inputs: Sequence[int] = (),
    priority: int = 0,
    trace: int = 0,
    sizes: int = 0,
    *,
    streams: bool = False,
) -> bytes:
    """Pack one call: a message for each of its requests, all but the last marked "more follows".

    `inputs` are the lengths of the requests; 1 each if left out. For `sizes` see `Arrived`.
    """
    last = len(requests) - 1
    if not last and not inputs:  # most calls
        return TO_ENGINE.pack(ARRIVED, False, priority, streams, model, trace, slots[0], 1, 0, requests[0], deadline)
    return b"".join(
        TO_ENGINE.pack(ARRIVED, i < last, priority, streams, model, trace, slot, steps, sizes, request, deadline)
        for i, (request, slot, steps) in enumerate(zip(requests, slots, inputs or (1,) * (last + 1), strict=True))
    )


def pack_cancelled(request: int) -> bytes:
    """Pack a message that the client of `request` has gone."""
    return TO_ENGINE.pack(CANCELLED, False, 0, False, 0, 0, 0, 0, 0, request, 0.0)


def pack_ended(reply: Reply) -> bytes:
    """Pack a message that a request has ended."""
    return TO_FRONTEND.pack(reply.outcome, reply.stage, NO_STEP, 0, reply.request, reply.waited, reply.ran)


def pack_stepped(step: StepEnded) -> bytes:
    """Pack a message that a step of a query has ended."""
    return TO_FRONTEND.pack(step.outcome, step.stage, step.node, step.option, step.request, step.budget, step.spent)


def pack_wrote(request: int, tokens: int) -> bytes:
    """Pack a message that the first `tokens` tokens of the answer to a request are written."""
    return TO_FRONTEND.pack(Outcome.ANSWERED, 0, WROTE, min(tokens, MOST_TOKENS), request, 0.0, 0.0)


class EventReader:
    """Unpacks bytes from the frontend into events; keeps an incomplete message or call until the rest arrives."""

    def __init__(self, models: Sequence[str]) -> None:
        self._models = models
        self._bytes = b""

    def feed(self, data: bytes) -> list[Arrived | Cancelled]:
        """Return the events that `data` completes.

        `Arrived.more` is set if the next event is a call of the same model.
        """
        data = self._bytes + data
        rows: list[tuple[Any, ...]] = list(TO_ENGINE.iter_unpack(data[: len(data) - len(data) % TO_ENGINE.size]))
        end = len(rows)
        while end and rows[end - 1][1]:
            end -= 1
        self._bytes = data[end * TO_ENGINE.size :]
        found: list[Arrived | Cancelled] = []
        first = 0
        for last in range(end):
            kind, more, priority, streams, model, trace, slot, steps, sizes, request, deadline = rows[last]
            if more:
                continue
            if kind == CANCELLED:
                found.append(Cancelled(request))
                first = last + 1
                continue
            slots: Numbers = (slot,)
            inputs: Numbers = (steps,)
            requests: Numbers = (request,)
            if first < last:  # most calls have one row
                _, _, _, _, _, _, slots, inputs, _, requests, _ = zip(*rows[first : last + 1], strict=True)
            first = last + 1
            follows = first < end and rows[first][0] == ARRIVED and rows[first][4] == model
            name = self._models[model]
            found.append(Arrived(name, deadline, requests, slots, inputs, priority, trace, follows, streams, sizes))
        return found


class NoticeReader:
    """Unpacks bytes from the engine; keeps an incomplete message until the rest arrives."""

    def __init__(self) -> None:
        self._bytes = b""

    def feed(self, data: bytes) -> Iterator[Notice]:
        """Yield the messages that `data` completes; the end of a request comes after its steps and tokens."""
        data = self._bytes + data
        whole = len(data) - len(data) % TO_FRONTEND.size
        self._bytes = data[whole:]
        return map(Notice._make, TO_FRONTEND.iter_unpack(data[:whole]))


# Places ---------------------------------------------------------------------------------------------------------------

IDLE = 0  # instead of the number of a model; the model at index i of the order is i + 1
LISTENS, LOADS, COMPILES = -1, -2, -3  # instead of a stage
LISTENER, LOADER, WORKERS = 0, 1, 2  # the places of the thread that listens, of the loader, of the first worker
PLACE = Struct("<dii")
MOST_BYTES = 1 << 16

LOOK_SECONDS = 0.25  # between two checks of an engine's places
READ_BYTES = 1 << 14
BEAT_SECONDS = 0.25  # the longest between two notes of the listener that it is there
LISTEN_SECONDS = 1.0  # that it may be silent, because others may need the cores
LOAD_SECONDS = 600.0  # that loading a model may take, from any disk


class Place(NamedTuple):
    """What a thread does, to be done when it is `due` (monotonic): a stage of a model, or what stands instead of it."""

    due: float
    model: int
    stage: int


class Running:
    """The places as an engine's threads write them, in the file `fd`, or in memory of its own without one."""

    def __init__(self, workers: int, fd: int | None = None) -> None:
        size = PLACE.size * (WORKERS + workers)
        self.memory: bytearray | mmap.mmap = bytearray(size)
        if fd is not None:
            os.ftruncate(fd, size)
            self.memory = mmap.mmap(fd, size)
        for place in range(WORKERS + workers):
            self.rest(place)

    def begin(self, place: int, model: int, stage: int, seconds: float) -> None:
        """Note that a thread begins something that should take at most `seconds`."""
        PLACE.pack_into(self.memory, place * PLACE.size, time.monotonic() + seconds, model, stage)

    def rest(self, place: int) -> None:
        """Note that a thread has finished what it did."""
        PLACE.pack_into(self.memory, place * PLACE.size, inf, IDLE, LISTENS)

    def beat(self) -> None:
        """Note that somebody listens."""
        self.begin(LISTENER, IDLE, LISTENS, LISTEN_SECONDS)

    def load(self, model: int) -> None:
        """Note that the first thread loads this model; `IDLE` stands for all models."""
        self.begin(LISTENER, model, LOADS, LOAD_SECONDS)

    def loading(self, models: Iterable[T]) -> Iterator[T]:
        """Yield each, in the order of the engine's models; until the next one is asked for, note that it is loaded."""
        for number, model in enumerate(models, 1):
            self.load(number)
            yield model
        self.load(IDLE)


class Listening:
    """What the engine's process waits for: messages, lines of control, which it answers, and wake-ups by a thread."""

    def __init__(
        self,
        names: Sequence[str],
        messages: socket.socket,
        control: socket.socket,
        running: Running,
        answer: Callable[[bytes], object],
    ) -> None:
        self._reader = EventReader(names)
        self._messages, self._control = messages, control
        self._line = b""  # of control, incomplete
        self._running = running
        self._answer = answer
        self._waker, self._wakened = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        for sock in (messages, control, self._wakened):
            self._selector.register(sock, selectors.EVENT_READ, sock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._selector.close()

    def wake(self) -> None:
        """Make `listen` return."""
        self._waker.sendall(b"\0")

    def listen(self, seconds: float | None) -> list[Event] | None:
        """Wait at most `seconds` (None: `BEAT_SECONDS`) and return what arrived; None once the frontend has closed.

        It returns at least every `BEAT_SECONDS`, so that the frontend sees that somebody listens.
        """
        events: list[Event] = []
        found = self._selector.select(BEAT_SECONDS if seconds is None else min(seconds, BEAT_SECONDS))
        self._running.beat()
        for key, _ in found:
            sock: socket.socket = key.data
            data = sock.recv(READ_BYTES)
            if not data:
                return None
            if sock is self._messages:
                events.extend(self._reader.feed(data))
            elif sock is self._control:
                *lines, self._line = (self._line + data).split(b"\n")
                for line in lines:
                    try:
                        send_line(self._control, self._answer(line))
                    except BrokenPipeError:  # the frontend has closed since it asked
                        return None
        return events


def send_line(control: socket.socket, message: object) -> None:
    """Send a line of control."""
    control.sendall(msgspec.json.encode(message) + b"\n")


class Watched:
    """The places of an engine as the frontend sees them in the file `fd`, and for how long they have been overdue.

    The engine is not asked. `late` has what was overdue at the last check, with the seconds for which the frontend has
    seen it so: a place counts from the second check on, so one that was half written does not.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._looked = 0.0
        self.late: dict[Place, float] = {}

    def places(self) -> list[Place]:
        """Return what all threads do."""
        return [Place(*place) for place in PLACE.iter_unpack(os.pread(self._fd, MOST_BYTES, 0))]

    @property
    def seconds(self) -> float:
        """For how many seconds the one that is late for longest has been; 0 if none is."""
        return max(self.late.values(), default=0.0)

    def look(self, now: float | None = None) -> None:
        """Note what is overdue; to be called every `LOOK_SECONDS`."""
        now = time.monotonic() if now is None else now
        since = min(now - self._looked, 2 * LOOK_SECONDS)  # the frontend may have stood still itself
        self._looked = now
        overdue = [place for place in self.places() if place.due < now]
        self.late = {place: self.late[place] + since if place in self.late else 0.0 for place in overdue}

    def described(self, models: Sequence[str]) -> str:
        """Return what is late, for the log."""
        found = []
        for place, seconds in self.late.items():
            if seconds:
                model = "the models" if place.model == IDLE else f"model {place.model - 1}"
                if 0 < place.model <= len(models):  # while they are loaded, their names are not known
                    model = models[place.model - 1]
                what = {
                    LISTENS: "nobody has listened for",
                    LOADS: f"loading {model} takes",
                    COMPILES: f"compiling {model} for batches takes",
                }
                late = what.get(place.stage, f"stage {place.stage} of {model} takes")
                found.append(f"{late} {time.monotonic() - place.due:.1f} s longer than allowed")
        return ", ".join(found)


def models_of(places: Iterable[Place]) -> tuple[int, ...]:
    """Return the indices of the models that run there, each once, ascending; if none does, of one that is compiled.

    A request is more likely to end an engine than compiling is, and may come again while another model is compiled.
    """
    working = [place for place in places if place.model != IDLE]
    running = [place for place in working if place.stage != COMPILES] or working
    return tuple(sorted({place.model - 1 for place in running}))
