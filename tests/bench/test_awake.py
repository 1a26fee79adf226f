"""Cores are kept awake by a number in a file that stays open, and only where that is wanted and allowed."""

from pathlib import Path

import pytest

from latebind.bench.awake import kept_awake
from latebind.domain.errors import ConfigError


def holders(file: Path) -> int:
    """Return how many descriptors of this process are open on a file."""
    return sum(link.resolve() == file for link in Path("/proc/self/fd").iterdir())


def test_no_waiting_for_cores_is_asked_for_as_long_as_it_lasts(tmp_path: Path) -> None:
    device = tmp_path / "latency"
    device.write_bytes(b"")
    with kept_awake(device=device):
        assert device.read_bytes() == bytes(4)
        assert holders(device) == 1
    assert holders(device) == 0


def test_nothing_is_touched_unless_it_is_wanted(tmp_path: Path) -> None:
    with kept_awake(False, device=tmp_path / "missing"):
        pass


def test_where_it_is_not_allowed_the_error_says_what_to_do(tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigError, match=r"missing.*no such file.*leave --awake out"),
        kept_awake(device=tmp_path / "missing"),
    ):
        pytest.fail("it began without the device")
