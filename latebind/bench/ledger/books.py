"""The ledger: requests sent, how each ended, and what must never happen. Pure; times are arguments."""

from array import array
from collections import Counter, deque
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from latebind.bench.ledger.questions import Question, Rows

EVIDENCE = 10  # cases of each fault that are described in words
RECENT = 256  # requests that have ended, among which an answer that is wrong may belong to one


class End(StrEnum):
    """How a request ended. All ends except hanging up are answers."""

    ANSWERED = "answered"
    REFUSED = "refused"
    EXPIRED = "expired"
    LEFT = "left"


class Fault(StrEnum):
    """Violations: what must never happen."""

    LOST = "lost"
    DUPLICATE = "duplicate"
    SWAPPED = "swapped"
    WRONG = "wrong"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer: the identity that it carries, and the output `(N, ...)`."""

    identity: str
    rows: Rows | None


@dataclass(slots=True)
class Times:
    """For every request that ended in one way: when it was to be sent, and the seconds from then to its end."""

    due: "array[float]" = field(default_factory=lambda: array("d"))
    seconds: "array[float]" = field(default_factory=lambda: array("d"))

    def add(self, due: float, seconds: float) -> None:
        """Note one."""
        self.due.append(due)
        self.seconds.append(seconds)


class Ledger:
    """Records requests and what comes back.

    `faults` counts what must never be, `evidence` has the first cases. `times` are kept for each end; `good` counts
    right answers within the deadline.
    """

    def __init__(self) -> None:
        self._open: dict[int, tuple[Question, float]] = {}
        self._recent: deque[Question] = deque(maxlen=RECENT)
        self._ended: set[int] = set()
        self.faults: Counter[Fault] = Counter()
        self.evidence: list[str] = []
        self.times = {end: Times() for end in End}
        self.good = Times()
        self.asked_count = 0

    @property
    def open(self) -> int:
        """The number of requests that have not ended."""
        return len(self._open)

    @property
    def whole(self) -> bool:
        """Whether there was no violation."""
        return not self.faults

    def ask(self, question: Question, due: float) -> None:
        """Note a request that is to be sent at `due`."""
        self._open[question.number] = (question, due)
        self.asked_count += 1

    def answer(self, number: int, given: Answer, now: float) -> None:
        """Record an answer to this request."""
        found = self._close(number, End.ANSWERED, now)
        if found is None:
            return
        question, due = found
        self._judge(question, given)
        if now - due <= question.deadline:
            self.good.add(due, now - due)

    def refuse(self, number: int, end: End, now: float) -> None:
        """Record that this request was refused, or that its deadline passed."""
        self._close(number, end, now)

    def leave(self, number: int, now: float) -> None:
        """Note that the client hung up; an answer that came before counts as one."""
        if number in self._open:
            self._close(number, End.LEFT, now)

    def fail(self, number: int, why: str, now: float) -> None:
        """Record an unusable answer."""
        found = self._close(number, End.ANSWERED, now)
        if found is not None:
            self._note(Fault.FAILED, f"{_name(found[0])} was answered {why}")

    def lose(self, number: int, why: str) -> None:
        """Record that this request has no answer and will get none."""
        found = self._open.pop(number, None)
        if found is not None:
            self._ended.add(number)
            self._note(Fault.LOST, f"{_name(found[0])} has no answer: {why}")

    def surplus(self, what: str) -> None:
        """Record an answer that no request is waiting for."""
        self._note(Fault.DUPLICATE, what)

    def _close(self, number: int, end: End, now: float) -> tuple[Question, float] | None:
        found = self._open.pop(number, None)
        if found is None:
            what = "a second answer" if number in self._ended else "an answer, but was never asked"
            self._note(Fault.DUPLICATE, f"request {number} has {what}: {end}")
            return None
        self._ended.add(number)
        self.times[end].add(found[1], now - found[1])
        self._recent.append(found[0])
        return found

    def _judge(self, question: Question, given: Answer) -> None:
        right, rows = question.right, given.rows
        if rows is not None and rows.dtype == right.dtype and np.array_equal(rows, right):
            if given.identity != str(question.number):
                self._note(Fault.SWAPPED, f"{_name(question)} was answered under the id {given.identity!r}")
            return
        others = [*(found for found, _ in self._open.values()), *self._recent]
        whose = [other.number for other in others if rows is not None and np.array_equal(other.right, rows)]
        if whose:
            self._note(Fault.SWAPPED, f"{_name(question)} has the answer to request {whose[0]}")
        else:
            self._note(Fault.WRONG, f"{_name(question)} was answered {rows!r}, not {right!r}")

    def _note(self, fault: Fault, evidence: str) -> None:
        self.faults[fault] += 1
        if self.faults[fault] <= EVIDENCE:
            self.evidence.append(f"{fault}: {evidence}")


def _name(question: Question) -> str:
    return f"request {question.number} ({question.model}, {question.protocol}, {len(question.rows)} rows)"
