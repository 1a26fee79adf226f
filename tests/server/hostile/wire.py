"""Sends what no client should send, and sees that the answer is one clean error."""

import os
import re
from contextlib import suppress

from tests.server.conftest import Response, Site, read_response

LEAKS = re.compile(r"Traceback|File \"|\.py\b|site-packages|/(?:work|home|srv|tmp|usr|proc|dev|var|etc)/|0x[0-9a-f]{8}")
LONGEST = 500


def check_clean(reply: Response) -> str:
    """See that a reply is one error of the client's that tells nothing of the server's inside; return its text."""
    text = reply.error
    assert reply.headers["content-type"] == "application/json"
    assert text
    assert len(text) <= LONGEST
    assert text.isprintable()
    assert not LEAKS.search(text)
    assert not re.search(rf"\b{os.getpid()}\b", text)
    return text


def send_raw(site: Site, raw: bytes) -> tuple[Response, bytes]:
    """Send bytes; return the first reply and, where that ends the connection, all that came behind it."""
    with site.connect() as connection:
        with suppress(ConnectionError):
            connection.sendall(raw)
        reply = read_response(connection)
        rest = b""
        if reply.headers.get("connection") == "close":
            with suppress(ConnectionError):
                while received := connection.recv(65536):
                    rest += received
    return reply, rest
