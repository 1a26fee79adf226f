"""How the protocol describes models and queries: configuration, and the steps of a query that answered."""

from collections.abc import Iterable, Mapping, Sequence

from latebind.domain.model import ModelSpec, TensorSpec
from latebind.server.gateway import StepAnswer
from latebind.server.tensors import DATATYPES

ENSEMBLE = "ensemble"  # the protocol's word for a query


def platform(spec: ModelSpec) -> str:
    """Return the protocol's `platform` of a model or query."""
    return ENSEMBLE if spec.steps else "latebind"


def model_config(spec: ModelSpec, models: Iterable[ModelSpec], *, max_rows: int) -> dict[str, object]:
    """Return the protocol's configuration of `spec`, one of `models`; calls may have `max_rows` rows.

    Fields and values are those of Triton's `model_config.proto`; perf_analyzer needs `model_transaction_policy`,
    `response_cache` and one kind of scheduling. In the configuration of a query, a step is listed once for each model
    that may answer it. Tensors are named as `StepSpec` names them.
    """
    config: dict[str, object] = {
        "name": spec.name,
        "platform": platform(spec),
        "version_policy": {"latest": {"num_versions": 1}},
        "max_batch_size": min(spec.max_batch, max_rows),
        "input": [_tensor(tensor) for tensor in spec.inputs],
        "output": [_tensor(tensor) for tensor in spec.outputs],
        "model_transaction_policy": {"decoupled": False},
        "response_cache": {"enable": False},
    }
    if spec.steps:
        config["ensemble_scheduling"] = {"step": _steps(spec, {model.name: model for model in models})}
    else:
        config["backend"] = platform(spec)
        config["dynamic_batching"] = {}
    return config


def steps_as_parameters(rows: Sequence[Sequence[StepAnswer]], models: Mapping[str, ModelSpec]) -> dict[str, object]:
    """Return the reply parameters that say which steps ran, on which model and how long; lists for several rows.

    A row in which a step did not run has null in the lists of that step.
    """
    told = [_told(steps, models) for steps in rows]
    if len(told) == 1:
        return told[0]
    return {key: [row.get(key) for row in told] for key in dict.fromkeys(key for row in told for key in row)}


def _told(steps: Sequence[StepAnswer], models: Mapping[str, ModelSpec]) -> dict[str, object]:
    told: dict[str, object] = {"steps": ",".join([step.step for step in steps])}
    for step in steps:
        told[f"{step.step}.model"] = step.model
        told[f"{step.step}.left_at"] = step.left_at
        told[f"{step.step}.stages"] = models[step.model].stages
        told[f"{step.step}.budget_ms"] = round(step.budget * 1e3, 3)
        told[f"{step.step}.spent_ms"] = round(step.spent * 1e3, 3)
    return told


def _steps(spec: ModelSpec, models: Mapping[str, ModelSpec]) -> list[dict[str, object]]:
    return [
        {
            "model_name": model,
            "model_version": models[model].version,
            "input_map": {
                tensor.name: source for tensor, source in zip(models[model].inputs, step.sources, strict=True)
            },
            "output_map": {tensor.name: f"{step.name}.{tensor.name}" for tensor in models[model].outputs},
        }
        for step in spec.steps
        for model in step.models
    ]


def _tensor(spec: TensorSpec) -> dict[str, object]:
    """Describe a tensor without its batch dimension; -1 stands for rows that may be shorter, as in the metadata."""
    dims = [-1 if spec.padding is not None else size for size in spec.shape]
    return {"name": spec.name, "data_type": f"TYPE_{DATATYPES[spec.dtype]}", "dims": dims}
