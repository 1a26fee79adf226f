"""What a verb gets and returns: an HTTP request whose route is known, a reply, and JSON in both."""

from collections.abc import AsyncGenerator, Mapping
from math import ceil
from typing import Any, TypeVar

import msgspec
import orjson

from latebind.domain.errors import InvalidRequest, LatebindError, Loading, TooLarge
from latebind.server.faults import for_clients
from latebind.server.limits import Limits, MethodNotAllowed
from latebind.server.rest.body import Body
from latebind.server.rest.exchange import Exchange
from latebind.server.rest.messages import Receive

Headers = tuple[tuple[bytes, bytes], ...]
T = TypeVar("T")

JSON: Headers = ((b"content-type", b"application/json"),)
MORE: dict[int, Headers] = {401: ((b"www-authenticate", b"Bearer"),), 503: ((b"retry-after", b"1"),)}


class Request(msgspec.Struct, frozen=True):
    """What a verb may read of a request. A `Struct`, like `Reply`: making one takes a third of a dataclass's time.

    `names` are the named parts of the path.
    """

    exchange: Exchange
    names: Mapping[str, Any]

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """The headers, names in lower case."""
        return self.exchange.headers

    @property
    def client(self) -> str:
        """The address that the call came from."""
        return self.exchange.client

    @property
    def receive(self) -> Receive:
        """The function that returns the next message of the body."""
        return self.exchange.receive

    @property
    def model(self) -> str:
        """The model of the path."""
        model: str = self.names["model"]
        return model

    @property
    def version(self) -> str | None:
        """The version of the path, if it names one."""
        version: str | None = self.names.get("version")
        return version

    @property
    def region(self) -> str | None:
        """The shared memory region of the path, if it names one."""
        region: str | None = self.names.get("region")
        return region

    def header(self, name: bytes) -> bytes | None:
        """Return the value of a header, the first where there are several; None without it."""
        return next((value for found, value in self.headers if found == name), None)


class Reply(msgspec.Struct, frozen=True):
    """A reply. `lines` are headers in their final form, as bytes. With `pieces`, these are its body, one after another.

    They end early, and the connection is closed, where something goes wrong after the head was sent.
    """

    body: bytes = b""
    headers: Headers = ()
    status: int = 200
    lines: bytes = b""
    pieces: AsyncGenerator[bytes] | None = None


async def read_json(request: Request, kind: type[T], limits: Limits) -> T:
    """Read a small body as JSON of this type; an empty one is `{}`. Raises what `Body` raises and `InvalidRequest`."""
    body = await Body(request.headers, request.receive, limits).read(limits.header_bytes + 1)
    if len(body) > limits.header_bytes:
        raise TooLarge(f"the body has more than {limits.header_bytes} bytes, the most that this call takes: send less")
    try:
        return msgspec.json.decode(body or b"{}", type=kind)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"the JSON is not what this call takes: {error}") from None


def json_reply(value: object) -> Reply:
    """Return a reply with this value."""
    return Reply(orjson.dumps(value), JSON)


def health_reply(word: str, well: bool, **about: str) -> Reply:
    """Return the reply to a health check: 200 or 400, as Triton does, with KServe's body."""
    return Reply(orjson.dumps({**about, word: well}), JSON, 200 if well else 400)


def reply_to(error: Exception, request: str | None = None) -> Reply:
    """Return the reply to a request that failed; an error that clients must not see is logged and gets an id.

    That is `request`, the client's own, or None for the one that this task answers.
    """
    return error_reply(for_clients(error, request))


def error_reply(error: LatebindError) -> Reply:
    """Return the reply for an error that clients may see."""
    headers = (*JSON, *MORE.get(error.http_status, ()))
    if isinstance(error, Loading):
        headers = (*JSON, (b"retry-after", b"%d" % max(1, ceil(error.seconds))))
    if isinstance(error, MethodNotAllowed):
        headers = (*headers, (b"allow", ", ".join(error.allowed).encode()))
    text = str(error).encode("utf-8", "replace").decode()  # orjson takes no lone surrogates
    return Reply(orjson.dumps({"error": text}), headers, error.http_status)
