"""Sizes as people write them, and what is said of a name that nothing has."""

import pytest

from latebind.domain.errors import ConfigError
from latebind.domain.wording import FEW, instead, size

MODELS = ("pictures", "resnet56", "tabular")


@pytest.mark.parametrize(
    ("asked", "meant"),
    [("tabullar", "tabular"), ("tabluar", "tabular"), ("ResNet-56", "resnet56"), ("resnet", "resnet56")],
)
def test_a_slip_is_answered_by_the_name_that_was_meant(asked: str, meant: str) -> None:
    assert instead(asked, MODELS) == f": did you mean {meant!r}?"


@pytest.mark.parametrize("asked", ["", "translator", "x" * 100_000])
def test_a_name_that_is_like_no_other_is_answered_by_those_that_there_are(asked: str) -> None:
    assert instead(asked, MODELS) == ": there are pictures, resnet56, tabular"


def test_one_and_none_and_many_are_told_as_such() -> None:
    assert instead("x", ["scale"]) == ": there is scale"
    assert instead("x", []) == ": there is none"
    many = [f"model-{number}" for number in range(10_000)]
    assert instead("x", many) == f": there are {', '.join(many[:FEW])} and others"


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
