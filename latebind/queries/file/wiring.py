"""Checked expressions as data: the tensors that go between the steps of a query, and when a step runs. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from latebind.domain.errors import QueryError
from latebind.domain.query import Query
from latebind.domain.sizes import Size

INPUT = -1  # the node of a tensor that the client gave
MOST_GROUPS = 64

Groups: TypeAlias = frozenset[frozenset[int]]
EITHER = "first"  # the operation that returns the first of its arguments that exists


@dataclass(frozen=True, slots=True)
class Kind:
    """What is known of a tensor in advance; with `below`, its values are 0 to `below` - 1.

    Its `shape` has no batch. What varies from row to row is in terms of the named dimensions of the query. `classes`
    name the values of a row of logits. If there are `texts`, a value is the number of one of them; the first is "",
    which stands for a step that has not run.
    """

    dtype: str
    shape: tuple[Size, ...]
    below: int | None = None
    classes: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()

    @property
    def is_float(self) -> bool:
        """Whether its values are floating point numbers."""
        return self.dtype.startswith("float")

    @property
    def is_whole(self) -> bool:
        """Whether its values are integers."""
        return not self.is_float and self.dtype != "bool"

    @property
    def is_one(self) -> bool:
        """Whether it has one value."""
        return all(size == 1 for size in self.shape)

    def fits(self, other: "Kind") -> bool:
        """Return whether one can be copied to the other."""
        return (self.dtype, self.shape, self.texts) == (other.dtype, other.shape, other.texts)

    def __str__(self) -> str:
        if self.texts:
            return "a label"
        return f"{self.dtype} {'x'.join(map(str, self.shape)) or 'scalar'}"


@dataclass(frozen=True, slots=True)
class Literal:
    """A number or a text that is written in an expression."""

    value: int | float | str


@dataclass(frozen=True, slots=True)
class Ref:
    """Output `place` of the model that `node` has run with; for node `INPUT`, an input of the query."""

    node: int
    place: int
    kind: Kind


@dataclass(frozen=True, slots=True)
class Apply:
    """An operation applied to its arguments: one of `language.OPERATIONS`, a comparison or a logical operator."""

    operation: str
    arguments: tuple["Expression", ...]
    kind: Kind


Expression: TypeAlias = Literal | Ref | Apply
Tensor: TypeAlias = Ref | Apply


@dataclass(frozen=True, slots=True)
class Wiring:
    """All expressions of a query, by the number of the node.

    `inputs[node]` has for each of its models what that takes, in the order of its inputs. `conditions[node]` is None
    for a node without condition. `outputs` are in the order of the query's outputs. Every tensor has the dtype and
    shape of the place that it is copied to.
    """

    inputs: tuple[tuple[tuple[Tensor, ...], ...], ...]
    conditions: tuple[Tensor | None, ...]
    outputs: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class DefinedQuery:
    """A query as it is planned, with its expressions."""

    query: Query
    wiring: Wiring


def parts_of(expression: Expression) -> int:
    """Return how many parts an expression has."""
    return 1 + sum(map(parts_of, expression.arguments)) if isinstance(expression, Apply) else 1


def refs_in(expression: Expression) -> Iterator[Ref]:
    """Yield the tensors that an expression refers to."""
    if isinstance(expression, Ref):
        yield expression
    elif isinstance(expression, Apply):
        for argument in expression.arguments:
            yield from refs_in(argument)


def nodes_of(*expressions: Expression | None) -> set[int]:
    """Return the nodes that expressions refer to."""
    found = {ref.node for one in expressions if one is not None for ref in refs_in(one)}
    return found - {INPUT}


def needs(expression: Expression) -> Groups:
    """Return groups of nodes: the expression can be evaluated if one node of each group has run.

    Raises `QueryError` if there are too many groups to plan with.
    """
    if isinstance(expression, Apply):
        each = [needs(argument) for argument in expression.arguments]
        return one_of(each) if expression.operation == EITHER else all_of(each)
    return frozenset(frozenset({node}) for node in nodes_of(expression))


def all_of(each: Iterable[Groups]) -> Groups:
    """Return the groups for several expressions that are all needed, without groups that contain another one."""
    groups = frozenset[frozenset[int]]().union(*each)
    return frozenset(group for group in groups if not any(other < group for other in groups))


def one_of(each: Iterable[Groups]) -> Groups:
    """Return the groups for several expressions, one of which is needed."""
    found: Groups = frozenset({frozenset()})
    for groups in each:
        found = all_of([frozenset(one | other for one in found for other in groups)])
        if len(found) > MOST_GROUPS:
            raise QueryError(f"{EITHER} chooses among what too many nodes give together: use fewer of them at once")
    return found
