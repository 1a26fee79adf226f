"""Labeled rows in files of people: tables of texts, folders of pictures, and what is told of those that are wrong."""

import json
from pathlib import Path

import pytest

from latebind.domain.errors import ConfigError
from latebind.domain.model import Media
from latebind.folders.build import data_of, read_folder
from latebind.folders.rows import read_labeled
from tests.folders.making import make_folder, pictures

LABELS = ("no", "yes", "perhaps")
ROWS = [("Is it, though?", "perhaps"), ('a "quoted"\nline', "1"), ("plain", "no")]


def csv_of(separator: str, *, text: str = "text", label: str = "label") -> str:
    quoted = [[f'"{cell.replace(chr(34), chr(34) * 2)}"' for cell in row] for row in ROWS]
    return "\n".join([separator.join((text, label)), *(separator.join(row) for row in quoted)])


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("rows.csv", csv_of(",")),
        ("rows.csv", "\ufeff" + csv_of(",")),
        ("rows.tsv", csv_of("\t")),
        ("rows.jsonl", "\n\n".join(json.dumps({"text": text, "label": label}) for text, label in ROWS)),
    ],
)
def test_a_table_is_read_with_labels_by_name_or_number(name: str, content: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    found = read_labeled(tmp_path / name, Media.TEXT, LABELS)
    assert found.raw == {"text": [text for text, _ in ROWS]}
    assert found.labels == [2, 1, 0]


def test_columns_may_have_other_names_and_second_texts_are_read(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("sentence,text_pair,intent\nhow,so,yes\nwhy,not,0\n")
    found = read_labeled(file, Media.TEXT, LABELS, text_column="sentence", label_column="intent")
    assert found.raw == {"text": ["how", "why"], "text_pair": ["so", "not"]}
    assert found.labels == [1, 0]


def test_numbers_in_json_are_numbers_of_classes(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"text": "a", "label": 2}\n{"text": "b", "label": 1.0}\n')
    assert read_labeled(file, Media.TEXT, LABELS).labels == [2, 1]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("rows.csv", "text,label\na,yess\n", "row 1: there is no class 'yess': did you mean 'yes'"),
        ("rows.csv", "text,label\na,3\n", "row 1: there is no class '3'"),
        ("rows.jsonl", '{"text": "a", "label": true}', "row 1: there is no class 'True'"),
        ("rows.csv", "words,label\na,yes\n", "row 1 has no .text.: it has words, label; .* with --text-column"),
        ("rows.csv", "text,class\na,yes\n", "row 1 has no 'label': .* with --label-column"),
        ("rows.csv", "text,label\na,yes\nb\n", "row 2 has no 'label'"),
        ("rows.csv", "text,label\n", "has no rows"),
        ("rows.csv", 'text,label\n"a,yes\n', "cannot be read as csv"),
        ("rows.csv", b"text,label\n\xff,yes\n", "cannot be read as csv, in UTF-8"),
        ("rows.jsonl", "{", "line 1: invalid JSON"),
        ("rows.jsonl", "[1]", "line 1: give an object"),
        ("rows.jsonl", '{"text": 3, "label": 1}', "row 1: 'text' is not a text"),
        (
            "rows.jsonl",
            '{"text": "a", "text_pair": "b", "label": 1}\n{"text": "a", "label": 1}',
            "has 'text_pair' in 1 of 2 rows",
        ),
        ("rows.parquet", b"PAR1", "rows.parquet is not a Parquet file"),
        ("rows.xlsx", b"PK", "give a table of texts"),
    ],
)
def test_what_is_wrong_in_a_table_is_told_with_its_row(
    name: str, content: str | bytes, said: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError, match=said):
        read_labeled(tmp_path / name, Media.TEXT, LABELS)


def test_pictures_lie_in_folders_of_classes(tmp_path: Path) -> None:
    some = pictures(4)
    for name, data in (("yes/b.png", some[0]), ("yes/a.PNG", some[2]), ("no/c.jpeg", some[1]), ("no/notes.txt", b"x")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    found = read_labeled(tmp_path, Media.PICTURE, LABELS)
    assert found.raw == {"image": [some[1], some[2], some[0]]}
    assert found.labels == [0, 1, 1]
    with pytest.raises(ConfigError, match="has no folders of sounds"):
        read_labeled(tmp_path, Media.SOUND, LABELS)
    (tmp_path / "mayhap").mkdir()
    with pytest.raises(ConfigError, match="there is no class 'mayhap'"):
        read_labeled(tmp_path, Media.PICTURE, LABELS)


def test_a_table_may_name_pictures_from_where_it_lies(tmp_path: Path) -> None:
    some = pictures(2)
    (tmp_path / "shown").mkdir()
    (tmp_path / "shown" / "a.png").write_bytes(some[0])
    (tmp_path / "b.jpg").write_bytes(some[1])
    file = tmp_path / "rows.tsv"
    file.write_text("image\tlabel\nshown/a.png\tyes\nb.jpg\t0\n")
    found = read_labeled(file, Media.PICTURE, LABELS)
    assert (found.raw, found.labels, found.splits) == ({"image": some}, [1, 0], [])
    for row, said in (("c.jpg\tyes", "row 1: there is no file 'c.jpg'"), ("..\tyes", "row 1: there is no file '..'")):
        file.write_text(f"image\tlabel\n{row}\n")
        with pytest.raises(ConfigError, match=said):
            read_labeled(file, Media.PICTURE, LABELS)
    file.write_text("picture\tlabel\nb.jpg\tyes\n")
    with pytest.raises(ConfigError, match="row 1 has no 'image': it has picture, label; give the files of pictures"):
        read_labeled(file, Media.PICTURE, LABELS)


def test_parquet_has_texts_and_pictures_themselves(tmp_path: Path) -> None:
    parquet, pyarrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    texts = [{"text": text, "label": label} for text, label in ROWS]
    parquet.write_table(pyarrow.Table.from_pylist(texts), tmp_path / "texts.parquet", row_group_size=2)
    found = read_labeled(tmp_path / "texts.parquet", Media.TEXT, LABELS)
    assert (found.raw, found.labels) == ({"text": [text for text, _ in ROWS]}, [2, 1, 0])
    some = pictures(2)
    (tmp_path / "a.jpg").write_bytes(some[1])
    rows = [{"bytes": some[0], "path": "gone.png"}, {"bytes": None, "path": "a.jpg"}]
    shown = [{"image": image, "label": 2 - place} for place, image in enumerate(rows)]
    parquet.write_table(pyarrow.Table.from_pylist(shown), tmp_path / "shown.parquet")
    found = read_labeled(tmp_path / "shown.parquet", Media.PICTURE, LABELS)
    assert (found.raw, found.labels) == ({"image": some}, [2, 1])


def test_a_table_says_which_rows_are_to_fit_on(tmp_path: Path) -> None:
    folder = read_folder(str(make_folder("bert", tmp_path / "folder")))
    file = tmp_path / "rows.csv"
    splits = ["train" if place % 3 else "validation" for place in range(30)]
    lines = [f"{'dog ' * (1 + place)},{place % 2},{split}" for place, split in enumerate(splits)]
    file.write_text("\n".join(["text,label,split", *lines]))
    labeled = read_labeled(file, Media.TEXT, folder.about.labels)
    assert labeled.splits == splits
    data = data_of(folder, file)
    assert data.samples is not None
    fit, calibrate = data.samples
    lengths = [[len(row) - 2 for row in part.inputs["input_ids"]] for part in (fit, calibrate)]  # type: ignore[call-overload]
    assert sorted(lengths[0]) == [place + 1 for place in range(30) if place % 3] != lengths[0]
    assert sorted(lengths[1]) == [place + 1 for place in range(0, 30, 3)] != lengths[1]
    for said in ("test", "train"):
        file.write_text(f"text,label,split\ndog,yes,train\nfox,no,{said}\n")
        with pytest.raises(ConfigError, match=f"'split' has .*'{said}'.*: rows to learn from have 'train'"):
            data_of(folder, file)


def test_rows_are_tokens_in_an_order_that_is_drawn(tmp_path: Path) -> None:
    folder = read_folder(str(make_folder("bert", tmp_path / "folder")))
    file = tmp_path / "rows.csv"
    file.write_text("text,label\n" + "".join(f"{'dog ' * (1 + place)},{place // 20}\n" for place in range(60)))
    data = data_of(folder, file)
    assert data.notes == ("14 of 60 are cut to the longest text that the model reads",)
    assert data.samples is not None
    fit, calibrate = data.samples
    assert len(fit) == len(calibrate) == 30
    for part in (fit, calibrate):
        assert part.labels is not None
        assert set(part.labels.tolist()) == {0, 1, 2}
        ordered = part.ordered(folder.specs(), folder.reading.dims)
        assert ordered.lengths is not None
        lengths = ordered.lengths.tolist()
        assert max(lengths) == 48
        assert lengths != sorted(lengths)
