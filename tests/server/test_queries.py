"""Queries as a client of the frontend sees them: a model of the kind "ensemble" whose answers tell of steps."""

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio

from tests.querying import rows_going, traffic
from tests.server.bodies import request
from tests.server.conftest import Site, scalar
from tests.server.real import real_frontend

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


# With a real engine behind the frontend -----------------------------------------------------------------------------


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 200))


def test_tritonclient_gets_what_the_models_of_a_query_would_answer(queried: Path) -> None:
    async def test() -> None:
        rows = rows_going([0, 1])
        async with (
            real_frontend(queried, "traffic") as (_, frontend),
            triton_aio.InferenceServerClient(f"127.0.0.1:{frontend.port}") as client,
        ):
            given: Any = triton.InferInput("x", [2, 8], "FP32")
            given.set_data_from_numpy(rows)
            result = await client.infer("traffic", [given])
            np.testing.assert_allclose(result.as_numpy("scores"), traffic(rows), rtol=1e-4, atol=1e-5)
            told = result.get_response()["parameters"]
            assert told["steps"] == ["gate,cars", "gate,animals"]
            assert told["cars.model"] == ["cars", None]
            assert told["animals.left_at"] == [None, told["animals.stages"][1] - 1]
            config = await client.get_model_config("traffic")
            steps = [step["model_name"] for step in config["ensemble_scheduling"]["step"]]
            assert steps == ["gate", "small", "cars", "animals"]
            assert config["ensemble_scheduling"]["step"][3]["input_map"] == {"x": "x"}

    run(test())
