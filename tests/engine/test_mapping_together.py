"""Rows that are computed together are, to the last bit, what each is alone."""

from pathlib import Path

import numpy as np
import pytest

from latebind.domain.actions import Branch, Map
from latebind.queries.file.definition import read_query
from tests.engine.mapped import BOX, FLAT, FLAT_QUERY, GIVEN, JOIN, SLOTS, Bench, array
from tests.queries.file.written import read

EXPRESSIONS = (
    "row",
    "crop(image, 1, 2, 3, 4)",
    "crop(image, box[0], box[1], 3, 4)",
    "crop_to(image, box, 4, 5)",
    "resize(image, 4, 5)",
    "softmax(row)",
    "argmax(row)",
    "max(image)",
    "top_values(row, 3)",
    "top_indices(row, 3)",
    "image[-1]",
    "row[argmax(top_values(row, 3))]",
    "scale(image, 2.0, 1.0)",
    'cast(whole, "float32")',
    "reshape(image, 8, 18)",
    "first(row, row)",
    "max(row) > 1.9",
    "argmax(row) in [0, 1, 2] or max(row) < 1.5 and not row[0] == row[1]",
)


@pytest.mark.parametrize("slots_taken", [(0, 1, 2), (1, 2), (2, 0), (1, 0, 2)])
@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_rows_that_are_computed_together_are_what_they_are_alone(
    tmp_path: Path, expression: str, slots_taken: tuple[int, ...]
) -> None:
    file = tmp_path / "made.query.toml"
    file.write_text(f'{FLAT_QUERY}made = """{expression}"""\n')
    bench = Bench(read_query(file, FLAT, {}), FLAT)
    for values, rows in zip(GIVEN.values(), bench.slots["made"].inputs, strict=True):
        rows[...] = [array(*values.shape, dtype=str(values.dtype), seed=seed) for seed in range(SLOTS)]
    bench.slots["made"].inputs[-1][...] = [BOX, BOX / 2, BOX + 0.2]
    made = bench.slots["made"].outputs[-1]
    for slot in slots_taken:
        bench.mappings.map(Map("made", (slot,), (slot,), 1, (0,)))
    alone = made.copy()
    made[...] = 77
    bench.mappings.map(Map("made", slots_taken, slots_taken, 1, (0,)))
    np.testing.assert_array_equal(made[list(slots_taken)], alone[list(slots_taken)])
    assert (made[[slot for slot in range(SLOTS) if slot not in slots_taken]] == 77).all() or made.dtype == bool


def test_rows_are_judged_together_as_exactly_as_alone(tmp_path: Path) -> None:
    bench = Bench(read(tmp_path, JOIN.replace("argmax(left.output) == 0", "max(left.output) > 0.1")))
    outputs = bench.slots["animals"].outputs[0]
    for slot, most in enumerate((0.1, 0.05, 0.2)):  # as float32, 0.1 is more than 0.1
        outputs[bench.row(0, 0, slot)] = most
    together = Branch("traffic", (1, 2, 3), (0, 1, 2), (1,), (0, -1))
    assert bench.mappings.branch(together) == ((True,), (False,), (True,))


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
