"""The sockets that a server listens on: errors with their reasons and advice, and how many may be open."""

import errno
import logging
import os
import resource
import socket
import stat
from collections.abc import Iterator
from contextlib import ExitStack, suppress

from latebind.domain.config import FrontendConfig
from latebind.domain.errors import ConfigError

BACKLOG = 2048  # connections that nobody has accepted yet
OF_GROUP = 0o660  # who may connect to a Unix socket: the server's user and group
LONGEST_PATH = 107  # bytes of the path of a Unix socket (unix(7))
OTHERS = 256  # descriptors that are no connections: models, engines, logs
TAKEN = "it is in use; choose another port, or 0 for any free one"
WHY = {
    errno.EADDRINUSE: TAKEN,
    errno.EADDRNOTAVAIL: "this machine has no such address; use 127.0.0.1 for this machine only, 0.0.0.0 for all",
    errno.EACCES: "this user may not use it; choose a port from 1024 on",
}

log = logging.getLogger(__name__)


def families(host: str) -> tuple[str, ...]:
    """Return which versions of IP a frontend at this address speaks; gRPC's server treats `::` the same way."""
    if host == "::" and socket.has_dualstack_ipv6():
        return ("IPv4", "IPv6")
    return ("IPv6",) if ":" in host else ("IPv4",)


def listen(host: str, port: int, key: str = "server") -> socket.socket:
    """Return a socket that listens there; at `::` for IPv4 too, where the system supports it (`families`).

    Raises `ConfigError`, which names `key`, the configuration's section.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    both = family == socket.AF_INET6 and len(families(host)) > 1
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG, dualstack_ipv6=both)
    except OSError as error:
        raise ConfigError(
            f"{key}: cannot listen on {host} port {port}: {WHY.get(error.errno or 0, error.strerror)}"
        ) from None


def listen_at(path: str) -> socket.socket:
    """Return a Unix socket that listens at `path`, for this process's user and group.

    A socket left by a killed server, at which nobody listens, is replaced. Raises `ConfigError`.
    """
    _check_path(path)
    listening = socket.socket(socket.AF_UNIX)
    try:
        with suppress(FileNotFoundError):
            os.unlink(path)
        listening.bind(path)
        os.chmod(path, OF_GROUP)  # nobody can connect before `listen`
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise ConfigError(f"server.unix: cannot listen at {path}: {error.strerror or error}") from None
    return listening


def _check_path(path: str) -> None:
    """Raise `ConfigError` if no socket can be made there, or if there is one at which somebody listens."""
    if len(os.fsencode(path)) > LONGEST_PATH:
        raise ConfigError(f"server.unix: {path} is too long for a socket: name one of {LONGEST_PATH} bytes at most")
    with socket.socket(socket.AF_UNIX) as trial:
        try:
            if not stat.S_ISSOCK(os.lstat(path).st_mode):
                raise ConfigError(f"server.unix: {path} exists and is not a socket: name another path, or remove it")
            trial.setblocking(False)
            trial.connect(path)
        except FileNotFoundError:
            folder = os.path.dirname(os.path.abspath(path))
            if not os.access(folder, os.W_OK | os.X_OK):
                raise ConfigError(
                    f"server.unix: no file can be created in {folder}: make that folder writable"
                ) from None
        except ConnectionRefusedError:
            pass  # nobody listens there any more
        except OSError as error:  # of another kind, or full
            raise ConfigError(f"server.unix: cannot listen at {path}: {error.strerror or error}") from None
        else:
            raise ConfigError(f"server.unix: another process listens at {path}: stop it, or name another path")


def remove(path: str, made: int) -> None:
    """Remove the Unix socket with the inode `made`, unless another one has taken its place."""
    with suppress(FileNotFoundError):
        if os.lstat(path).st_ino == made:
            os.unlink(path)


def waiting_at(listening: socket.socket) -> Iterator[socket.socket]:
    """Yield the connections that the kernel has accepted and this process has not; none if the socket is closed."""
    if listening.fileno() < 0:
        return
    listening.setblocking(False)
    with suppress(BlockingIOError):
        while True:
            with suppress(ConnectionError):  # the client has gone
                yield listening.accept()[0]


def check_addresses(config: FrontendConfig) -> None:
    """Raise `ConfigError` if the frontend could not listen at its addresses, before anything slow begins.

    The sockets are closed again, so until the frontend opens clients are refused and do not wait.
    """
    with ExitStack() as stack:
        if config.unix:
            _check_path(config.unix)
        else:
            stack.enter_context(listen(config.host, config.port))
        if config.grpc_port is not None:
            stack.enter_context(listen(config.host, config.grpc_port, "server.grpc_port"))


def raise_file_limit(connections: int) -> None:
    """Raise this process's limit of open files; warn if that many connections may need more than is allowed.

    Each connection takes one, and a process starts with a lower limit than it may have.
    """
    wanted = connections + OTHERS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = max(soft, wanted) if hard == resource.RLIM_INFINITY else hard
    if soft not in (most, resource.RLIM_INFINITY):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    if most < wanted:
        log.warning(
            "this process may open %d files, and %d connections need %d: raise the limit (ulimit -Hn, LimitNOFILE)",
            most,
            connections,
            wanted,
        )
