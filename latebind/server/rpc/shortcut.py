"""The short way of an infer call over gRPC: no task. It is open to calls that find places at once."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from latebind.domain.errors import LatebindError
from latebind.server.calls import Call
from latebind.server.gateway import Answer, Array
from latebind.server.quick import Outcome, Quick, Quicks
from latebind.server.rpc.codec import RpcCodec
from latebind.server.rpc.desk import Caller, Desk
from latebind.server.rpc.infer import TRACEPARENT
from latebind.server.rpc.wire import read_request

Then = Callable[[bytes | Exception], None]


class Shortcut:
    """Begins calls and keeps those that are under way. One for a door."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._quicks = Quicks(desk.service)

    @property
    def busy(self) -> bool:
        """Whether any call is under way."""
        return bool(self._quicks.under_way)

    def take(self, data: bytes, caller: Caller, then: Then) -> Quick | None:
        """Begin a call, `then` being told what came of it; None where it goes the long way, untouched."""
        try:
            return self._taken(data, caller, then)
        except LatebindError:  # which the long way tells
            return None

    def give_up(self) -> None:
        """Tell all who are on the way that there is no time left."""
        self._quicks.give_up()

    def _taken(self, data: bytes, caller: Caller, then: Then) -> Quick | None:
        request, raw = read_request(data, self._desk.limits)
        service = self._desk.service
        spec = service.at_once(request.model_name, request.model_version or None)
        if spec is None or request.parameters or caller.header(TRACEPARENT):
            return None
        codec = self._desk.codec(spec)
        call = codec.decode(request, raw, caller.seconds())
        claim = None if call.elsewhere else service.claim_now(spec, call)
        if claim is None:
            return None
        _fill(call, claim.rows)
        encode = partial(self._encode, codec, call)
        return Quick(self._quicks, claim, call, caller.address(), encode=encode, send=lambda _, reply: then(reply))

    def _encode(self, codec: RpcCodec, call: Call, what: Outcome) -> bytes | Exception:
        if not isinstance(what, Answer):
            return what
        try:
            return codec.encode(what, call, self._desk.service.told(codec.spec, what))
        except Exception as error:  # the root of the call: its client is told, others go on
            return error


def _fill(call: Call, rows: Mapping[str, Sequence[Array]]) -> None:
    for given in call.inputs:
        given.write(given.places(rows))
