"""Runs stages for one worker: gathers inputs from slots, keeps activations between stages, looks up, writes answers."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from latebind.domain.actions import Run
from latebind.domain.config import EngineConfig
from latebind.domain.costs import ModelCosts
from latebind.domain.events import Exited, StageDone
from latebind.domain.model import ModelSpec
from latebind.engine.activations import Activations
from latebind.engine.aside import Aside
from latebind.engine.slots import SlotMemory
from latebind.learned.head import Head
from latebind.learned.lookup import Lookup, load_lookups
from latebind.learned.stored import read_caches, with_caches
from latebind.program.load import load_program
from latebind.program.program import Program, profile_program
from latebind.repository.directory import ModelDirectory
from latebind.sequence.decoding import Decoding
from latebind.sequence.measure import profile_sequence
from latebind.sequence.program import SequenceProgram
from latebind.sequence.stored import is_stored_sequence, load_sequence


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """One model as one worker runs it; other workers have twins of it."""

    spec: ModelSpec
    costs: ModelCosts
    program: Program | SequenceProgram
    lookups: Mapping[int, Lookup]
    directory: ModelDirectory

    def twin(self) -> "LoadedModel":
        """Return the model for another worker, over the same weights."""
        lookups = {stage: lookup.twin() for stage, lookup in self.lookups.items()}
        return replace(self, program=self.program.twin(), lookups=lookups)


def load_model(path: Path, config: EngineConfig, *, streams: int = 1) -> LoadedModel:
    """Load a model directory, of which `streams` workers may run twins at the same time.

    A profile that was taken elsewhere is taken anew. Raises `RepositoryError`.
    """
    directory = ModelDirectory.open(path)
    if is_stored_sequence(directory):
        sequence = load_sequence(directory, threads=config.threads, backend=config.backend, streams=streams)
        if not sequence.costs_fit:
            sequence = profile_sequence(sequence)
        return LoadedModel(sequence.spec, sequence.costs, sequence, {}, directory)
    program = load_program(directory, threads=config.threads, backend=config.backend, streams=streams)
    if not config.exits:
        program = program.without_entry()
    if not program.costs_fit:
        program = profile_program(program)
    spec, costs = with_caches(program.spec, program.costs, read_caches(directory) if config.exits else None)
    if not config.exits:
        return LoadedModel(spec, costs, program, {}, directory)
    lookups = load_lookups(directory, backend=program.backend, threads=config.threads, streams=streams)
    return LoadedModel(spec, costs, program, lookups, directory)


class Worker:
    """One stream of execution. `run` is called from one thread at a time."""

    def __init__(self, models: Mapping[str, LoadedModel], memory: SlotMemory) -> None:
        self._models = models
        self._slots = {
            name: (
                tuple(torch.from_numpy(rows) for rows in slots.inputs),
                tuple(torch.from_numpy(rows) for rows in slots.outputs),
            )
            for name, slots in zip(models, memory.models, strict=True)
        }
        self._answers = {name: slots.outputs[0] for name, slots in zip(models, memory.models, strict=True)}
        self._chains = {name: model.program for name, model in models.items() if isinstance(model.program, Program)}
        self._sequences = {
            name: Decoding(model.program, slots.inputs[0], slots.outputs[0])
            for (name, model), slots in zip(models.items(), memory.models, strict=True)
            if isinstance(model.program, SequenceProgram)
        }
        self._lookups = {name: model.lookups for name, model in models.items()}
        self._activations = Activations()
        self._aside = Aside(self._answers) if any(model.costs.aside for model in models.values()) else None

    def tell(self, report: Callable[[Exited], None]) -> None:
        """Have `report` hear, on a thread of its own, of those whom a lookup aside has answered."""
        if self._aside is not None:
            self._aside.report = report

    def close(self) -> None:
        """Let lookups aside end."""
        if self._aside is not None:
            self._aside.close()

    def adopt(self, model: str, heads: Mapping[str, tuple[Head, float]] | None) -> None:
        """Use these heads and thresholds by name from the next stage on; None: those of `build`. From any thread."""
        built = self._models[model].lookups
        if heads is not None:
            adopted = {stage: lookup.with_heads(heads) for stage, lookup in built.items()}
            built = {stage: lookup for stage, lookup in adopted.items() if lookup is not None}
        self._lookups[model] = built

    def run(self, action: Run) -> StageDone:
        """Run one stage; a member whose answer is complete has it in its slot and exits."""
        sequence = self._sequences.get(action.model)
        return self._run_chain(action) if sequence is None else _run_sequence(sequence, action)

    def _run_chain(self, action: Run) -> StageDone:
        """Run a stage and ask the learned cache behind it; where lookups run aside, nobody exits here."""
        model, stages = self._models[action.model], self._chains[action.model].stages
        aside = self._aside if model.costs.aside else None
        inputs_rows, outputs_rows = self._slots[action.model]
        if action.stage == 0:
            if aside is not None:
                aside.begin(action)
            self._activations.put_aside()
            inputs = tuple(_gather(rows, action.slots) for rows in inputs_rows)
        else:
            inputs = (self._activations.take(action),)
        results = stages[action.stage](*inputs)
        if action.stage + 1 == len(stages):
            with aside.ending(action) if aside is not None else nullcontext(range(len(action.slots))) as places:
                for rows, result in zip(outputs_rows, results, strict=True):
                    _scatter(rows, action.slots, result, places)
            return StageDone(action.worker)
        self._activations.keep(action, results[0])
        lookup = self._lookups[action.model].get(action.stage)
        if lookup is None:
            return StageDone(action.worker)
        if aside is not None:
            aside.ask(lookup, action, results[0].clone())
            return StageDone(action.worker)
        exited = self._look_up(lookup, action, results[0])
        if len(exited) == len(action.requests):
            self._activations.forget()
        return StageDone(action.worker, exited)

    def _look_up(self, lookup: Lookup, action: Run, activation: Tensor) -> tuple[int, ...]:
        """Write the answers of those that hit into their slots and return who they are."""
        answers, hits = lookup(activation)
        rows = self._answers[action.model]
        exited = []
        for place, hit in enumerate(hits.tolist()):
            if hit:
                rows[action.slots[place]] = answers[place]
                exited.append(action.requests[place])
        return tuple(exited)


def _run_sequence(sequence: Decoding, action: Run) -> StageDone:
    """Read, or write one token more; whoever has all of its answer exits."""
    if action.stage == 0:
        sequence.read(action.slots)
        return StageDone(action.worker)
    complete = set(sequence.step(action.slots))
    owners = zip(action.requests, action.slots, strict=True)
    return StageDone(action.worker, tuple([request for request, slot in owners if slot in complete]))


def _gather(rows: Tensor, slots: tuple[int, ...]) -> Tensor:
    """Return the rows of `slots` as one batch: a view where the slots follow each other, else a copy."""
    first = slots[0]
    if slots == tuple(range(first, first + len(slots))):
        return rows[first : first + len(slots)]
    return rows[list(slots)]


def _scatter(rows: Tensor, slots: tuple[int, ...], results: Tensor, places: Iterable[int]) -> None:
    """Copy `results` (B, *shape), of those at these places of the batch, into the rows of their `slots`."""
    for place in places:
        rows[slots[place]] = results[place]
