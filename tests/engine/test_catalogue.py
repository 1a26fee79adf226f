"""What is remembered of models that are not served, and how long."""

from pathlib import Path
from shutil import copytree, rmtree

import pytest
import torch

from latebind.domain.errors import RepositoryError
from latebind.engine.catalogue import Catalogue
from latebind.repository.directory import MODEL, ModelDirectory
from tests.engine.test_engines import ask, run, serving
from tests.versions import add_version


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Version 1 of `scale`, times 2; aside in `later/scale/2` times 3."""
    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("versions")
    add_version(root, "scale", 1, 2.0)
    add_version(root / "later", "scale", 2, 3.0)
    return root


@pytest.fixture
def shop(built: Path, tmp_path: Path) -> Path:
    copytree(built / "scale", tmp_path / "scale")
    return tmp_path


def states(catalogue: Catalogue) -> dict[str, str]:
    return {entry["name"]: entry["state"] for entry in catalogue.index()}


def add_faulty(place: Path) -> None:
    """Write a model whose files are whole, and that no engine can serve."""
    ModelDirectory.create(place, {MODEL: b"{}"})


def test_a_model_that_was_mended_is_served_though_another_is_faulty_now(built: Path, shop: Path) -> None:
    async def test() -> None:
        async with serving(shop) as (engines, catalogue):
            add_faulty(shop / "scale" / "2")
            assert await catalogue.reload() == []
            rmtree(shop / "scale" / "2")
            copytree(built / "later" / "scale" / "2", shop / "scale" / "2")
            add_faulty(shop / "other" / "1")
            assert await catalogue.reload() == ["scale"]
            assert await ask(engines) == 3.0
            other, scale = catalogue.index()
            assert (other["state"], scale["state"], scale["reason"]) == ("UNAVAILABLE", "READY", "")
            assert "other/1" in other["reason"]

    run(test())


def test_what_has_gone_from_the_repository_leaves_the_index(shop: Path) -> None:
    async def test() -> None:
        async with serving(shop) as (_, catalogue):
            add_faulty(shop / "other" / "1")
            assert await catalogue.reload() == []
            assert states(catalogue) == {"other": "UNAVAILABLE", "scale": "READY"}
            await catalogue.unload("scale")
            rmtree(shop / "other")
            assert await catalogue.reload() == []
            assert states(catalogue) == {"scale": "UNAVAILABLE"}
            rmtree(shop / "scale")
            assert await catalogue.reload() == []
            assert states(catalogue) == {}

    run(test())


def test_a_faulty_model_that_comes_back_is_tried_again(shop: Path) -> None:
    async def test() -> None:
        async with serving(shop) as (_, catalogue):
            add_faulty(shop / "other" / "1")
            await catalogue.reload()
            (shop / "other").rename(aside := shop / ".other")
            await catalogue.reload()
            assert states(catalogue) == {"scale": "READY"}
            aside.rename(shop / "other")
            await catalogue.reload()
            assert states(catalogue) == {"other": "UNAVAILABLE", "scale": "READY"}

    run(test())


def test_what_was_loaded_by_its_name_is_remembered_as_long_as_it_is_there(shop: Path) -> None:
    async def test() -> None:
        async with serving(shop, "scale") as (_, catalogue):
            add_faulty(shop / "other" / "1")
            with pytest.raises(RepositoryError, match="other/1"):
                await catalogue.load("other")
            assert await catalogue.reload() == []
            assert states(catalogue) == {"other": "UNAVAILABLE", "scale": "READY"}

    run(test())


def test_a_version_that_was_asked_for_is_forgotten_when_its_model_goes(built: Path, shop: Path) -> None:
    async def test() -> None:
        add_version(shop, "other", 1, 5.0)
        async with serving(shop, "other", "scale") as (engines, catalogue):
            await catalogue.load("scale", "1")
            rmtree(shop / "scale")
            assert await catalogue.reload() == ["scale"]
            copytree(built / "later" / "scale" / "2", shop / "scale" / "2")
            assert await catalogue.reload() == ["scale"]
            assert await ask(engines) == 3.0

    run(test())
