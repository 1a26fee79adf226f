"""Checks the head of a request: what one server reads otherwise than the next is refused (RFC 9110, RFC 9112).

Request lines, names of headers, lengths and chunks are the parser's; this is what the parser lets through.
"""

import re
from typing import Final

from latebind.domain.errors import InvalidRequest
from latebind.server.limits import UnsupportedEncoding

Header = tuple[bytes, bytes]

# Two of them mean one thing to a proxy that reads the first, and another to a server that reads the last.
SINGLE: Final = (b"host", b"authorization", b"origin", b"sec-fetch-site")
# RFC 3986, 3.2.2 and 3.2.3, without user information, which RFC 9110, 4.2.4 has refused.
AUTHORITY: Final = re.compile(rb"(?:[A-Za-z0-9._~!$&'()*+,;=%-]*|\[[0-9A-Fa-f:.]+\])(?::[0-9]*)?")
ABSOLUTE: Final = re.compile(rb"(?i:https?)://([^/?]*)(/[^?]*)?")
CHUNKED: Final = [b"chunked"]


def checked(version: str, target: bytes, headers: list[Header]) -> bytes:
    """Return the path that a request of this HTTP `version` asks for, without its query.

    `headers` have names in lower case. Where the target is a whole URL, its host takes the place of the `Host` header
    (RFC 9112, 3.2.2). Raises `InvalidRequest` and `UnsupportedEncoding`; the connection is closed behind either.
    """
    if version not in {"1.0", "1.1"}:
        raise InvalidRequest(f"the request is HTTP/{version}, which this server does not speak: send HTTP/1.1")
    names = [name for name, _ in headers]
    for name in SINGLE:
        if names.count(name) > 1:
            raise InvalidRequest(f"the request has several {name.decode().title()} headers: send one")
    if b"host" not in names and version == "1.1":
        raise InvalidRequest("the request has no Host header, which HTTP/1.1 demands: name the host that is called")
    _check_codings(version, [value for name, value in headers if name == b"transfer-encoding"])
    path, authority = _parts(target)
    for at, (name, value) in enumerate(headers):
        if name == b"host":
            _check_authority(value)
            if authority is not None:
                headers[at] = name, authority
    return path


def _check_codings(version: str, codings: list[bytes]) -> None:
    """Refuse every transfer coding but `chunked`; the parser has refused those where `chunked` is not the last."""
    if not codings:
        return
    if version == "1.0":  # RFC 9112, 6.1: its length is not certain
        raise InvalidRequest("Transfer-Encoding is no part of HTTP/1.0: send HTTP/1.1 or a Content-Length")
    if [coding.lower() for coding in codings] != CHUNKED:
        raise UnsupportedEncoding(
            "no Transfer-Encoding but chunked is accepted: send Transfer-Encoding: chunked, and compress the body by"
            " Content-Encoding"
        )


def _parts(target: bytes) -> tuple[bytes, bytes | None]:
    """Return the path of a target and, where that is a whole URL, the host with its port."""
    if target.startswith(b"/"):
        return target.partition(b"?")[0], None
    found = ABSOLUTE.match(target)
    if found is None or not found[1]:
        raise InvalidRequest("the target of the request is no path: send one that begins with '/'")
    _check_authority(found[1])
    return found[2] or b"/", found[1]


def _check_authority(value: bytes) -> None:
    if not AUTHORITY.fullmatch(value):
        raise InvalidRequest("the Host of the request is not HOST or HOST:PORT")
