"""What the numbers of `latebind build` mean: infinity sets no limit."""

from math import inf

import pytest

from latebind.cli.build_options import Cut, Limits, Training
from latebind.cli.numbers import MOST, in_bytes
from latebind.domain.errors import ConfigError


def test_an_amount_is_told_in_bytes_and_one_that_is_infinite_is_more_than_there_is() -> None:
    assert [in_bytes("--disk", amount, 1e9) for amount in (0.0, 0.29, 1e300, inf)] == [0, 290_000_000, MOST, MOST]
    for amount in (-1.0, float("nan")):
        with pytest.raises(ConfigError, match=f"^--disk {amount:g}: give 0 or more$"):
            in_bytes("--disk", amount, 1e9)


def test_what_is_infinite_sets_no_limit() -> None:
    assert Limits(memory=inf).cache_bytes == Training(disk=inf).disk_bytes() == MOST
    cut = Cut(min_stage_ms=inf, min_stage_mb=inf, overhead=inf)
    cut.check()
    assert (cut.stage_bytes(), cut.most_overhead()) == (MOST, None)
    assert [Cut(overhead=share).most_overhead() for share in (0.0, 0.05)] == [None, 0.05]
