"""The sides that answer a query: how its models are picked, when, and whether answers may come early."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from latebind.domain.config import EngineConfig, PolicyConfig
from latebind.domain.errors import ConfigError
from latebind.domain.query import PlannerConfig
from latebind.engine.client import EngineClient
from latebind.engine.order import EngineOrder
from latebind.queries.file.definition import query_name
from latebind.repository.listing import find_queries, find_served

STATIC, REPLANNED, EXPECTED = "static", "replanned", "expected"
PLANNED = re.compile(r"(planner|replan|price)\s*=")


@dataclass(frozen=True, slots=True)
class Side:
    """A planner, and whether learned caches are used."""

    planner: PlannerConfig
    exits: bool = True


@dataclass(frozen=True, slots=True)
class Setting:
    """What all sides have in common: cores, workers of one thread, the backend of stages (none: as built)."""

    engine_cores: tuple[int, ...] = (1,)
    door_cores: tuple[int, ...] = (0,)
    workers: int = 1
    slots: int = 64
    backend: str | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Served:
    """A query and the directories of its models."""

    file: Path
    directories: tuple[Path, ...]

    @property
    def name(self) -> str:
        """The name that clients ask for."""
        return query_name(self.file)


BEST = Side(PlannerConfig(price=0.0), exits=False)  # with much time, the most accurate of each step


def sides(split: str) -> dict[str, Side]:
    """Return the sides that are compared if the deadline is split by `split`: equal or proportional."""
    return {
        STATIC: Side(PlannerConfig(split, replan=False), exits=False),
        REPLANNED: Side(PlannerConfig(split)),
        EXPECTED: Side(PlannerConfig()),
    }


def find_query(repository: Path, name: str | None) -> Served:
    """Return a query of a folder, the only one where none is named. Raises `ConfigError` where there is none."""
    there = {query_name(file): file for file in find_queries(repository)}
    if name is None and len(there) != 1:
        raise ConfigError(f"{repository} has {len(there)} queries ({', '.join(there)}): name one with --query")
    name = name or next(iter(there))
    if name not in there:
        raise ConfigError(f"there is no query {name!r} in {repository}; queries there: {', '.join(there) or 'none'}")
    directories, _ = find_served(repository, [name])
    return Served(there[name], tuple(directories))


@contextmanager
def planned(file: Path, planner: PlannerConfig) -> Iterator[Path]:
    """Write the query with another planner into a folder of its own, which exists inside the block."""
    with TemporaryDirectory(prefix="latebind-") as folder:
        copy = Path(folder) / file.name
        copy.write_text(with_planner(file.read_text(encoding="utf-8"), planner), encoding="utf-8")
        yield copy


def with_planner(text: str, planner: PlannerConfig) -> str:
    """Return the text of a query file with this planner instead of its own. Its keys stand before the first table."""
    lines = text.splitlines()
    first = next((number for number, line in enumerate(lines) if line.lstrip().startswith("[")), len(lines))
    kept = [line for line in lines[:first] if not PLANNED.match(line.strip())]
    keys = [f'planner = "{planner.name}"', f"replan = {str(planner.replan).lower()}"]
    keys += [f"price = {planner.price}"] if planner.price is not None else []
    return "\n".join([*keys, *kept, *lines[first:], ""])


async def started(served: Served, side: Side, setting: Setting) -> EngineClient:
    """Return an engine with a query and its models. Nothing is refused or dropped for being late: that is counted."""
    engine = EngineConfig(
        workers=setting.workers,
        cores=setting.engine_cores,
        slots=setting.slots,
        exits=side.exits,
        backend=setting.backend,
    )
    directories = tuple([str(path) for path in served.directories])
    with planned(served.file, side.planner) as file:
        return await EngineClient.start(
            EngineOrder(directories, engine, PolicyConfig(shed=False), queries=(str(file),))
        )
