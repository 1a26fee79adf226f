"""Calls that change what is served or name memory of the machine: keys, offsets, repositories and settings that lie."""

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from latebind.domain.config import FrontendConfig
from tests.server.bodies import DOUBLE, request
from tests.server.conftest import Site, logging_as_before, opened
from tests.server.hostile.wire import check_clean

PREFIX = "latebind-hostile-"
SHARED = Path("/dev/shm")
REGION = "/v2/systemsharedmemory/region"
SOUND = "/v2/models/sound/infer"

pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason="needs shared memory with names, at /dev/shm")


@pytest.fixture(scope="module")
def managed() -> Iterator[Site]:
    with logging_as_before(), opened(FrontendConfig(port=0, shared_memory=(PREFIX,), manage=True)) as found:
        yield found
        assert found.is_well()
        assert found.taken == 0


@pytest.fixture(scope="module")
def key() -> Iterator[str]:
    """The key of a kilobyte of shared memory that clients may name, beside one that they may not."""
    mine, other = (SHARED / f"{prefix}{uuid.uuid4()}" for prefix in (PREFIX, "other-"))
    for file in (mine, other):
        file.write_bytes(b"secret!!" * 128)
    yield f"/{mine.name}"
    mine.unlink()
    other.unlink()


@pytest.fixture(scope="module")
def region(managed: Site, key: str) -> str:
    """A region of that memory, of 100 bytes from the 10th on."""
    reply = managed.post(f"{REGION}/mine/register", {"key": key, "offset": 10, "byte_size": 100})
    assert reply.status == 200
    return "mine"


KEYS: list[Any] = ["", "/", "/other-memory", "../../etc/passwd", "/etc/passwd", "/proc/self/mem", 1, None]
KEYS += [f"/{PREFIX}{rest}" for rest in ("", "none", "/../../etc/passwd", "/x", "x\0", "x\n", "*", "a" * 10_000)]
KEYS += [[f"/{PREFIX}x"], f"//{PREFIX}x", "/latebind\u2010hostile-x", "/memfd:latebind-slots"]


@pytest.mark.parametrize("given", KEYS, ids=[ascii(key)[:40] for key in KEYS])
def test_a_key_that_is_not_the_clients_is_refused_and_not_told(managed: Site, given: Any) -> None:
    reply = managed.post(f"{REGION}/evil/register", {"key": given, "byte_size": 8})
    assert reply.status == 400
    text = check_clean(reply)
    assert PREFIX not in text
    assert managed.get(f"{REGION}/evil/status").status == 404


NUMBERS: list[dict[str, Any]] = [{}, *({"byte_size": size} for size in (0, -8, 2**63, 2**64, 1025, 8.5, "8", True))]
NUMBERS += [{"byte_size": 8, "offset": offset} for offset in (-8, 1017, 2**63, None)]
NUMBERS += [{"byte_size": 16, "offset": 2**64 - 8}]


@pytest.mark.parametrize("given", NUMBERS, ids=map(str, NUMBERS))
def test_bytes_that_the_memory_does_not_have_cannot_be_registered(
    managed: Site, key: str, given: dict[str, Any]
) -> None:
    reply = managed.post(f"{REGION}/evil/register", {"key": key, **given})
    assert reply.status in {400, 413}
    check_clean(reply)


def at(size: object = 64, offset: object = 0, region: object = "mine", **more: object) -> dict[str, Any]:
    place = {"shared_memory_region": region, "shared_memory_byte_size": size, "shared_memory_offset": offset, **more}
    return {key: value for key, value in place.items() if value is not None}


REFERENCES: dict[str, dict[str, Any]] = {
    "a region that is not there": at(region="none"),
    "the key for a region": at(region=f"/{PREFIX}x"),
    "a region without a size": at(None),
    "a size without a region": at(region=None),
    "another size than the tensor's": at(63),
    "a size below zero": at(-64),
    "a size of 2 to the 63": at(2**63),
    "an offset below zero": at(offset=-10),
    "an offset past the end": at(offset=37),
    "an offset that overflows": at(offset=2**64 - 32),
    "an offset that is a text": at(offset="0"),
    "a region that is a number": at(region=1),
    "bytes in the body too": at(binary_data_size=64),
}


@pytest.mark.parametrize("given", REFERENCES.values(), ids=REFERENCES.keys())
def test_a_tensor_outside_of_its_region_is_refused(managed: Site, region: str, given: dict[str, Any]) -> None:
    tensor = {"name": "x", "shape": [1, 16], "datatype": "FP32", "parameters": given}
    reply = managed.post(DOUBLE, request(tensor))
    assert 400 <= reply.status < 500
    check_clean(reply)
    if "binary_data_size" not in given:
        whole = {"name": "x", "shape": [1, 16], "datatype": "FP32", "data": [0] * 16}
        reply = managed.post(DOUBLE, request(whole, outputs=[{"name": "y", "parameters": given}]))
        assert 400 <= reply.status < 500
        check_clean(reply)


def test_rows_of_several_sizes_lie_in_one_region(managed: Site) -> None:
    shapes = (1, 2, 3), (2, 2, 9), (3, 2, 1)
    calls = [np.arange(np.prod(shape), dtype=np.float32).reshape(shape) + 1 for shape in shapes]
    given = b"".join([rows.tobytes() for rows in calls])
    file = SHARED / f"{PREFIX}{uuid.uuid4()}"
    file.write_bytes(given + bytes(len(given)))
    try:
        whole = {"key": f"/{file.name}", "byte_size": 2 * len(given)}
        assert managed.post(f"{REGION}/rows/register", whole).status == 200
        offset = 0
        for rows in calls:
            for less in ((0, 0), (8, 0), (0, 8)):
                given_at = at(rows.nbytes - less[0], offset, "rows")
                told_at = at(rows.nbytes - less[1], len(given) + offset, "rows")
                tensor = {"name": "x", "shape": rows.shape, "datatype": "FP32", "parameters": given_at}
                reply = managed.post(SOUND, request(tensor, outputs=[{"name": "y", "parameters": told_at}]))
                if any(less):
                    assert str(rows.nbytes) in reply.error
                else:
                    assert reply.json()["outputs"][0]["shape"] == list(rows.shape)
            offset += rows.nbytes
        assert file.read_bytes() == given + b"".join([(2 * rows).tobytes() for rows in calls])
        managed.post(f"{REGION}/rows/unregister", b"")
    finally:
        file.unlink()


def test_there_are_only_so_many_regions(managed: Site, key: str) -> None:
    names = [f"many-{i}" for i in range(300)]
    replies = [managed.post(f"{REGION}/{name}/register", {"key": key, "byte_size": 8}) for name in names]
    refused = [reply for reply in replies if reply.status != 200]
    for name in names:
        managed.post(f"{REGION}/{name}/unregister", b"")
    assert all(reply.status == 413 for reply in refused)
    assert refused


LOADS = ["..%2f..%2fetc", "%2e%2e", ".hidden", "-rf", "a%00b", "a%0ab", "a" * 200, "%c3%a9", "~", "$HOME", "*"]


@pytest.mark.parametrize("name", LOADS)
def test_a_model_of_an_odd_name_is_neither_loaded_nor_unloaded(managed: Site, name: str) -> None:
    for verb in ("load", "unload"):
        for repository in ("", "/other"):
            reply = managed.post(f"/v2/repository{repository}/models/{name}/{verb}", {})
            assert reply.status in {400, 404}
            check_clean(reply)
