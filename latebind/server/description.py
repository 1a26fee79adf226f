"""How the protocol describes models and queries: metadata, configuration, statistics, and the steps that answered."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from latebind.domain.model import TEXT_OUTPUT, ModelSpec, TensorSpec
from latebind.server.calls import BYTES, DATATYPES
from latebind.server.gateway import ModelMetrics, Snapshot, StepAnswer

ENSEMBLE = "ensemble"  # the protocol's word for a query
STRING = "TYPE_STRING"  # what a configuration calls BYTES
NANOSECONDS = 1e9
MILLISECONDS = 1e3
KINDS = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss")

Duration = dict[str, int]


def platform(spec: ModelSpec) -> str:
    """Return the protocol's `platform` of a model or query."""
    return ENSEMBLE if spec.steps else "latebind"


def metadata(spec: ModelSpec, versions: Sequence[str] = ()) -> dict[str, object]:
    """Return the protocol's description of a model in these `versions`; with none, in its own alone.

    -1 stands for the batch, and for what varies from row to row. Where a model has raw inputs, these are its inputs;
    its own are in its configuration.
    """
    inputs, outputs = [
        [{"name": one.name, "datatype": _datatype(one), "shape": [-1, *_dims(one)]} for one in tensors]
        for tensors in (spec.inputs, spec.outputs)
    ]
    raw = [{"name": one.name, "datatype": BYTES, "shape": [-1, 1]} for one in spec.about.raw]
    if spec.written is not None:
        outputs.append({"name": TEXT_OUTPUT, "datatype": BYTES, "shape": [-1, 1]})
    about = {"name": spec.public_name, "versions": [*versions] or [spec.version], "platform": platform(spec)}
    return {**about, "inputs": raw or inputs, "outputs": outputs}


def model_config(spec: ModelSpec, models: Iterable[ModelSpec], *, max_rows: int) -> dict[str, object]:
    """Return the protocol's configuration of `spec`, one of `models`; calls may have `max_rows` rows.

    Fields and values are those of Triton's `model_config.proto`; perf_analyzer needs `model_transaction_policy`,
    `response_cache` and one kind of scheduling. In the configuration of a query, a step is listed once for each model
    that may answer it. Tensors are named as `StepSpec` names them. `parameters` have the ranges of named dimensions
    and, for a model with raw inputs, the tensors that it takes in their place.
    """
    config: dict[str, object] = {
        "name": spec.public_name,
        "platform": platform(spec),
        "version_policy": {"latest": {"num_versions": 1}},
        "max_batch_size": min(spec.max_batch, max_rows),
        **{
            kind: [
                {"name": one.name, "data_type": STRING if one.labels else f"TYPE_{_datatype(one)}", "dims": _dims(one)}
                for one in tensors
            ]
            for kind, tensors in (("input", spec.inputs), ("output", spec.outputs))
        },
        "model_transaction_policy": {"decoupled": False},
        "response_cache": {"enable": False},
    }
    if spec.written is not None:
        text = {"name": TEXT_OUTPUT, "data_type": STRING, "dims": [1]}
        config["output"] = [*cast(list[object], config["output"]), text]
    parameters = {dim.name: dim.written() for dim in spec.dims}
    if spec.about.raw:
        config["input"] = [
            {"name": one.name, "data_type": STRING, "dims": [1], **({"optional": True} if one.optional else {})}
            for one in spec.about.raw
        ]
        parameters |= {one.name: f"{DATATYPES[one.dtype]} {[-1, *_dims(one)]}" for one in spec.inputs}
    if parameters:
        config["parameters"] = {name: {"string_value": value} for name, value in parameters.items()}
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
    entries: list[dict[str, object]] = []
    for steps in rows:
        entries.append({"steps": ",".join([step.step for step in steps])})
        for step in steps:
            entries[-1] |= {
                f"{step.step}.model": step.model,
                f"{step.step}.left_at": step.left_at,
                f"{step.step}.stages": models[step.model].stages,
                f"{step.step}.budget_ms": round(step.budget * 1e3, 3),
                f"{step.step}.spent_ms": round(step.spent * 1e3, 3),
            }
            if step.fidelity is not None:
                entries[-1][f"{step.step}.fidelity"] = step.fidelity
            about = models[step.model].promised
            if about is not None and about.cosine is not None:
                entries[-1][f"{step.step}.cosine"] = about.cosine
    if len(entries) == 1:
        return entries[0]
    return {key: [row.get(key) for row in entries] for key in dict.fromkeys(key for row in entries for key in row)}


def _steps(spec: ModelSpec, models: Mapping[str, ModelSpec]) -> list[dict[str, object]]:
    return [
        {
            "model_name": model,
            "model_version": models[model].version,
            "input_map": {
                tensor.name: source for tensor, source in zip(models[model].inputs, takes.sources, strict=True)
            },
            "output_map": {tensor.name: f"{step.name}.{tensor.name}" for tensor in models[model].outputs},
        }
        for step in spec.steps
        for model, takes in zip(step.models, step.inputs, strict=True)
    ]


def _datatype(spec: TensorSpec) -> str:
    return BYTES if spec.labels else DATATYPES[spec.dtype]


def _dims(spec: TensorSpec) -> list[int]:
    if spec.labels:
        return [1]
    if spec.padding is not None and not spec.sizes:  # a sequence of any length
        return [-1] * len(spec.shape)
    return [size if isinstance(size, int) else -1 for size in spec.sizes or spec.shape]


# Statistics ----------------------------------------------------------------------------------------------------------


def statistics(specs: Iterable[ModelSpec], snapshot: Snapshot, *, epoch: float) -> dict[str, object]:
    """Return the statistics of these models and queries since the start.

    Every row is a request of its own here, so `inference_count` is the number of successes. `execution_count` counts
    batches when they begin: a batch that some rows leave early still counts once, and each query counts as one. The
    time for inputs and outputs is part of `compute_infer`. `epoch` is the Unix time, in seconds, at which the clock of
    the snapshot was 0.
    """
    return {"model_stats": [_of_model(spec, snapshot, epoch) for spec in specs]}


def executions(figures: ModelMetrics, *, is_query: bool) -> int:
    """Return how often a model was executed: the batches that began. Each answered query counts as one."""
    return figures["requests"]["answered"] if is_query else sum(figures["batches"].values())


def _of_model(spec: ModelSpec, snapshot: Snapshot, epoch: float) -> dict[str, object]:
    figures = snapshot["models"].get(spec.name)
    last = figures["last"] if figures else None
    answered = figures["requests"]["answered"] if figures else 0
    return {
        "name": spec.public_name,
        "version": spec.version,
        "last_inference": 0 if last is None else round((epoch + last) * MILLISECONDS),
        "inference_count": answered,
        "execution_count": executions(figures, is_query=bool(spec.steps)) if figures else 0,
        "inference_stats": {**dict.fromkeys(KINDS, _duration(0, 0.0)), **(_durations(figures) if figures else {})},
        "response_stats": {},
        "batch_stats": _of_batches(figures) if figures else [],
        "memory_usage": _memory(spec, snapshot),
    }


def _durations(figures: ModelMetrics) -> dict[str, Duration]:
    outcomes: Mapping[str, Any] = figures["requests"]
    answered, latency, queue = outcomes["answered"], figures["latency_seconds"], figures["queue_seconds"]
    aside = _duration(latency["count"], 0.0)  # perf_analyzer gives up unless the three counts are equal
    return {
        "success": _duration(answered, latency["sum"]),
        "fail": _duration(sum(outcomes.values()) - answered, figures["failed_seconds"]),
        "queue": _duration(queue["count"], queue["sum"]),
        "compute_input": aside,
        "compute_infer": _duration(latency["count"], latency["sum"] - queue["sum"]),
        "compute_output": aside,
    }


def _of_batches(figures: ModelMetrics) -> list[dict[str, object]]:
    """Return, by batch size, how many batches began and how long all stages ran with that many requests."""
    counts, seconds = figures["batches"], figures["run_seconds"]
    return [
        {
            "batch_size": size,
            "compute_input": _duration(counts.get(str(size), 0), 0.0),
            "compute_infer": _duration(counts.get(str(size), 0), seconds.get(str(size), 0.0)),
            "compute_output": _duration(counts.get(str(size), 0), 0.0),
        }
        for size in sorted(map(int, {*counts, *seconds}))
    ]


def _memory(spec: ModelSpec, snapshot: Snapshot) -> list[dict[str, object]]:
    """Return the memory that a model takes, where memory is limited; otherwise it is not counted."""
    found = snapshot["memory"]["models"].get(spec.name) if "memory" in snapshot else None
    return [] if found is None else [{"type": "CPU", "id": 0, "byte_size": found["resident_bytes"]}]


def _duration(count: int, seconds: float) -> Duration:
    return {"count": count, "ns": max(0, round(seconds * NANOSECONDS))}
