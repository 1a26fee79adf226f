"""What a query is to expect of its models at one estimates."""

from latebind.domain.costs import Outlook
from latebind.queries.bounds import LowerBound
from latebind.queries.estimates import Estimates
from tests.queries.plans import query

ONE = Outlook(0.1, (0.2, 1.0), (0.5, 0.5))


def test_a_model_waits_for_its_inputs_too_as_a_step() -> None:
    estimates = Estimates(LowerBound(query()), {"one": ONE})
    assert estimates.of_step(0.0)("one") == ONE
    assert estimates.of_step(0.3)("one") == Outlook(0.4, ONE.ends, ONE.chances)
    assert estimates.of_step(0.3) is estimates.of_step(0.3)
