"""What a decision costs is timed for every policy; how long it takes is for no test to say."""

from research.mcache.decision import decision_table
from research.policies import EVICTION


def test_every_policy_decides_with_many_models_in_memory() -> None:
    rows = decision_table(models=200, decisions=20)
    assert [row.policy for row in rows] == list(EVICTION)
    assert [row.stages for row in rows if row.policy == "late"] == [True]
    assert all(0.0 < row.median <= row.longest for row in rows)
