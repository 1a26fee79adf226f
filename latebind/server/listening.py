"""The sockets that a server listens on: where it cannot, why not and what to do; and how many it may have open."""

import errno
import logging
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress

from latebind.domain.config import FrontendConfig
from latebind.domain.errors import ConfigError

BACKLOG = 2048  # connections that nobody has accepted yet
OTHERS = 256  # descriptors that are no connections: models, engines, logs
TAKEN = "it is taken; name another port, or 0 for any that is free"
WHY = {
    errno.EADDRINUSE: TAKEN,
    errno.EADDRNOTAVAIL: "this machine has no such address; 127.0.0.1 is this machine alone, 0.0.0.0 all that it has",
    errno.EACCES: "this user may not have it; take a port from 1024 on",
}

log = logging.getLogger(__name__)


def families(host: str) -> tuple[str, ...]:
    """Return which versions of IP a frontend at this address speaks: gRPC's server makes the same of `::`."""
    if host == "::" and socket.has_dualstack_ipv6():
        return ("IPv4", "IPv6")
    return ("IPv6",) if ":" in host else ("IPv4",)


def listen(host: str, port: int, key: str = "server") -> socket.socket:
    """Return a socket that listens there; at `::` for IPv4 too, where the system can (`families`).

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


def waiting_at(listening: socket.socket) -> Iterator[socket.socket]:
    """Yield the connections that the kernel accepted and this process has not; none if the socket is closed."""
    if listening.fileno() < 0:
        return
    listening.setblocking(False)
    with suppress(BlockingIOError):
        while True:
            with suppress(ConnectionError):  # it has gone
                yield listening.accept()[0]


def check_addresses(config: FrontendConfig) -> None:
    """Raise `ConfigError` if the frontend could not listen at its addresses, before anything slow begins.

    The sockets are closed again, so until the frontend opens clients are refused and do not wait.
    """
    with ExitStack() as stack:
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
