"""The little language of query files: text to checked expressions. Python parses it, and never runs it. Pure.

crop(image, 0, 0, 32, 32)        argmax(gate.output) in [0, 1] and max(softmax(gate.output)) > 0.5
"""

import ast
from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite

from latebind.domain.errors import QueryError
from latebind.queries.file.operations import TRUTH, compared, contained, judged, operation
from latebind.queries.file.wiring import Apply, Expression, Literal, Tensor, parts_of

MOST_CHARACTERS = 500
MOST_DEPTH = 20
MOST_LISTED = 256
MOST_PARTS = 1_000  # with conditions expanded, because they may name each other

OPERATORS: dict[type[ast.cmpop], str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}


@dataclass(frozen=True, slots=True)
class Names:
    """How names are looked up: `alone` returns the tensor of `image`, `of_node` that of `node.output`.

    Both raise `QueryError` for an unknown name.
    """

    alone: Callable[[str], Tensor]
    of_node: Callable[[str, str], Tensor]


@dataclass(frozen=True, slots=True)
class Parsed:
    """An expression that has been parsed and is not checked yet."""

    body: ast.expr

    @property
    def name(self) -> str:
        """The name, if the whole expression is one; else empty."""
        return self.body.id if isinstance(self.body, ast.Name) else ""

    def tensor(self, names: Names) -> Tensor:
        """Return the tensor that this describes. Raises `QueryError` with the column."""
        found = _Reader(names).read(self.body)
        if isinstance(found, Literal):
            raise QueryError(f"column 1: {found.value!r:.50} is no tensor: name one, as node.output")
        return _bounded(found)

    def condition(self, names: Names) -> Tensor:
        """Return the condition that this describes. Raises `QueryError` with the column."""
        return _bounded(_Reader(names).condition(self.body))


def parse(text: str) -> Parsed:
    """Parse an expression. Raises `QueryError` with the column if it is not valid."""
    if len(text) > MOST_CHARACTERS:
        raise QueryError(f"the expression has {len(text)} characters: {MOST_CHARACTERS} at most; name parts of it")
    for column, character in enumerate(text, 1):
        if not (" " <= character <= "~" or character in "\n\t") or character == "#":
            raise QueryError(f"column {column}: {character!r} has no place in an expression")
    flat = text.replace("\n", " ").replace("\t", " ")
    if not flat.strip():
        raise QueryError("column 1: there is no expression: name a tensor, as node.output")
    indented = len(flat) - len(flat.lstrip())
    try:
        body = ast.parse(flat.lstrip(), mode="eval").body
    except (SyntaxError, ValueError) as error:
        at = getattr(error, "offset", None) or len(flat.strip()) + 1
        message = error.msg if isinstance(error, SyntaxError) else str(error)
        raise QueryError(f"column {at + indented}: this is no expression: {message}") from None
    except (RecursionError, MemoryError):
        raise QueryError(f"column 1: the expression is nested more than {MOST_DEPTH} deep: name parts of it") from None
    for node in ast.walk(body):
        if isinstance(node, ast.expr):
            node.col_offset += indented
    return Parsed(body)


class _Reader:
    """Reads one expression from the outside in; what it does not know it refuses."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._depth = 0

    def read(self, node: ast.expr) -> Expression:
        """Return what `node` stands for; an error gets the column of the innermost part that is wrong."""
        self._depth += 1
        try:
            if self._depth > MOST_DEPTH:
                raise QueryError(f"the expression is nested more than {MOST_DEPTH} deep: name parts of it")
            return self._part(node)
        except QueryError as error:
            raise _at(node, error) from None
        finally:
            self._depth -= 1

    def condition(self, node: ast.expr) -> Tensor:
        """Return a part that must be a condition."""
        found = self.read(node)
        try:
            judged(found)
        except QueryError as error:
            raise _at(node, error) from None
        assert not isinstance(found, Literal)
        return found

    def _part(self, node: ast.expr) -> Expression:
        match node:
            case ast.Name(name):
                return self._names.alone(name)
            case ast.Attribute(ast.Name(name), output) | ast.Subscript(ast.Name(name), ast.Constant(str(output))):
                return self._names.of_node(name, output)
            case ast.Constant():
                return _literal(node.value)
            case ast.UnaryOp(ast.USub(), ast.Constant(bool() | int() | float() as value)):
                return _literal(value, negative=True)
        return self._made(node)

    def _made(self, node: ast.expr) -> Apply:
        match node:
            case ast.UnaryOp(ast.Not(), operand):
                return Apply("not", (self.condition(operand),), TRUTH)
            case ast.BoolOp(operator, operands):
                word = "and" if isinstance(operator, ast.And) else "or"
                return Apply(word, tuple(self.condition(operand) for operand in operands), TRUTH)
            case ast.Compare(left, operators, operands):
                return self._compare(left, operators, operands)
            case ast.Subscript(value, index):
                return self._apply("select", [value, index])
            case ast.Call(ast.Name(name), arguments, []):
                return self._apply(name, arguments)
        raise QueryError(f"{_what(node)} has no place in an expression")

    def _apply(self, name: str, nodes: list[ast.expr]) -> Apply:
        wanted = operation(name)
        arguments = tuple(self.read(node) for node in nodes)
        return Apply(name, arguments, wanted.made_of(arguments))

    def _compare(self, left: ast.expr, operators: list[ast.cmpop], operands: list[ast.expr]) -> Apply:
        """`a < b < c` is `a < b and b < c`."""
        steps = []
        for operator, right in zip(operators, operands, strict=True):
            steps.append(self._step(left, operator, right))
            left = right
        return steps[0] if len(steps) == 1 else Apply("and", tuple(steps), TRUTH)

    def _step(self, left: ast.expr, operator: ast.cmpop, right: ast.expr) -> Apply:
        value = self.read(left)
        if isinstance(operator, ast.In | ast.NotIn):
            numbers = self._listed(right)
            found = Apply("in", (value, *numbers), contained(value, numbers))
            return found if isinstance(operator, ast.In) else Apply("not", (found,), TRUTH)
        if type(operator) not in OPERATORS:
            raise QueryError("is compares nothing here: write == or !=")
        symbol, other = OPERATORS[type(operator)], self.read(right)
        return Apply(symbol, (value, other), compared(symbol, value, other))

    def _listed(self, node: ast.expr) -> tuple[Expression, ...]:
        if not isinstance(node, ast.List | ast.Tuple) or not node.elts:
            raise _at(node, QueryError("in looks a number up in a list of numbers: write it as [0, 1]"))
        if len(node.elts) > MOST_LISTED:
            raise _at(node, QueryError(f"the list has {len(node.elts)} numbers: {MOST_LISTED} at most"))
        return tuple(self.read(one) for one in node.elts)


def _bounded(tensor: Tensor) -> Tensor:
    if parts_of(tensor) > MOST_PARTS:
        raise QueryError(f"column 1: the expression and its conditions have over {MOST_PARTS} parts: write less")
    return tensor


def _literal(value: object, *, negative: bool = False) -> Literal:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise QueryError(f"{value!r:.50} has no place in an expression")
    if isinstance(value, str):
        return Literal(value)
    try:
        finite = isfinite(value)
    except OverflowError:
        finite = False
    if not finite:
        raise QueryError("the number is too large")
    return Literal(-value if negative else value)


def _at(node: ast.expr, error: QueryError) -> QueryError:
    message = str(error)
    return error if message.startswith("column ") else QueryError(f"column {node.col_offset + 1}: {message}")


def _what(node: ast.expr) -> str:
    """Return the name, for error messages, of syntax that the language does not have."""
    names: dict[type[ast.expr], str] = {
        ast.BinOp: "arithmetic",
        ast.Lambda: "a function",
        ast.IfExp: "if",
        ast.Dict: "a table",
        ast.List: "a list",
        ast.Tuple: "a list",
        ast.Call: "a call with named arguments, or of anything but an operation,",
        ast.Attribute: "a dot behind anything but a node",
        ast.JoinedStr: "a formatted text",
        ast.Starred: "a star",
        ast.Slice: "a range",
    }
    return names.get(type(node), "this")
