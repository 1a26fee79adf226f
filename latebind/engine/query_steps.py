"""The steps of an answered query as observers at the door see them: as calls of models, with inputs and outputs."""

from collections.abc import Iterator, Mapping, Sequence

from latebind.domain.model import ModelSpec
from latebind.domain.query import lay_out_options
from latebind.engine.slots import ModelSlots
from latebind.sequence.padding import trimmed
from latebind.server.gateway import Answer, Shown, StepAnswer


class QuerySteps:
    """Finds the rows of one query's steps. `first` has the row of the query in slot 0, by node and option."""

    def __init__(
        self,
        query: ModelSpec,
        models: Mapping[str, ModelSpec],
        slots: Mapping[str, ModelSlots],
        first: Sequence[Sequence[int]],
    ) -> None:
        self._options = {
            (step.name, model): (models[model], slots[model], row)
            for step, rows in zip(query.steps, first, strict=True)
            for model, row in zip(step.models, rows, strict=True)
        }

    def shown(self, slot: int, steps: Sequence[StepAnswer]) -> Iterator[Shown]:
        """Yield each step that the query in a slot ran, as a call of the model that answered it."""
        for step in steps:
            spec, slots, first = self._options[step.step, step.model]
            row = first + slot
            given = {tensor.name: [rows[row, ...]] for tensor, rows in zip(spec.inputs, slots.inputs, strict=True)}
            outputs = {
                tensor.name: trimmed(rows[row : row + 1], tensor)
                for tensor, rows in zip(spec.outputs, slots.outputs, strict=True)
            }
            caches = (int(slots.versions[row]),) if spec.lookups else ()
            yield Shown(spec, given, Answer(outputs, (step.left_at,), spec=spec, caches=caches))


def steps_of_queries(
    models: Mapping[str, ModelSpec], slots: Mapping[str, ModelSlots], count: int
) -> dict[str, QuerySteps]:
    """Return the `QuerySteps` of each query among `models`; each model and query has `count` slots of its own."""
    options = {name: [step.models for step in spec.steps] for name, spec in models.items() if spec.steps}
    rows = lay_out_options([name for name in models if name not in options], options, count)
    return {name: QuerySteps(models[name], models, slots, rows.first[name]) for name in options}
