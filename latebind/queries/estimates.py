"""What a query can expect of its models at one moment; computed once, as long as nothing changes. Pure."""

from collections.abc import Callable, Mapping

from latebind.domain.costs import Outlook
from latebind.queries.bounds import LowerBound


class Estimates:
    """Estimates from the `outlooks` of all models of a query; `steps` bounds the time of those that always run."""

    def __init__(self, steps: LowerBound, outlooks: Mapping[str, Outlook]) -> None:
        self.outlooks = outlooks
        self._steps = steps
        self._least: float | None = None
        self._least_after: dict[int, float] = {}
        self._overhead = 0.0
        self._of_step: Callable[[str], Outlook] = outlooks.__getitem__

    @property
    def least(self) -> float:
        """The least number of seconds that the query takes."""
        if self._least is None:
            self._least = self._steps.seconds(self.outlooks)
        return self._least

    def least_after(self, node: int) -> float:
        """Return the least number of seconds that the nodes behind a node take."""
        found = self._least_after.get(node)
        if found is None:
            found = self._least_after[node] = self._steps.seconds_after(node, self.outlooks)
        return found

    def of_step(self, overhead: float) -> Callable[[str], Outlook]:
        """Return a function from a model to its outlook as a step, with `overhead` seconds added to its wait.

        It is the same function as long as its results stay the same.
        """
        if overhead != self._overhead:
            self._overhead = overhead
            self._of_step = {
                model: Outlook(found.wait + overhead, found.ends, found.chances)
                for model, found in self.outlooks.items()
            }.__getitem__
        return self._of_step
