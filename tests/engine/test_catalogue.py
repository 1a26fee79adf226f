"""What is remembered of models that are not served, and how long."""

from pathlib import Path
from shutil import copytree, rmtree

import pytest

from latebind.domain.errors import RepositoryError
from latebind.engine.catalogue import Catalogue
from latebind.repository.directory import MODEL, ModelDirectory
from tests.engine.test_engines import ask, serving
from tests.versions import add_version


def states(catalogue: Catalogue) -> dict[str, str]:
    return {entry["name"]: entry["state"] for entry in catalogue.index()}


def add_faulty(place: Path) -> None:
    """Write a model whose files are whole, and that no engine can serve."""
    ModelDirectory.create(place, {MODEL: b"{}"})


async def test_a_model_that_was_mended_is_served_though_another_is_faulty_now(scales: Path, scale_shop: Path) -> None:
    async with serving(scale_shop) as (engines, catalogue):
        add_faulty(scale_shop / "scale" / "2")
        assert await catalogue.reload() == []
        rmtree(scale_shop / "scale" / "2")
        copytree(scales / "later" / "scale" / "2", scale_shop / "scale" / "2")
        add_faulty(scale_shop / "other" / "1")
        assert await catalogue.reload() == ["scale"]
        assert await ask(engines) == 3.0
        other, scale = catalogue.index()
        assert (other["state"], scale["state"], scale["reason"]) == ("UNAVAILABLE", "READY", "")
        assert "other/1" in other["reason"]


async def test_what_has_gone_from_the_repository_leaves_the_index(scale_shop: Path) -> None:
    async with serving(scale_shop) as (_, catalogue):
        add_faulty(scale_shop / "other" / "1")
        assert await catalogue.reload() == []
        assert states(catalogue) == {"other": "UNAVAILABLE", "scale": "READY"}
        await catalogue.unload("scale")
        rmtree(scale_shop / "other")
        assert await catalogue.reload() == []
        assert states(catalogue) == {"scale": "UNAVAILABLE"}
        rmtree(scale_shop / "scale")
        assert await catalogue.reload() == []
        assert states(catalogue) == {}


async def test_a_faulty_model_that_comes_back_is_tried_again(scale_shop: Path) -> None:
    async with serving(scale_shop) as (_, catalogue):
        add_faulty(scale_shop / "other" / "1")
        await catalogue.reload()
        (scale_shop / "other").rename(aside := scale_shop / ".other")
        await catalogue.reload()
        assert states(catalogue) == {"scale": "READY"}
        aside.rename(scale_shop / "other")
        await catalogue.reload()
        assert states(catalogue) == {"other": "UNAVAILABLE", "scale": "READY"}


async def test_what_was_loaded_by_its_name_is_remembered_as_long_as_it_is_there(scale_shop: Path) -> None:
    async with serving(scale_shop, "scale") as (_, catalogue):
        add_faulty(scale_shop / "other" / "1")
        with pytest.raises(RepositoryError, match="other/1"):
            await catalogue.load("other")
        assert await catalogue.reload() == []
        assert states(catalogue) == {"other": "UNAVAILABLE", "scale": "READY"}


async def test_a_version_that_was_asked_for_is_forgotten_when_its_model_goes(scales: Path, scale_shop: Path) -> None:
    add_version(scale_shop, "other", 1, 5.0)
    async with serving(scale_shop, "other", "scale") as (engines, catalogue):
        await catalogue.load("scale", "1")
        rmtree(scale_shop / "scale")
        assert await catalogue.reload() == ["scale"]
        copytree(scales / "later" / "scale" / "2", scale_shop / "scale" / "2")
        assert await catalogue.reload() == ["scale"]
        assert await ask(engines) == 3.0
