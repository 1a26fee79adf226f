"""Sequence models over the engine's process: rows of any length in, rows trimmed to the longest answer out.

`test_policies` asks for many sentences at once.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from latebind.domain.config import EngineConfig, PolicyConfig
from latebind.engine.order import EngineOrder
from latebind.repository.listing import find_models
from tests.engine.started import Started, started
from tests.sequences import backwards, rows_of


@pytest.fixture
def engine(models: Path) -> Iterator[Started]:
    (path,) = find_models(models, ["backwards"])
    with started(EngineOrder((str(path),), EngineConfig(), PolicyConfig("lazy+"))) as found:
        yield found


def test_a_call_of_several_rows_has_answers_as_wide_as_the_longest(engine: Started) -> None:
    sentences = [[3, 4], [5], [6, 7, 8, 9, 10]]

    async def test() -> None:
        rows = {"tokens": rows_of(sentences, 5).numpy()}
        answer = await engine.client.infer("backwards", rows, deadline=time.monotonic() + 30)
        found = answer.outputs["tokens"]
        assert found.shape == (3, 6)
        assert [[word for word in row if word] for row in found.tolist()] == [backwards(words) for words in sentences]

    engine.run(test())
