"""The OpenAPI description: nothing is left out, and what schemathesis makes of it is answered as it says."""

import json
import os
import re
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.checks import content_type_conformance
from schemathesis.specs.openapi.checks import response_schema_conformance, status_code_conformance

from latebind.domain.config import FrontendConfig
from latebind.domain.errors import InvalidRequest
from latebind.server.rest.openapi import document
from latebind.server.rest.routes import ROUTES
from latebind.server.settings import Traces
from tests.server.conftest import PATIENCE, Site, logging_as_before, opened

THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"
CASES = settings(max_examples=2000 if THOROUGH else 80, deadline=None, suppress_health_check=list(HealthCheck))
CHECKS = [status_code_conformance, content_type_conformance, response_schema_conformance]
MODELS = ["double", "pair", "scalar", "half", "invert", "traffic", "echo", "none"]
DOCUMENT: Any = document(ROUTES)
TENSOR = {
    "name": {"enum": ["x", "a"]},
    "datatype": {"enum": ["FP32", "FP64"]},
    "shape": {"enum": [[1], [2], [1, 16]]},
    "data": {"type": "array", "items": {"type": "number"}, "minItems": 1, "maxItems": 2},
}


@pytest.fixture(scope="module")
def sharing() -> Iterator[Site]:
    with logging_as_before(), opened(FrontendConfig(port=0, shared_memory=("latebind-test-",))) as found:
        yield found


NUMBERS = ["-1", "0", "1", "9" * 9, "9" * 10, "9" * 18, "9" * 19, "-2", "-0", "01", "1.5", "", "+1", "1\n", " 1", "x"]


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("setting", ["trace_rate", "trace_count"])
def test_a_trace_setting_is_taken_where_the_description_says_so(setting: str, number: str) -> None:
    pattern = DOCUMENT["components"]["schemas"]["TraceChange"]["properties"][setting]["pattern"]
    traces = Traces()
    try:
        traces.update({setting: number})
        taken = traces.as_dict()[setting] == number
    except InvalidRequest:
        taken = False
    described = re.search(pattern.replace("$", r"\Z"), number) is not None  # as JSON Schema means it
    assert taken is described


def schema() -> Any:
    """The description, of names and shapes that there are; of all that there might be, next to none is one."""
    described = json.loads(json.dumps(DOCUMENT))
    parts = described["components"]
    parts["parameters"]["model"]["schema"] = {"enum": MODELS}
    parts["parameters"]["region"]["schema"] = {"enum": ["a", "b"]}
    parts["schemas"]["InputTensor"]["properties"] |= TENSOR
    parts["schemas"]["GenerateRequest"] |= {"required": ["x"]}
    parts["schemas"]["GenerateRequest"]["properties"] |= {"x": {"enum": [21, [5, 8, 2], list(range(16))]}}
    return schemathesis.openapi.from_dict(described)


def cases() -> st.SearchStrategy[Any]:
    operations = [result.ok() for result in schema().get_all_operations()]
    modes = (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE)
    made = [operation.as_strategy(generation_mode=mode) for operation in operations for mode in modes[:1]]
    made += [operation.as_strategy(generation_mode=modes[1]) for operation in operations if operation.body]
    return st.one_of(made)


@pytest.mark.timeout(900)  # thoroughly it takes some minutes
def test_what_is_made_from_the_description_is_answered_as_it_says(sharing: Site) -> None:
    statuses: dict[int, int] = {}

    @CASES
    @given(cases())
    def check(case: Any) -> None:
        response = case.call(base_url=f"http://127.0.0.1:{sharing.port}", timeout=PATIENCE)
        statuses[response.status_code] = statuses.get(response.status_code, 0) + 1
        case.validate_response(response, checks=CHECKS)
        assert response.status_code < 500 or response.status_code in (501, 503, 504)

    check()
    assert statuses.get(200), "nothing that was made was answered"
    assert sharing.is_well()
    assert sharing.taken == 0


@pytest.mark.parametrize("name", ["%20", "a%2Fb", "%FF", "-"])
def test_a_name_that_nothing_can_have_is_told_in_the_form_of_the_api_that_was_called(sharing: Site, name: str) -> None:
    tei, openai = sharing.post(f"/models/{name}/embed", {}), sharing.get(f"/v1/models/{name}")
    assert (tei.status, openai.status) == (404, 404)
    assert set(tei.json()) == {"error", "error_type"}
    assert set(openai.json()["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("tokens", [[], [[]], [1, 2], [[1, 2], [3]], [[-1]], [1 << 70]])
def test_tokens_are_refused_where_a_model_reads_texts_in_a_way_of_its_own(sharing: Site, tokens: list[Any]) -> None:
    refused = sharing.post("/classify", {"model": "reads", "input": tokens})
    assert (refused.status, sharing.taken) == (400, 0)
    assert "send" in refused.json()["error"]["message"]
