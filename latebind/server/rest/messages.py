"""How a body comes to whoever reads it, piece by piece: messages as ASGI has them."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]

DISCONNECT: Message = {"type": "http.disconnect"}
END: Message = {"type": "http.request", "body": b"", "more_body": False}
