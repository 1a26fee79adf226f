"""Serves a module from Python: builds it if necessary, and runs `latebind serve` as a child. A trusted step."""

import signal
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any, TypedDict, Unpack

from torch import nn

from latebind.cli.console import progress
from latebind.domain.config import EngineConfig, FrontendConfig
from latebind.hosting.building import Inputs, Rows, build_once
from latebind.hosting.child import READY, Child, start
from latebind.program.backends import exact_backends
from latebind.program.build import ignore_progress
from latebind.program.device import HOST, find_device
from latebind.server.listening import check_addresses

PORT = 8000
OF_A_BUILD = (
    "name",
    "samples",
    "task",
    "fidelity",
    "max_batch",
    "outputs",
)  # options that `build_once` takes as they are


class Options(TypedDict, total=False):
    """The options of `serve` and `serving`.

    `name` is the model's name, by default that of the module's class. In `folder` the model is built once and found
    again; without one it is built for this time only. With `samples`, rows like those to come, learned caches are
    trained for a classifier, so that answers equal the module's with `fidelity` (0.97); two `Samples` are to train and
    to calibrate on, other rows are split in halves. `task` "classify" declares a classifier: the class of the largest
    output is the answer. It need not be declared where samples have labels or the module ends in a softmax. `deadline`
    is the seconds of requests that name none (1). Of the `backends` the fastest is used. `max_batch` is 16 by default.
    If the module returns a dictionary, `outputs` names those to serve. `arguments` are further arguments of `latebind
    serve`.
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


@contextmanager
def serving(module: nn.Module, example_inputs: Inputs, **options: Unpack[Options]) -> Iterator[str]:
    """Serve `module` within the context, which gets the URL of the server::

        with latebind.serving(resnet18().eval(), torch.randn(4, 3, 224, 224)) as url:
            ...

    `example_inputs` are tensors `(N, ...)` by name or in order, or a single one. By default a free port is used. Raises
    `ExportError` for a module that cannot be served, with what to change in it, `ConfigError` for invalid options, and
    `Unavailable` at the end of a context in which the server has died.
    """
    _check("serving", options)
    with _served(module, example_inputs, {"port": 0, **options}, quiet=True) as child:
        yield child.url


def serve(module: nn.Module, example_inputs: Inputs, **options: Unpack[Options]) -> None:
    """Serve `module`, by default on port 8000, until the process is interrupted or terminated.

    Raises what `serving` raises, and `Unavailable` if the server ends though nobody asked for it.
    """
    _check("serve", options)
    with (
        suppress(KeyboardInterrupt),
        _interrupted_by_sigterm(),
        _served(module, example_inputs, {"port": PORT, **options}, quiet=False) as child,
    ):
        print(f"{READY}{child.url}", flush=True)
        child.wait()


def _check(function: str, options: Options) -> None:
    """Raise `TypeError` for an option that is none, or has the wrong type: nobody's editor may have checked them."""
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
def _served(module: nn.Module, inputs: Inputs, options: Options, *, quiet: bool) -> Iterator[Child]:
    # These are checked before a build, which takes minutes.
    device, arguments = options.get("device", HOST.type), options.get("arguments", ())
    kind = find_device(EngineConfig(device=device).device).type
    frontend = FrontendConfig(port=options["port"], deadline=options.get("deadline", 1.0))
    if "--host" not in arguments:
        check_addresses(frontend)
    backends = options.get("backends") or (() if kind == HOST.type else exact_backends(kind))
    building: Any = {name: value for name, value in options.items() if name in OF_A_BUILD}
    with ExitStack() as stack:
        folder = Path(options.get("folder") or stack.enter_context(tempfile.TemporaryDirectory(prefix="latebind-")))
        with ExitStack() as shown:
            tell = ignore_progress if quiet else shown.enter_context(progress("building"))
            name = build_once(module, inputs, folder, backends=backends, tell=tell, **building)
        words = (str(folder), "--model", name, "--port", str(frontend.port), "--device", device)
        deadline = ("--deadline-ms", f"{frontend.deadline * 1e3:g}")
        yield stack.enter_context(start((*words, *deadline, *arguments), quiet=quiet))


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
