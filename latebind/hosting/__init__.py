"""Serves a module from Python: builds it if necessary, and runs `latebind serve` as a child. A trusted step."""

import signal
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any, TypedDict, Unpack

from torch import nn

from latebind.cli.console import progress
from latebind.domain.config import DoorConfig, EngineConfig
from latebind.hosting.building import Inputs, Rows, build_once
from latebind.hosting.child import READY, Child, start
from latebind.program.backends import exact_backends
from latebind.program.build import ignore_progress
from latebind.program.device import HOST, find_device
from latebind.server.listening import check_addresses

PORT = 8000


class Options(TypedDict, total=False):
    """The options of `serve` and `serving`.

    `name` is the model's name, by default that of the module's class. In `folder` the model is built once and found
    again; without one it is built for this time only. With `samples`, rows like those to come, learned caches are
    trained for a classifier, so that answers equal the module's with `fidelity`; two `Samples` are to train and to
    calibrate on, other rows are split in halves. `task` "classify" declares a classifier: the class of the largest
    output is the answer. It need not be declared where samples have labels or the module ends in a softmax. `deadline`
    is the seconds of requests that name none. Of the `backends` the fastest is used. If the module returns a
    dictionary, `outputs` names those to serve. `arguments` are further arguments of `latebind serve`.
    """

    name: str
    folder: Path | str
    samples: Rows
    task: str
    fidelity: float
    deadline: float
    device: str
    port: int
    max_batch: int
    backends: tuple[str, ...]
    outputs: tuple[str, ...]
    arguments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Hosting:
    """The options with their defaults."""

    port: int
    name: str = ""
    folder: Path | str = ""
    samples: Rows | None = None
    task: str = ""
    fidelity: float = 0.97
    deadline: float = 1.0
    device: str = "cpu"
    max_batch: int = 16
    backends: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()


@contextmanager
def serving(module: nn.Module, example_inputs: Inputs, **options: Unpack[Options]) -> Iterator[str]:
    """Serve `module` within the context, which gets the URL of the server::

        with latebind.serving(resnet18().eval(), torch.randn(4, 3, 224, 224)) as url:
            ...

    `example_inputs` are tensors `(N, ...)` by name or in order, or a single one. By default a free port is used. Raises
    `ExportError` for a module that cannot be served, with what to change in it, `ConfigError` for invalid options, and
    `Unavailable` at the end of a context in which the server has died.
    """
    with _served(module, example_inputs, _hosting("serving", options, port=0), quiet=True) as child:
        yield child.url


def serve(module: nn.Module, example_inputs: Inputs, **options: Unpack[Options]) -> None:
    """Serve `module`, by default on port 8000, until the process is interrupted or terminated.

    Raises what `serving` raises, and `Unavailable` if the server ends though nobody asked for it.
    """
    with (
        suppress(KeyboardInterrupt),
        _interrupted_by_sigterm(),
        _served(module, example_inputs, _hosting("serve", options, port=PORT), quiet=False) as child,
    ):
        print(f"{READY}{child.url}", flush=True)
        child.wait()


def _hosting(function: str, options: Options, *, port: int) -> _Hosting:
    """Return the options with their defaults; `port` is the default port. Raises `TypeError` for an invalid one."""
    known = Options.__annotations__
    unknown = [name for name in options if name not in known]
    if unknown:
        raise TypeError(f"latebind.{function}() has no option {unknown[0]!r}; it has {', '.join(known)}")
    for name in ("backends", "outputs", "arguments"):
        if isinstance(text := options.get(name), str):
            raise TypeError(f"latebind.{function}(): {name} is the text {text!r}: give words, {tuple(text.split())}")
    given: dict[str, Any] = {"port": port, **options}
    if not isinstance(given["port"], int):
        raise TypeError(f"latebind.{function}(): port is {given['port']!r}: give a whole number")
    return _Hosting(**given)


@contextmanager
def _served(module: nn.Module, inputs: Inputs, wanted: _Hosting, *, quiet: bool) -> Iterator[Child]:
    kind = find_device(
        EngineConfig(device=wanted.device).device
    ).type  # like the following checks, before a build that takes minutes
    backends = wanted.backends or (() if kind == HOST.type else exact_backends(kind))
    door = DoorConfig(port=wanted.port, deadline=wanted.deadline)
    if "--host" not in wanted.arguments:
        check_addresses(door)
    with ExitStack() as stack:
        folder = Path(wanted.folder or stack.enter_context(tempfile.TemporaryDirectory(prefix="latebind-")))
        with ExitStack() as building:
            name = build_once(
                module,
                inputs,
                folder,
                name=wanted.name,
                samples=wanted.samples,
                task=wanted.task,
                fidelity=wanted.fidelity,
                max_batch=wanted.max_batch,
                backends=backends,
                outputs=wanted.outputs,
                tell=ignore_progress if quiet else building.enter_context(progress("building")),
            )
        words = (str(folder), "--model", name, "--port", str(wanted.port), "--device", wanted.device)
        deadline = ("--deadline-ms", f"{wanted.deadline * 1e3:g}")
        yield stack.enter_context(start((*words, *deadline, *wanted.arguments), quiet=quiet))


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
