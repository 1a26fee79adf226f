"""The least that requests could take on one worker: who has the least left goes first, and nothing else costs anything.

For a policy that knows all lengths, stops anywhere between two steps, pays for no boundary, and has reading shared as
well as steps are. No live engine gets there; a policy that is near to it has nothing left to gain.
"""

from collections.abc import Callable, Sequence
from math import inf

NOTHING = 1e-12  # seconds


def least_seconds(times: Sequence[float], work: Sequence[float], shares: Sequence[float]) -> list[float]:
    """Return the seconds of requests that come at `times` (ascending) with so many seconds of `work` alone.

    `shares[n]` is the speed, alone 1, of whoever is next behind n others: the sum of the first n is what n together get
    done in a second. They do not rise (`shares_of`); behind the last nobody advances.
    """
    left: list[tuple[float, int]] = []  # of each who is there, ascending
    ends, now, coming = [inf] * len(times), 0.0, 0
    while coming < len(times) or left:
        if not left:
            now = max(now, times[coming])
        while coming < len(times) and times[coming] <= now:
            left.append((work[coming], coming))
            coming += 1
        left.sort()
        running = left[: len(shares)]
        first = min([seconds / share for (seconds, _), share in zip(running, shares, strict=False) if share > 0.0])
        spent = min(first, times[coming] - now) if coming < len(times) else first
        now += spent
        for place, ((seconds, number), share) in enumerate(zip(running, shares, strict=False)):
            left[place] = seconds - spent * share, number
            if left[place][0] <= NOTHING:
                ends[number] = now
        left = [one for one in left if one[0] > NOTHING]
    return [end - time for end, time in zip(ends, times, strict=True)]


def shares_of(seconds: Callable[[int], float], most: int) -> list[float]:
    """Return the shares of `least_seconds`, where a batch of n takes so many `seconds`, up to `most` of them.

    What n get done is the least concave curve above n times the seconds of one over those of n: a policy may run some
    now and others then.
    """
    done = [0.0, *(n * seconds(1) / seconds(n) for n in range(1, most + 1))]
    shares, at = list[float](), 0
    while at < most:
        rise, to = max([((done[n] - done[at]) / (n - at), n) for n in range(at + 1, most + 1)])
        if rise <= 0.0:
            break
        shares += [rise] * (to - at)
        at = to
    return shares
