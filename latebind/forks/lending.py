"""Lets processes of a machine share imports: one's fork server is forked from another's, without importing torch again.

The borrower sends the socket on which its fork server will serve. That server ends with the borrower, not with the
lender. Replicas are told the lender's path, other processes find it in their environment.
"""

import os
import socket
from contextlib import suppress
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import Self

from latebind.forks.client import LENT, ForkServer
from latebind.forks.socket_path import short_path

BORROWED, NAME = "latebind.forks.borrowed", "latebind-forks"
VARIABLE = "LATEBIND_LENDER"  # environment variable with the path of a lender
PATIENCE = 5.0  # seconds to wait for a borrower's message


def own() -> ForkServer:
    """Return a fork server for this process, forked from a lender's if the environment names one."""
    place = os.environ.get(VARIABLE)
    return ForkServer(Path(place) if place else None)


class Lender:
    """Lends what `forks` has imported, at the path `place`, within the context.

    Whoever may open the path may borrow.
    """

    def __init__(self, forks: ForkServer, place: Path) -> None:
        self._forks = forks
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with short_path(place) as name:
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
            with asked, suppress(OSError):  # a borrower that gets no answer starts its own fork server
                asked.settimeout(PATIENCE)
                self._lend(asked)

    def _lend(self, asked: socket.socket) -> None:
        _, theirs, _, _ = socket.recv_fds(asked, len(LENT), 1)
        try:
            self._forks.fork(BORROWED, (), name=NAME, inherited=theirs)
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        asked.send(LENT)
