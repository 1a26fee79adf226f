"""Regions of shared memory whose clients take them away again: each file is closed after its last call."""

import asyncio
import os
from pathlib import Path

import numpy as np
import pytest

from latebind.domain.errors import InvalidRequest
from latebind.server.shared_memory import Reference, Region, Regions, Registration


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "client-a").write_bytes(bytes(range(100)))
    return tmp_path


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_region_in_use_survives_its_unregistering_and_is_closed_after_its_last_call(folder: Path) -> None:
    before = open_files()
    regions = Regions(["/client-"], folder=str(folder))
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
