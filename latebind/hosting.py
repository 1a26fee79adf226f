"""Serves a module, or a Hugging Face folder, from Python: builds it if needed, and runs `latebind serve`.

A trusted step: it runs the module's code. Code in a folder is not run.
"""

import hashlib
import signal
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any, TypedDict, Unpack

import torch
from torch import Tensor, nn

from latebind import __version__
from latebind.child import READY, Child, started
from latebind.cli.console import progress
from latebind.domain.config import EngineConfig, FrontendConfig
from latebind.domain.errors import ConfigError
from latebind.domain.model import Task
from latebind.domain.sizes import Dim
from latebind.engine.cores import threads_here
from latebind.folders.build import NO_DATA, build_folder, build_near, check_fidelity, data_of, read_folder
from latebind.folders.files import is_folder, taken
from latebind.folders.hub import folder_name, local_folder
from latebind.learned.build import build_caches
from latebind.learned.exploration_folder import explored_folder
from latebind.learned.promise import Fidelity, Promise
from latebind.learned.samples import Samples, check_task, doubt, whole
from latebind.learned.vectors import DECLARE
from latebind.program.backends import exact_backends
from latebind.program.build import Progress, build_program, ignore_progress
from latebind.program.declared import NOTHING, Dynamic, from_export
from latebind.program.device import HOST, find_device, kind_of
from latebind.program.export import Tensors, export_any_size, made_of_another, tensors_of
from latebind.program.graph import Graph, graph_to_json
from latebind.program.lengths import own_sizes, resized
from latebind.repository.directory import ModelDirectory
from latebind.repository.listing import Repository
from latebind.sequence.export import is_sequence
from latebind.server.listening import check_addresses

PORT = 8000
OF_A_BUILD = ("name", "samples", "task", "fidelity", "max_batch", "outputs", "dims")  # options of `build_once`
OF_A_FOLDER = ("name", "data", "task", "fidelity", "max_batch", "dims")  # options of `build_folder_once`

Inputs = Tensor | Mapping[str, Tensor] | Sequence[Tensor]
Rows = Inputs | Samples | tuple[Samples, Samples]


class Options(TypedDict, total=False):
    """The options of `serve` and `serving`.

    `name` is the model's name, by default that of the module's class. In `folder` the model is built once and found
    again; without one it is built for this run only. With `samples`, rows like those to be served, learned caches are
    trained for a classifier, so that answers equal the module's with `fidelity` (0.97); two `Samples` are to train and
    to calibrate on, other rows are split in halves. Rows that differ in size are a sequence of arrays, by the name of
    the input. `task` "classify" declares a classifier: the class of the largest output is the answer. It need not be
    declared if samples have labels or the module ends in a softmax. `deadline` is the seconds of requests that name
    none (1). Of the `backends` the fastest is used. `max_batch` is 16 by default. If the module returns a dictionary,
    `outputs` names those to serve. `dims` say what varies from row to row, like the `dynamic_shapes` of
    `torch.export.export`: `{"ids": {1: Dim("L", 1, 512)}}` (`program.declared.from_export`). `arguments` are further
    arguments of `latebind serve`.

    A folder as Hugging Face saves it defines most of that itself. Its options are those of `latebind build FOLDER`:
    `data` is a table of texts or pictures with their labels, or a folder of pictures, from which learned caches are
    made; for an embedding, texts on which a `fidelity` such as "cosine:0.99@0.97" is shown; `task` selects another task
    than that of its architecture, and `dims` are given as `[Dim("L", 1, 128)]`.
    """

    name: str
    folder: Path | str
    samples: Rows
    data: Path | str
    task: str
    fidelity: float | str
    deadline: float
    device: str
    port: int
    max_batch: int
    backends: tuple[str, ...]
    outputs: tuple[str, ...]
    dims: Dynamic
    arguments: tuple[str, ...]


@contextmanager
def serving(
    module: nn.Module | Path | str, example_inputs: Inputs | None = None, **options: Unpack[Options]
) -> Iterator[str]:
    """Serve `module` within the context, which gets the URL of the server::

        with latebind.serving(resnet18().eval(), torch.randn(4, 3, 224, 224)) as url:
            ...
        with latebind.serving("path/to/all-MiniLM-L6-v2") as url:
            ...

    `example_inputs` are tensors `(N, ...)` by name or in order, or a single one. A path is that of a folder as Hugging
    Face saves it, and `hf:ORG/NAME` fetches one; they have no example inputs. By default a free port is used. Raises
    `ExportError` for what cannot be served, with what to change in it, `ConfigError` for invalid options, and
    `Unavailable` at the end of a context in which the server has died.
    """
    _check("serving", options)
    with tempfile.TemporaryFile("w+") as log, ExitStack() as stack:
        with progress("building") as on_progress:
            words = stack.enter_context(_built(module, example_inputs, {"port": 0, **options}, on_progress))
            on_progress("starting the server", 1.0)
            child = stack.enter_context(started(words, log=log))
        yield child.url
        child.check()


def serve(module: nn.Module | Path | str, example_inputs: Inputs | None = None, **options: Unpack[Options]) -> None:
    """Serve `module`, or a folder, by default on port 8000, until the process is interrupted or terminated.

    Raises what `serving` raises, and `Unavailable` if the server ends by itself.
    """
    _check("serve", options)
    with suppress(KeyboardInterrupt), _interrupted_by_sigterm(), ExitStack() as stack:
        with progress("building") as on_progress:
            words = stack.enter_context(_built(module, example_inputs, {"port": PORT, **options}, on_progress))
        child: Child = stack.enter_context(started(words))
        print(f"{READY}{child.url}", flush=True)
        child.process.wait()
        child.check()


def _check(function: str, options: Options) -> None:
    """Raise `TypeError` for an unknown option, or one of the wrong type: no type checker may have seen the call."""
    known = Options.__annotations__
    unknown = [name for name in options if name not in known]
    if unknown:
        raise TypeError(f"latebind.{function}() has no option {unknown[0]!r}; it has {', '.join(known)}")
    for name in ("backends", "outputs", "arguments"):
        if isinstance(text := options.get(name), str):
            raise TypeError(f"latebind.{function}(): {name} is the text {text!r}: give words, {tuple(text.split())}")
    if not isinstance(port := options.get("port", 0), int):
        raise TypeError(f"latebind.{function}(): port is {port!r}: give a whole number")


@contextmanager
def _built(
    module: nn.Module | Path | str, inputs: Inputs | None, options: Options, on_progress: Progress
) -> Iterator[list[str]]:
    """Build the module into its folder, or a temporary one, and yield the arguments of `latebind serve`."""
    named = isinstance(module, Path | str)
    for name in ("samples", "outputs") if named else ("data",):
        if name in options:
            of = "a Hugging Face folder, which takes data" if named else "a module, which takes samples"
            raise ConfigError(f"{name} is not an option of {of}: leave it out")
    if named != (inputs is None):
        advice = "a folder defines what it reads: leave them out" if named else "give rows like those to be served"
        raise ConfigError(f"example_inputs: {advice}")
    # These are checked before a build, which takes minutes.
    device, arguments = options.get("device", HOST), options.get("arguments", ())
    kind = kind_of(find_device(EngineConfig(device=device).device))
    frontend = FrontendConfig(port=options["port"], deadline=options.get("deadline", 1.0))
    if "--host" not in arguments:
        check_addresses(frontend)
    backends = options.get("backends") or (() if kind == HOST else exact_backends(kind))
    build: Callable[..., str]
    words: tuple[str, ...]
    if isinstance(module, Path | str):
        build, words = partial(build_folder_once, str(module)), OF_A_FOLDER
    else:
        assert inputs is not None
        build, words = partial(build_once, module, inputs), OF_A_BUILD
    building: Any = {name: value for name, value in options.items() if name in words}
    with ExitStack() as stack:
        folder = Path(options.get("folder") or stack.enter_context(tempfile.TemporaryDirectory(prefix="latebind-")))
        name = build(folder, backends=backends, on_progress=on_progress, **building)
        served = [str(folder), "--model", name, "--port", str(frontend.port), "--device", device]
        yield [*served, "--deadline-ms", f"{frontend.deadline * 1e3:g}", *arguments]


@contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    """Handle SIGTERM as an interrupt, if this is the main thread, so that the server is stopped as by Ctrl-C."""
    if current_thread() is not main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def build_once(
    module: nn.Module,
    example_inputs: Inputs,
    folder: Path,
    *,
    name: str = "",
    samples: Rows | None = None,
    task: str = "",
    fidelity: float | str = 0.97,
    max_batch: int = 16,
    backends: Sequence[str] = (),
    outputs: Sequence[str] = (),
    dims: Dynamic = (),
    on_progress: Progress = ignore_progress,
) -> str:
    """Make the module the newest version of a model in `folder`, and return the model's name.

    Nothing is built if the newest version was made of the same graph, weights and settings. If there are `samples` and
    the module is not known to be a classifier, there are no learned caches, and a `UserWarning`. Raises `ExportError`
    for a module that cannot be served and `ConfigError` for invalid settings.
    """
    if (kind := made_of_another(module)) is not None:
        raise ConfigError(f"the module is {kind}: give the nn.Module that it was made of")
    if not isinstance(module, nn.Module):
        raise ConfigError(f"something of type {type(module).__name__} cannot be served: give a torch.nn.Module")
    if is_sequence(module):
        raise ConfigError("a sequence model is built beforehand: see `latebind build --help`, then `latebind serve`")
    inputs = (example_inputs,) if isinstance(example_inputs, Tensor) else example_inputs
    title, parts = name or type(module).__name__.lower(), _halves(samples)
    check_task(task)
    varying = from_export(inputs, dims) if dims else NOTHING
    asked = Fidelity.read(fidelity)
    if asked.cosine is not None:
        raise ConfigError(f"fidelity {asked}: a cosine is promised only for embeddings in Hugging Face folders")
    threads = torch.get_num_threads()  # a build sets that of a worker
    try:
        exported, _ = export_any_size(module, inputs, dims=varying.dims, sizes=varying.sizes, outputs=outputs or None)
        found = hashlib.sha256(graph_to_json(exported.graph))
        found.update(repr((__version__, (fidelity, task) if parts else None, max_batch, tuple(backends))).encode())
        _add(found, [tensor for item in sorted(exported.weights.items()) for tensor in item])
        for part in parts or ():
            rows = part.inputs.values() if isinstance(part.inputs, Mapping) else part.inputs
            each = [tensor for some in rows for tensor in ([some] if isinstance(some, Tensor) else some)]
            _add(found, [torch.as_tensor(one) for one in (*each, part.labels, part.worlds) if one is not None])
        version, is_there = _version(folder, title, found.hexdigest())
        if not is_there:
            report = build_program(
                module,
                inputs,
                directory=Repository(folder).path_for(title, version),
                name=title,
                version=version,
                dims=varying.dims,
                sizes=varying.sizes,
                max_batch=max_batch,
                backends=list(backends) or None,
                outputs=outputs or None,
                data=_real(parts[0], inputs, exported.graph) if parts else None,
                progress=on_progress,
            )
            if parts:
                _learn(report.directory, parts, asked.share, task, on_progress)
            _note(folder, title, version).write_text(found.hexdigest())
    finally:
        torch.set_num_threads(threads)
    return title


def build_folder_once(
    source: str,
    folder: Path,
    *,
    name: str = "",
    data: Path | str = "",
    task: str = "",
    fidelity: float | str = 0.97,
    max_batch: int = 16,
    backends: Sequence[str] = (),
    dims: Sequence[Dim] = (),
    on_progress: Progress = ignore_progress,
) -> str:
    """Make a folder as Hugging Face saves it, or `hf:ORG/NAME`, the newest version of a model in `folder`.

    Returns the model's name, by default that of the folder. Nothing is built if the newest version was made of the same
    files, data and settings; for pictures in a table, only their names count. Raises what `latebind build` raises.
    """
    if not is_folder(source):
        raise ConfigError(f"{source!r:.200}: there is no such folder")
    if not isinstance(dims, Sequence) or not all(isinstance(dim, Dim) for dim in dims):
        raise ConfigError(f"dims is {dims!r:.100}: for a folder give the ranges, such as [latebind.Dim('L', 1, 128)]")
    asked = Fidelity.read(fidelity)
    title, rows = name or folder_name(source), Path(data) if data else None
    threads = torch.get_num_threads()
    try:
        learned = (fidelity, str(data)) if data else None
        settings = (__version__, learned, task, max_batch, tuple(backends), [(dim.name, dim.written()) for dim in dims])
        found = hashlib.sha256(repr(settings).encode())
        with taken(local_folder(source), source) as there:
            _add_files(found, there.path)
        if rows is not None:
            _add_files(found, rows)
        version, is_there = _version(folder, title, found.hexdigest())
        if not is_there:
            on_progress("reading the folder", 0.0)
            read = read_folder(source, task=task, dims=dims)
            check_fidelity(read, asked, has_data=rows is not None)
            given = data_of(read, rows) if rows is not None else NO_DATA
            how: dict[str, Any] = {
                "data": given,
                "directory": Repository(folder).path_for(title, version),
                "name": title,
                "version": version,
                "max_batch": max_batch,
                "backends": list(backends) or None,
                "threads": threads_here(read.about),
                "progress": on_progress,
            }
            if asked.cosine is not None:
                build_near(read, fidelity=asked, promise=Promise(asked.share), **how)
            else:
                report = build_folder(read, **how)
                if read.about.task is Task.EMBED and given.samples is not None:
                    warnings.warn(f"it is computed in full precision: {DECLARE}", stacklevel=2)
                elif given.samples is not None:
                    _learn(
                        report.directory, given.samples, asked.share, Task.CLASSIFY, on_progress, threads=how["threads"]
                    )
            _note(folder, title, version).write_text(found.hexdigest())
    finally:
        torch.set_num_threads(threads)
    return title


def _learn(
    directory: ModelDirectory,
    parts: tuple[Samples, Samples],
    fidelity: float,
    task: str,
    on_progress: Progress,
    *,
    threads: int = 1,
) -> None:
    """Train learned caches, or warn that the model is not known to be a classifier."""
    if unknown := doubt(directory, parts, task):
        warnings.warn(f"there are no learned caches: {unknown}", stacklevel=3)
        return
    explored = explored_folder(directory.path)
    build_caches(
        directory, *parts, fidelity=fidelity, explored=explored, task=task, threads=threads, progress=on_progress
    )


def _add_files(found: "hashlib._Hash", path: Path) -> None:
    """Add the names and contents of a file, or of all files in a folder. Raises `ConfigError` if it is neither."""
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    for file in files:
        try:
            with file.open("rb") as opened:
                digest = hashlib.file_digest(opened, "sha256").hexdigest()
        except OSError as error:
            raise ConfigError(f"{file} cannot be read: {error.strerror}") from None
        found.update(f"{file.relative_to(path)} {digest}".encode())


def _version(folder: Path, name: str, made_of: str) -> tuple[str, bool]:
    """Return the version to serve, and whether it exists; an incomplete version is not used."""
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
    return rows.halves()


def _real(samples: Samples, examples: Mapping[str, Tensor] | Sequence[Tensor], graph: Graph) -> Tensors:
    """Return rows of the samples in the sizes of the examples."""
    if not graph.dims:
        inputs = samples.inputs
        return (
            {name: whole(part) for name, part in inputs.items()}
            if isinstance(inputs, Mapping)
            else [*map(whole, inputs)]
        )
    rows = samples.ordered(graph.inputs, graph.dims).typical()
    return resized(rows, graph.inputs, own_sizes(graph, tensors_of(examples)))


def _add(found: "hashlib._Hash", parts: Sequence[str | Tensor]) -> None:
    for part in parts:
        if isinstance(part, str):
            found.update(part.encode())
        else:
            found.update(f"{part.dtype} {tuple(part.shape)}".encode())
            found.update(part.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data)
