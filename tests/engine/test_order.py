"""What an engine serves, and how it lies in shared memory, before anything is loaded."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from latebind.domain.errors import ConfigError
from latebind.domain.model import ModelSpec
from latebind.engine.order import LEAST_SLOTS, MOST_SLOTS, with_queries
from latebind.learned.metadata import Accuracy, write_accuracy
from latebind.program.metadata import read_model
from latebind.repository.directory import ModelDirectory
from tests.versions import add_version

QUERY = """
[nodes.first]
models = ["scale", "other"]
[outputs]
y = "first.output"
"""


@dataclass(frozen=True)
class There:
    """A model directory under the name that it is served by."""

    spec: ModelSpec
    directory: ModelDirectory


def there(root: Path, model: str, version: int, share: float, *, served: str = "") -> There:
    directory = ModelDirectory.open(add_version(root, model, version, float(version)))
    directory = write_accuracy(directory, Accuracy(share, 100))
    return There(replace(read_model(directory).spec(), name=served or model), directory)


def test_a_query_knows_of_a_split_model_how_often_its_main_version_is_right(tmp_path: Path) -> None:
    file = tmp_path / "either.query.toml"
    file.write_text(QUERY)
    main, other = there(tmp_path, "scale", 1, 0.8), there(tmp_path, "other", 1, 0.9)
    beside = there(tmp_path, "scale", 2, 0.7, served="scale:2")
    for models in ([main, beside, other], [beside, other, main]):
        served = with_queries(models, [file], 4)
        assert served.queries[0].query.nodes[0].accuracies == (0.8, 0.9)


def test_slots_that_nobody_counted_take_a_quarter_of_a_limited_memory_at_most(tmp_path: Path) -> None:
    model = there(tmp_path, "scale", 1, 0.8)
    for slots in (LEAST_SLOTS, 40, MOST_SLOTS):
        taken = with_queries([model], [], slots).bytes
        assert with_queries([model], [], None, memory=4 * taken).bytes == taken
    assert with_queries([model], [], None, memory=1).slots == LEAST_SLOTS
    assert with_queries([model], [], None).slots == with_queries([model], [], None, memory=1 << 40).slots == MOST_SLOTS
    assert with_queries([model], [], 300, memory=1).slots == 300


def test_slots_leave_something_of_the_memory_or_are_refused(tmp_path: Path) -> None:
    served = with_queries([there(tmp_path, "scale", 1, 0.8)], [], 4)
    assert served.left_of(served.bytes + 1) == 1
    with pytest.raises(ConfigError, match=f"slots for 1 models and queries take {served.bytes} of them"):
        served.left_of(served.bytes)
