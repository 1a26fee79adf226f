"""Random graphs, loads, failures, cancels and deadlines: every query ends exactly once and nothing is left over.

`python -m tests.queries.runs` plays 100,000 queries and more.
"""

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from research.policies import BATCHING
from tests.queries.runs import MANY_CALLS, play


@pytest.mark.parametrize("policies", [("late", "lazy+"), ("graph", BATCHING["elastic"])])
@given(random=st.randoms(use_true_random=False, note_method_calls=False))
def test_every_query_ends_exactly_once_and_nothing_is_left_over(policies: tuple[str, ...], random: Random) -> None:
    play(random, policies)


def figures(seeds: range, *planners: str) -> dict[str, object]:
    """What random loads come to: queries and steps by outcome, seconds, and the options picked for each node."""
    outcomes, steps, options = Counter[str](), Counter[str](), Counter[tuple[int, int]]()
    seconds = budgets = spent = slack = 0.0
    for seed in seeds:
        ends, told = play(Random(seed), ("late",), MANY_CALLS, planners)
        for end in ends:
            outcomes[end.outcome.name] += 1
            seconds += end.latency
        for step in told:
            steps[step.outcome.name] += 1
            options[step.node, step.option] += 1
            budgets += min(step.budget, 100.0)
            spent += step.spent
            slack += step.slack or 0.0
    sums = tuple(round(one, 3) for one in (seconds, budgets, spent, slack))
    return {"outcomes": dict(outcomes), "steps": dict(steps), "options": dict(sorted(options.items())), "sums": sums}


OF_EXPECTED: dict[str, object] = {
    "outcomes": {"REFUSED_LATE": 114, "ANSWERED": 593, "FAILED": 131, "CANCELLED": 33, "EXPIRED": 35},
    "steps": {"ANSWERED": 1386, "CANCELLED": 124, "FAILED": 20, "EXPIRED": 22, "REFUSED_LATE": 34},
    "options": {
        **{(0, 0): 367, (0, 1): 191, (0, 2): 33, (1, 0): 168, (1, 1): 196, (1, 2): 17},
        **{(2, 0): 156, (2, 1): 96, (2, 2): 21, (3, 0): 52, (3, 1): 72, (3, 2): 28},
        **{(4, 0): 81, (4, 1): 35, (4, 2): 8, (5, 0): 12, (5, 1): 35, (5, 2): 18},
    },
    "sums": (1162.055, 52122.707, 1514.082, 52153.788),
}
OF_SPLITS: dict[str, object] = {
    "outcomes": {"ANSWERED": 206, "CANCELLED": 9, "REFUSED_LATE": 34, "FAILED": 152, "EXPIRED": 11},
    "steps": {"ANSWERED": 766, "CANCELLED": 91, "FAILED": 26, "EXPIRED": 11, "REFUSED_LATE": 1},
    "options": {
        **{(0, 0): 140, (0, 1): 84, (0, 2): 28, (1, 0): 90, (1, 1): 62, (1, 2): 20},
        **{(2, 0): 59, (2, 1): 81, (2, 2): 7, (3, 0): 46, (3, 1): 79, (4, 0): 23, (4, 1): 31, (4, 2): 61},
        **{(5, 0): 22, (5, 1): 55, (5, 2): 7},
    },
    "sums": (385.58, 18392.552, 655.623, 27209.512),
}


def test_random_loads_come_to_the_same_as_ever() -> None:
    """Golden: whoever means to change what is decided changes these."""
    assert figures(range(40), "expected") == OF_EXPECTED
    assert figures(range(40, 60), "equal", "proportional") == OF_SPLITS
