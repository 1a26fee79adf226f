"""Ends requests, and counts what routers and ticks need to know of them."""

from latebind.simulation.cluster.compiled import views as of
from latebind.simulation.cluster.compiled.compile import compiled
from latebind.simulation.cluster.compiled.memory import touch
from latebind.simulation.cluster.compiled.views import State


@compiled
def end(s: State, machine: int, request: int, outcome: int, now: float) -> None:
    """Answer a request that was accepted."""
    touch(s, machine, machine * of.settings(s)[0].models + of.requests(s)[request].model)
    reply(s, machine, request, outcome, now)


@compiled
def reply(s: State, machine: int, request: int, outcome: int, now: float) -> None:
    """Write the outcome of a request, and free its place."""
    r, config, m, tally = of.requests(s)[request], of.settings(s)[0], of.machines(s)[machine], of.tally(s)[0]
    of.unanswered(s)[machine] -= 1
    of.work(s)[machine] -= of.models(s)[of.model_at(s, machine, r.model)].router_each
    if r.number < config.requests:
        ended = now + config.hop
        of.ended(s)[r.number], of.outcomes(s)[r.number], of.taken(s)[r.number] = ended, outcome, machine
        tally.ended += 1
        tally.late += outcome != 0 or ended > r.due
        m.slack += r.slack
        m.slacks += 1
    else:
        of.lanes(s)[machine * config.models + r.model].tried = 0
    r.next = tally.free_request
    tally.free_request = request
    tally.spare_requests += 1
