"""Models of which each alone is larger than the memory: they stream, and everybody is answered."""

from latebind.domain.config import PolicyConfig, ResidencyConfig, SchedulerConfig, ServedModel
from latebind.domain.costs import Curve, Footprint, ModelCosts, at_any_length
from latebind.domain.model import ModelSpec, TensorSpec
from latebind.simulation.driver import Simulator
from latebind.simulation.workloads import Arrival

NEVER = 1e9  # seconds until requests are due
WORD = TensorSpec("x", "float32", (1,))
SIZES = {"small": (12, 5), "large": (26, 8, 8), "larger": (26, 8, 9)}
BUDGET = 41  # of which the last stages of a large model leave too little for its first one


def served(name: str, sizes: tuple[int, ...]) -> ServedModel:
    costs = ModelCosts(at_any_length(Curve((1, 2), (0.01, 0.02))) * len(sizes))
    footprint = Footprint(sizes, tuple([size / 1000 for size in sizes]), fixed=0.01)
    return ServedModel(ModelSpec(name, "1", (WORD,), (WORD,), len(sizes), 4), costs, 1 << 20, footprint)


def test_a_model_gives_up_its_last_stages_where_nothing_else_makes_room_for_its_first() -> None:
    models = tuple([served(name, sizes) for name, sizes in SIZES.items()])
    residency = ResidencyConfig(policy="late", patience=10.0, budget=BUDGET)
    config = SchedulerConfig(models, 1, PolicyConfig("late", shed=False), residency=residency)
    names = list(SIZES)
    arrivals = [
        Arrival(0.001 * turn, name, NEVER, len(SIZES[name]) - 1)
        for turn in range(60)
        for name in (names[(turn * turn + turn // 3) % 3],)
    ]
    assert len(Simulator(config).run_closed(arrivals, clients=6)) == len(arrivals)
