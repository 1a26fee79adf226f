"""HTTP messages: the contents of a head, and replies."""

import re
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from math import ceil
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import msgspec
import orjson

from latebind.domain.errors import InvalidRequest, LatebindError, Loading
from latebind.server.faults import for_clients
from latebind.server.limits import MethodNotAllowed, UnsupportedEncoding

if TYPE_CHECKING:
    from latebind.server.rest.infer import Context
    from latebind.server.rest.protocol import Request

Verb = Callable[["Context", "Request"], Coroutine[Any, Any, "Reply"]]
Header = tuple[bytes, bytes]
Headers = tuple[Header, ...]

JSON: Headers = ((b"content-type", b"application/json"),)
MORE: dict[int, Headers] = {401: ((b"www-authenticate", b"Bearer"),), 503: ((b"retry-after", b"1"),)}

# Two of them mean one thing to a proxy that reads the first, and another to a server that reads the last.
SINGLE: Final = (b"host", b"authorization", b"origin", b"sec-fetch-site")
# RFC 3986, 3.2.2 and 3.2.3, without user information, which is refused because of RFC 9110, 4.2.4.
AUTHORITY: Final = re.compile(rb"(?:[A-Za-z0-9._~!$&'()*+,;=%-]*|\[[0-9A-Fa-f:.]+\])(?::[0-9]*)?")
ABSOLUTE: Final = re.compile(rb"(?i:https?)://([^/?]*)(/[^?]*)?")


class ClientGone(Exception):
    """The client hung up; there is nobody to answer."""


class Connection(Protocol):
    """What a request uses of the connection that its body comes by."""

    @property
    def context(self) -> "Context":
        """What the frontend serves with."""

    def hold(self) -> None:
        """Read nothing more until it is wanted."""

    def read_on(self) -> None:
        """Read again if reading is held: not for more of the body, but to notice a hang-up."""

    def go_on(self) -> None:
        """Read again: more of the body is awaited."""


class Reply(msgspec.Struct, frozen=True):
    """A reply. `lines` are headers in their final form, as bytes. If it has `pieces`, they are its body, in order.

    They end early, and the connection is closed, if something goes wrong after the head was sent.
    """

    body: bytes = b""
    headers: Headers = ()
    status: int = 200
    lines: bytes = b""
    pieces: AsyncGenerator[bytes] | None = None


def json_reply(value: object) -> Reply:
    """Return a reply with this value."""
    return Reply(orjson.dumps(value), JSON)


class Errors(NamedTuple):
    """How an API reports errors: its schema by name, and a function from an error and its text to status and body."""

    schema: str
    report: Callable[[LatebindError, str], tuple[int, object]]


OWN = Errors("Error", lambda error, text: (error.http_status, {"error": text}))


def reply_to(error: Exception, errors: Errors = OWN) -> Reply:
    """Return the reply to a request that failed; an error that clients must not see is logged and gets an id."""
    return error_reply(for_clients(error), errors)


def error_reply(error: LatebindError, errors: Errors = OWN) -> Reply:
    """Return the reply for an error that clients may see."""
    headers = (*JSON, *MORE.get(error.http_status, ()))
    if isinstance(error, Loading):
        headers = (*JSON, (b"retry-after", b"%d" % max(1, ceil(error.seconds))))
    if isinstance(error, MethodNotAllowed):
        headers = (*headers, (b"allow", ", ".join(error.allowed).encode()))
    status, body = errors.report(
        error, str(error).encode("utf-8", "replace").decode()
    )  # orjson takes no lone surrogates
    return Reply(orjson.dumps(body), headers, status)


class Head(NamedTuple):
    """A parsed head; all requests with the same head share it.

    `target` is the path as sent, without the server's prefix and the query string. `headers` have lower-case names, in
    the order in which they came; `fields` and `names` are those of `Request`.

    `HEAD` is a `GET` whose reply is sent without its body (`head_only`). `expects` is whether the client waits for a
    `100 Continue` before it sends its body (RFC 9110, 10.1.1), `chunked` whether it understands a reply in chunks
    (HTTP/1.1). `length` is the length of the body, `encoding` its Content-Encoding. `verb`
    answers, or raises the route's error for this request; `errors` is how errors are reported.
    """

    method: str
    target: bytes
    headers: list[Header]
    fields: Mapping[bytes, bytes]
    names: Mapping[str, Any]
    verb: Verb
    length: int | None = None
    encoding: bytes = b""
    expects: bool = False
    chunked: bool = True
    head_only: bool = False
    errors: Errors = OWN


def read_head(version: str, target: bytes, headers: list[Header]) -> tuple[bytes, dict[bytes, bytes]]:
    """Return the path that a request of this HTTP `version` asks for, without its query, and its headers by name.

    What servers may read differently is refused (RFC 9110, RFC 9112), unless the parser does that: it checks request
    lines, names of headers, lengths and chunks. `headers` have names in lower case; several values of one are joined by
    commas. Where the target is a whole URL, its host takes the place of the `Host` header
    (RFC 9112, 3.2.2). Raises `InvalidRequest` and `UnsupportedEncoding`; the connection is closed after either.
    """
    if version not in {"1.0", "1.1"}:
        raise InvalidRequest(f"the request is HTTP/{version}, which this server does not support: send HTTP/1.1")
    fields = dict(headers)
    if len(fields) < len(headers):
        fields = {}
        for name, value in headers:
            if name in fields and name in SINGLE:
                raise InvalidRequest(f"the request has several {name.decode().title()} headers: send one")
            fields[name] = b"%b, %b" % (fields[name], value) if name in fields else value
    coding, host = fields.get(b"transfer-encoding"), fields.get(b"host")
    if coding is not None:
        _check_coding(version, coding)
    path, authority = _parts(target)
    if host is not None:
        _check_authority(host)
        if authority is not None:
            fields[b"host"] = authority
            headers[:] = [(name, authority if name == b"host" else value) for name, value in headers]
    elif version == "1.1":
        raise InvalidRequest("the request has no Host header, which HTTP/1.1 requires: name the host")
    return path, fields


def _check_coding(version: str, coding: bytes) -> None:
    """Refuse every transfer coding but `chunked`; the parser has refused those where `chunked` is not the last."""
    if version == "1.0":  # RFC 9112, 6.1: its length is not certain
        raise InvalidRequest("Transfer-Encoding is not part of HTTP/1.0: send HTTP/1.1 or a Content-Length")
    if coding.lower() != b"chunked":
        raise UnsupportedEncoding(
            "only chunked is accepted as Transfer-Encoding: send Transfer-Encoding: chunked, and compress the body "
            "with Content-Encoding"
        )


def _parts(target: bytes) -> tuple[bytes, bytes | None]:
    """Return the path of a target and, where that is a whole URL, the host with its port."""
    if target.startswith(b"/"):
        return target.partition(b"?")[0], None
    found = ABSOLUTE.match(target)
    if found is None or not found[1]:
        raise InvalidRequest("the target of the request is not a path: send one that begins with '/'")
    _check_authority(found[1])
    return found[2] or b"/", found[1]


def _check_authority(value: bytes) -> None:
    if not AUTHORITY.fullmatch(value):
        raise InvalidRequest("the Host of the request is not HOST or HOST:PORT")
