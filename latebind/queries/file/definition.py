"""A query file: its keys, checked against the models that it names, and its expressions put together. Pure.

`docs/query-files.md` describes the file, `language` has its expressions.
"""

import ast
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from pathlib import Path

from latebind.domain.errors import QueryError
from latebind.domain.model import (
    NOTHING_KNOWN,
    About,
    ModelSpec,
    StepInputs,
    StepSpec,
    Task,
    TensorSpec,
)
from latebind.domain.query import Node, PlannerConfig, Query
from latebind.domain.sizes import Dim, Size, in_terms, names_in, size_of
from latebind.queries import PLANNERS
from latebind.queries.file.language import condition, parse, tensor
from latebind.queries.file.reads import Reads, check_raw
from latebind.queries.file.source import Source
from latebind.queries.file.tables import (
    WORD,
    WrittenNode,
    WrittenQuery,
    accuracies_of,
    check_alike,
    check_names,
    declared_input,
    input_of,
    largest,
    models_of,
)
from latebind.queries.file.wiring import (
    EITHER,
    INPUT,
    Apply,
    DefinedQuery,
    Kind,
    Ref,
    Tensor,
    Wiring,
    all_of,
    needs,
    nodes_of,
    refs_in,
)
from latebind.repository.directory import NAME

ENDING = ".query.toml"
ASKED = frozenset({Task.EMBED, Task.CLASSIFY, Task.RERANK})  # tasks that a query may have

MOST_TRIED = 1 << 16  # sizes for which a computed one is compared with what a model allows


def read_query(
    path: Path,
    models: Mapping[str, ModelSpec],
    accuracies: Mapping[str, float],
    readers: Mapping[str, str] | None = None,
) -> DefinedQuery:
    """Return the query in a file, checked against `models`; `accuracies` are those measured by their builds.

    Models that read raw inputs in the same way have the same text in `readers`.

    Raises `QueryError` as `FILE:LINE: what is wrong, and what to do`.
    """
    try:
        return _Reading(path, models, accuracies, readers or {}).query()
    except RecursionError:
        message = "nodes name each other over too many steps: write each after those that it names"
        raise QueryError(f"{path}:1: {message}") from None


def model_names(path: Path) -> tuple[str, ...]:
    """Return the models that a query file names, each once, without checking the rest of the file."""
    source, written = _opened(path)
    nodes = [source.typed(WrittenNode, node, "nodes", name) for name, node in written.nodes.items()]
    return tuple(dict.fromkeys(model for node in nodes for model in node.models))


def query_name(path: Path) -> str:
    """Return the name of the query in a file, which is the file's name. Raises `QueryError` if it is not valid."""
    name = path.name.removesuffix(ENDING)
    if name == path.name or not NAME.fullmatch(name):
        wanted = "letters, digits, '.', '_' and '-', beginning with a letter or digit, 128 at most"
        raise QueryError(f"{path} is not a valid name for a query: call it NAME{ENDING}, with a NAME of {wanted}")
    return name


def _opened(path: Path) -> tuple[Source, WrittenQuery]:
    source = Source.read(path)
    written = source.typed(WrittenQuery, source.values)
    if not written.nodes:
        raise source.error('there are no nodes: write one as [nodes.NAME] with models = ["..."]')
    return source, written


class _Reading:
    """One pass over a file. A step or condition is read when first named, so it comes after all that it names.

    It looks up what names in expressions stand for (`language.Names`).
    """

    def __init__(
        self,
        path: Path,
        models: Mapping[str, ModelSpec],
        measured: Mapping[str, float],
        readers: Mapping[str, str],
    ) -> None:
        self._source, self._written = _opened(path)
        self.name = query_name(path)
        if self.name in models:
            raise self._source.error(f"there is a model {self.name} as well: give the query's file another name")
        check_names(self._source, self._written)
        self._measured = measured
        self._reads = Reads(self._source, self._written.nodes, readers)
        self._parsed = {name: self._parse(text, "conditions", name) for name, text in self._written.conditions.items()}
        self._given = {name: self._given_for(name, value, models) for name, value in self._written.nodes.items()}
        self._dims = self._read_dims()
        self._raw = self._reads.raw(self._parsed)
        self._inputs = self._read_inputs()
        self._computed: list[tuple[str, Dim, tuple[str, ...]]] = []  # sizes, to compare with what a model takes there
        self._conditions: dict[str, Tensor] = {}
        self._nodes: dict[str, Node] = {}  # in the order in which they can run, like the next three
        self._steps: list[StepSpec] = []
        # By node, for each of its models: its dimensions in terms of the query's; and what it takes.
        self._sizes: dict[str, list[dict[str, Size]]] = {}
        self._takes: list[tuple[tuple[Tensor, ...], ...]] = []
        self._whens: list[Tensor | None] = []
        self._under_way: dict[str, list[str]] = {"nodes": [], "conditions": []}  # outer ones first

    def query(self) -> DefinedQuery:
        """Return what the file describes."""
        source, written = self._source, self._written
        if written.planner not in PLANNERS:
            raise source.error(f"there is no planner {written.planner!r:.100}: take {', '.join(PLANNERS)}", "planner")
        for name in written.nodes:
            self._number(name)
        for name in written.conditions:
            self._condition(name)
        outputs = self._read_outputs()
        self._check_used(list(outputs.values()))
        dims = self._used_dims()
        spec = ModelSpec(
            name=self.name,
            version=written.version,
            inputs=tuple(largest(one, dims) for one in self._inputs.values()),
            outputs=tuple(
                largest(TensorSpec(each, one.kind.dtype, (), sizes=one.kind.shape, labels=one.kind.texts), dims)
                for each, one in outputs.items()
            ),
            stages=len(self._nodes),
            max_batch=min(model.max_batch for given in self._given.values() for model in given.models),
            steps=tuple(self._steps),
            dims=dims,
            about=self._about(next(iter(outputs.values()))),
            reads=tuple([way.read for way in self._reads]),
        )
        planner = PlannerConfig(written.planner, written.replan)
        query = Query(spec, tuple(self._nodes.values()), planner, (written.deadline_ms or 0.0) / 1e3)
        return DefinedQuery(query, Wiring(tuple(self._takes), tuple(self._whens), tuple(outputs.values())))

    # Names in expressions ---------------------------------------------------------------------------------------------

    def alone(self, name: str) -> Tensor:
        """Return the input or condition of this name."""
        if name in self._parsed:
            return self._condition(name)
        if name in self._inputs:
            spec = self._inputs[name]
            below = spec.limit if spec.least >= 0 else None
            return Ref(INPUT, list(self._inputs).index(name), Kind(spec.dtype, spec.sizes or spec.shape, below))
        if name in self._raw:
            message = f"{name} is a {self._raw[name].media}, not a tensor"
            raise QueryError(f"{message}: only models can read it, as an input of a node")
        if name in self._given:
            outputs = ", ".join(f"{name}.{output}" for output in self._given[name].gives)
            raise QueryError(f"{name} is a node: take one of its outputs, {outputs}")
        known = ", ".join((*(self._raw or self._inputs), *self._parsed)) or "none"
        raise QueryError(
            f"nothing is called {name:.100}: there are inputs and conditions {known:.500}; an input that no model "
            "takes unchanged needs its dtype and shape in [inputs]"
        )

    def of_node(self, name: str, output: str) -> Ref:
        """Return an output of a node."""
        if name not in self._given:
            raise QueryError(f"there is no node {name:.100}: there are {', '.join(self._given):.500}")
        gives = self._given[name].gives
        if output not in gives:
            raise QueryError(f"{name} has no output {output!r:.100}: it has {', '.join(gives):.500}")
        number, kind = self._number(name), gives[output]
        shape, *others = {tuple([in_terms(size, sizes) for size in kind.shape]): None for sizes in self._sizes[name]}
        if others:
            message = f"{name}.{output} is as long as what each model of {name} reads, and they read in different ways"
            raise QueryError(f"{message}: give each a node of its own")
        return Ref(number, list(gives).index(output), replace(kind, shape=shape))

    @contextmanager
    def _reading(self, table: str, name: str) -> Iterator[None]:
        """Raise `QueryError` if this leads back to itself."""
        under_way = self._under_way[table]
        if name in under_way:
            around = " -> ".join([*under_way[under_way.index(name) :], name])
            raise self._source.error(f"{table} form a cycle, {around}: remove one of these references", table, name)
        under_way.append(name)
        yield
        under_way.pop()

    def _condition(self, name: str) -> Tensor:
        if name not in self._conditions:
            with self._reading("conditions", name), self._source.about("conditions", name):
                self._conditions[name] = condition(self._parsed[name], self)
        return self._conditions[name]

    # Nodes ------------------------------------------------------------------------------------------------------------

    def _parse(self, value: object, *keys: str) -> ast.expr:
        """Return the expression under these keys, parsed."""
        text = self._source.typed(str, value, *keys)
        with self._source.about(*keys):
            return parse(text)

    def _given_for(self, name: str, value: object, models: Mapping[str, ModelSpec]) -> "_Given":
        """Return the table `[nodes.NAME]`, with expressions parsed."""
        written = self._source.typed(WrittenNode, value, "nodes", name)
        chosen = models_of(self._source, name, written.models, models)
        given = {one: self._parse(text, "nodes", name, "inputs", one) for one, text in written.inputs.items()}
        when = None if written.when is None else self._parse(written.when, "nodes", name, "when")
        known, raw = [spec.name for spec in chosen[0].inputs], [one.name for one in chosen[0].about.raw]
        for one in written.inputs:
            if one not in (*known, *raw):
                where, take = ("nodes", name, "inputs", one), ", ".join((*raw, *known))
                raise self._source.error(f"{'.'.join(where):.200} is not known here: take {take}", *where)
        if raw and not any(one in known for one in given):
            check_alike(self._source, name, chosen, "outputs")
            return _Given(written, chosen, tuple([self._reads.add(name, model, given) for model in chosen]), when)
        if beside := [one for one in given if one in raw]:
            where, other = ("nodes", name, "inputs", beside[0]), next(one for one in given if one in known)
            raise self._source.error(f"{beside[0]} takes the place of {other} and the like: give one of them", *where)
        check_alike(self._source, name, chosen, "inputs")
        check_alike(self._source, name, chosen, "outputs")
        for one in known:
            if one not in given and not one.isidentifier():
                message = f"nodes.{name}.inputs has nothing for {one!r}: write what the model gets there"
                raise self._source.error(message, "nodes", name)
            given.setdefault(one, parse(one) if one.isidentifier() else ast.Name(one))
        return _Given(written, chosen, ({one: given[one] for one in known},), when)

    def _number(self, name: str) -> int:
        """Return the number of a node, which is read when it is first asked for."""
        if name in self._nodes:
            return list(self._nodes).index(name)
        with self._reading("nodes", name):
            given = self._given[name]
            after = set[int]()
            for other in given.written.after:
                if other not in self._given:
                    message = f"there is no node {other!r:.100}: there are {', '.join(self._given)}"
                    raise self._source.error(message, "nodes", name, "after")
                after.add(self._number(other))
            parts, sizes = given.parts, list[dict[str, Size]]()
            takes = list[tuple[Tensor, ...]]()
            for part in parts:
                sizes.append({})
                takes.append(tuple([self._taken(name, part, spec, sizes[-1]) for spec in part.models[0].inputs]))
            self._sizes[name] = sizes
            when = None
            if given.when is not None:
                with self._source.about("nodes", name, "when"):
                    when = condition(given.when, self)
            every = (*[one for some in takes for one in some], *([] if when is None else [when]))
            with self._source.about("nodes", name, "inputs"):
                groups = all_of([needs(one) for one in every])
        node = Node(
            name=name,
            models=given.written.models,
            accuracies=accuracies_of(self._source, name, given.written, self._measured),
            after=tuple(sorted(nodes_of(*every) | after)),
            needs=tuple(sorted(tuple(sorted(group)) for group in groups)),
            guarded=when is not None,
        )
        inputs = [
            StepInputs(
                tuple([self._origin(name, one, spec) for one, spec in zip(some, part.models[0].inputs, strict=True)]),
                tuple(own.items()),
            )
            for part, some, own in zip(parts, takes, sizes, strict=True)
        ]
        alike = len(node.models) // len(parts)  # a part stands for all models, or for one
        self._steps.append(StepSpec(name, node.models, node.after, tuple(inputs * alike)))
        self._takes.append(tuple(takes * alike))
        self._whens.append(when)
        self._nodes[name] = node
        return len(self._nodes) - 1

    def _taken(self, name: str, given: "_Given", spec: TensorSpec, sizes: dict[str, Size]) -> Tensor:
        """Return the checked expression for an input of a node's models.

        `sizes` gets the size of each of the models' dimensions, in terms of the query's.
        """
        model = given.models[0].name
        with self._source.about("nodes", name, "inputs", spec.name):
            found, wanted = tensor(given.inputs[0][spec.name], self), Kind(spec.dtype, spec.sizes or spec.shape)
            actual = found.kind.shape
            for size, side in zip(wanted.shape, actual, strict=False):
                if isinstance(size, str) and len(actual) == len(wanted.shape) and size not in sizes:
                    sizes[size] = side
                    self._check_size(side, given, size, "nodes", name, "inputs", spec.name)
            shape = tuple([in_terms(size, sizes) for size in wanted.shape])
            if not found.kind.fits(replace(wanted, shape=shape)):
                but = "".join([f", where {size} is {side}" for size, side in sizes.items() if size in wanted.shape])
                raise QueryError(f"this is {found.kind}, and {model} takes {wanted}{but}: cast, resize or reshape")
            if isinstance(found, Ref) and found.node == INPUT:
                of_client = list(self._inputs.values())[found.place]
                if of_client.padding != spec.padding:
                    padded = f"rows are padded with {of_client.padding} for one model and {spec.padding} for {model}"
                    raise QueryError(f"{of_client.name}: {padded}; give the query an input for each")
        return found

    def _check_size(self, side: Size, given: "_Given", size: str, *where: str) -> None:
        """Raise `QueryError` for a size that a model does not take; narrow a dimension of the query to what it takes.

        Sizes computed from the query's dimensions are compared once all of these have been narrowed.
        """
        model = given.models[0].name
        for dim in [dim for each in given.models for dim in each.dims if dim.name == size]:
            if isinstance(side, int):
                if not dim.allows(side):
                    raise QueryError(f"this has {side} for {size}, and {model} takes {dim.range()}")
            elif side in self._dims:
                own = self._dims[side]
                self._dims[side] = own.and_also(dim)
                if self._dims[side].least > self._dims[side].most:
                    raise QueryError(f"{side} is {own.range()}, and {model} takes {dim.range()}: no size fits both")
            else:
                self._computed.append((side, dim, where))

    def _used_dims(self) -> tuple[Dim, ...]:
        """Return the dimensions that inputs have. Raises `QueryError` for computed sizes that a model does not take."""
        used = {size for spec in self._inputs.values() for size in spec.sizes}
        for name in self._written.dims:
            if name not in used:
                raise self._source.error(f"no input has the dimension {name}: name it in a shape", "dims", name)
        for computed, dim, where in self._computed:
            dims = [self._dims[name] for name in sorted(names_in(computed))]
            ranges = [range(one.least, one.most + 1, one.step) for one in dims]
            with self._source.about(*where):
                if prod(map(len, ranges)) > MOST_TRIED:
                    raise QueryError(f"{computed} has too many sizes to compare them with {dim.name}, {dim.range()}")
                for sizes in product(*ranges):
                    own = {one.name: size for one, size in zip(dims, sizes, strict=True)}
                    if not dim.allows(found := size_of(computed, own)):
                        values = ", ".join([f"{name}={size}" for name, size in own.items()])
                        raise QueryError(f"{computed} is {found} for {values}, and {dim.name} must be {dim.range()}")
        return tuple([dim for name, dim in self._dims.items() if name in used])

    def _origin(self, name: str, tensor: Tensor, spec: TensorSpec) -> str:
        """Name an unchanged tensor after its source, and a computed one after its key in the step."""
        if not isinstance(tensor, Ref):
            return f"{name}.inputs.{spec.name}"
        if tensor.node == INPUT:
            return list(self._inputs)[tensor.place]
        other = list(self._nodes)[tensor.node]
        return f"{other}.{list(self._given[other].gives)[tensor.place]}"

    # Inputs and outputs -----------------------------------------------------------------------------------------------

    def _read_dims(self) -> dict[str, Dim]:
        """Return the dimensions that the file declares, and those of models, for inputs that are named alike."""
        found: dict[str, Dim] = {}
        for name, text in self._written.dims.items():
            try:
                if not WORD.fullmatch(name):
                    raise ValueError("a name has letters, digits and _")
                found[name] = Dim.read(name, self._source.typed(str, text, "dims", name))
            except ValueError as error:
                raise self._source.error(f"dims.{name:.100}: {error}", "dims", name) from None
        for dim in [dim for given in self._given.values() for dim in given.models[0].dims]:
            found.setdefault(dim.name, dim)
        return found | self._reads.dims(found)

    def _about(self, answer: Tensor) -> About:
        """Return what the query is for: the task of the model that is certain to give its first output, if one is.

        Only queries with raw inputs have a task.
        """
        raw = tuple(self._raw.values())
        refs = self._answers(answer)
        names = list(self._nodes)
        abouts = [replace(model.about, raw=raw) for ref in refs for model in self._given[names[ref.node]].models]
        is_answer = bool(refs) and all(ref.place == 0 for ref in refs) and self._surely(refs)
        if raw and is_answer and len(set(abouts)) == 1 and abouts[0].task in ASKED:
            return abouts[0]
        return replace(NOTHING_KNOWN, raw=raw)

    def _answers(self, tensor: Tensor) -> list[Ref]:
        """Return the outputs of steps of which one is this tensor unchanged; none if it is computed."""
        if isinstance(tensor, Ref):
            return [tensor]
        if tensor.operation != EITHER:
            return []
        each = [self._answers(one) for one in tensor.arguments if isinstance(one, Ref | Apply)]
        return [ref for some in each for ref in some] if all(each) else []

    def _surely(self, refs: Sequence[Ref]) -> bool:
        """Return whether one of these steps runs in any case: one without a condition, or two of which one holds."""
        leads, runs = list[bool](), list[bool]()  # whether what a step needs is always there; whether it always runs
        for node, when in zip(self._nodes.values(), self._whens, strict=True):
            leads.append(all(any(runs[number] for number in group) for group in node.needs))
            runs.append(leads[-1] and when is None)
        whens = [self._whens[ref.node] for ref in refs if leads[ref.node]]
        return None in whens or any(Apply("not", (one,), one.kind) in whens for one in whens if one is not None)

    def _read_inputs(self) -> dict[str, TensorSpec]:
        """Return the inputs of the query: those that models take unchanged, or those that the file declares."""
        passed: dict[str, list[TensorSpec]] = {}
        for given in self._given.values():
            for part in given.parts:
                for expression, spec in zip(part.inputs[0].values(), part.models[0].inputs, strict=True):
                    if isinstance(expression, ast.Name) and expression.id not in {*self._given, *self._parsed}:
                        passed.setdefault(expression.id, []).append(spec)
        ways = self._reads.made
        made = {name: ways[name].named(input_of(name, taken)) for name, taken in passed.items() if name in ways}
        if self._written.inputs is None:
            tensors = {name: input_of(name, taken) for name, taken in passed.items() if name not in made}
        else:
            check_raw(self._source, self._raw, self._written.inputs)
            tensors = {
                name: declared_input(self._source, name, value, passed.get(name, ()), self._dims)
                for name, value in self._written.inputs.items()
                if name not in self._raw
            }
        if self._raw and (both := next(iter(tensors), "")):
            message = f"{both} is a tensor, and {next(iter(self._raw))} a {next(iter(self._raw.values())).media}"
            takes = [
                ("nodes", name)
                for name, given in self._given.items()
                if any(isinstance(one, ast.Name) and one.id == both for one in given.inputs[0].values())
            ]
            where = takes[0] if takes and not self._written.inputs else ("inputs", both)
            raise self._source.error(f"{message}: a query takes tensors, or what its models read, not both", *where)
        return made or tensors

    def _read_outputs(self) -> dict[str, Tensor]:
        if not self._written.outputs:
            message = 'there are no outputs: write one under [outputs] as NAME = "node.output"'
            raise self._source.error(message, "outputs")
        outputs = {}
        for name, text in self._written.outputs.items():
            if not NAME.fullmatch(name):
                message = f"{name[:200]!r} is not a valid output name: use letters, digits, '.', '_' and '-'"
                raise self._source.error(message, "outputs", name)
            parsed = self._parse(text, "outputs", name)
            with self._source.about("outputs", name):
                outputs[name] = tensor(parsed, self)
                needs(outputs[name])
        return outputs

    def _all(self, node: int) -> list[Tensor | None]:
        """Return all that a step takes, and its condition."""
        return [*[one for takes in self._takes[node] for one in takes], self._whens[node]]

    def _check_used(self, outputs: Sequence[Tensor]) -> None:
        """Raise `QueryError` for a node that no output depends on, and for an input that nothing reads."""
        used, found = set[int](), nodes_of(*outputs)
        while found - used:
            used |= found
            found = {one for number in used for one in nodes_of(*self._all(number))}
        for number, name in enumerate(self._nodes):
            if number not in used:
                what = "use it in an output, or in a node that leads to one, or remove the node"
                raise self._source.error(f"node {name} leads to no output: {what}", "nodes", name)
        each = (*outputs, *(one for number in range(len(self._takes)) for one in self._all(number)))
        read = {ref.place for one in each if one is not None for ref in refs_in(one) if ref.node == INPUT}
        for place, name in enumerate(self._inputs):
            if place not in read:
                raise self._source.error(f"nothing reads the input {name}: use it or remove it", "inputs", name)


@dataclass(frozen=True, slots=True)
class _Given:
    """A table `[nodes.NAME]` with its models and its parsed expressions.

    `inputs`, in the order of a model's, are one mapping for all models, or one for each if they read raw inputs.
    """

    written: WrittenNode
    models: tuple[ModelSpec, ...]
    inputs: tuple[Mapping[str, ast.expr], ...]
    when: ast.expr | None

    @property
    def parts(self) -> list["_Given"]:
        """The table for all of its models, or one for each if they take different inputs."""
        if len(self.inputs) < len(self.models):
            return [self]
        return [
            replace(self, models=(model,), inputs=(own,)) for model, own in zip(self.models, self.inputs, strict=True)
        ]

    @property
    def gives(self) -> dict[str, Kind]:
        """The outputs of its models, by name and in order; sizes are in terms of the models' own dimensions."""
        about = {model.about.labels if model.about.task is Task.CLASSIFY else () for model in self.models}
        labels = about.pop() if len(about) == 1 else ()
        kinds = {spec.name: Kind(spec.dtype, spec.sizes or spec.shape) for spec in self.models[0].outputs}
        logits = self.models[0].outputs[0].name
        if kinds[logits].shape == (len(labels),):
            kinds[logits] = replace(kinds[logits], classes=labels)
        return kinds
