"""Rows of state: whoever comes and goes, each owner keeps its own state, and rows that run together are contiguous."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from latebind.domain.errors import ExportError
from latebind.domain.model import LENGTH
from latebind.sequence.state import LEAST_ROOM, MOST_ROOM, POSITION, TOKEN, WRITTEN, Change, Part, StateRows, change_of

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


@pytest.mark.parametrize(
    ("row", "wanted"), [((4,), (Change.WRITTEN, 1)), ((4, 4), (Change.KEPT, 0))], ids=["one position", "no position"]
)
def test_the_positions_of_what_grows_are_those_it_names(row: tuple[int, ...], wanted: tuple[Change, int]) -> None:
    part = Part("p", "float32", (4, 4), sizes=(4, WRITTEN))
    if wanted[0] is Change.KEPT:
        with pytest.raises(ExportError, match="rows of shape"):
            change_of(part, row, longest_output=4)
    else:
        found = change_of(part, row, longest_output=4)
        assert (found.change, found.axis) == wanted


GROWN = (
    Part("read", "float32", (2, 300), sizes=(2, LENGTH)),
    Part("written", "float32", (200,), Change.WRITTEN, axis=0, sizes=(WRITTEN,)),
)


@settings(max_examples=60)
@given(data=st.data())
def test_rows_that_grow_keep_what_they_have_and_take_little_more_room_than_the_longest_needs(
    data: st.DataObject,
) -> None:
    rows, said = StateRows(GROWN, 2), dict[int, list[int]]()
    read = dict[int, int]()
    for _ in range(14):
        if not said or data.draw(st.booleans()):
            newcomers = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=3, unique=True))
            lengths = [data.draw(st.integers(1, 300)) for _ in newcomers]
            given = torch.zeros(len(newcomers), 2, max(lengths))
            for place, (owner, length) in enumerate(zip(newcomers, lengths, strict=True)):
                given[place, 0, :length], given[place, 1, :length] = owner, torch.arange(length)
            rows.begin(newcomers, {"read": given, TOKEN: torch.tensor(newcomers)}, lengths)
            said |= {owner: [] for owner in newcomers}
            read |= dict(zip(newcomers, lengths, strict=True))
            continue
        if data.draw(st.booleans()):
            gone = data.draw(st.sampled_from(sorted(said)))
            rows.end([gone])
            del said[gone], read[gone]
            continue
        running = data.draw(st.permutations(sorted(said)))[: data.draw(st.integers(1, len(said)))]
        for _ in range(data.draw(st.sampled_from([1, 20, 70]))):
            if any(len(said[owner]) == 200 for owner in running):
                break
            order = rows.to_front(running)
            state = rows.first(len(order))
            longest = max(len(words) for words in said.values())
            for name, needed, most in (("read", max(read.values()), 300), ("written", longest + 1, 200)):
                room = state[name].shape[-1]
                assert min(needed, most) <= room <= min(max(2 * needed, LEAST_ROOM) * MOST_ROOM, most)
            for place, owner in enumerate(order):
                assert (state["read"][place, 0, : read[owner]] == owner).all()
                assert state["read"][place, 1, : read[owner]].tolist() == list(range(read[owner]))
                assert state["written"][place, : len(said[owner])].tolist() == said[owner]
            words = [100 * owner + len(said[owner]) for owner in order]
            rows.change({"written": torch.tensor(words).float()})
            state[POSITION].copy_((state[POSITION] + 1).clamp(max=199))
            for owner, word in zip(order, words, strict=True):
                said[owner].append(word)
