"""How long a query takes from the end of a step to the beginning of the next: seconds, as they were of late. Pure."""

from collections.abc import Callable

from latebind.domain.outlook import Outlook

NEWEST = 0.05  # of the mean
PAUSE = 3.0  # times the mean at most count, for the machine does other things now and then


class Passing:
    """The mean of one query: conditions are judged, inputs written, and decisions taken."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def observe(self, seconds: float) -> None:
        """Hear how long it took once."""
        if self.seconds:
            self.seconds += NEWEST * (min(seconds, PAUSE * self.seconds) - self.seconds)
        else:
            self.seconds = seconds

    def added(self, outlook: Callable[[str], Outlook]) -> Callable[[str], Outlook]:
        """Return what to expect of models as steps, which wait for their inputs too."""
        if not self.seconds:
            return outlook

        known: dict[str, Outlook] = {}

        def of_step(model: str) -> Outlook:
            if model not in known:
                found = outlook(model)
                known[model] = Outlook(found.wait + self.seconds, found.ends, found.chances)
            return known[model]

        return of_step
