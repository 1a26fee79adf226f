"""Requests one after another over a memory: what each had to load, in what order, and who was told what."""

from collections.abc import Sequence
from random import Random

import pytest

from latebind.domain.config import ResidencyConfig
from latebind.domain.costs import Footprint
from latebind.domain.errors import ConfigError
from latebind.residency.memory import ModelState
from latebind.residency.policy import Lru, MemoryView, Victim
from research.hardware.sequential import SequentialReplay, Served
from research.mcache.traces import Request


class First:
    """Takes pieces of whoever comes first by name, of the wanted model too; writes down what it hears."""

    whole = False

    def __init__(self) -> None:
        self.heard: list[tuple[str, str, float]] = []

    def requested(self, model: ModelState, now: float) -> None:
        self.heard.append(("requested", model.name, now))

    def loaded(self, model: ModelState, now: float) -> None:
        self.heard.append(("loaded", model.name, now))

    def evicted(self, model: ModelState, now: float) -> None:
        self.heard.append(("evicted", model.name, now))

    def victims(self, view: MemoryView, need: int, wanted: ModelState, now: float) -> list[Victim]:
        del wanted, now
        found: list[Victim] = []
        for name, model in sorted(view.evictable.items()):
            pieces: list[int] = []
            for piece in model.evictable_pieces():
                pieces.append(piece)
                need -= model.footprint.sizes[piece]
                if need <= 0:
                    return [*found, Victim(name, tuple(pieces))]
            found.append(Victim(name, tuple(pieces)))
        return []


def footprint(*sizes: int, fixed: float = 0.5) -> Footprint:
    return Footprint(sizes, tuple(size / 10 for size in sizes), fixed=fixed)


def calls(names: str) -> list[Request]:
    return [Request(float(time), name) for time, name in enumerate(names)]


def lru() -> Lru:
    return Lru(ResidencyConfig(policy="lru"))


def hits(served: Sequence[Served]) -> str:
    return "".join("h" if one.hit else "m" for one in served)


def test_lru_on_unit_sizes_hits_as_by_hand() -> None:
    order = SequentialReplay(2, dict.fromkeys("abc", footprint(1)), lru())
    assert hits(order.run(calls("abacbcab"))) == "mmhmmhmm"


def test_in_pieces_only_what_is_missing_is_loaded_and_the_fixed_part_only_where_nothing_was_there() -> None:
    order = SequentialReplay(6, {"a": footprint(2, 2), "b": footprint(1, 2)}, First())
    served = order.run(calls("aba"))
    assert [one.bytes for one in served] == [4, 3, 2]
    assert [one.seconds for one in served] == pytest.approx([0.5 + 0.4, 0.5 + 0.3, 0.2])


def test_a_model_runs_in_less_memory_than_it_takes_by_giving_up_what_it_has_passed() -> None:
    order = SequentialReplay(3, {"a": footprint(1, 1, 1, 1, 1)}, First())
    first, second = order.run(calls("aa"))
    assert first.bytes == 5
    assert 2 <= second.bytes <= 5
    assert order.memory.used <= 3


@pytest.mark.parametrize("policy", [lru(), First()])
def test_what_cannot_run_in_this_memory_is_told(policy: Lru | First) -> None:
    with pytest.raises(ConfigError, match="'a' takes 9 bytes and cannot run in 4"):
        SequentialReplay(4, {"a": footprint(9)}, policy).run(calls("a"))


def test_policies_hear_of_requests_loads_and_who_has_gone() -> None:
    policy = First()
    SequentialReplay(2, {"a": footprint(2), "b": footprint(1)}, policy).run(calls("abb"))
    assert policy.heard == [
        ("requested", "a", 0.0),
        ("loaded", "a", 0.0),
        ("requested", "b", 1.0),
        ("evicted", "a", 1.0),
        ("loaded", "b", 1.0),
        ("requested", "b", 2.0),
    ]


@pytest.mark.parametrize("budget", [4, 7, 12])
@pytest.mark.parametrize("known", [0, 5])
def test_invariants_hold_whatever_comes(budget: int, known: int) -> None:
    random = Random(budget)
    prints = {name: footprint(*(random.randint(1, 2) for _ in range(3))) for name in "abcd"}
    order = SequentialReplay(budget, prints, First())
    served = order.run(calls("".join(random.choices("abcd", k=200))), known)
    order.memory.check()
    assert len(served) == 200
    assert order.memory.used <= budget
    for one in served:
        penalty = prints[one.model].penalty
        assert 0.0 <= one.seconds <= penalty + 1e-9
