"""How a benchmark ends when somebody interrupts it: behind the round under way, with all that was measured by then.

The first SIGINT (Ctrl-C) lets the round come to its end, so that every side has been asked equally often; a second one,
or one where no rounds are played, ends at once. Commands then exit with `STATUS`.
"""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType

STATUS = 128 + signal.SIGINT  # what shells expect of a process that SIGINT ended
SAID = b"interrupted: ends behind the round under way; interrupt again to end at once\n"


class Interrupts:
    """Hears SIGINT while a benchmark runs."""

    def __init__(self) -> None:
        self.heard = False
        self._playing = 0

    def hear(self, _number: int, _frame: FrameType | None) -> None:
        """Note an interrupt, or raise `KeyboardInterrupt` where nothing waits for the end of a round."""
        first, self.heard = not self.heard, True
        if not (first and self._playing):
            raise KeyboardInterrupt
        os.write(sys.stderr.fileno(), SAID)  # a print may be under way, and is not to be entered twice

    @contextmanager
    def playing(self) -> Iterator[None]:
        """Let what is done within the block come to its end."""
        self._playing += 1
        try:
            yield
        finally:
            self._playing -= 1


_HERE: ContextVar[Interrupts | None] = ContextVar("interrupts", default=None)


@contextmanager
def interruptible() -> Iterator[Interrupts]:
    """Hear SIGINT within the block; in another thread than the main one, which alone hears signals, nothing changes."""
    interrupts = Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield interrupts
        return
    before, token = signal.signal(signal.SIGINT, interrupts.hear), _HERE.set(interrupts)
    try:
        yield interrupts
    finally:
        _HERE.reset(token)
        signal.signal(signal.SIGINT, before)


def interrupted() -> bool:
    """Tell whether the benchmark that runs here is to end."""
    here = _HERE.get()
    return here is not None and here.heard


def in_rounds(count: int) -> Iterator[int]:
    """Yield the numbers of `count` rounds, or of fewer if somebody interrupts, but of the first in any case."""
    here = _HERE.get() or Interrupts()
    for number in range(count):
        if number and here.heard:
            return
        with here.playing():
            yield number
