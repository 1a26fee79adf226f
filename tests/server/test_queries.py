"""Queries as a client of the door sees them: a model of the kind "ensemble" whose answers tell of steps."""

from typing import Any

import numpy as np
import tritonclient.http as triton

from latebind.domain.config import DoorConfig

from .bodies import request
from .conftest import Site, opened, scalar

TRAFFIC = "/v2/models/traffic/infer"


def test_it_says_that_it_is_an_ensemble(site: Site) -> None:
    assert site.get("/v2/models/traffic").json() == {
        "name": "traffic",
        "versions": ["1"],
        "platform": "ensemble",
        "inputs": [{"name": "x", "datatype": "FP64", "shape": [-1]}],
        "outputs": [{"name": "y", "datatype": "FP64", "shape": [-1]}],
    }


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
    }


def test_rows_that_took_different_steps_are_told_of_in_lists(site: Site) -> None:
    given = {"name": "x", "shape": [3], "datatype": "FP64", "data": [-1, 1, -2]}
    told = site.post(TRAFFIC, request(given)).json()["parameters"]
    assert told["steps"] == ["gate", "gate,cars", "gate"]
    assert told["gate.model"] == ["scalar"] * 3
    assert told["cars.model"] == [None, "double", None]
    assert told["cars.spent_ms"] == [None, 12.346, None]


def test_the_operator_can_hide_the_steps() -> None:
    with opened(DoorConfig(port=0, show_exit=False)) as site:
        assert "parameters" not in site.post(TRAFFIC, request(scalar(1.0))).json()


def test_who_asks_is_told_which_step_raised(site: Site) -> None:
    reply = site.post("/v2/models/jammed/infer", request(scalar(1.0)))
    assert reply.status == 500
    assert reply.json() == {"error": "step 'gate' of jammed raised"}


def test_a_query_has_its_own_deadline() -> None:
    with opened(deadlines={"traffic": 100.0}) as site:
        site.post(TRAFFIC, request(scalar(1.0)))
        site.post("/v2/models/scalar/infer", request(scalar(1.0)))
        of_query, of_model = site.gateway.deadlines
        assert of_query - of_model > 90.0


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


def test_a_model_has_a_configuration_too(site: Site) -> None:
    config = site.get("/v2/models/pair/versions/1/config").json()
    assert config["platform"] == "latebind"
    assert config["output"] == [
        {"name": "sum", "data_type": "TYPE_FP64", "dims": []},
        {"name": "b", "data_type": "TYPE_INT64", "dims": [3]},
    ]
    assert "ensemble_scheduling" not in config
    assert site.get("/v2/models/none/config").status == 404


def test_tritonclient_takes_it_for_a_model(site: Site) -> None:
    with triton.InferenceServerClient(f"127.0.0.1:{site.port}") as client:
        given: Any = triton.InferInput("x", [2], "FP64")
        given.set_data_from_numpy(np.array([1.0, -2.0]))
        result = client.infer("traffic", [given], timeout=2_000_000)
        assert result.as_numpy("y").tolist() == [2.0, -4.0]
        assert result.get_response()["parameters"]["steps"] == ["gate,cars", "gate"]
        assert client.get_model_config("traffic")["platform"] == "ensemble"
