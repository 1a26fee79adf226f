"""The models of an engine as its workers run them: loaded once, then a twin for every worker, over the same weights.

Ebird's workers each have a copy (section VIII-E: 15.2 % more memory); it names sharing as the remedy.
"""

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat
from pathlib import Path

from latebind.domain.config import EngineConfig
from latebind.domain.costs import NOTHING, Footprint, ModelCosts
from latebind.domain.errors import ConfigError
from latebind.domain.model import ModelSpec
from latebind.engine.cores import at_once
from latebind.learned.lookup import NO_PROMISES, Lookup, Promises, load_lookups, promised_by_network, promises
from latebind.learned.metadata import read_caches, with_caches
from latebind.program.backends import Later, immediately
from latebind.program.device import HOST, NO_TORCH, find_device, has_torch
from latebind.program.load import load_program
from latebind.program.pieces import release_memory
from latebind.program.program import Program, profile_program
from latebind.repository.directory import SEQUENCE, ModelDirectory


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """One model as one worker runs it; other workers have twins of it.

    `working` is the most bytes that a batch takes while it runs, beside weights and slots; 0 if that was not measured.
    `promises` has the fidelity promised for its answers, by level of its operating curve.
    """

    spec: ModelSpec
    costs: ModelCosts
    program: Program
    lookups: Mapping[int, Lookup]
    directory: ModelDirectory
    footprint: Footprint = NOTHING
    working: int = 0
    promises: Promises = NO_PROMISES

    def twin(self) -> "LoadedModel":
        """Return the model for another worker, over the same weights."""
        lookups = {stage: lookup.twin() for stage, lookup in self.lookups.items()}
        return replace(self, program=self.program.twin(), lookups=lookups)

    def named(self, names: Mapping[str, str]) -> "LoadedModel":
        """Return the model under the name that `names` has for its directory, if any, and in its directory's version.

        That distinguishes versions of which one is a copy of the other.
        """
        path = self.directory.path
        name = names.get(str(path))
        return self if name is None else replace(self, spec=replace(self.spec, name=name, version=path.name))


def load_model(path: Path, config: EngineConfig, *, streams: int = 1, later: Later = immediately) -> LoadedModel:
    """Load a model directory, of which `streams` workers may run twins at the same time.

    If these are all workers, each may have a copy of the weights (`load.has_copies`). What only makes batches faster is
    left to `later`. A profile that was measured on another machine is measured again here. Raises `RepositoryError`,
    and `ConfigError` if the device or backend is missing or cannot run this model.
    """
    directory = ModelDirectory.open(path)
    twins = streams if streams >= config.worker_count else 0
    if SEQUENCE in directory.files:
        if config.device != HOST:
            raise ConfigError(f"{path} is a sequence model, not served on {config.device} yet: use --device cpu")
        if not has_torch():
            raise ConfigError(f"{path} is a sequence model, which torch decodes, and {NO_TORCH}")
        from latebind.sequence.program import profile_sequence  # noqa: PLC0415  (with torch)
        from latebind.sequence.stored import load_sequence  # noqa: PLC0415

        sequence = load_sequence(
            directory, threads=config.threads, backend=config.backend, streams=streams, twins=twins
        )
        if not sequence.costs_fit:
            sequence = profile_sequence(sequence)
        return LoadedModel(sequence.spec, sequence.costs, sequence, {}, directory)
    device, threads, backend = find_device(config.device), config.threads, config.backend
    program = load_program(
        directory, threads=threads, backend=backend, device=device, streams=streams, twins=twins, later=later
    )
    if not config.exits:
        program = program.without_entry()
    if not program.costs_fit:
        program = profile_program(program)
    if not config.exits:
        return as_served(program, directory, {}, config)
    lookups = load_lookups(
        directory, backend=program.backend, threads=threads, device=device, streams=streams, later=later
    )
    return as_served(program, directory, lookups, config)


def as_served(
    program: Program, directory: ModelDirectory, lookups: Mapping[int, Lookup], config: EngineConfig
) -> LoadedModel:
    """Return a model with the fidelity promised for its answers: by its lookups if it has any, else by its network."""
    spec, costs, promised = program.spec, program.costs, NO_PROMISES
    if config.exits:
        caches = read_caches(directory)
        spec, costs = with_caches(spec, costs, caches, floor=config.floor)
        promised = promises(caches, config.floor)
    if not spec.lookups:
        spec = replace(spec, promised=promised_by_network(directory, program.backend))
    return LoadedModel(spec, costs, program, lookups, directory, promises=promised)


OWN_NAMES: Mapping[str, str] = {}
LaterOf = Callable[[int, Callable[[], None]], None]  # `Later` for the model of this number


def load_for_workers(
    paths: Iterable[Path],
    config: EngineConfig,
    *,
    named: Mapping[str, str] = OWN_NAMES,
    later: LaterOf | None = None,
) -> list[list[LoadedModel]]:
    """Return the models of each worker, some under other names. Raises `RepositoryError` and `ConfigError`.

    What only makes batches faster is left to `later`, if that is given, with the number of the model, from 1 on.

    Memory that compiling left behind is returned to the system: 5 to 45 MB for models of 3 and 34.
    """
    streams, first = at_once(config), list[LoadedModel]()
    for number, path in enumerate(paths, 1):
        leave = immediately if later is None else partial(later, number)
        first.append(load_model(path, config, streams=streams, later=leave).named(named))
    by_worker = [first, *([model.twin() for model in first] for _ in range(1, config.worker_count))]
    with ThreadPoolExecutor(at_once(config)) as threads:
        list(threads.map(_warm_up, by_worker, config.granularities or repeat(None)))
    release_memory()
    return by_worker


def _warm_up(models: Iterable[LoadedModel], largest: int | None) -> None:
    """Run sequence models once with every batch size that this worker may get."""
    for model in models:
        if model.spec.kinds:
            from latebind.sequence.program import SequenceProgram, warm_up  # noqa: PLC0415  (with torch)

            assert isinstance(model.program, SequenceProgram)
            warm_up(model.program, largest or model.spec.max_batch)
