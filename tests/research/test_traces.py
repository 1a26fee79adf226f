"""Requests from counts by the minute: traces read, who is left out, who gets which model, and that nothing is lost."""

from collections import Counter
from pathlib import Path
from random import Random

import numpy as np
import pytest

from latebind.domain.errors import ConfigError
from research.mcache.traces import (
    HOUR,
    Pairing,
    Request,
    Service,
    drawn,
    eligible,
    halves,
    hour_of,
    invocations,
    paired,
    services_of,
)

SLOWEST_FIRST = ["t5", "bert", "resnet"]


def often(*totals: int, minutes: int = HOUR) -> list[Service]:
    return [Service((total,) + (0,) * (minutes - 1)) for total in totals]


def test_only_http_services_up_to_the_90th_percentile_are_eligible() -> None:
    services = [*often(*range(11)), Service((5,) * HOUR, "timer")]
    found = eligible(services, range(HOUR))
    assert [sum(service.counts) for service in found] == list(range(10))


def test_quantile_gives_slow_models_to_popular_services_and_its_reverse_to_the_others() -> None:
    services = often(5, 60, 50, 1, 10, 11)
    found = {pairing: paired(services, SLOWEST_FIRST, pairing, Random(0)) for pairing in Pairing}
    assert found[Pairing.QUANTILE] == ["resnet", "t5", "t5", "resnet", "bert", "bert"]
    assert found[Pairing.QUANTILE_R] == ["t5", "resnet", "resnet", "t5", "bert", "bert"]


def test_a_request_comes_within_its_minute() -> None:
    found = invocations([Service((0, 3, 0)), Service((1, 0, 2))], ["a", "b"], Random(0))
    assert [request.time for request in found] == sorted(request.time for request in found)
    minutes = Counter((request.model, int(request.time // 60)) for request in found)
    assert minutes == {("a", 1): 3, ("b", 0): 1, ("b", 2): 2}


def workload(services: list[Service], pairing: Pairing) -> list[Request]:
    random = Random(5)
    hour = hour_of(services, random)
    return invocations(hour, paired(hour, SLOWEST_FIRST, pairing, random), random)


@pytest.mark.parametrize("pairing", Pairing)
def test_a_workload_repeats_with_its_seed(pairing: Pairing) -> None:
    services = eligible(drawn(Random(0)), range(2 * HOUR))
    some, again = (workload(services, pairing) for _ in range(2))
    assert some == again
    assert {request.model for request in some} == set(SLOWEST_FIRST)
    assert all(0.0 <= request.time < 3600.0 for request in some)


def test_a_day_as_published_and_the_same_as_arrays_are_the_same_services(tmp_path: Path) -> None:
    table, arrays = tmp_path / "day.csv", tmp_path / "day.npz"
    table.write_text(
        "HashOwner,HashApp,HashFunction,Trigger,1,2,3\na,b,c,http,1,0,2\na,b,d,timer,0,5,0\na,b,e,queue,7,7,7\n"
    )
    np.savez(arrays, counts=np.array([[1, 0, 2], [0, 5, 0], [7, 7, 7]]), trigger=np.array(["http", "timer", "queue"]))
    assert services_of(table) == services_of(arrays) == (Service((1, 0, 2), "http"), Service((0, 5, 0), "timer"))


@pytest.mark.parametrize(("name", "text"), [("a.csv", "x,y\n1,2\n"), ("a.npz", "nothing"), ("b.csv", "Trigger,1\n")])
def test_what_is_no_trace_is_told(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match="give a day's CSV file"):
        services_of(tmp_path / name)
    with pytest.raises(ConfigError, match="is no trace"):
        services_of(tmp_path / "gone.csv")


def test_halves_share_no_minute_and_a_trace_that_is_too_short_or_empty_is_told() -> None:
    first, second = halves([Service((1,) * 60 + (2,) * 60)] * 2)
    assert [set(service.counts) for service in (*first, *second)] == [{1}, {1}, {2}, {2}]
    with pytest.raises(ConfigError, match="100 minutes: give one of two hours"):
        halves([Service((1,) * 100)])
    with pytest.raises(ConfigError, match="http"):
        halves([Service((1,) * 120, "queue")])
