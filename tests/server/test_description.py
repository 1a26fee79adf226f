"""The configuration that clients read: what perf_analyzer looks for, in agreement with the metadata."""

from dataclasses import replace

import tritonclient.grpc as triton

from latebind.domain.config import DoorConfig
from latebind.domain.model import ModelSpec, TensorSpec
from latebind.server.calls import Calls
from latebind.server.description import model_config
from latebind.server.limits import Limits
from tests.server.arithmetic import SPECS
from tests.server.conftest import opened

MODELS = {spec.name: spec for spec in SPECS}
MAX_ROWS = Limits().max_rows
WORDS = ModelSpec(
    "words", "3", (TensorSpec("tokens", "int64", (40,), 0, 100),), (TensorSpec("tokens", "int64", (60,), 0),), 2, 4
)


def test_it_tells_that_answers_are_single_and_not_cached() -> None:
    config = model_config(MODELS["double"], SPECS, max_rows=MAX_ROWS)
    assert config["model_transaction_policy"] == {"decoupled": False}
    assert config["response_cache"] == {"enable": False}
    assert (config["backend"], config["dynamic_batching"]) == ("latebind", {})
    assert config["version_policy"] == {"latest": {"num_versions": 1}}


def test_a_query_is_an_ensemble_without_a_backend() -> None:
    config = model_config(MODELS["traffic"], SPECS, max_rows=MAX_ROWS)
    assert config["platform"] == "ensemble"
    assert "backend" not in config
    assert "dynamic_batching" not in config


def test_dims_are_the_shapes_of_the_metadata_without_their_batch() -> None:
    for spec in (*SPECS, WORDS):
        config, metadata = model_config(spec, SPECS, max_rows=MAX_ROWS), Calls(spec, Limits()).metadata()
        assert config["max_batch_size"] == spec.max_batch > 0
        for kind in ("input", "output"):
            tensors = config[kind]
            shapes = metadata[f"{kind}s"]
            assert isinstance(tensors, list)
            assert isinstance(shapes, list)
            assert [[-1, *tensor["dims"]] for tensor in tensors] == [tensor["shape"] for tensor in shapes]


def test_rows_that_may_be_shorter_have_no_fixed_dim() -> None:
    config = model_config(WORDS, [WORDS], max_rows=MAX_ROWS)
    assert config["input"] == [{"name": "tokens", "data_type": "TYPE_INT64", "dims": [-1]}]


def test_no_more_rows_are_announced_than_a_call_may_have() -> None:
    large = replace(WORDS, max_batch=128)
    assert model_config(large, [large], max_rows=MAX_ROWS)["max_batch_size"] == 64


def test_what_a_door_announces_it_takes() -> None:
    with opened(DoorConfig(port=0, grpc_port=0), limits=Limits(max_rows=4)) as site:
        told = site.get("/v2/models/double/config").json()["max_batch_size"]
        with triton.InferenceServerClient(f"127.0.0.1:{site.door.grpc_port}") as client:
            assert client.get_model_config("double").config.max_batch_size == told == 4 < MODELS["double"].max_batch
        rows = {"name": "x", "datatype": "FP32", "shape": [told, 16], "data": [1.0] * 16 * told}
        assert site.post("/v2/models/double/infer", {"inputs": [rows]}).status == 200
