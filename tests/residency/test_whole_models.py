"""The set that is worth least, against all sets."""

from itertools import chain, combinations

from hypothesis import given
from hypothesis import strategies as st

from latebind.residency.whole_models import SEARCHED, Item, least_set

ITEMS = st.builds(Item, st.integers(1, 999).map(float), st.integers(1, 20))


def cheapest(items: list[Item], need: int) -> float | None:
    places = range(len(items))
    sets = chain.from_iterable(combinations(places, count) for count in range(1, len(items) + 1))
    values = [sum(items[p].value for p in some) for some in sets if sum(items[p].size for p in some) >= need]
    return min(values, default=None)


@given(st.lists(ITEMS, max_size=8), st.integers(1, 100))
def test_no_set_that_frees_enough_is_worth_less(items: list[Item], need: int) -> None:
    found = least_set(items, need)
    best = cheapest(items, need)
    if best is None:
        assert found == []
        return
    assert sum(items[place].size for place in found) >= need
    assert abs(sum(items[place].value for place in found) - best) < 1e-9


@given(st.lists(ITEMS, min_size=SEARCHED, max_size=40), st.integers(1, 500))
def test_of_many_nothing_goes_that_is_not_needed(items: list[Item], need: int) -> None:
    found = least_set(items, need)
    freed = sum(items[place].size for place in found)
    if not found:
        assert sum(item.size for item in items) < need
        return
    assert freed >= need
    assert all(freed - items[place].size < need for place in found)


def test_one_large_item_goes_in_place_of_two_that_are_cheaper_by_the_byte() -> None:
    assert least_set([Item(1.0, 4), Item(3.0, 8), Item(3.6, 10)], 10) == [2]
