"""Named dimensions, as they are declared from Python."""

from typing import Any

import pytest
import torch
from torch import export

from latebind.domain.errors import ConfigError
from latebind.domain.sizes import Dim
from latebind.program.declared import from_export

ROWS = {"ids": torch.zeros(2, 7), "image": torch.zeros(2, 3, 64, 7), "scale": torch.zeros(2)}
L, H = export.Dim("L", min=1, max=512), 32 * export.Dim("h", min=1, max=32)
OURS = {"ids": {1: Dim("L", 1, 512)}, "image": (None, None, Dim("h", 32, 1024, 32), Dim("L", 1, 512))}


@pytest.mark.parametrize(
    "dynamic",
    [
        OURS,
        {"ids": {0: export.Dim("batch"), 1: L}, "image": {2: H, 3: L}, "scale": None},
        [(None, L), {2: H, 3: L}, {0: export.Dim.AUTO}],
        {"ids": [2, L], "image": (export.Dim.STATIC, 3, H, L)},
    ],
)
def test_dimensions_are_declared_as_for_torch_export(dynamic: Any) -> None:
    found = from_export(ROWS, dynamic)
    assert found.dims == (Dim("L", 1, 512), Dim("h", 32, 1024, 32))
    assert found.sizes == {"ids": ("L",), "image": (3, "h", "L")}


def test_inputs_without_names_have_those_that_clients_will_see() -> None:
    assert from_export((torch.zeros(2, 7),), [{1: export.Dim("n", max=9)}]) == ((Dim("n", 1, 9),), {"input": ("n",)})
    two = (torch.zeros(2, 7), torch.zeros(2, 7))
    assert from_export(two, [None, {1: L}]).sizes == {"input_1": ("L",)}


@pytest.mark.parametrize(
    ("dynamic", "said"),
    [
        ({"idx": {1: L}}, "there is no input 'idx': did you mean 'ids'"),
        ([{1: L}], "1 entries, and there are 3 inputs"),
        ({"ids": {2: L}}, r"ids has dimensions 0 \(the batch\) to 1: give them by number, as {1: Dim"),
        ({"ids": (None, None, L)}, r"ids has dimensions 0 \(the batch\) to 1"),
        ({"ids": L}, "ids has dimensions"),
        ({"ids": {1: export.Dim.AUTO}}, "dimension 1 of ids: .*AUTO.* has no name and no range: write Dim"),
        ({"ids": {1: export.Dim.DYNAMIC(min=1, max=9)}}, "no name and no range"),
        ({"ids": {1: export.Dim("L")}}, r"L has no largest size: write Dim\('L', min=1, max=512\)"),
        ({"ids": {1: 2 * L + 1}}, r"2\*L \+ 1 is not served: give a Dim, or a multiple of one"),
        ({"ids": {1: L}, "image": {3: Dim("L", 1, 99)}}, "L is 1 to 512 elsewhere, and 1 to 99 here: declare it once"),
        ({"ids": {1: Dim("L", 1, 6)}}, "L is 1 to 6, and 7 in the example inputs"),
        ({"ids": {1: L}, "image": {2: L}}, "L is 1 to 512, and 64 in the example inputs, 7 in another input"),
        ({"ids": {1: Dim("L", 3, 7, 2)}}, "multiples of the step"),
    ],
)
def test_dimensions_that_make_no_sense_are_refused_with_what_to_write(dynamic: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        from_export(ROWS, dynamic)
