"""Tensors between steps whose sizes vary: what a query is then, and what does not fit."""

from pathlib import Path

import pytest

from latebind.domain.errors import QueryError
from latebind.domain.model import TensorSpec
from latebind.domain.sizes import Dim
from tests.queries.file.written import read

TEXTS = """\
[nodes.tag]
models = ["tagger"]
inputs.words = "ids"

[nodes.read]
models = ["texts"]

[nodes.judge]
models = ["judge"]
inputs.tags = "tag.half"

[outputs]
tags = "softmax(tag.tags)"
topic = "argmax(read.output)"
verdict = "judge.output"
first = "tag.tags[0]"
"""

IMAGES = """\
[dims]
H = "32..1024:32"
W = "1..99"

[inputs.image]
dtype = "float32"
shape = [3, "H", "W"]

[nodes.gate]
models = ["gate"]
inputs.image = "resize(image, 32, 32)"

[nodes.judge]
models = ["judge"]
inputs.tags = "resize(image, 2, 3)[0]"

[outputs]
label = "gate.output"
verdict = "judge.output"
image = "image"
"""


def test_dimensions_are_those_of_the_models_that_take_an_input_unchanged(tmp_path: Path) -> None:
    spec = read(tmp_path, TEXTS).query.spec
    assert spec.dims == (Dim("T", 4, 128),)  # what both allow
    assert spec.inputs == (TensorSpec("ids", "int64", (128,), sizes=("T",)),)
    assert spec.outputs == (
        TensorSpec("tags", "float32", (128, 3), sizes=("T", 3)),
        TensorSpec("topic", "int64", ()),
        TensorSpec("verdict", "float32", (10,)),
        TensorSpec("first", "float32", (3,)),
    )
    assert {step.name: dict(step.inputs[0].dims) for step in spec.steps} == {
        "tag": {"T": "T"},
        "read": {"L": "T"},
        "judge": {"N": "T // 2"},
    }


def test_a_dimension_has_the_sizes_that_every_model_takes(tmp_path: Path) -> None:
    assert read(tmp_path, TEXTS.replace("tag.half", "tag.tags")).query.spec.dims == (Dim("T", 4, 64),)


def test_clients_may_send_images_of_any_size_to_models_of_one(tmp_path: Path) -> None:
    spec = read(tmp_path, IMAGES).query.spec
    assert spec.dims == (Dim("H", 32, 1024, 32), Dim("W", 1, 99))
    assert spec.inputs == (TensorSpec("image", "float32", (3, 1024, 99), sizes=(3, "H", "W")),)
    assert spec.outputs[2].sizes == (3, "H", "W")
    assert [step.inputs[0].dims for step in spec.steps] == [(), (("N", 2),)]


@pytest.mark.parametrize(
    ("there", "instead", "said"),
    [
        ('"tag.half"', '"read.output"', "this is float32 10, and judge takes float32 Nx3: cast, resize or reshape"),
        ('"tag.half"', '"softmax(tag.half)[0]"', "this is float32 3, and judge takes float32 Nx3"),
        ('"softmax(tag.tags)"', '"top_values(tag.tags[0], 4)"', "top_values is to give 4"),
        ('"softmax(tag.tags)"', '"tag.tags[1]"', "whose size varies: take the first, 0, or the last, -1"),
        ('"softmax(tag.tags)"', '"reshape(tag.tags, 3)"', "reshape needs sizes that are known, not float32 Tx3"),
        ('"softmax(tag.tags)"', '"crop(tag.tags, 0, 0, 1, 1)"', "crop needs sizes that are known"),
        ('"softmax(tag.tags)"', '"first(tag.tags, tag.half)"', "chooses between float32 Tx3 and float32 T // 2x3"),
        ('models = ["tagger"]', 'models = ["tagger", "texts"]', "models of one node need the same inputs"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(there: str, instead: str, said: str, tmp_path: Path) -> None:
    assert TEXTS.count(there) == 1
    with pytest.raises(QueryError) as caught:
        read(tmp_path, TEXTS.replace(there, instead))
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("there", "instead", "said"),
    [
        ('"32..1024:32"', '"1024"', "2: dims.H: write H=1..512, or H=32..1024:32"),
        ('"32..1024:32"', '"9..1"', "dims.H: the range ends before it begins"),
        ('"32..1024:32"', "32", "dims.H: expected `str`, got `int`"),
        ('"1..99"', '"1..99"\nD = "1..4"', "no input has the dimension D: name it in a shape"),
        ('"H", "W"', '"H", "V"', "inputs.image.shape: no dimension is called 'V'"),
        ('"H", "W"', '"H", 0', "inputs.image.shape"),
        ("[dims]", '[dims]\n"a b" = "1..9"', "a name has letters, digits and _"),
        ("2, 3)[0]", "65, 3)[0]", "this has 65 for N, and judge takes 2 to 64"),
        ('"resize(image, 2, 3)[0]"', '"image[0]"', "this is float32 HxW, and judge takes float32 Nx3"),
    ],
)
def test_sizes_that_make_no_sense_are_refused(there: str, instead: str, said: str, tmp_path: Path) -> None:
    assert IMAGES.count(there) == 1
    with pytest.raises(QueryError) as caught:
        read(tmp_path, IMAGES.replace(there, instead))
    assert said in str(caught.value)


def test_a_computed_size_must_be_one_that_the_model_takes_whatever_the_client_sends(tmp_path: Path) -> None:
    with pytest.raises(QueryError, match=r"T // 2 is 3 for T=6, and N must be 2 to 64 in steps of 2"):
        read(tmp_path, TEXTS.replace('models = ["judge"]', 'models = ["even-judge"]'))
