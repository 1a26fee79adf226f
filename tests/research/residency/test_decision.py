"""What a decision costs is timed for every policy; how long it takes is for no test to say."""

from latebind.residency import POLICIES
from research.mcache.decision import decision_table


def test_every_policy_decides_with_many_models_in_memory() -> None:
    rows = decision_table(models=200, decisions=20)
    assert [row.policy for row in rows] == [*POLICIES, "late"]
    assert [row.stages for row in rows if row.policy == "late"] == [True, False]
    assert all(0.0 < row.median <= row.longest for row in rows)
