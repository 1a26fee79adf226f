"""What a query is to expect of its models at one moment."""

from latebind.domain.outlook import Outlook
from latebind.queries.least import Least
from latebind.queries.moment import Moment
from tests.queries.plans import query

ONE = Outlook(0.1, (0.2, 1.0), (0.5, 0.5))


def test_a_model_waits_for_its_inputs_too_as_a_step() -> None:
    moment = Moment(Least(query()), {"one": ONE})
    assert moment.of_step(0.0)("one") == ONE
    assert moment.of_step(0.3)("one") == Outlook(0.4, ONE.ends, ONE.chances)
    assert moment.of_step(0.3) is moment.of_step(0.3)
