"""Lengths of simulated rows: what may be written, what is drawn, and what figures by length mean."""

from pathlib import Path
from random import Random

import pytest

from latebind.domain.actions import Outcome
from latebind.domain.costs import Curve, Grid, ModelCosts
from latebind.domain.errors import ConfigError
from latebind.domain.sizes import Dim
from latebind.simulation.driver import Record
from latebind.simulation.lengths import by_quarter, describe_rows, read_rows, why_padded, with_rows
from latebind.simulation.workloads import Arrival

L = (Dim("L", 1, 512),)
HW = (Dim("H", 32, 128, 32), Dim("W", 32, 64, 32))


def lengths(told: str, dims: tuple[Dim, ...] = L) -> list[int]:
    return sorted(length for length, _ in read_rows(told, dims, "text"))


def test_lengths_are_listed_drawn_or_those_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "lengths.txt"
    file.write_text("7\n7\n512\n")
    assert lengths("24") == [24]
    assert lengths("8,16,16") == [8, 16, 16]
    assert lengths(str(file)) == [7, 7, 512]
    drawn = lengths("24~1.0")
    assert drawn[len(drawn) // 2] == pytest.approx(24, rel=0.1)
    assert drawn[0] < 3
    assert 200 < drawn[-1] <= 512
    assert read_rows("24~1.0", L, "text") == read_rows("24~1.0", L, "text")


def test_without_a_word_every_octave_is_as_frequent() -> None:
    drawn = lengths("")
    octaves = [sum(low <= length < 2 * low for length in drawn) / len(drawn) for low in (8, 32, 128)]
    assert octaves == pytest.approx([1 / 9] * 3, abs=0.03)
    assert drawn[0] == 1
    assert drawn[-1] == pytest.approx(512, rel=0.02)
    assert {length % 32 for length in lengths("", HW)} == {0}


def test_rows_of_unequal_sizes_with_as_many_elements_are_told_apart() -> None:
    rows = read_rows("64x32,32x64,64x32", HW, "unet")
    assert [length for length, _ in rows] == [2048] * 3
    assert rows[0][1] == rows[2][1] != rows[1][1] != 0


@pytest.mark.parametrize(
    ("told", "dims", "words"),
    [
        ("0", L, "length 0: L must be 1 to 512, not 0"),
        ("8,513", L, "L must be 1 to 512, not 513"),
        ("8x8", L, "the named dimensions are L: write one for each"),
        ("24~1", HW, "text has 2 named dimensions, and 24~1 draws one"),
        ("33x32", HW, "H must be 32 to 128 in steps of 32, not 33"),
        ("none.txt", L, "none.txt has no lengths .*No such file.*: write 24, 8,16,64"),
        ("1..5", L, "1..5 has no lengths"),
    ],
)
def test_what_is_no_length_is_refused_with_what_to_write(told: str, dims: tuple[Dim, ...], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_rows(told, dims, "text")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty: write a length on each line"),
        (b"12\nlong\n", "word 2 is not a length, but 'long'"),
        (b"12\n600\n", "word 2: L must be 1 to 512, not 600"),
        (b"\xff\xfe", "has no lengths"),
        (b"{}\n", "is this an event log"),
    ],
)
def test_a_file_without_lengths_is_refused_with_the_place(tmp_path: Path, content: bytes, words: str) -> None:
    file = tmp_path / "lengths"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=words):
        read_rows(str(file), L, "text")


def test_figures_by_quarter_count_who_was_answered_in_time() -> None:
    arrivals = list(with_rows([Arrival(0.0, "text", 1.0, 0)] * 8, read_rows("8,300", L, "text"), Random(1)))
    own = [one.inputs for one in arrivals]
    assert set(own) == {8, 300}
    ends = [(number, 0.5 if length in (6, 8) else 2.0) for number, length in enumerate((5, 400, 6, 7, 8, 300, 9, 20))]
    records = [Record(number, "text", 0.0, ended, Outcome.ANSWERED, 0) for number, ended in ends]
    records[0] = Record(0, "text", 0.0, 0.5, Outcome.EXPIRED, 0)
    assert by_quarter(records, (5, 400, 6, 7, 8, 300, 9, 20), 1.0) == (0.5, 0.5, 0.0, 0.0)
    assert describe_rows(((5, 1), (9, 2), (400, 3))) == "lengths 5 to 400, half up to 9"


def test_the_reason_for_padding_is_what_the_costs_say() -> None:
    curves = tuple(Curve((1, 32), (10e-3 + 1e-4 * n, 10e-3 + 32e-4 * n)) for n in (1, 100))
    said = why_padded(ModelCosts((Grid((1, 100), curves),)), [10, 10, 20, 20], 16)
    assert said == "a row of 10 takes 11 ms alone, and 2 ms more as one of 8 rows that are padded to 20"
