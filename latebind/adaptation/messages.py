"""What crosses from the door to the adaptation service, and back: answers and samples one way, JSON lines the other."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from struct import Struct

import msgspec

from latebind.adaptation.sampling import Draw
from latebind.domain.config import AdaptationConfig
from latebind.domain.model import ModelSpec

# what follows and what it is for; model, class answered, client, weight, version of the learned caches
ANSWERED = Struct("<BxHIIfi")
ROW, END, SHOWS = 1, 2, 4  # the input follows; the base model's output behind it; it is for showing, not for teaching
FAILED = 8  # no answer: the engine cannot use the version


@dataclass(frozen=True, slots=True)
class Answered:
    """The class that one request was answered with, by a `version` of the learned caches (`controller.number_of`).

    Where it is sampled, `draw` says for what, `row` is its input and `end` the output of the base model, float32, if it
    ran to the end. Both are empty where there is none.
    """

    model: int
    answer: int
    client: int
    version: int
    draw: Draw | None = None
    row: bytes = b""
    end: bytes = b""


@dataclass(frozen=True, slots=True)
class Unusable:
    """The engine could not use a version of a model's learned caches that it was to use."""

    model: int
    version: int


def pack_unusable(unusable: Unusable) -> bytes:
    """Write that a version cannot be used."""
    return ANSWERED.pack(FAILED, unusable.model, 0, 0, 0.0, unusable.version)


def pack_answered(answered: Answered) -> bytes:
    """Write one answer."""
    draw = answered.draw
    flags = ROW * bool(answered.row) | END * bool(answered.end) | SHOWS * (draw is not None and draw.shows)
    weight = draw.weight if draw else 0.0
    head = ANSWERED.pack(flags, answered.model, answered.answer, answered.client, weight, answered.version)
    return head + answered.row + answered.end


class AnsweredReader:
    """Turns the bytes from the door into what they tell; keeps what is incomplete until the rest comes."""

    def __init__(self, models: Sequence[ModelSpec]) -> None:
        self._bytes_of = [(row_bytes(spec), spec.outputs[0].row_bytes) for spec in models]
        self._bytes = bytearray()

    def feed(self, data: bytes) -> Iterator[Answered | Unusable]:
        """Yield what `data` completes."""
        self._bytes += data
        place = 0
        while place + ANSWERED.size <= len(self._bytes):
            flags, model, answer, client, weight, version = ANSWERED.unpack_from(self._bytes, place)
            start = place + ANSWERED.size
            middle = start + self._bytes_of[model][0] * bool(flags & ROW)
            stop = middle + self._bytes_of[model][1] * bool(flags & END)
            if stop > len(self._bytes):
                break
            draw = Draw(bool(flags & SHOWS), weight) if flags & ROW else None
            row, end = bytes(self._bytes[start:middle]), bytes(self._bytes[middle:stop])
            yield (
                Unusable(model, version) if flags & FAILED else Answered(model, answer, client, version, draw, row, end)
            )
            place = stop
        del self._bytes[:place]


def row_bytes(spec: ModelSpec) -> int:
    """Return the size of one row of all inputs."""
    return sum(tensor.row_bytes for tensor in spec.inputs)


class AdaptationOrder(msgspec.Struct, frozen=True):
    """The first line to the service: which models, in the order of their numbers, and how the engine runs them.

    `wanted` are the versions of learned caches that the service before wanted, by directory.
    """

    directories: tuple[str, ...]
    config: AdaptationConfig
    threads: int
    backend: str | None
    cores: tuple[int, ...]  # of the engine: not for the service
    log_format: str = "text"
    wanted: dict[str, str] = {}


class UseVersion(msgspec.Struct, frozen=True, tag="use"):
    """The service wants the engine to take this version of a model's learned caches (`versions.Versions`)."""

    model: str
    version: str
    reason: str


class Status(msgspec.Struct, frozen=True, tag="status"):
    """What the service knows of a model: counts since the start, and fidelity of the last samples with its bounds.

    The caches were chosen for a fidelity of `target`.
    """

    model: str
    sampled: int = 0
    retrained: int = 0
    refused: int = 0
    alarms: int = 0
    fidelity: float | None = None
    lower: float = 0.0
    upper: float = 1.0
    target: float = 0.0


class Started(msgspec.Struct, frozen=True, tag="started"):
    """The service is ready, or `error` says why not. It follows all models but those whose numbers are `left_out`."""

    error: str = ""
    left_out: dict[int, str] = {}  # and why


FromService = UseVersion | Status | Started
