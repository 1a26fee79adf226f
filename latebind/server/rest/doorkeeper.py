"""Decides which HTTP requests are let in, by token, Host and Origin. `access.py` knows the tokens."""

from collections.abc import Iterable, Sequence

from latebind.domain.config import DoorConfig, is_loopback
from latebind.server.access import Access, Guard
from latebind.server.limits import Foreign

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
OF_THIS_SITE = (b"same-origin", b"none")  # `same-site` is another port of this host, or another name of its domain
FOREIGN_PAGE = "the request comes from a page of another site, which may not call this server"


class Doorkeeper:
    """Checks the headers of a call.

    A page on any site can make a browser call a server on loopback, and can read the answers once it points a host name
    of its own there (DNS rebinding). So on loopback the Host must be a loopback name, the address listened on or one of
    `allow_hosts`. If `allow_hosts` are given, this applies to other addresses too. On all addresses an Origin must be
    the host that is called or one of `allow_hosts`; a call without one that may change something or use a model (no
    `GET`) must not come from another site by what the browser says of it (`Sec-Fetch-Site`). Health checks are always
    let in.
    """

    def __init__(self, config: DoorConfig, guard: Guard) -> None:
        self._guard = guard
        self._any_host = not (is_loopback(config.host) or config.allow_hosts)
        address = f"[{config.host}]" if ":" in config.host else config.host
        self._names = _lower((*LOOPBACK_NAMES, address, *config.allow_hosts))
        self._origins = _lower(config.allow_hosts)

    def admit(self, access: Access, method: str, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """Return if a call of this kind may go on, else raise `Foreign` or `Denied`.

        Of what is read here, each header is there once at most (`rest/head.py`).
        """
        if access is Access.OPEN:
            return
        found = dict(headers)
        host, origin = found.get(b"host"), found.get(b"origin")
        if host is not None and not self._any_host:
            self._check_host(host)
        if origin is not None:
            self._check_origin(origin, host or b"")
        elif method != "GET" and found.get(b"sec-fetch-site", b"none").lower() not in OF_THIS_SITE:
            raise Foreign(FOREIGN_PAGE)
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
            raise Foreign(FOREIGN_PAGE)


def _lower(names: Iterable[str]) -> frozenset[bytes]:
    return frozenset(name.lower().encode() for name in names)
