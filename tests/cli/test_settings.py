"""Settings of a server: from a file, from options, and from the machine where neither says."""

import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import fields

from latebind.cli.settings import READ, SETTINGS
from latebind.domain.config import EngineConfig, ServeConfig
from latebind.domain.errors import ConfigError
from latebind.domain.model import NOTHING_KNOWN, About, Media, RawInput
from latebind.engine import cores
from latebind.engine.cores import beside_frontend, fitted, threads_here


@pytest.fixture
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    let_there_be(8, monkeypatch)


def let_there_be(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this a machine of so many cores."""
    monkeypatch.setattr(cores, "usable_cores", lambda config: len(config.cores) or count)


def workers_by(
    tmp_path: Path,
    text: str = "",
    *,
    on: str | None = None,
    cpus: float | None = None,
    texts: bool = False,
    **said: Any,
) -> tuple[int, int]:
    """Return how many workers there are, and the threads of each."""
    file = tmp_path / "latebind.toml"
    file.write_text(text)
    given = {one.name: None for one in SETTINGS.parameters()} | {"replica_cpus": cpus, **said}
    engine = fitted(*SETTINGS.read(file, given), texts=texts, on=on).engine
    return engine.worker_count, engine.threads


def test_models_that_give_memory_back_may_take_all_there_is_unless_a_budget_is_given(tmp_path: Path) -> None:
    def budget(text: str, **said: Any) -> int:
        file = tmp_path / "latebind.toml"
        file.write_text(text)
        return SETTINGS.read(file, {one.name: None for one in SETTINGS.parameters()} | said)[0].residency.budget

    assert budget("") == 0
    assert budget("", idle=300.0) == budget("[residency]\nidle = 300\n") > 1 << 28
    assert budget("[residency]\nidle = 300\n", memory="500MB") == 500_000_000


@pytest.mark.usefixtures("eight_cores")
def test_where_nobody_says_each_core_but_the_frontends_has_a_worker_and_what_is_said_holds(tmp_path: Path) -> None:
    assert workers_by(tmp_path) == (7, 1)
    assert workers_by(tmp_path, "[server]\nport = 1\n[engine]\nslots = 8\n") == (7, 1)
    assert workers_by(tmp_path, "[engine]\nthreads = 2\n") == (3, 2)
    assert workers_by(tmp_path, threads=3) == (2, 3)
    assert workers_by(tmp_path, cores="1,2") == (2, 1)
    assert workers_by(tmp_path, "[engine]\nworkers = 1\n") == (1, 1)
    assert workers_by(tmp_path, workers=2) == (2, 1)
    assert workers_by(tmp_path, "[engine]\ngranularities = [1, 2]\nthreads = 2\n") == (2, 2)
    with pytest.raises(ConfigError, match="both set the number of workers"):
        workers_by(tmp_path, "[engine]\ngranularities = [1, 2]\n", workers=2)
    assert workers_by(tmp_path, on="ray") == (1, 1)  # a replica has the cores that it asks for
    assert workers_by(tmp_path, on="ray", cpus=4.0) == (3, 1)
    assert workers_by(tmp_path, on="ray", cpus=0.5) == (1, 1)
    assert beside_frontend(EngineConfig(cores=(4, 5, 6))) == 3  # one is left to the frontend all the same
    assert beside_frontend(EngineConfig(cores=tuple(range(8)))) == 7


@pytest.mark.parametrize(
    ("there", "expected"),
    [(1, (1, 1)), (2, (1, 2)), (3, (1, 2)), (4, (1, 3)), (9, (1, 8)), (10, (2, 4)), (16, (2, 7)), (128, (8, 15))],
)
def test_models_that_read_texts_have_few_workers_of_many_threads(
    there: int, expected: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_there_be(there, monkeypatch)
    workers, threads = expected
    assert workers_by(tmp_path, texts=True) == expected
    assert workers_by(tmp_path, texts=True, on="ray", cpus=float(there)) == expected
    assert threads_here(About(raw=(RawInput("text", Media.TEXT),))) == threads  # what a build measures with
    assert threads_here(About(raw=(RawInput("picture", Media.PICTURE),))) == threads_here(NOTHING_KNOWN) == 1
    assert workers * threads <= max(2, there - 1)


@pytest.mark.usefixtures("eight_cores")
def test_what_is_said_holds_for_texts_too(tmp_path: Path) -> None:
    assert workers_by(tmp_path, texts=True, threads=2) == (3, 2)
    assert workers_by(tmp_path, "[engine]\nworkers = 4\n", texts=True) == (4, 1)
    assert workers_by(tmp_path, texts=True, cores="1") == (1, 1)
    assert workers_by(tmp_path, texts=True, cores="1,2,3") == (1, 3)
    assert workers_by(tmp_path, texts=True, on="ray") == (1, 1)
    assert workers_by(tmp_path, texts=True, device="cuda") == (1, 1)


def test_the_text_tells_of_every_key_once_and_of_no_other() -> None:
    keys = [f"{part.name}.{key.name}" for part in fields(ServeConfig) for key in fields(part.type)]
    assert sorted(f"{setting.part}.{setting.key}" for setting in SETTINGS) == sorted(keys)
    offered = [one.name for one in SETTINGS.parameters()]
    assert offered == [setting.option for setting in SETTINGS if setting.option]
    assert "policy.window" in keys
    assert "window" not in offered


def test_defaults_that_the_text_tells_are_those_of_the_configuration() -> None:
    read = {"yes": True, "no": False, "none": (), "any node": ""}
    compared = 0
    for setting in SETTINGS:
        default = getattr(getattr(ServeConfig(), setting.part), setting.key)
        told = re.search(r" Default: ([^:]+)\.$", setting.help)
        if told is None or (setting.option and not re.fullmatch(r"[\d.]+(GiB)?|yes|no", told[1])):
            assert setting.option, setting  # what has no option has a default that can be read
            continue
        value: Any = read.get(told[1], told[1])
        if isinstance(default, int | float) and not isinstance(default, bool):
            value = READ[setting.option](setting.option, float(told[1])) if setting.option == "deadline_ms" else value
            value = READ[setting.option](setting.option, told[1]) if setting.option == "cache_size" else float(value)
        assert value == default, setting
        compared += 1
    assert compared > 25
