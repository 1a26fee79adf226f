"""A process on this machine may have a fork server of its own forked from another's, and need not import torch.

Whoever borrows sends the socket that it will ask on; what it gets ends with it, not with the lender. Replicas are told
where to borrow, other processes by their environment.
"""

import os
import socket
from contextlib import suppress
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import Self

from latebind.forks.client import LENT, ForkServer
from latebind.forks.place import name_of

AGAIN, NAME = "latebind.forks.again", "latebind-forks"
VARIABLE = "LATEBIND_LENDER"  # of the environment: the place of a lender
PATIENCE = 5.0  # seconds that a borrower may take to say what it wants


def own() -> ForkServer:
    """Return a fork server for this process, forked from a lender's where the environment names one."""
    place = os.environ.get(VARIABLE)
    return ForkServer(Path(place) if place else None)


class Lender:
    """Lends what `forks` has imported, at `place`, while the block lasts. Who may open that path may borrow."""

    def __init__(self, forks: ForkServer, place: Path) -> None:
        self._forks = forks
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with name_of(place) as name:
            self._socket.bind(name)
        self._socket.listen()
        self._thread = Thread(target=self._serve, name="lender", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)  # which wakes the thread
        self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                asked, _ = self._socket.accept()
            except OSError:
                return
            with asked, suppress(OSError):  # who gets nothing starts a fork server itself
                asked.settimeout(PATIENCE)
                self._lend(asked)

    def _lend(self, asked: socket.socket) -> None:
        _, theirs, _, _ = socket.recv_fds(asked, len(LENT), 1)
        try:
            self._forks.fork(AGAIN, (), name=NAME, inherited=theirs)
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        asked.send(LENT)
