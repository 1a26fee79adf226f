"""The drift benchmark on digits: what is caught, and what needs no catching."""

from dataclasses import replace

import pytest

from latebind.bench.subject import Subject
from latebind.domain.errors import ConfigError
from research.gati import drift
from tests.digits import Built


def trial(requests: int | None, samples: int | None, unguarded: float) -> drift.Trial:
    return drift.Trial("mix", requests, samples, unguarded, 0.97)


def test_a_fall_must_be_caught_in_time() -> None:
    assert trial(40, 8, 0.8).passed(0.97)
    assert not trial(None, None, 0.8).passed(0.97)
    assert not trial(1_900, 501, 0.8).passed(0.97)
    assert trial(None, None, 0.98).passed(0.97)  # nothing to catch


def test_a_fall_is_clear_where_chance_does_not_explain_it() -> None:
    assert not trial(None, None, 0.968).fell_clearly(0.97)  # four errors more than allowed
    assert trial(None, None, 0.96).fell_clearly(0.97)


def test_the_table_tells_which_guard_acted_first() -> None:
    heard = [replace(trial(40, 8, 0.96), guard=guard) for guard in ("looks", "fidelity", "looks")]
    (row,) = drift.summary([*heard, trial(None, None, 0.968)], 0.97)
    assert (row["by"], row["caught"], row["fidelity fell"], row["clearly"]) == ("looks 2, fidelity 1", 3, 4, 3)


def test_changes_of_digits_are_caught(built: Built) -> None:
    rows, labels = built.rows
    subject = Subject(built.directory.path.parent.parent, "digits", rows, labels)
    found = drift.run(
        subject,
        trials=1,
        fidelity=0.9,
        by=3.0,
        settle=600,
        after=500,
        seed=0,
    )
    assert [one.change for one in found] == ["mix", "brightness"]
    assert all(one.passed(0.9) for one in found)
    assert found[0].guard == "classes"
    assert all(bool(one.guard) == (one.requests is not None) for one in found)
    assert {row["change"] for row in drift.summary(found, 0.9)} == {"mix", "brightness"}


def test_a_calibration_of_its_own_without_lookups_is_told_as_such(built: Built) -> None:
    rows, labels = built.rows
    subject = Subject(built.directory.path.parent.parent, "digits", rows, labels)
    with pytest.raises(ConfigError, match=r"at a fidelity of 1, its copy has no lookup that pays"):
        drift.run(subject, trials=1, fidelity=1.0, by=3.0, settle=600, after=500, seed=0)
