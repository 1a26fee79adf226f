"""What is served of a folder: models, queries, the models that queries need; what clients are told of it."""

from pathlib import Path

import pytest

from latebind.domain.errors import NotFound, QueryError, RepositoryError
from latebind.repository.directory import ModelDirectory
from latebind.repository.listing import Repository, Selection, Serving, find_served, sort_out

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


@pytest.mark.parametrize(
    ("names", "models", "queries"),
    [
        ((), ["a/1", "b/1", "c/1"], ["both.query.toml", "lone.query.toml"]),
        (("both",), ["a/1", "b/1"], ["both.query.toml"]),  # which brings its models, each once
        (("b", "both", "c"), ["b/1", "c/1", "a/1"], ["both.query.toml"]),
        (("a",), ["a/1"], []),
    ],
)
def test_models_and_queries_are_served_as_they_are_named(
    folder: Path, names: tuple[str, ...], models: list[str], queries: list[str]
) -> None:
    assert served(folder, *names) == (models, queries)


def test_a_model_directory_holds_no_queries(folder: Path) -> None:
    assert served(folder / "a" / "1") == (["."], [])


def test_a_name_that_nothing_has_is_told_also_one_that_a_query_needs(folder: Path) -> None:
    with pytest.raises(NotFound, match="there is no model 'nobody'"):
        find_served(folder, ["both", "nobody"])
    (folder / "both.query.toml").write_text(QUERY.replace('"a"', '"z"'))
    with pytest.raises(NotFound, match="there is no model 'z'"):
        find_served(folder, ["both"])


def test_a_broken_query_is_told_where_it_is_needed(folder: Path) -> None:
    (folder / "both.query.toml").write_text("[nodes.one]\nmodels = 3\n")
    with pytest.raises(QueryError, match=r"both\.query\.toml:2: nodes\.one\.models: expected `array`"):
        find_served(folder, ["both"])
    assert served(folder, "lone") == (["c/1"], ["lone.query.toml"])


def test_where_one_model_is_broken_the_words_are_told_that_serve_the_others(folder: Path) -> None:
    (folder / "a" / "1" / "model.json").write_text("{ }")
    with pytest.raises(
        RepositoryError, match=r"a/1/model.json differs .* To serve only the others: --model b --model c --mod"
    ):
        find_served(folder)
    assert served(folder, "b", "c", "lone") == (["b/1", "c/1"], ["lone.query.toml"])
    for name in ("b", "c"):
        (folder / name / "1" / "model.json").unlink()
    with pytest.raises(RepositoryError, match=r"build it again$"):
        find_served(folder)


def test_a_folder_without_a_model_is_told_and_one_that_is_not_there(tmp_path: Path) -> None:
    for look in (sort_out, find_served):
        with pytest.raises(RepositoryError, match="contains no model: make one with `latebind build`"):
            look(tmp_path)
        with pytest.raises(RepositoryError, match="is not a directory"):
            look(tmp_path / "nowhere")


def test_folders_that_look_like_versions_are_told_with_why_they_are_none(folder: Path) -> None:
    (folder / "a" / "2").mkdir()
    (folder / "a" / ".exploring").mkdir()
    (folder / "a" / "notes").mkdir()
    ModelDirectory.create(folder / "b" / "v2", {"model.json": b"{}"})
    (folder / "c" / "7").symlink_to("/usr")
    told = Repository(folder).passed_over()
    expected = [
        ("a/2", "has no manifest.json"),
        ("b/v2", "named by a number: rename"),
        ("c/7", "leads out of the repository"),
    ]
    assert len(told) == len(expected)
    for said, (path, why) in zip(told, expected, strict=True):
        assert said.startswith(f"{folder / path} is skipped: ")
        assert why in said
    assert len(Repository(folder).passed_over(["a"])) == 1


@pytest.fixture
def versions(tmp_path: Path) -> Path:
    """Model a in versions 1 and 2, model b, and a query over both in version 3."""
    for place in ("a/1", "a/2", "b/1"):
        ModelDirectory.create(tmp_path / "models" / place, {"model.json": b"{}"})
    write_query(tmp_path / "models", "a", "b", version="3")
    return tmp_path / "models"


def write_query(folder: Path, *models: str, version: str = "") -> None:
    said = f'version = "{version}"\n' if version else ""
    (folder / "both.query.toml").write_text(f"{said}[nodes.one]\nmodels = {list(models)}\n")


def test_a_query_is_found_with_the_newest_versions_of_its_models(versions: Path) -> None:
    found = Selection(versions).find("both")
    assert found.names == ("a", "b", "both")
    assert [path.name for path in found.models.values()] == ["2", "1"]


@pytest.mark.parametrize("missing", ["zzz", "both"])
def test_a_model_that_a_query_lacks_is_told_without_the_path_of_the_repository(versions: Path, missing: str) -> None:
    write_query(versions, "a", missing)
    with pytest.raises(NotFound) as told:
        Selection(versions).find("both")
    assert str(told.value).startswith(f"there is no model {missing!r} in the repository: there are a, b")


def test_a_query_is_found_only_in_the_version_that_its_file_says(versions: Path) -> None:
    assert list(Selection(versions).find("both", "3").queries) == ["both"]
    with pytest.raises(NotFound, match="query 'both' has no version '9' in the repository: it has 3"):
        Selection(versions).find("both", "9")
    write_query(versions, "a")
    assert list(Selection(versions).find("both", "1").queries) == ["both"]


def test_a_single_model_is_found_only_in_its_version(versions: Path, tmp_path: Path) -> None:
    assert list(Selection(versions / "a" / "2").find("a", "2").models) == ["a"]
    with pytest.raises(NotFound, match="model 'a' has no version '1' in the repository: it has 2"):
        Selection(versions / "a" / "2").find("a", "1")
    ModelDirectory.create(tmp_path / "alone", {"model.json": b"{}"})
    assert list(Selection(tmp_path / "alone").find("alone", "1").models) == ["alone"]
    with pytest.raises(NotFound, match="model 'alone' has no version '2'"):
        Selection(tmp_path / "alone").find("alone", "2")


def test_an_error_is_explained_without_the_path_of_the_repository_and_with_all_that_only_looks_like_it(
    versions: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(versions.parent.parent)
    for place in (versions, versions.relative_to(versions.parent.parent)):
        for path in {place, versions}:
            error = RepositoryError(f"{path} is a file, {path}/a/1/model.json differs; look in {path}.")
            told = "the repository is a file, a/1/model.json differs; look in the repository."
            assert Selection(place).explain(error) == told
    monkeypatch.chdir(versions.parent)
    for said in (f"the models, all models in {versions}-2", f"/srv{versions}/a is no folder of models"):
        assert Selection(Path("models")).explain(RepositoryError(said)) == said
    assert Selection(Path()).explain(RepositoryError("it has gone. All of it.")) == "it has gone. All of it."


def test_what_is_served_names_models_in_errors_and_not_where_they_lie() -> None:
    place = Path("/srv/models")
    serving = Serving({"net": place / "net" / "1", "net-10": place / "net" / "10"})
    error = RepositoryError("/srv/models/net/10/weights has gone, /srv/models/net/1 is whole")
    assert serving.explain(error) == "net-10/weights has gone, net is whole"
    named = Serving({"net": Path("models/net/1")})
    assert named.explain(RepositoryError(f"{Path('models/net/1').absolute()} has gone")) == "net has gone"
