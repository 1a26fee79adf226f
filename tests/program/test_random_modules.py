"""A few random modules; `tests.program.random_modules` says how to try many."""

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from latebind.program.backends import BACKENDS as KNOWN
from tests.program.random_modules import BACKENDS, Case, cases, tried


@settings(
    max_examples=4,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(cases())
def test_every_answer_of_a_random_module_is_its_own_or_a_refusal(case: Case) -> None:
    if any(KNOWN[backend].unavailable() is not None for backend in BACKENDS):
        pytest.skip("needs OpenVINO")
    tried(case, backends=BACKENDS)
