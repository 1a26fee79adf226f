"""The shortcut of an infer call over gRPC: no task. It is open to calls for which slots are free at once."""

from collections.abc import Callable

import msgspec
import numpy as np

from latebind.domain.errors import LatebindError
from latebind.server.calls import Call
from latebind.server.direct import DirectCall, DirectCalls, Outcome
from latebind.server.faults import for_clients
from latebind.server.gateway import Answer, Array, Claim
from latebind.server.rpc.codec import RpcCodec, sooner
from latebind.server.rpc.context import Caller, Context
from latebind.server.rpc.infer import TRACEPARENT
from latebind.server.rpc.wire import RAW_INPUT, read_request, varint
from latebind.server.templates import has_template
from latebind.server.tensors import Tensor

MOST_KNOWN = 256  # messages whose meaning is kept
LONGEST_KNOWN = 2048  # bytes of such a message before its raw contents
Then = Callable[[bytes | Exception], None]


class KnownMessage:
    """The meaning of a message without its only raw contents, which fill `tensor` in this shape. `call` has no rows."""

    __slots__ = ("call", "codec", "shape", "tensor")

    def __init__(self, codec: RpcCodec, call: Call, tensor: Tensor, shape: tuple[int, ...]) -> None:
        self.codec = codec
        self.call = call
        self.tensor = tensor
        self.shape = shape


class Shortcut:
    """Starts direct calls and keeps those that are under way. One for each door."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._direct_calls = DirectCalls(context.service)
        self._known: dict[bytes, KnownMessage] = {}
        self._begins: dict[int, int] = {}  # by the size of a message, where its raw contents may begin

    @property
    def busy(self) -> bool:
        """Whether any call is under way."""
        return bool(self._direct_calls.under_way)

    async def emptied(self) -> None:
        """Return when no call is under way."""
        await self._direct_calls.emptied()

    def take(self, data: bytes, caller: Caller, then: Then) -> DirectCall | None:
        """Start a call, and call `then` with its response or error; None, with nothing changed, for the normal way."""
        try:
            return self._taken(data, caller, then)
        except LatebindError:  # the normal way reports it
            return None

    def give_up(self) -> None:
        """Answer all calls that are under way that there is no time left for them."""
        self._direct_calls.give_up()

    def _taken(self, data: bytes, caller: Caller, then: Then) -> DirectCall | None:
        if caller.header(TRACEPARENT):
            return None
        asked = self._asked(data, caller.seconds())
        if asked is None:
            return None
        codec, call, rows = asked
        claim = self._context.service.claim_now(codec.spec, call)
        if claim is None:
            return None
        for given, array in zip(call.inputs, rows, strict=True):
            for place, row in zip(given.places(claim.rows), array, strict=True):
                place[...] = row
        return RpcCall(self._direct_calls, claim, call, caller.address(), codec=codec, then=then)

    def _asked(self, data: bytes, seconds: float | None) -> tuple[RpcCodec, Call, list[Array]] | None:
        """Return a call and the rows of its inputs; None if it has to take the normal way."""
        service = self._context.service
        begin = self._begins.get(len(data), 0)
        known = self._known.get(data[:begin])
        if known is not None and service.spec_for_direct_call(known.codec.spec.name, None) is known.codec.spec:
            rows = np.frombuffer(data, known.tensor.dtype, offset=begin).reshape(known.shape)
            known.tensor.check((rows,))
            call = known.call
            if seconds is not None:
                call = msgspec.structs.replace(call, timeout=sooner(call.timeout, seconds))
            return known.codec, call, [rows]
        request, raw = read_request(data, self._context.limits)
        spec = service.spec_for_direct_call(request.model_name, request.model_version or None)
        if spec is None or request.parameters:
            return None
        codec = self._context.codec(spec)
        call = codec.decode(request, raw, seconds)
        if call.uses_shared_memory:
            return None
        if len(raw) == 1:
            self._learn(data, raw[0], codec, call)
        return codec, call, [given.rows for given in call.inputs if given.rows is not None]

    def _learn(self, data: bytes, raw: bytes | memoryview, codec: RpcCodec, call: Call) -> None:
        """Keep the meaning of everything before the only raw contents: clients send the same again and again."""
        begin, (given,) = len(data) - len(raw), call.inputs
        before = data[:begin]
        if call.id or begin > LONGEST_KNOWN or not before.endswith(b"%c%b" % (RAW_INPUT, varint(len(raw)))):
            return
        if len(self._known) == MOST_KNOWN:
            self._known.clear()
            self._begins.clear()
        inputs = (msgspec.structs.replace(given, rows=None),)
        templates: dict[tuple[int, ...], tuple[bytes, ...]] | None = {} if has_template(call) else None
        # A request without parameters has neither timeout nor priority.
        bare = msgspec.structs.replace(call, inputs=inputs, timeout=0, templates=templates)
        self._known[before] = KnownMessage(codec, bare, given.tensor, tuple(given.shape))
        self._begins[len(data)] = begin


class RpcCall(DirectCall):
    """A direct call that came over gRPC; `then` gets its response or its error."""

    __slots__ = ("_codec", "_then")

    def __init__(
        self, calls: DirectCalls, claim: Claim, call: Call, client: str, *, codec: RpcCodec, then: Then
    ) -> None:
        super().__init__(calls, claim, call, client)
        self._codec = codec
        self._then = then

    def encode(self, what: Outcome) -> bytes | Exception:
        """Return the response."""
        if not isinstance(what, Answer):
            return for_clients(what, self._call.id)
        try:
            return self._codec.encode(what, self._call, self._calls.service.reply_parameters)
        except Exception as error:  # the root of the call: its client is told, others go on
            return for_clients(error, self._call.id)

    def send(self, reply: bytes | Exception) -> None:
        """Have it sent."""
        self._then(reply)
