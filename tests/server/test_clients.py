"""tritonclient as its users have it, unchanged: its HTTP and its gRPC client make the same calls and get the same."""

import asyncio
import logging
import os
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from queue import Queue
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
import tritonclient.http.aio
import tritonclient.utils.shared_memory as shm
from msgspec.structs import replace
from tritonclient.utils import InferenceServerException

from tests.server.conftest import BOTH, Site, address, logging_as_before, opened
from tests.server.shelf import BROKEN

PREFIX = "latebind-test-"
X = np.arange(32, dtype=np.float32).reshape(2, 16)
OFF = {"trace_level": ["OFF"], "trace_rate": ["1000"], "trace_count": ["-1"], "log_frequency": ["0"]}
STATUSES = {
    "INVALID_ARGUMENT": "400",
    "PERMISSION_DENIED": "403",
    "NOT_FOUND": "404",
    "ALREADY_EXISTS": "409",
    "UNIMPLEMENTED": "501",
}


class Client:
    """One of tritonclient's clients, whose answers are read as its users read them."""

    def __init__(self, kind: str, site: Site) -> None:
        self.site = site
        self.library: Any = {"http": tritonclient.http, "grpc": tritonclient.grpc}[kind]
        self.is_http = kind == "http"
        where = f"127.0.0.1:{site.port}" if self.is_http else address(site)
        self.made = self.library.InferenceServerClient(where)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.made, name)

    def told(self, question: str, *given: Any) -> Any:
        """Return an answer as JSON."""
        return getattr(self.made, question)(*given, **({} if self.is_http else {"as_json": True}))

    def states(self) -> dict[str, str]:
        found = self.told("get_model_repository_index")
        return {entry["name"]: entry["state"] for entry in (found if self.is_http else found["models"])}

    def traced(self, *change: Any) -> dict[str, list[str]]:
        """Return trace settings, after a change if there is one."""
        found = self.told("update_trace_settings" if change else "get_trace_settings", *change)
        if self.is_http:
            return {key: value if isinstance(value, list) else [value] for key, value in found.items()}
        return {key: setting["value"] for key, setting in found["settings"].items()}

    def logged(self, *change: Any) -> dict[str, Any]:
        found = self.told("update_log_settings" if change else "get_log_settings", *change)
        return dict(found) if self.is_http else {k: next(iter(v.values())) for k, v in found["settings"].items()}

    def tensor(self, array: Any = X, datatype: str = "FP32") -> Any:
        found = self.library.InferInput("x", list(array.shape), datatype)
        found.set_data_from_numpy(array)
        return found

    def shared(self, size: int = X.nbytes, offset: int = 0, *, truths: bool = False) -> Any:
        shape, datatype = ([1, 3], "BOOL") if truths else ([2, 16], "FP32")
        found = self.library.InferInput("x", shape, datatype)
        found.set_shared_memory("mine", size, offset)
        return found

    def to_memory(self, size: int = X.nbytes, offset: int = 512) -> Any:
        found = self.library.InferRequestedOutput("y")
        found.set_shared_memory("mine", size, offset)
        return found


def refusal(call: Callable[[], object]) -> tuple[str, str]:
    """Return the HTTP status for what a client raises, and the text."""
    with pytest.raises(InferenceServerException) as caught:
        call()
    status = str(caught.value.status()).removeprefix("StatusCode.")
    return STATUSES.get(status, status), str(caught.value.message())


@pytest.fixture(scope="module")
def everything() -> Iterator[Site]:
    with logging_as_before(), opened(replace(BOTH, manage=True, shared_memory=(PREFIX,))) as found:
        yield found


@pytest.fixture(params=["http", "grpc"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def client(kind: str, everything: Site) -> Iterator[Client]:
    """A client of a frontend with everything turned on."""
    found = Client(kind, everything)
    yield found
    found.close()
    assert everything.taken == 0


@pytest.fixture
def plain(kind: str, site: Site) -> Iterator[Client]:
    """A client of a frontend as it is by default."""
    found = Client(kind, site)
    yield found
    found.close()


def test_they_read_health_and_metadata(plain: Client) -> None:
    assert plain.is_server_live()
    assert plain.is_server_ready()
    assert plain.is_model_ready("double", "1")
    assert not plain.is_model_ready("none")
    told = plain.told("get_server_metadata")
    assert told["name"] == "latebind"
    assert not {"model_repository", "system_shared_memory"} & set(told["extensions"])
    (x,) = plain.told("get_model_metadata", "double", "1")["inputs"]
    assert (x["name"], x["datatype"], [int(size) for size in x["shape"]]) == ("x", "FP32", [-1, 16])
    assert refusal(lambda: plain.get_model_metadata("none"))[0] == "404"
    stats = plain.told("get_inference_statistics")["model_stats"]
    assert {one["name"] for one in stats} == set(plain.states())


def test_they_infer(plain: Client) -> None:
    result = plain.infer("double", [plain.tensor()], request_id="7", timeout=60_000_000, priority=1)
    np.testing.assert_array_equal(result.as_numpy("y"), X * 2)
    best = plain.library.InferRequestedOutput("y", class_count=3)
    rows = plain.infer("double", [plain.tensor()], outputs=[best]).as_numpy("y")
    assert [[int(text.split(b":")[1]) for text in row] for row in rows] == [[15, 14, 13]] * 2


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False])
def test_http_infers_in_json_and_binary(site: Site, binary_in: bool, binary_out: bool) -> None:
    async def talk() -> list[Any]:
        async with tritonclient.http.aio.InferenceServerClient(f"127.0.0.1:{site.port}") as client:
            calls = []
            for i in range(20):
                given = tritonclient.http.InferInput("x", [2, 16], "FP32")
                given.set_data_from_numpy(X + i, binary_data=binary_in)
                wanted = tritonclient.http.InferRequestedOutput("y", binary_data=binary_out)
                calls.append(client.infer("double", [given], outputs=[wanted]))
            return await asyncio.gather(*calls)

    for i, result in enumerate(asyncio.run(talk())):
        np.testing.assert_array_equal(result.as_numpy("y"), (X + i) * 2)


def test_grpc_streams_calls_and_errors_in_their_order(site: Site) -> None:
    client, answers = Client("grpc", site), Queue[tuple[Any, Any]]()
    client.start_stream(partial(_put, answers))
    for i in range(40):
        client.async_stream_infer("double", [client.tensor(X + i)], request_id=str(i))
    client.async_stream_infer("none", [client.tensor()], request_id="wrong")
    client.async_stream_infer("double", [client.tensor()], request_id="last", enable_empty_final_response=True)
    found = [answers.get(timeout=60.0) for _ in range(42)]
    client.stop_stream()
    assert [result.get_response().id for result, _ in found[:40]] == [str(i) for i in range(40)]
    assert [result.as_numpy("y")[0, 0] for result, _ in found[:40]] == [2.0 * i for i in range(40)]
    assert "no model 'none'" in str(found[40][1])
    assert found[41][0].get_response().parameters["triton_final_response"].bool_param
    client.start_stream(partial(_put, answers), headers={"triton_grpc_error": "true"})  # errors end this one
    client.async_stream_infer("double", [client.tensor()])
    client.async_stream_infer("none", [client.tensor()])
    assert answers.get(timeout=60.0)[1] is None
    assert answers.get(timeout=60.0)[1].status() == "StatusCode.NOT_FOUND"
    client.stop_stream()
    client.close()


def _put(answers: "Queue[tuple[Any, Any]]", result: Any, error: Any) -> None:
    answers.put((result, error))


# What clients change --------------------------------------------------------------------------------------------------


def test_models_go_and_come_back_with_the_queries_that_need_them(client: Client) -> None:
    client.unload_model("half")
    assert client.states()["half"] == "UNAVAILABLE"
    assert not client.is_model_ready("half")
    client.load_model("half")
    assert client.states()["half"] == "READY"
    assert refusal(lambda: client.unload_model("scalar")) == ("400", "traffic needs scalar: unload that first")
    client.unload_model("scalar", unload_dependents=True)
    assert {client.states()[name] for name in ("scalar", "traffic")} == {"UNAVAILABLE"}
    client.load_model("scalar")
    client.load_model("traffic")
    status, text = refusal(lambda: client.load_model("none"))
    assert (status, "no model 'none'" in text) == ("404", True)
    assert refusal(lambda: client.load_model("crashing")) == ("400", BROKEN)
    for upload in ({"config": "{}"}, {"files": {"file:1/model.pt": b"AAAA"}, "config": "{}"}):
        status, text = refusal(partial(client.load_model, "half", **upload))
        assert (status, "there instead of sending it" in text) == ("400", True)


def test_nothing_changes_unless_the_operator_lets_clients(plain: Client) -> None:
    for change in (plain.load_model, plain.unload_model):
        status, text = refusal(partial(change, "half"))
        assert (status, "--manage" in text) == ("403", True)
    assert plain.states()["half"] == "READY"


def test_trace_settings_are_read_and_changed(client: Client) -> None:
    assert client.traced() == OFF
    changed = client.traced("double", {"trace_level": ["TIMESTAMPS"], "trace_rate": "1"})
    assert changed == client.traced("double") == {**OFF, "trace_level": ["TIMESTAMPS"], "trace_rate": ["1"]}
    assert client.traced() == client.traced("half") == OFF
    assert client.traced(None, {"trace_count": "5"})["trace_count"] == ["5"]
    assert client.traced("double", {"trace_level": None, "trace_rate": None})["trace_count"] == ["5"]
    assert client.traced(None, {"trace_count": None}) == OFF
    assert refusal(lambda: client.update_trace_settings("none", {"trace_rate": "1"}))[0] == "404"
    assert refusal(lambda: client.update_trace_settings("double", {"color": "red"}))[0] == "400"
    assert "trace_rate" in refusal(lambda: client.update_trace_settings(None, {"trace_rate": "often"}))[1]


def test_log_settings_are_read_and_changed(client: Client) -> None:
    changed = client.logged({"log_info": False, "log_verbose_level": 1})
    assert (changed["log_info"], int(changed["log_verbose_level"])) == (False, 1)
    assert client.logged()["log_format"] == "default"
    assert "log_format" in refusal(lambda: client.update_log_settings({"log_format": "ISO8601"}))[1]
    client.logged({"log_info": True, "log_verbose_level": 0})
    assert logging.getLogger("latebind").level == logging.INFO


# Shared memory --------------------------------------------------------------------------------------------------------


@pytest.fixture
def handle(client: Client) -> Iterator[Any]:
    """A registered region of tritonclient's own, of 1024 bytes, with `X` at 0."""
    key = f"/{PREFIX}{uuid.uuid4()}"
    found = shm.create_shared_memory_region("mine", key, 1024, create_only=True)
    shm.set_shared_memory_region(found, [X])
    client.register_system_shared_memory("mine", key, 1024)
    yield found
    client.unregister_system_shared_memory()
    shm.destroy_shared_memory_region(found)


def test_tensors_come_from_shared_memory_and_go_there(client: Client, handle: Any) -> None:
    result = client.infer("double", [client.shared()], outputs=[client.to_memory()])
    if client.is_http:
        assert result.get_output("y") == {"name": "y", "datatype": "FP32", "shape": [2, 16]}
    else:
        assert list(result.get_response().raw_output_contents) == [b""]
    np.testing.assert_array_equal(shm.get_contents_as_numpy(handle, np.float32, [2, 16], offset=512), X * 2)
    np.testing.assert_array_equal(shm.get_contents_as_numpy(handle, np.float32, [2, 16]), X)
    np.testing.assert_array_equal(client.infer("double", [client.shared()]).as_numpy("y"), X * 2)


def test_rows_of_any_length_come_from_shared_memory_and_their_answers_go_there(client: Client, handle: Any) -> None:
    for length in (1, 5, 9):
        given = client.library.InferInput("x", [1, 2, length], "FP32")
        given.set_shared_memory("mine", 8 * length)
        client.infer("sound", [given], outputs=[client.to_memory(8 * length)])
        found = shm.get_contents_as_numpy(handle, np.float32, [2 * length], offset=512)
        np.testing.assert_array_equal(found, X.flatten()[: 2 * length] * 2)
    given.set_shared_memory("mine", 16)
    assert "need 72" in refusal(lambda: client.infer("sound", [given]))[1]


def test_places_that_do_not_fit_are_refused_and_nothing_is_kept(client: Client, handle: Any) -> None:
    for given, wanted, reason in (
        (client.shared(size=64), None, "need 128"),
        (client.shared(offset=1000), None, "go beyond region"),
        (client.shared(), client.to_memory(size=64), "needs 128 bytes"),
        (client.shared(), client.to_memory(offset=1000), "go beyond region"),
    ):
        outputs = None if wanted is None else [wanted]
        status, text = refusal(partial(client.infer, "double", [given], outputs=outputs))
        assert (status, reason in text) == ("400", True), text
    shm.set_shared_memory_region(handle, [np.array([7], np.uint8)])
    assert "a byte above 1" in refusal(lambda: client.infer("invert", [client.shared(3, truths=True)]))[1]


def test_a_region_that_shrinks_under_the_server_does_not_kill_it(client: Client, handle: Any) -> None:
    file = "/dev/shm/" + handle._shm_key.removeprefix("/")
    os.truncate(file, 0)
    for wanted in (None, [client.to_memory()]):
        assert "was shortened" in refusal(partial(client.infer, "double", [client.shared()], outputs=wanted))[1]
    os.truncate(file, 1024)
    assert client.site.is_well()


def test_names_and_keys_that_are_none_are_refused(client: Client, handle: Any) -> None:
    register = client.register_system_shared_memory
    assert refusal(lambda: register("mine", f"/{PREFIX}a", 1))[0] == "409"
    assert "not allowed" in refusal(lambda: register("other", "/passwd", 1))[1]
    assert "give it 1 to 256" in refusal(lambda: register("r" * 257, f"/{PREFIX}a", 1))[1]


def test_shared_memory_is_off_and_says_so_and_there_is_none_of_cuda(plain: Client) -> None:
    plain.unregister_system_shared_memory()
    for call in (
        lambda: plain.register_system_shared_memory("mine", f"{PREFIX}x", 10),
        lambda: plain.infer("double", [plain.shared()]),
    ):
        assert refusal(call)[0] == "403"
    assert plain.told("get_cuda_shared_memory_status") in ([], {})
    plain.unregister_cuda_shared_memory()
    status, text = refusal(lambda: plain.register_cuda_shared_memory("mine", b"aGFuZGxl", 0, 10))
    assert (status, "not served" in text) == ("501", True)
