"""Who has begun and has no answer yet: the first answer of a request stands, whoever gives it."""

from latebind.domain.actions import Run


class Unanswered:
    """The requests of one worker by model and slot; whoever had a slot before has ended. For one thread at a time."""

    def __init__(self) -> None:
        self._requests: dict[tuple[str, int], int] = {}

    def begin(self, action: Run) -> None:
        """Hear who begins."""
        for request, slot in zip(action.requests, action.slots, strict=True):
            self._requests[action.model, slot] = request

    def among(self, action: Run) -> list[int]:
        """Return the places in `action` of those who have no answer yet."""
        owners = zip(action.requests, action.slots, strict=True)
        return [
            place for place, (request, slot) in enumerate(owners) if self._requests.get((action.model, slot)) == request
        ]

    def take(self, action: Run, place: int) -> bool:
        """Tell whether the request at this place has no answer yet; it is to be answered by whoever asks first."""
        key = action.model, action.slots[place]
        if self._requests.get(key) != action.requests[place]:
            return False
        del self._requests[key]
        return True
