"""Scenes of large clusters: traffic after a trace, scaled; models by size; what the contest makes of its runs."""

from dataclasses import replace

import numpy as np
import pytest

from latebind.planning.runs import Figures
from latebind.planning.sampling import busy_workers
from research.cluster.placement import SIDES, Contest, Scene, asked
from research.mcache.traces import Service

SERVICES = (Service((6, 0, 0, 2)), Service((0, 0, 0, 0)), Service((1, 1, 1, 1)))


SCENE = Scene(machines=2, models=5, load=0.5)


def rates(*services: Service, scene: Scene = SCENE) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    return asked(services, scene).population.rates.expected


def test_traffic_is_scaled_to_the_load_and_every_model_is_asked_for() -> None:
    found = asked(SERVICES, SCENE)
    assert busy_workers(found) == pytest.approx(1.0, rel=0.3), "half of two machines, by the models that are asked for"
    assert (found.population.rates.totals > 0).all(), "a service without calls is nobody's"
    assert found.warm == 120.0, "half of four minutes"
    assert found.population.requests(seed=0).times[-1] < 240.0


def test_with_more_models_than_services_laps_begin_at_different_minutes() -> None:
    found = rates(Service(tuple(range(1, 61))))
    assert len({int(row.argmax()) for row in found}) > 1
    assert np.sort(found, axis=1) == pytest.approx(np.tile(np.sort(found[0]), (5, 1)))


def test_of_a_trace_the_first_minutes_are_played() -> None:
    found = rates(Service((0, 8, 0, 2)), scene=replace(SCENE, models=1, minutes=3))
    assert found.shape == (1, 3)
    assert found[0, [0, 2]].tolist() == [0.0, 0.0]


def some(*shares: float) -> tuple[Figures, ...]:
    return tuple(Figures(1, share, 1.0, share, 0.0, 0.0, 0.0, 0.0, 0.0) for share in shares)


def test_the_gain_is_over_the_best_of_a_side_and_not_over_the_first() -> None:
    sides = {way: some(0.1, 0.1) for ways in SIDES.values() for way in ways}
    sides |= {SIDES["ours"][1]: some(0.9, 0.7), SIDES["usual"][3]: some(0.6, 0.4)}
    found = Contest(20, {1.0: sides}, {1.0: (10, 15)})
    assert found.best(1.0, "usual") == SIDES["usual"][3]
    assert found.gain(1.0).value == pytest.approx(1.6)
    assert found.gain(1.0, "ours in part").value == pytest.approx(8.0)
    saved = found.machines_saved(1.0)
    assert (saved.low, saved.value, saved.high) == (0.25, 0.375, 0.5)
