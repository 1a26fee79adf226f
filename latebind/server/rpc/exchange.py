"""One call on a connection of the nghttp2 door: the request as it comes, the response as it goes, and who answers."""

import asyncio
import re
import time
from collections import deque
from collections.abc import Mapping
from typing import Protocol

from latebind.domain.errors import Expired, InvalidRequest, Refused, Unsupported, UserError
from latebind.server.rpc.framing import HEAD, STATUSES, Messages, framed, percent_encoded, seconds
from latebind.server.rpc.nghttp2 import Block, Header
from latebind.server.rpc.reception import CallFailed, Reception
from latebind.server.rpc.routes import Answer, Method

WAITING = 4  # unread messages of a stream beyond which its client is held back
UNSENT = 1 << 16  # unsent bytes of a stream beyond which whoever writes waits

GRPC = re.compile(rb"application/grpc(?:[+;]|$)")  # and not `application/grpc-web`, which is framed otherwise
HEADERS: tuple[Header, ...] = ((b":status", b"200"), (b"content-type", b"application/grpc"))
RESPONSE = Block(HEADERS)
WELL = Block([(b"grpc-status", b"0")])


class StreamTransport(Protocol):
    """What an exchange needs of its connection."""

    address: str

    def respond(self, stream: int, head: Block, *, data: bool) -> None:
        """Answer with these headers."""
        ...

    def resume(self, stream: int) -> None:
        """Send the data of a stream that has some again."""
        ...

    def reset(self, stream: int) -> None:
        """Reset the stream after everything is sent; the client must send no more on it."""
        ...

    def consumed(self, stream: int, size: int) -> None:
        """Let the client send `size` bytes more."""
        ...


class Exchange:
    """One call. Its connection passes in what arrives; to the verb that answers, it is the `Caller`."""

    def __init__(self, transport: StreamTransport, stream: int, reception: Reception, most: int) -> None:
        self.headers: dict[bytes, bytes] = {}
        self.ended = False  # the client sends no more
        self._transport = transport
        self._stream = stream
        self._reception = reception
        self._most = most
        self._method: Method | None = None
        self._messages: Messages | None = None
        self._received: deque[bytes] = deque()
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self._held = 0  # bytes of the request that are in memory until the call ends
        self._kept_back = 0  # bytes that came but are not acknowledged yet, which holds the client back
        self._out = bytearray()
        self._responded = False
        self._trailers: Block | None = None
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._deadline: float | None = None
        self._loop = asyncio.get_running_loop()
        self._begun = time.monotonic()

    # What the connection tells

    def begin(self, methods: Mapping[bytes, Method]) -> None:
        """Find the method: the headers are complete."""
        try:
            self._method = self._found(methods)
            timeout = self.headers.get(b"grpc-timeout")
            if timeout is not None:
                left = seconds(timeout)
                self._deadline = self._loop.time() + left
                self._timer = self._loop.call_later(left, self._expire)
        except UserError as error:
            self.fail(error)
            return
        if self._method.stream is not None:
            self._task = self._loop.create_task(self._follow(self._method))

    def feed(self, chunk: bytes) -> None:
        """Take the next part of the request."""
        if self._trailers is not None or self._method is None:
            self._transport.consumed(self._stream, len(chunk))
            return
        self._held += len(chunk)
        self._reception.hold(len(chunk))
        if self._messages is None and not self._received and chunk[0] == 0 and len(chunk) == HEAD + _size(chunk):
            self._received.append(chunk[HEAD:])
        else:
            self._cut(chunk)
        if self._method.stream is not None and len(self._received) >= WAITING:
            self._kept_back += len(chunk)
        else:
            self._transport.consumed(self._stream, len(chunk))
        self._wake_reader()

    def end(self) -> None:
        """Answer the call: the client sends no more."""
        self.ended = True
        self._wake_reader()
        method = self._method
        if method is None or self._trailers is not None or method.answer is None:
            return
        if len(self._received) != 1 or (self._messages is not None and self._messages.within):
            self.fail(InvalidRequest("the request is not one message"))
            return
        self._task = self._loop.create_task(self._answer(method, method.answer))

    def close(self) -> None:
        """Cancel the call: its stream is closed."""
        self._release(self._held)
        self._let_on()
        if self._timer is not None:
            self._timer.cancel()
        self._drop()
        self._wake_writer()

    def is_late(self, now: float, patience: float) -> bool:
        """Tell whether a request for a single answer has not arrived completely within `patience` seconds."""
        waits = self._method is not None and self._method.answer is not None and not self.ended
        return waits and self._trailers is None and now - self._begun > patience

    def take(self, most: int) -> tuple[bytes, Block | None] | None:
        """Return the next bytes to send, with trailers behind the last ones; None if there are none yet."""
        out = self._out
        if not out and self._trailers is None:
            return None
        data = bytes(out[:most])
        del out[:most]
        if len(out) < UNSENT:
            self._wake_writer()
        if out or self._trailers is None:
            return data, None
        if not self.ended:
            self._transport.reset(self._stream)
        return data, self._trailers

    # The caller that verbs see

    def seconds(self) -> float | None:
        """Return how long the client still waits; None without a deadline."""
        return None if self._deadline is None else self._deadline - self._loop.time()

    def address(self) -> str:
        """Return the address that the call came from."""
        return self._transport.address

    def header(self, name: str) -> str:
        """Return the value of a header that the client sent, or an empty text."""
        return self.headers.get(name.encode(), b"").decode("latin-1")

    async def read(self) -> bytes | None:
        """Return the next request of a stream, None after the last."""
        while not self._received:
            if self.ended:
                return None
            self._reader = self._loop.create_future()
            await self._reader
        if len(self._received) <= WAITING:
            self._let_on()
        message = self._received.popleft()
        self._release(len(message))
        return message

    async def write(self, reply: bytes) -> None:
        """Send the next response of a stream; waits while the client takes none."""
        self._send(framed(reply))
        while len(self._out) >= UNSENT:
            self._writer = self._loop.create_future()
            await self._writer

    # How it ends

    def fail(self, error: Exception) -> None:
        """End the call with the status of an error."""
        self._finish(CallFailed(error))

    def _expire(self) -> None:
        """End the call: its deadline has passed."""
        if self._trailers is None:
            self._out.clear()
            self.fail(Expired("the deadline of the call passed before its answer: allow more time"))
            self._drop()

    def _drop(self) -> None:
        """Cancel whatever works for this call."""
        if self._task is not None:
            self._task.cancel()

    async def _answer(self, method: Method, answer: Answer) -> None:
        try:
            reply = await self._reception.answer(method, answer, self._received.popleft(), self)
        except CallFailed as failed:
            self._finish(failed)
        else:
            self._trailers = WELL
            self._send(framed(reply))

    async def _follow(self, method: Method) -> None:
        try:
            await self._reception.follow(method, self)
        except CallFailed as failed:
            self._finish(failed)
        else:
            self._trailers = WELL
            self._send(b"")

    def _finish(self, failed: CallFailed) -> None:
        status = (b"grpc-status", b"%d" % STATUSES.get(failed.status, STATUSES["INTERNAL"]))
        trailers = (status, (b"grpc-message", percent_encoded(failed.text)))
        if self._responded:
            self._trailers = Block(trailers)
            self._transport.resume(self._stream)
            return
        self._responded, self._trailers = True, Block(trailers)
        self._transport.respond(self._stream, Block((*HEADERS, *trailers)), data=False)
        if not self.ended:
            self._transport.reset(self._stream)

    def _send(self, data: bytes) -> None:
        self._out += data
        if self._responded:
            self._transport.resume(self._stream)
        else:
            self._responded = True
            self._transport.respond(self._stream, RESPONSE, data=True)

    def _found(self, methods: Mapping[bytes, Method]) -> Method:
        """Return the method that is called. Raises `InvalidRequest` and `Unsupported`."""
        headers = self.headers
        if headers.get(b":method") != b"POST" or not GRPC.match(headers.get(b"content-type", b"")):
            raise InvalidRequest("this port speaks gRPC: POST messages as application/grpc")
        method = methods.get(headers.get(b":path", b""))
        if method is None:
            raise Unsupported("there is no such method")
        return method

    def _cut(self, chunk: bytes) -> None:
        if self._messages is None:
            self._messages = Messages(self._most, self.headers.get(b"grpc-encoding", b""))
        try:
            self._reception.check_bytes()
            self._received.extend(self._messages.feed(chunk))
        except (UserError, Refused) as error:
            self.fail(error)

    def _let_on(self) -> None:
        """Acknowledge what was kept back: all streams of a connection share the window that it takes up."""
        if self._kept_back:
            kept, self._kept_back = self._kept_back, 0
            self._transport.consumed(self._stream, kept)

    def _release(self, size: int) -> None:
        self._held -= size
        self._reception.hold(-size)

    def _wake_reader(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _wake_writer(self) -> None:
        if self._writer is not None and not self._writer.done():
            self._writer.set_result(None)


def too_many(most: int) -> Refused:
    """Return the error of calls beyond the limit."""
    return Refused(f"{most} calls are under way: try again later")


def _size(chunk: bytes) -> int:
    return int.from_bytes(chunk[1:HEAD])
