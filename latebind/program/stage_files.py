"""Stages as OpenVINO files: what a build has converted, to be read without torch and in less time.

A stage has up to three files: OpenVINO's two, the model and its small constants, and a description of what is done
outside it. Weights are not written again: if a constant is a weight, the model in the file has an input instead, which
loading replaces by the weight. A description holds a digest of the graph that it belongs to.
"""

import hashlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from latebind.domain.errors import RepositoryError
from latebind.domain.model import TensorSpec
from latebind.domain.sizes import Size
from latebind.program.arrays import Array, OverArrays, array_of, pass_through
from latebind.program.backends import (
    BACKENDS,
    CompileOptions,
    StageFunction,
    backend_named,
    backend_of,
    by_bucket,
)
from latebind.program.graph import Graph, graph_from_json, graph_to_json
from latebind.program.numeric import Ahead, LookUp, computed, lacking
from latebind.repository.directory import STAGES, ModelDirectory, json_bytes

if TYPE_CHECKING:
    from torch import Tensor

    from latebind.program.openvino import Converted

Foreign = Any  # an object of OpenVINO

FORMAT = 1
LARGE = 1024  # bytes from which a constant is looked for among the weights
MOST_MODEL = 1 << 26  # bytes of a model without its constants
MOST_CONSTANTS = 1 << 30


class _Described(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is done outside the model of a stage: see `Converted`. `weights` replace its last inputs."""

    format: int
    graph: str
    packs: bool
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    copied: dict[int, int]
    first: str
    checked: tuple[tuple[int, Size, Size], ...]
    axes: dict[str, tuple[int, int]]
    axis: tuple[int, int] | None
    sized: bool
    weight_bytes: int
    weights: tuple[str, ...]


def place_of(number: int) -> str:
    """Return where the files of a stage are; stages are counted from the first that computes anything."""
    return f"{STAGES}/{number}"


def needs_file(graph: Graph, weights: Mapping[str, Any], backend: str) -> bool:
    """Return whether OpenVINO computes a graph of a model on `backend`."""
    if not graph.whole.nodes or not backend.startswith("openvino"):
        return False
    return backend_of(graph, weights, backend) == backend or bool(lacking(graph.whole))


def stages_as_files(
    graphs: Sequence[Graph], weights: Mapping[str, "Tensor"], backend: str, *, packs: bool
) -> tuple[dict[str, bytes], str]:
    """Return the files of the stages of a model on a backend, and what needs torch there; if so, no files."""
    if not BACKENDS[backend].has_files:
        return {}, ""
    found, first = dict[str, bytes](), 0 if graphs[0].whole.nodes else 1
    for number, graph in enumerate(graphs, -first):
        if needs_file(graph, weights, backend):
            try:
                found |= files_of(place_of(number), graph, weights, packs=packs)
            except NeedsTorch as error:
                return {}, str(error)
    return found, ""


class NeedsTorch(Exception):
    """What is computed before an OpenVINO model has an operator that numpy does not compute as torch does."""


def files_of(place: str, graph: Graph, weights: Mapping[str, "Tensor"], *, packs: bool) -> dict[str, bytes]:
    """Return the files of one stage by name; `packs` says whether its rows run without their padding.

    Raises `ExportError` if OpenVINO cannot convert it, and `NeedsTorch`.
    """
    from latebind.program.conversion import converted  # noqa: PLC0415  (with torch)

    found = dict[str, bytes]()
    for bucket, name in _buckets(place, graph):
        made = converted(bucket, weights, packs=packs and not graph.buckets)
        if made.first is not None and (lacks := lacking(made.first) or " ".join(made.first.weights())):
            raise NeedsTorch(f"{lacks} follows from whole numbers, and numpy does not compute it")
        model, names = (None, ()) if made.model is None else _without_weights(made.model, bucket, weights)
        about = _Described(
            FORMAT,
            _digest(bucket),
            packs and not graph.buckets,
            made.inputs,
            made.outputs,
            dict(made.copied),
            "" if made.first is None else graph_to_json(made.first).decode(),
            tuple((at, some.start, some.stop) if isinstance(some, range) else (at, *some) for at, some in made.checked),
            dict(made.axes),
            made.axis,
            made.sized,
            made.weight_bytes,
            names,
        )
        found[f"{name}.json"] = json_bytes(about)
        if model is not None:
            found |= _serialized(name, model)
    return found


def has_files(directory: ModelDirectory, place: str, graph: Graph) -> bool:
    """Return whether there are files of a stage."""
    return all(f"{name}.json" in directory.files for _, name in _buckets(place, graph))


def read_stage(
    directory: ModelDirectory,
    place: str,
    graph: Graph,
    weights: Mapping[str, Array],
    *,
    backend: str,
    options: CompileOptions,
) -> StageFunction:
    """Return a stage read from its files, with these weights. Raises `RepositoryError` if they do not match it."""
    if not graph.whole.nodes:
        return pass_through
    if not needs_file(graph, weights, backend):
        return by_bucket(graph, lambda bucket: OverArrays(LookUp(bucket, weights)))
    from latebind.program.openvino import OpenVino  # noqa: PLC0415  (takes long to import)

    chosen, names = backend_named(backend), {id(bucket): name for bucket, name in _buckets(place, graph)}
    assert isinstance(chosen, OpenVino)

    def stage(bucket: Graph) -> StageFunction:
        made = _read(directory, names[id(bucket)], bucket, weights, packs=options.packs and not graph.buckets)
        ahead = None
        if made.first is not None or made.checked:
            compute = None if made.first is None else computed(made.first, {})
            ahead = Ahead(compute, made.checked, made.axes)
        return OverArrays(chosen.stage(made, ahead, options))

    return by_bucket(graph, stage)


def read_all(reads: Sequence[Callable[[], StageFunction]]) -> list[StageFunction]:
    """Return the results of these calls of `read_stage`; every second one runs on another thread.

    OpenVINO compiles without the GIL: nine small stages are ready after 1.63 s, one by one after 1.97. Two further
    threads would keep 3 MB more, each in an arena of its own.
    """
    made: list[StageFunction] = [pass_through] * len(reads)
    with ThreadPoolExecutor(1) as beside:
        others = beside.map(lambda read: read(), reads[1::2])
        made[::2] = [read() for read in reads[::2]]
        made[1::2] = others
    return made


def _buckets(place: str, graph: Graph) -> list[tuple[Graph, str]]:
    """Return each graph that is compiled by itself, and the name of its files."""
    return [(bucket, f"{place}.{at}") for at, bucket in enumerate(graph.buckets)] or [(graph, place)]


def _digest(graph: Graph) -> str:
    return hashlib.sha256(graph_to_json(graph)).hexdigest()


def _without_weights(model: Foreign, graph: Graph, weights: Mapping[str, "Tensor"]) -> tuple[Foreign, tuple[str, ...]]:
    """Return a model with further inputs in place of constants that are weights, and the names of these."""
    from openvino import opset13 as ops  # noqa: PLC0415

    known = {_memory_of(array_of(weights[name])): name for name in graph.weights()}
    model, names = model.clone(), list[str]()
    for node in model.get_ordered_ops():
        if node.get_type_name() != "Constant" or node.get_byte_size() < LARGE:
            continue
        name = known.get(_memory_of(node.data))
        if name is not None:
            given = ops.parameter(list(node.shape), node.data.dtype)
            node.output(0).replace(given.output(0))
            model.add_parameters([given])
            names.append(name)
    return model, tuple(names)


def _memory_of(array: Array) -> tuple[object, ...]:
    return array.__array_interface__["data"][0], array.shape, array.dtype.str, array.flags.c_contiguous


def _serialized(name: str, model: Foreign) -> dict[str, bytes]:
    """Return a model as two files, the same for equal graphs; its nodes are renamed."""
    import openvino  # noqa: PLC0415

    model.set_friendly_name("stage")
    for number, node in enumerate(
        model.get_ordered_ops()
    ):  # OpenVINO numbers names throughout a process, so files would differ
        node.set_friendly_name(str(number))
    with tempfile.TemporaryDirectory(prefix="latebind-") as folder:
        paths = [Path(folder) / f"model.{kind}" for kind in ("xml", "bin")]
        openvino.serialize(model, *paths)
        return {f"{name}{path.suffix}": path.read_bytes() for path in paths}


def _read(
    directory: ModelDirectory, name: str, graph: Graph, weights: Mapping[str, Array], *, packs: bool
) -> "Converted":
    """Return a stage as its description and model give it; raises `RepositoryError`."""
    from latebind.program.openvino import Converted  # noqa: PLC0415

    about, path = directory.read_json(f"{name}.json", _Described), directory.path / name
    if about.format != FORMAT:
        raise RepositoryError(f"{path}.json has format {about.format}, this version reads {FORMAT}: build it again")
    if about.graph != _digest(graph) or about.packs != packs:
        raise RepositoryError(
            f"{path}.json belongs to another graph than that of {directory.path}: build the model again"
        )
    first = graph_from_json(about.first.encode(), known=anything) if about.first else None
    if first is not None and (lacking(first) or first.weights()):
        raise RepositoryError(f"{path}.json has a graph that needs torch: build the model again")
    checked = tuple(
        (at, range(start, stop) if isinstance(start, int) and isinstance(stop, int) else (start, stop))
        for at, start, stop in about.checked
    )
    model = _with_weights(directory, name, about.weights, weights) if about.outputs else None
    if model is not None:
        _check(path, model, about)
    return Converted(
        model,
        about.inputs,
        about.outputs,
        about.copied,
        first,
        checked,
        about.axes,
        about.axis,
        about.sized,
        about.weight_bytes,
    )


def anything(name: str) -> object:
    """Accept an operator without looking it up: `lacking` checks the graph, or another form of it is run."""
    return name


def _with_weights(directory: ModelDirectory, name: str, names: Sequence[str], weights: Mapping[str, Array]) -> Foreign:
    """Return a model with these weights in place of its last inputs; raises `RepositoryError`."""
    import openvino  # noqa: PLC0415
    from openvino import opset13 as ops  # noqa: PLC0415

    data, constants = directory.read(f"{name}.xml", most=MOST_MODEL), directory.read(f"{name}.bin", most=MOST_CONSTANTS)
    try:
        model = openvino.Core().read_model(data, constants)
        given = model.get_parameters()
        for one, weight in zip(given[len(given) - len(names) :], names, strict=True):
            value = weights[weight]
            if tuple(one.get_partial_shape().to_shape()) != value.shape:
                raise ValueError(f"{weight} has another shape")
            one.output(0).replace(ops.constant(value, shared_memory=True).output(0))
            model.remove_parameter(one)
    except (RuntimeError, ValueError, KeyError) as error:
        reason = " ".join(str(error).split())[:200]
        raise RepositoryError(
            f"{directory.path / name}.xml is not a model of this stage ({reason}): build it again"
        ) from error
    return model


def _check(path: Path, model: Foreign, about: _Described) -> None:
    """Raise `RepositoryError` unless a model takes and returns what its description says."""
    found = [[value.get_element_type().to_dtype().name for value in values] for values in (model.inputs, model.outputs)]
    if found != [[spec.dtype for spec in specs] for specs in (about.inputs, about.outputs)]:
        raise RepositoryError(f"{path}.xml has other inputs or outputs than its description says: build it again")
