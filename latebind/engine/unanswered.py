"""Requests that have begun and have no answer yet.

The first answer counts, whether a lookup or the network gives it.
"""

from latebind.domain.actions import Run


class Unanswered:
    """The unanswered requests of one worker, by model and slot. For one thread at a time."""

    def __init__(self) -> None:
        self._requests: dict[tuple[str, int], int] = {}

    def begin(self, action: Run) -> None:
        """Register the requests that begin; earlier owners of their slots have ended."""
        for request, slot in zip(action.requests, action.slots, strict=True):
            self._requests[action.model, slot] = request

    def among(self, action: Run) -> list[int]:
        """Return the places in `action` of the requests without an answer."""
        owners = zip(action.requests, action.slots, strict=True)
        return [
            place for place, (request, slot) in enumerate(owners) if self._requests.get((action.model, slot)) == request
        ]

    def take(self, action: Run, place: int) -> bool:
        """Return whether the request at this place has no answer yet; if so, the caller is the one to answer it."""
        key = action.model, action.slots[place]
        if self._requests.get(key) != action.requests[place]:
            return False
        del self._requests[key]
        return True
