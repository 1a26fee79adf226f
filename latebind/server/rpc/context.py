"""What all gRPC verbs share: the service, the limits, a codec for each model; and the caller of a single call."""

from typing import Protocol

from latebind.domain.model import ModelSpec
from latebind.server.limits import Limits
from latebind.server.rpc.codec import RpcCodec
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
    """The context of one door's verbs."""

    def __init__(self, service: Service, limits: Limits) -> None:
        self.service = service
        self.limits = limits
        self._codecs: dict[str, RpcCodec] = {}

    def codec(self, spec: ModelSpec) -> RpcCodec:
        """Return the codec of the version of a model that is served now."""
        codec = self._codecs.get(spec.name)
        if codec is None or codec.spec is not spec:
            codec = self._codecs[spec.name] = RpcCodec(spec, self.limits, self.service.regions)
        return codec
