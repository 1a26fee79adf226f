"""What the door takes in at most, and the errors that only HTTP knows. The numbers are checked elsewhere."""

from collections.abc import Iterable
from dataclasses import dataclass

from latebind.domain.errors import Unavailable, UserError


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what one client call may ask of the door. Bytes and seconds.

    A body may be `ratio` times as large as it was sent, where it was compressed; `body_bytes` bounds both.

    `json_bytes` bounds the JSON part of a body alone: parsing it holds up every other client (some 10 ms for 150,000
    numbers), while binary tensors cost next to nothing. `deadline` is the longest that a call may ask for, `classes`
    how many best values of a row it may want as text. At most `connections` are open at once; one whose client lets
    `idle_seconds` pass without a whole head, or takes nothing of its reply for so long, is closed. All clients
    together may register `regions` of shared memory.

    `held_bytes` are those of all requests that have been read and not answered: of all gRPC has, which reads a request
    whole before anybody sees it, and of what HTTP has to collect, as JSON. The others at the end are of gRPC: calls at
    once, and those of one stream. A client that is silent for `silent_seconds` is asked whether it is there, and has
    `idle_seconds` to say so.
    """

    body_bytes: int = 64 << 20
    ratio: int = 200
    json_bytes: int = 16 << 20
    json_depth: int = 100
    header_bytes: int = 16 << 10
    chunks: int = 65_536
    max_rows: int = 64
    classes: int = 1024
    body_seconds: float = 30.0
    connections: int = 4096
    idle_seconds: float = 10.0
    deadline: float = 3600.0
    regions: int = 256
    region_bytes: int = 1 << 30
    drain_seconds: int = 25
    calls: int = 1024
    stream_calls: int = 32
    held_bytes: int = 1 << 30
    silent_seconds: float = 60.0


class Foreign(UserError):
    """A call for another host, or from a page of another site."""

    http_status = 403
    grpc_status = "PERMISSION_DENIED"


class TooManyConnections(Unavailable):
    """A connection past the limit of how many are open at once."""


class MethodNotAllowed(UserError):
    """A route that exists, but not for this method: for those `allowed`."""

    http_status = 405

    def __init__(self, allowed: Iterable[str]) -> None:
        self.allowed = tuple(dict.fromkeys(allowed))
        super().__init__(f"this path takes {' or '.join(self.allowed)}")


class BodyTimeout(UserError):
    """A body that did not arrive in time."""

    http_status = 408


class UnsupportedEncoding(UserError):
    """A body that is compressed in a way the door does not undo."""

    http_status = 415


class HeadTooLarge(UserError):
    """Request line and headers past their limit."""

    http_status = 431
