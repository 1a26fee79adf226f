"""What the compiled simulation does not cover is refused by name, and what it does otherwise is told in figures."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from latebind.domain.config import PolicyConfig, ResidencyConfig
from latebind.domain.costs import Curve
from latebind.domain.errors import ConfigError
from latebind.simulation.cluster import exact
from latebind.simulation.cluster.compiled.run import play
from latebind.simulation.cluster.fleet import Fleet, Requests
from tests.simulation.cluster.fleets import fleet, model, poisson, requests

pytestmark = pytest.mark.timeout(900)  # who comes first compiles: minutes on a busy machine


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"policy": PolicyConfig("lazy")}, "policy.name 'lazy'"),
        ({"policy": PolicyConfig("graph", window=0.1)}, "policy.window"),
        ({"policy": PolicyConfig(leave=False)}, "policy.leave"),
        ({"policy": PolicyConfig(compact=False)}, "policy.compact"),
        ({"residency": ResidencyConfig(policy="gdsf")}, "residency.policy 'gdsf'"),
        ({"residency": ResidencyConfig(policy="lru", order="fifo")}, "residency.order 'fifo'"),
        ({"residency": ResidencyConfig(policy="lru", beside=False)}, "residency.beside"),
        ({"residency": ResidencyConfig()}, "residency.stages"),
    ],
)
def test_settings_that_are_not_covered_are_refused_by_name(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        play(replace(fleet(), **changes), requests((0.0, 0)))


def test_a_router_that_there_is_none_of_is_refused() -> None:
    with pytest.raises(ConfigError, match="router 'nearest'"):
        play(fleet(residency=ResidencyConfig(stages=False)), requests((0.0, 0)), router="nearest")


def test_a_model_with_lookups_aside_is_refused() -> None:
    aside = model("aside", hit_rates={0: 0.5}, aside=0.001)
    with pytest.raises(ConfigError, match="'aside' has learned caches that are asked aside"):
        play(fleet(1, aside, residency=ResidencyConfig(stages=False)), requests((0.0, 0)))


def test_a_model_that_may_have_the_cores_of_all_workers_is_refused() -> None:
    one = model("wide")
    wide = replace(one, served=replace(one.served, costs=replace(one.served.costs, wide=(Curve((1,), (0.5,)),) * 2)))
    with pytest.raises(ConfigError, match="'wide' has runs on the cores of all workers"):
        play(fleet(1, wide, residency=ResidencyConfig(stages=False)), requests((0.0, 0)))


def test_a_model_larger_than_a_machine_is_refused() -> None:
    with pytest.raises(ConfigError, match="more than a machine has"):
        play(fleet(1, model("large", size=2000), residency=ResidencyConfig(stages=False)), requests((0.0, 0)))


@pytest.mark.parametrize("policy", ["late", "iam"])
def test_with_more_models_than_are_all_scored_afresh_there_latencies_and_loads_are_within_5_percent(
    policy: str,
) -> None:
    many, coming = crowd(policy)
    fast, slow = play(many, coming), exact.play(many, coming)
    assert np.mean(fast.ended - coming.times) == pytest.approx(np.mean(slow.ended - coming.times), rel=0.05)
    assert np.mean(fast.outcome == 0) == pytest.approx(np.mean(slow.outcome == 0), rel=0.05)
    assert fast.loads == pytest.approx(slow.loads, rel=0.05)


def crowd(policy: str) -> tuple[Fleet, Requests]:
    """One machine with room for 100 of 200 models, of which some are asked for far more often than others."""
    models = [model(f"model-{i}", size=10, load=0.02, seconds=0.002, stages=1) for i in range(200)]
    coming = poisson(4000, rate=100.0, stages=1)
    popular = (200 * np.random.default_rng(1).random(4000) ** 3).astype(np.int32)
    some = fleet(1, *models, residency=ResidencyConfig(policy=policy, stages=False, window=30.0))
    return some, Requests(coming.times, popular, coming.leaves)
