"""When those who wait for a model may begin though not all of it is there. Pure."""

from latebind.batching.lane import Lane
from latebind.residency.held import Held


def arrives_in_time(model: Held, lane: Lane) -> bool:
    """Tell whether who begins now would wait for no stage longer than the next piece takes to come."""
    footprint, batch = model.footprint, max(1, min(len(lane), lane.spec.max_batch))
    arrives, runs = 0.0, model.seconds_of(model.missing[:1])
    for stage in range(footprint.stages):
        if stage not in model.resident:
            arrives += model.seconds_of((stage,))
            if arrives > runs:
                return False
        runs += lane.estimate.unit(batch, stage)
    return True
