"""Makes rows of texts, pictures and sounds: a few short texts at once, all else in threads with a short queue."""

import asyncio
import re
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial

from latebind.domain.errors import Expired, InvalidRequest, Refused, TooLarge
from latebind.domain.model import Media, ModelSpec, RawInput
from latebind.preprocessing.preprocessor import Given, Prepared, Preprocessor, Raw, Reading, columns
from latebind.server.limits import Limits, most_rows

FEW, SHORT = 8, 2048  # texts, and bytes in all of them, that are not worth a thread: a fraction of a millisecond
ELEMENT = re.compile(r"^element (\d+)")  # how a preprocessor's errors begin
PART, PART_BYTES = 256, 1 << 17  # elements, and their bytes, that a thread takes at once: then the next call has a turn


def check(spec: ModelSpec, raw: Sequence[RawInput], given: Given, limits: Limits) -> list[int]:
    """Return the bytes of each row of what is given for these raw inputs of a model.

    Raises `InvalidRequest` and `TooLarge`.
    """
    media = {one.name: one.media for one in raw}
    columns(raw, given)
    count, most = len(next(iter(given.values()))), most_rows(spec, limits)
    if not count:
        raise InvalidRequest(f"the call has no rows: send 1 to {most}")
    if count > most:
        raise TooLarge(f"the call has {count} rows of {spec.name!r}: send 1 to {most}")
    sizes = [0] * count
    for name, some in given.items():
        for number, element in enumerate(some):
            if isinstance(element, str) != (media[name] is Media.TEXT):
                raise InvalidRequest(f"element {number} of {name!r} is no {media[name]}")
            sizes[number] += _bytes_of(element, f"element {number} of {name!r}")
    if sum(sizes) > limits.element_bytes:
        raise TooLarge(f"the call has {sum(sizes)} bytes to read, more than {limits.element_bytes}: send fewer rows")
    return sizes


def _bytes_of(element: Raw, title: str) -> int:
    """Return the bytes of an element. Raises `InvalidRequest` for a text that has a NUL or is not Unicode."""
    if isinstance(element, bytes):
        return len(element)
    if "\0" in element:
        raise InvalidRequest(f"{title} has a NUL: remove it")
    if element.isascii():
        return len(element)
    try:
        return len(element.encode())
    except UnicodeEncodeError:
        raise InvalidRequest(
            f"{title} has half of a surrogate pair, which is not a character: send whole pairs"
        ) from None


class Preparing:
    """Makes rows in `Limits.preparing` threads, for at most `Limits.preparing_calls` calls that have begun or wait.

    A call is cut into parts, and gives up its thread after each to those that came meanwhile. A call that is cancelled
    or too late gets no more threads; a part that a thread has begun is completed and dropped.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._calls = 0
        self._free = asyncio.Semaphore(limits.preparing)
        self._threads = ThreadPoolExecutor(limits.preparing, "latebind-preparing")  # each starts when it is needed

    async def rows(
        self, preprocessor: Preprocessor, given: Given, sizes: Sequence[int], how: Reading, *, deadline: float
    ) -> list[Prepared]:
        """Return a row for each element of what is given, which has these `sizes` in bytes (`check`).

        Raises `Refused`, `Expired` and what `Preprocessor.prepare` raises.
        """
        media = {one.name: one.media for one in preprocessor.raw}
        if len(sizes) <= FEW and sum(sizes) <= SHORT and all(media[name] is Media.TEXT for name in given):
            return _read(preprocessor, given, how)
        if self._calls >= self._limits.preparing_calls:
            raise Refused(f"{self._calls} calls wait for their inputs to be read: try again later")
        self._calls += 1
        found: list[Prepared] = []
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                for begin, end in parts(sizes):
                    part = {name: some[begin:end] for name, some in given.items()}
                    found += await self._in_thread(partial(_read, preprocessor, part, how), begin)
        except TimeoutError:
            raise Expired("the inputs could not be read by the deadline: allow more time (`timeout`)") from None
        finally:
            self._calls -= 1
        return found

    def close(self) -> None:
        """Let threads end after what they have begun."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _in_thread(self, read: Callable[[], list[Prepared]], before: int) -> list[Prepared]:
        """Read a part in a thread; `before` is how many elements precede it."""
        await self._free.acquire()
        loop = asyncio.get_running_loop()
        future = self._threads.submit(read)

        def over(_: Future[list[Prepared]]) -> None:
            with suppress(RuntimeError):  # the loop has closed
                loop.call_soon_threadsafe(self._free.release)

        future.add_done_callback(over)
        try:
            return await asyncio.wrap_future(future)
        except InvalidRequest as error:
            if not before:
                raise
            raise InvalidRequest(ELEMENT.sub(lambda found: f"element {int(found[1]) + before}", str(error))) from None


def _read(preprocessor: Preprocessor, given: Given, how: Reading) -> list[Prepared]:
    try:
        return preprocessor.prepare(given, how)
    except MemoryError:
        raise Refused("not enough memory to read the inputs: send fewer, or try again later") from None


def parts(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield begin and end of each run of elements that a thread takes at once; the end is exclusive."""
    begin, size = 0, 0
    for number, one in enumerate(sizes):
        if number > begin and (number - begin >= PART or size + one > PART_BYTES):
            yield begin, number
            begin, size = number, 0
        size += one
    yield begin, len(sizes)
