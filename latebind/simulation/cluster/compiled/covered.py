"""Checks whether the compiled simulation supports a fleet. What it does not support exactly is refused by name."""

from latebind.domain.config import ServedModel
from latebind.domain.errors import ConfigError
from latebind.domain.model import StageKind
from latebind.simulation.cluster.fleet import Fleet
from latebind.simulation.cluster.policies import ROUTERS

POLICIES = ("late", "graph")
EVICTIONS = ("late", "iam", "lru")


def require_covered(fleet: Fleet, router: str) -> None:
    """Raise `ConfigError` if a fleet uses something that only the exact simulation supports."""
    policy, residency = fleet.policy, fleet.residency
    several = any(model.served.spec.stages > 1 for model in fleet.models)
    for refused, what in (
        (router not in ROUTERS, f"router {router!r}; take one of {', '.join(ROUTERS)}"),
        (not fleet.models or not fleet.machines, "a fleet without models or machines"),
        (policy.name not in POLICIES, f"policy.name {policy.name!r}; take one of {', '.join(POLICIES)}"),
        (policy.name == "graph" and policy.window > 0, f"policy.window {policy.window}; give 0"),
        (not policy.leave, "policy.leave = false"),
        (not policy.compact, "policy.compact = false"),
        (residency.policy not in EVICTIONS, f"residency.policy {residency.policy!r}; take {', '.join(EVICTIONS)}"),
        (residency.order == "fifo", "residency.order 'fifo'; take 'waits' or 'oldest'"),
        (not residency.beside, "residency.beside = false"),
        (
            residency.policy == "late" and residency.stages and several,
            "residency.stages where models have several: give stages = false to load them whole",
        ),
    ):
        if refused:
            raise ConfigError(f"the compiled simulation does not play {what}; the exact one does")
    least = min(machine.memory for machine in fleet.machines)
    for model in fleet.models:
        _require_model(model.served, least)


def _require_model(model: ServedModel, memory: int) -> None:
    spec, costs, footprint = model.spec, model.costs, model.footprint
    for refused, what in (
        (any(spec.kind(stage) is not StageKind.STATIC for stage in range(spec.stages)), "has stages that repeat"),
        (bool(costs.slopes), "has costs by length of input"),
        (costs.aside and bool(costs.lookups), "has learned caches that are asked aside"),
        (bool(costs.wide), "has runs on the cores of all workers"),
        (bool(footprint.behind), "has learned caches that take memory"),
        (footprint.stages not in ((0, 1) if spec.stages == 1 else (spec.stages,)), "has a footprint of other stages"),
        (footprint.size > memory, f"takes {footprint.size:,} bytes, more than a machine has ({memory:,})"),
    ):
        if refused:
            raise ConfigError(
                f"model {spec.name!r} {what}: the compiled simulation does not play that; the exact one does"
            )
