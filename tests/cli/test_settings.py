"""Settings of a server: from a file, from options, and from the machine where neither says."""

from pathlib import Path
from typing import Any

import pytest

from latebind.cli.settings import SETTINGS
from latebind.domain.config import EngineConfig
from latebind.domain.errors import ConfigError
from latebind.engine import cores
from latebind.engine.cores import beside_frontend


@pytest.fixture
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "usable_cores", lambda config: len(config.cores) or 8)


def crew(
    tmp_path: Path, text: str = "", *, on: str | None = None, cpus: float | None = None, **said: Any
) -> tuple[int, int]:
    """Return how many workers there are, and the threads of each."""
    file = tmp_path / "latebind.toml"
    file.write_text(text)
    given = {one.name: None for one in SETTINGS.parameters()} | {"replica_cpus": cpus, **said}
    engine = SETTINGS.read(file, given, on=on).engine
    return engine.crew, engine.threads


@pytest.mark.usefixtures("eight_cores")
def test_where_nobody_says_each_core_but_the_frontends_has_a_worker_and_what_is_said_holds(tmp_path: Path) -> None:
    assert crew(tmp_path) == (7, 1)
    assert crew(tmp_path, "[server]\nport = 1\n[engine]\nslots = 8\n") == (7, 1)
    assert crew(tmp_path, "[engine]\nthreads = 2\n") == (3, 2)
    assert crew(tmp_path, threads=3) == (2, 3)
    assert crew(tmp_path, cores="1,2") == (2, 1)
    assert crew(tmp_path, "[engine]\nworkers = 1\n") == (1, 1)
    assert crew(tmp_path, workers=2) == (2, 1)
    assert crew(tmp_path, "[engine]\ngranularities = [1, 2]\nthreads = 2\n") == (2, 2)
    with pytest.raises(ConfigError, match="both say how many workers there are"):
        crew(tmp_path, "[engine]\ngranularities = [1, 2]\n", workers=2)
    assert crew(tmp_path, on="ray") == (1, 1)  # a replica has the cores that it asks for
    assert crew(tmp_path, on="ray", cpus=4.0) == (3, 1)
    assert crew(tmp_path, on="ray", cpus=0.5) == (1, 1)
    assert beside_frontend(EngineConfig(cores=(4, 5, 6))) == 3  # one is left to the frontend all the same
    assert beside_frontend(EngineConfig(cores=tuple(range(8)))) == 7
