"""The little language: what is read, what comes out, and that nothing but QueryError comes of nonsense."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from latebind.domain.errors import QueryError
from latebind.queries.file import language
from latebind.queries.file.language import OPERATIONS, Names, parse
from latebind.queries.file.wiring import INPUT, Apply, Kind, Ref, Tensor, needs

IMAGE = Ref(INPUT, 0, Kind("float32", (3, 8, 8)))
PIXELS = Ref(INPUT, 1, Kind("uint8", (4, 6)))
ALONE = {
    "image": IMAGE,
    "pixels": PIXELS,
    "flag": Ref(INPUT, 2, Kind("bool", ())),
    "half": Ref(INPUT, 3, Kind("float16", (5,))),
}
OF_NODE = {
    ("gate", "output"): Ref(0, 0, Kind("float32", (10,))),
    ("gate", "box"): Ref(0, 1, Kind("float32", (4,))),
    ("cars", "output"): Ref(1, 0, Kind("float32", (10,))),
    ("bikes", "output"): Ref(2, 0, Kind("float32", (10,))),
    ("cars", "odd.name"): Ref(1, 1, Kind("int64", (1,))),
}


def alone(name: str) -> Tensor:
    if name not in ALONE:
        raise QueryError(f"nothing is called {name}")
    return ALONE[name]


def of_node(name: str, output: str) -> Tensor:
    if (name, output) not in OF_NODE:
        raise QueryError(f"no {name}.{output}")
    return OF_NODE[name, output]


class Looked:
    alone = staticmethod(alone)
    of_node = staticmethod(of_node)


NAMES: Names = Looked()


def tensor(text: str) -> Tensor:
    return language.tensor(parse(text), NAMES)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("image", Kind("float32", (3, 8, 8))),
        ("gate.output", Kind("float32", (10,))),
        ('cars["odd.name"]', Kind("int64", (1,))),
        ("crop(image, 0, 4, 8, 4)", Kind("float32", (3, 8, 4))),
        ("crop(pixels, argmax(gate.output), cars['odd.name'], 2, 2)", Kind("uint8", (2, 2))),
        ("crop_to(image, gate.box, 5, 6)", Kind("float32", (3, 5, 6))),
        ("resize(image, 20, 1)", Kind("float32", (3, 20, 1))),
        ("resize(cast(pixels, 'float32'), 2, 3)", Kind("float32", (2, 3))),
        ("softmax(gate.output)", Kind("float32", (10,))),
        ("argmax(gate.output)", Kind("int64", (), below=10)),
        ("max(pixels)", Kind("uint8", ())),
        ("top_values(gate.output, 3)", Kind("float32", (3,))),
        ("top_indices(gate.output, 3)", Kind("int64", (3,), below=10)),
        ("select(image, 2)", Kind("float32", (8, 8))),
        ("image[-1][0]", Kind("float32", (8,))),
        ("gate.output[argmax(cars.output)]", Kind("float32", ())),
        ("scale(image, 2, -1.5)", Kind("float32", (3, 8, 8))),
        ("scale(half, 0.5)", Kind("float16", (5,))),
        ("cast(flag, 'float64')", Kind("float64", ())),
        ("reshape(image, 4, 48)", Kind("float32", (4, 48))),
        ("first(gate.output, cars.output)", Kind("float32", (10,))),
        ("first(top_indices(gate.output, 2), top_indices(half, 2))", Kind("int64", (2,), below=10)),
        (" \n argmax(gate.output)\n  == 3 ", Kind("bool", ())),
        ("0.1 < max(gate.output) <= 0.9 or flag and not argmax(half) in (1, 2)", Kind("bool", ())),
        ("argmax(half) not in [0]", Kind("bool", ())),
        ("-1 != cars['odd.name']", Kind("bool", ())),
    ],
)
def test_dtype_and_shape_are_known_beforehand(text: str, kind: Kind) -> None:
    assert tensor(text).kind == kind


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("", 1, "there is no expression"),
        ("   ", 1, "there is no expression"),
        ("image +", 8, "this is not an expression"),
        ("  image image", 9, "this is not an expression"),
        ("image # it", 7, "'#' is not allowed"),
        ("imagé", 5, "'é' is not allowed"),
        ("image\0", 6, "is not allowed"),
        ("image + image", 1, "this is not allowed"),
        ("resize(imgae, 2, 2)", 8, "nothing is called imgae"),
        ("softmax(gate.outptu)", 9, "no gate.outptu"),
        ("  crop_to(image, box, 2, 2)", 18, "nothing is called box"),
        ("blur(image)", 1, "there is no operation 'blur': take crop,"),
        ("softmax(image, 1)", 1, "write softmax(x)"),
        ("first(image)", 1, "write first(x, y, ...)"),
        ("resize(image, height=2, width=2)", 1, "this is not allowed"),
        ("resize(*image)", 8, "this is not allowed"),
        ("image.shape.ndim", 1, "this is not allowed"),
        ("(lambda: 1)()", 1, "this is not allowed"),
        ("image[0:2]", 7, "this is not allowed"),
        ("[image]", 1, "this is not allowed"),
        ("image if flag else image", 1, "this is not allowed"),
        ("3", 1, "3 is not a tensor"),
        ("'image'", 1, "'image' is not a tensor"),
        ("flag == True", 9, "True is not allowed"),
        ("1j < max(image)", 1, "1j is not allowed"),
        ("None", 1, "None is not allowed"),
        ("max(image) < 1e999", 14, "the number is too large"),
        (f"max(image) < 1{'0' * 400}", 14, "the number is too large"),
        ("crop(image, 0, 0, 9, 8)", 1, "cannot cut 9x8 out of float32 3x8x8"),
        ("crop(image, 5, 0, 4, 4)", 1, "begins at 5, beyond what float32 3x8x8 has: take 0 to 4"),
        ("crop(image, 0.5, 0, 4, 4)", 1, "crop has 0.5 where a whole number is needed"),
        ("crop(image, gate.box, 0, 4, 4)", 1, "crop needs a single number, not float32 4"),
        ("crop(gate.box, 0, 0, 1, 1)", 1, "crop works on images"),
        ("crop_to(image, gate.output, 4, 4)", 1, "crop_to has a box of float32 10"),
        ("resize(pixels, 4, 4)", 1, "resize works on floats, not on uint8 4x6"),
        ("resize(image, 0, 4)", 1, "sizes are 1 or more"),
        ("resize(image, 5000, 5000)", 1, "16777216 values together at most"),
        ("resize(image, 2500, 2500)", 1, "16777216 values together at most"),
        ("resize(image, argmax(half), 2)", 1, "resize needs a number that is written in the file"),
        ("softmax(max(image))", 1, "softmax has a single number"),
        ("softmax(3)", 1, "softmax has 3 where a tensor is needed"),
        ("max(flag)", 1, "max has bool scalar where numbers are needed"),
        ("argmax(image)", 1, "argmax works on a row of numbers, not on float32 3x8x8"),
        ("top_values(half, 6)", 1, "is to give 6 of float16 5: take 1 to 5"),
        ("max(image)[0]", 1, "select has a single number"),
        ("image[3]", 1, "select has index 3 in float32 3x8x8: take 0 to 2"),
        ("image[argmax(gate.output)]", 1, "select has an index up to 9 in float32 3x8x8"),
        ("image[max(gate.box)]", 1, "select has an index of float32 scalar: give a whole number"),
        ("scale(half, 70000)", 1, "too large for float16"),
        ("cast(image, 'bfloat16')", 1, "take bool, uint8"),
        ("cast(image, flag)", 1, "cast needs a dtype"),
        ("reshape(image, 5, 5)", 1, "reshape cannot make 5x5 of float32 3x8x8: it has 192 values"),
        ("first(gate.output, gate.box)", 1, "first chooses between float32 10 and float32 4"),
        ("gate.output > 0.5", 1, "a comparison needs a single number, not float32 10: take argmax, max or x[index]"),
        ("1 < 2", 1, "1 < 2 is always the same"),
        ("0 < max(image) < 1 < 2", 1, "1 < 2 is always the same"),
        ("flag == flag", 1, "where numbers are needed"),
        ("max(image) is 1", 1, "`is` is not supported"),
        ("max(image) in [1]", 1, "in has float32 scalar on its left"),
        ("argmax(half) in 3", 17, "write it as [0, 1]"),
        ("argmax(half) in []", 17, "write it as [0, 1]"),
        ("argmax(half) in [0.5]", 1, "in has 0.5 where a whole number is needed"),
        ("argmax(half) in [1, 5]", 1, "5 never occurs: values are 0 to 4"),
        ("argmax(half) == -1", 1, "-1 never occurs"),
        ("flag and max(image)", 10, "float32 scalar is not a condition"),
        ("not 1", 5, "1 is not a condition"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_its_column(text: str, column: int, message: str) -> None:
    with pytest.raises(QueryError) as raised:
        tensor(text)
    assert str(raised.value).startswith(f"column {column}: ")
    assert message in str(raised.value)


def test_an_expression_of_501_characters_is_too_long() -> None:
    assert tensor("image".ljust(500)) == IMAGE
    with pytest.raises(QueryError, match="501 characters: 500 at most"):
        tensor("image".ljust(501))


@pytest.mark.parametrize(
    "text", ["(" * 240 + "image" + ")" * 240, "not " * 100 + "flag", "-" * 490 + "1", "image" + "[0]" * 160]
)
def test_an_expression_may_not_be_deep(text: str) -> None:
    with pytest.raises(QueryError, match=r"column \d+: "):
        tensor(text)


class Many(Looked):
    alone = staticmethod(lambda name: Apply("or", (ALONE["flag"],) * 600, Kind("bool", ())))


def test_what_conditions_stand_for_is_counted() -> None:
    with pytest.raises(QueryError, match="over 1000 parts"):
        language.condition(parse("many or many"), Many())


def test_a_choice_among_too_many_is_refused() -> None:
    many = [
        Apply("and", tuple(Ref(node, 0, Kind("bool", ())) for node in range(n, n + 9)), Kind("bool", ()))
        for n in (0, 9)
    ]
    with pytest.raises(QueryError, match="too many nodes"):
        needs(Apply("first", tuple(many), Kind("bool", ())))


def test_every_operation_is_documented() -> None:
    text = (Path(__file__).parents[3] / "docs" / "query-files.md").read_text()
    assert [one.usage for one in OPERATIONS.values() if f"`{one.usage}`" not in text] == []


TENSORS = ["image", "pixels", "flag", "half", "gate.output", "gate.box", "cars.output", "cars['odd.name']"]
LEAVES = st.sampled_from([*TENSORS, "typo", "0", "1", "-1", "2.5", "'int8'"])


def calls(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    arguments = st.lists(parts, min_size=1, max_size=5).map(", ".join)
    return st.one_of(
        st.tuples(st.sampled_from([*OPERATIONS, "eval", "__import__"]), arguments).map(lambda it: f"{it[0]}({it[1]})"),
        st.tuples(parts, st.sampled_from(["==", "<", ">=", "in", "not in", "and", "or", "+", "is"]), parts).map(
            " ".join
        ),
        st.tuples(parts, parts).map(lambda it: f"{it[0]}[{it[1]}]"),
        arguments.map(lambda inside: f"[{inside}]"),
        parts.map(lambda one: f"not ({one})"),
    )


def refusal(text: str) -> str:
    """Why an expression is refused, empty where it is read."""
    try:
        tensor(text)
    except QueryError as error:
        return str(error)
    return ""


@given(st.recursive(LEAVES, calls, max_leaves=12))
def test_random_expressions_are_read_or_refused(text: str) -> None:
    assert re.match(r"column \d+: |the expression has \d+ characters|$", refusal(text))


ODD = "()[]{}.,:;=<>'\"\\-+*@#%!&|^~` \t\nabefimx019_"


@given(st.text(max_size=60) | st.text(ODD, max_size=60))
def test_random_text_is_read_or_refused_with_a_column(text: str) -> None:
    assert re.match(r"column \d+: |$", refusal(text))


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("image", set()),
        ("crop_to(image, gate.box, 2, 2)", {(0,)}),
        ("max(gate.output) > 1 or max(cars.output) > 1", {(0,), (1,)}),
        ("first(cars.output, bikes.output)", {(1, 2)}),
        ("first(gate.output[argmax(cars.output)], bikes.output[0])", {(0, 2), (1, 2)}),
        ("first(gate.box[0], max(image))", set()),
        ("max(first(cars.output, gate.output)) > max(gate.output)", {(0,)}),
    ],
)
def test_a_tensor_needs_one_node_of_each_group(text: str, groups: set[tuple[int, ...]]) -> None:
    assert {tuple(sorted(group)) for group in needs(tensor(text))} == groups
