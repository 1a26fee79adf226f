"""What crosses to the service, in whatever pieces it comes, and which requests are sampled."""

from random import Random

import msgspec
import pytest

from latebind.adaptation.messages import Answered, Draw, Reader, Sampler, ToService, Unusable, packed

AGAIN = 0.2
ANSWERS: list[ToService] = [
    Answered(0, 3, 77, 0),
    Answered(1, 65_535, 1 << 31, 7, Draw(shows=True), row=bytes(range(12))),
    Answered(0, 0, 0, -1, Draw(shows=False, weight=20.0), row=b"ab"),
    Answered(1, 2, 9, 999_999_999, Draw(shows=False, weight=1.25), row=bytes(12), end=bytes(range(16))),
    Unusable(1, 12),
    Answered(0, 1, 1, 0),
]


def test_answers_arrive_whole_from_pieces_of_any_size() -> None:
    data = b"".join(map(packed, ANSWERS))
    for size in (1, 7, 1_000):
        reader = Reader[ToService](msgspec.msgpack.Decoder(ToService))
        pieces = [data[start : start + size] for start in range(0, len(data), size)]
        assert [answered for piece in pieces for answered in reader.feed(piece)] == ANSWERS


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


def test_every_request_that_ran_to_the_end_is_of_use() -> None:
    assert all(draw is not None for early, draw in drawn(0.5) if not early)


def test_while_none_leaves_early_half_of_them_show() -> None:
    shows = [draw is not None and draw.shows for _, draw in drawn(0.0)]
    assert sum(shows) / len(shows) == pytest.approx(0.5, abs=0.02)
