"""Ways are spelled as their labels, and what is no way is told."""

import pytest

from latebind.domain.errors import ConfigError
from latebind.planning.ways import PLACERS, WAYS, Way, placer, way
from latebind.simulation.cluster.placement import ByImportance


@pytest.mark.parametrize("one", WAYS)
def test_a_label_says_all_of_a_way(one: Way) -> None:
    assert way(one.label) == one


def test_every_run_gets_a_placer_of_its_own() -> None:
    one = way("home/importance/late")
    assert isinstance(placer(one), ByImportance)
    assert placer(one) is not placer(one)


@pytest.mark.parametrize(
    "text", ["", "home", "home/importance", "home/importance/late/never", "home/x/late", "x/none/lru"]
)
def test_what_is_no_way_is_told_with_those_that_are(text: str) -> None:
    with pytest.raises(ConfigError, match=r"give one such as|take one of"):
        way(text)


def test_random_homes_are_as_many_as_their_name_says() -> None:
    assert {"random-1", "random-8"} <= set(PLACERS)
