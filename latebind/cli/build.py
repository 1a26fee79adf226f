"""`latebind build` and `latebind calibrate`: their options. `building` does what they ask for, with torch."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, ClassVar

import typer

from latebind.cli.console import reporting
from latebind.cli.options import DataOption, JsonFile, Seed, in_bytes
from latebind.domain.defaults import MIN_STAGE_SECONDS, PRESENTATIONS
from latebind.domain.errors import ConfigError
from latebind.folders.files import LABEL, TEXT, is_folder
from latebind.learned.promise import ANSWERS, CACHE_BYTES, Fidelity, Promise
from latebind.repository.listing import find_models


@dataclass(frozen=True, slots=True, kw_only=True)
class Promised:
    """The share of answers to promise, with which confidence, for how many next answers, and in how much memory."""

    PANEL: ClassVar = "What learned caches promise"

    fidelity: Annotated[
        str,
        typer.Option(
            help="Share of answers that must equal the base model's. Of an embedding cosine:0.99@0.97: so that of 97 % "
            "of its vectors the cosine to the full network's is at least 0.99; it is computed in fewer bits then."
        ),
    ] = "0.97"
    confidence: Annotated[float, typer.Option(help="Confidence in that share, on data used for nothing else.")] = 0.95
    answers: Annotated[
        int,
        typer.Option(
            help="The promise is for this many next answers: they must have that share, with that confidence. 0 "
            "promises it only in the long run, so that the next answers may have less by chance."
        ),
    ] = ANSWERS
    memory: Annotated[
        float,
        typer.Option(
            help="The most megabytes for the learned caches in use, but for the network in eight bits; inf: no limit."
        ),
    ] = CACHE_BYTES / 1e6

    def promise(self) -> Promise:
        """Return the promise. Raises `ConfigError` for one that cannot be kept."""
        most = in_bytes("--memory", self.memory, 1e6)
        return Promise(self.asked().share, self.confidence, most, answers=self.answers or None)

    def asked(self) -> Fidelity:
        """Return the fidelity. Raises `ConfigError` for what is none."""
        return Fidelity.read(self.fidelity)


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """The module, and the name, version and tensors of the model that it becomes."""

    module: Annotated[
        str,
        typer.Argument(
            help="The function that returns the module, without arguments: package.module:function. Or a folder as "
            "Hugging Face saves it, or hf:ORG/NAME[@revision] to fetch one."
        ),
    ]
    repository: Annotated[Path, typer.Option("--out", help="The folder of models to write into.")] = Path("models")
    name: Annotated[str, typer.Option(help="The model's name. Default: that of the function or folder.")] = ""
    version: Annotated[str, typer.Option(help="The model's version, a number.")] = "1"
    weights: Annotated[Path | None, typer.Option(help="Fill the module from this .safetensors file.")] = None
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            help="An input as name=dtype:3x32x32, batch left out; repeat it in their order. A size that differs from "
            "row to row has a name, as in ids=int64:L and image=float32:3xHxW, and a --dim.",
        ),
    ] = None
    dims: Annotated[
        list[str] | None,
        typer.Option(
            "--dim",
            help="What a named size may be: L=1..512, or H=32..1024:32 for the multiples of 32; repeat it for each. "
            "Inputs that name the same one have the same size there.",
        ),
    ] = None
    outputs: Annotated[
        list[str] | None,
        typer.Option("--output", help="An output to serve, of a module that returns a dictionary. Default: all."),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Data like the requests to come."""

    PANEL: ClassVar = "Data"

    data: Annotated[
        str,
        typer.Option(
            help="Data for learned caches: an .npz file or package.module:function. Default: no caches. Rows of "
            "several sizes are saved filled up to the longest, with an array named as the dimension (L) of their sizes."
            " For a folder: a .csv, .tsv, .jsonl or .parquet file of texts and labels, or a folder that has one of "
            "pictures or sounds for each class."
        ),
    ] = ""
    data_option: DataOption = None
    task: Annotated[
        str,
        typer.Option(
            help="What the output means. classify: scores of classes, the largest is the answer. Needed for learned "
            "caches where the data has no labels and the network does not end in a softmax. For a folder: embed, "
            "classify, rerank, tag, detect or segment, where that is not to be what its architecture is for."
        ),
    ] = ""
    text_column: Annotated[str, typer.Option(help="The column of the texts in --data, for a folder.")] = TEXT
    label_column: Annotated[
        str, typer.Option(help="The column of the labels in --data, for a folder: names of classes, or their numbers.")
    ] = LABEL


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """Which predictors are trained, at which boundaries, and for how long."""

    PANEL: ClassVar = "Training learned caches"

    lessons: Annotated[int, typer.Option(help="Rows that each predictor sees; more make better exits.")] = PRESENTATIONS
    kind: Annotated[
        list[str] | None,
        typer.Option(
            help="Train this predictor wherever its time may pay: residual, deep, light, plain, fc(256), pool(256), "
            "conv(3,1) with any numbers, or all of these, at every boundary; may be repeated. Default: the most able "
            "of the first four. slim is a smaller residual; bytes adds the network itself in eight bits, for what no "
            "other answers."
        ),
    ] = None
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Train everything again, including what an earlier build trained.")
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """Where the network is cut, and the backend, batch and threads that its stages are compiled for."""

    PANEL: ClassVar = "Stages and backends"

    min_stage_ms: Annotated[
        float, typer.Option(help="The least time that a stage takes; 0 cuts everywhere, whatever that costs.")
    ] = MIN_STAGE_SECONDS * 1e3
    min_stage_mb: Annotated[
        float,
        typer.Option(help="The fewest megabytes of weights of a stage; with --min-stage-ms 0 this alone decides."),
    ] = 0.0
    backend: Annotated[list[str] | None, typer.Option(help="Try only this backend; may be repeated.")] = None
    tolerance: Annotated[
        float | None,
        typer.Option(help="Largest relative error; stating one allows backends of lower precision. Default: 1e-5."),
    ] = None
    max_batch: Annotated[int, typer.Option(help="The largest batch to profile and run.")] = 16
    threads: Annotated[
        int | None, typer.Option(help="Threads that a worker will have. Default: as many as `latebind serve` gives it.")
    ] = None


def build(
    made: Made,
    *,
    rows: Rows,
    training: Training,
    promised: Promised,
    compiled: Compiled,
    seed: Seed = 0,
    json_file: JsonFile = None,
) -> None:
    """Export a module, cut it into stages, compile, verify and profile them, and train learned caches.

    An .npz file holds an array for each input and may hold `labels`; it is split in halves for training and for
    calibration. Where rows differ in size it holds them filled up to the longest, and beside them the size of each,
    under the name of the dimension: `numpy.savez("rows.npz", **tokens, L=tokens["attention_mask"].sum(1), labels=y)`.
    A function returns the two sets itself. This step runs your code; serving never does.

    Learned caches are for classifiers: they are trained where the rows have labels, where the network ends in a
    softmax, or with `--task classify`. Another model with data, such as a regressor, is built without them.

    Each network is kept as soon as it is trained: the same build goes on where it was broken off, and one with another
    `--kind` trains only that.

    Where rows differ in size, such as texts, `--dim` says in what: a request is then computed about as long as it is,
    not as the longest.

    A folder as Hugging Face saves it (`config.json`, `model.safetensors`, `tokenizer.json`, `preprocessor_config.json`)
    becomes a model that takes texts, pictures or sounds as they are. No code that came with it is run. Its task follows
    from its architecture; `--dim L=1..128` limits how long texts may be.

    A module with `encode` and `step` is a sequence model: each request keeps its own state, and requests share decoder
    steps wherever they are. `--data` then gives rows like those to come, for the lengths of answers to expect.

    Examples:

    * `latebind build all-MiniLM-L6-v2` and `latebind build hf:sentence-transformers/all-MiniLM-L6-v2`
    * `latebind build intents --data rows.csv --label-column intent`
    * `latebind build mymodels:resnet --input image=float32:3x224x224`
    * `latebind build mymodels:guard --input ids=int64:L --input attention_mask=int64:L --dim L=1..512`
    * `latebind build mymodels:unet --input image=float32:3xHxW --dim H=32..1024:32 --dim W=32..1024:32`
    * `latebind build examples.translation.model:transformer --weights transformer.safetensors --input tokens=int64:40
      --data examples.translation.data:samples --data-option data=multi30k/`
    * `latebind build examples.cifar10.model:resnet56 --weights resnet56.safetensors --input image=float32:3x32x32
      --data examples.cifar10.data:samples --data-option data=cifar10/ --fidelity 0.97`
    """
    with reporting():
        _check_options(made, rows, compiled, from_folder=is_folder(made.module))
        promised.promise()
        from latebind.cli.building import build_model

        build_model(made, rows, training, promised, compiled, seed=seed, json_file=json_file)


def _check_options(made: Made, rows: Rows, compiled: Compiled, *, from_folder: bool) -> None:
    """Raise `ConfigError` for options that no build can take, before torch is imported and a module made."""
    if not compiled.min_stage_ms >= 0:
        raise ConfigError(f"--min-stage-ms {compiled.min_stage_ms:g}: give 0 or more")
    in_bytes("--min-stage-mb", compiled.min_stage_mb, 1e6)
    if not from_folder:
        if ":" not in made.module:
            raise ConfigError(
                f"{made.module!r:.200}: there is no such folder, and a function is written as package.module:function"
            )
        if not made.inputs:
            raise ConfigError(
                "--input is missing: describe each input as name=dtype:shape, such as image=float32:3x32x32"
            )
        return
    unused = {"--input": made.inputs, "--output": made.outputs, "--weights": made.weights}
    for option, given in {**unused, "--data-option": rows.data_option}.items():
        if given:
            raise ConfigError(f"{option}: the folder says that itself: leave the option out")


class Lookups(StrEnum):
    """In line between two stages, aside on another core while the network goes on, or what measures faster."""

    AUTO = "auto"
    IN_LINE = "in-line"
    ASIDE = "aside"


def calibrate(
    repository: Annotated[Path, typer.Argument(help="A folder of models.")],
    *,
    model: Annotated[str, typer.Option(help="The model in the folder.")],
    data: Annotated[str, typer.Option(help="As for `latebind build`; only the part to calibrate is used.")],
    data_option: DataOption = None,
    promised: Promised,
    backend: Annotated[str | None, typer.Option(help="The backend that will serve, if not the one built for.")] = None,
    threads: Annotated[
        int | None, typer.Option(help="Threads that a worker will have. Default: as many as it was built for.")
    ] = None,
    lookups: Annotated[
        Lookups,
        typer.Option(
            help="Ask learned caches in line, between two stages, or aside, on a core of their own while the network "
            "goes on. auto measures both and takes aside if it is 5 % faster."
        ),
    ] = Lookups.AUTO,
    seed: Seed = 0,
    json_file: JsonFile = None,
) -> None:
    """Choose the thresholds of a model's learned caches anew: another fidelity, or samples nearer to your traffic.

    Example: `latebind calibrate models --model resnet56 --data recent.npz --fidelity 0.99`
    """
    with reporting():
        promised.promise()
        (path,) = find_models(repository, [model])
        from latebind.cli.building import calibrate_model

        calibrate_model(path, data, data_option, promised, backend, threads, lookups, seed=seed, json_file=json_file)
