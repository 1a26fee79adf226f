"""How many machines are wanted, by what requests have to spare and by how busy machines would be."""

import numpy as np
import pytest

from latebind.domain.errors import ConfigError
from latebind.simulation.cluster.autoscaling import BySlack, ByUtilisation
from latebind.simulation.cluster.policies import Demand
from tests.simulation.cluster.fleets import fleet, model

FLEET = fleet(40, model("net"))


def demand(late: float = 0.0, slack: float = 0.5, rate: float = 0.0) -> Demand:
    return Demand(np.array([rate]), late, slack)


def test_more_machines_where_many_are_late_or_slack_is_short() -> None:
    scaler = BySlack()
    assert scaler.wanted(FLEET, 10, demand(late=0.02), 0.0) == 13
    assert scaler.wanted(FLEET, 10, demand(slack=0.2), 0.0) == 13
    assert scaler.wanted(FLEET, 10, demand(), 0.0) == 10


def test_less_machines_only_after_several_calm_periods() -> None:
    scaler = BySlack(calm=3)
    plenty = demand(slack=0.9)
    assert [scaler.wanted(FLEET, 30, plenty, 0.0) for _ in range(4)] == [30, 30, 28, 30]
    scaler.wanted(FLEET, 30, demand(slack=0.5), 0.0)
    assert [scaler.wanted(FLEET, 30, plenty, 0.0) for _ in range(3)] == [30, 30, 28]


def test_utilisation_counts_what_requests_take_in_full_batches() -> None:
    # 4 ms of a machine for each request in batches of four.
    assert ByUtilisation(0.5).wanted(FLEET, 10, demand(rate=1000.0), 0.0) == 8


def test_bounds_without_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match="give the lower one first"):
        BySlack(low=0.6, high=0.5)
    with pytest.raises(ConfigError, match="above 0 and at most 1"):
        ByUtilisation(1.5)
