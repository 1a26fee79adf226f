"""TLS for the frontend: the configured files, read again once they change; and a server that counts handshakes."""

import asyncio
import logging
import os
import socket
import ssl
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from threading import Lock
from typing import Self

from latebind.domain.config import FrontendConfig
from latebind.domain.errors import ConfigError

LATE_SECONDS = 1.0  # for the handshake of a client that connects while the frontend closes
AGAIN_SECONDS = 0.1
LOOK_SECONDS = 1.0  # between looks at the files, of which each connection asks for one

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Loaded:
    """Files that fit together, as a context and as bytes; `authority` signs clients' certificates, if they need any."""

    context: ssl.SSLContext
    certificate: bytes
    key: bytes
    authority: bytes | None


class Certificates:
    """The files that a configuration names, as last read. Once they are replaced, new connections get the new ones.

    If new files cannot be used, the last usable ones stay, and the log says why, once. Thread-safe.
    """

    def __init__(self, config: FrontendConfig) -> None:
        """Read them. Raises `ConfigError`."""
        self._config = config
        self._files = [name for name in (config.tls_cert, config.tls_key, config.tls_client_ca) if name]
        self._lock = Lock()
        self._looked = -inf
        self._seen: object = None
        self._loaded = self._read()

    @classmethod
    def of(cls, config: FrontendConfig) -> Self | None:
        """Return the certificates of a configuration, None if it has none. Raises `ConfigError`."""
        return cls(config) if config.tls_cert else None

    def current(self) -> Loaded:
        """Return what to serve a new connection with."""
        with self._lock:
            if time.monotonic() - self._looked >= LOOK_SECONDS:
                self._look()
            return self._loaded

    def look(self) -> None:
        """Look at the files now."""
        with self._lock:
            self._look()

    def _look(self) -> None:
        self._looked = time.monotonic()
        if self._fingerprints() == self._seen:
            return
        try:
            self._loaded = self._read()
        except (ConfigError, OSError) as error:
            log.error("new connections still get the previous certificate: %s", error)
        else:
            log.info("new connections now get the certificate in %s", self._config.tls_cert)

    def _read(self) -> Loaded:
        """Read the files. Raises `ConfigError`; they are not tried again until they change."""
        self._looked, self._seen = time.monotonic(), self._fingerprints()
        context = server_context(self._config)
        assert context is not None
        certificate, key, *authority = [Path(name).read_bytes() for name in self._files]
        if self._fingerprints() != self._seen:
            raise ConfigError(f"{', '.join(self._files)} changed while they were read: try again")
        return Loaded(context, certificate, key, authority[0] if authority else None)

    def _fingerprints(self) -> object:
        """Return values that change when a file does; None for a file that does not exist."""
        found = list[tuple[int, ...] | None]()
        for name in self._files:
            try:
                about = os.stat(name)
            except OSError:
                found.append(None)
            else:
                found.append((about.st_mtime_ns, about.st_ino, about.st_size))
        return found


def server_context(config: FrontendConfig) -> ssl.SSLContext | None:
    """Return a context for TLS 1.2 and later, or None if none is configured. Raises `ConfigError`."""
    if not config.tls_cert:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _check_readable(config.tls_cert, config.tls_key)
    try:
        context.load_cert_chain(config.tls_cert, config.tls_key, password=_no_password)
    except ssl.SSLError as error:
        what = f"server.tls_cert {config.tls_cert} and server.tls_key {config.tls_key}"
        raise ConfigError(f"{what} do not match: {_reason(error)}; give a certificate and its key, as PEM") from None
    if config.tls_client_ca:
        _check_readable(config.tls_client_ca)
        try:
            context.load_verify_locations(config.tls_client_ca)
        except ssl.SSLError as error:
            raise ConfigError(
                f"server.tls_client_ca {config.tls_client_ca} is not a certificate: {_reason(error)}"
            ) from None
        context.verify_mode = ssl.CERT_REQUIRED
    return context


class TlsServer:
    """Accepts connections on a listening socket, and serves each behind TLS by a protocol that `made` returns.

    Each gets the `context` current when it is accepted.

    asyncio's own server reports no connection before its handshake has ended, and waits a minute for that: any number
    of clients that connect and send nothing would cost descriptors that no limit counts. Here `arriving` are the
    connections in their handshake, each for `patience` seconds at most. One is closed at once if there are `most`
    already, including the `others` past their handshake: an error reply would cost the handshake.
    """

    def __init__(
        self,
        listening: socket.socket,
        context: Callable[[], ssl.SSLContext],
        made: Callable[[], asyncio.Protocol],
        others: Collection[object],
        *,
        most: int,
        patience: float,
    ) -> None:
        self.arriving: set[asyncio.Task[None]] = set()
        self._listening = listening
        self._context = context
        self._made = made
        self._others = others
        self._most = most
        self._patience = patience
        listening.setblocking(False)
        self._accepting = asyncio.get_running_loop().create_task(self._accept())

    def close(self) -> None:
        """Accept no more and close the socket; handshakes go on until `ended`."""
        self._accepting.cancel()

    async def ended(self, *, seconds: float = 0.0) -> None:
        """Return when no connection is in its handshake; those that still are after `seconds` are closed."""
        await asyncio.wait((self._accepting,))
        if self.arriving:
            await asyncio.wait(self.arriving, timeout=seconds)
        for task in self.arriving:
            task.cancel()

    def take(self, line: socket.socket) -> None:
        """Serve a connection that was accepted."""
        if len(self.arriving) + len(self._others) >= self._most:
            line.close()
            return
        task = asyncio.get_running_loop().create_task(self._shake_hands(line))
        self.arriving.add(task)
        task.add_done_callback(self.arriving.discard)

    async def _accept(self) -> None:
        """The root of a task."""
        loop = asyncio.get_running_loop()
        with self._listening:
            while True:
                try:
                    line, _ = await loop.sock_accept(self._listening)
                except ConnectionError:  # the client has gone
                    continue
                except OSError:  # no descriptor is free, or no memory: some will be once others go
                    await asyncio.sleep(AGAIN_SECONDS)
                    continue
                self.take(line)

    async def _shake_hands(self, line: socket.socket) -> None:
        """The root of a task."""
        with suppress(OSError):  # no TLS, too late, or the client has gone; errors of TLS are OSErrors
            await asyncio.get_running_loop().connect_accepted_socket(
                self._made, line, ssl=self._context(), ssl_handshake_timeout=self._patience
            )


def _check_readable(*names: str) -> None:
    """Raise `ConfigError` for a file that cannot be read; OpenSSL does not say which file it was."""
    for name in names:
        try:
            Path(name).open("rb").close()
        except OSError as error:
            raise ConfigError(f"{name}, which TLS needs, cannot be read: {error.strerror}") from None


def _no_password() -> str:
    """Raise instead of prompting for a password on the terminal, which would block the start."""
    raise ConfigError("server.tls_key is encrypted: give a key without a password, readable only by its owner")


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or "broken").replace("_", " ").lower()
