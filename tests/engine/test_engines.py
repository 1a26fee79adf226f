"""How engines follow one another, and what is served meanwhile; engines here have no processes."""

import asyncio
import time
from pathlib import Path
from shutil import copytree, rmtree

import pytest

from latebind.adaptation.controller import BUILT, FULL_DEPTH
from latebind.compiled import is_compiled
from latebind.domain.errors import ConfigError, InvalidRequest, NotFound, RepositoryError, Unavailable
from latebind.engine.engines import EngineStartFailed
from latebind.engine.order import InUse, backend_imports
from latebind.repository.directory import MODEL, STAGES, ModelDirectory, json_bytes
from tests.engine.pretended import BACK_OFF, Shop, open_shop
from tests.versions import QUERY, add_version, spoil

Patch = pytest.MonkeyPatch
pytestmark = pytest.mark.skipif(is_compiled(), reason="compiled code takes real engines alone, and these are pretended")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Version 1 of `scale` and of `other`, and aside in `later/scale/2` another of `scale`."""
    add_version(tmp_path / "shop", "scale", 1, 2.0)
    add_version(tmp_path / "shop", "other", 1, 5.0)
    add_version(tmp_path / "later", "scale", 2, 3.0)
    return tmp_path / "shop"


def add_second(place: Path) -> None:
    copytree(place.parent / "later" / "scale" / "2", place / "scale" / "2")


def add_faulty(place: Path) -> None:
    """Write a model whose files are whole, and that no engine can serve."""
    ModelDirectory.create(place, {MODEL: b"{}"})


# Crashes --------------------------------------------------------------------------------------------------------------


async def test_calls_wait_for_the_engine_that_follows_a_dead_one_until_their_deadline(
    place: Path, monkeypatch: Patch
) -> None:
    async with open_shop(place, monkeypatch) as shop:
        shop.machine.go.clear()
        shop.engine.die()
        assert (shop.engines.ready(), shop.engines.live()) == (False, True)
        with pytest.raises(Unavailable, match="starting again"):
            await shop.ask(seconds=0.05)
        call = asyncio.create_task(shop.ask())
        await shop.machine.reached.wait()
        shop.machine.go.set()
        assert await call == "1"
        await shop.ended()
        assert shop.engines.ready()
        assert (await shop.engines.metrics())["restarts"] == 1
        assert [engine.log for engine in shop.machine.engines] == ["events", "events.2", "events.3"]


async def test_after_a_crash_the_model_that_had_most_calls_comes_first_and_its_calls_do_not_wait_for_others(
    place: Path, monkeypatch: Patch
) -> None:
    async with open_shop(place, monkeypatch) as shop:
        shop.engine.lost_calls["scale"] = 1
        await shop.engines.adopt("other", "000001")
        shop.machine.go.clear()
        shop.machine.free = 1
        shop.engine.die()
        assert await shop.ask() == "1"
        assert [shop.engines.ready(model) for model in ("scale", "other", None)] == [True, False, False]
        with pytest.raises(Unavailable, match="starting again"):
            await shop.ask("other", seconds=0.05)
        assert shop.engines.used("other") == "000001"
        waiting = asyncio.create_task(shop.ask("other"))
        shop.machine.go.set()
        assert await waiting == "1"
        assert shop.engines.ready()


async def test_a_model_with_which_engines_die_is_left_out_with_its_queries_until_it_is_loaded_again(
    place: Path, monkeypatch: Patch
) -> None:
    (place / "asking.query.toml").write_text(QUERY)
    async with open_shop(place, monkeypatch) as shop:
        for _ in range(3):
            assert await shop.ask("other") == "1"
            await shop.ended()  # engines with some of the models come before
            shop.engine.die("scale")
        with pytest.raises(Unavailable, match="the engine died 3 times"):
            await shop.ask()
        assert shop.states() == {"scale": "UNAVAILABLE", "other": "1", "asking": "UNAVAILABLE"}
        await shop.catalogue.load("scale")
        assert shop.states() == {"scale": "1", "other": "1", "asking": "1"}


@pytest.mark.parametrize(
    ("crashes", "left_out"),
    [
        ([(0.0, "a"), (30.0, "a"), (59.0, "a")], {"a"}),
        ([(0.0, "a"), (30.0, "a"), (61.0, "a")], set()),  # those of long ago do not count
        ([(0.0, "ab"), (1.0, "c"), (2.0, "b"), (3.0, "b")], {"b"}),  # each model is counted by itself
    ],
)
async def test_crashes_are_counted_for_each_model_that_ran_within_a_minute(
    place: Path, monkeypatch: Patch, crashes: list[tuple[float, str]], left_out: set[str]
) -> None:
    async with open_shop(place, monkeypatch) as shop:
        for now, running in crashes:
            monkeypatch.setattr("latebind.engine.engines.time.monotonic", lambda now=now: now)
            shop.engines._blame(running)
        monkeypatch.undo()
        assert set(shop.engines.unavailable) == left_out


async def test_a_model_that_cannot_be_loaded_again_is_left_out_and_the_others_are_served(
    place: Path, monkeypatch: Patch
) -> None:
    async with open_shop(place, monkeypatch) as shop:
        spoil(place / "scale" / "1")
        shop.engine.die()
        assert await shop.ask("other") == "1"
        with pytest.raises(Unavailable, match=r"scale is not served: .* differs from the manifest"):
            await shop.ask()
        assert shop.catalogue.unavailable("scale")


async def test_where_no_process_can_be_started_calls_do_not_wait_and_it_is_tried_again_later(
    place: Path, monkeypatch: Patch
) -> None:
    async with open_shop(place, monkeypatch) as shop:
        shop.machine.full = True
        shop.engine.die()
        with pytest.raises(Unavailable, match="starting again"):
            await shop.ask()
        shop.machine.full = False
        later = time.monotonic() + BACK_OFF
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: later)
        await shop.ended()
        assert await shop.ask() == "1"


@pytest.mark.parametrize("prevents", ["faulty files", "no room", "nothing"])
async def test_what_prevents_the_old_models_is_nothing_against_new_ones_that_took_over_meanwhile(
    place: Path, monkeypatch: Patch, prevents: str
) -> None:
    async with open_shop(place, monkeypatch) as shop:
        shop.machine.reached.clear()
        held = shop.machine.go = asyncio.Event()
        shop.engine.die()
        await shop.machine.reached.wait()  # the engine that is to serve the old models
        shop.machine.go = asyncio.Event()
        shop.machine.go.set()
        add_second(place)
        assert await shop.catalogue.reload() == ["scale"]
        if prevents == "faulty files":
            spoil(place / "scale" / "1")
        shop.machine.full = prevents == "no room"
        held.set()
        await shop.ended()
        assert shop.engines.unavailable == {}
        assert await shop.ask() == "2"
        assert [engine.live() for engine in shop.machine.engines].count(True) == 1


@pytest.mark.parametrize("attribute", ["mute", "lethal"])
async def test_a_model_that_does_not_answer_its_trial_request_does_not_take_over(
    place: Path, monkeypatch: Patch, attribute: str
) -> None:
    async with open_shop(place, monkeypatch) as shop:
        getattr(shop.machine, attribute).add("scale")
        with pytest.raises(EngineStartFailed, match="scale does not answer a trial request") as failed:
            await shop.engines.change(shop.engines.serving, tried=())
        assert (failed.value.models, failed.value.crashed) == (("scale",), attribute == "lethal")
        assert not shop.engine.live()
        assert await shop.ask() == "1"
        assert shop.engines.process_id == 0


# What is served -------------------------------------------------------------------------------------------------------


async def test_a_new_version_takes_over_once_and_the_engine_before_it_ends(place: Path, monkeypatch: Patch) -> None:
    async with open_shop(place, monkeypatch) as shop:
        changed = asyncio.Event()
        shop.engines.on_change = changed.set
        following = asyncio.create_task(shop.catalogue.follow(0.01))
        add_second(place)
        await asyncio.wait_for(changed.wait(), 60.0)
        following.cancel()
        assert await shop.ask() == "2"
        await asyncio.wait_for(shop.machine.engines[0].closed.wait(), 60.0)
        assert await shop.catalogue.reload() == []


async def test_only_an_engine_that_replaces_one_that_serves_has_time_to_compile_everything_before(
    place: Path, monkeypatch: Patch
) -> None:
    async with open_shop(place, monkeypatch) as shop:
        await shop.catalogue.load("scale")
        shop.engine.die()
        await shop.ended()
        await shop.catalogue.load("scale")
        assert [engine.replaces for engine in shop.machine.engines] == [False, True, False, False, True]


async def test_a_bad_version_leaves_the_old_one_serving_and_says_why(place: Path, monkeypatch: Patch) -> None:
    async with open_shop(place, monkeypatch, ["scale"]) as shop:
        add_second(place)
        spoil(place / "scale" / "2")
        with pytest.raises(RepositoryError, match=r"^scale/2/weights.safetensors differs"):
            await shop.catalogue.load("scale")
        assert await shop.catalogue.reload() == []
        (entry,) = shop.catalogue.index()
        assert (entry["version"], entry["state"]) == ("1", "READY")
        assert "scale/2/weights.safetensors" in entry["reason"]
        with pytest.raises(NotFound, match="'scale' has no version '7' in the repository: it has 1, 2"):
            await shop.catalogue.load("scale", "7")


async def test_what_a_query_needs_is_only_unloaded_with_it_and_stays_so(place: Path, monkeypatch: Patch) -> None:
    (place / "asking.query.toml").write_text(QUERY)
    async with open_shop(place, monkeypatch) as shop:
        with pytest.raises(InvalidRequest, match="asking needs scale"):
            await shop.catalogue.unload("scale")
        await shop.catalogue.unload("scale", dependents=True)
        with pytest.raises(NotFound):
            await shop.ask("asking")
        assert await shop.catalogue.reload() == []
        assert shop.states() == {"scale": "UNAVAILABLE", "other": "1", "asking": "UNAVAILABLE"}
        await shop.catalogue.load("asking")
        assert await shop.ask("asking") == "1"


async def test_the_last_model_may_go_and_come_back(place: Path, monkeypatch: Patch) -> None:
    async with open_shop(place, monkeypatch, ["scale"]) as shop:
        await shop.catalogue.unload("scale")
        assert shop.engines.ready()
        assert shop.states() == {"scale": "UNAVAILABLE"}
        await shop.catalogue.load("scale")
        assert await shop.ask() == "1"


async def test_a_version_that_was_asked_for_stays_as_long_as_its_model(place: Path, monkeypatch: Patch) -> None:
    async with open_shop(place, monkeypatch) as shop:
        await shop.catalogue.load("scale", "1")
        add_second(place)
        assert await shop.catalogue.reload() == []
        (place / "scale").rename(aside := place / ".scale")
        assert await shop.catalogue.reload() == ["scale"]
        aside.rename(place / "scale")
        assert await shop.catalogue.reload() == ["scale"]
        assert await shop.ask() == "2"


async def test_a_model_that_was_mended_is_served_though_another_is_faulty_now(place: Path, monkeypatch: Patch) -> None:
    async with open_shop(place, monkeypatch) as shop:
        add_faulty(place / "scale" / "2")
        assert await shop.catalogue.reload() == []
        rmtree(place / "scale" / "2")
        add_second(place)
        add_faulty(place / "faulty" / "1")
        assert await shop.catalogue.reload() == ["scale"]
        assert shop.states() == {"scale": "2", "other": "1", "faulty": "UNAVAILABLE"}
        assert [entry["reason"] for entry in shop.catalogue.index() if entry["name"] == "scale"] == [""]


async def test_a_faulty_model_is_tried_once_forgotten_when_it_goes_and_tried_again_when_it_comes_back(
    place: Path, monkeypatch: Patch
) -> None:
    async with open_shop(place, monkeypatch) as shop:
        for _ in range(2):
            add_faulty(place / "faulty" / "1")
            before = len(shop.machine.engines)
            assert await shop.catalogue.reload() == await shop.catalogue.reload() == []
            assert len(shop.machine.engines) == before + 1
            assert shop.states() == {"scale": "1", "other": "1", "faulty": "UNAVAILABLE"}
            rmtree(place / "faulty")
            assert await shop.catalogue.reload() == []
            assert shop.states() == {"scale": "1", "other": "1"}


async def test_what_was_loaded_by_its_name_is_remembered_as_long_as_it_is_there(
    place: Path, monkeypatch: Patch
) -> None:
    async with open_shop(place, monkeypatch, ["scale"]) as shop:
        add_faulty(place / "faulty" / "1")
        with pytest.raises(RepositoryError, match="faulty/1"):
            await shop.catalogue.load("faulty")
        assert await shop.catalogue.reload() == []
        assert shop.states() == {"faulty": "UNAVAILABLE", "scale": "1"}


# Versions of learned caches -------------------------------------------------------------------------------------------


async def test_a_version_that_was_adopted_is_what_later_engines_use_of_the_same_caches(
    place: Path, monkeypatch: Patch
) -> None:
    async with open_shop(place, monkeypatch) as shop:
        await shop.engines.adopt("scale", "000001")
        shop.engine.die()
        await shop.ended()
        assert shop.engine.caches["scale"].version == shop.engines.used("scale") == "000001"
        shop.engines._wanted[shop.engines.serving.models["scale"]] = InUse("another", "000002")
        assert shop.engines.wanted("scale") == ""
        await shop.engines.change(shop.engines.serving, tried=())
        assert shop.engine.caches["scale"].version == BUILT


@pytest.mark.parametrize("newer", ["", "000002"])
async def test_a_version_that_is_refused_is_wanted_no_longer_unless_another_is(
    place: Path, monkeypatch: Patch, newer: str
) -> None:
    async with open_shop(place, monkeypatch) as shop:
        shop.machine.refused = {"000001"}
        shop.machine.meanwhile = lambda: wish(shop, newer)
        with pytest.raises(ConfigError):
            await shop.engines.adopt("scale", "000001")
        assert shop.engines.wanted("scale") == (newer or BUILT)
        with pytest.raises(Unavailable, match="no engine serves stranger"):
            await shop.engines.adopt("stranger", "000001")


@pytest.mark.parametrize("newer", ["", "000002"])
async def test_an_engine_that_cannot_use_what_is_wanted_takes_over_with_the_whole_network_or_what_came_to_be_wanted(
    place: Path, monkeypatch: Patch, newer: str
) -> None:
    async with open_shop(place, monkeypatch) as shop:
        failed = list[tuple[str, str]]()
        shop.engines.on_failed = lambda model, version: failed.append((model, version))
        await shop.engines.adopt("scale", "000001")
        shop.machine.refused = {"000001"}
        shop.machine.meanwhile = lambda: wish(shop, newer)
        await shop.engines.change(shop.engines.serving, tried=())
        assert failed == [("scale", "000001")]
        assert shop.engine.caches["scale"].version == shop.engines.wanted("scale") == (newer or FULL_DEPTH)


def wish(shop: Shop, version: str) -> None:
    """Have another version be wanted."""
    if version:
        shop.engines._wanted[shop.engines.serving.models["scale"]] = InUse("base", version)


def test_what_backends_import_is_told_before_an_engine_is_forked(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    places = []
    for name, backend in (("one", "openvino"), ("other", "eager")):
        described = {MODEL: json_bytes({"name": name, "backend": backend}), f"{STAGES}/0.json": b"{}"}
        ModelDirectory.create(tmp_path / name / "1", described)
        places.append(tmp_path / name / "1")
    ModelDirectory.create(tmp_path / "old" / "1", {MODEL: described[MODEL].replace(b"eager", b"openvino")})
    assert backend_imports(places, None) == ["openvino", "torch"]
    assert backend_imports(places[:1], None) == ["openvino"]
    assert backend_imports(places[1:], None) == backend_imports(places, "eager") == ["torch"]
    assert backend_imports([tmp_path / "old" / "1"], None) == ["openvino", "torch"]  # torch converts it
    assert backend_imports([tmp_path / "not there"], None) == []  # the engine says so
