"""Steps of queries between the scheduler, who looks into tensors and staging."""

import logging
import os
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from latebind.domain.actions import Branch, Map, Outcome, Reply, Run, StepEnded
from latebind.domain.config import SchedulerConfig
from latebind.domain.events import Arrived, Branched, MapFailed, Mapped
from latebind.domain.model import ModelSpec, StepSpec
from latebind.domain.query import NOT_RUN, Node, Query, lay_out
from latebind.engine.device_pool import DeviceStaging
from latebind.engine.slots import SlotMemory, create_file, file_bytes
from latebind.engine.staging import HostStaging
from latebind.engine.steps import Steps
from tests.models import SCORES, VECTOR, served

SLOTS = 4
NODES = (Node("gate", ("gate",), (1.0,)), Node("cars", ("gate", "cars"), (0.5, 1.0), (0,), ((0,),), guarded=True))
SPEC = ModelSpec("traffic", "1", (VECTOR,), (SCORES,), 2, 4, steps=tuple(StepSpec(n.name, n.models) for n in NODES))
CONFIG = SchedulerConfig((served("gate"), served("cars")), queries=(Query(SPEC, NODES),), slots=SLOTS)
ROWS = lay_out(["gate", "cars"], CONFIG.queries, SLOTS)
REQUEST, SLOT = 10, 2


class Copying:
    """Hands the input of a query on to each of its steps; slot 3 raises."""

    def __init__(self, memory: SlotMemory) -> None:
        self._slots = memory.by_name

    def map(self, action: Map) -> None:
        if 3 in action.slots:
            raise ValueError("no such picture")
        if action.node < len(NODES):
            option = action.chosen[action.node]
            model = NODES[action.node].models[option]
            for slot in action.slots:
                row = ROWS.row("traffic", action.node, option, slot)
                self._slots[model].inputs[0][row] = self._slots["traffic"].inputs[0][slot]

    def branch(self, action: Branch) -> tuple[tuple[bool, ...], ...]:
        inputs = self._slots["traffic"].inputs[0]
        return tuple([tuple([bool(inputs[slot, node] > 0) for node in action.nodes]) for slot in action.slots])


@pytest.fixture
def memory() -> SlotMemory:
    specs = [*(model.spec for model in CONFIG.models), SPEC]
    fd = create_file()
    os.ftruncate(fd, file_bytes(specs, ROWS.total))
    found = SlotMemory(fd, specs, ROWS.total)
    os.close(fd)
    found.by_name["traffic"].inputs[0][SLOT] = np.arange(4.0)
    return found


@pytest.fixture
def staging(memory: SlotMemory) -> Iterator[DeviceStaging]:
    """On the processor, whose streams do all at once: what a device would do of it."""
    found = DeviceStaging(["gate", "cars"], memory, torch.device("cpu"))
    yield found
    found.close()


@pytest.fixture
def steps(memory: SlotMemory, staging: DeviceStaging) -> Steps:
    return Steps(CONFIG, Copying(memory), staging, memory.owners)


def test_the_inputs_of_a_step_are_on_their_way_to_the_device_once_they_are_written(
    steps: Steps, staging: DeviceStaging
) -> None:
    chosen = (0, 1)
    assert steps.perform(Map("traffic", (REQUEST,), (SLOT,), 1, chosen)) == [Mapped((REQUEST,), 1)]
    row = ROWS.row("traffic", 1, 1, SLOT)
    (rows,) = staging.stream().inputs(Run(0, "cars", 0, (REQUEST + 2,), (row,)))
    assert rows.tolist() == [[0.0, 1.0, 2.0, 3.0]]


def test_conditions_are_judged_in_their_order(steps: Steps) -> None:
    told = steps.perform(Branch("traffic", (REQUEST,), (SLOT,), (1, 0), (NOT_RUN, NOT_RUN)))
    assert told == [Branched((REQUEST,), (1, 0), ((True, False),))]


def test_what_raises_fails_this_request_and_the_log_says_in_which_step(
    steps: Steps, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        assert steps.perform(Map("traffic", (REQUEST,), (3,), 1, (0, 1))) == [MapFailed((REQUEST,), (1,))]
        assert steps.perform(Map("traffic", (REQUEST,), (3,), 2, (0, 1))) == [MapFailed((REQUEST,), (2,))]
    assert caplog.messages == [
        "mapping step 'cars' of traffic failed for request 10",
        "mapping the outputs of traffic failed for request 10",
    ]
    assert "no such picture" in caplog.text


def test_a_row_on_the_device_is_free_when_its_step_has_ended(steps: Steps, staging: DeviceStaging) -> None:
    steps.perform(Map("traffic", (REQUEST,), (SLOT,), 0, (0, NOT_RUN)))
    assert staging.staged([REQUEST + 1])
    steps.step_ended(StepEnded("traffic", REQUEST, 0, 0, "gate", Outcome.ANSWERED, 2, 0.0, 0.1, 0.2, 0.1))
    with pytest.raises(KeyError):
        staging.staged([REQUEST + 1])


def test_steps_that_were_mapped_and_never_began_give_their_rows_back_with_their_query(
    steps: Steps, staging: DeviceStaging
) -> None:
    for _ in range(100):  # many more than there are rows
        for node, chosen in enumerate([(0, NOT_RUN), (0, 1)]):
            steps.perform(Map("traffic", (REQUEST,), (SLOT,), node, chosen))
        steps.ended(Reply(REQUEST, "traffic", Outcome.CANCELLED, -1, 0.0, 0.0))


def test_the_inputs_of_a_query_itself_are_not_brought_anywhere(steps: Steps, staging: DeviceStaging) -> None:
    steps.arrived(Arrived("traffic", 1.0, (REQUEST,), (SLOT,)))
    steps.arrived(Arrived("gate", 1.0, (99,), (0,)))
    with pytest.raises(KeyError):
        staging.staged([REQUEST])
    assert staging.staged([99])


class Deaf(HostStaging):
    """Fails whoever tells it anything."""

    def arrived(self, event: Arrived) -> None:
        raise AssertionError(f"told of {event}")

    def ended(self, request: int) -> None:
        raise AssertionError(f"told that {request} has ended")


def test_staging_that_hears_of_nothing_is_told_of_nothing(memory: SlotMemory) -> None:
    steps = Steps(CONFIG, Copying(memory), Deaf(["gate", "cars"], memory), memory.owners)
    steps.arrived(Arrived("cars", 1.0, (1,), (0,)))
    assert steps.perform(Map("traffic", (REQUEST,), (SLOT,), 1, (0, 1))) == [Mapped((REQUEST,), 1)]
    steps.step_ended(StepEnded("traffic", REQUEST, 1, 1, "cars", Outcome.ANSWERED, 0, 0.0, 0.1, 0.2, 0.1))
    steps.ended(Reply(REQUEST, "traffic", Outcome.ANSWERED, 1, 0.0, 0.1))


def test_where_one_of_several_raises_the_others_are_done(steps: Steps, caplog: pytest.LogCaptureFixture) -> None:
    several = Map("traffic", (10, 20, 30), (SLOT, 3, 0), 1, (0, 1))
    told = steps.perform_all([several, Branch("traffic", (40,), (SLOT,), (1,), (0, NOT_RUN))])
    assert told == [
        Mapped((10,), 1, more=True),
        MapFailed((20,), (1,), more=True),
        Mapped((30,), 1, more=True),
        Branched((40,), (1,), ((True,),)),
    ]
    assert caplog.messages == ["mapping step 'cars' of traffic failed for request 20"]
