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

from latebind.domain.config import FrontendConfig
from latebind.domain.errors import InvalidRequest
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


@pytest.fixture
def client(sharing: Site, handle: Any) -> Iterator[Any]:
    with triton.InferenceServerClient(f"127.0.0.1:{sharing.port}") as found:
        found.register_system_shared_memory("mine", key_of(handle), 1024)
        yield found
        found.unregister_system_shared_memory()
