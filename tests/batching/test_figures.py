"""The timelines of LazyBatching's figures 4, 6, 7, 8 and 10, step by step. A stage takes one unit of time."""

from latebind.batching.request import Request
from latebind.batching.table import BatchTable, SubBatch
from latebind.domain.config import PolicyConfig
from latebind.simulation.workloads import Arrival
from tests.batching.chains import DECODER, STATIC, Timeline, chain, config, ends, play

A, B, C, D, E, F, G, H = range(8)


def graph(window: float, max_batch: int = 0) -> PolicyConfig:
    return PolicyConfig("graph", max_batch, window=window, shed=False)


def lazy() -> PolicyConfig:
    return PolicyConfig("lazy", shed=False)


def starts(timeline: Timeline) -> list[tuple[float, tuple[int, ...]]]:
    return [(time, requests) for time, stage, requests in timeline.ran if stage == 0]


def test_figure_4_a_longer_window_helps_only_if_someone_comes_meanwhile() -> None:
    """Requests 2 and 3 come at 4 and 12; five nodes. Windows of 2 and 4 only delay; one of 16 batches all three."""
    model = chain(*(STATIC,) * 5)
    assert starts(play(graph(2), model, [0, 4, 12])) == [(2, (1,)), (7, (2,)), (14, (3,))]
    assert starts(play(graph(4), model, [0, 4, 12])) == [(4, (1,)), (9, (2,)), (16, (3,))]
    assert starts(play(graph(16), model, [0, 4, 12])) == [(16, (1, 2, 3))]


def test_figure_6_cells_are_joined_at_the_next_step_and_left_at_the_last() -> None:
    """A batch of 3 at most. Requests 1 and 2 take 5 and 4 steps; 3 joins at 1; 4 only when somebody has left."""
    model = chain(DECODER, max_batch=3)
    calls = [Arrival(time, "net", 1e3, 0, outputs=n) for time, n in ((0, 5), (0, 4), (0.5, 6), (0.6, 10), (3.5, 9))]
    whole, cells = (Timeline(config(policy, model)) for policy in (graph(0), PolicyConfig("cellular", shed=False)))
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


def test_figure_7_layers_that_are_not_recurrent_make_cellular_batching_graph_batching() -> None:
    model = chain(STATIC, STATIC, DECODER)
    calls = [Arrival(0, "net", 1e3, 2, outputs=4, rows=2), Arrival(2.5, "net", 1e3, 2, outputs=4, rows=3)]
    timelines = [Timeline(config(PolicyConfig(name, shed=False), model)) for name in ("cellular", "graph")]
    for timeline in timelines:
        timeline.run(calls)
    assert starts(timelines[0]) == starts(timelines[1]) == [(0, (1, 2)), (6, (3, 4, 5))]


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


def test_figure_10_the_timeline_of_three_requests() -> None:
    timeline = play(lazy(), chain(*(STATIC,) * 8), [2, 3.5, 4.5])
    assert timeline.ran == [
        (2, A, (1,)),
        (3, B, (1,)),
        (4, A, (2,)),
        (5, A, (3,)),
        (6, B, (2, 3)),
        (7, C, (1, 2, 3)),
        (8, D, (1, 2, 3)),
        (9, E, (1, 2, 3)),
        (10, F, (1, 2, 3)),
        (11, G, (1, 2, 3)),
        (12, H, (1, 2, 3)),
    ]


def test_figure_10_the_stack_after_each_push_and_merge() -> None:
    spec = chain(*(STATIC,) * 8).spec
    table = BatchTable()

    def rows() -> list[tuple[tuple[int, ...], int]]:
        return [(tuple(entry.members), entry.stage) for entry in table.entries]

    def push(number: int, now: float) -> None:
        table.push(SubBatch(spec, {number: Request(number, "net", number, 1e3, now)}), now)

    def run(now: float) -> None:
        table.top.advance()
        table.settle(table.top, now)

    push(1, 2)
    assert rows() == [((1,), A)]
    run(3)
    run(4)
    push(2, 4)
    assert rows() == [((1,), C), ((2,), A)]
    run(5)
    push(3, 5)
    assert rows() == [((1,), C), ((2,), B), ((3,), A)]
    run(6)
    assert rows() == [((1,), C), ((2, 3), B)]
    run(7)
    assert rows() == [((1, 2, 3), C)]
    first = table.top.members[1]
    assert (first.preempted, first.delayed) == (1, 3)


def test_continuous_batching_never_comes_between_stages_that_run_once() -> None:
    timeline = Timeline(config(PolicyConfig("continuous", shed=False), chain(STATIC, STATIC, DECODER)))
    timeline.run([Arrival(0, "net", 1e3, 2, outputs=3), Arrival(0.5, "net", 1e3, 2, outputs=1)])
    assert [(stage, requests) for _, stage, requests in timeline.ran[:3]] == [(0, (1,)), (1, (1,)), (0, (2,))]


def test_in_stage_queues_who_is_short_of_time_goes_first() -> None:
    """The newcomer would be run before the deepest goes on; then the first, due after three more seconds, is late."""
    for due, first in ((4.5, True), (100.0, False)):
        timeline = Timeline(config(PolicyConfig("queues", shed=False), chain(*(STATIC,) * 4, max_batch=8)))
        timeline.run([Arrival(0, "net", due, 3), Arrival(0.5, "net", 100.0, 3, rows=4)])
        assert (timeline.ran[1][2] == (1,)) is first
