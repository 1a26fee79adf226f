"""Queries: graphs of models under one deadline, planned again as time is saved (GATI, sections 5.1 and 5.2). Pure."""

from latebind.domain.errors import ConfigError
from latebind.domain.query import PlannerConfig
from latebind.queries.fixed import Best, Quickest
from latebind.queries.planner import Planner

PLANNERS: dict[str, type[Planner]] = {"quickest": Quickest, "best": Best}


def make_planner(config: PlannerConfig) -> Planner:
    """Return the planner of this configuration; raises `ConfigError` for one that there is not."""
    made = PLANNERS.get(config.name)
    if made is None:
        raise ConfigError(f"planner is {config.name!r}: choose from {', '.join(PLANNERS)}")
    return made()
