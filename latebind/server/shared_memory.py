"""System shared memory: files under /dev/shm that clients name, to read inputs from and write outputs to.

These files are never mapped: if a client shortened a mapped file, a process that reads it would be killed. Bytes
are copied with system calls, which only fail. No error message reveals a key, or more of a file than that it cannot be
used.
"""

import asyncio
import os
import re
import stat
import weakref
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from latebind.domain.errors import Exists, InvalidRequest, NotFound, TooLarge, TurnedOff
from latebind.server.gateway import Array
from latebind.server.limits import Limits

FOLDER = "/dev/shm"  # noqa: S108 - where the system keeps shared memory
KEY = re.compile(r"/?([A-Za-z0-9][A-Za-z0-9._-]{0,253})")
FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
LONGEST_NAME = 256
MOST = 1 << 62  # the largest offset or size; system calls take no more
LONG = 1 << 18  # bytes of a row after whose copy other tasks get a turn


class Registration(msgspec.Struct, frozen=True):
    """A region as a client registers it: the file, and which of its bytes."""

    key: str
    byte_size: int
    offset: int = 0


class Reference(msgspec.Struct, frozen=True):
    """Where a client says a tensor lies: the name of a region, and bytes of it. `size` is None if it was not given."""

    region: str
    size: int | None = None
    offset: int = 0


class Region:
    """Bytes of an open file. The file is closed when the region is no longer referred to."""

    def __init__(self, registration: Registration, folder: str = FOLDER) -> None:
        self.registration = registration
        self.file = _open(os.path.join(folder, registration.key.removeprefix("/")))
        weakref.finalize(self, os.close, self.file)
        if registration.offset + registration.byte_size > os.fstat(self.file).st_size:
            raise InvalidRequest(
                "offset and byte_size go beyond the end of the shared memory: register only what exists"
            )


class Place(msgspec.Struct, frozen=True):
    """Bytes of a region for one tensor. It keeps the region open."""

    name: str
    region: Region
    offset: int
    size: int

    async def read_into(self, rows: Sequence[Array]) -> None:
        """Copy a tensor into these rows, which together have as many bytes as the place. Raises `InvalidRequest`.

        It does not use a thread, which might go on writing into rows after the call has released them. Instead, other
        tasks get a turn after each long row.
        """
        position = self.region.registration.offset + self.offset
        for row in rows:
            bytes_ = row.reshape(-1).view(np.uint8).data
            try:
                read = os.preadv(self.region.file, [bytes_], position)
            except OSError:
                raise _lost() from None
            if read != len(bytes_):
                raise _lost()
            position += read
            if len(bytes_) >= LONG:
                await asyncio.sleep(0)

    def write(self, data: memoryview) -> None:
        """Copy a tensor to the place. Raises `InvalidRequest`; it never makes a shortened file longer."""
        size = data.nbytes
        if size > self.size:
            raise InvalidRequest(f"region {self.name!r} needs {size} bytes: shared_memory_byte_size is {self.size}")
        file, position = self.region.file, self.region.registration.offset + self.offset
        try:
            written = size <= os.fstat(file).st_size - position and os.pwrite(file, data, position)
        except OSError:
            raise _lost() from None
        if written != size:
            raise _lost()


class Regions:
    """The regions that clients have registered, by the names that they chose.

    Keys must begin with one of `prefixes`, which the operator names; without prefixes nothing can be registered.
    """

    def __init__(self, prefixes: Iterable[str] = (), limits: Limits | None = None, *, folder: str = FOLDER) -> None:
        self._prefixes = tuple(prefix.removeprefix("/") for prefix in prefixes)
        self._limits = limits or Limits()
        self._folder = folder
        self._regions: dict[str, Region] = {}

    @property
    def on(self) -> bool:
        """Whether the operator has turned shared memory on."""
        return bool(self._prefixes)

    def register(self, name: str, registration: Registration) -> None:
        """Open a region.

        Raises `TurnedOff`, `Exists`, `TooLarge` for too many or too large regions, and `InvalidRequest` for a wrong
        name, key, file or number.
        """
        if not self.on:
            raise TurnedOff(
                "shared memory is off: start the server with --shared-memory PREFIX, or send the tensors in the call"
            )
        if not 1 <= len(name) <= LONGEST_NAME:
            raise InvalidRequest(f"the name of the region has {len(name)} characters: give it 1 to {LONGEST_NAME}")
        if name in self._regions:
            raise Exists(f"there is a region {name!r:.140} already: unregister it first")
        if len(self._regions) >= self._limits.regions:
            raise TooLarge(f"there are {self._limits.regions} regions already: unregister one first")
        for about, value, least in (("offset", registration.offset, 0), ("byte_size", registration.byte_size, 1)):
            if not least <= value <= MOST:
                raise InvalidRequest(f"{about} is {value!s:.40}: give {least} or more bytes")
        if registration.byte_size > self._limits.region_bytes:
            raise TooLarge(f"byte_size is {registration.byte_size}: a region has at most {self._limits.region_bytes}")
        found = KEY.fullmatch(registration.key)
        if found is None or not found[1].startswith(self._prefixes):
            raise InvalidRequest("this key is not allowed: use one with a prefix of the server's --shared-memory")
        self._regions[name] = Region(registration, self._folder)

    def unregister(self, name: str | None = None) -> None:
        """Forget a region, or all of them; one in use is closed after its last call. An unknown name is no error."""
        if name is None:
            self._regions.clear()
        else:
            self._regions.pop(name, None)

    def status(self, name: str | None = None) -> list[dict[str, object]]:
        """Return what is registered, by name. Raises `NotFound`."""
        names = sorted(self._regions) if name is None else [name]
        return [{"name": one, **msgspec.structs.asdict(self._region(one).registration)} for one in names]

    def place(self, reference: Reference) -> Place:
        """Return the bytes that a client refers to. Raises `InvalidRequest`, `NotFound` and `TurnedOff`."""
        if not self.on:
            raise TurnedOff(
                "shared memory is off: send the tensors in the call, or start the server with --shared-memory PREFIX"
            )
        region = self._region(reference.region)
        offset, size = reference.offset, reference.size
        if size is None:
            raise InvalidRequest(f"region {reference.region!r:.140} is given without shared_memory_byte_size")
        most = region.registration.byte_size
        if not (0 <= offset <= most and 0 <= size <= most - offset):
            raise InvalidRequest(
                f"{size!s:.40} bytes at {offset!s:.40} go beyond region {reference.region!r:.140}, which has {most}"
            )
        return Place(reference.region, region, offset, size)

    def _region(self, name: str) -> Region:
        if name not in self._regions:
            raise NotFound(f"there is no shared memory region {name!r:.140}: register it first")
        return self._regions[name]


def _open(path: str) -> int:
    """Return a descriptor of a regular file. Raises `InvalidRequest`."""
    refused = InvalidRequest("this key cannot be opened: create the shared memory first, readable by the server")
    try:
        file = os.open(path, FLAGS)
    except OSError:
        raise refused from None
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise refused
    return file


def _lost() -> InvalidRequest:
    return InvalidRequest("a shared memory region was shortened after it was registered: restore its size")
