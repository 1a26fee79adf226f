"""What cannot be served on a cluster is told before anything is started."""

import pytest

from latebind.cluster.refusals import check
from latebind.domain.config import ClusterConfig, DoorConfig, EngineConfig, ServeConfig
from latebind.domain.errors import ConfigError


def test_plain_settings_are_served() -> None:
    check("ray", ServeConfig())


@pytest.mark.parametrize(
    ("settings", "option"),
    [
        (ServeConfig(engine=EngineConfig(cores=(1,))), "--cores"),
        (ServeConfig(server=DoorConfig(dashboard=True)), "--dashboard"),
    ],
)
def test_options_that_do_not_go_with_it_are_refused_by_name(settings: ServeConfig, option: str) -> None:
    with pytest.raises(ConfigError, match=f"^{option} does not go with --on ray: .+"):
        check("ray", settings)


def test_an_event_log_is_refused() -> None:
    with pytest.raises(ConfigError, match="--event-log"):
        check("ray", ServeConfig(), event_log=True)


def test_who_names_something_else_is_told_what_there_is() -> None:
    with pytest.raises(ConfigError, match="choose ray"):
        check("mars", ServeConfig())


@pytest.mark.parametrize(("replicas", "most"), [(0, 0), (3, 2), (-1, 4)])
def test_numbers_of_replicas_have_to_make_sense(replicas: int, most: int) -> None:
    with pytest.raises(ConfigError, match="cluster\\."):
        ClusterConfig(replicas=replicas, max_replicas=most)
