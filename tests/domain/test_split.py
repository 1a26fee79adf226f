"""Splits: what their texts say, that shares are kept to a request, and that keys stay with their versions."""

import pytest

from latebind.domain.config import RepositoryConfig
from latebind.domain.errors import ConfigError
from latebind.domain.split import Chooser, Split, public_name


def test_a_text_says_which_versions_answer_and_which_are_asked_aside() -> None:
    split = Split.read("resnet=1:90,2:10,3:shadow")
    assert (split.model, split.shares, split.shadows) == ("resnet", {"1": 90.0, "2": 10.0}, ("3",))
    assert split.served == {"1": "resnet", "2": "resnet:2", "3": "resnet:3"}
    assert Split.of("resnet", split.written()) == split
    assert public_name("resnet:2") == public_name("resnet") == "resnet"
    assert Split.of("resnet", "2").shares == {"2": 100.0}
    assert Split.of("resnet", "1,2:shadow").shadows == ("2",)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("resnet", "name the model"),
        ("=1:90,2:10", "name the model"),
        ("resnet=1:90,2:20", "comes to 110 %"),
        ("resnet=1:90", "comes to 90 %"),
        ("resnet=1,2", "comes to 200 %"),
        ("resnet=1:shadow", "comes to 0 %"),
        ("resnet=1:-10,2:110", "gives version 1 -10 %"),
        ("resnet=1:nan", "gives version 1 nan %"),
        ("resnet=1:50,1:50", "has version 1 twice"),
        ("resnet=1:100,1:shadow", "has version 1 twice"),
        ("resnet=1:,2:100", "write it as"),
        ("resnet=v1:100", "write it as"),
        ("resnet=1:most", "write it as"),
        ("resnet=²:100", "write it as"),
        ("resnet=", "write it as"),
    ],
)
def test_what_is_no_split_is_refused_with_what_to_write(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Split.read(text)


def test_a_model_has_one_split() -> None:
    assert [split.model for split in RepositoryConfig(split=("a=1", "b=1:50,2:50")).splits()] == ["a", "b"]
    with pytest.raises(ConfigError, match="names 'a' twice"):
        RepositoryConfig(split=("a=1", "a=2"))


@pytest.mark.parametrize("text", ["1:90,2:10", "1:33.3,2:33.3,3:33.4", "1:0,2:100", "1:0.5,2:99.5"])
def test_after_any_number_of_requests_no_version_is_a_request_away_from_its_share(text: str) -> None:
    chooser = Chooser(Split.of("resnet", text))
    counts = dict.fromkeys(chooser.split.shares, 0)
    for number in range(1, 2001):
        counts[chooser.version()] += 1
        for version, share in chooser.split.shares.items():
            assert abs(counts[version] - number * share / 100.0) < 1.0 + 1e-6


def test_a_key_has_its_version_again_and_keys_have_the_shares() -> None:
    chooser = Chooser(Split.of("resnet", "1:80,2:20"))
    keys = [f"user-{number}" for number in range(4000)]
    first = {key: chooser.version(key) for key in keys}
    assert {key: chooser.version(key) for key in reversed(keys)} == first
    assert sum(version == "2" for version in first.values()) / len(keys) == pytest.approx(0.2, abs=0.03)
    assert {Chooser(Split.of("other", "1:80,2:20")).version(key) == first[key] for key in keys} == {True, False}


def test_a_version_that_gets_more_keeps_the_keys_that_it_had() -> None:
    before, after = Chooser(Split.of("resnet", "1:90,2:10")), Chooser(Split.of("resnet", "1:50,2:50"))
    for number in range(1000):
        if before.version(str(number)) == "2":
            assert after.version(str(number)) == "2"


def test_the_same_versions_in_another_order_keep_their_names() -> None:
    before = Split.of("resnet", "1:90,2:10")
    turned = Split.of("resnet", "2:70,1:30").as_served(before)
    assert (turned.served, turned.shares) == (before.served, {"1": 30.0, "2": 70.0})
    assert Split.of("resnet", "2:70,3:30").as_served(before).main == "2"
    assert Split.of("resnet", "2:100,1:shadow").as_served(before).main == "2"
