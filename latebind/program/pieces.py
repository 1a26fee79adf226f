"""Pieces: the parts of a model that are loaded and evicted as one. A stage, or the learned caches after one."""

import ctypes
import gc
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from latebind.domain.errors import LatebindError
from latebind.domain.model import TensorSpec
from latebind.program.arrays import Array, Arrays, over_arrays, run_lengths
from latebind.program.backends import StageFunction, backend_named, run_rows, twin
from latebind.repository.tensors import BytesRead, Pages

if TYPE_CHECKING:
    from torch import Tensor

Done = TypeVar("Done")

KIB = 1 << 10
LARGE_BLOCK = 4 << 20  # bytes from which a block is mapped by itself
SMALL_BLOCK = 64 * KIB  # the same, while a peak is measured
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # parameters of glibc's mallopt
FORGET_PEAK = "5"  # written to clear_refs, it resets the peak of resident memory


class NotResident(LatebindError):
    """A stage was called that is not in memory."""


class EvictableStage:
    """A stage that can be loaded and evicted; its twins are filled and emptied with it.

    Calls that are running when it is emptied run to their end.
    """

    def __init__(self) -> None:
        self._stage: StageFunction | None = None
        self._twins: list[EvictableStage] = []

    @property
    def filled(self) -> bool:
        """Whether the stage is in memory."""
        return self._stage is not None

    def twin(self) -> "EvictableStage":
        """Return the same stage for another thread."""
        made = EvictableStage()
        if self._stage is not None:
            made.fill(twin(self._stage))
        self._twins.append(made)
        return made

    def fill(self, stage: StageFunction) -> None:
        """Let `stage` answer calls from now on."""
        for place in self._twins:
            place.fill(twin(stage))
        self._stage = stage

    def empty(self) -> None:
        """Drop the stage."""
        for place in self._twins:
            place.empty()
        self._stage = None

    def __call__(self, *inputs: "Tensor") -> tuple["Tensor", ...]:
        """Run the stage; raises `NotResident` if it is not in memory."""
        return self.resident()(*inputs)

    def of_lengths(self, lengths: Sequence[int], *inputs: "Tensor") -> tuple["Tensor", ...]:
        """Run the stage on rows of these lengths (`run_rows`); raises `NotResident` if it is not in memory."""
        return run_rows(self.resident(), lengths, inputs)

    def over_arrays(self, inputs: Sequence[TensorSpec]) -> "EvictableArrays":
        """Return the stage over arrays; `inputs` are its inputs."""
        return EvictableArrays(self, inputs)

    def resident(self) -> StageFunction:
        """Return what answers calls at the moment; raises `NotResident` if nothing does."""
        stage = self._stage
        if stage is None:
            raise NotResident("a stage was called that is not in memory: report this with an event log")
        return stage


class EvictableArrays:
    """An evictable stage over arrays; raises what the stage raises."""

    def __init__(self, stage: EvictableStage, inputs: Sequence[TensorSpec]) -> None:
        self._stage = stage
        self._inputs = inputs

    def __call__(self, *inputs: Array) -> Arrays:
        """Run the stage."""
        return over_arrays(self._stage.resident(), self._inputs)(*inputs)

    def of_lengths(self, lengths: Sequence[int], *inputs: Array) -> Arrays:
        """Run the stage on rows of these lengths."""
        return run_lengths(over_arrays(self._stage.resident(), self._inputs), lengths, inputs)


class Piece:
    """Stages on one backend of the CPU that are loaded and evicted together.

    For one thread at a time; meanwhile other threads may call stages of other pieces. `weights` are the bytes of its
    weights, the least that it takes; `size` the bytes that it takes, as far as known.
    """

    def __init__(self, pages: Sequence[Pages], makes: Sequence[Callable[[], StageFunction]], *, backend: str) -> None:
        """`makes` compile the stages from weights in `pages`."""
        chosen = backend_named(backend)
        self._compiles = chosen.compiles and bool(makes)
        self._copies = chosen.copies_weights and self._compiles
        self._pages = pages
        self._held: Sequence[Pages] = ()
        self.stages = tuple(EvictableStage() for _ in makes)
        self.weights = self.size = sum(part.size for part in pages)
        if self._compiles:
            mmap_large_blocks()
            self._makes = makes
        else:  # made once: such stages take nothing but the pages of their weights, which loading holds
            made = [make() for make in makes]
            self._makes = [lambda stage=stage: stage for stage in made]  # type: ignore[misc]

    def load(self) -> BytesRead:
        """Read the pages and fill the stages. If something raises, nothing stays loaded."""
        read = BytesRead()
        with ExitStack() as undone:
            for part in self._pages:
                read += part.hold()
                undone.callback(part.release)
            undone.callback(self._empty)
            for place, make in zip(self.stages, self._makes, strict=True):
                place.fill(make())
            undone.pop_all()
        self._held = self._pages
        if self._copies:  # once all stages are compiled, nothing reads the pages
            self._release()
        if self._compiles:
            release_memory()
        return read

    def unload(self) -> None:
        """Free all of its memory; a part of a piece is useless."""
        self._empty()
        self._release()

    def measured(self, grown: int) -> None:
        """Record the growth of the process, in bytes, from loading and running this piece and nothing else.

        A compiled piece takes that, but no less than its weights.
        """
        if self._compiles:
            self.size = max(self.weights, grown)

    def _empty(self) -> None:
        for place in self.stages:
            place.empty()
        if self._compiles:
            release_memory()

    def _release(self) -> None:
        held, self._held = self._held, ()
        for part in held:
            part.release()


def release_memory() -> None:
    """Collect garbage and return free memory to the system."""
    gc.collect()
    trim_heap()


def trim_heap() -> None:
    """Make the C library return freed blocks that it keeps, such as activations in each thread's own arena."""
    ctypes.CDLL(None).malloc_trim(0)


def mmap_large_blocks() -> None:
    """Make the C library map each large block by itself, for the rest of this process.

    Otherwise, once some large blocks were freed, it would cut others of their size from its heap, where some outlived
    their use (two stages of 17 MB each, compiled and dropped a dozen times, left 0 to 50 MB behind, now none). If
    memory is limited, large activations are mapped in the same way: how much freed memory the arenas of the workers'
    threads keep cannot be predicted. Small blocks stay in the heap, where their pages are reused.
    """
    library = ctypes.CDLL(None)
    library.mallopt(M_MMAP_THRESHOLD, LARGE_BLOCK)
    library.mallopt(M_TRIM_THRESHOLD, 2 * LARGE_BLOCK)


def resident_bytes(process: int | str = "self") -> int:
    """Return the resident memory of a process in bytes, counted page by page."""
    return _bytes_in(f"/proc/{process}/smaps_rollup", "Rss")


def peak_growth(work: Callable[[], Done]) -> tuple[Done, int]:
    """Return the result of `work`, and the peak growth of this process in bytes; 0 if Linux does not report it.

    The work is done twice, on its own thread, and the second time counts, which leaves out what is created only once.
    Meanwhile every block but the smallest is mapped by itself and returned when it is freed, so the figure is what was
    in use, the same each time, without the effects of the C library's heap. Afterwards large blocks are mapped by
    themselves (`mmap_large_blocks`).
    """
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, SMALL_BLOCK)
    try:
        with ThreadPoolExecutor(1) as thread:  # its arena has no holes into which blocks would be put
            thread.submit(work).result()
            return thread.submit(_peak_growth, work).result()
    finally:
        mmap_large_blocks()


def _peak_growth(work: Callable[[], Done]) -> tuple[Done, int]:
    release_memory()
    try:
        Path("/proc/self/clear_refs").write_text(FORGET_PEAK)
    except OSError:
        return work(), 0
    before = _bytes_in("/proc/self/status", "VmRSS")
    done = work()
    return done, max(0, _bytes_in("/proc/self/status", "VmHWM") - before)


def _bytes_in(file: str, name: str) -> int:
    lines = Path(file).read_text().splitlines()
    return next(int(line.split()[1]) * KIB for line in lines if line.startswith(f"{name}:"))
