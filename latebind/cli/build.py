"""`latebind build`: from a module to a model directory, with learned caches where there is data for them."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from torch import Tensor, nn

from latebind.cli.build_options import Compiled, Cut, Limits, Made, Rows, Training
from latebind.cli.console import JsonFile, console, progress, reporting, save, show
from latebind.cli.promised import Promised, answers_of
from latebind.cli.sources import load_module
from latebind.domain.errors import ConfigError
from latebind.learned.build import build_caches
from latebind.learned.exploration_folder import delete_exploration, explored_folder
from latebind.learned.samples import Samples, Task, doubt
from latebind.program.build import build_program
from latebind.repository.directory import ModelDirectory
from latebind.sequence.build import build_sequence
from latebind.sequence.export import TOKENS, is_sequence

Figures = dict[str, object]


def build(
    made: Made,
    *,
    rows: Rows,
    training: Training,
    limits: Limits,
    promised: Promised,
    cut: Cut,
    compiled: Compiled,
    seed: Annotated[int, typer.Option(help="Seed of training, splits and examples.")] = 0,
    json_file: JsonFile = None,
) -> None:
    """Export a module, cut it into stages, compile, verify and profile them, and train learned caches.

    An .npz file holds an array for each input and may hold `labels`; it is split in halves for training and for
    calibration. A function returns the two sets itself. This step runs your code; serving never does.

    Learned caches are for classifiers: they are trained where the rows have labels, where the network ends in a
    softmax, or with `--task classify`. Another model with data, such as a regressor, is built without them.

    Each network is kept as soon as it is trained: the same build goes on where it was broken off, and one with another
    `--kind` trains only that.

    A module with `encode` and `step` is a sequence model: each request keeps its own state, and requests share decoder
    steps wherever they are. `--data` then gives rows like those to come, for the lengths of answers to expect.

    Examples:

    * `latebind build mymodels:resnet --input image=float32:3x224x224`
    * `latebind build examples.translation.model:transformer --weights transformer.safetensors --input tokens=int64:40
      --data examples.translation.data:samples --data-option data=multi30k/`
    * `latebind build examples.cifar10.model:resnet56 --weights resnet56.safetensors --input image=float32:3x32x32
      --data examples.cifar10.data:samples --data-option data=cifar10/ --fidelity 0.97`
    """
    with reporting():
        path = made.path()
        compiled.check(made)
        limits.check(promised)
        training.check()
        cut.check()
        network = load_module(made.module, made.weights)
        if is_sequence(network):
            figures = _sequence(network, path, made, rows, compiled, seed)
        else:
            examples = made.examples(seed)
            samples = rows.samples(examples, seed)  # before anything is made, and a former model replaced
            figures = _program(network, examples, samples, path, made, cut, compiled)
            figures |= _caches(path, samples, rows.task, training, limits, promised, compiled.threads, seed)
        console.print(f"serve it with: latebind serve {made.repository}")
        save(json_file, figures)


def _sequence(network: nn.Module, path: Path, made: Made, rows: Rows, compiled: Compiled, seed: int) -> Figures:
    """Build a sequence model."""
    if made.outputs:
        raise ConfigError(f"--output {made.outputs[0]}: a sequence model has one output, {TOKENS}: leave --output out")
    tokens, like_those_to_come = rows.tokens(made, seed)
    with progress(f"building {made.title}") as tell:
        built = build_sequence(
            network,
            tokens,
            directory=path,
            name=made.title,
            version=made.version,
            measured_lengths=like_those_to_come,
            backends=compiled.backend,
            tolerance=compiled.tolerance,
            max_batch=compiled.max_batch,
            threads=compiled.threads,
            progress=tell,
            trust_timings=compiled.trust_timings,
        )
    _show(f"{made.title} version {made.version}", built.rows())
    return {"program": built.rows()}


def _program(
    network: nn.Module,
    examples: Mapping[str, Tensor],
    samples: tuple[Samples, Samples] | None,
    path: Path,
    made: Made,
    cut: Cut,
    compiled: Compiled,
) -> Figures:
    """Build a chain of stages."""
    with progress(f"building {made.title}") as tell:
        built = build_program(
            network,
            examples,
            directory=path,
            name=made.title,
            version=made.version,
            backends=compiled.backend,
            tolerance=compiled.tolerance,
            min_stage_seconds=cut.min_stage_ms / 1e3,
            min_stage_bytes=cut.stage_bytes(),
            max_overhead=cut.most_overhead(),
            max_batch=compiled.max_batch,
            threads=compiled.threads,
            outputs=made.outputs,
            data=None if samples is None else samples[0].inputs,
            progress=tell,
            trust_timings=compiled.trust_timings,
        )
    _show(f"{made.title} version {made.version}", built.rows())
    return {"program": built.rows()}


def _caches(
    path: Path,
    samples: tuple[Samples, Samples] | None,
    task: Task | None,
    training: Training,
    limits: Limits,
    promised: Promised,
    threads: int,
    seed: int,
) -> Figures:
    """Train learned caches for the model that was built, where there are samples and it is a classifier."""
    none: Figures = {"caches": None, "variants": None, "composition": None}
    if samples is None:
        return none
    if unknown := doubt(ModelDirectory.open(path), samples, task):
        _show("no learned caches", [("why", unknown)])
        return none
    with progress("learning caches") as tell, warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=__name__)  # the table says it
        if training.fresh:
            delete_exploration(explored_folder(path))
        learned = build_caches(
            ModelDirectory.open(path),
            *samples,
            fidelity=promised.fidelity,
            confidence=promised.confidence,
            presentations=training.lessons,
            kinds=training.kinds(),
            candidates=training.places(),
            disk=training.disk_bytes(),
            explored=explored_folder(path),
            cache_bytes=limits.cache_bytes,
            tail=limits.tail,
            aside=limits.lookups.aside,
            answers=answers_of(promised.answers),
            task=task,
            threads=threads,
            seed=seed,
            progress=tell,
        )
    _show(f"learned caches for fidelity {promised.fidelity:g}", learned.rows())
    if learned.tried:
        show("all networks explored, each alone at the target", learned.variants())
    return {"caches": learned.rows(), "variants": learned.variants()}


def _show(title: str, rows: Sequence[tuple[str, str]]) -> None:
    """Print labels and texts."""
    show(title, [{"": label, " ": text} for label, text in rows])
