"""Whom HTTP lets in, by its token and by the host and origin that browsers tell. `access.py` knows what tokens open."""

from collections.abc import Iterable, Sequence

from latebind.domain.config import DoorConfig, is_loopback
from latebind.domain.errors import InvalidRequest
from latebind.server.access import Access, Guard
from latebind.server.limits import Foreign

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")


class Doorkeeper:
    """Looks at the headers of a call.

    A page on any site can have a browser call a server on loopback, and read the answers once it points a name of its
    own there (DNS rebinding). So on loopback the Host must be a loopback name, the address listened on or one of
    `allow_hosts`, and an Origin must be the host that the call is for. Where `allow_hosts` are given, they count on
    other addresses too. Health is told to whoever asks.
    """

    def __init__(self, config: DoorConfig, guard: Guard) -> None:
        self._guard = guard
        self._any_host = not (is_loopback(config.host) or config.allow_hosts)
        address = f"[{config.host}]" if ":" in config.host else config.host
        self._names = _lower((*LOOPBACK_NAMES, address, *config.allow_hosts))
        self._origins = _lower(config.allow_hosts)

    def admit(self, access: Access, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """Let a call of this kind pass, or raise `Foreign`, `InvalidRequest` or `Denied`."""
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
        """Refuse what a page of another site asks for; the scheme may differ, for a proxy may add TLS."""
        authority = origin.lower().partition(b"://")[2]
        if not authority or (authority != host.lower() and authority not in self._origins):
            raise Foreign("the request comes from a page of another site, which may not call this server")


def _refuse_two_hosts(headers: Sequence[tuple[bytes, bytes]]) -> None:
    if sum(name == b"host" for name, _ in headers) > 1:
        raise InvalidRequest("the request has several Host headers")


def _lower(names: Iterable[str]) -> frozenset[bytes]:
    return frozenset(name.lower().encode() for name in names)
