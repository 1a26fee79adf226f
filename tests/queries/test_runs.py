"""Random graphs, loads, failures, cancels and deadlines: every query ends exactly once and nothing is left over.

`python -m tests.queries.runs` plays 100,000 queries and more.
"""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from research.policies import BATCHING
from tests.queries.runs import play


@pytest.mark.parametrize("policies", [("late", "lazy+"), ("graph", BATCHING["elastic"])])
@given(random=st.randoms(use_true_random=False, note_method_calls=False))
def test_every_query_ends_exactly_once_and_nothing_is_left_over(policies: tuple[str, ...], random: Random) -> None:
    play(random, policies)
