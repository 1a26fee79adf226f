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
import tritonclient.http.aio as triton_aio
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException

from latebind.domain.config import DoorConfig
from latebind.domain.errors import ConfigError, Exists, InvalidRequest, NotFound, TooLarge, TurnedOff
from latebind.server.gateway import Array
from latebind.server.limits import Limits
from latebind.server.shared_memory import Reference, Region, Regions, Registration
from tests.server.bodies import DOUBLE, request
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


def test_a_region_is_read_and_written_at_its_own_offset_and_the_tensors(folder: Path) -> None:
    regions = regions_in(folder)
    regions.register("r", Registration("/client-a", 50, offset=10))
    assert regions.status() == regions.status("r") == [{"name": "r", "key": "/client-a", "byte_size": 50, "offset": 10}]
    assert read(regions, Reference("r", 8, 2), 8).tolist() == list(range(12, 20))
    regions.place(Reference("r", 4, 46)).write(memoryview(b"abc"))
    assert (folder / "client-a").read_bytes() == bytes([*range(56), *b"abc", *range(59, 100)])


KEYS = ["", "/", "other", "/other", "client-", "client-a/..", "../client-a", "//client-a", "client-a\0", "client-none"]
KEYS += ["client-folder", "client-link", "client-pipe", "/dev/shm/client-a", "client-" + "a" * 300, "client-ä", "."]


@pytest.mark.parametrize("key", KEYS)
def test_a_key_that_is_not_allowed_or_no_plain_file_is_refused_and_not_repeated(folder: Path, key: str) -> None:
    (folder / "client-folder").mkdir()
    (folder / "client-link").symlink_to(folder / "other")
    os.mkfifo(folder / "client-pipe")
    with pytest.raises(InvalidRequest, match="this key") as caught:
        regions_in(folder).register("r", Registration(key, 10))
    assert len(key) < 4 or key not in str(caught.value)


@pytest.mark.parametrize(
    ("size", "offset"),
    [(0, 0), (-1, 0), (101, 0), (1, 100), (50, 51), (10, -1), (2**63, 0), (1, 2**63), (2**64, 2**64), (10**40, 0)],
)
def test_numbers_beyond_the_file_are_refused(folder: Path, size: int, offset: int) -> None:
    with pytest.raises((InvalidRequest, TooLarge)):
        regions_in(folder).register("r", Registration("client-a", size, offset))


@pytest.mark.parametrize(
    ("size", "offset"), [(None, 0), (-1, 0), (51, 0), (1, 50), (26, 25), (1, -1), (2**64, 0), (1, 2**64), (-5, 10)]
)
def test_a_tensor_beyond_its_region_is_refused(folder: Path, size: int | None, offset: int) -> None:
    regions = regions_in(folder)
    regions.register("r", Registration("client-a", 50, 50))
    with pytest.raises(InvalidRequest):
        regions.place(Reference("r", size, offset))


def test_there_are_so_many_regions_and_no_larger_ones(folder: Path) -> None:
    regions = regions_in(folder, Limits(regions=2, region_bytes=60))
    for name in "ab":
        regions.register(name, Registration("client-a", 60))
    with pytest.raises(TooLarge, match="2 regions already"):
        regions.register("c", Registration("client-a", 1))
    regions.unregister("a")
    with pytest.raises(TooLarge, match="at most 60"):
        regions.register("c", Registration("client-a", 61))


def test_a_name_is_used_once(folder: Path) -> None:
    regions = regions_in(folder)
    regions.register("r", Registration("client-a", 10))
    with pytest.raises(Exists):
        regions.register("r", Registration("client-a", 20))
    assert regions.status()[0]["byte_size"] == 10


@pytest.mark.parametrize("name", ["", "r" * 257, "r" * (1 << 20)], ids=len)
def test_a_name_that_is_none_or_too_long_is_refused_and_not_repeated(folder: Path, name: str) -> None:
    regions = regions_in(folder)
    with pytest.raises(InvalidRequest, match=f"has {len(name)} characters: give it 1 to 256") as caught:
        regions.register(name, Registration("client-a", 10))
    assert len(str(caught.value)) < 200
    regions.register("r" * 256, Registration("client-a", 10))
    assert len(regions.status()) == 1


def test_what_is_not_registered_is_not_there(folder: Path) -> None:
    regions = regions_in(folder)
    regions.unregister("r")
    for ask in (lambda: regions.status("r"), lambda: regions.place(Reference("r", 1))):
        with pytest.raises(NotFound):
            ask()


def test_without_prefixes_nothing_can_be_registered_or_used(folder: Path) -> None:
    regions = Regions(folder=str(folder))
    assert not regions.on
    assert regions.status() == []
    for attempt in (lambda: regions.register("r", Registration("client-a", 1)), lambda: regions.place(Reference("r"))):
        with pytest.raises(TurnedOff, match="--shared-memory"):
            attempt()


@pytest.mark.parametrize("prefix", ["", "/", "//a", "../a", "a/b", " "])
def test_a_prefix_that_allows_everything_is_no_setting(prefix: str) -> None:
    with pytest.raises(ConfigError, match="shared_memory"):
        DoorConfig(shared_memory=(prefix,))


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
    with opened(DoorConfig(port=0, shared_memory=(PREFIX,))) as found:
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


def test_shared_memory_on_one_side_mixes_with_binary_data_on_the_other(client: Any, handle: Any) -> None:
    np.testing.assert_array_equal(client.infer("double", [referring()]).as_numpy("y"), X * 2)
    sent = triton.InferInput("x", [2, 16], "FP32")
    sent.set_data_from_numpy(X + 1)
    client.infer("double", [sent], outputs=[to_memory()])
    np.testing.assert_array_equal(shm.get_contents_as_numpy(handle, np.float32, [2, 16], offset=512), X * 2 + 2)


def test_one_input_may_lie_in_memory_and_another_follow(client: Any, handle: Any) -> None:
    a, b = triton.InferInput("a", [2, 2, 2], "FP32"), triton.InferInput("b", [2, 3], "INT64")
    a.set_shared_memory("mine", 32)
    b.set_data_from_numpy(np.ones((2, 3), np.int64))
    found = client.infer("pair", [a, b])
    assert found.as_numpy("sum").tolist() == [9.0, 25.0]


def test_classes_go_to_shared_memory_too(client: Any, handle: Any, sharing: Site) -> None:
    place = {"shared_memory_region": "mine", "shared_memory_byte_size": 100, "shared_memory_offset": 512}
    asked = [{"name": "y", "parameters": {"classification": 1, **place}}]
    (output,) = sharing.post(DOUBLE, request(outputs=asked)).json()["outputs"]
    assert output == {"name": "y", "datatype": "BYTES", "shape": [1, 1]}
    assert shm.get_contents_as_numpy(handle, np.object_, [1], offset=512).tolist() == [b"30.000000:15"]


def test_the_asynchronous_client_shares_memory_too(client: Any, sharing: Site) -> None:
    async def ask() -> Any:
        async with triton_aio.InferenceServerClient(f"127.0.0.1:{sharing.port}") as other:
            assert len(await other.get_system_shared_memory_status("mine")) == 1
            return await other.infer("double", [referring()])

    np.testing.assert_array_equal(asyncio.run(ask()).as_numpy("y"), X * 2)


def test_regions_are_told_and_forgotten(client: Any, handle: Any) -> None:
    (told,) = client.get_system_shared_memory_status()
    assert told == {"name": "mine", "key": key_of(handle), "offset": 0, "byte_size": 1024}
    with pytest.raises(InferenceServerException, match="already"):
        client.register_system_shared_memory("mine", key_of(handle), 1024)
    client.unregister_system_shared_memory("mine")
    assert client.get_system_shared_memory_status() == []
    with pytest.raises(InferenceServerException, match="no shared memory region"):
        client.infer("double", [referring()])


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


def test_values_from_shared_memory_are_checked_like_others(client: Any, handle: Any) -> None:
    shm.set_shared_memory_region(handle, [np.full(3, 7, np.uint8)], offset=900)
    truths = triton.InferInput("x", [1, 3], "BOOL")
    truths.set_shared_memory("mine", 3, 900)
    with pytest.raises(InferenceServerException, match="byte above 1"):
        client.infer("invert", [truths])


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


@pytest.mark.parametrize("body", [{}, {"key": 1, "byte_size": 1}, {"key": "a", "byte_size": "1"}, [], {"byte_size": 1}])
def test_a_registration_that_is_none_is_a_clear_400(sharing: Site, body: object) -> None:
    assert "not what this call takes" in sharing.post("/v2/systemsharedmemory/region/r/register", body).error
