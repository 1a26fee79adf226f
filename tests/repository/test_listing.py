"""What is served of a folder: models, queries, and the models that queries need."""

from pathlib import Path

import pytest

from latebind.domain.errors import NotFound, QueryError, RepositoryError
from latebind.repository.directory import ModelDirectory
from latebind.repository.listing import Repository, find_queries, find_served, sort_out

QUERY = '[nodes.one]\nmodels = ["a", "b"]\n[nodes.two]\nmodels = ["b"]\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Models a, b and c, and two queries, one of them over a and b."""
    for name in ("a", "b", "c"):
        ModelDirectory.create(tmp_path / name / "1", {"model.json": b"{}"})
    (tmp_path / "both.query.toml").write_text(QUERY)
    (tmp_path / "lone.query.toml").write_text('[nodes.one]\nmodels = ["c"]\n')
    (tmp_path / "notes.toml").write_text("")
    return tmp_path


def served(place: Path, *names: str) -> tuple[list[str], list[str]]:
    models, queries = find_served(place, names or None)
    return [str(path.relative_to(place)) for path in models], [path.name for path in queries]


def test_all_models_and_queries_are_served(folder: Path) -> None:
    assert served(folder) == (["a/1", "b/1", "c/1"], ["both.query.toml", "lone.query.toml"])


def test_a_query_brings_its_models_each_once(folder: Path) -> None:
    assert served(folder, "both") == (["a/1", "b/1"], ["both.query.toml"])


def test_models_and_queries_may_be_named_together(folder: Path) -> None:
    assert served(folder, "b", "both", "c") == (["b/1", "c/1", "a/1"], ["both.query.toml"])


def test_a_model_alone_brings_no_query(folder: Path) -> None:
    assert served(folder, "a") == (["a/1"], [])


def test_queries_are_found_by_name(folder: Path) -> None:
    assert find_queries(folder, ["lone", "a"]) == [folder / "lone.query.toml"]


def test_a_model_directory_holds_no_queries(folder: Path) -> None:
    assert served(folder / "a" / "1") == (["."], [])


def test_a_name_that_nothing_has_is_told(folder: Path) -> None:
    with pytest.raises(NotFound, match="there is no model 'nobody'"):
        find_served(folder, ["both", "nobody"])


def test_a_model_that_a_query_needs_and_nobody_has_is_told(folder: Path) -> None:
    (folder / "both.query.toml").write_text(QUERY.replace('"a"', '"z"'))
    with pytest.raises(NotFound, match="there is no model 'z'"):
        find_served(folder, ["both"])


def test_a_broken_query_is_told_where_it_is_needed(folder: Path) -> None:
    (folder / "both.query.toml").write_text("[nodes.one]\nmodels = 3\n")
    with pytest.raises(QueryError, match=r"both\.query\.toml:2: nodes\.one\.models is a number"):
        find_served(folder, ["both"])
    assert served(folder, "lone") == (["c/1"], ["lone.query.toml"])


def test_where_one_model_is_broken_the_words_are_told_that_serve_the_others(folder: Path) -> None:
    (folder / "a" / "1" / "model.json").write_text("{ }")
    with pytest.raises(
        RepositoryError, match=r"a/1/model.json differs .* To serve the others: --model b --model c --mod"
    ):
        find_served(folder)
    assert served(folder, "b", "c", "lone") == (["b/1", "c/1"], ["lone.query.toml"])
    for name in ("b", "c"):
        (folder / name / "1" / "model.json").unlink()
    with pytest.raises(RepositoryError, match=r"build it again$"):
        find_served(folder)


def test_models_that_are_whole_are_told_from_others(folder: Path) -> None:
    (folder / "b" / "1" / "model.json").unlink()
    whole, wrong = sort_out(folder)
    assert [directory.path.parent.name for directory in whole] == ["a", "c"]
    assert list(wrong) == ["b"]
    assert "model.json is missing" in wrong["b"]


def test_a_folder_without_a_model_is_told(tmp_path: Path) -> None:
    for look in (sort_out, find_served):
        with pytest.raises(RepositoryError, match="holds no model: make one with `latebind build`"):
            look(tmp_path)


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(RepositoryError, match="is not a directory"):
        find_served(tmp_path / "nowhere")


def test_folders_that_look_like_versions_are_told_with_why_they_are_none(folder: Path) -> None:
    (folder / "a" / "2").mkdir()
    (folder / "a" / ".exploring").mkdir()
    (folder / "a" / "notes").mkdir()
    ModelDirectory.create(folder / "b" / "v2", {"model.json": b"{}"})
    (folder / "c" / "7").symlink_to("/usr")
    told = Repository(folder).passed_over()
    expected = [
        ("a/2", "has no manifest.json"),
        ("b/v2", "is a number: rename"),
        ("c/7", "leads out of the repository"),
    ]
    assert len(told) == len(expected)
    for said, (path, why) in zip(told, expected, strict=True):
        assert said.startswith(f"{folder / path} is passed over: ")
        assert why in said
    assert len(Repository(folder).passed_over(["a"])) == 1
