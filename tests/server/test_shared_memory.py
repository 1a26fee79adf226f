"""Shared memory of clients: tritonclient's calls, and clients that name what is not theirs or take it away again."""

import asyncio
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException

from latebind.domain.config import FrontendConfig
from latebind.domain.errors import InvalidRequest
from latebind.server.gateway import Array
from latebind.server.limits import Limits
from latebind.server.shared_memory import Reference, Region, Regions, Registration
from tests.server.conftest import Site, opened

PREFIX = "latebind-test-"
X = np.arange(32, dtype=np.float32).reshape(2, 16)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "client-a").write_bytes(bytes(range(100)))
    (tmp_path / "other").write_bytes(bytes(100))
    return tmp_path


def regions_in(folder: Path, limits: Limits | None = None) -> Regions:
    return Regions(["/client-"], limits, folder=str(folder))


def read(regions: Regions, reference: Reference, size: int) -> Array:
    found = np.zeros(size, np.uint8)
    asyncio.run(regions.place(reference).read_into([found[:5], found[5:]]))
    return found


# What may be registered ---------------------------------------------------------------------------------------------


KEYS = ["", "/", "other", "/other", "client-", "client-a/..", "../client-a", "//client-a", "client-a\0", "client-none"]
KEYS += ["client-folder", "client-link", "client-pipe", "/dev/shm/client-a", "client-" + "a" * 300, "client-ä", "."]


# Clients that change their minds ------------------------------------------------------------------------------------


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_region_in_use_survives_its_unregistering_and_is_closed_after_its_last_call(folder: Path) -> None:
    before = open_files()
    regions = regions_in(folder)
    regions.register("r", Registration("client-a", 50))
    place = regions.place(Reference("r", 8))
    regions.unregister()
    found = np.zeros(8, np.uint8)
    asyncio.run(place.read_into([found]))
    assert found.tolist() == list(range(8))
    assert open_files() == before + 1
    del place
    assert open_files() == before


def test_a_file_that_is_refused_is_closed(folder: Path) -> None:
    before = open_files()
    for size in (101, 200):
        with pytest.raises(InvalidRequest):
            Region(Registration("client-a", size), str(folder))
    assert open_files() == before


def test_a_file_that_shrinks_fails_the_call_and_stays_as_it_is(folder: Path) -> None:
    regions = regions_in(folder)
    regions.register("r", Registration("client-a", 100))
    os.truncate(folder / "client-a", 60)
    for attempt in (
        lambda: read(regions, Reference("r", 20, 50), 20),
        lambda: regions.place(Reference("r", 20, 50)).write(memoryview(bytes(20))),
        lambda: regions.place(Reference("r", 20, 80)).write(memoryview(bytes(20))),
    ):
        with pytest.raises(InvalidRequest, match="lost memory"):
            attempt()
    assert (folder / "client-a").read_bytes() == bytes(range(60))


# Over HTTP ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sharing() -> Iterator[Site]:
    with opened(FrontendConfig(port=0, shared_memory=(PREFIX,))) as found:
        yield found


@pytest.fixture
def handle() -> Iterator[Any]:
    """A region of tritonclient's own, of 1024 bytes, with `X` at 0."""
    found = shm.create_shared_memory_region("mine", f"/{PREFIX}{uuid.uuid4()}", 1024, create_only=True)
    shm.set_shared_memory_region(found, [X])
    yield found
    shm.destroy_shared_memory_region(found)


def key_of(handle: Any) -> str:
    (key,) = [name for name in os.listdir("/dev/shm") if name == handle._shm_key.removeprefix("/")]
    return str(key)


def referring(offset: int = 0, size: int = X.nbytes) -> Any:
    found = triton.InferInput("x", [2, 16], "FP32")
    found.set_shared_memory("mine", size, offset)
    return found


def to_memory(size: int = X.nbytes, offset: int = 512, **options: Any) -> Any:
    found = triton.InferRequestedOutput("y", **options)
    found.set_shared_memory("mine", size, offset)
    return found


@pytest.fixture
def client(sharing: Site, handle: Any) -> Iterator[Any]:
    with triton.InferenceServerClient(f"127.0.0.1:{sharing.port}") as found:
        found.register_system_shared_memory("mine", key_of(handle), 1024)
        yield found
        found.unregister_system_shared_memory()


def test_inputs_come_from_shared_memory_and_outputs_go_there(client: Any, handle: Any) -> None:
    output = client.infer("double", [referring()], outputs=[to_memory()]).get_output("y")
    assert output == {"name": "y", "datatype": "FP32", "shape": [2, 16]}
    np.testing.assert_array_equal(shm.get_contents_as_numpy(handle, np.float32, [2, 16], offset=512), X * 2)
    np.testing.assert_array_equal(shm.get_contents_as_numpy(handle, np.float32, [2, 16]), X)


def test_places_that_do_not_fit_are_refused_and_nothing_is_kept(client: Any, sharing: Site) -> None:
    cases: list[tuple[Any, Any, str]] = [
        (referring(size=64), None, "ask for 128"),
        (referring(offset=1000), None, "go beyond"),
        (referring(), to_memory(size=64), "is to take 128 bytes"),
        (referring(), to_memory(offset=1000), "go beyond"),
    ]
    for given, wanted, reason in cases:
        with pytest.raises(InferenceServerException, match=reason) as caught:
            client.infer("double", [given], outputs=None if wanted is None else [wanted])
        assert caught.value.status() == "400"
    assert sharing.taken == 0


def test_a_region_that_shrinks_under_the_server_does_not_kill_it(client: Any, handle: Any, sharing: Site) -> None:
    os.truncate(f"/dev/shm/{key_of(handle)}", 0)
    for wanted in (None, [to_memory()]):
        with pytest.raises(InferenceServerException, match="lost memory"):
            client.infer("double", [referring()], outputs=wanted)
    os.truncate(f"/dev/shm/{key_of(handle)}", 1024)
    assert sharing.is_well()


def test_it_is_off_and_says_so_unless_the_operator_turns_it_on(site: Site, sharing: Site) -> None:
    assert "system_shared_memory" not in site.get("/v2").json()["extensions"]
    assert "system_shared_memory" in sharing.get("/v2").json()["extensions"]
    with triton.InferenceServerClient(f"127.0.0.1:{site.port}") as client:
        assert client.get_system_shared_memory_status() == []
        client.unregister_system_shared_memory()
        with pytest.raises(InferenceServerException, match="off") as caught:
            client.register_system_shared_memory("mine", f"{PREFIX}x", 10)
        assert caught.value.status() == "403"
        with pytest.raises(InferenceServerException, match="off") as caught:
            client.infer("double", [referring()])
        assert caught.value.status() == "403"


def test_there_is_no_cuda_shared_memory_but_tidying_up_works(site: Site) -> None:
    with triton.InferenceServerClient(f"127.0.0.1:{site.port}") as client:
        assert client.get_cuda_shared_memory_status() == []
        client.unregister_cuda_shared_memory()
        client.unregister_cuda_shared_memory("mine")
        with pytest.raises(InferenceServerException, match="not served") as caught:
            client.register_cuda_shared_memory("mine", b"handle", 0, 10)
        assert caught.value.status() == "501"


def test_a_region_without_a_name_or_with_a_long_one_is_refused(sharing: Site, handle: Any) -> None:
    registration = {"key": key_of(handle), "byte_size": 10}
    assert "1 to 256" in sharing.post(f"/v2/systemsharedmemory/region/{'r' * 257}/register", registration).error
    assert sharing.post("/v2/systemsharedmemory/region//register", registration).status == 404
    assert sharing.get("/v2/systemsharedmemory/status").json() == []
