"""Queries as a client of the frontend sees them: a model of the kind "ensemble" whose answers tell of steps."""

from tests.server.bodies import request
from tests.server.conftest import Site, scalar

TRAFFIC = "/v2/models/traffic/infer"


def test_an_answer_tells_who_answered_each_step_where_it_left_and_what_it_took(site: Site) -> None:
    reply = site.post(TRAFFIC, request(scalar(21.0))).json()
    assert reply["outputs"][0]["data"] == [42.0]
    assert reply["parameters"] == {
        "steps": "gate,cars",
        "gate.model": "scalar",
        "gate.left_at": 1,
        "gate.stages": 3,
        "gate.budget_ms": 50.0,
        "gate.spent_ms": 20.0,
        "cars.model": "double",
        "cars.left_at": 2,
        "cars.stages": 3,
        "cars.budget_ms": 30.0,
        "cars.spent_ms": 12.346,
        "cars.fidelity": 0.97,
    }


def test_its_configuration_lists_each_model_that_may_answer_a_step(site: Site) -> None:
    config = site.get("/v2/models/traffic/config").json()
    assert (config["name"], config["platform"], config["max_batch_size"]) == ("traffic", "ensemble", 8)
    assert config["input"] == [{"name": "x", "data_type": "TYPE_FP64", "dims": []}]
    assert "dynamic_batching" not in config
    steps = config["ensemble_scheduling"]["step"]
    assert [(step["model_name"], step["model_version"]) for step in steps] == [
        ("scalar", "1"),
        ("double", "1"),
        ("scalar", "1"),
    ]
    assert [step["input_map"] for step in steps] == [{"x": "x"}, {"x": "cars.inputs.x"}, {"x": "cars.inputs.x"}]
    assert [step["output_map"] for step in steps] == [{"y": "gate.y"}, {"y": "cars.y"}, {"y": "cars.y"}]
