"""How replies are written to a connection: the head in one piece with the body, unless the body is large."""

from asyncio import WriteTransport
from http import HTTPStatus
from typing import Final

from uvicorn.server import ServerState

from latebind.server.rest.request import Reply

NEW_LINE: Final = b"\r\n"
END: Final = NEW_LINE + NEW_LINE
CLOSE: Final = b"connection: close" + NEW_LINE
CLOSED: Final = NEW_LINE + CLOSE + NEW_LINE
STATUS_LINES: Final = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
LENGTH: Final = b"content-length: %d" + END
LAST: Final = b"content-length: %d" + CLOSED
CHUNKED: Final = b"transfer-encoding: chunked" + NEW_LINE
TOGETHER: Final = 1 << 15  # a body of up to so many bytes is joined with the head of its reply, for one write


class ReplyWriter:
    """Writes the replies of one connection, with the headers that `state` has for all replies of this second."""

    def __init__(self, transport: WriteTransport, state: ServerState) -> None:
        self._transport = transport
        self._state = state
        self._usual: tuple[list[tuple[bytes, bytes]], bytes] = [], b""

    def write(self, reply: Reply, *, head_only: bool, goes_on: bool) -> None:
        """Write a whole reply; the connection `goes_on` behind it, or the client is told that it closes."""
        body = reply.body
        lines = self._head_lines(reply)
        lines.append((LENGTH if goes_on else LAST) % len(body))
        if head_only:
            self._transport.write(b"".join(lines))
        elif len(body) <= TOGETHER:
            lines.append(body)
            self._transport.write(b"".join(lines))
        else:
            self._transport.writelines((b"".join(lines), body))

    def write_head(self, reply: Reply, *, chunked: bool, goes_on: bool) -> None:
        """Write the head of a reply whose body comes in pieces."""
        chunks = CHUNKED if chunked else b""
        self._transport.write(b"".join((*self._head_lines(reply), chunks, b"" if goes_on else CLOSE, NEW_LINE)))

    def _head_lines(self, reply: Reply) -> list[bytes]:
        lines = [STATUS_LINES[reply.status], self._usual_lines(), reply.lines]
        for header in reply.headers:
            lines.append(b"%b: %b\r\n" % header)
        return lines

    def _usual_lines(self) -> bytes:
        """Return the header lines that all replies of this second share: uvicorn's, among them the date."""
        headers = self._state.default_headers
        if headers is not self._usual[0]:
            self._usual = headers, b"".join([b"%b: %b\r\n" % header for header in headers])
        return self._usual[1]
