"""Mixed deadlines, simulated: nobody is refused for nothing, and overload takes little of the peak."""

import pytest

from research.lazybatching.mixed import MIXES, OVERLOAD, Task, overload_rows, play, refused_rows


@pytest.mark.parametrize("policy", ["late", "lazy+"])
@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("exits", [False, True])
def test_fewer_than_one_in_a_hundred_of_a_kind_are_refused_for_nothing(policy: str, mix: str, exits: bool) -> None:
    for workers, load in ((1, 0.6), (2, 0.9)):
        found = play(Task(policy, mix, exits, workers, load), seconds=3.0)
        assert found.requests > 100
        assert found.worst <= 0.01
        assert found.in_time >= found.unrefused - 0.02


def test_the_tables_tell_the_worst_mix_and_what_is_left_of_the_peak() -> None:
    mix = next(iter(MIXES))
    found = [
        play(Task(policy, mix, False, 1, load), 1.0)
        for policy in ("late", "lazy+", "graph")
        for load in (0.6, 0.9, OVERLOAD)
    ]
    assert [(row["policy"], row["load"]) for row in refused_rows(found)][:3] == [
        ("late", 0.6),
        ("late", 0.9),
        ("lazy+", 0.6),
    ]
    assert all(0.0 < float(str(row["least"])) <= 1.0 for row in overload_rows(found))
