"""Random models, memory, loads and policies: whatever is decided, the budget holds and everybody is answered once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from latebind.domain.actions import Outcome
from latebind.domain.config import ServedModel
from latebind.domain.costs import Curve
from latebind.simulation.workloads import Arrival
from research.policies import BATCHING, EVICTION
from tests.batching.chains import STATIC, chain
from tests.residency.limited import Accounted, limited, with_pieces

LIVE = [name for name in EVICTION if name not in {"belady", "iam-oracle", "late-oracle"}]
SIZES = st.sampled_from((1, 2, 3, 5))


@st.composite
def models(draw: st.DrawFn, name: str) -> ServedModel:
    """One to five stages, of any sizes, quick or slow to load beside what they take to run."""
    stages = draw(st.integers(1, 5))
    curve = Curve((1, 4), (1.0, draw(st.sampled_from((1.0, 2.0, 4.0)))))
    sizes = tuple(draw(st.lists(SIZES, min_size=stages, max_size=stages)))
    seconds = draw(st.sampled_from((0.01, 0.5, 3.0)))
    model = chain(*[STATIC] * stages, name=name, max_batch=4, curve=curve)
    return with_pieces(model, sizes, seconds=seconds)


@st.composite
def requests(draw: st.DrawFn, served: list[ServedModel]) -> list[Arrival]:
    found, time = [], 0.0
    for _ in range(draw(st.integers(1, 20))):
        time += draw(st.sampled_from((0.0, 0.0, 0.4, 2.0, 15.0)))
        model = draw(st.sampled_from(served))
        found.append(Arrival(time, model.spec.name, 1e9, model.spec.stages - 1, rows=draw(st.integers(1, 2))))
    return found


@pytest.mark.parametrize("name", LIVE)
@given(data=st.data())
def test_the_budget_holds_and_everybody_is_answered(name: str, data: st.DataObject) -> None:
    served = [data.draw(models(letter)) for letter in "abcd"[: data.draw(st.integers(2, 4))]]
    whole = max(model.footprint.size for model in served)
    settings = limited(
        *served,
        budget=whole + data.draw(st.integers(0, 6)),
        policy=EVICTION[name],
        batching=data.draw(st.sampled_from(list(BATCHING))),
        workers=data.draw(st.integers(1, 2)),
        stages=data.draw(st.booleans()),
        patience=data.draw(st.sampled_from((2.0, 20.0, 500.0))),
    )
    calls = data.draw(requests(served))
    simulator = Accounted(settings)
    records = simulator.run(calls)
    assert sorted(record.request for record in records) == list(range(sum(call.rows for call in calls)))
    assert {record.outcome for record in records} == {Outcome.ANSWERED}
    assert simulator.most <= settings.residency.budget
