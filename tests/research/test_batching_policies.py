"""The timelines of LazyBatching's figures 4, 6, 7, 8 and 10 and Ebird's figure 7, step by step, and the rules of both.

A stage takes one unit of time.
"""

from collections.abc import Sequence

from latebind.domain.actions import Reply, Run
from latebind.domain.config import PolicyConfig, SchedulerConfig
from latebind.domain.costs import Curve
from latebind.domain.events import Arrived, StageDone
from latebind.scheduler import Scheduler
from latebind.simulation.workloads import Arrival
from research.lazybatching.policies import Lazy, Oracle
from research.policies import BATCHING
from tests.batching.chains import DECODER, STATIC, Timeline, chain, config, ends, request, view

A, B, C, D, E, F, G, H = range(8)


def graph(window: float, max_batch: int = 0) -> PolicyConfig:
    return PolicyConfig("graph", max_batch, window=window, shed=False)


def lazy() -> PolicyConfig:
    return PolicyConfig(BATCHING["lazy"], shed=False)


def test_figure_6_cells_are_joined_at_the_next_step_and_left_at_the_last() -> None:
    """A batch of 3 at most. Requests 1 and 2 take 5 and 4 steps; 3 joins at 1; 4 only when somebody has left."""
    model = chain(DECODER, max_batch=3)
    calls = [Arrival(time, "net", 1e3, 0, outputs=n) for time, n in ((0, 5), (0, 4), (0.5, 6), (0.6, 10), (3.5, 9))]
    whole, cells = (
        Timeline(config(policy, model)) for policy in (graph(0), PolicyConfig(BATCHING["cellular"], shed=False))
    )
    whole.run(calls)
    answered = ends(cells.run(calls))
    assert [requests for _, _, requests in cells.ran[:6]] == [
        (1,),
        (1, 2, 3),
        (1, 2, 3),
        (1, 2, 3),
        (1, 2, 3),
        (3, 4, 5),
    ]
    assert answered[1] == answered[2] == 5
    assert [requests for _, _, requests in whole.ran[:6]] == [(1,)] * 5 + [(2, 3, 4)]


def test_figure_8_newcomers_catch_up_and_both_go_on_as_one() -> None:
    """Five nodes. Requests 1 and 2 have run A and B when 3 to 5 come at 6; all five run C to E together."""
    timeline = Timeline(config(lazy(), chain(*(STATIC,) * 5)))
    timeline.run([Arrival(4, "net", 1e3, 4, rows=2), Arrival(5.5, "net", 1e3, 4, rows=3)])
    every = (1, 2, 3, 4, 5)
    assert timeline.ran == [
        (4, A, (1, 2)),
        (5, B, (1, 2)),
        (6, A, (3, 4, 5)),
        (7, B, (3, 4, 5)),
        (8, C, every),
        (9, D, every),
        (10, E, every),
    ]


def test_equation_1_and_2_count_everybody_alone_and_whole() -> None:
    """Figure 10: eight nodes, a target of 30, two units waited: 20 are left. So two more, of eight each, fit."""
    seen, model = view(chain(*(STATIC,) * 8), request(1, arrived=0, due=30, started=2), stage=2)
    waiting = [request(number, arrived=4, due=34) for number in (2, 3, 4)]
    assert Lazy(PolicyConfig()).fitting(seen, model, waiting[:1], 4) == 1
    assert Lazy(PolicyConfig()).fitting(seen, model, waiting, 4) == 2


def test_by_equation_2_waiting_before_the_start_counts_and_time_since_does_not() -> None:
    """Two of eight seconds need sixteen. Of twenty, who starts at 3 has seventeen left, who starts at 5 fifteen."""
    for started, fits in ((3, 1), (5, 0)):
        seen, model = view(chain(*(STATIC,) * 8), request(1, arrived=0, due=20, started=started), stage=2)
        assert Lazy(PolicyConfig()).fitting(seen, model, [request(2, arrived=9, due=40)], 9) == fits


def test_lazy_expects_answers_as_long_as_its_share_of_those_in_training_data() -> None:
    """Nine of ten answers have at most nine steps."""
    seen, model = view(chain(DECODER, output_steps=tuple(range(1, 11))))
    for late in (0.0, 0.1):
        assert Lazy(PolicyConfig()).fitting(seen, model, [request(1, arrived=0, due=9.0 - late)], 0) == (not late)


def test_the_oracle_knows_how_long_answers_are() -> None:
    """Two together take two seconds a step. The oracle sees three steps to come, the profile ten."""
    oracle = Oracle(PolicyConfig())
    served = chain(STATIC, DECODER, output_steps=(10,), curve=Curve((1, 2), (1.0, 2.0)))
    seen, model = view(served, request(1, arrived=0, due=8, started=1, steps=1), stage=1)
    newcomer = [request(2, arrived=2, due=20)]
    assert oracle.fitting(seen, model, newcomer, 2) == 0
    oracle.lengths = {1: 3, 2: 2}
    assert oracle.fitting(seen, model, newcomer, 2) == 1


def test_where_all_wait_for_the_last_each_is_told_with_the_stage_that_first_answered_it() -> None:
    policy = PolicyConfig(BATCHING["waiting"], shed=False)
    scheduler = Scheduler(config(policy, chain(STATIC, STATIC, STATIC, hit_rates={0: 0.5, 1: 0.2})))
    scheduler.handle(Arrived("net", 1e3, (1, 2, 3), (0, 1, 2)), 0.0)
    for now, exited in ((1.0, (1,)), (2.0, (1, 2))):
        (run,) = scheduler.handle(StageDone(0, exited), now)
        assert isinstance(run, Run)
        assert run.requests == (1, 2, 3)
    replies = scheduler.handle(StageDone(0), 3.0)
    assert [(one.request, one.stage) for one in replies if isinstance(one, Reply)] == [(1, 0), (2, 1), (3, 2)]


GRANULARITIES = (1, 1, 2, 4, 8, 16)
LINEAR = Curve((1, 64), (1.0, 64.0))  # a batch takes as long as one after another


def played(
    arrivals: Sequence[Arrival],
    *,
    granularities: tuple[int, ...] = GRANULARITIES,
    at_once: int = 0,
    name: str = "elastic",
) -> list[tuple[float, tuple[int, ...]]]:
    """Return when which requests began together, counted from 1."""
    policy = PolicyConfig(BATCHING[name], shed=False)
    config = SchedulerConfig((chain(STATIC, curve=LINEAR),), len(granularities), policy, granularities, at_once)
    timeline = Timeline(config)
    timeline.run(arrivals)
    return [(time, requests) for time, _, requests in timeline.ran]


def call(time: float, rows: int = 1) -> Arrival:
    return Arrival(time, "net", 1e3, 0, rows=rows)


def numbers(first: int, last: int) -> tuple[int, ...]:
    return tuple(range(first, last + 1))


def test_figure_7_twelve_inputs_go_to_the_workers_of_eight_and_four() -> None:
    assert played([call(0.0, 12)]) == [(0.0, numbers(1, 8)), (0.0, numbers(9, 12))]


def test_figure_7_a_worker_is_idle_again_when_its_batch_has_ended() -> None:
    began = played([call(0.0, 12), call(1.0, 5), call(8.0, 8)])
    assert began[2:] == [(1.0, numbers(13, 14)), (1.0, (15,)), (1.0, (16,)), (2.0, (17,)), (8.0, numbers(18, 25))]
