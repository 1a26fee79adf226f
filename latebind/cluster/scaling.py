"""How many replicas the traffic needs, by slack: the time that requests have to spare on arrival. Pure.

A long queue is no reason for another replica if all of it is answered in time, and a short queue is no comfort if
deadlines are tight. Whether fewer replicas would do is judged by how busy the workers are, because slack does not show
idle time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil

from latebind.server.gateway import ModelMetrics, Snapshot

LITTLE_SLACK = 0.25  # as a share of the deadline: with less, answers are at risk
MUCH_SLACK = 0.5
SHED = 0.01  # the share of requests that may be refused or late before answers count as at risk
BUSY = 0.6  # how busy workers may be, as a share of time, with one replica fewer
LOST = ("refused_full", "refused_late", "refused_loading", "expired", "not_loaded")


@dataclass(frozen=True, slots=True)
class Load:
    """How one replica fared for a while: `requests` a second, and how `busy` its workers were, as a share of time.

    `slack` is the mean slack on arrival as a share of the deadline, `shed` the share of requests that were refused or
    late.
    """

    requests: float = 0.0
    slack: float = 1.0
    shed: float = 0.0
    busy: float = 0.0


@dataclass(frozen=True, slots=True)
class Since:
    """Since when answers have been at risk, and since when fewer replicas would do; None where it is not so."""

    at_risk: float | None = None
    spare: float | None = None


def load_between(before: Snapshot, after: Snapshot, workers: int) -> Load:
    """Return how an engine fared between two snapshots; an empty `Load` for an engine that started anew."""

    def grown(figure: Callable[[ModelMetrics], float]) -> float:
        was = before["models"]
        return sum([figure(one) - (figure(was[name]) if name in was else 0) for name, one in after["models"].items()])

    def mean(total: float, count: float) -> float:
        return total / count if count else 0.0

    seconds = after.get("now", 0.0) - before.get("now", float("inf"))
    ended = grown(lambda model: sum(model["requests"].values()))
    lost = grown(lambda model: sum([model["requests"][kind] for kind in LOST]))
    busy = grown(lambda model: sum(model["run_seconds"].values()))
    if seconds <= 0 or ended <= 0 or lost < 0 or busy < 0:
        return Load()
    slack = mean(grown(lambda one: one["slack_seconds"]["sum"]), grown(lambda one: one["slack_seconds"]["count"]))
    latency = mean(grown(lambda one: one["latency_seconds"]["sum"]), grown(lambda one: one["latency_seconds"]["count"]))
    whole = slack + latency  # about the deadline
    share = min(1.0, max(0.0, slack / whole)) if whole > 0 else float(whole == 0)
    return Load(ended / seconds, share, lost / ended, busy / (seconds * workers))


def replicas_needed(loads: Sequence[Load], replicas: int, since: Since, now: float, *, up: float, down: float) -> int:
    """Return how many replicas there should be, where there are `replicas` with these loads.

    More if answers were at risk for `up` seconds: as many as would answer the requests that were shed, at least one
    more. One fewer if that would have sufficed for `down` seconds.
    """
    if since.at_risk is not None and now - since.at_risk >= up:
        return max(replicas + 1, ceil(replicas / max(1.0 - _shed(loads), 0.1)))
    if since.spare is not None and now - since.spare >= down:
        return replicas - 1
    return replicas


def next_since(loads: Sequence[Load], replicas: int, since: Since, now: float) -> Since:
    """Return the updated `Since` after one more look at the loads."""
    shed, slack = _shed(loads), _mean([load.slack for load in loads], loads, none=1.0)
    at_risk = shed > SHED or slack < LITTLE_SLACK
    # While a replica has not told of its load, none is spare.
    told = replicas > 1 and len(loads) >= replicas
    spare = told and sum([load.busy for load in loads]) / (replicas - 1) < BUSY and not shed > 0 and slack > MUCH_SLACK
    return Since(
        (now if since.at_risk is None else since.at_risk) if at_risk else None,
        (now if since.spare is None else since.spare) if spare else None,
    )


def _shed(loads: Sequence[Load]) -> float:
    return _mean([load.shed for load in loads], loads, none=0.0)


def _mean(values: Sequence[float], loads: Sequence[Load], *, none: float) -> float:
    """Return the mean weighted by requests; `none` if there were no requests."""
    requests = sum([load.requests for load in loads])
    return sum([v * load.requests for v, load in zip(values, loads, strict=True)]) / requests if requests else none
