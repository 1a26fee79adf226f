"""Sizes as people write them."""

import pytest

from latebind.domain.errors import ConfigError
from latebind.domain.wording import size


@pytest.mark.parametrize(
    ("written", "bytes_"),
    [("500MB", 500_000_000), ("2GiB", 2 << 30), ("1.5 kib", 1536), ("4096", 4096), ("7b", 7), ("1tb", 10**12)],
)
def test_units_of_ten_and_of_two_are_read(written: str, bytes_: int) -> None:
    assert size("--memory", written) == bytes_


@pytest.mark.parametrize("written", ["", "GB", "-1GB", "1 gallon", "2G", "1,5GB", "9" * 300])
def test_what_is_no_size_is_refused_with_the_option_and_an_example(written: str) -> None:
    with pytest.raises(ConfigError, match=r"--memory .*2GiB"):
        size("--memory", written)
