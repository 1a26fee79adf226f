"""What of a model comes to memory and goes as one: a stage, or the learned caches behind one."""

import ctypes
import gc
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

from latebind.program.backends import Place, StageFunction, backend_named
from latebind.repository.pages import Brought
from latebind.repository.tensors import Pages

KIB = 1 << 10
LARGE_BLOCK = 4 << 20
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's mallopt


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

    def found(self, grown: int) -> None:
        """Hear by how many bytes the process has grown since before it was loaded, once it has run."""

    def load(self) -> Brought:
        """Bring it into memory. Raises whatever goes wrong; then nothing of it stays."""
        ...

    def unload(self) -> None:
        """Give its memory back, at once."""
        ...


class MappedPiece:
    """Stages that compute on weights as they lie in mapped files: they are made once, and hold the pages."""

    def __init__(self, pages: Sequence[Pages], stages: Sequence[tuple[Place, StageFunction]]) -> None:
        self._pages = pages
        self._stages = stages
        self.weights = self.size = sum(part.size for part in pages)

    def load(self) -> Brought:
        """Read the pages."""
        brought = hold_all(self._pages)
        for place, stage in self._stages:
            place.fill(stage)
        return brought

    def found(self, grown: int) -> None:
        """Its pages are all that it takes."""

    def unload(self) -> None:
        """Give the pages back."""
        for place, _ in self._stages:
            place.empty()
        let_go_all(self._pages)


class CompiledPiece:
    """Stages that are compiled anew whenever they are loaded, each for its place.

    Where the backend `copies`, pages of weights go again as soon as all is compiled.
    """

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


def let_go_all(pages: Sequence[Pages]) -> None:
    """Give all pages back."""
    for part in pages:
        part.let_go()


def give_back() -> None:
    """Have what nobody refers to any more go back to the system."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def set_large_blocks_apart() -> None:
    """Have the C library take large blocks from the system one by one, for the rest of this process.

    Once some were freed it would cut others of their size from its heap, where some outlived what they were for
    (two stages of 17 MB each, compiled and dropped a dozen times, left 0 to 50 MB behind, now none). Activations stay
    in the heap: to have their pages anew for every run would cost more than the run.
    """
    library = ctypes.CDLL(None)
    library.mallopt(M_MMAP_THRESHOLD, LARGE_BLOCK)
    library.mallopt(M_TRIM_THRESHOLD, 2 * LARGE_BLOCK)


def resident_bytes(process: int | str = "self") -> int:
    """Return the bytes of memory that a process takes, counted page by page."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * KIB for line in lines if line.startswith("Rss:"))
