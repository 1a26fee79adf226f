"""A lower bound on the latency of requests on one worker: shortest remaining work first, without any overhead.

It is that of a policy that knows all lengths, may stop between any two steps, pays nothing for stage boundaries, and
shares the reading of inputs as well as decoder steps. No live engine reaches it; a policy near it has nothing to gain.
"""

from collections.abc import Callable, Sequence
from math import inf

NOTHING = 1e-12  # seconds


def least_seconds(times: Sequence[float], work: Sequence[float], shares: Sequence[float]) -> list[float]:
    """Return the seconds of requests that arrive at `times` (ascending), whose `work` takes these seconds alone.

    `shares[n]` is the speed of the request that is behind n others, relative to running alone: the sum of the first n
    shares is the work that n requests together get done per second. Shares must not rise (`shares_of`); requests behind
    the last share do not advance.
    """
    left: list[tuple[float, int]] = []  # remaining seconds of the requests present, ascending
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
    """Return the shares for `least_seconds`, where a batch of n takes `seconds(n)`, for up to `most` requests.

    The work that n requests get done per second is the least concave curve above n * seconds(1) / seconds(n), because a
    policy may also run some requests now and others later.
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
