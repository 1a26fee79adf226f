"""Exports a module with `encode` and `step`: an encoder for inputs of any length, and one step."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Protocol, cast

import torch
from torch import Tensor, nn

from latebind.domain.errors import ExportError
from latebind.domain.model import LENGTH
from latebind.domain.sizes import Dim, Size, size_of
from latebind.program.export import export, export_any_size, merged
from latebind.program.graph import Graph
from latebind.sequence.greedy import NO_RULES, Rules
from latebind.sequence.state import POSITION, TOKEN, WRITTEN, Change, Part, SpecialTokens, State, change_of

TOKENS, LOGITS = "tokens", "logits"
NEEDED: Mapping[str, tuple[type, str]] = {  # attributes of a sequence module: their type, and words for a refusal
    "start": (int, "int, the token after which answers begin"),
    "end": (int, "int, the token that ends an answer"),
    "padding": (int, "int, the token that pads short rows"),
    "longest_output": (int, "int, the most tokens of an answer"),
    "blank": (Mapping, "dict, shapes of the parts of the state that begin as zeros; may be empty"),
}


class SequenceModule(Protocol):
    """What a module needs to be served as a sequence model. Tokens are int64, rows padded with `padding`.

    An answer begins after `start`, ends with `end` and has at most `longest_output` tokens, `end` included. `blank`
    gives the parts of the state that begin as float32 zeros, each with the shape of one row; the others come from
    `encode`. If it names the dimension of the positions `"written"` instead of `longest_output`, the state grows:
    `step` takes parts with room for what has been read and written so far, not for the most there may be.

    It may have `rules`, by which tokens are forced or left out.
    """

    start: int
    end: int
    padding: int
    longest_output: int
    blank: Mapping[str, tuple[Size, ...]]

    def encode(self, tokens: Tensor, length: Tensor) -> dict[str, Tensor]:
        """Return the state `(B, ...)` by name for `tokens` `(B, L)`; only the first `length` `(B,)` are not padding.

        Padding must not affect the result. If a shape depends on L, it may do so in one dimension, and `step` must not
        read what is after `length` there.
        """

    def step(self, token: Tensor, position: Tensor, **state: Tensor) -> dict[str, Tensor]:
        """Return `logits` `(B, words)` for the token after `token` `(B,)` at `position` `(B,)`, and the changed state.

        A part of the state is returned whole, or without the dimension of its `longest_output` positions: then it is
        written at each row's position.
        """


@dataclass(frozen=True, slots=True)
class SequenceGraphs:
    """A sequence model as two graphs over one set of weights: the encoder, for inputs of any length, and the step.

    The step takes token, position and all `parts` of the state, in this order. `fixed` says what in the module's code
    keeps the encoder from being one graph for all lengths, "" if nothing does.
    """

    marks: SpecialTokens
    parts: tuple[Part, ...]
    encoder: Graph
    step: Graph
    weights: Mapping[str, Tensor]
    fixed: str = ""
    rules: Rules = NO_RULES

    def faults(self, longest_input: int, longest_output: int) -> Iterator[str]:
        """Yield what does not match: outputs of one graph that the next does not take."""
        parts = {part.name: part for part in self.parts}
        given = [(spec.name, spec.shape, spec.sizes) for spec in self.step.inputs]
        if given != [(TOKEN, (), ()), (POSITION, (), ()), *((one.name, one.shape, one.sizes) for one in self.parts)]:
            yield "step does not take the parts of the state"
        most: dict[Size, Size] = {LENGTH: longest_input, WRITTEN: longest_output}
        for part in self.parts:
            if part.sizes and [most.get(size, size) for size in part.sizes] != list(part.shape):
                yield (
                    f"{part.name!r} has rows of {list(part.sizes)}: if the state grows, a size is a number, or as "
                    f"much as was read ({LENGTH}) or written ({WRITTEN})"
                )
        taken = [(spec.name, spec.shape, spec.sizes) for spec in self.encoder.inputs]
        if taken != [(TOKENS, (longest_input,), (LENGTH,)), (LENGTH, (), ())]:
            yield f"the encoder does not take up to {longest_input} tokens"
        for spec in self.encoder.output_specs():
            if spec.name not in parts or spec.shape != parts[spec.name].shape:
                yield f"the encoder returns {spec.name!r} of shape {spec.shape}, which is not a part of the state"
        returned = {spec.name: spec for spec in self.step.output_specs()}
        if next(iter(returned)) != LOGITS or len(returned[LOGITS].shape) != 1:
            yield "step must return 'logits' (B, words): a number for each token that may come next"
        elif not self.rules.fit(returned[LOGITS].shape[0], longest_output):
            yield "the rules name tokens or positions that do not exist"
        for name in sorted(returned.keys() - parts.keys() - {LOGITS}):
            yield f"step returns {name!r}, which is not a part of the state: return it from encode as well"
        for part in self.parts:
            if part.change is Change.WRITTEN and part.shape[part.axis : part.axis + 1] != (longest_output,):
                yield f"{part.name!r} does not have a place for each of the {longest_output} tokens of an answer"


def is_sequence(module: nn.Module) -> bool:
    """Return whether a module is meant to be a sequence model."""
    return callable(getattr(module, "encode", None)) and callable(getattr(module, "step", None))


def as_sequence(module: nn.Module) -> SequenceModule:
    """Return the module as a sequence module; raises `ExportError`, which names everything that it lacks."""
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


def export_sequence(
    module: nn.Module, tokens: Tensor, *, on_progress: Callable[[str, float], None] = lambda text, share: None
) -> SequenceGraphs:
    """Export a sequence model for example rows `tokens` `(N, longest input)`. Raises `ExportError`."""
    sequence, longest = as_sequence(module), tokens.shape[1]
    rows = {TOKENS: tokens, LENGTH: torch.ones(len(tokens), dtype=torch.int64)}  # which any row has
    on_progress("exporting the encoder", 0.0)
    dims, sizes = (Dim(LENGTH, 1, longest),), {TOKENS: (LENGTH,)}
    encoder, fixed = export_any_size(EncodeModule(module), rows, dims=dims, sizes=sizes)
    on_progress("exporting the step", 0.5)
    parts = _parts(sequence, encoder.graph)
    grown = {part.name: part.sizes for part in parts if part.sizes}
    named = {size for sizes in grown.values() for size in sizes}
    step = export(
        StepModule(module),
        _example(sequence, parts),
        dims=[dim for dim in (*dims, Dim(WRITTEN, 1, sequence.longest_output)) if dim.name in named],
        sizes=grown,
    )
    graphs, weights = merged({"": encoder, TOKEN: step})
    returned = {spec.name: spec.shape for spec in graphs[TOKEN].output_specs()}
    changed = [change_of(part, returned.get(part.name), sequence.longest_output) for part in parts]
    marks = SpecialTokens(sequence.start, sequence.end, sequence.padding)
    rules = getattr(sequence, "rules", NO_RULES)
    found = SequenceGraphs(marks, tuple(changed), padded(graphs[""], marks), graphs[TOKEN], weights, fixed, rules)
    for fault in found.faults(longest, sequence.longest_output):
        raise ExportError(fault)
    return found


def padded(encoder: Graph, marks: SpecialTokens) -> Graph:
    """Return an encoder with the token that pads short rows, which graph files do not contain."""
    tokens, *others = encoder.inputs
    return replace(encoder, inputs=(replace(tokens, padding=marks.padding), *others))


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
    grows = any(WRITTEN in sizes for sizes in sequence.blank.values())
    made = [
        Part(spec.name, spec.dtype, spec.shape, sizes=spec.sizes if grows else ()) for spec in encoder.output_specs()
    ]
    blank = []
    for name, sizes in sequence.blank.items():
        shape = tuple(size_of(size, {WRITTEN: sequence.longest_output}) for size in sizes)
        blank.append(Part(name, "float32", shape, sizes=() if shape == tuple(sizes) else tuple(sizes)))
    names = [part.name for part in (*made, *blank)]
    taken = {TOKEN, POSITION, LOGITS} & set(names)
    if taken or len(set(names)) != len(names):
        raise ExportError(f"the parts of the state are called {names}: give each its own name, none of them {taken}")
    return (*made, *blank)


def _example(sequence: SequenceModule, parts: tuple[Part, ...]) -> dict[str, Tensor]:
    given = {TOKEN: torch.tensor([sequence.start]), POSITION: torch.zeros(1, dtype=torch.int64)}
    state = {part.name: torch.ones(1, *part.shape, dtype=getattr(torch, part.dtype)) for part in parts}
    return {**given, **state}
