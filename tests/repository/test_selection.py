"""What of a repository is found by name, and that clients are told no paths."""

from pathlib import Path

import pytest

from latebind.domain.errors import NotFound, RepositoryError
from latebind.repository.directory import ModelDirectory
from latebind.repository.listing import Selection, Serving


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Model a in versions 1 and 2, model b, and a query over both in version 3."""
    for place in ("a/1", "a/2", "b/1"):
        ModelDirectory.create(tmp_path / "models" / place, {"model.json": b"{}"})
    write_query(tmp_path / "models", "a", "b", version="3")
    return tmp_path / "models"


def write_query(folder: Path, *models: str, version: str = "") -> None:
    said = f'version = "{version}"\n' if version else ""
    (folder / "both.query.toml").write_text(f"{said}[nodes.one]\nmodels = {list(models)}\n")


def test_a_query_is_found_with_the_newest_versions_of_its_models(folder: Path) -> None:
    found = Selection(folder).find("both")
    assert found.names == ("a", "b", "both")
    assert [path.name for path in found.models.values()] == ["2", "1"]


@pytest.mark.parametrize("missing", ["zzz", "both"])
def test_a_model_that_a_query_lacks_is_told_without_the_path_of_the_repository(folder: Path, missing: str) -> None:
    write_query(folder, "a", missing)
    with pytest.raises(NotFound) as told:
        Selection(folder).find("both")
    assert str(told.value).startswith(f"there is no model {missing!r} in the repository: there are a, b")


def test_a_query_is_found_only_in_the_version_that_its_file_says(folder: Path) -> None:
    assert list(Selection(folder).find("both", "3").queries) == ["both"]
    with pytest.raises(NotFound, match="query 'both' has no version '9' in the repository: it has 3"):
        Selection(folder).find("both", "9")
    write_query(folder, "a")
    assert list(Selection(folder).find("both", "1").queries) == ["both"]


def test_a_single_model_is_found_only_in_its_version(folder: Path, tmp_path: Path) -> None:
    assert list(Selection(folder / "a" / "2").find("a", "2").models) == ["a"]
    with pytest.raises(NotFound, match="model 'a' has no version '1' in the repository: it has 2"):
        Selection(folder / "a" / "2").find("a", "1")
    ModelDirectory.create(tmp_path / "alone", {"model.json": b"{}"})
    assert list(Selection(tmp_path / "alone").find("alone", "1").models) == ["alone"]
    with pytest.raises(NotFound, match="model 'alone' has no version '2'"):
        Selection(tmp_path / "alone").find("alone", "2")


def test_an_error_is_explained_without_the_path_of_the_repository(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent.parent)
    for place in (folder, folder.relative_to(folder.parent.parent)):
        for path in {place, folder}:
            error = RepositoryError(f"{path} is a file, {path}/a/1/model.json differs; look in {path}.")
            told = "the repository is a file, a/1/model.json differs; look in the repository."
            assert Selection(place).explain(error) == told


def test_an_explanation_keeps_words_and_paths_that_only_look_like_the_repository(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    for said in (f"the models, all models in {folder}-2", f"/srv{folder}/a is no folder of models"):
        assert Selection(Path("models")).explain(RepositoryError(said)) == said
    assert Selection(Path()).explain(RepositoryError("it has gone. All of it.")) == "it has gone. All of it."


def test_what_is_served_names_models_in_errors_and_not_where_they_lie() -> None:
    place = Path("/srv/models")
    serving = Serving({"net": place / "net" / "1", "net-10": place / "net" / "10"})
    error = RepositoryError("/srv/models/net/10/weights has gone, /srv/models/net/1 is whole")
    assert serving.explain(error) == "net-10/weights has gone, net is whole"
    named = Serving({"net": Path("models/net/1")})
    assert named.explain(RepositoryError(f"{Path('models/net/1').absolute()} has gone")) == "net has gone"
