"""The configuration that clients read: what perf_analyzer looks for, in agreement with the metadata."""

from latebind.domain.model import ModelSpec, TensorSpec
from latebind.server.description import metadata, model_config
from latebind.server.limits import Limits
from tests.server.arithmetic import SPECS

MAX_ROWS = Limits().max_rows
WORDS = ModelSpec(
    "words", "3", (TensorSpec("tokens", "int64", (40,), 0, 100),), (TensorSpec("tokens", "int64", (60,), 0),), 2, 4
)


def test_dims_are_the_shapes_of_the_metadata_without_their_batch() -> None:
    for spec in (*SPECS, WORDS):
        config, told = model_config(spec, SPECS, max_rows=MAX_ROWS), metadata(spec)
        assert config["max_batch_size"] == spec.max_batch > 0
        for kind in ("input", "output"):
            tensors = config[kind]
            shapes = told[f"{kind}s"]
            assert isinstance(tensors, list)
            assert isinstance(shapes, list)
            assert [[-1, *tensor["dims"]] for tensor in tensors] == [tensor["shape"] for tensor in shapes]


def test_rows_that_may_be_shorter_have_no_fixed_dim() -> None:
    config = model_config(WORDS, [WORDS], max_rows=MAX_ROWS)
    assert config["input"] == [{"name": "tokens", "data_type": "TYPE_INT64", "dims": [-1]}]
