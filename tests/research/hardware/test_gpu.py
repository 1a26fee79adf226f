"""The card by hand: copies in turn, shares of the multiprocessors, and what a request takes with and without a pool."""

from functools import partial
from random import Random

import pytest

from latebind.domain.config import PolicyConfig, SchedulerConfig
from latebind.domain.costs import Curve, ModelCosts, at_any_length
from latebind.simulation.driver import Record, Simulator
from latebind.simulation.hardware import Agenda, Installed
from latebind.simulation.workloads import Arrival
from research.hardware.gpu import (
    SIX,
    Chip,
    Footprint,
    HostBatched,
    Multiprocessors,
    Pooled,
)
from tests.batching.chains import STATIC, chain

SLOW = Chip(multiprocessors=72, pcie=1.0, copy=0.0, host=float("inf"), launch=0.5)  # a byte a second
NET = chain(STATIC, curve=Curve((1, 2, 4), (8.0, 8.0, 16.0)))
FOOTPRINT = Footprint(ModelCosts(at_any_length(Curve((1, 2, 4), (4.0, 8.0, 16.0)))), input_bytes=2, output_bytes=1)
POOLED: Installed = partial(Pooled, SLOW, {"net": FOOTPRINT})
HOST_BATCHED: Installed = partial(HostBatched, SLOW, {"net": FOOTPRINT})


def runs(begun: list[tuple[float, float, float]], *, count: int = 72) -> list[float]:
    """Return when runs end, of which each is (begins, seconds of the whole card, seconds alone)."""
    agenda = Agenda()
    shared, ended = Multiprocessors(agenda, Chip(multiprocessors=count)), [0.0] * len(begun)
    for number, (time, busy, alone) in enumerate(begun):
        agenda.run_until(time)
        shared.begin(busy, alone, time, partial(ended.__setitem__, number))
    agenda.run_until()
    return ended


def test_runs_that_fit_side_by_side_do_not_feel_each_other() -> None:
    assert runs([(0.0, 2.0, 4.0), (1.0, 1.0, 4.0)]) == [4.0, 5.0]


def test_who_comes_slows_the_others_down_until_someone_goes() -> None:
    # Alone for 2 s; both at half speed while 4 of the first and 2 of the second are left; alone for the rest.
    assert runs([(0.0, 6.0, 6.0), (2.0, 2.0, 2.0)]) == [8.0, 6.0]


@pytest.mark.parametrize("seed", range(3))
def test_the_card_is_never_idle_while_runs_could_use_all_of_it(seed: int) -> None:
    random = Random(seed)
    begun = sorted((random.random() * 5, 0.1 + random.random(), 0.0) for _ in range(40))
    begun = [(0.0, 5.0, 5.0), *((time, busy, busy) for time, busy, _ in begun)]
    assert max(runs(begun)) == pytest.approx(sum(busy for _, busy, _ in begun))


def played(
    hardware: Installed, times: list[float], *, policy: str = "graph", sizes: tuple[int, ...] = ()
) -> list[Record]:
    settings = SchedulerConfig((NET,), max(1, len(sizes)), PolicyConfig(policy, max_batch=4, shed=False), sizes)
    return sorted(
        Simulator(settings, hardware=hardware).run([Arrival(time, "net", 1e3, 0) for time in times]),
        key=lambda r: r.request,
    )


def test_with_a_pool_a_request_takes_its_copies_and_its_run() -> None:
    (record,) = played(POOLED, [1.0])
    assert record.latency == 2.0 + 8.0 + 1.0


def test_with_a_pool_inputs_and_answers_cross_while_others_run() -> None:
    # Ready at 2 and 4; the second runs from 10 on, while the answer of the first goes back.
    assert [record.ended for record in played(POOLED, [0.0, 0.0])] == [11.0, 19.0]


def test_without_a_pool_a_batch_crosses_together_and_the_next_waits_for_its_answers() -> None:
    # The first alone from 0 to 11.5; the two others: 0.5 + 4 + 8 + 2.
    assert [record.ended for record in played(HOST_BATCHED, [0.0, 0.1, 0.2])] == [11.5, 26.0, 26.0]


def multiply_adds(name: str) -> float:
    return sum(layer.depth * layer.width * layer.rows for layer in SIX[name].layers())


@pytest.mark.parametrize(
    ("name", "published"),  # He et al. 2016; for Inception-v4 half of the 24.6 GFLOPs of the Open Model Zoo
    [
        ("resnet50", 3.8e9),
        ("resnet101", 7.6e9),
        ("resnet152", 11.3e9),
        ("vgg16", 15.3e9),
        ("vgg19", 19.6e9),
        ("inception-v4", 12.3e9),
    ],
)
def test_layers_add_up_to_the_published_multiply_adds(name: str, published: float) -> None:
    assert multiply_adds(name) == pytest.approx(published, rel=0.02)
