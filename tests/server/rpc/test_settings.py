"""Shared memory, trace and log settings by tritonclient's gRPC client."""

import logging
import uuid
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.utils.shared_memory as shm
from msgspec.structs import replace
from tritonclient.utils import InferenceServerException

from tests.server.conftest import Site, opened
from tests.server.rpc.conftest import GRPC, X, address
from tests.server.test_shared_memory import PREFIX

HALF = X.nbytes


@pytest.fixture(scope="module")
def sharing() -> Iterator[Site]:
    with opened(replace(GRPC, shared_memory=(PREFIX,))) as found:
        yield found


@pytest.fixture
def client(sharing: Site) -> Iterator[Any]:
    with triton.InferenceServerClient(address(sharing)) as found:
        yield found
        found.unregister_system_shared_memory()


@pytest.fixture
def region(client: Any) -> Iterator[Any]:
    """A registered region, with X in its first half."""
    key = f"/{PREFIX}{uuid.uuid4().hex}"
    found = shm.create_shared_memory_region("region", key, 2 * HALF)
    shm.set_shared_memory_region(found, [X])
    client.register_system_shared_memory("region", key, 2 * HALF)
    yield found
    shm.destroy_shared_memory_region(found)


def in_region(size: int = HALF, offset: int = 0) -> Any:
    found = triton.InferInput("x", list(X.shape), "FP32")
    found.set_shared_memory("region", size, offset)
    return found


def test_tensors_come_and_go_in_shared_memory(client: Any, region: Any) -> None:
    wanted = triton.InferRequestedOutput("y")
    wanted.set_shared_memory("region", HALF, HALF)
    result = client.infer("double", [in_region()], outputs=[wanted])
    np.testing.assert_array_equal(shm.get_contents_as_numpy(region, np.float32, X.shape, HALF), X * 2)
    assert list(result.get_response().raw_output_contents) == [b""]
    np.testing.assert_array_equal(client.infer("double", [in_region()]).as_numpy("y"), X * 2)


def test_places_that_are_none_are_refused(client: Any, region: Any) -> None:
    for place, reason in ((in_region(HALF - 4), "asks? for 128"), (in_region(HALF, HALF + 4), "go beyond region")):
        with pytest.raises(InferenceServerException, match=reason) as caught:
            client.infer("double", [place])
        assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"
    with pytest.raises(InferenceServerException, match="already"):
        client.register_system_shared_memory("region", f"/{PREFIX}a", 1)
    with pytest.raises(InferenceServerException, match="not allowed"):
        client.register_system_shared_memory("other", "/passwd", 1)
    for name in ("", "r" * 257, "r" * (1 << 20)):
        with pytest.raises(InferenceServerException, match="give it 1 to 256") as caught:
            client.register_system_shared_memory(name, f"/{PREFIX}a", 1)
        assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"


def test_values_in_shared_memory_are_checked(client: Any, region: Any) -> None:
    shm.set_shared_memory_region(region, [np.array([7], np.uint8)])
    truths = triton.InferInput("x", [1, 3], "BOOL")
    truths.set_shared_memory("region", 3)
    with pytest.raises(InferenceServerException, match="a byte above 1"):
        client.infer("invert", [truths])


def test_trace_settings_are_read_and_changed(client: Any) -> None:
    assert client.get_trace_settings(as_json=True)["settings"]["trace_level"] == {"value": ["OFF"]}
    changed = client.update_trace_settings("double", {"trace_level": ["TIMESTAMPS"], "trace_rate": "5"}, as_json=True)
    assert changed["settings"]["trace_rate"] == {"value": ["5"]}
    assert client.get_trace_settings("double").settings["trace_level"].value == ["TIMESTAMPS"]
    given_back = client.update_trace_settings("double", {"trace_level": None, "trace_rate": None})
    assert given_back.settings["trace_level"].value == ["OFF"]
    with pytest.raises(InferenceServerException, match="trace_rate"):
        client.update_trace_settings(settings={"trace_rate": "often"})


def test_log_settings_are_read_and_changed(client: Any) -> None:
    try:
        changed = client.update_log_settings({"log_info": False, "log_verbose_level": 1}).settings
        assert (changed["log_info"].bool_param, changed["log_verbose_level"].uint32_param) == (False, 1)
        assert client.get_log_settings().settings["log_format"].string_param == "default"
        with pytest.raises(InferenceServerException, match="log_format"):
            client.update_log_settings({"log_format": "ISO8601"})
    finally:
        client.update_log_settings({"log_info": True, "log_verbose_level": 0})
    assert logging.getLogger("latebind").level == logging.INFO
