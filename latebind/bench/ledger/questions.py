"""The ledger's requests and their correct answers, numbers only: each follows from its number, and all differ."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random

import numpy as np
from numpy.typing import NDArray

WIDTH = 32  # values of a row of floats
TURN = 7  # places by which `chain` and `slow` move values on
WORDS, MARKS, END, LONGEST = 16, 3, 2, 12  # of sentences: numbers of words, the first of which are marks
BASE = {"float32": 16, "int64": WORDS - MARKS}  # in which the number of a request is written
DIGITS = 6
ROW = DIGITS  # the place of the row's own number
FLAG, HEIGHT = ROW + 1, 60.0  # a value far above all others: the learned cache knows the answer
BANK = 4096  # random rows

Rows = NDArray[np.float32] | NDArray[np.int64]


class Protocol(StrEnum):
    """How a request is sent: JSON, JSON with binary tensors (both over HTTP), or gRPC with raw tensors."""

    JSON = "json"
    BINARY = "binary"
    GRPC = "grpc"


class Manner(StrEnum):
    """What a client does: it waits, hangs up while the server works, or in the middle of the body."""

    WAITS = "waits"
    LEAVES = "leaves"
    BREAKS_OFF = "breaks off"


@dataclass(frozen=True, slots=True)
class Kind:
    """A model: the names of its tensors, and the right answer to rows."""

    dtype: str
    input: str
    output: str
    right: Callable[[Rows], Rows]


def _backwards(rows: Rows) -> Rows:
    places = np.arange(rows.shape[1])
    said = MARKS + (rows[:, ::-1] - MARKS + places) % (WORDS - MARKS)
    return np.concatenate([said, np.full((len(rows), 1), END)], axis=1).astype(np.int64)


def _turned(rows: Rows) -> Rows:
    return np.roll(rows, TURN, axis=1)


KINDS: Mapping[str, Kind] = {
    "affine": Kind("float32", "x", "y", lambda rows: rows * 2 + 1),
    "chain": Kind("float32", "x", "y", _turned),
    "slow": Kind("float32", "x", "y", _turned),
    "relay": Kind("float32", "x", "y", lambda rows: _turned(rows * 2 + 1)),
    "words": Kind("int64", "tokens", "tokens", _backwards),
}


@dataclass(frozen=True, slots=True)
class Mix:
    """What requests are drawn from. Shares of 1; deadlines in seconds."""

    models: Sequence[str] = ("affine", "chain", "relay", "words")
    protocols: Sequence[Protocol] = tuple(Protocol)
    largest: int = 8  # rows
    deadlines: Sequence[float] = (0.03, 0.2, 0.2, 2.0)
    priorities: int = 4
    leave: float = 0.04
    break_off: float = 0.02
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Question:
    """A request: what is sent, how, and what the client does. `leaves` is when it hangs up, seconds after sending."""

    number: int
    model: str
    protocol: Protocol
    rows: Rows
    deadline: float
    priority: int
    manner: Manner
    leaves: float

    @property
    def right(self) -> Rows:
        """The right answer."""
        return KINDS[self.model].right(self.rows)


class Questions:
    """Makes requests of their numbers; the same mix makes the same."""

    def __init__(self, mix: Mix) -> None:
        self._mix = mix
        random = np.random.default_rng(mix.seed)
        self._floats = random.integers(0, BASE["float32"], (BANK, WIDTH)).astype(np.float32)
        self._words = random.integers(MARKS, WORDS, (BANK, LONGEST))

    def __getitem__(self, number: int) -> Question:
        """Return the request of this number."""
        mix, draw = self._mix, Random(number << 32 | self._mix.seed)
        model, protocol = draw.choice(mix.models), draw.choice(mix.protocols)
        count = 1 if draw.random() < 0.5 else 1 + draw.randrange(mix.largest)
        deadline, share, manner = draw.choice(mix.deadlines), draw.random(), Manner.WAITS
        if share < mix.leave:
            manner = Manner.LEAVES
        elif share < mix.leave + mix.break_off and protocol is not Protocol.GRPC:
            manner = Manner.BREAKS_OFF
        rows, priority = self.rows(model, number, count, draw), draw.randrange(mix.priorities)
        return Question(number, model, protocol, rows, deadline, priority, manner, draw.random() * deadline / 4)

    def rows(self, model: str, number: int, count: int, draw: Random) -> Rows:
        """Return rows that say their number and place, the rest of them drawn."""
        dtype = KINDS[model].dtype
        first = draw.randrange(BANK - count)
        if dtype == "float32":
            rows: Rows = self._floats[first : first + count].copy()
            rows[:, FLAG] = HEIGHT if draw.random() < 0.3 else 0.0
            least = 0
        else:
            rows = self._words[first : first + count, : ROW + 1 + draw.randrange(LONGEST - ROW)].copy()
            least = MARKS
        rows[:, :DIGITS] = [number // BASE[dtype] ** place % BASE[dtype] for place in range(DIGITS)]
        rows[:, ROW] = np.arange(count)
        rows[:, : ROW + 1] += least
        return rows
