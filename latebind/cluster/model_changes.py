"""The models that clients had loaded and unloaded, for replicas that start later.

They are kept as long as the ingress lives; a restarted ingress does not know earlier ones.
"""

import logging
from collections.abc import Awaitable, Callable

from latebind.cluster.upstream import Parts, failed
from latebind.server.rest.request import Reply

logger = logging.getLogger(__name__)

Ask = Callable[[Parts], Awaitable[Reply]]


class ModelChanges:
    """The last change of each model, as the request that replicas get, in the order in which they were made."""

    def __init__(self) -> None:
        self._last: dict[str, Parts] = {}

    def __len__(self) -> int:
        return len(self._last)

    def note(self, model: str, parts: Parts) -> Parts | None:
        """Keep a change and return the one that it replaces."""
        before = self._last.pop(model, None)
        self._last[model] = parts
        return before

    def undo(self, model: str, parts: Parts, before: Parts | None) -> None:
        """Forget a change that replicas could not make, unless there has been a newer one."""
        if self._last.get(model) is not parts:
            return
        del self._last[model]
        if before is not None:
            self._last[model] = before

    async def tell(self, name: str, ask: Ask) -> None:
        """Send a replica all changes, also those made meanwhile. A change it cannot make is logged. Raises `Lost`."""
        told: dict[str, Parts] = {}
        while untold := {model: parts for model, parts in self._last.items() if told.get(model) is not parts}:
            for model, parts in untold.items():
                reply = await ask(parts)
                told[model] = parts
                if failed(reply):
                    logger.error("replica %s could not do what was wished for %s: %r", name, model, reply.body[:200])
