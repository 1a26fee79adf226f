"""The limits of what the frontend accepts, and the errors that only HTTP knows. Other modules enforce the limits."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Self

from latebind.domain.config import FrontendConfig
from latebind.domain.errors import TooLarge, Unavailable, UserError
from latebind.domain.model import ModelSpec, TensorSpec


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on what clients may ask of the frontend, in bytes and seconds.

    `body_bytes` bounds a body both as it was sent and decompressed; decompressed it may be at most `ratio` times as
    large as it was sent. `json_bytes` bounds its JSON part alone: parsing it holds up all other clients (some 10 ms
    for 150,000 numbers), while binary tensors cost next to nothing. `deadline` is the longest that a call may ask for,
    `classes` how many best classes of a row. At most `connections` are open at once. A connection is closed when its
    client sends no complete head for `idle_seconds`, or takes nothing of its reply for so long. The frontend waits
    `body_seconds` in all for a body that it reads, its first byte included. `regions` bounds the shared memory regions
    of all clients together.

    `held_bytes` bounds all requests that were read and not yet answered: over gRPC, which hands over only whole
    requests, all their bytes; over HTTP those that have to be collected before they can be parsed, such as JSON. The
    bound holds for each separately. `calls` bounds concurrent calls over gRPC, `stream_calls` those on one stream.

    A call with texts, pictures or sounds has at most `elements` of them, of `element_bytes` in all, and no more than
    keep the rows made of them, and their answers, within `made_bytes` each; `max_rows` are always allowed. Long ones
    are converted by `preparing` threads, for at most `preparing_calls` calls that have begun or wait.
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
    elements: int = 2048
    element_bytes: int = 32 << 20
    made_bytes: int = 256 << 20
    preparing: int = max(2, (os.cpu_count() or 2) // 4)
    preparing_calls: int = 64

    @classmethod
    def by(cls, config: FrontendConfig) -> Self:
        """Return the limits that a configuration asks for."""
        return cls(body_bytes=config.max_body, json_bytes=config.max_json, connections=config.max_connections)


def body_too_large(limits: Limits) -> TooLarge:
    """Return the error for a body past its limit."""
    most = limits.body_bytes
    return TooLarge(f"the body has more than {most} bytes: send fewer rows in a call, or use shared memory")


def most_rows(spec: ModelSpec, limits: Limits) -> int:
    """Return how many rows a call with raw inputs may have."""
    largest = max(sum(tensor.row_bytes for tensor in tensors) for tensors in (spec.inputs, spec.outputs))
    return max(limits.max_rows, min(limits.elements, limits.made_bytes // max(1, largest)))


def too_large_a_row(inputs: Iterable[TensorSpec], limits: Limits | None = None) -> str:
    """Return a warning about a model whose largest row does not fit in a body; "" for all others."""
    most, row = (limits or Limits()).body_bytes, sum(tensor.row_bytes for tensor in inputs)
    if row <= most:
        return ""
    return (
        f"its largest row has {row / 1e6:.0f} MB and a request at most {most / 1e6:.0f} MB: clients can send rows "
        "beyond that only in shared memory (`latebind serve --shared-memory`), or raise --max-body"
    )


class Foreign(UserError):
    """A call for another host, or from a page of another site."""

    http_status = 403
    grpc_status = "PERMISSION_DENIED"


class TooManyConnections(Unavailable):
    """A connection beyond the limit."""


class MethodNotAllowed(UserError):
    """A path that exists, but not for this method; `allowed` are those that it takes, `HEAD` beside each `GET`."""

    http_status = 405

    def __init__(self, allowed: Iterable[str]) -> None:
        both = ((method, "HEAD") if method == "GET" else (method,) for method in allowed)
        self.allowed = tuple(dict.fromkeys(chain.from_iterable(both)))
        super().__init__(f"this path takes {', '.join(self.allowed)}")


class BodyTimeout(UserError):
    """A body that did not arrive in time."""

    http_status = 408


class UnsupportedEncoding(UserError):
    """A body compressed in a way that the frontend cannot decompress."""

    http_status = 415


class HeadTooLarge(UserError):
    """A request line and headers beyond their limit."""

    http_status = 431
