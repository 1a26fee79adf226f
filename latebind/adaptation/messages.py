"""The messages between the frontend and the adaptation service, and which requests are sent as samples.

A message is a length and a msgpack array; `multiprocessing.connection` of the standard library frames them so, and the
service uses that. Both ends are of one version: the service is forked by the frontend's server.
"""

from collections.abc import Callable
from struct import Struct

import msgspec

from latebind.domain.config import AdaptationConfig

LENGTH = Struct("!i")
SHOWING = 0.75  # of the requests that may be run again; the others teach
MOST_SHOWING = 0.5  # of all requests: while few leave early, few have to be run again
MEMORY = 200  # requests over which the share that leaves early is averaged


class AdaptationOrder(msgspec.Struct, frozen=True, array_like=True, tag="o"):
    """The first message to the service: which models, in the order of their numbers, and how the engine runs them.

    `wanted` are the versions of learned caches that the previous service wanted, by directory.
    """

    directories: tuple[str, ...]
    config: AdaptationConfig
    threads: int
    backend: str | None
    cores: tuple[int, ...]  # of the engine: not for the service
    log_format: str = "text"
    wanted: dict[str, str] = {}
    floor: float = 1.0  # under 1: levels of the operating curve down to it are watched and retrained


class Draw(msgspec.Struct, frozen=True, array_like=True):
    """What one request is used for. It `shows`, or it teaches and stands for `weight` requests like it."""

    shows: bool
    weight: float = 1.0


class Answered(msgspec.Struct, frozen=True, array_like=True, tag="a"):
    """The class that one request was answered with, by a `version` of the learned caches (`controller.number_of`).

    `model` is the model's number. If the request is sampled, `draw` says for what, `row` is its input and `end` the
    output of the base model, float32, empty if the request has to be run again: it left early, or the network is not
    the base model. `sizes` are those of the model's named dimensions in that row, in their order. `promised` is the
    fidelity that it was answered with.
    """

    model: int
    answer: int
    version: int
    draw: Draw | None = None
    row: bytes = b""
    end: bytes = b""
    sizes: tuple[int, ...] = ()
    promised: float = 1.0


class Unusable(msgspec.Struct, frozen=True, array_like=True, tag="u"):
    """The engine could not use a version of a model's learned caches that it should use."""

    model: int
    version: int


class UseVersion(msgspec.Struct, frozen=True, tag="use"):
    """The service wants the engine to take this version of a model's learned caches (`versions.Versions`)."""

    model: str
    version: str
    reason: str


class OfLevel(msgspec.Struct, frozen=True):
    """What the service knows about a level of the operating curve: how many of the last samples it would answer right.

    `used` says whether requests may run at it.
    """

    promised: float
    fidelity: float | None
    lower: float
    upper: float
    alarms: int
    used: bool


class Status(msgspec.Struct, frozen=True, tag="status"):
    """What the service knows about a model: counts since the start, and fidelity of the last samples with its bounds.

    The caches were chosen for a fidelity of `target`. With a floor, it is the least that may be promised now, and there
    are figures for each of the `levels`, the highest first.
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
    levels: tuple[OfLevel, ...] = ()


class Started(msgspec.Struct, frozen=True, tag="started"):
    """The service is ready. It follows all models but those whose numbers are `left_out`.

    For each followed model, in order, `coarse` says whether the network itself computes in less than full precision:
    then it is not the base model, and every sample has to be run again.
    """

    left_out: dict[int, str] = {}  # and why
    coarse: tuple[bool, ...] = ()


ToService = AdaptationOrder | Answered | Unusable
FromService = UseVersion | Status | Started

encoded = msgspec.msgpack.Encoder().encode
to_service: Callable[[bytes], ToService] = msgspec.msgpack.Decoder(ToService).decode
from_service: Callable[[bytes], FromService] = msgspec.msgpack.Decoder(FromService).decode


class Sampler:
    """Draws which requests show what learned caches do, and which teach them; `random` returns 0 to 1.

    A request that ran to the end of the network can be learned from for free: its answer is the base model's. One that
    left early has to be run again to be of use, so few of those are taken, about a share `again` of all requests at
    most, and each stands for more. The same goes for every request of a network that computes in less than full
    precision. Whether a request shows or teaches is drawn without regard to whether it left early, or what is shown
    would not hold for all requests.
    """

    def __init__(self, again: float, random: Callable[[], float]) -> None:
        self._again = again
        self._random = random
        self._early = 0.5

    def draw(self, early: bool) -> Draw | None:
        """Return what to use a request for, None for nothing; `early`: it has to be run again."""
        shows = min(MOST_SHOWING, SHOWING * self._again / max(self._early, 1e-9))
        teaches = min(1.0 - shows, (1.0 - SHOWING) * self._again / max(self._early, 1e-9)) if early else 1.0 - shows
        self._early += (early - self._early) / MEMORY
        drawn = self._random()
        if drawn < shows:
            return Draw(shows=True)
        return Draw(shows=False, weight=1.0 / teaches) if drawn < shows + teaches else None
