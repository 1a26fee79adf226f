"""`python -m research validate`: simulated latencies beside live ones."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from random import Random
from typing import Annotated

import torch
import typer

from latebind.bench.client import Array
from latebind.bench.rounds import Progress
from latebind.bench.subject import Setting
from latebind.cli.bench.options import Backend, Conditions, DataOption, Page
from latebind.cli.console import JsonFile, console, reporting
from latebind.cli.sources import load_rows
from latebind.domain.errors import ConfigError
from latebind.program.stored import read_spec_and_costs
from latebind.repository.directory import ModelDirectory
from latebind.repository.listing import find_models
from research.live.sides import chosen
from research.mcache.live.sides import LATE, LRU, SIDES
from research.mcache.live.sides import Setting as MemorySetting
from research.mcache.live.zoo import made_up, weigh
from research.told import ByPart, Files, Told, tell_parts
from research.validate import live, loads, memory, plots
from research.validate.networks import NETWORKS, build, build_many
from research.validate.pauses import Pauses, pauses
from research.validate.report import Load, rows

MOST_ROWS = 2_000
PAGE_TEXT = (
    "The same requests at the same times, live and on the virtual clock. Costs were measured in the very engines, "
    "between the blocks that are compared."
)


class Part(StrEnum):
    """The parts of the benchmark."""

    LOADS = "loads"
    MEMORY = "memory"


@dataclass(frozen=True, slots=True)
class Asked:
    """The options of the command. Without a `repository`, models are built in `scratch`."""

    repository: Path | None
    scratch: Path
    models: tuple[str, ...]
    rows: Sequence[Mapping[str, Array]]  # none: they are made up
    policies: tuple[str, ...]
    plan: live.Plan
    setting: Setting
    memory: memory.Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """The number and length of blocks of requests, and the memory."""

    load: Annotated[
        float, typer.Option(min=0.01, help="Offered load, as a multiple of each policy's highest throughput.")
    ] = 0.7
    deadline: Annotated[
        float, typer.Option(min=1.0, help="The deadline, as a multiple of the time that one request takes alone.")
    ] = 10.0
    rounds: Annotated[
        int, typer.Option(min=1, help="How often each engine is visited; for memory, how many rounds there are.")
    ] = 5
    blocks: Annotated[
        int, typer.Option(min=1, help="How many blocks of requests a visit has, or for memory a round.")
    ] = 5
    share: Annotated[
        float, typer.Option(min=0.01, max=1.0, help="For memory: the share of what all models take that may be used.")
    ] = 0.5
    side: Annotated[
        list[str] | None,
        typer.Option(help=f"For memory, the policy of a side: {'; '.join(SIDES)}. Default: late and lru."),
    ] = None

    def plan(self) -> live.Plan:
        """Return the plan for models that are all in memory."""
        return live.Plan(self.load, self.deadline, self.rounds, self.blocks)

    def in_less(self, seed: int) -> memory.Plan:
        """Return the plan for many models in less memory than they take. Raises `ConfigError` for an unknown side."""
        sides = tuple(chosen(SIDES, self.side or (LATE, LRU)))
        return memory.Plan(share=self.share, rounds=self.rounds, blocks=self.blocks, sides=sides, seed=seed)


def validate(
    repository: Annotated[
        Path | None,
        typer.Argument(help="A folder of models. Default: two models are built, and seven for the part memory."),
    ] = None,
    *,
    part: Annotated[
        list[Part] | None,
        typer.Option(
            help="What to validate. loads: models and policies; memory: many models in less memory than they take. "
            "Default: both."
        ),
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option(help="Take only this model of the folder; may be repeated.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="The rows to send: an .npz file or package.module:function. Default: made up.")
    ] = None,
    data_option: DataOption = None,
    policy: Annotated[
        list[str] | None, typer.Option(help=f"Take only this policy: {', '.join(live.POLICIES)}; may be repeated.")
    ] = None,
    played: Played,
    backend: Backend = None,
    conditions: Conditions,
    page: Page = None,
    json_file: JsonFile = None,
) -> None:
    """Compare simulated latencies with those of live engines: the same requests, times and deadlines.

    Every model has an engine for each policy, all on the same core. Rounds visit them in turn. A visit plays blocks of
    requests at random times, and before and after each block a stretch at rising rates, from which it calibrates the
    costs of launches and messages and the speed of the machine. Of the blocks, the simulator is told only when clients
    sent requests and where these left the network. A ratio is the median over the rounds, simulated over live.

    Latencies are those of clients of the engine, without HTTP. With --part memory, models are loaded and evicted, as in
    `python -m research residency-live`.

    Examples:

    * `python -m research validate --page out/validate.html`
    * `python -m research validate models --part loads --model resnet56 --data images.npz`
    """
    with reporting(), tempfile.TemporaryDirectory() as scratch:
        asked = Asked(
            repository,
            Path(scratch),
            tuple(model or ()),
            _rows(data, data_option),
            tuple(chosen(live.POLICIES, policy or ())),
            played.plan(),
            conditions.setting(backend),
            played.in_less(conditions.seed),
        )
        cores = (conditions.door_core, conditions.engine_core)
        torch.set_num_threads(1)
        away = [pauses(core) for core in cores]
        console.print(f"{played.rounds} rounds, seed {conditions.seed}; {_away(away)}")

        def figures(found: Mapping[Part, Told]) -> object:
            parts: dict[str, object] = {one: {"tables": told.tables, "rounds": told.raw} for one, told in found.items()}
            return {"plan": asdict(asked.plan), "pauses": away, **parts}

        files = Files(page=page, title="Simulated beside live", text=PAGE_TEXT, json_file=json_file, figures=figures)
        found = tell_parts(part or Part, RUN, asked, files)
        away += [pauses(core) for core in cores]
        console.print(f"at the end {_away(away[len(cores) :])}")
        files.write(found)


def _rows(data: str | None, given: Sequence[str] | None) -> list[dict[str, Array]]:
    """Return the rows `(1, *shape)` by input, none if no data are given."""
    if data is None:
        return []
    inputs, _ = load_rows(data, given)
    count = min(map(len, inputs.values()))
    if count > MOST_ROWS:
        console.print(f"of {count:,} rows of --data the first {MOST_ROWS:,} are sent")
    rows = range(min(MOST_ROWS, count))
    return [{name: array[row : row + 1] for name, array in inputs.items()} for row in rows]


def _loads(asked: Asked, tell: Progress) -> Told:
    folder = asked.repository
    if folder is None:
        names = list(chosen(NETWORKS, asked.models))
        folder = build(asked.scratch / "loads", names, asked.setting.backend or "openvino", tell)
    paths = {path.parent.name: path for path in find_models(folder, asked.models)}
    specs = {name: read_spec_and_costs(ModelDirectory.open(path))[0] for name, path in paths.items()}
    if any(spec.kinds for spec in specs.values()):
        raise ConfigError(
            "sequence models are simulated beside live ones by `python -m research live`: name others with --model"
        )
    sent = {name: asked.rows or made_up(spec, Random(asked.setting.seed)) for name, spec in specs.items()}
    found = loads.run(paths, asked.policies, sent, asked.plan, asked.setting, tell)
    title = f"live / simulated, {asked.plan.load:.0%} of what each answers, due after {asked.plan.deadline:g} x alone"
    return _told(title, found, asked.setting.seed)


def _memory(asked: Asked, tell: Progress) -> Told:
    zoo = weigh(asked.repository or build_many(asked.scratch / "memory", tell), tell)
    found = memory.run(zoo, asked.memory, MemorySetting(), tell)
    title = f"live / simulated, {len(zoo.models)} models in {asked.memory.share:.0%} of {zoo.size / 1e6:.0f} MB"
    return _told(title, found, asked.setting.seed)


def _told(title: str, found: Sequence[Load], seed: int) -> Told:
    figures = {
        f"{one.model}, {one.policy}": [
            {"live": each.live.tolist(), "simulated": [run.tolist() for run in each.simulated]} for each in one.rounds
        ]
        for one in found
    }
    return Told(
        {title: rows(found, seed)},
        lambda: [plots.quantile_figure(found), *map(plots.distribution_figure, found)],
        figures,
    )


def _away(every: Sequence[Pauses]) -> str:
    text = ", ".join(f"core {one.core} {one.share:.1%}, {one.longest * 1e3:.1f} ms at most" for one in every)
    return f"cores were away from a thread that spins: {text}"


RUN: ByPart[Part, Asked] = {Part.LOADS: _loads, Part.MEMORY: _memory}
