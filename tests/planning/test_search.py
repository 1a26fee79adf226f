"""The search finds the fewest machines, for several offers at once, without trying many."""

from collections import defaultdict
from collections.abc import Sequence

import pytest

from latebind.planning.search import FINE, fewest


class Needs:
    """Offers are enough from so many machines on; counts the probes."""

    def __init__(self, **needs: int) -> None:
        self.needs = needs
        self.probes: list[tuple[str, int]] = []
        self.rounds = 0

    def __call__(self, probes: Sequence[tuple[str, int]], left: int) -> list[bool]:
        assert left >= 0
        self.rounds += 1
        self.probes.extend(probes)
        return [machines >= self.needs[offer] for offer, machines in probes]


@pytest.mark.parametrize("first", [1, 7, 30, 400])
def test_the_fewest_are_found_wherever_the_search_begins(first: int) -> None:
    needs = Needs(some=23, one=1)
    found = fewest({"some": first, "one": first}, needs, most=defaultdict(lambda: 400))
    assert {offer: bracket.high for offer, bracket in found.items()} == {"some": 23, "one": 1}


def test_nothing_is_tried_twice_and_offers_share_rounds() -> None:
    needs = Needs(a=40, b=11, c=33)
    fewest({"a": 16, "b": 16, "c": 16}, needs, most=defaultdict(lambda: 100))
    assert len(set(needs.probes)) == len(needs.probes)
    assert needs.rounds <= 8


def test_many_machines_are_found_within_the_share_that_is_promised() -> None:
    (found,) = fewest({"many": 100}, Needs(many=777), most=defaultdict(lambda: 5000)).values()
    assert found.high is not None
    assert 777 <= found.high <= 777 / (1 - FINE)


def test_the_most_are_tried_before_an_offer_is_given_up() -> None:
    needs = Needs(edge=50, never=51)
    found = fewest({"edge": 3, "never": 3}, needs, most=defaultdict(lambda: 50))
    assert {offer: bracket.high for offer, bracket in found.items()} == {"edge": 50, "never": None}


def test_an_offer_that_is_sure_to_be_dearer_is_left_as_it_is() -> None:
    needs = Needs(cheap=20, dear=18)
    found = fewest({"cheap": 16, "dear": 16}, needs, most=defaultdict(lambda: 100), prices={"cheap": 1.0, "dear": 2.0})
    assert found["cheap"].high == 20
    assert not found["dear"].is_closed
    assert found["dear"].low >= 16
    assert len([probe for probe in needs.probes if probe[0] == "dear"]) <= 2


def test_fewer_machines_than_the_work_takes_are_not_tried() -> None:
    needs = Needs(some=23)
    assert fewest({"some": 30}, needs, most={"some": 100}, least={"some": 20})["some"].high == 23
    assert min(machines for _, machines in needs.probes) >= 20
