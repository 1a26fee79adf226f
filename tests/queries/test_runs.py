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


def figures(seeds: range) -> dict[str, object]:
    """What random loads come to: queries and steps by outcome, seconds, and the options picked for each node."""
    outcomes, steps, options = Counter[str](), Counter[str](), Counter[tuple[int, int]]()
    seconds = budgets = spent = slack = 0.0
    for seed in seeds:
        ends, told = play(Random(seed), ("late",), MANY_CALLS)
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


GOLDEN: dict[str, object] = {
    "outcomes": {"REFUSED_LATE": 152, "ANSWERED": 655, "FAILED": 125, "CANCELLED": 35, "EXPIRED": 42},
    "steps": {"ANSWERED": 1560, "CANCELLED": 116, "FAILED": 17, "EXPIRED": 28, "REFUSED_LATE": 53},
    "options": {
        **{(0, 0): 405, (0, 1): 209, (0, 2): 22, (1, 0): 155, (1, 1): 227, (1, 2): 32},
        **{(2, 0): 190, (2, 1): 78, (2, 2): 20, (3, 0): 67, (3, 1): 80, (3, 2): 29},
        **{(4, 0): 78, (4, 1): 50, (4, 2): 38, (5, 0): 10, (5, 1): 64, (5, 2): 20},
    },
    "sums": (1336.648, 53665.634, 1768.355, 57788.633),
}


def test_random_loads_come_to_the_same_as_ever() -> None:
    """Golden: whoever means to change what is decided changes these."""
    assert figures(range(40)) == GOLDEN
