"""A count of bodies that tells other threads of its changes."""

from threading import Condition

from latebind.server.rest.protocol import Held
from tests.server.conftest import PATIENCE, Site


class Watched(Held):
    """Counts as a frontend does."""

    def __init__(self, most: int) -> None:
        super().__init__(most)
        self._changed = Condition()

    def take(self, size: int) -> None:
        with self._changed:
            super().take(size)
            self._changed.notify_all()

    def give_back(self, size: int) -> None:
        with self._changed:
            super().give_back(size)
            self._changed.notify_all()

    def until(self, size: int) -> None:
        """Wait until so many bytes are counted."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.bytes == size, PATIENCE), f"{self.bytes} bytes, not {size}"


def watched(site: Site, most: int) -> Watched:
    """Have a frontend that is idle count in this way, up to `most` bytes."""
    site.frontend._app.context.held = held = Watched(most)
    return held
