"""`latebind build`: from a module to a model directory, with learned caches where there is data for them."""

import warnings
from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import Tensor

from latebind.cli.answers import AnswersOption, answers_of
from latebind.cli.console import JsonFile, console, progress, reporting, save, show
from latebind.cli.lookups import Lookups, LookupsOption
from latebind.cli.sources import check_inputs, example_inputs, load_module, load_rows, load_samples
from latebind.domain.errors import ConfigError
from latebind.learned.build import CANDIDATES, DISK, PRESENTATIONS, build_caches
from latebind.learned.explored import explored_folder, forget_explored
from latebind.learned.networks import EVERY, check_kinds
from latebind.learned.promise import ANSWERS, CACHE_BYTES, Promise
from latebind.program.build import MAX_OVERHEAD, MIN_STAGE_SECONDS, build_program, check_settings
from latebind.repository.directory import ModelDirectory
from latebind.repository.listing import Repository
from latebind.sequence.build import build_sequence
from latebind.sequence.export import is_sequence

ALL = "all"
DEFAULT_MS = MIN_STAGE_SECONDS * 1e3


def build(
    module: Annotated[str, typer.Argument(help="What makes the module: package.module:function, no arguments.")],
    repository: Annotated[Path, typer.Option("--out", help="The folder of models to write into.")] = Path("models"),
    name: Annotated[str, typer.Option(help="The model's name. Default: that of the function.")] = "",
    version: Annotated[str, typer.Option(help="The model's version, a number.")] = "1",
    weights: Annotated[Path | None, typer.Option(help="Fill the module from this .safetensors file.")] = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", help="An input as name=dtype:3x32x32, batch left out; repeat it in their order."),
    ] = None,
    data: Annotated[
        str, typer.Option(help="Data for learned caches: an .npz file or package.module:function. Default: no caches.")
    ] = "",
    data_option: Annotated[list[str] | None, typer.Option(help="key=value for that function; may be repeated.")] = None,
    lessons: Annotated[
        int, typer.Option(help="Rows that each predictor sees; more make better exits.")
    ] = PRESENTATIONS,
    kind: Annotated[
        list[str] | None,
        typer.Option(
            help="Train this predictor wherever its time may pay: residual, deep, light, plain, fc(256), pool(256), "
            "conv(3,1) with any numbers, or all of these; may be repeated. Default: the most able of the first four. "
            "slim is a smaller residual; bytes adds the network itself in eight bits, for whom the others leave."
        ),
    ] = None,
    boundaries: Annotated[str, typer.Option(help="How many places for learned caches to try, or all.")] = str(
        CANDIDATES
    ),
    disk: Annotated[float, typer.Option(help="The most gigabytes that activations take while training.")] = DISK / 1e9,
    fresh: Annotated[bool, typer.Option("--fresh", help="Train all anew, also what an earlier build trained.")] = False,
    memory: Annotated[float, typer.Option(help="The most megabytes for the learned caches in use.")] = CACHE_BYTES
    / 1e6,
    tail: Annotated[
        float | None,
        typer.Option(
            help="For inputs that no cache answers: at most so many times the base model's latency. Default: 1.05, "
            "unless the mean is 1.25 times longer for it; 100 sets no limit."
        ),
    ] = None,
    lookups: LookupsOption = Lookups.AUTO,
    fidelity: Annotated[float, typer.Option(help="Share of answers that shall equal the base model's.")] = 0.97,
    confidence: Annotated[float, typer.Option(help="Confidence in that share, on data used for nothing else.")] = 0.95,
    answers: AnswersOption = ANSWERS,
    min_stage_ms: Annotated[
        float, typer.Option(help="What a stage is worth at least; 0 cuts everywhere.")
    ] = DEFAULT_MS,
    min_stage_mb: Annotated[
        float,
        typer.Option(help="Megabytes of weights that a stage has at least; with --min-stage-ms 0 they alone decide."),
    ] = 0.0,
    overhead: Annotated[
        float, typer.Option(help="Share of the uncut model's time that cutting may cost; 0 sets no limit.")
    ] = MAX_OVERHEAD,
    backend: Annotated[list[str] | None, typer.Option(help="Try only this backend; may be repeated.")] = None,
    tolerance: Annotated[
        float | None, typer.Option(help="Largest relative error; stating one allows bf16 backends. 1e-5.")
    ] = None,
    max_batch: Annotated[int, typer.Option(help="The largest batch to profile and run.")] = 16,
    threads: Annotated[int, typer.Option(help="Threads that a worker will have.")] = 1,
    seed: Annotated[int, typer.Option(help="Seed of training, splits and examples.")] = 0,
    json_file: JsonFile = None,
) -> None:
    """Export a module, cut it into stages, compile, verify and profile them, and train learned caches.

    An .npz file holds an array for each input and may hold `labels`; it is split in halves for training and for
    calibration. A function returns the two sets itself. This step runs your code; serving never does.

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
        if not inputs:
            raise ConfigError(
                "--input is missing: describe each input as name=dtype:shape, such as image=float32:3x32x32"
            )
        places = _places(boundaries)
        title = name or module.rpartition(":")[2]
        path = Repository(repository).path_for(title, version)
        check_settings(title, version, max_batch, backend, tolerance, threads)
        Promise(
            fidelity, confidence, int(memory * 1e6), inf if tail is None else tail, lookups.aside, answers_of(answers)
        )
        check_kinds(_kinds(kind or []))
        network = load_module(module, weights)
        if is_sequence(network):
            examples, like_those_to_come = _examples(inputs, data, data_option, seed)
            with progress(f"building {title}") as tell:
                sequence = build_sequence(
                    network,
                    examples,
                    directory=path,
                    name=title,
                    version=version,
                    measured_lengths=like_those_to_come,
                    backends=backend,
                    tolerance=tolerance,
                    max_batch=max_batch,
                    threads=threads,
                    progress=tell,
                )
            show(f"{title} version {version}", [{"": label, " ": text} for label, text in sequence.rows()])
            console.print(f"serve it with: latebind serve {repository}")
            save(json_file, {"program": sequence.rows()})
            return
        examples_of_each = example_inputs(inputs, seed=seed)
        samples = load_samples(data, data_option, seed=seed) if data else None
        for rows in samples or ():
            check_inputs(rows, examples_of_each)  # before anything is made, and a former model replaced
        with progress(f"building {title}") as tell:
            built = build_program(
                network,
                examples_of_each,
                directory=path,
                name=title,
                version=version,
                backends=backend,
                tolerance=tolerance,
                min_stage_seconds=min_stage_ms / 1e3,
                min_stage_bytes=int(min_stage_mb * 1e6),
                max_overhead=overhead or None,
                max_batch=max_batch,
                threads=threads,
                progress=tell,
            )
        show(f"{title} version {version}", [{"": label, " ": text} for label, text in built.rows()])
        learned = None
        if samples is not None:
            with progress("learning caches") as tell, warnings.catch_warnings():
                warnings.filterwarnings("ignore", module=__name__)  # the table says it
                if fresh:
                    forget_explored(explored_folder(path))
                learned = build_caches(
                    ModelDirectory.open(path),
                    *samples,
                    fidelity=fidelity,
                    confidence=confidence,
                    presentations=lessons,
                    kinds=_kinds(kind or []),
                    candidates=places,
                    disk=int(disk * 1e9),
                    explored=explored_folder(path),
                    cache_bytes=int(memory * 1e6),
                    tail=tail,
                    aside=lookups.aside,
                    answers=answers_of(answers),
                    threads=threads,
                    seed=seed,
                    progress=tell,
                )
            show(
                f"learned caches for fidelity {fidelity:g}", [{"": label, " ": text} for label, text in learned.rows()]
            )
            if learned.tried:
                show("all networks explored, each alone at the target", learned.variants())
            if len(learned.trials) > 1:
                show("what each rule of composition would have chosen, calibrated alike", learned.comparison())
        console.print(f"serve it with: latebind serve {repository}")
        save(
            json_file,
            {
                "program": built.rows(),
                "caches": learned.rows() if learned else None,
                "variants": learned.variants() if learned else None,
                "composition": learned.comparison() if learned else None,
            },
        )


def _examples(inputs: Sequence[str], data: str, given: Sequence[str] | None, seed: int) -> tuple[Tensor, bool]:
    """Return rows of tokens `(N, longest)` for a sequence model, and whether they are like those to come."""
    made = list(example_inputs(inputs, seed=seed).values())
    if not data:
        return made[0], False
    rows = [torch.from_numpy(array) for array in load_rows(data, given)[0].values()]
    if len(made) != 1 or len(rows) != 1 or rows[0].shape[1:] != made[0].shape[1:]:
        raise ConfigError(f"--data {data!r} must give one array of rows like --input {' '.join(inputs)}")
    return rows[0], True


def _places(boundaries: str) -> int:
    """Return how many boundaries to try; 0 means all."""
    if boundaries == ALL:
        return 0
    if not boundaries.isdecimal():
        raise ConfigError(f"--boundaries {boundaries!r}: give a number, or all")
    return int(boundaries)


def _kinds(kinds: list[str]) -> tuple[str, ...]:
    """Return the kinds to train, each once."""
    named = [one for kind in kinds for one in (EVERY if kind == ALL else (kind,))]
    return tuple(dict.fromkeys(named))
