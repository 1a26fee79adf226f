"""What all gRPC verbs share: the service, the limits, the codec of each model; and the caller of a single call."""

from typing import Any, Protocol

from latebind.server.limits import Limits
from latebind.server.service import Service


class Caller(Protocol):
    """The client's end of one call."""

    def seconds(self) -> float | None:
        """Return how long the client still waits; None without a deadline."""
        ...

    def address(self) -> str:
        """Return the address that the call came from."""
        ...

    def header(self, name: str) -> str:
        """Return the metadata that the client sent under this lower-case name; "" if there is none.

        Several values are joined by commas (gRPC over HTTP/2, Custom-Metadata).
        """
        ...


class Streaming(Caller, Protocol):
    """The client's end of a stream."""

    async def read(self) -> bytes | None:
        """Return the next request of a stream, None after the last."""
        ...

    async def write(self, reply: bytes) -> None:
        """Send the next response of a stream."""
        ...


class Context:
    """The context of one server's verbs. `codecs` are those of `rpc/infer.py`, by model."""

    def __init__(self, service: Service, limits: Limits) -> None:
        self.service = service
        self.limits = limits
        self.codecs: dict[str, Any] = {}
