"""The messages in which a body is passed to its reader, piece by piece, in ASGI's form."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]

DISCONNECT: Message = {"type": "http.disconnect"}
END: Message = {"type": "http.request", "body": b"", "more_body": False}
