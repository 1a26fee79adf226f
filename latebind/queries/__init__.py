"""Queries: graphs of models under one deadline, replanned as steps save time (GATI, sections 5.1 and 5.2). Pure.

A new planner is one class and one line here.
"""

from collections.abc import Callable

from latebind.domain.errors import ConfigError
from latebind.domain.query import PlannerConfig
from latebind.queries.expected import Expected
from latebind.queries.planners import Equal, Planner, Proportional

PLANNERS: dict[str, Callable[[PlannerConfig], Planner]] = {
    "equal": Equal,
    "proportional": Proportional,
    "expected": Expected,
}


def make_planner(config: PlannerConfig) -> Planner:
    """Return the planner that `config` names. Raises `ConfigError` for an unknown name."""
    try:
        return PLANNERS[config.name](config)
    except KeyError:
        known = ", ".join(PLANNERS)
        raise ConfigError(f"planner.name is {config.name!r}: there is no such planner; take one of {known}") from None
