"""How many replicas the traffic needs, by slack: the time that requests have to spare on arrival. Pure.

A long queue is no reason for another replica if all of it is answered in time, and a short queue is no comfort if
deadlines are tight. Whether fewer replicas would do is judged by how busy the workers are, because slack does not show
idle time.
"""

from collections.abc import Callable, Sequence
from math import ceil
from typing import NamedTuple

from latebind.server.gateway import ModelMetrics, Snapshot

LITTLE_SLACK = 0.25  # as a share of the deadline: with less, answers are at risk
MUCH_SLACK = 0.5
SHED = 0.01  # the share of requests that may be refused or late before answers count as at risk
BUSY = 0.6  # how busy workers may be, as a share of time, with one replica fewer
LOST = ("refused_full", "refused_late", "refused_loading", "expired", "not_loaded")


class Load(NamedTuple):
    """How one replica fared for a while: `requests` a second, and how `busy` its workers were, as a share of time.

    `slack` is the mean slack on arrival as a share of the deadline, `shed` the share of requests that were refused or
    late.
    """

    requests: float = 0.0
    slack: float = 1.0
    shed: float = 0.0
    busy: float = 0.0


class Since(NamedTuple):
    """Since when answers have been at risk, and since when fewer replicas would do; None if that is not so."""

    at_risk: float | None = None
    spare: float | None = None


def load_between(before: Snapshot, after: Snapshot, workers: int) -> Load:
    """Return how an engine fared between two snapshots; an empty `Load` for an engine that has restarted."""

    def grown(figure: Callable[[ModelMetrics], float]) -> float:
        was = before["models"]
        return sum([figure(one) - (figure(was[name]) if name in was else 0) for name, one in after["models"].items()])

    seconds = after.get("now", 0.0) - before.get("now", float("inf"))
    ended = grown(lambda model: sum(model["requests"].values()))
    lost = grown(lambda model: sum([model["requests"][kind] for kind in LOST]))
    busy = grown(lambda model: sum(model["run_seconds"].values()))
    if seconds <= 0 or ended <= 0 or lost < 0 or busy < 0:
        return Load()
    slack = grown(lambda one: one["slack_seconds"]["sum"]) / max(1, grown(lambda one: one["slack_seconds"]["count"]))
    latency = grown(lambda one: one["latency_seconds"]["sum"])
    whole = slack + latency / max(1, grown(lambda one: one["latency_seconds"]["count"]))  # about the deadline
    share = min(1.0, max(0.0, slack / whole)) if whole > 0 else float(whole == 0)
    return Load(ended / seconds, share, lost / ended, busy / (seconds * workers))


def replicas_needed(
    loads: Sequence[Load], replicas: int, since: Since, now: float, *, up: float, down: float
) -> tuple[int, Since]:
    """Return how many replicas there should be instead of `replicas` with these loads, and the next `Since`.

    More if answers were at risk for `up` seconds: as many as would answer the requests that were shed, at least one
    more. One fewer if that would have sufficed for `down` seconds. Then both start over.
    """
    requests = sum([load.requests for load in loads])
    shed = sum([load.shed * load.requests for load in loads]) / requests if requests else 0.0
    slack = sum([load.slack * load.requests for load in loads]) / requests if requests else 1.0
    # Until every replica has reported its load, none is spare.
    complete = replicas > 1 and len(loads) >= replicas
    spare = (
        complete and sum([load.busy for load in loads]) / (replicas - 1) < BUSY and not shed > 0 and slack > MUCH_SLACK
    )
    risky_since = now if since.at_risk is None else since.at_risk
    spare_since = now if since.spare is None else since.spare
    if shed > SHED or slack < LITTLE_SLACK:
        if now - risky_since >= up:
            return max(replicas + 1, ceil(replicas / max(1.0 - shed, 0.1))), Since()
        return replicas, Since(at_risk=risky_since)
    if spare:
        if now - spare_since >= down:
            return replicas - 1, Since()
        return replicas, Since(spare=spare_since)
    return replicas, Since()
