"""What of a model comes to memory and goes as one: a stage, or the learned caches behind one."""

import ctypes
import gc
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol, TypeVar

from latebind.domain.errors import RepositoryError
from latebind.program.backends import Place, StageFunction, backend_named
from latebind.repository.pages import Brought
from latebind.repository.tensors import Pages

Done = TypeVar("Done")

KIB = 1 << 10
GRAIN = 4 << 20  # bytes: finer ones save less than 0.1 % of loading
LARGE_BLOCK = 4 << 20
SMALL_BLOCK = 64 * KIB  # of those that are measured
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
FORGET_PEAK = "5"  # to clear_refs: the most that the process has taken is what it takes now


class Piece(Protocol):
    """One piece. For one thread at a time, while others call the stages of other pieces."""

    @property
    def weights(self) -> int:
        """Bytes of what it reads, the least that it takes."""
        ...

    @property
    def size(self) -> int:
        """Bytes that it takes, as far as is known."""
        ...

    @property
    def grain(self) -> int:
        """Bytes any multiple of which may stay of it; 0: all or nothing."""
        ...

    def found(self, grown: int) -> None:
        """Hear by how many bytes the process has grown since before it was loaded, once it has run."""

    def load(self) -> Brought:
        """Bring it into memory, or what is not there. Raises whatever goes wrong; then nothing of it stays."""
        ...

    def trim(self, stays: int) -> None:
        """Give the memory of all but its first bytes back, at once; only where it has a grain."""
        ...

    def unload(self) -> None:
        """Give its memory back, at once."""
        ...


class MappedPiece:
    """Stages that compute on weights as they lie in mapped files: they are made once, and hold the pages."""

    grain = GRAIN

    def __init__(self, pages: Sequence[Pages], stages: Sequence[tuple[Place, StageFunction]]) -> None:
        self._pages = pages
        self._stages = stages
        self._held: Sequence[Pages] = ()
        self.weights = self.size = sum(part.size for part in pages)

    def load(self) -> Brought:
        """Read the pages that are not held."""
        there = sum([part.size for part in self._held])
        try:
            brought = hold_all(_cut(self._pages, there)[1])
        except RepositoryError:
            self.unload()
            raise
        self._held = self._pages
        for place, stage in self._stages:
            place.fill(stage)
        return brought

    def trim(self, stays: int) -> None:
        """Give back the pages that lie behind these bytes."""
        self._empty()
        self._held, gone = _cut(self._held, stays)
        let_go_all(gone)

    def found(self, grown: int) -> None:
        """Its pages are all that it takes."""

    def unload(self) -> None:
        """Give the pages back."""
        self._empty()
        gone, self._held = self._held, ()
        let_go_all(gone)

    def _empty(self) -> None:
        for place, _ in self._stages:
            place.empty()


class CompiledPiece:
    """Stages that are compiled anew whenever they are loaded, each for its place.

    Where the backend `copies`, pages of weights go again as soon as all is compiled.
    """

    grain = 0

    def __init__(
        self, pages: Sequence[Pages], makings: Sequence[tuple[Place, Callable[[], StageFunction]]], *, copies: bool
    ) -> None:
        self._pages = pages
        self._makings = makings
        self._copies = copies
        self.weights = self.size = sum(part.size for part in pages)

    def load(self) -> Brought:
        """Compile."""
        brought = hold_all(self._pages)
        with ExitStack() as undone:
            undone.callback(let_go_all, self._pages)
            undone.callback(self._empty)
            for place, make in self._makings:
                place.fill(make())
            undone.pop_all()  # nothing went wrong: it stays
        if self._copies:
            let_go_all(self._pages)
        give_back()
        return brought

    def found(self, grown: int) -> None:
        """Take that for its size, if nothing else was at work meanwhile; it is no less than the weights."""
        self.size = max(self.weights, grown)

    def trim(self, stays: int) -> None:
        """Drop all of it: a part of what was compiled is of no use."""
        del stays
        self.unload()

    def unload(self) -> None:
        """Drop what was compiled."""
        self._empty()
        if not self._copies:
            let_go_all(self._pages)

    def _empty(self) -> None:
        for place, _ in self._makings:
            place.empty()
        give_back()


def make_piece(
    pages: Sequence[Pages], makes: Sequence[Callable[[], StageFunction]], *, backend: str
) -> tuple[Piece, tuple[Place, ...]]:
    """Return a piece of stages on this backend of the CPU, nothing of which is in memory yet, and the place of each.

    `makes` compile them from weights that lie in `pages`.
    """
    found = backend_named(backend)
    places = tuple(Place() for _ in makes)
    if found.compiles and makes:
        set_large_blocks_apart()
        return CompiledPiece(pages, tuple(zip(places, makes, strict=True)), copies=found.copies), places
    return MappedPiece(pages, tuple((place, make()) for place, make in zip(places, makes, strict=True))), places


def hold_all(pages: Sequence[Pages]) -> Brought:
    """Have all pages present, or none: raises `RepositoryError`."""
    brought = Brought()
    with ExitStack() as held:
        for part in pages:
            brought += part.hold()
            held.callback(part.let_go)
        held.pop_all()  # nothing went wrong: they stay
    return brought


def _cut(pages: Sequence[Pages], stays: int) -> tuple[list[Pages], list[Pages]]:
    """Return the first so many bytes of some pages, and the rest."""
    first, rest = list[Pages](), list[Pages]()
    for part in pages:
        before, behind = part.cut(max(0, min(stays, part.size)))
        stays -= part.size
        first.append(before)
        rest.append(behind)
    return first, rest


def let_go_all(pages: Sequence[Pages]) -> None:
    """Give all pages back."""
    for part in pages:
        part.let_go()


def give_back() -> None:
    """Have what nobody refers to any more go back to the system."""
    gc.collect()
    trim_heap()


def trim_heap() -> None:
    """Have the C library give back what it keeps of freed blocks: of activations, in an arena of each thread's own."""
    ctypes.CDLL(None).malloc_trim(0)


def set_large_blocks_apart() -> None:
    """Have the C library take large blocks from the system one by one, for the rest of this process.

    Once some were freed it would cut others of their size from its heap, where some outlived what they were for
    (two stages of 17 MB each, compiled and dropped a dozen times, left 0 to 50 MB behind, now none). Where memory is
    limited, large activations go the same way: what the arenas of the workers' threads keep of freed ones nobody could
    foretell. Small ones stay in the heap, where they find their pages again.
    """
    library = ctypes.CDLL(None)
    library.mallopt(M_MMAP_THRESHOLD, LARGE_BLOCK)
    library.mallopt(M_TRIM_THRESHOLD, 2 * LARGE_BLOCK)


def resident_bytes(process: int | str = "self") -> int:
    """Return the bytes of memory that a process takes, counted page by page."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * KIB for line in lines if line.startswith("Rss:"))


def peak_growth(work: Callable[[], Done]) -> tuple[Done, int]:
    """Return what some work returns, and by how many bytes this process grows at most; 0 where Linux does not tell.

    It is done twice on a thread of its own, and the second time counts: what is made once is nobody's. Every block but
    the smallest is taken from the system by itself meanwhile, and goes back when it is freed. So what is counted is
    what was in use, the same each time, and not what the C library's heap made of it. From then on large blocks are
    apart.
    """
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, SMALL_BLOCK)
    try:
        with ThreadPoolExecutor(1) as thread:  # whose arena has no holes that blocks would be put into
            thread.submit(work).result()
            return thread.submit(_peak_growth, work).result()
    finally:
        set_large_blocks_apart()


def _peak_growth(work: Callable[[], Done]) -> tuple[Done, int]:
    give_back()
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
