"""Which version of learned caches engines use is what was last wanted; engines here are none, they only say so."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import pytest

from latebind.adaptation.controller import BUILT, FULL_DEPTH
from latebind.domain.config import EngineConfig, GenerationsConfig, PolicyConfig
from latebind.domain.errors import ConfigError
from latebind.engine.client import EngineClient
from latebind.engine.engines import Engines
from latebind.engine.order import EngineOrder, InUse
from latebind.forks.client import ForkServer
from latebind.repository.listing import Serving

PATH = Path("net/1")
SERVING = Serving({"net": PATH})


@dataclass
class Engine:
    """Uses versions of `net` as it is told, but not those that it `refuses`; before it does, `meanwhile` happens."""

    refuses: str = ""
    meanwhile: Callable[[], None] = lambda: None
    caches: dict[str, InUse] = field(default_factory=lambda: {"net": InUse("base", BUILT)})
    asked: int = 0

    async def adopt(self, model: str, version: str) -> None:
        self.asked += 1
        assert self.asked < 4, "it is asked again and again"
        self.meanwhile()
        if version == self.refuses:
            raise ConfigError(f"{version} is broken")
        self.caches[model] = replace(self.caches[model], version=version)


def engines_of(engine: Engine, wanted: InUse | None = None) -> Engines:
    engines = Engines(
        EngineOrder((), EngineConfig(), PolicyConfig()),
        GenerationsConfig(crashes=3, within=60.0),
        cast(ForkServer, None),
    )
    engines.serving, engines._engine = SERVING, cast(EngineClient, engine)
    if wanted is not None:
        engines._wanted[PATH] = wanted
    return engines


def test_a_version_of_caches_that_have_been_replaced_is_not_wanted() -> None:
    assert engines_of(Engine(), InUse("base", "000001")).wanted("net") == "000001"
    assert engines_of(Engine(), InUse("another", "000001")).wanted("net") == ""
    assert engines_of(Engine()).wanted("net") == ""


def bring(engine: Engine, wanted: InUse) -> tuple[Engines, list[tuple[str, str]]]:
    """Have an engine that is to take over use what is wanted; return also the versions that were told to fail."""
    engines, failed = engines_of(Engine(), wanted), list[tuple[str, str]]()
    engines.on_failed = lambda model, version: failed.append((model, version))
    asyncio.run(engines._bring_wanted(cast(EngineClient, engine), SERVING))
    return engines, failed


def test_an_engine_that_is_to_take_over_uses_what_is_wanted_of_its_caches() -> None:
    for base, version in (("base", "000001"), ("another", BUILT)):
        engine = Engine()
        assert bring(engine, InUse(base, "000001"))[1] == []
        assert engine.caches["net"].version == version


def test_an_engine_that_cannot_use_what_is_wanted_runs_the_whole_network() -> None:
    engine = Engine(refuses="000001")
    engines, failed = bring(engine, InUse("base", "000001"))
    assert failed == [("net", "000001")]
    assert engine.caches["net"].version == engines.wanted("net") == FULL_DEPTH


def test_what_comes_to_be_wanted_while_an_engine_refuses_a_version_is_what_it_uses() -> None:
    engine, engines = Engine(refuses="000001"), engines_of(Engine(), InUse("base", "000001"))

    def want_another() -> None:
        engines._wanted[PATH] = InUse("base", "000002")
        engine.meanwhile = lambda: None

    engine.meanwhile = want_another
    asyncio.run(engines._bring_wanted(cast(EngineClient, engine), SERVING))
    assert engine.caches["net"].version == engines.wanted("net") == "000002"


@pytest.mark.parametrize("newer", ["", "000002"])
def test_a_version_that_is_refused_is_wanted_no_longer_unless_another_is(newer: str) -> None:
    engine = Engine(refuses="000001")
    engines = engines_of(engine)

    def want_another() -> None:
        if newer:
            engines._wanted[PATH] = InUse("base", newer)

    engine.meanwhile = want_another
    with pytest.raises(ConfigError):
        asyncio.run(engines.adopt("net", "000001"))
    assert engines.wanted("net") == (newer or BUILT)


@pytest.mark.parametrize(
    ("crashes", "left_out"),
    [
        ([(0.0, "a"), (30.0, "a"), (59.0, "a")], {"a"}),
        ([(0.0, "a"), (30.0, "a"), (61.0, "a")], set()),  # those of long ago do not count
        ([(0.0, "ab"), (1.0, "c"), (2.0, "b"), (3.0, "b")], {"b"}),  # each model is counted by itself
    ],
)
def test_a_model_is_left_out_that_ran_at_three_crashes_within_a_minute(
    monkeypatch: pytest.MonkeyPatch, crashes: list[tuple[float, str]], left_out: set[str]
) -> None:
    engines = engines_of(Engine())
    for now, running in crashes:
        monkeypatch.setattr("latebind.engine.engines.time.monotonic", lambda now=now: now)
        assert engines._blame(running) == (set(engines.unavailable) == left_out != set())
    assert set(engines.unavailable) == left_out
