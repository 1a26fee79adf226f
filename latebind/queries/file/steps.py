"""One step of a query file, `[nodes.NAME]`: its models, which must be interchangeable, and its expressions. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from latebind.domain.model import ModelSpec, StageKind, TensorSpec
from latebind.queries.file.language import Parsed, parse
from latebind.queries.file.tables import Table
from latebind.queries.file.wiring import Kind

KEYS = ("models", "accuracy", "inputs", "when", "after")


@dataclass(frozen=True, slots=True)
class Step:
    """A step as it was written, field by key of its table. `inputs` are in the order of its models' inputs."""

    table: Table
    name: str
    models: tuple[ModelSpec, ...]
    accuracies: tuple[float, ...]
    inputs: tuple[Parsed, ...]
    when: Parsed | None
    after: tuple[str, ...]

    @property
    def takes(self) -> tuple[TensorSpec, ...]:
        """The inputs of its models."""
        return self.models[0].inputs

    @property
    def gives(self) -> dict[str, Kind]:
        """The outputs of its models, by name and in order."""
        return {spec.name: Kind(spec.dtype, spec.shape) for spec in self.models[0].outputs}


def read_step(table: Table, name: str, models: Mapping[str, ModelSpec], measured: Mapping[str, float]) -> Step:
    """Return the step in this table. Raises `QueryError` with the line."""
    table.check_keys(KEYS)
    chosen = _models(table, models)
    inputs = table.table("inputs")
    known = [spec.name for spec in chosen[0].inputs]
    inputs.check_keys(known)
    return Step(
        table=table,
        name=name,
        models=chosen,
        accuracies=_accuracies(table, chosen, measured),
        inputs=tuple(read_expression(inputs, one) if one in inputs else _same_name(table, one) for one in known),
        when=read_expression(table, "when") if "when" in table else None,
        after=table.texts("after") if "after" in table else (),
    )


def read_expression(table: Table, key: str) -> Parsed:
    """Return the expression under a key, parsed."""
    text = table.text(key)
    with table.about(key):
        return parse(text)


def _models(table: Table, models: Mapping[str, ModelSpec]) -> tuple[ModelSpec, ...]:
    names = table.texts("models")
    if not names:
        raise table.error(f"{table.title('models')} is empty: name a model", "models")
    for name in names:
        if name not in models:
            there = ", ".join(models) or "none"
            raise table.error(f"there is no model {name!r:.200}: there are {there:.1000}", "models")
        if any(kind is not StageKind.STATIC for kind in models[name].kinds):
            why = "a step of a query must answer in one pass"
            raise table.error(f"model {name} is a sequence model, which answers step by step: {why}", "models")
    chosen = tuple(models[name] for name in names)
    for model in chosen[1:]:
        for what, ours, theirs in (
            ("inputs", chosen[0].inputs, model.inputs),
            ("outputs", chosen[0].outputs, model.outputs),
        ):
            if _comparable(ours) != _comparable(theirs):
                told = f"{chosen[0].name} has {_told(ours)}; {model.name} has {_told(theirs)}"
                raise table.error(f"models of one node need the same {what}: {told}", "models")
    return chosen


def _comparable(tensors: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
    return tuple(spec.unlimited() for spec in tensors)


def _told(tensors: tuple[TensorSpec, ...]) -> str:
    return ", ".join(
        f"{spec.name} ({Kind(spec.dtype, spec.shape)}{'' if spec.padding is None else f', padded with {spec.padding}'})"
        for spec in tensors
    )


def _accuracies(table: Table, models: tuple[ModelSpec, ...], measured: Mapping[str, float]) -> tuple[float, ...]:
    if "accuracy" in table:
        given = table.numbers("accuracy")
        if len(given) != len(models):
            raise table.error(f"accuracy has {len(given)} numbers for {len(models)} models: give one each", "accuracy")
        for share in given:
            if not 0.0 <= share <= 1.0:
                raise table.error(f"accuracy has {share:g} in it: give shares from 0 to 1", "accuracy")
        return given
    unknown = [model.name for model in models if model.name not in measured]
    if unknown and len(models) > 1:
        how = "give accuracy = [...], a share for each model, or build with labelled data"
        raise table.error(f"nothing is known of how often {', '.join(unknown)} is right: {how}")
    return tuple(measured.get(model.name, 1.0) for model in models)


def _same_name(table: Table, name: str) -> Parsed:
    """Return the expression for an input that is left out: the query's input of the same name."""
    if not name.isidentifier():
        raise table.error(f"{table.title('inputs')} has nothing for {name!r}: say what the model is to take there")
    return parse(name)
