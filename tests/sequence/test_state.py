"""Rows of state: whoever comes and goes, each owner keeps its own state, and rows that run together are contiguous."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from latebind.domain.errors import ExportError
from latebind.sequence.state import POSITION, TOKEN, Change, Part, StateRows, change_of

PARTS = (
    Part("kept", "float32", (3,)),
    Part("replaced", "float32", (2,), Change.REPLACED),
    Part("written", "float32", (2, 4), Change.WRITTEN, axis=1),
)


def begin(rows: StateRows, owners: list[int]) -> None:
    names = torch.tensor(owners)
    rows.begin(owners, {"kept": names[:, None] + torch.arange(3.0), TOKEN: names})


@settings(max_examples=80)
@given(data=st.data())
def test_whoever_comes_and_goes_each_has_what_is_its_own(data: st.DataObject) -> None:
    rows, steps = StateRows(PARTS, 3), dict[int, int]()
    for _ in range(12):
        owners = sorted(steps)
        if not owners or data.draw(st.booleans()):
            newcomers = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True))
            begin(rows, newcomers)
            steps |= dict.fromkeys(newcomers, 0)
            continue
        if data.draw(st.booleans()):
            gone = data.draw(st.sampled_from(owners))
            rows.end([gone])
            del steps[gone]
            continue
        running = data.draw(st.permutations(owners))[: data.draw(st.integers(1, len(owners)))]
        order = rows.to_front(running)
        assert sorted(order) == sorted(running)
        check(rows, order, steps)
        state, names = rows.first(len(order)), torch.tensor(order)
        said = torch.stack((names, names * 10), dim=1).float() + state[POSITION][:, None]
        rows.change({"replaced": names[:, None].float().expand(-1, 2), "written": said})
        state[POSITION].copy_((state[POSITION] + 1).clamp(max=3))
        for owner in order:
            steps[owner] += 1


def check(rows: StateRows, order: list[int], steps: dict[int, int]) -> None:
    state = rows.first(len(order))
    for place, owner in enumerate(order):
        done = steps[owner]
        assert state[TOKEN][place] == owner
        assert state["kept"][place].tolist() == [owner, owner + 1, owner + 2]
        assert state["replaced"][place].tolist() == [owner if done else 0] * 2
        said = [[owner + p if p < done else 0 for p in range(4)], [10 * owner + p if p < done else 0 for p in range(4)]]
        assert state["written"][place].tolist() == said


def test_a_shorter_input_fills_the_front_of_its_row() -> None:
    rows = StateRows((Part("memory", "float32", (5, 2)),), 2)
    rows.begin([7], {"memory": torch.ones(1, 3, 2)})
    assert rows.first(1)["memory"][0, :, 0].tolist() == [1, 1, 1, 0, 0]


@pytest.mark.parametrize(
    ("row", "wanted"),
    [((2, 4), (Change.REPLACED, 0)), ((2,), (Change.WRITTEN, 1))],
)
def test_how_a_step_changes_a_part_is_seen_from_shapes(row: tuple[int, ...], wanted: tuple[Change, int]) -> None:
    part = change_of(Part("p", "float32", (2, 4)), row, longest_output=4)
    assert (part.change, part.axis) == wanted


def test_what_fits_no_part_is_refused() -> None:
    with pytest.raises(ExportError, match="rows of shape"):
        change_of(Part("p", "float32", (2, 4)), (4,), longest_output=4)
