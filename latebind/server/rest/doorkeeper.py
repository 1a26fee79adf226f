"""Decides which HTTP requests are let in, by token, Host and Origin. `access.py` knows the tokens."""

from collections.abc import Iterable, Sequence

from latebind.domain.config import DoorConfig, is_loopback
from latebind.domain.errors import InvalidRequest
from latebind.server.access import Access, Guard
from latebind.server.limits import Foreign

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")


class Doorkeeper:
    """Checks the headers of a call.

    A page on any site can make a browser call a server on loopback, and can read the answers once it points a host name
    of its own there (DNS rebinding). So on loopback the Host must be a loopback name, the address listened on or one of
    `allow_hosts`, and an Origin must be the host that is called. If `allow_hosts` are given, this applies to other
    addresses too. Health checks are always let in.
    """

    def __init__(self, config: DoorConfig, guard: Guard) -> None:
        self._guard = guard
        self._any_host = not (is_loopback(config.host) or config.allow_hosts)
        address = f"[{config.host}]" if ":" in config.host else config.host
        self._names = _lower((*LOOPBACK_NAMES, address, *config.allow_hosts))
        self._origins = _lower(config.allow_hosts)

    def admit(self, access: Access, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """Return if a call of this kind may go on, else raise `Foreign`, `InvalidRequest` or `Denied`."""
        if access is Access.OPEN:
            return
        found = dict(headers)
        if len(found) < len(headers):
            _refuse_two_hosts(headers)
        host, origin = found.get(b"host"), found.get(b"origin")
        if host is not None and not self._any_host:
            self._check_host(host)
        if origin is not None:
            self._check_origin(origin, host or b"")
        self._guard.check(access, found.get(b"authorization"))

    def _check_host(self, host: bytes) -> None:
        if host in self._names:
            return
        whole = host.lower()
        name, _, port = whole.rpartition(b":")
        if whole not in self._names and not (port.isdigit() and name in self._names):
            raise Foreign("the Host of the request is none of this server's: name it with --allow-host")

    def _check_origin(self, origin: bytes, host: bytes) -> None:
        """Refuse a call from a page of another site. The scheme may differ, because a proxy may add TLS."""
        authority = origin.lower().partition(b"://")[2]
        if not authority or (authority != host.lower() and authority not in self._origins):
            raise Foreign("the request comes from a page of another site, which may not call this server")


def _refuse_two_hosts(headers: Sequence[tuple[bytes, bytes]]) -> None:
    if sum(name == b"host" for name, _ in headers) > 1:
        raise InvalidRequest("the request has several Host headers")


def _lower(names: Iterable[str]) -> frozenset[bytes]:
    return frozenset(name.lower().encode() for name in names)
