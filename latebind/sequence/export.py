"""Exports a module with `encode` and `step`: an encoder for each of a few input lengths, and one step."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import le
from typing import Protocol, cast

import torch
from torch import Tensor, nn

from latebind.domain.errors import ExportError
from latebind.program.export import Exported, export
from latebind.program.graph import Graph, Weight
from latebind.sequence.state import POSITION, TOKEN, Change, Part, SpecialTokens, State, change_of

TOKENS, LENGTH, LOGITS = "tokens", "length", "logits"
NEEDED: Mapping[str, tuple[type, str]] = {  # attributes of a sequence module: their type, and words for a refusal
    "start": (int, "int, the token that answers begin behind"),
    "end": (int, "int, the token that ends an answer"),
    "padding": (int, "int, the token behind short rows"),
    "longest_output": (int, "int, the most tokens of an answer"),
    "blank": (Mapping, "dict, shapes of the parts of the state that begin as zeros; may be empty"),
}
SHORTEST, LONGER = 8, 1.25  # tokens of the shortest encoder, and the ratio of one encoder's length to the one before


class SequenceModule(Protocol):
    """What a module needs to be served as a sequence model. Tokens are int64, rows padded with `padding`.

    An answer begins after `start`, ends with `end` and has at most `longest_output` tokens, `end` included. `blank`
    gives the parts of the state that begin as float32 zeros, each with the shape of one row; the others come from
    `encode`.
    """

    start: int
    end: int
    padding: int
    longest_output: int
    blank: Mapping[str, tuple[int, ...]]

    def encode(self, tokens: Tensor, length: Tensor) -> dict[str, Tensor]:
        """Return the state `(B, ...)` by name for `tokens` `(B, L)`; only the first `length` `(B,)` are not padding.

        Padding must not affect the result. If a shape depends on L, it may do so in one dimension, and `step` must not
        read what is behind `length` there.
        """

    def step(self, token: Tensor, position: Tensor, **state: Tensor) -> dict[str, Tensor]:
        """Return `logits` `(B, words)` for the token after `token` `(B,)` at `position` `(B,)`, and the changed state.

        A part of the state is returned whole, or without the dimension of its `longest_output` positions: then it is
        written at each row's position.
        """


@dataclass(frozen=True, slots=True)
class SequenceGraphs:
    """A sequence model as graphs over one set of weights: encoders by the input length that they are for, and the step.

    The step takes token, position and all `parts` of the state, in this order.
    """

    marks: SpecialTokens
    parts: tuple[Part, ...]
    encoders: dict[int, Graph]
    step: Graph
    weights: Mapping[str, Tensor]

    @property
    def graphs(self) -> tuple[Graph, ...]:
        """The encoders, then the step."""
        return (*self.encoders.values(), self.step)

    def faults(self, longest_input: int, longest_output: int) -> Iterator[str]:
        """Yield what does not fit: graphs of which one makes what the next does not take."""
        parts = {part.name: part for part in self.parts}
        given = [(spec.name, spec.shape) for spec in self.step.inputs]
        if given != [(TOKEN, ()), (POSITION, ()), *((part.name, part.shape) for part in self.parts)]:
            yield "step does not take the parts of the state"
        if list(self.encoders) != sorted(self.encoders) or max(self.encoders, default=0) != longest_input:
            yield f"there is no encoder for {longest_input} tokens"
        for length, graph in self.encoders.items():
            if [(spec.name, spec.shape) for spec in graph.inputs] != [(TOKENS, (length,)), (LENGTH, ())]:
                yield f"the encoder for {length} tokens takes something else"
            for spec in graph.output_specs():
                whole = parts[spec.name].shape if spec.name in parts else None
                fits = whole is not None and len(whole) == len(spec.shape) and all(map(le, spec.shape, whole))
                if not fits:
                    yield f"encode makes {spec.name!r} of shape {spec.shape} for {length} tokens, {whole} else"
        returned = {spec.name: spec for spec in self.step.output_specs()}
        if next(iter(returned)) != LOGITS or len(returned[LOGITS].shape) != 1:
            yield "step must return 'logits' (B, words): a number for each token that may come next"
        for name in sorted(returned.keys() - parts.keys() - {LOGITS}):
            yield f"step returns {name!r}, which is no part of the state: return it from encode as well"
        for part in self.parts:
            if part.change is Change.WRITTEN and part.shape[part.axis : part.axis + 1] != (longest_output,):
                yield f"{part.name!r} has no place for each of the {longest_output} tokens of an answer"


def is_sequence(module: nn.Module) -> bool:
    """Return whether a module is meant to be a sequence model."""
    return callable(getattr(module, "encode", None)) and callable(getattr(module, "step", None))


def as_sequence(module: nn.Module) -> SequenceModule:
    """Return the module as a sequence module; raises `ExportError` that names all that it lacks."""
    lacking = [
        f"{name!r} ({means})"
        for name, (type_, means) in NEEDED.items()
        if not isinstance(getattr(module, name, None), type_)
    ]
    if lacking:
        raise ExportError(
            f"{type(module).__name__} has encode and step, so it is a sequence model, but it lacks "
            f"{', '.join(lacking)}: give the class these attributes; docs/models.md has an example"
        )
    return cast(SequenceModule, module)


def lengths_for(longest: int) -> tuple[int, ...]:
    """Return the input lengths to make encoders for: each a quarter longer than the one before."""
    found = [longest]
    while found[-1] / LONGER >= SHORTEST:
        found.append(round(found[-1] / LONGER))
    return tuple(reversed(found))


def export_sequence(
    module: nn.Module, tokens: Tensor, *, tell: Callable[[str, float], None] = lambda text, share: None
) -> SequenceGraphs:
    """Export a sequence model for example rows `tokens` `(N, longest input)`. Raises `ExportError`."""
    sequence = as_sequence(module)
    length = torch.full((len(tokens),), tokens.shape[1])
    lengths = lengths_for(tokens.shape[1])
    exported: dict[str, Exported] = {}
    for number, size in enumerate(lengths):
        tell(f"exporting the encoder for {size} tokens", number / (len(lengths) + 1))
        rows = {TOKENS: tokens[:, :size].contiguous(), LENGTH: length.clamp(max=size)}
        exported[str(size)] = export(EncodeModule(module), rows)
    tell("exporting the step", len(lengths) / (len(lengths) + 1))
    parts = _parts(sequence, exported[str(lengths[-1])].graph)
    exported[TOKEN] = export(StepModule(module), _example(sequence, parts, len(tokens)))
    graphs, weights = _merged(exported)
    step = graphs.pop(TOKEN)
    returned = {spec.name: spec.shape for spec in step.output_specs()}
    changed = [change_of(part, returned.get(part.name), sequence.longest_output) for part in parts]
    marks = SpecialTokens(sequence.start, sequence.end, sequence.padding)
    encoders = {int(size): graph for size, graph in graphs.items()}
    found = SequenceGraphs(marks, tuple(changed), encoders, step, weights)
    for fault in found.faults(tokens.shape[1], sequence.longest_output):
        raise ExportError(fault)
    return found


class _Half(nn.Module):
    """One of the two functions of a sequence module."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.eval()


class EncodeModule(_Half):
    """Only the encoder."""

    def forward(self, tokens: Tensor, length: Tensor) -> State:
        """Return the state."""
        return cast(SequenceModule, self.module).encode(tokens, length)


class StepModule(_Half):
    """Only the step."""

    def forward(self, **given: Tensor) -> State:
        """Return logits and the changed parts."""
        return cast(SequenceModule, self.module).step(**given)


def _parts(sequence: SequenceModule, encoder: Graph) -> tuple[Part, ...]:
    made = [Part(spec.name, spec.dtype, spec.shape) for spec in encoder.output_specs()]
    blank = [Part(name, "float32", tuple(shape)) for name, shape in sequence.blank.items()]
    names = [part.name for part in (*made, *blank)]
    taken = {TOKEN, POSITION, LOGITS} & set(names)
    if taken or len(set(names)) != len(names):
        raise ExportError(f"the parts of the state are called {names}: give each its own name, none of them {taken}")
    return (*made, *blank)


def _example(sequence: SequenceModule, parts: tuple[Part, ...], rows: int) -> dict[str, Tensor]:
    given = {TOKEN: torch.full((rows,), sequence.start), POSITION: torch.zeros(rows, dtype=torch.int64)}
    state = {part.name: torch.ones(rows, *part.shape, dtype=getattr(torch, part.dtype)) for part in parts}
    return {**given, **state}


def _merged(exported: Mapping[str, Exported]) -> tuple[dict[str, Graph], dict[str, Tensor]]:
    """Return the graphs over one set of weights: those that are equal in several graphs are stored once."""
    graphs: dict[str, Graph] = {}
    weights: dict[str, Tensor] = {}
    for part, one in exported.items():
        names: dict[str, str] = {}
        for name, tensor in one.weights.items():
            there = weights.get(name)
            same = there is None or (there.shape == tensor.shape and torch.equal(there, tensor))
            names[name] = name if same else f"{part}.{name}"
            weights[names[name]] = tensor
        graphs[part] = one.graph.map_arguments(
            lambda argument, names=names: Weight(names[argument.name]) if isinstance(argument, Weight) else argument  # type: ignore[misc]
        )
    return graphs, weights
