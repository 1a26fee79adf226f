"""Runs stages for one worker: gathers inputs, keeps activations, asks lookups, and writes outputs to slots."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np
from torch import Tensor

from latebind.adaptation.controller import BUILT, number_of
from latebind.domain.actions import Run
from latebind.domain.config import EngineConfig
from latebind.domain.costs import ModelCosts
from latebind.domain.errors import ConfigError
from latebind.domain.events import Exited, StageDone
from latebind.domain.footprint import NOTHING, Footprint
from latebind.domain.model import ModelSpec
from latebind.engine.activations import Activations, Batch
from latebind.engine.aside import Aside
from latebind.engine.slots import SlotMemory
from latebind.engine.staging import HostStaging, Stream
from latebind.learned.head import Head
from latebind.learned.lookup import Lookup, load_lookups
from latebind.learned.stored import read_caches, with_caches
from latebind.program.device import HOST, find_device
from latebind.program.load import load_program
from latebind.program.program import Program, profile_program
from latebind.repository.directory import ModelDirectory
from latebind.sequence.program import Decoding, SequenceProgram, profile_sequence
from latebind.sequence.stored import is_stored_sequence, load_sequence


@dataclass(frozen=True, slots=True)
class _Caches:
    """The learned caches that a worker uses of a model: lookups by stage, of this version."""

    version: int
    lookups: Mapping[int, Lookup]


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """One model as one worker runs it; other workers have twins of it.

    `working` is the most bytes that a batch takes while it runs, beside weights and slots; 0 if that was not measured.
    """

    spec: ModelSpec
    costs: ModelCosts
    program: Program | SequenceProgram
    lookups: Mapping[int, Lookup]
    directory: ModelDirectory
    footprint: Footprint = NOTHING
    working: int = 0

    def twin(self) -> "LoadedModel":
        """Return the model for another worker, over the same weights."""
        lookups = {stage: lookup.twin() for stage, lookup in self.lookups.items()}
        return replace(self, program=self.program.twin(), lookups=lookups)


def load_model(path: Path, config: EngineConfig, *, streams: int = 1) -> LoadedModel:
    """Load a model directory, of which `streams` workers may run twins at the same time.

    If these are all workers, each may have a copy of the weights (`program/copies.py`). A profile that was measured on
    another machine is measured again here. Raises `RepositoryError`, and `ConfigError` if the device or backend is
    missing or cannot run this model.
    """
    directory = ModelDirectory.open(path)
    twins = streams if streams >= config.crew else 0
    if is_stored_sequence(directory):
        if config.device != HOST.type:
            raise ConfigError(f"{path} is a sequence model, not served on {config.device} yet: use --device cpu")
        sequence = load_sequence(
            directory, threads=config.threads, backend=config.backend, streams=streams, twins=twins
        )
        if not sequence.costs_fit:
            sequence = profile_sequence(sequence)
        return LoadedModel(sequence.spec, sequence.costs, sequence, {}, directory)
    device, threads, backend = find_device(config.device), config.threads, config.backend
    program = load_program(directory, threads=threads, backend=backend, device=device, streams=streams, twins=twins)
    if not config.exits:
        program = program.without_entry()
    if not program.costs_fit:
        program = profile_program(program)
    spec, costs = with_caches(program.spec, program.costs, read_caches(directory) if config.exits else None)
    if not config.exits:
        return LoadedModel(spec, costs, program, {}, directory)
    lookups = load_lookups(directory, backend=program.backend, threads=threads, device=device, streams=streams)
    return LoadedModel(spec, costs, program, lookups, directory)


class Worker:
    """One stream of execution. `run` is called by one thread at a time.

    Without `stream` it computes on the CPU. If not `compact`, rows of requests that have left stay in their batch. All
    workers of an engine share `owners`, those of `memory`; the driver tells them when a request ends.
    """

    def __init__(
        self,
        models: Mapping[str, LoadedModel],
        memory: SlotMemory,
        *,
        stream: Stream | None = None,
        compact: bool = True,
    ) -> None:
        self._models = models
        self.owners = memory.owners
        self._stream = stream or HostStaging(list(models), memory)
        self._slots = memory.by_name
        self._chains = {name: model.program for name, model in models.items() if isinstance(model.program, Program)}
        self._sequences = {
            name: _decoding(model, model.program, memory)
            for name, model in models.items()
            if isinstance(model.program, SequenceProgram)
        }
        self._caches = {name: _Caches(number_of(BUILT), model.lookups) for name, model in models.items()}
        self._activations = Activations(self.owners, compact=compact)
        asides = any(model.costs.aside for model in models.values())
        self._aside = Aside(self.owners, self._slots) if asides else None

    def report_exits_to(self, report: Callable[[Exited], None]) -> None:
        """Perform lookups aside from now on, and call `report`, on a thread of its own, for requests they answer."""
        if self._aside is not None:
            self._aside.start(report)

    def close(self) -> None:
        """Wait for a lookup aside that is under way."""
        if self._aside is not None:
            self._aside.close()

    def adopt(self, model: str, version: int, heads: Mapping[str, tuple[Head, float]] | None) -> None:
        """Use these heads and thresholds, by name, from the next stage on; None: those of `build`. From any thread.

        `version` is noted with each answer from then on.
        """
        built = self._models[model].lookups
        if heads is not None:
            adopted = {stage: lookup.with_heads(heads) for stage, lookup in built.items()}
            built = {stage: lookup for stage, lookup in adopted.items() if lookup is not None}
        self._caches[model] = _Caches(version, built)

    def run(self, action: Run) -> StageDone:
        """Run one stage. Requests whose answer is complete have it in their slots and are reported as exited, once."""
        sequence = self._sequences.get(action.model)
        if sequence is not None:
            if action.stage == 0:
                self.owners.begin(action, sequence.ended)
            return _run_sequence(sequence, action)
        with self._stream.running():
            return self._run_chain(action)

    def _run_chain(self, action: Run) -> StageDone:
        """Run a stage and ask the learned cache behind it. With lookups aside, no exits are reported here.

        If this raises, no request has an answer from it, and it may run again for any of them.
        """
        model, stages = self._models[action.model], self._chains[action.model].stages
        if action.stage == 0:
            batch = self._begin(action, stages=len(stages))
        else:
            batch = self._activations.take(action)
            action = _without_ended(action, batch)
            if not action.requests:
                return StageDone(action.worker)
        results = stages[action.stage](*batch.tensors)
        places = batch.places(action.requests)
        if action.stage + 1 == len(stages):
            self._end(action, results, places)
            return StageDone(action.worker)
        output = Batch(batch.requests, results)
        caches = self._caches[action.model]
        lookup = caches.lookups.get(action.stage)
        if lookup is None or not lookup.there:
            self._activations.keep(output)
            return StageDone(action.worker)
        activation = results[0] if isinstance(places, range) else results[0][places]
        if self._aside is not None and model.costs.aside:
            activation = activation.clone()
            self._stream.wait()  # another thread reads it
            self._activations.keep(output)
            self._aside.ask(lookup, caches.version, action, activation)
            return StageDone(action.worker)
        begun = time.monotonic()
        exited = self._look_up(lookup, caches.version, action, activation)
        self._activations.keep(output)
        return StageDone(action.worker, exited, time.monotonic() - begun)

    def _begin(self, action: Run, *, stages: int) -> Batch:
        """Return the inputs of the requests that begin with this stage."""
        self._activations.put_aside()
        if stages > 1:  # else nothing is kept, and one stage answers
            self.owners.begin(action)
        return Batch(action.requests, self._stream.inputs(action))

    def _look_up(self, lookup: Lookup, version: int, action: Run, activation: Tensor) -> tuple[int, ...]:
        """Write the answers of hits into their slots and return their requests; no request is answered twice."""
        answers, hits = lookup(activation)
        slots = self._slots[action.model]
        with self.owners.answering(action.requests, np.flatnonzero(hits).tolist()) as places:
            for place in places:
                slots.outputs[0][action.slots[place]] = answers[place]
                slots.versions[action.slots[place]] = version
        return tuple([action.requests[place] for place in places])

    def _end(self, action: Run, results: Sequence[Tensor], places: Sequence[int]) -> None:
        """Write the outputs of the network into the slots of the requests that have no answer yet."""
        if not self._models[action.model].lookups:
            self._stream.answer(action.model, action.slots, results, places)
            return
        wanted = self.owners.left_to_network(action.requests)
        slots = [action.slots[place] for place in wanted]
        self._slots[action.model].versions[slots] = self._caches[action.model].version
        self._stream.answer(action.model, slots, results, [places[place] for place in wanted])


def _without_ended(action: Run, batch: Batch) -> Run:
    """Return the action for the requests that have a row in the batch."""
    if action.requests == batch.requests:
        return action
    rows = set(batch.requests)
    left = [(request, slot) for request, slot in zip(action.requests, action.slots, strict=True) if request in rows]
    requests, slots = tuple([request for request, _ in left]), tuple([slot for _, slot in left])
    return msgspec.structs.replace(action, requests=requests, slots=slots)


def _decoding(model: LoadedModel, program: SequenceProgram, memory: SlotMemory) -> Decoding:
    slots = memory.by_name[model.spec.name]
    return Decoding(program, slots.inputs[0], slots.outputs[0])


def _run_sequence(sequence: Decoding, action: Run) -> StageDone:
    """Read the inputs or write one more token; requests whose answer is complete exit."""
    if action.stage == 0:
        sequence.read(action.slots)
        return StageDone(action.worker)
    complete = set(sequence.step(action.slots))
    owners = zip(action.requests, action.slots, strict=True)
    return StageDone(action.worker, tuple([request for request, slot in owners if slot in complete]))
