"""Sizes that differ from row to row: which there are, and what follows from them."""

import pytest

from latebind.domain.model import ModelSpec, TensorSpec
from latebind.domain.sizes import Dim, Size, in_terms, names_in, size_of

IMAGE = ModelSpec(
    "net",
    "1",
    (
        TensorSpec("image", "float32", (3, 96, 64), sizes=(3, "H", "W")),
        TensorSpec("mask", "bool", (96, 64), sizes=("H", "W")),
        TensorSpec("scale", "float32", ()),
    ),
    (TensorSpec("map", "float32", (48, 31), sizes=("H//2", "(W - 2)//2")),),
    1,
    8,
    dims=(Dim("H", 32, 96, 32), Dim("W", 4, 64)),
)


@pytest.mark.parametrize(
    ("size", "expected"),
    [(7, 7), ("L", 10), ("2*L", 20), ("(L - 4)//3 + 1", 3), ("L % 4 + -1", 1), ("Max(1, L - 20)", 1), ("L*W", 30)],
)
def test_a_size_follows_from_named_dimensions(size: int | str, expected: int) -> None:
    assert size_of(size, {"L": 10, "W": 3}) == expected


@pytest.mark.parametrize(
    "size", ["M", "L.real", "L ** 2", "__import__('os')", "f(L)", "L/2", "L//0", "True", "'L'", "(", "L" * 300, "Max()"]
)
def test_what_is_no_size_is_refused(size: str) -> None:
    with pytest.raises(ValueError, match=r"size|divides"):
        size_of(size, {"L": 10})


@pytest.mark.parametrize(
    "dim",
    [Dim("L", 0, 3), Dim("L", 4, 3), Dim("no name", 1, 3), Dim("L", 2, 7, 2), Dim("Max", 1, 2), Dim("L", 3, 8, 2)],
)
def test_a_dimension_without_sense_is_told_from_others(dim: Dim) -> None:
    assert not dim.makes_sense
    assert all(one.makes_sense for one in IMAGE.dims)


def test_a_row_names_the_sizes_of_its_dimensions() -> None:
    found = IMAGE.dims_of({"image": [3, 64, 5], "mask": [64, 5], "scale": []})
    assert found == {"H": 64, "W": 5}
    assert IMAGE.inputs[0].shape_of(found) == (3, 64, 5)
    assert IMAGE.outputs[0].shape_of(found) == (32, 1)
    assert IMAGE.inputs[2].shape_of(found) == ()


@pytest.mark.parametrize(
    ("image", "mask", "said"),
    [
        ([3, 64], [64, 5], r"'image' has shape \[3, 64\]: it must be \[3, H, W\]"),
        ([1, 64, 5], [64, 5], r"must be \[3, H, W\]"),
        ([3, 48, 5], [48, 5], "H=48: it must be 32 to 96 in steps of 32"),
        ([3, 64, 65], [64, 65], "W=65: it must be 4 to 64"),
        ([3, 64, 5], [64, 6], "'mask' has W=6, another input 5"),
    ],
)
def test_shapes_that_no_row_has_are_refused(image: list[int], mask: list[int], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        IMAGE.dims_of({"image": image, "mask": mask, "scale": []})


@pytest.mark.parametrize(
    ("size", "said"),
    [
        (7, 7),
        ("L", "2 * T"),
        ("L//2 + 1", "2 * T // 2 + 1"),
        ("M", 8),
        ("(M - 2)*3", 18),
        ("L*(K + M)", "2 * T * (K + 8)"),
    ],
)
def test_a_size_is_told_in_terms_of_others(size: Size, said: Size) -> None:
    found = in_terms(size, {"L": "2 * T", "M": 8})
    assert found == said
    known = {"T": 3, "K": 5}
    assert size_of(found, known) == size_of(size, {"L": 6, "M": 8, "K": 5})


def test_the_names_in_a_size_are_those_of_dimensions() -> None:
    assert names_in("Max(1, (L - 400)//W)") == {"L", "W"}
    assert names_in(4) == set()


def test_dimensions_are_read_as_options_have_them() -> None:
    for text in ("1..512", "32..1024:32"):
        assert Dim.read("L", text).written() == text
    assert Dim("L", 4, 96, 4).and_also(Dim("T", 1, 50, 6)) == Dim("L", 12, 48, 12)
    nobody = Dim("L", 1, 4).and_also(Dim("L", 5, 8))
    assert nobody.least > nobody.most
