"""The verbs by themselves: whatever happens to a call, its places are given back, once they were looked at."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from latebind.domain.errors import NotFound, Unavailable
from latebind.domain.model import ModelSpec, TensorSpec
from latebind.server.calls import Call
from latebind.server.gateway import AdaptationFigures, Answer, Array
from latebind.server.service import Service
from tests.server.arithmetic import Arithmetic

Rows = Mapping[str, Sequence[Array]]


def call_of(rows: int) -> Call:
    return Call((), rows, ())


async def ones(rows: Rows) -> None:
    for row in rows["x"]:
        row[...] = 1.0


class Watching:
    """An observer that keeps a copy of what it sees and how many places were taken at that time."""

    def __init__(self, gateway: Arithmetic) -> None:
        self._gateway = gateway
        self.seen: list[tuple[object, int]] = []

    def answered(self, spec: ModelSpec, rows: Rows, answer: Answer) -> None:
        self.seen.append((rows["x"][1].tolist(), self._gateway.taken))
        raise RuntimeError("an observer that fails keeps no places")

    def figures(self) -> Mapping[str, AdaptationFigures]:
        return {}

    def unwatched(self) -> str:
        return ""


def test_an_observer_sees_the_rows_in_their_places_once_the_answer_is_on_its_way() -> None:
    gateway = Arithmetic()
    observer = Watching(gateway)

    async def test() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        service = Service(gateway, observer=observer)
        answer = await service.infer(gateway.models["scalar"], call_of(2), ones)
        np.testing.assert_array_equal(answer.outputs["y"], [2.0, 2.0])
        assert not observer.seen
        await asyncio.sleep(0)
        assert observer.seen == [(1.0, 1)]
        assert gateway.taken == 0

    asyncio.run(test())


# Another version takes over while a call is on its way ----------------------------------------------------------------


def versions_of(gateway: Arithmetic, **change: Any) -> ModelSpec:
    """Have version 2 of `scalar` take over, changed like this; return version 1."""
    before = gateway.models["scalar"]
    gateway.models = {**gateway.models, "scalar": replace(before, version="2", **change)}
    return before


def test_a_call_on_its_way_is_answered_by_the_version_that_took_over() -> None:
    async def test() -> None:
        gateway = Arithmetic()
        asked = versions_of(gateway, stages=5)
        service = Service(gateway)
        answer = await service.infer(asked, call_of(1), ones)
        assert answer.spec == gateway.models["scalar"]
        assert service.reply_parameters(asked, answer)["stages"] == 5

    asyncio.run(test())


@pytest.mark.parametrize(
    ("change", "version", "error", "says"),
    [
        ({}, "1", NotFound, "no version '1': it has 2"),
        ({"inputs": (TensorSpec("x", "float64", (2,)),)}, None, Unavailable, "was replaced"),
    ],
)
def test_a_call_that_wants_its_version_or_other_tensors_is_not_answered_by_another(
    change: dict[str, Any], version: str | None, error: type[Exception], says: str
) -> None:
    async def test() -> None:
        gateway = Arithmetic()
        asked = versions_of(gateway, **change)
        with pytest.raises(error, match=says):
            await Service(gateway).infer(asked, call_of(1), ones, version=version)
        assert gateway.taken == 0

    asyncio.run(test())
