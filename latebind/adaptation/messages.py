"""What crosses from the door to the adaptation service, and back: answers and samples one way, JSON lines the other."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from struct import Struct

import msgspec

from latebind.domain.config import AdaptationConfig
from latebind.domain.model import ModelSpec

ANSWERED = Struct("<?xHII")  # sampled: the input row follows; model, class answered, client


@dataclass(frozen=True, slots=True)
class Answered:
    """The class that one request was answered with; `row` is its input where it is sampled, else empty."""

    model: int
    answer: int
    client: int
    row: bytes = b""


def pack_answered(answered: Answered) -> bytes:
    """Write one answer."""
    head = ANSWERED.pack(bool(answered.row), answered.model, answered.answer, answered.client)
    return head + answered.row


class AnsweredReader:
    """Turns the bytes from the door into answers; keeps what is incomplete until the rest comes."""

    def __init__(self, models: Sequence[ModelSpec]) -> None:
        self._row_bytes = [row_bytes(spec) for spec in models]
        self._bytes = bytearray()

    def feed(self, data: bytes) -> Iterator[Answered]:
        """Yield the answers that `data` completes."""
        self._bytes += data
        place = 0
        while place + ANSWERED.size <= len(self._bytes):
            sampled, model, answer, client = ANSWERED.unpack_from(self._bytes, place)
            start = place + ANSWERED.size
            end = start + (self._row_bytes[model] if sampled else 0)
            if end > len(self._bytes):
                break
            yield Answered(model, answer, client, bytes(self._bytes[start:end]))
            place = end
        del self._bytes[:place]


def row_bytes(spec: ModelSpec) -> int:
    """Return the size of one row of all inputs."""
    return sum(tensor.row_bytes for tensor in spec.inputs)


class AdaptationOrder(msgspec.Struct, frozen=True):
    """The first line to the service: which models, in the order of their numbers, and how the engine runs them."""

    directories: tuple[str, ...]
    config: AdaptationConfig
    threads: int
    backend: str | None
    cores: tuple[int, ...]  # of the engine: not for the service


class UseVersion(msgspec.Struct, frozen=True, tag="use"):
    """The service wants the engine to take this version of a model's learned caches (`versions.Versions`)."""

    model: str
    version: str
    reason: str


class Status(msgspec.Struct, frozen=True, tag="status"):
    """What the service knows of a model: counts since the start, and fidelity of the last samples with its bounds."""

    model: str
    version: str = "built"
    sampled: int = 0
    retrained: int = 0
    refused: int = 0
    alarms: int = 0
    fidelity: float | None = None
    lower: float = 0.0
    upper: float = 1.0


class Started(msgspec.Struct, frozen=True, tag="started"):
    """The service is ready, or `error` says why not."""

    error: str = ""


FromService = UseVersion | Status | Started
