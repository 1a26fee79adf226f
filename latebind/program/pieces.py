"""Pieces: the parts of a model that are loaded and evicted as one. A stage, or the learned caches behind one."""

import ctypes
import gc
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

from torch import Tensor

from latebind.domain.errors import LatebindError
from latebind.program.backends import StageFunction, backend_named, twin
from latebind.repository.tensors import BytesRead, Pages

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

    Calls that are under way when it is emptied run to their end.
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

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Run the stage; raises `NotResident` if it is not in memory."""
        stage = self._stage
        if stage is None:
            raise NotResident("a stage was called that is not in memory: report this with an event log")
        return stage(*inputs)


class Piece:
    """One piece. For one thread at a time; meanwhile other threads may call stages of other pieces.

    `weights` are the bytes of its weights, which is the least that it takes, `size` the bytes that it takes, as far as
    is known.
    """

    def __init__(self, pages: Sequence[Pages], places: Iterable[EvictableStage]) -> None:
        self._pages = pages
        self._places = tuple(places)
        self.weights = self.size = sum(part.size for part in pages)

    def load(self) -> BytesRead:
        """Load it. Raises whatever goes wrong, and then nothing of it stays loaded."""
        raise NotImplementedError

    def unload(self) -> None:
        """Free its memory at once."""
        raise NotImplementedError

    def measured(self, grown: int) -> None:
        """Take note of the growth of the process, in bytes, by loading and running this piece and nothing else."""

    def _empty(self) -> None:
        for place in self._places:
            place.empty()


class MappedPiece(Piece):
    """Stages that compute on weights in mapped files, made once. All that they take are pages, which loading holds."""

    def __init__(self, pages: Sequence[Pages], stages: Sequence[tuple[EvictableStage, StageFunction]]) -> None:
        super().__init__(pages, (place for place, _ in stages))
        self._stages = stages
        self._held: Sequence[Pages] = ()

    def load(self) -> BytesRead:
        """Read the pages."""
        read = hold_all(self._pages)
        self._held = self._pages
        for place, stage in self._stages:
            place.fill(stage)
        return read

    def unload(self) -> None:
        """Release the pages."""
        self._empty()
        gone, self._held = self._held, ()
        release_all(gone)


class CompiledPiece(Piece):
    """Stages that are compiled again whenever they are loaded.

    If the backend `copies` weights, their pages are released as soon as all stages are compiled.
    """

    def __init__(
        self,
        pages: Sequence[Pages],
        makings: Sequence[tuple[EvictableStage, Callable[[], StageFunction]]],
        *,
        copies: bool,
    ) -> None:
        super().__init__(pages, (place for place, _ in makings))
        self._makings = makings
        self._copies = copies

    def load(self) -> BytesRead:
        """Compile the stages."""
        read = hold_all(self._pages)
        with ExitStack() as undone:
            undone.callback(release_all, self._pages)
            undone.callback(self._empty)
            for place, make in self._makings:
                place.fill(make())
            undone.pop_all()  # all are compiled: keep them
        if self._copies:
            release_all(self._pages)
        release_memory()
        return read

    def measured(self, grown: int) -> None:
        """Take the growth as its size, but no less than its weights."""
        self.size = max(self.weights, grown)

    def unload(self) -> None:
        """Drop the compiled stages: a part of one is useless."""
        self._empty()
        if not self._copies:
            release_all(self._pages)

    def _empty(self) -> None:
        super()._empty()
        release_memory()


def make_piece(
    pages: Sequence[Pages], makes: Sequence[Callable[[], StageFunction]], *, backend: str
) -> tuple[Piece, tuple[EvictableStage, ...]]:
    """Return a piece of stages on this backend of the CPU, not loaded yet, and the stages.

    `makes` compile the stages from weights in `pages`.
    """
    chosen = backend_named(backend)
    places = tuple(EvictableStage() for _ in makes)
    if chosen.compiles and makes:
        mmap_large_blocks()
        return CompiledPiece(pages, tuple(zip(places, makes, strict=True)), copies=chosen.copies_weights), places
    return MappedPiece(pages, tuple((place, make()) for place, make in zip(places, makes, strict=True))), places


def hold_all(pages: Sequence[Pages]) -> BytesRead:
    """Hold all pages in memory, or none if that raises `RepositoryError`."""
    read = BytesRead()
    with ExitStack() as held:
        for part in pages:
            read += part.hold()
            held.callback(part.release)
        held.pop_all()  # all are held: keep them
    return read


def release_all(pages: Sequence[Pages]) -> None:
    """Release all pages."""
    for part in pages:
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
    memory is limited, large activations are mapped in the same way: what the arenas of the workers' threads keep of
    freed ones cannot be predicted. Small blocks stay in the heap, where their pages are reused.
    """
    library = ctypes.CDLL(None)
    library.mallopt(M_MMAP_THRESHOLD, LARGE_BLOCK)
    library.mallopt(M_TRIM_THRESHOLD, 2 * LARGE_BLOCK)


def resident_bytes(process: int | str = "self") -> int:
    """Return the resident memory of a process in bytes, counted page by page."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * KIB for line in lines if line.startswith("Rss:"))


def peak_growth(work: Callable[[], Done]) -> tuple[Done, int]:
    """Return the result of `work`, and the peak growth of this process in bytes; 0 if Linux does not report it.

    The work is done twice, on a thread of its own, and the second time counts: what is only created once is not
    counted. During that, every block but the smallest is mapped by itself and returned when it is freed. So what is
    counted is what was in use, the same each time, without the effects of the C library's heap. After that large blocks
    are mapped by themselves (`mmap_large_blocks`).
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
    before = _status_bytes("VmRSS")
    done = work()
    return done, max(0, _status_bytes("VmHWM") - before)


def _status_bytes(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * KIB for line in lines if line.startswith(f"{name}:"))
