"""Tensors on their way between steps: each operation against plain numpy or torch, and every row in its place."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from latebind.domain.actions import Branch, Map
from latebind.domain.errors import IllegalEvent, InvalidRequest
from latebind.domain.events import Branched, MapFailed, Mapped
from latebind.domain.model import ModelSpec, TensorSpec
from latebind.domain.query import NOT_RUN, lay_out
from latebind.engine.mapping import Steps
from latebind.engine.operations import COMPUTED, LOGIC
from latebind.engine.slots import ModelSlots, SlotMemory
from latebind.engine.staging import HostStaging
from latebind.queries.file.definition import read_query
from latebind.queries.file.language import OPERATIONS, OPERATORS
from latebind.queries.file.wiring import EITHER, DefinedQuery
from tests.queries.file.written import MODELS, TRAFFIC, read

SLOTS = 3
Array = NDArray[Any]


def array(*shape: int, dtype: str = "float32", seed: int = 0) -> Array:
    """Values from -2 to 2, or from 0 to 200 where they are whole."""
    values = np.random.default_rng(seed).random(shape)
    return (4 * values - 2 if dtype.startswith("float") else 200 * values).astype(dtype)


def slots(spec: ModelSpec, rows: int) -> ModelSlots:
    inputs, outputs = (
        tuple(np.full((rows, *tensor.shape), 99, tensor.dtype) for tensor in tensors)
        for tensors in (spec.inputs, spec.outputs)
    )
    return ModelSlots(inputs, outputs, np.zeros(0, np.int32), np.zeros(0, np.float32))


class Bench:
    """A query over arrays of its own."""

    def __init__(self, defined: DefinedQuery, models: Mapping[str, ModelSpec] = MODELS) -> None:
        self.rows = lay_out(models, [defined.query], SLOTS)
        specs = {**models, defined.query.name: defined.query.spec}
        self.slots = {name: slots(spec, self.rows.total[name]) for name, spec in specs.items()}
        self.mappings = Steps([defined], self.slots, self.rows, models, HostStaging([], cast(SlotMemory, None)))
        self.name = defined.query.name

    def row(self, node: int, option: int, slot: int) -> int:
        return self.rows.row(self.name, node, option, slot)


IMAGE = array(3, 6, 8)
ROW = array(7, seed=1)
WHOLE = array(2, 5, dtype="uint8")
BOX = np.array([0.3, 0.26, 0.6, 0.8], "float32")
GIVEN = {"image": IMAGE, "row": ROW, "whole": WHOLE, "box": BOX}
FLAT = {
    "flat": ModelSpec("flat", "1", (TensorSpec("row", "float32", (7,)),), (TensorSpec("y", "float32", (2,)),), 1, 1)
}
DECLARED = "".join(
    f'[inputs.{name}]\ndtype = "{one.dtype}"\nshape = {list(one.shape)}\n' for name, one in GIVEN.items()
)
FLAT_QUERY = f"""\
{DECLARED}
[nodes.flat]
models = ["flat"]
[outputs]
image = "image"
whole = "whole"
box = "box"
y = "flat.y"
"""

JOIN = """\
[nodes.left]
models = ["animals"]
inputs.input = "image"
[nodes.right]
models = ["animals"]
inputs.input = "image"
when = "argmax(left.output) == 0"
[outputs]
taken = "first(right.output[argmax(left.output)], left.output[0])"
both = "max(right.output) > max(left.output)"
"""


def computed(folder: Path, expression: str, **others: Array) -> Array:
    """What a query answers for `made`, which is `expression`: to the last bit the same alone and together."""
    file = folder / "made.query.toml"
    file.write_text(f'{FLAT_QUERY}made = """{expression}"""\n')
    bench = Bench(read_query(file, FLAT, {}), FLAT)
    inputs, made = bench.slots["made"].inputs, bench.slots["made"].outputs[-1]
    for values, rows in zip((GIVEN | others).values(), inputs, strict=True):
        rows[1] = values
    bench.mappings.map(Map("made", (1,), (1,), 1, (0,)))
    alone: Array = made[1].copy()
    for values, rows in zip(GIVEN.values(), inputs, strict=True):
        rows[0], rows[2] = values, values[..., ::-1]
    for together in ((0, 1, 2), (1, 2), (2, 0, 1)):
        made[...] = 77
        bench.mappings.map(Map("made", together, together, 1, (0,)))
        np.testing.assert_array_equal(made[1], alone)
        assert 0 in together or made.dtype == bool or (made[0] == 77).all()
    return alone


def resized(image: Array, height: int, width: int) -> Array:
    """Bilinear resizing written out: each pixel's middle, among the two nearest middles each way."""

    def weights(size: int, wanted: int) -> Array:
        made = np.zeros((wanted, size))
        for place in range(wanted):
            middle = max((place + 0.5) * size / wanted - 0.5, 0.0)
            low = min(int(middle), size - 1)
            high, share = min(low + 1, size - 1), middle - low
            made[place, low] += 1 - share
            made[place, high] += share
        return made

    found: Array = weights(image.shape[-2], height) @ image.astype("float64") @ weights(image.shape[-1], width).T
    return found


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        ("image", IMAGE),
        ("crop(image, 1, 2, 4, 5)", IMAGE[:, 1:5, 2:7]),
        ("crop(image, 0, 0, 6, 8)", IMAGE),
        ("crop(whole, 1, 0, 1, 5)", WHOLE[1:]),
        ("crop(image, argmax(row), 1, 2, 2)", IMAGE[:, ROW.argmax() : ROW.argmax() + 2, 1:3]),
        ("resize(image, 6, 8)", IMAGE),
        ("resize(image, 3, 4)", resized(IMAGE, 3, 4)),
        ("resize(image, 11, 5)", resized(IMAGE, 11, 5)),
        ("resize(crop(image, 1, 1, 3, 3), 7, 7)", resized(IMAGE[:, 1:4, 1:4], 7, 7)),
        ("resize(image[0], 2, 2)", resized(IMAGE[0], 2, 2)),
        ("resize(cast(image, 'float64'), 4, 4)", resized(IMAGE, 4, 4)),
        ("crop_to(image, box, 4, 4)", resized(IMAGE[:, 1:4, 2:7], 4, 4)),
        ("softmax(row)", torch.from_numpy(ROW).softmax(0).numpy()),
        ("softmax(image)", torch.from_numpy(IMAGE).softmax(-1).numpy()),
        ("softmax(scale(row, 1000))", torch.from_numpy(ROW * np.float32(1000)).softmax(0).numpy()),
        ("argmax(row)", np.argmax(ROW)),
        ("argmax(cast(row, 'int8'))", np.argmax(ROW.astype("int8"))),
        ("max(image)", IMAGE.max()),
        ("max(whole)", WHOLE.max()),
        ("top_values(row, 3)", torch.from_numpy(ROW).topk(3).values.numpy()),
        ("top_indices(row, 7)", torch.from_numpy(ROW).topk(7).indices.numpy()),
        ("top_indices(whole[0], 2)", torch.from_numpy(WHOLE[0]).topk(2).indices.numpy()),
        ("select(image, 2)", IMAGE[2]),
        ("image[-1][0][3]", IMAGE[-1, 0, 3]),
        ("row[argmax(row)]", ROW.max()),
        ("scale(image, 2, -0.5)", IMAGE * 2 - np.float32(0.5)),
        ("scale(row[2], 3)", ROW[2] * 3),
        ("cast(whole, 'float32')", WHOLE.astype("float32")),
        ("cast(max(row) > 1, 'float16')", np.float16(ROW.max() > 1)),
        ("cast(row[0], 'int64')", ROW[0].astype("int64")),
        ("reshape(image, 8, 18)", IMAGE.reshape(8, 18)),
        ("reshape(argmax(row), 1)", np.argmax(ROW).reshape(1)),
        ("first(whole, cast(whole, 'uint8'))", WHOLE),
    ],
)  # fmt: skip
def test_an_operation_computes_what_numpy_and_torch_do(tmp_path: Path, expression: str, wanted: Array) -> None:
    made = computed(tmp_path, expression)
    assert (made.shape, made.dtype) == (wanted.shape, wanted.dtype if wanted.dtype != "float64" else made.dtype)
    np.testing.assert_allclose(made, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("expression", "holds"),
    [
        ("max(row) > 0", True),
        ("max(row) <= 0", False),
        ("argmax(row) == 4", ROW.argmax() == 4),
        ("argmax(row) != 4", ROW.argmax() != 4),
        ("0 < max(softmax(row)) < 1", True),
        ("0 < max(softmax(row)) < 0.01", False),
        ("argmax(row) in [0, 1, 2, 3, 4, 5, 6]", True),
        ("argmax(row) not in [0, 1, 2, 3, 4, 5, 6]", False),
        ("not max(row) > 0", False),
        ("max(row) > 0 and row[0] > 1000", False),
        ("max(row) > 0 or row[0] > 1000", True),
        ("row[0] > 1000 or row[1] > 1000", False),
        ("row[0] < row[argmax(row)]", True),
    ],
)
def test_a_condition_holds_or_does_not(tmp_path: Path, expression: str, holds: bool) -> None:
    assert computed(tmp_path, expression) == holds


BOX_CUT = "crop_to(image, box, 3, 3)"
CORNER = "crop(image, box[0], 0, 2, 8)"


@pytest.mark.parametrize(
    ("expression", "given", "wanted"),
    [
        # A box is cut off at the edges, and has a pixel at least.
        (BOX_CUT, {"box": [0.0, 0.0, 1.0, 1.0]}, resized(IMAGE, 3, 3)),
        (BOX_CUT, {"box": [-5.0, -0.1, 7.0, 1.1]}, resized(IMAGE, 3, 3)),
        (BOX_CUT, {"box": [0.5, 0.5, 0.5, 0.5]}, resized(IMAGE[:, 3:4, 4:5], 3, 3)),
        (BOX_CUT, {"box": [0.9, 0.9, 0.1, 0.1]}, resized(IMAGE[:, 5:6, 7:8], 3, 3)),
        (BOX_CUT, {"box": [3.0, 3.0, 4.0, 4.0]}, resized(IMAGE[:, 5:6, 7:8], 3, 3)),
        (BOX_CUT, {"box": [-4.0, -4.0, -3.0, -3.0]}, resized(IMAGE[:, :1, :1], 3, 3)),
        # A corner that was computed is moved inside.
        (CORNER, {"box": [-7.0] * 4}, IMAGE[:, :2]),
        (CORNER, {"box": [1.9] * 4}, IMAGE[:, 1:3]),
        (CORNER, {"box": [40.0] * 4}, IMAGE[:, 4:]),
        # Equal numbers are ranked in their order, and what is no number compares with nothing.
        ("top_indices(row, 7)", {"row": [1, 3, 3, 0, 3, 1, 2]}, [1, 2, 4, 6, 0, 5, 3]),
        ("max(row) > 0", {"row": [np.nan] * 7}, False),
        ("max(row) == 0", {"row": [np.nan] * 7}, False),
        ("max(row) > 0.1", {"row": [0.1] * 7}, True),  # as float32, 0.1 is more than 0.1
    ],
)
def test_an_operation_takes_values_of_any_kind(
    tmp_path: Path, expression: str, given: dict[str, list[float]], wanted: Array
) -> None:
    others = {name: np.array(values, "float32") for name, values in given.items()}
    np.testing.assert_allclose(computed(tmp_path, expression, **others), wanted, atol=1e-5)


@pytest.mark.parametrize("index", [-1, 2, 200])
def test_an_index_that_is_not_there_raises(tmp_path: Path, index: int) -> None:
    box = np.full(4, index, "float32")
    with pytest.raises(ValueError, match=f"index {index} is out of range for 2 entries"):
        computed(tmp_path, "whole[cast(box[0], 'int64')]", box=box)


@pytest.mark.parametrize("edge", [np.nan, np.inf])
def test_a_box_that_is_no_number_raises(tmp_path: Path, edge: float) -> None:
    with pytest.raises((ValueError, OverflowError)):
        computed(tmp_path, "crop_to(image, box, 3, 3)", box=np.array([0, edge, 1, 1], "float32"))


def test_all_that_can_be_checked_can_be_computed() -> None:
    assert set(COMPUTED) | {EITHER} == set(OPERATIONS)
    assert set(LOGIC) == {*OPERATORS.values(), "in", "not"}


GATE, CARS, ANIMALS, END = range(4)


@pytest.fixture
def traffic(tmp_path: Path) -> Bench:
    """The query of the tests of files, in whose slots images and outputs of all models differ."""
    bench = Bench(read(tmp_path, TRAFFIC))
    for number, own in enumerate(bench.slots.values()):
        for rows in own.outputs if number < len(MODELS) else own.inputs:
            rows[...] = array(*rows.shape, dtype=str(rows.dtype), seed=number)
    return bench


def test_a_tensor_is_passed_through_unchanged_to_the_row_of_the_step(traffic: Bench) -> None:
    traffic.mappings.map(Map("traffic", (7,), (2,), GATE, (0, -1, -1)))
    rows = traffic.slots["gate"].inputs[0]
    np.testing.assert_array_equal(rows[traffic.row(GATE, 0, 2)], traffic.slots["traffic"].inputs[0][2])
    assert [row for row in range(len(rows)) if (rows[row] != 99).any()] == [traffic.row(GATE, 0, 2)]


@pytest.mark.parametrize(
    ("option", "model", "other"), [(0, "cars-small", "cars-large"), (1, "cars-large", "cars-small")]
)
def test_a_step_reads_its_input_where_the_model_chosen_looks_for_it(
    traffic: Bench, option: int, model: str, other: str
) -> None:
    traffic.slots["gate"].outputs[1][traffic.row(GATE, 0, 1)] = [0.0, 0.0, 0.5, 0.5]
    traffic.mappings.map(Map("traffic", (7,), (1,), CARS, (0, option, -1)))
    image = traffic.slots["traffic"].inputs[0][1]
    np.testing.assert_array_equal(traffic.slots[model].inputs[0][traffic.row(CARS, option, 1)], image[:, :16, :16])
    assert (traffic.slots[other].inputs[0] == 99).all()


@pytest.mark.parametrize(
    ("chosen", "model", "node", "option"), [((0, 1, -1), "cars-large", CARS, 1), ((0, -1, 0), "animals", ANIMALS, 0)]
)
def test_the_answer_is_that_of_the_step_that_ran(
    traffic: Bench, chosen: tuple[int, ...], model: str, node: int, option: int
) -> None:
    traffic.mappings.map(Map("traffic", (7,), (1,), END, chosen))
    answers = traffic.slots["traffic"].outputs[0]
    np.testing.assert_array_equal(answers[1], traffic.slots[model].outputs[0][traffic.row(node, option, 1)])
    assert (answers[[0, 2]] == 99).all()


def test_conditions_are_judged_for_the_nodes_asked_in_their_order(traffic: Bench) -> None:
    scores = traffic.slots["gate"].outputs[0]
    scores[traffic.row(GATE, 0, 1)] = np.eye(10)[8] * 9
    chosen = (0, -1, -1)
    assert traffic.mappings.branch(Branch("traffic", (7,), (1,), (CARS, ANIMALS), chosen)) == ((True, False),)
    assert traffic.mappings.branch(Branch("traffic", (7,), (1,), (ANIMALS,), chosen)) == ((False,),)
    scores[traffic.row(GATE, 0, 1)] = np.eye(10)[3] * 9
    assert traffic.mappings.branch(Branch("traffic", (7,), (1,), (ANIMALS, CARS), chosen)) == ((True, False),)


def test_a_step_without_a_model_has_no_row_to_write(traffic: Bench) -> None:
    with pytest.raises(IllegalEvent, match="no model was chosen for step 1"):
        traffic.mappings.map(Map("traffic", (7,), (0,), CARS, (0, -1, -1)))


@pytest.mark.parametrize("ran", list(product([0, -1], repeat=2)))
def test_a_choice_is_made_among_what_can_be_worked_out(tmp_path: Path, ran: tuple[int, int]) -> None:
    bench = Bench(read(tmp_path, JOIN))
    left, right = array(10, seed=1), array(10, seed=2)
    for node, values in enumerate((left, right)):
        bench.slots["animals"].outputs[0][bench.row(node, 0, 0)] = values
    bench.mappings.map(Map("traffic", (7,), (0,), 2, ran))
    wanted = {(0, 0): right[left.argmax()], (0, -1): left[0]}.get(ran, 0.0)
    first, both = bench.slots["traffic"].outputs
    assert first[0] == wanted
    assert both[0] == (ran == (0, 0) and right.max() > left.max())


def test_a_step_gets_no_values_that_its_model_does_not_take(tmp_path: Path) -> None:
    (taken,) = FLAT["flat"].inputs
    limited = {"flat": replace(FLAT["flat"], inputs=(replace(taken, largest=1e6),))}
    file = tmp_path / "made.query.toml"
    file.write_text(f'{FLAT_QUERY}made = "row"\n')
    bench = Bench(read_query(file, limited, {}), limited)
    rows = bench.slots["made"].inputs[list(GIVEN).index("row")]
    for slot, value in enumerate((1e6, np.nan, 1e7)):
        rows[slot] = ROW
        rows[slot, 3] = value
    bench.mappings.map(Map("made", (0,), (0,), 0, (0,)))
    assert bench.slots["flat"].inputs[0][bench.row(0, 0, 0), 3] == 1e6
    for slot in (1, 2):
        with pytest.raises(InvalidRequest, match="numbers from -1e\\+06 to 1e\\+06"):
            bench.mappings.map(Map("made", (slot,), (slot,), 0, (0,)))


def test_a_condition_that_one_row_does_not_need_is_read_for_others(tmp_path: Path) -> None:
    condition = "argmax(left.output) == 0 or left.output[cast(max(left.output), 'int64')] > 5"
    bench = Bench(read(tmp_path, JOIN.replace("argmax(left.output) == 0", condition)))
    outputs = bench.slots["animals"].outputs[0]
    outputs[bench.row(0, 0, 0)] = [99.0] + [0.0] * 9  # 99 is no index, and the first part holds
    outputs[bench.row(0, 0, 1)] = [0.0, 1.0] + [0.0] * 8
    assert bench.mappings.branch(Branch("traffic", (1,), (0,), (1,), (0, -1))) == ((True,),)
    assert bench.mappings.branch(Branch("traffic", (2,), (1,), (1,), (0, -1))) == ((False,),)
    with pytest.raises(ValueError, match="index 99"):
        bench.mappings.branch(Branch("traffic", (1, 2), (0, 1), (1,), (0, -1)))


def test_of_several_one_that_raises_fails_alone_and_the_log_says_in_which_step(
    traffic: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def map(action: Map) -> tuple[tuple[int, ...], tuple[int, ...]]:
        if 2 in action.slots:
            raise ValueError("no such picture")
        return (), ()

    monkeypatch.setattr(traffic.mappings, "map", map)
    several = Map("traffic", (10, 20, 30), (1, 2, 0), CARS, (0, 1, NOT_RUN))
    outputs = Map("traffic", (50,), (2,), END, (0, 1, NOT_RUN))
    judged = Branch("traffic", (40,), (1,), (ANIMALS, CARS), (0, NOT_RUN, NOT_RUN))
    told = traffic.mappings.perform_all([several, outputs, judged])
    assert told[:-1] == [
        Mapped((10,), CARS, more=True),
        MapFailed((20,), (CARS,), more=True),
        Mapped((30,), CARS, more=True),
        MapFailed((50,), (END,), more=True),
    ]
    assert isinstance(told[-1], Branched)
    assert (told[-1].requests, told[-1].more) == ((40,), False)
    assert caplog.messages == [
        "mapping step 'cars' of traffic failed for request 20",
        "mapping the outputs of traffic failed for request 50",
    ]
    assert "no such picture" in caplog.text


def test_a_device_is_told_where_the_inputs_of_a_step_are(traffic: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    told = list[tuple[str, list[int]]]()

    class Tells(HostStaging):
        copies = True

        def copy_in(self, model: str, slots: Sequence[int]) -> None:
            told.append((model, list(slots)))

    monkeypatch.setattr(traffic.mappings, "_staging", Tells([], cast(SlotMemory, None)))
    traffic.mappings.perform_all([Map("traffic", (7, 8), (1, 2), CARS, (0, 1, NOT_RUN))])
    traffic.mappings.perform_all([Map("traffic", (7, 8), (1, 2), END, (0, 1, NOT_RUN))])
    assert told == [("cars-large", [traffic.row(CARS, 1, slot) for slot in (1, 2)])]
