"""What a query is to expect of its models at one estimates: worked out once, as long as nothing changes below. Pure."""

from collections.abc import Callable, Mapping

from latebind.domain.outlook import Outlook
from latebind.queries.bounds import LowerBound


class Estimates:
    """`outlooks` are those of all models of the query whose `steps` run in any case."""

    def __init__(self, steps: LowerBound, outlooks: Mapping[str, Outlook]) -> None:
        self.outlooks = outlooks
        self._steps = steps
        self._least: float | None = None
        self._least_after: dict[int, float] = {}
        self._overhead = 0.0
        self._of_step: Callable[[str], Outlook] = outlooks.__getitem__

    @property
    def least(self) -> float:
        """The seconds that the query takes at least."""
        if self._least is None:
            self._least = self._steps.seconds(self.outlooks)
        return self._least

    def least_after(self, node: int) -> float:
        """Return the same for what follows a node."""
        found = self._least_after.get(node)
        if found is None:
            found = self._least_after[node] = self._steps.seconds_after(node, self.outlooks)
        return found

    def of_step(self, overhead: float) -> Callable[[str], Outlook]:
        """Return what to expect of models as steps, which wait so many seconds for their inputs too.

        It is the same function until it tells something else.
        """
        if overhead != self._overhead:
            self._overhead = overhead
            self._of_step = {
                model: Outlook(found.wait + overhead, found.ends, found.chances)
                for model, found in self.outlooks.items()
            }.__getitem__
        return self._of_step
