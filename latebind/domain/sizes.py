"""Sizes of tensors that may differ from row to row: named dimensions, and sizes that follow from them. Pure."""

import ast
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import lcm
from typing import Final, Self

MOST_SIZE: Final = 1 << 40  # of one dimension
MOST_LETTERS: Final = 200  # of one size that is written in terms of others
MOST_DIMS: Final = 8  # named dimensions of one model

Size = int | str
"""A fixed size, or one in terms of named dimensions: `L`, `2*L`, `(L - 400)//320 + 1`."""

_OPERATORS: Final[Mapping[type, Callable[[int, int], int]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_RANGE: Final = re.compile(r"([0-9]{1,18})\.\.([0-9]{1,18})(?::([0-9]{1,18}))?")
_CALLS: Final[Mapping[str, Callable[..., int]]] = {"Max": max, "Min": min}  # as torch.export writes them


@dataclass(frozen=True, slots=True)
class Dim:
    """A named dimension, which has `least` to `most` elements in each row, a multiple of `step`.

    Tensors that name the same dimension have the same size there in one row.
    """

    name: str
    least: int
    most: int
    step: int = 1

    @property
    def makes_sense(self) -> bool:
        """Whether some size is allowed, and both ends are."""
        return (
            self.name.isidentifier()
            and self.name not in _CALLS
            and 1 <= self.least <= self.most < MOST_SIZE
            and self.step >= 1
            and not self.least % self.step
            and not self.most % self.step
        )

    @classmethod
    def read(cls, name: str, text: str) -> Self:
        """Return the dimension of this name whose range is written as 1..512, or as 32..1024:32 in steps of 32.

        Raises `ValueError`, which says what to write, for an invalid range.
        """
        parts = _RANGE.fullmatch(text)
        if parts is None:
            raise ValueError(f"write {name}=1..512, or {name}=32..1024:32 for the multiples of 32")
        least, most, step = map(int, parts.groups("1"))
        dim = cls(name, least, most, step)
        if fault := dim.fault():
            raise ValueError(fault)
        return dim

    def fault(self) -> str:
        """Return why rows cannot differ in this dimension, and what to write instead; "" if they can."""
        if self.makes_sense and self.least < self.most:
            return ""
        if self.least < 1 or self.step < 1:
            return "a row has at least 1 in each dimension, and steps are of 1 or more"
        if self.most < self.least:
            return f"the range ends before it begins: did you mean {self.most} to {self.least}?"
        if self.least == self.most:
            return f"that is a single size: write {self.least} instead of {self.name}"
        least, most = -(-self.least // self.step) * self.step, self.most // self.step * self.step
        if (least, most) != (self.least, self.most):
            could = f": from {least} to {most}?" if least < most else ""
            return f"both ends must be multiples of the step, {self.step}{could}"
        return f"{self.name!r} is not a name, or {self.most} more than any row has: take a name such as L, H or length"

    def and_also(self, other: "Dim") -> "Dim":
        """Return the dimension with the sizes that both allow; it makes no sense if there are none."""
        step = lcm(self.step, other.step)
        least, most = max(self.least, other.least), min(self.most, other.most)
        return Dim(self.name, -(-least // step) * step, most // step * step, step)

    def allows(self, size: int) -> bool:
        """Return whether a row may have this size."""
        return self.least <= size <= self.most and not size % self.step

    def written(self) -> str:
        """Return the range as options have it: `1..512`, or `32..1024:32` in steps."""
        return f"{self.least}..{self.most}" + (f":{self.step}" if self.step > 1 else "")

    def near(self, size: float) -> int:
        """Return the allowed size next to this number."""
        return min(max(round(size / self.step) * self.step, self.least), self.most)

    def range(self) -> str:
        """Return in words which sizes are allowed."""
        return f"{self.least} to {self.most}" + (f" in steps of {self.step}" if self.step > 1 else "")


def make_sense(dims: Sequence[Dim]) -> bool:
    """Return whether these can be the named dimensions of one model."""
    names = {dim.name for dim in dims}
    return len(names) == len(dims) <= MOST_DIMS and all(dim.makes_sense for dim in dims)


def size_of(size: Size, dims: Mapping[str, int]) -> int:
    """Return a size for these sizes of the named dimensions.

    Raises `ValueError` for any other size: with a name that is not among them, or another operator.
    """
    if isinstance(size, int):
        return size
    if size in dims:
        return dims[size]
    return _evaluated(_parsed(size), dims)


def in_terms(size: Size, of: Mapping[str, Size]) -> Size:
    """Return a size with each name replaced by what `of` has for it. Raises `ValueError` for an invalid size."""
    if isinstance(size, int):
        return size
    if size in of:
        return of[size]
    text = ast.unparse(_Named(of).visit(ast.parse(size, mode="eval")))
    try:
        return _evaluated(_parsed(text), {})
    except ValueError:
        if len(text) > MOST_LETTERS:
            raise
        return text


class _Named(ast.NodeTransformer):
    def __init__(self, of: Mapping[str, Size]) -> None:
        self._of = of

    def visit_Name(self, node: ast.Name) -> ast.expr:
        value = self._of.get(node.id)
        return node if value is None else ast.parse(str(value), mode="eval").body


def names_in(size: Size) -> set[str]:
    """Return the names of the dimensions that a size depends on."""
    if isinstance(size, int):
        return set()
    found = {node.id for node in ast.walk(_parsed(size)) if isinstance(node, ast.Name)}
    return found - _CALLS.keys()


@cache
def _parsed(size: str) -> ast.expr:
    if len(size) > MOST_LETTERS:
        raise ValueError(f"a size of {len(size)} letters is too long: {size[:40]!r} ...")
    try:
        return ast.parse(size, mode="eval").body
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"{size!r} is not a size: {error}") from None


def _evaluated(node: ast.expr, dims: Mapping[str, int]) -> int:
    match node:
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            return value
        case ast.Name(id=name) if name in dims:
            return dims[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_evaluated(operand, dims)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            one, other = _evaluated(left, dims), _evaluated(right, dims)
            if isinstance(op, ast.FloorDiv | ast.Mod) and not other:
                raise ValueError(f"{ast.unparse(node)!r} divides by 0")
            return _OPERATORS[type(op)](one, other)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _CALLS and args:
            return _CALLS[name](*[_evaluated(argument, dims) for argument in args])
    raise ValueError(f"{ast.unparse(node)!r} is not a size of dimensions {', '.join(dims) or '(none)'}")
