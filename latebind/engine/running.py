"""What each thread of an engine does and until when it should have done it, in memory that outlives the engine.

The first place belongs to the thread that listens, or loads; then each worker has one, and the loader of models on
demand. The frontend reads them without asking the engine: so it knows which models ran when an engine died, and notices
that one stands still, or that a worker is stuck in a stage while others go on. There is no lock: each place has one
writer at a time. A reader may find a place half written, so it believes only what it finds twice.
"""

import mmap
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from math import inf
from pathlib import Path
from struct import Struct
from typing import NamedTuple

from latebind.domain.config import ServedModel

IDLE = 0  # instead of the number of a model; the model at index i of the order is i + 1
LISTENS, LOADS = -1, -2  # instead of a stage
LISTENER = 0  # the first place
OTHERS = 2  # places beside those of workers
PLACE = Struct("<dii")
MOST_BYTES = 1 << 16

LOOK_SECONDS = 0.25  # between two looks at what an engine does
BEAT_SECONDS = 0.25  # in which the listener notes at least once that it is there
LISTEN_SECONDS = 1.0  # that it may be silent, for others may need the cores
LATE_SECONDS = 2.0  # that a stage may take at least, for the same reason
TIMES = 20  # how many times longer than its profile says a stage may take, for the same reason
LOAD_SECONDS = 600.0  # in which a model is loaded, from whatever it lies on
COMPILE_SECONDS = 120.0  # in which a stage is compiled that is only when it meets a batch size
SLOWEST_DISK = 10e6  # bytes a second, from which weights may come when a stage runs for the first time


class Place(NamedTuple):
    """What a thread does: a stage (or `LISTENS`, `LOADS`) of a model, to be done when it is `due` (monotonic)."""

    due: float
    model: int
    stage: int


RESTS = Place(inf, IDLE, LISTENS)


class Running:
    """The places as an engine's threads write them; those of other processes see them if `memory` is shared."""

    def __init__(self, workers: int, memory: "bytearray | mmap.mmap | None" = None) -> None:
        self._memory = bytearray(size(workers)) if memory is None else memory
        self._models = [IDLE] * (workers + OTHERS)
        for place in range(len(self._models)):
            self.rest(place)

    def begin(self, place: int, model: int, stage: int, seconds: float) -> None:
        """Note that a thread begins something that should take at most so many seconds."""
        self._models[place] = model
        PLACE.pack_into(self._memory, place * PLACE.size, time.monotonic() + seconds, model, stage)

    def rest(self, place: int) -> None:
        """Note that a thread has done what it did."""
        self._models[place] = IDLE
        PLACE.pack_into(self._memory, place * PLACE.size, *RESTS)

    def beat(self) -> None:
        """Note that somebody listens."""
        self.begin(LISTENER, IDLE, LISTENS, LISTEN_SECONDS)

    @property
    def loader(self) -> int:
        """The place of the loader, the last one."""
        return len(self._models) - 1

    @property
    def any(self) -> bool:
        """Whether a model runs or is being loaded."""
        return any(self._models)


def worker_place(worker: int) -> int:
    """Return the place of a worker."""
    return 1 + worker


def size(workers: int) -> int:
    """Return how many bytes the places take."""
    return PLACE.size * (workers + OTHERS)


def map_running(fd: int, workers: int) -> Running:
    """Size the file `fd` for so many workers and return the places in it."""
    os.ftruncate(fd, size(workers))
    return Running(workers, mmap.mmap(fd, size(workers)))


def note_start(fd: int) -> None:
    """Note, on behalf of an engine that has not begun yet, that it is to load."""
    os.pwrite(fd, PLACE.pack(time.monotonic() + LOAD_SECONDS, IDLE, LOADS), 0)


def models_of(places: Iterable[Place]) -> tuple[int, ...]:
    """Return the indices of the models that run there, each once, ascending."""
    return tuple(sorted({place.model - 1 for place in places if place.model != IDLE}))


def marking_loading(paths: Iterable[Path], running: Running) -> Iterator[Path]:
    """Yield each path; until the next one is asked for, the first place says that this model is being loaded."""
    for number, path in enumerate(paths):
        running.begin(LISTENER, number + 1, LOADS, LOAD_SECONDS)
        yield path
    running.begin(LISTENER, IDLE, LOADS, LOAD_SECONDS)  # what follows is of all models: twins, first runs


def longest_seconds(served: ServedModel) -> list[float]:
    """Return how long each stage of a model may take before it is late: its largest batch, on busy cores."""
    spec, costs = served.spec, served.costs
    longest = max([tensor.shape[0] for tensor in spec.inputs if tensor.padding is not None], default=1)
    steps = [costs.step(stage, spec.max_batch, longest) for stage in range(spec.stages)]
    return [max(LATE_SECONDS, TIMES * seconds) for seconds in steps]


class Watched:
    """The places of an engine as the frontend sees them in the file `fd`, and for how long what is overdue has been.

    The engine is not asked. `late` has what was overdue at the last look, with the seconds of that which the frontend
    was there to see: a place counts from the second look on, and so does one that was half written.
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
        """For how long the latest has been late; 0 if nothing is."""
        return max(self.late.values(), default=0.0)

    def stands_still(self) -> bool:
        """Return whether anything is late at this moment; it is read twice, as it may be half written."""
        now = time.monotonic()
        return any(place.due < now for place in self.places()) and any(place.due < now for place in self.places())

    def look(self, now: float | None = None) -> None:
        """Note what is overdue; to be called every `LOOK_SECONDS`."""
        now = time.monotonic() if now is None else now
        since = min(now - self._looked, 2 * LOOK_SECONDS)  # the frontend may have stood still itself
        self._looked = now
        overdue = [place for place in self.places() if place.due < now]
        self.late = {place: self.late[place] + since if place in self.late else 0.0 for place in overdue}

    def described(self, models: Sequence[str]) -> str:
        """Say what is late, for the log."""
        found = []
        for place, seconds in self.late.items():
            if not seconds:
                continue
            late = f"{time.monotonic() - place.due:.1f} s longer than it may take"
            index = place.model - 1
            model = models[index] if 0 <= index < len(models) else f"model {index}" if index >= 0 else "the models"
            if place.stage == LOADS:
                found.append(f"to load {model} takes {late}")
            elif place.stage == LISTENS:
                found.append(f"nobody has listened there, {late}")
            else:
                found.append(f"stage {place.stage} of {model} takes {late}")
        return ", ".join(found)
