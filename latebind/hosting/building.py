"""Builds a module into a folder, unless the folder has the same build already."""

import hashlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from latebind import __version__
from latebind.domain.errors import ConfigError
from latebind.learned.build import build_caches
from latebind.learned.exploration_folder import explored_folder
from latebind.learned.promise import Promise
from latebind.learned.samples import Samples, check_task, doubt
from latebind.program.build import Progress, build_program, ignore_progress
from latebind.program.export import export, made_of_another
from latebind.program.graph import graph_to_json
from latebind.repository.listing import Repository
from latebind.sequence.export import is_sequence

Inputs = Tensor | Mapping[str, Tensor] | Sequence[Tensor]
Rows = Inputs | Samples | tuple[Samples, Samples]


def build_once(
    module: nn.Module,
    example_inputs: Inputs,
    folder: Path,
    *,
    name: str = "",
    samples: Rows | None = None,
    task: str = "",
    fidelity: float = 0.97,
    max_batch: int = 16,
    backends: Sequence[str] = (),
    outputs: Sequence[str] = (),
    tell: Progress = ignore_progress,
) -> str:
    """Make the module the newest version of a model in `folder`, and return the model's name.

    Nothing is built if the newest version was made of the same graph, weights and settings. `tell` gets the progress.
    Where there are `samples` and nobody knows that the module is a classifier, a `UserWarning` says so and there are no
    learned caches. Raises `ExportError` for a module that cannot be served and `ConfigError` for invalid settings.
    """
    if (kind := made_of_another(module)) is not None:
        raise ConfigError(f"the module is {kind}: give the nn.Module that it was made of")
    if not isinstance(module, nn.Module):
        raise ConfigError(f"something of type {type(module).__name__} cannot be served: give a torch.nn.Module")
    if is_sequence(module):
        raise ConfigError("a sequence model is built beforehand: see `latebind build --help`, then `latebind serve`")
    inputs = (example_inputs,) if isinstance(example_inputs, Tensor) else example_inputs
    title = name or type(module).__name__.lower()
    parts = _halves(samples)
    check_task(task)
    Promise(fidelity)  # raises for an invalid fidelity before anything is built
    with _same_threads():
        settings = (__version__, (fidelity, task) if parts else None, max_batch, tuple(backends))
        made_of = _fingerprint(module, inputs, parts, settings, outputs or None)
        version, is_there = _version(folder, title, made_of)
        if not is_there:
            path = Repository(folder).path_for(title, version)
            report = build_program(
                module,
                inputs,
                directory=path,
                name=title,
                version=version,
                max_batch=max_batch,
                backends=list(backends) or None,
                outputs=outputs or None,
                data=parts[0].inputs if parts else None,
                progress=tell,
            )
            if parts and (unknown := doubt(report.directory, parts, task)):
                warnings.warn(f"there are no learned caches: {unknown}", stacklevel=2)
            elif parts:
                explored = explored_folder(report.directory.path)
                build_caches(report.directory, *parts, fidelity=fidelity, explored=explored, task=task, progress=tell)
            _note(folder, title, version).write_text(made_of)
    return title


def _version(folder: Path, name: str, made_of: str) -> tuple[str, bool]:
    """Return the version to serve, and whether it is there; an incomplete version is not used."""
    there = [listed for listed in Repository(folder).models() if listed.name == name] if folder.is_dir() else []
    if not there:
        return "1", False
    newest = there[-1].version
    note = _note(folder, name, newest)
    if note.is_file() and note.read_text() == made_of:
        return newest, True
    return str(int(newest) + 1), False


def _note(folder: Path, name: str, version: str) -> Path:
    """Return the file beside a version that has the fingerprint of what it was made of."""
    return folder / name / f".{version}.made-of"


def _halves(rows: Rows | None) -> tuple[Samples, Samples] | None:
    """Return samples to train on and samples to calibrate on."""
    if rows is None:
        return None
    if isinstance(rows, tuple) and len(rows) == 2 and all(isinstance(part, Samples) for part in rows):
        return rows  # type: ignore[return-value]
    if not isinstance(rows, Samples):
        tensors = (rows,) if isinstance(rows, Tensor) else rows
        rows = Samples(dict(tensors) if isinstance(tensors, Mapping) else tuple(tensors))  # type: ignore[arg-type]
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    fit, calibrate = (_taken(rows, part) for part in order.tensor_split(2))
    return fit, calibrate


def _taken(samples: Samples, rows: Tensor) -> Samples:
    chosen: dict[str, Tensor] | tuple[Tensor, ...]
    if isinstance(samples.inputs, dict):
        chosen = {name: one[rows] for name, one in samples.inputs.items()}
    else:
        chosen = tuple(one[rows] for one in samples.inputs)
    labels = None if samples.labels is None else samples.labels[rows]
    worlds = None if samples.worlds is None else samples.worlds[rows]
    return Samples(chosen, labels, worlds)


def _fingerprint(
    module: nn.Module,
    inputs: Mapping[str, Tensor] | Sequence[Tensor],
    parts: tuple[Samples, Samples] | None,
    settings: object,
    outputs: Sequence[str] | None,
) -> str:
    """Return a hash of the network, its weights, the samples and the settings."""
    exported = export(module, inputs, outputs=outputs)
    found = hashlib.sha256(graph_to_json(exported.graph))
    found.update(repr(settings).encode())
    for name, weight in sorted(exported.weights.items()):
        found.update(name.encode())
        _add(found, weight)
    for part in parts or ():
        tensors = part.inputs.values() if isinstance(part.inputs, dict) else part.inputs
        for tensor in (*tensors, part.labels, part.worlds):
            if tensor is not None:
                _add(found, tensor)
    return found.hexdigest()


def _add(found: "hashlib._Hash", tensor: Tensor) -> None:
    found.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
    found.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data)


@contextmanager
def _same_threads() -> Iterator[None]:
    """Restore torch's number of threads, which a build sets to that of a worker."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)
