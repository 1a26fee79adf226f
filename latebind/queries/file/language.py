"""The expression language of query files: text to checked expressions. Python parses it, and never runs it. Pure.

crop(image, 0, 0, 32, 32)        argmax(gate.output) in [0, 1] and max(softmax(gate.output)) > 0.5

An operation is one entry of `OPERATIONS` here, which checks its call and returns the kind of its result, and one
in `engine/operations.py`, which computes.
"""

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from inspect import signature
from math import isfinite, prod
from typing import Protocol, TypeGuard

from latebind.domain.errors import QueryError
from latebind.domain.model import COMPUTED_DTYPES
from latebind.domain.wording import instead
from latebind.queries.file.source import LocatedError
from latebind.queries.file.wiring import EITHER, Apply, Expression, Kind, Literal, Tensor, parts_of

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
MOST_VALUES = 1 << 24  # of a tensor that an operation makes
LARGEST = {"float16": 65504.0, "float32": 3.4e38, "float64": 1.7e308}
TRUTH = Kind("bool", ())
NOTHING = Literal(0)
LABEL = "label"  # gives the number of a text; its argument after the logits is the number of the first label

Arguments = Sequence[Expression]


class Names(Protocol):
    """How names are looked up; both raise `QueryError` for an unknown name."""

    def alone(self, name: str) -> Tensor:
        """Return the tensor of `image`."""

    def of_node(self, name: str, output: str) -> Tensor:
        """Return the tensor of `node.output`."""


def parse(text: str) -> ast.expr:
    """Parse an expression. Raises `QueryError` with the column if it is not valid."""
    if len(text) > MOST_CHARACTERS:
        raise QueryError(f"the expression has {len(text)} characters: {MOST_CHARACTERS} at most; name parts of it")
    for column, character in enumerate(text, 1):
        if not (" " <= character <= "~" or character in "\n\t") or character == "#":
            raise QueryError(f"column {column}: {character!r} is not allowed in an expression")
    flat = text.replace("\n", " ").replace("\t", " ")
    if not flat.strip():
        raise QueryError("column 1: there is no expression: name a tensor, such as node.output")
    indented = len(flat) - len(flat.lstrip())
    try:
        body = ast.parse(flat.lstrip(), mode="eval").body
    except (SyntaxError, ValueError) as error:
        at = getattr(error, "offset", None) or len(flat.strip()) + 1
        message = error.msg if isinstance(error, SyntaxError) else str(error)
        raise QueryError(f"column {at + indented}: this is not an expression: {message}") from None
    except (RecursionError, MemoryError):
        raise QueryError(f"column 1: the expression is nested more than {MOST_DEPTH} deep: name parts of it") from None
    for node in ast.walk(body):
        if isinstance(node, ast.expr):
            node.col_offset += indented
    return body


def tensor(body: ast.expr, names: Names) -> Tensor:
    """Return the tensor that an expression describes. Raises `QueryError` with the column."""
    found = _Reader(names).read(body)
    if isinstance(found, Literal):
        raise QueryError(f"column 1: {found.value!r:.50} is not a tensor: name one, such as node.output")
    return _bounded(found)


def condition(body: ast.expr, names: Names) -> Tensor:
    """Return the condition that an expression describes. Raises `QueryError` with the column."""
    return _bounded(_Reader(names).condition(body))


class _Reader:
    """Reads one expression from the outside in, and refuses what it does not know."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._depth = 0

    def read(self, node: ast.expr) -> Expression:
        """Return the expression of `node`; an error gets the column of the innermost part that is wrong."""
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
        raise QueryError("this is not allowed in an expression: docs/query-files.md lists what is")

    def _apply(self, name: str, nodes: list[ast.expr]) -> Apply:
        wanted = operation(name)
        arguments = tuple(self.read(node) for node in nodes)
        kind = wanted.made_of(arguments)
        if name == LABEL:
            arguments = (*arguments, Literal(1))
        elif name == EITHER and kind.texts:
            arguments = _numbered_together(arguments, kind.texts)
        return Apply(name, arguments, kind)

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
            if _is_text(value):
                return _among(value, numbers, holds=isinstance(operator, ast.In))
            found = Apply("in", (value, *numbers), contained(value, numbers))
            return found if isinstance(operator, ast.In) else Apply("not", (found,), TRUTH)
        if type(operator) not in OPERATORS:
            raise QueryError("`is` is not supported: write == or !=")
        symbol, other = OPERATORS[type(operator)], self.read(right)
        if _is_text(value) or _is_text(other):
            return _same_text(symbol, value, other)
        return Apply(symbol, (value, other), compared(symbol, value, other))

    def _listed(self, node: ast.expr) -> tuple[Expression, ...]:
        if not isinstance(node, ast.List | ast.Tuple) or not node.elts:
            message = 'in looks a number or a label up in a list: write it as [0, 1] or ["one", "other"]'
            raise _at(node, QueryError(message))
        if len(node.elts) > MOST_LISTED:
            raise _at(node, QueryError(f"the list has {len(node.elts)} entries: {MOST_LISTED} at most"))
        return tuple(self.read(one) for one in node.elts)


def _bounded(tensor: Tensor) -> Tensor:
    if parts_of(tensor) > MOST_PARTS:
        raise QueryError(f"column 1: the expression and its conditions have over {MOST_PARTS} parts: write less")
    return tensor


def _literal(value: object, *, negative: bool = False) -> Literal:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise QueryError(f"{value!r:.50} is not allowed in an expression")
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
    placed = isinstance(error, LocatedError) or message.startswith("column ")
    return error if placed else QueryError(f"column {node.col_offset + 1}: {message}")


@dataclass(frozen=True, slots=True)
class Operation:
    """`usage` is how it is called; `kind` returns the kind of the result for its arguments.

    `made_of` raises `QueryError` for arguments that are too few or too many, or that do not fit.
    """

    usage: str
    kind: Callable[..., Kind]

    def made_of(self, arguments: Arguments) -> Kind:
        """Return the kind of the result for these arguments."""
        try:
            signature(self.kind).bind(*arguments)
        except TypeError:
            raise QueryError(f"there are {len(arguments)} arguments: write {self.usage}") from None
        return self.kind(*arguments)


def operation(name: str) -> Operation:
    """Return the operation of this name. Raises `QueryError` if there is none."""
    found = OPERATIONS.get(name)
    if found is None:
        raise QueryError(f"there is no operation {name!r:.100}: take {', '.join(OPERATIONS)}")
    return found


def _crop(x: Expression, top: Expression, left: Expression, height: Expression, width: Expression) -> Kind:
    image, size = _image("crop", x), _size("crop", (height, width))
    for corner, part, whole in zip((top, left), size, _fixed("crop", image)[-2:], strict=True):
        if part > whole:
            raise QueryError(f"crop cannot cut {_sized(size)} out of {image}: take at most what there is")
        if not isinstance(corner, Literal):
            _one_number("crop", corner)
        elif not 0 <= _whole("crop", corner) <= whole - part:
            raise QueryError(f"crop begins at {corner.value}, beyond what {image} has: take 0 to {whole - part}")
    return Kind(image.dtype, (*image.shape[:-2], *size))


def _crop_to(x: Expression, box: Expression, height: Expression, width: Expression) -> Kind:
    given = _tensor("crop_to", box)
    if given.shape != (4,) or not given.is_float:
        raise QueryError(f"crop_to has a box of {given}: give 4 floats, top, left, bottom and right as shares of 1")
    return _resized("crop_to", x, height, width)


def _softmax(x: Expression) -> Kind:
    scores = _floats("softmax", _tensor("softmax", x))
    if not scores.shape:
        raise QueryError("softmax has a single number: give the scores of all classes")
    return Kind(scores.dtype, scores.shape)


def _argmax(x: Expression) -> Kind:
    size = _row("argmax", x).shape[0]
    return Kind("int64", (), below=size if isinstance(size, int) else None)


def _label(x: Expression) -> Kind:
    row = _row(LABEL, x)
    if not row.classes:
        raise QueryError(
            f"{LABEL} has {row}, whose labels are not known: name the logits of a model that was built with labels, "
            "as node.logits; models of one node need the same labels"
        )
    return Kind("int64", (), texts=("", *row.classes))


def _max(x: Expression) -> Kind:
    values = _numeric("max", _tensor("max", x))
    return Kind(values.dtype, (), values.below)


def _top_values(x: Expression, count: Expression) -> Kind:
    row = _row("top_values", x)
    return Kind(row.dtype, (_count("top_values", count, row),), row.below)


def _top_indices(x: Expression, count: Expression) -> Kind:
    row = _row("top_indices", x)
    return Kind("int64", (_count("top_indices", count, row),), below=_fixed("top_indices", row)[0])


def _select(x: Expression, index: Expression) -> Kind:
    values = _tensor("select", x)
    if not values.shape:
        raise QueryError("select has a single number: there is nothing in it to choose from")
    size = values.shape[0]
    if not isinstance(size, int):
        if not isinstance(index, Literal) or _whole("select", index) not in (0, -1):
            raise QueryError(f"select has an index in {values}, whose size varies: take the first, 0, or the last, -1")
    elif isinstance(index, Literal):
        if not -size <= _whole("select", index) < size:
            raise QueryError(f"select has index {index.value} in {values}: take 0 to {size - 1}")
    else:
        chosen = _one_number("select", index)
        if not chosen.is_whole:
            raise QueryError(f"select has an index of {chosen}: give a whole number")
        if chosen.below is not None and chosen.below > size:
            raise QueryError(f"select has an index up to {chosen.below - 1} in {values}: it has 0 to {size - 1}")
    return Kind(values.dtype, values.shape[1:], values.below)


def _scale(x: Expression, factor: Expression, offset: Expression = NOTHING) -> Kind:
    values = _floats("scale", _tensor("scale", x))
    if max(abs(_number("scale", number)) for number in (factor, offset)) > LARGEST[values.dtype]:
        raise QueryError(f"scale has a number that is too large for {values.dtype}: cast to another dtype first")
    return Kind(values.dtype, values.shape)


def _cast(x: Expression, dtype: Expression) -> Kind:
    if not isinstance(dtype, Literal) or dtype.value not in COMPUTED_DTYPES:
        raise QueryError(f'cast needs a dtype, as cast(x, "float32"): take {", ".join(COMPUTED_DTYPES)}')
    return Kind(str(dtype.value), _tensor("cast", x).shape)


def _reshape(x: Expression, first: Expression, *sizes: Expression) -> Kind:
    values, shape = _tensor("reshape", x), _size("reshape", (first, *sizes))
    total = prod(_fixed("reshape", values))
    if prod(shape) != total:
        raise QueryError(f"reshape cannot make {_sized(shape)} of {values}: it has {total} values")
    return Kind(values.dtype, shape, values.below)


def _first(x: Expression, y: Expression, *more: Expression) -> Kind:
    kinds = [argument.kind if _is_text(argument) else _tensor(EITHER, argument) for argument in (x, y, *more)]
    for kind in kinds[1:]:
        if not replace(kind, texts=()).fits(replace(kinds[0], texts=())) or bool(kind.texts) != bool(kinds[0].texts):
            raise QueryError(f"{EITHER} chooses between {kinds[0]} and {kind}: give tensors that are alike")
    limits = [kind.below for kind in kinds if kind.below is not None]
    texts = tuple(dict.fromkeys(kind.texts for kind in kinds if kind.texts))
    return Kind(
        kinds[0].dtype,
        kinds[0].shape,
        max(limits) if len(limits) == len(kinds) else None,
        kinds[0].classes if all(kind.classes == kinds[0].classes for kind in kinds) else (),
        ("", *[text for some in texts for text in some[1:]]) if texts else (),
    )


def _numbered_together(arguments: Arguments, texts: tuple[str, ...]) -> tuple[Expression, ...]:
    """Return labels of several models as numbers of the same `texts`, which has those of one model after another."""
    begins: dict[tuple[str, ...], int] = {}
    begin = 1
    for argument in arguments:
        assert not isinstance(argument, Literal)
        if argument.kind.texts not in begins:
            begins[argument.kind.texts] = begin
            begin += len(argument.kind.texts) - 1
    return tuple([_moved(one, begins[one.kind.texts] - 1, texts) for one in arguments if isinstance(one, Apply)])


def _moved(tensor: Apply, by: int, texts: tuple[str, ...]) -> Apply:
    """Return a label whose number is larger `by` this; it is then one of `texts`."""
    if tensor.operation == LABEL:
        x, first = tensor.arguments
        assert isinstance(first, Literal)
        assert isinstance(first.value, int)
        arguments: tuple[Expression, ...] = (x, Literal(first.value + by))
    else:
        arguments = tuple([_moved(one, by, texts) for one in tensor.arguments if isinstance(one, Apply)])
    return replace(tensor, arguments=arguments, kind=replace(tensor.kind, texts=texts))


def _resized(who: str, x: Expression, height: Expression, width: Expression) -> Kind:
    image = _floats(who, _image(who, x))
    times = prod(_fixed(who, Kind(image.dtype, image.shape[:-2])))
    return Kind(image.dtype, (*image.shape[:-2], *_size(who, (height, width), times=times)))


OPERATIONS: Mapping[str, Operation] = {
    "crop": Operation("crop(x, top, left, height, width)", _crop),
    "crop_to": Operation("crop_to(x, box, height, width)", _crop_to),
    "resize": Operation("resize(x, height, width)", partial(_resized, "resize")),
    "softmax": Operation("softmax(x)", _softmax),
    "argmax": Operation("argmax(x)", _argmax),
    LABEL: Operation("label(x)", _label),
    "max": Operation("max(x)", _max),
    "top_values": Operation("top_values(x, count)", _top_values),
    "top_indices": Operation("top_indices(x, count)", _top_indices),
    "select": Operation("select(x, index) or x[index]", _select),
    "scale": Operation("scale(x, factor, offset)", _scale),
    "cast": Operation('cast(x, "float32")', _cast),
    "reshape": Operation("reshape(x, sizes...)", _reshape),
    EITHER: Operation("first(x, y, ...)", _first),
}


def compared(operator: str, left: Expression, right: Expression) -> Kind:
    """Return the kind of a comparison of two numbers. Raises `QueryError` for anything else."""
    for side, other in ((left, right), (right, left)):
        if isinstance(side, Literal):
            if isinstance(other, Literal):
                raise QueryError(f"{side.value!r} {operator} {other.value!r} is always the same: compare a tensor")
            _check_possible(_number("a comparison", side), other, operator)
        else:
            _one_number("a comparison", side)
    return TRUTH


def contained(value: Expression, numbers: Arguments) -> Kind:
    """Return the kind of a test whether an integer is among others. Raises `QueryError` for anything else."""
    kind = _one_number("in", value)
    if not kind.is_whole:
        raise QueryError(f"in has {kind} on its left: only whole numbers are looked up; compare others with < and >")
    for number in numbers:
        _check_possible(_whole("in", number), value, "in")
    return TRUTH


def _same_text(symbol: str, left: Expression, right: Expression) -> Apply:
    """Return the comparison of a label with a text, or with another label of the same model."""
    if symbol not in ("==", "!="):
        raise QueryError(f'labels are not ordered: write == or != instead of {symbol}, or in ["one", "other"]')
    label, other = (left, right) if _is_text(left) else (right, left)
    if isinstance(other, Literal):
        return _among(label, (other,), holds=symbol == "==")
    if label.kind.texts != other.kind.texts or len(set(label.kind.texts)) < len(label.kind.texts):  # type: ignore[union-attr]
        raise QueryError("these are labels of different kinds: compare each with a text of its own")
    return Apply(symbol, (label, other), TRUTH)


def _among(label: Expression, wanted: Arguments, *, holds: bool) -> Apply:
    """Return the condition that a label is one of some texts or, unless it `holds`, none of them."""
    assert not isinstance(label, Literal)
    texts, numbers = label.kind.texts, list[Literal]()
    for one in wanted:
        if not isinstance(one, Literal) or not isinstance(one.value, str):
            raise QueryError('a label is compared with a text that is written in the file: write it as "text"')
        found = [number for number, text in enumerate(texts) if number and text == one.value]
        if not found:
            raise QueryError(f"there is no label {one.value!r:.100}{instead(one.value, texts[1:])}")
        numbers += map(Literal, found)
    among = Apply("in", (label, *numbers), TRUTH)
    return among if holds else Apply("not", (among,), TRUTH)


def _is_text(argument: Expression) -> TypeGuard[Tensor]:
    """Return whether an expression gives a text, not numbers."""
    return not isinstance(argument, Literal) and bool(argument.kind.texts)


def judged(condition: Expression) -> Kind:
    """Return the kind of a condition. Raises `QueryError` for an expression that is not one."""
    kind = None if isinstance(condition, Literal) else condition.kind
    if kind is None or kind.dtype != "bool" or not kind.is_one:
        what = repr(condition.value) if isinstance(condition, Literal) else str(kind)
        raise QueryError(f"{what} is not a condition: compare it, as in argmax(x) == 1 or max(x) > 0.5")
    return TRUTH


def _check_possible(number: float, other: Expression, operator: str) -> None:
    below = None if isinstance(other, Literal) else other.kind.below
    if below is not None and operator in {"in", "=="} and not 0 <= number < below:
        raise QueryError(f"{number:g} never occurs: values are 0 to {below - 1}")


def _tensor(who: str, argument: Expression) -> Kind:
    if isinstance(argument, Literal):
        raise QueryError(f"{who} has {argument.value!r:.50} where a tensor is needed: name one, such as node.output")
    if _is_text(argument):
        raise QueryError(f'{who} has a label where numbers are needed: compare it, as in {LABEL}(x) == "one"')
    return argument.kind


def _numeric(who: str, kind: Kind) -> Kind:
    if kind.dtype == "bool":
        raise QueryError(f"{who} has {kind} where numbers are needed: cast it first")
    if 0 in kind.shape:
        raise QueryError(f"{who} has {kind}, which is empty")
    return kind


def _fixed(who: str, kind: Kind) -> tuple[int, ...]:
    """Return a shape in which nothing varies."""
    sizes = tuple([size for size in kind.shape if isinstance(size, int)])
    if len(sizes) < len(kind.shape):
        raise QueryError(f"{who} needs sizes that are known, not {kind}: resize it first, or take argmax, max or x[0]")
    return sizes


def _floats(who: str, kind: Kind) -> Kind:
    if not kind.is_float:
        raise QueryError(f'{who} works on floats, not on {kind}: write cast(x, "float32") first')
    return _numeric(who, kind)


def _row(who: str, argument: Expression) -> Kind:
    kind = _numeric(who, _tensor(who, argument))
    if len(kind.shape) != 1:
        raise QueryError(f"{who} works on a row of numbers, not on {kind}: select or reshape first")
    return kind


def _image(who: str, argument: Expression) -> Kind:
    kind = _tensor(who, argument)
    if len(kind.shape) < 2 or 0 in kind.shape:
        raise QueryError(f"{who} works on images (channels, height, width), not on {kind}")
    return kind


def _one_number(who: str, argument: Expression) -> Kind:
    kind = _numeric(who, _tensor(who, argument))
    if not kind.is_one:
        raise QueryError(f"{who} needs a single number, not {kind}: take argmax, max or x[index] of it")
    return kind


def _number(who: str, argument: Expression) -> float:
    if not isinstance(argument, Literal) or isinstance(argument.value, str):
        raise QueryError(f"{who} needs a number that is written in the file")
    return argument.value


def _whole(who: str, argument: Expression) -> int:
    number = _number(who, argument)
    if not isinstance(number, int):
        raise QueryError(f"{who} has {number:g} where a whole number is needed")
    return number


def _size(who: str, arguments: Arguments, *, times: int = 1) -> tuple[int, ...]:
    """Return sizes that are given as numbers. Raises `QueryError` if `times` as many values are too many."""
    sizes = tuple(_whole(who, argument) for argument in arguments)
    if min(sizes) < 1 or times * prod(sizes) > MOST_VALUES:
        raise QueryError(
            f"{who} is to make {_sized(sizes)}: sizes are 1 or more, {MOST_VALUES} values together at most"
        )
    return sizes


def _count(who: str, argument: Expression, row: Kind) -> int:
    count = _whole(who, argument)
    (size,) = _fixed(who, row)
    if not 1 <= count <= size:
        raise QueryError(f"{who} is to give {count} of {row}: take 1 to {size}")
    return count


def _sized(shape: Sequence[int]) -> str:
    return "x".join(str(size)[:30] for size in shape)
