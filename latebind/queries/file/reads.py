"""How nodes of a query file read raw inputs: each kind of preprocessing once, with its own tensors and sizes. Pure."""

import ast
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain, count
from keyword import iskeyword

from latebind.domain.model import ModelSpec, RawInput, Read, TensorSpec
from latebind.domain.sizes import Dim, Size, in_terms
from latebind.queries.file.source import Source
from latebind.queries.file.tables import WORD, WrittenInput

MOST_READS = 8  # of a query: a short text is read by all of them at once


@dataclass(frozen=True, slots=True)
class OneWay:
    """What is made of raw inputs as by `model`, for `node` and those after it that read in the same way.

    Its tensors are called after its `name`. `raw` has pairs: what the model reads, and the query's input.
    """

    name: str
    node: str
    model: ModelSpec
    raw: tuple[tuple[str, str], ...]

    @property
    def read(self) -> Read:
        """What the server has to read and make."""

        makes = tuple([(spec.name, f"{self.name}.{spec.name}") for spec in self.model.inputs])
        return Read(self.model.name, self.raw, makes)

    def dims(self) -> dict[str, Dim]:
        """Return the model's dimensions as the query calls them: texts have other lengths for each that reads them."""
        return {dim.name: replace(dim, name=f"{dim.name}_{self.name}") for dim in self.model.dims}

    def named(self, spec: TensorSpec) -> TensorSpec:
        """Return an input of the model with the query's dimensions."""
        own: dict[str, Size] = {name: dim.name for name, dim in self.dims().items()}
        return replace(spec, sizes=tuple([in_terms(size, own) for size in spec.sizes]))


class Reads:
    """All ways in which the nodes of a query read, in the order in which nodes were added.

    Models that read raw inputs in the same way have the same text in `readers`. `nodes` are the names of all nodes.
    """

    def __init__(self, source: Source, nodes: Collection[str], readers: Mapping[str, str]) -> None:
        self._source, self._nodes, self._readers = source, frozenset(nodes), readers
        self._ways: dict[object, OneWay] = {}  # by what makes two of them equal
        self.made: dict[str, OneWay] = {}  # by the names of the tensors that they make

    def __iter__(self) -> Iterator[OneWay]:
        return iter(self._ways.values())

    def add(self, node: str, model: ModelSpec, given: Mapping[str, ast.expr]) -> dict[str, ast.expr]:
        """Return the inputs of a model in a node that reads raw inputs: names of the tensors that are made of these.

        What was read in the same way before keeps its names. Raises `QueryError`.
        """
        pairs, known = list[tuple[str, str]](), {one.name for one in model.about.raw}
        for its in given:
            if known and its not in known:
                message = f"{model.name} reads {', '.join(sorted(known))}, not {its}"
                raise self._source.error(f"{message}: give it a node of its own", "nodes", node, "inputs", its)
        if not known:
            message = f"{model.name} takes tensors, which the models beside it make of what they read"
            raise self._source.error(f"{message}: give it a node of its own", "nodes", node, "models")
        for one in model.about.raw:
            if one.name not in given and one.optional:
                continue
            where = "nodes", node, "inputs", one.name
            source = given.get(one.name, ast.Name(one.name))
            if not isinstance(source, ast.Name):
                message = (
                    f"{model.name} reads a {one.media} there, which only clients can give: name an input of the query"
                )
                raise self._source.error(f"{'.'.join(where)}: {message}", *where)
            pairs.append((one.name, source.id))
        reader = self._readers.get(model.name, "")
        tensors = tuple([(spec.name, spec.padding) for spec in model.inputs])
        taken = {way.name for way in self} | (self._nodes - {node})
        own = next(one for one in chain([node], map(f"{node}_{{}}".format, count(1))) if one not in taken)
        same = reader, "" if reader else model.name, tuple(pairs), tensors
        way = self._ways.setdefault(same, OneWay(own, node, model, tuple(pairs)))
        if len(self._ways) > MOST_READS:
            message = f"the query reads what clients send in more than {MOST_READS} ways: leave some nodes out"
            raise self._source.error(message, "nodes", node)
        self.made |= dict.fromkeys([made for _, made in way.read.makes], way)
        return {its: ast.Name(made) for its, made in way.read.makes}

    def dims(self, known: Collection[str]) -> dict[str, Dim]:
        """Return the dimensions of what is made. Raises `QueryError` if one has a name that is `known` already."""
        found = dict[str, Dim]()
        for way in self:
            for dim in way.dims().values():
                if dim.name in known or dim.name in found:
                    message = f"the lengths of what {way.node} reads are called {dim.name} already: take another name"
                    raise self._source.error(message, "dims", dim.name)
                found[dim.name] = dim
        return found

    def raw(self, conditions: Collection[str]) -> dict[str, RawInput]:
        """Return the texts, pictures and sounds that clients give. Raises `QueryError`."""
        found: dict[str, tuple[RawInput, str]] = {}
        for way in self:
            media = {one.name: one.media for one in way.model.about.raw}
            for own, name in way.raw:
                where = "nodes", way.node, "inputs", own
                if name in self._nodes or name in conditions:
                    what = "node" if name in self._nodes else "condition"
                    message = (
                        f"{name} is a {what}, and only clients can give a {media[own]}: name an input of the query"
                    )
                    raise self._source.error(f"{'.'.join(where)}: {message}", *where)
                if not WORD.fullmatch(name) or iskeyword(name):
                    raise self._source.error(
                        f"{name[:200]!r} is not a valid input name: give it another one here", *where
                    )
                known, by = found.setdefault(name, (RawInput(name, media[own]), way.node))
                if known.media is not media[own]:
                    message = f"{name} is a {known.media} for {by} and a {media[own]} for {way.node}"
                    raise self._source.error(f"{message}: give the query an input for each", *where)
        return {name: raw for name, (raw, _) in found.items()}


def check_raw(source: Source, raw: Mapping[str, RawInput], declared: Mapping[str, object]) -> None:
    """Raise `QueryError` unless all raw inputs are declared, each as its own kind."""
    for name, one in raw.items():
        if name not in declared:
            message = f"{name}, a {one.media}, is not under [inputs], which names all or none: write [inputs.{name}]"
            raise source.error(message, "inputs")
        written = source.typed(WrittenInput, declared[name], "inputs", name)
        if written.dtype is not None or written.shape is not None:
            message = f'{name} is a {one.media}, not a tensor: write kind = "{one.media}", and no dtype and shape'
            raise source.error(f"inputs.{name}: {message}", "inputs", name)
        if written.kind not in (None, one.media.value):
            message = f'models read a {one.media} there: write kind = "{one.media}", or leave it out'
            raise source.error(f"inputs.{name}.kind is {written.kind!r:.50}: {message}", "inputs", name, "kind")
