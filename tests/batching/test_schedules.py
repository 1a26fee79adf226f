"""Random models, loads and policies: whatever is decided, every request runs all of its work once and is answered once.

`python -m tests.batching.runs` plays 10,000 of each policy.
"""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from research.policies import BATCHING
from tests.batching.runs import hold_up, play

RANDOM = st.randoms(use_true_random=False, note_method_calls=False)


@pytest.mark.parametrize("name", BATCHING)
@given(random=RANDOM)
def test_every_request_runs_its_work_and_ends_once(name: str, random: Random) -> None:
    play(random, name)


@given(random=RANDOM)
def test_lazy_plus_holds_nobody_up_past_its_bound(random: Random) -> None:
    hold_up(random)
