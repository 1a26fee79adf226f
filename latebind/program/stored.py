"""The files of a program in its model directory: what `build` writes and `load` reads. `graph` has those of graphs."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from latebind.domain.costs import EMPTY_STAGE
from latebind.domain.errors import RepositoryError
from latebind.program.cut import ENTRY, cut_points, has_entry, split
from latebind.program.graph import Graph, Known, read_graph_file
from latebind.program.metadata import Profile, StoredModel, read_model, read_profile
from latebind.program.operators import resolve
from latebind.repository.directory import (
    GRAPH,
    MODEL,
    PROFILE,
    WEIGHTS,
    ModelDirectory,
    Writer,
    json_bytes,
)
from latebind.repository.tensors import tensor_file

if TYPE_CHECKING:
    from torch import Tensor


def write_model(
    path: Path, model: StoredModel, weights: Mapping[str, "Tensor"], profile: Profile, others: Mapping[str, bytes]
) -> ModelDirectory:
    """Write all files of a model, in one rename; `others` are its graphs, and how its raw inputs are read."""
    files: dict[str, bytes | Writer] = {
        **others,
        MODEL: json_bytes(model),
        WEIGHTS: tensor_file(weights),
        PROFILE: json_bytes(profile),
    }
    return ModelDirectory.create(path, files)


def files_with_entry(directory: ModelDirectory) -> dict[str, bytes]:
    """Return the changed files that add an empty first stage to the model of `directory`, which has none yet."""
    model, profile = read_model(directory), read_profile(directory)
    (taken,) = model.inputs
    return {
        MODEL: json_bytes(replace(model, cuts=(taken.name, *model.cuts))),
        PROFILE: json_bytes(replace(profile, stages=(EMPTY_STAGE, *profile.stages))),
    }


def read_graph(directory: ModelDirectory, model: StoredModel, *, known: Known = resolve) -> Graph:
    """Return the whole graph; raises `RepositoryError` unless it and `model.json` describe the same tensors."""
    graph = read_graph_file(directory, GRAPH, known=known)
    inputs = tuple(replace(spec.unlimited(), padding=None) for spec in model.inputs)
    if (graph.inputs, graph.output_specs(), graph.dims) != (inputs, model.outputs, model.dims):
        raise RepositoryError(f"{directory.path}: {GRAPH} and {MODEL} name different tensors: build the model again")
    return graph


def read_stages(directory: ModelDirectory, model: StoredModel, *, known: Known = resolve) -> tuple[Graph, ...]:
    """Return the graph of each stage; raises `RepositoryError` for a cut at which the graph cannot be cut."""
    graph = read_graph(directory, model, known=known)
    return split(graph, _points(directory, model, graph))


def read_rest(directory: ModelDirectory, model: StoredModel, *, behind: int) -> Graph:
    """Return the graph of all stages after stage `behind` as a whole; raises what `read_stages` raises."""
    graph = read_graph(directory, model)
    return split(graph, _points(directory, model, graph)[behind : behind + 1])[1]


def _points(directory: ModelDirectory, model: StoredModel, graph: Graph) -> list[int]:
    """Return where the graph is cut."""
    places = {graph.nodes[point].name: point for point in cut_points(graph)}
    if has_entry(graph):
        places[graph.inputs[0].name] = ENTRY
    unknown = [name for name in model.cuts if name not in places]
    points = [places[name] for name in model.cuts if name in places]
    if unknown or points != sorted(set(points)):
        raise RepositoryError(f"{directory.path / MODEL} cuts the graph where it cannot be cut: build the model again")
    return points
