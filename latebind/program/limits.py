"""Which whole numbers the inputs of a graph may have, so that every index in it finds something.

A table of 100 words has words 0 to 99; an input that is one less than a word has 1 to 100. `ranges` proves what holds.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from latebind.domain.model import TensorSpec
from latebind.program.graph import Argument, Graph, Value, Weight
from latebind.program.ranges import Demand, Interval, Ranges, whole_range

ONE_HOT = "aten.eq.Tensor"


@dataclass(frozen=True, slots=True)
class Limits:
    """What is known of the whole numbers of a graph.

    `allowed` has the interval of each input that may not be any number of its dtype. `open` names the nodes that may
    still get an index that is out of range, or a divisor of 0: eager raises there, other backends may compute anything.
    """

    allowed: dict[str, Interval]
    open: tuple[str, ...]

    def applied(self, inputs: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        """Return the inputs with their limits."""
        return tuple(
            replace(spec, least=self.allowed[spec.name].least, limit=self.allowed[spec.name].most + 1)
            if spec.name in self.allowed
            else spec
            for spec in inputs
        )


def find_limits(graph: Graph, weights: Mapping[str, Tensor], *, one_hot: bool = False) -> Limits:
    """Return the limits of the inputs that `graph` implies.

    With `one_hot`, a comparison with 0, 1, 2, ... counts as `one_hot`, of which torch exports nothing else: the module
    raises for other numbers, its graph does not.
    """
    ranges = Ranges(graph, weights)
    demands = ranges.demands() + (tuple(_one_hots(graph, weights)) if one_hot else ())
    whole = {spec.name: found for spec in graph.inputs if (found := whole_range(spec.dtype)) is not None}
    search = _Search(ranges, whole)
    indices = [demand for demand in demands if demand.allowed is not None and search.met_somewhere(demand)]
    allowed = search.narrowed(indices)
    open_ = search.unmet(demands, allowed)
    narrow = {name: found for name, found in allowed.items() if found != whole[name]}
    return Limits(narrow, tuple(dict.fromkeys(demand.node for demand in open_)))


class _Search:
    """Narrows the inputs until demands are met, each input as little as it must be."""

    def __init__(self, ranges: Ranges, whole: Mapping[str, Interval]) -> None:
        self._ranges = ranges
        self._whole = whole
        self._base = dict.fromkeys(whole, 0)

    def met_somewhere(self, demand: Demand) -> bool:
        """Return whether some single numbers of the inputs meet it: all 0 or, as words counted from 1, all 1."""
        for base in (0, 1):
            if self._met([demand], {name: Interval(base, base) for name in self._whole}):
                if base:
                    self._base.update(dict.fromkeys(self._leading(demand), 1))
                return True
        return False

    def unmet(self, demands: Iterable[Demand], inputs: Mapping[str, Interval]) -> list[Demand]:
        """Return the demands that some numbers of these intervals may not meet."""
        return [demand for demand in demands if not self._met([demand], inputs)]

    def narrowed(self, demands: list[Demand]) -> dict[str, Interval]:
        """Return intervals of the inputs with which all these demands are met; empty if none are found."""
        allowed = dict(self._whole)
        unmet = self.unmet(demands, allowed)
        concerned = [name for name in self._whole if any(name in self._leading(demand) for demand in unmet)]
        for name in concerned:
            allowed[name] = Interval(self._base[name], self._base[name])
        for name in concerned:
            allowed[name] = self._widest(name, allowed, unmet)
        return allowed

    def _widest(self, name: str, allowed: Mapping[str, Interval], demands: list[Demand]) -> Interval:
        """Return the widest interval of this input, first upwards, that meets the demands beside the others'."""
        base, whole = self._base[name], self._whole[name]

        def met(least: int, most: int) -> bool:
            return self._met(demands, {**allowed, name: Interval(least, most)})

        good, bad = base, whole.most + 1
        while bad - good > 1:
            middle = (good + bad) // 2
            good, bad = (middle, bad) if met(base, middle) else (good, middle)
        most, good, bad = good, base, whole.least - 1
        while good - bad > 1:
            middle = (good + bad) // 2
            good, bad = (middle, bad) if met(middle, most) else (good, middle)
        return Interval(good, most)

    def _met(self, demands: list[Demand], inputs: Mapping[str, Interval]) -> bool:
        indices = {demand.index.name for demand in demands if isinstance(demand.index, Value)}
        self._ranges.find(inputs, self._ranges.leading_to(indices))
        return all(demand.met(self._ranges.of(demand.index)) for demand in demands)

    def _leading(self, demand: Demand) -> set[str]:
        if not isinstance(demand.index, Value):
            return set()
        nodes = self._ranges.leading_to({demand.index.name})
        return {demand.index.name, *(value for node in nodes for value in node.values())}


def _one_hots(graph: Graph, weights: Mapping[str, Tensor]) -> Iterator[Demand]:
    for node in graph.nodes:
        if node.op == ONE_HOT and len(node.args) == 2:
            classes = _counted(node.args[1], weights)
            if classes is not None and isinstance(node.args[0], Value):
                yield Demand(node.name, node.args[0], Interval(0, classes - 1))


def _counted(argument: Argument, weights: Mapping[str, Tensor]) -> int | None:
    """Return how many whole numbers, from 0 on and in order, this weight holds."""
    if not isinstance(argument, Weight):
        return None
    tensor = weights[argument.name]
    if tensor.dim() != 1 or tensor.is_floating_point() or tensor.tolist() != list(range(len(tensor))):
        return None
    return len(tensor)


def without_limits(inputs: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
    """Return the inputs as their graph describes them."""
    return tuple(spec.unlimited() for spec in inputs)
