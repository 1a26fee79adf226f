"""Which requests are sampled, and for what."""

from random import Random

import pytest

from latebind.adaptation.messages import Draw, Sampler

AGAIN = 0.2


def drawn(early_share: float, requests: int = 40_000) -> list[tuple[bool, Draw | None]]:
    """Whether each request left early and what it is used for, once the sampler knows how many do."""
    random = Random(1)
    sampler = Sampler(AGAIN, random.random)
    found = []
    for _ in range(requests):
        early = random.random() < early_share
        found.append((early, sampler.draw(early)))
    return found[2_000:]


@pytest.mark.parametrize("early_share", [0.1, 0.5, 0.95])
def test_those_that_show_are_as_often_early_as_all(early_share: float) -> None:
    shown = [early for early, draw in drawn(early_share) if draw is not None and draw.shows]
    assert sum(shown) / len(shown) == pytest.approx(early_share, abs=0.02)


@pytest.mark.parametrize("early_share", [0.1, 0.5, 0.95])
def test_those_that_teach_stand_for_all_by_their_weights(early_share: float) -> None:
    found = drawn(early_share)
    taught = [(early, draw.weight) for early, draw in found if draw is not None and not draw.shows]
    whole = sum(weight for _, weight in taught)
    assert sum(weight for early, weight in taught if early) / whole == pytest.approx(early_share, abs=0.03)


@pytest.mark.parametrize("early_share", [0.1, 0.5, 0.95, 1.0])
def test_no_more_than_the_share_asked_for_is_run_again(early_share: float) -> None:
    found = drawn(early_share)
    again = sum(early and draw is not None for early, draw in found)
    assert again / len(found) <= AGAIN * 1.05
    assert again > 0
