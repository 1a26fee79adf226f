"""The window of samples: bounded in time, in number and by client; on disk it survives."""

from pathlib import Path

import pytest
import torch

from latebind.adaptation.window import Sample, Window


def sample(time: float, client: int = 0) -> Sample:
    features = torch.tensor([time, 1.0]).bfloat16()
    answer = int(time) % 3
    answers = torch.nn.functional.one_hot(torch.tensor(answer), 3).bfloat16()
    return Sample(time, client, {"a": features}, answers, answer, torch.tensor([time, 1.0]), 1.0 + time)


def filled(count: int, *, capacity: int = 100, seconds: float = 1e6, clients: int = 1) -> Window:
    window = Window(capacity, seconds, 0.5)
    for number in range(count):
        window.add(sample(float(number), number % clients))
    return window


def times(window: Window) -> list[float]:
    recent = window.recent()
    assert recent is not None
    found: list[float] = recent.times.tolist()
    return found


def test_what_is_too_old_goes() -> None:
    assert times(filled(10, seconds=3.0)) == [6.0, 7.0, 8.0, 9.0]


def test_with_no_room_the_oldest_goes() -> None:
    assert times(filled(10, capacity=3)) == [7.0, 8.0, 9.0]


def test_a_client_over_its_share_gives_way_to_others() -> None:
    window = Window(10, 1e6, 0.5)
    for number in range(4):
        window.add(sample(float(number), client=1))
    for number in range(4, 100):
        window.add(sample(float(number), client=2))
    assert times(window)[:4] == [0.0, 1.0, 2.0, 3.0]
    assert len(window) == 10


def test_an_empty_window_has_nothing() -> None:
    assert Window(3, 1.0, 0.5).recent() is None


def test_it_comes_back_from_disk_as_it_was(tmp_path: Path) -> None:
    window, again = filled(70, capacity=50, clients=3), Window(50, 1e6, 0.5)
    window.save(tmp_path / "window")
    assert again.load(tmp_path / "window", names=["a"])
    one, other = window.recent(), again.recent()
    assert one is not None
    assert other is not None
    assert torch.equal(one.rows.features["a"], other.rows.features["a"])
    assert torch.equal(one.rows.classes, other.rows.classes)
    assert torch.equal(one.weights, other.weights)
    assert torch.equal(one.looks, other.looks)
    assert torch.equal(one.times, other.times)


@pytest.mark.parametrize("data", [b"", b"broken", b"\x08\0\0\0\0\0\0\0{}      "])
def test_a_broken_file_is_not_taken(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "window").write_bytes(data)
    window = Window(5, 1.0, 0.5)
    assert not window.load(tmp_path / "window", names=["a"])
    assert len(window) == 0


def test_a_window_of_other_lookups_is_not_taken(tmp_path: Path) -> None:
    filled(3).save(tmp_path / "window")
    assert not Window(5, 1.0, 0.5).load(tmp_path / "window", names=["b"])


def test_what_was_kept_by_a_clock_that_was_set_back_counts_as_of_now(tmp_path: Path) -> None:
    filled(3).save(tmp_path / "window")
    window = Window(100, 1e6, 1.0)
    assert window.load(tmp_path / "window", names=["a"], now=1.5)
    assert times(window) == [0.0, 1.0, 1.5]
