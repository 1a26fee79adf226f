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
            help="Share of answers that must equal the base model's. For an embedding cosine:0.99@0.97: the network is "
            "computed in fewer bits, and for 97 % of the vectors the cosine to the full network's is at least 0.99."
        ),
    ] = "0.97"
    confidence: Annotated[float, typer.Option(help="Confidence in that share, on data used for nothing else.")] = 0.95
    answers: Annotated[
        int,
        typer.Option(
            help="The promise is for this many next answers: they must have that share, with that confidence. 0 "
            "promises it only in the long run, so that a short run may have less by chance."
        ),
    ] = ANSWERS
    memory: Annotated[
        float,
        typer.Option(
            help="The most megabytes for the learned caches in use, except the network in eight bits; inf: no limit."
        ),
    ] = CACHE_BYTES / 1e6

    def promise(self) -> Promise:
        """Return the promise. Raises `ConfigError` for one that cannot be kept."""
        most = in_bytes("--memory", self.memory, 1e6)
        return Promise(self.asked().share, self.confidence, most, answers=self.answers or None)

    def asked(self) -> Fidelity:
        """Return the fidelity. Raises `ConfigError` for an invalid one."""
        return Fidelity.read(self.fidelity)


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """The module, and the name, version and tensors of the model that it becomes."""

    module: Annotated[
        str,
        typer.Argument(
            help="The function without arguments that returns the module: package.module:function. Or a folder as "
            "Hugging Face saves it, or hf:ORG/NAME[@revision] to fetch one."
        ),
    ]
    repository: Annotated[Path, typer.Option("--out", help="The folder of models to write into.")] = Path("models")
    name: Annotated[str, typer.Option(help="The model's name. Default: that of the function or folder.")] = ""
    version: Annotated[str, typer.Option(help="The model's version, a number.")] = "1"
    weights: Annotated[Path | None, typer.Option(help="Load the weights from this .safetensors file.")] = None
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            help="An input as name=dtype:3x32x32, without the batch; repeat it for each input, in order. A size that "
            "differs from row to row has a name, as in ids=int64:L and image=float32:3xHxW, and a --dim.",
        ),
    ] = None
    dims: Annotated[
        list[str] | None,
        typer.Option(
            "--dim",
            help="The range of a named size: L=1..512, or H=32..1024:32 for the multiples of 32; repeat it for each. "
            "Inputs that use the same name have the same size there.",
        ),
    ] = None
    outputs: Annotated[
        list[str] | None,
        typer.Option("--output", help="An output to serve, if the module returns a dictionary. Default: all."),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Data like the requests to come."""

    PANEL: ClassVar = "Data"

    data: Annotated[
        str,
        typer.Option(
            help="Data for learned caches: an .npz file or package.module:function. Default: no caches. Rows of "
            "several sizes are saved padded to the longest, with an array of their sizes named as the dimension (L)."
            " For a folder: a .csv, .tsv, .jsonl or .parquet file of texts and labels, or a folder with a subfolder of "
            "pictures or sounds for each class."
        ),
    ] = ""
    data_option: DataOption = None
    task: Annotated[
        str,
        typer.Option(
            help="What the output means. classify: scores of classes, the largest is the answer. Needed for learned "
            "caches if the data has no labels and the network does not end in a softmax. For a folder: embed, "
            "classify, rerank, tag, detect or segment, to override the task of its architecture."
        ),
    ] = ""
    text_column: Annotated[str, typer.Option(help="The column of texts in --data, for a folder.")] = TEXT
    label_column: Annotated[
        str, typer.Option(help="The column of labels in --data, for a folder: class names or numbers.")
    ] = LABEL


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """Which predictors are trained, at which boundaries, and for how long."""

    PANEL: ClassVar = "Training learned caches"

    lessons: Annotated[int, typer.Option(help="Rows to train each predictor on; more improve exits.")] = PRESENTATIONS
    kind: Annotated[
        list[str] | None,
        typer.Option(
            help="Train this predictor wherever it may save time: residual, deep, light, plain, fc(256), pool(256), "
            "conv(3,1) with any numbers, or all of these, at every boundary; may be repeated. Default: the best "
            "of the first four. slim is a smaller residual; bytes adds the network itself in eight bits, for requests "
            "that no other predictor answers."
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
        float, typer.Option(help="The shortest stage, in milliseconds; 0 cuts everywhere, at any cost.")
    ] = MIN_STAGE_SECONDS * 1e3
    min_stage_mb: Annotated[
        float,
        typer.Option(help="The fewest megabytes of weights of a stage; with --min-stage-ms 0 only this decides."),
    ] = 0.0
    backend: Annotated[list[str] | None, typer.Option(help="Try only this backend; may be repeated.")] = None
    tolerance: Annotated[
        float | None,
        typer.Option(help="Largest relative error; setting it allows backends of lower precision. Default: 1e-5."),
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

    An .npz file has an array for each input and may have `labels`; it is split in halves for training and for
    calibration. If rows differ in size they are padded to the longest, and an array under the name of the dimension has
    their sizes: `numpy.savez("rows.npz", **tokens, L=tokens["attention_mask"].sum(1), labels=y)`.
    A function returns the two sets itself. This step runs your code; serving never does.

    Learned caches are for classifiers: they are trained if the rows have labels, if the network ends in a
    softmax, or with `--task classify`. Another model with data, such as a regressor, is built without them.

    Each network is saved as soon as it is trained: an interrupted build continues where it stopped, and one with
    another `--kind` trains only that.

    If rows differ in size, such as texts, declare the size with `--dim`: a request then takes about the time of its
    own length, not of the longest.

    A folder as Hugging Face saves it (`config.json`, `model.safetensors`, `tokenizer.json`, `preprocessor_config.json`)
    becomes a model that takes texts, pictures or sounds directly. No code that came with it is run. Its task follows
    from its architecture; `--dim L=1..128` limits the length of texts.

    A module with `encode` and `step` is a sequence model: each request keeps its own state, and requests share decoder
    steps at any position. `--data` then gives rows like those to come, from which the lengths of answers are estimated.

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
            raise ConfigError(f"{made.module!r:.200}: no such folder; write a function as package.module:function")
        if not made.inputs:
            raise ConfigError(
                "--input is missing: describe each input as name=dtype:shape, such as image=float32:3x32x32"
            )
        return
    unused = {"--input": made.inputs, "--output": made.outputs, "--weights": made.weights}
    for option, given in {**unused, "--data-option": rows.data_option}.items():
        if given:
            raise ConfigError(f"{option}: the folder defines that: leave the option out")


class Lookups(StrEnum):
    """Inline between two stages, aside on another core while the network continues, or whichever measures faster."""

    AUTO = "auto"
    IN_LINE = "in-line"
    ASIDE = "aside"


def calibrate(
    repository: Annotated[Path, typer.Argument(help="A folder of models.")],
    *,
    model: Annotated[str, typer.Option(help="The model in the folder.")],
    data: Annotated[str, typer.Option(help="As for `latebind build`; only the calibration half is used.")],
    data_option: DataOption = None,
    promised: Promised,
    backend: Annotated[str | None, typer.Option(help="The backend to serve with. Default: as built.")] = None,
    threads: Annotated[int | None, typer.Option(help="Threads that a worker will have. Default: as built.")] = None,
    lookups: Annotated[
        Lookups,
        typer.Option(
            help="Run lookups in-line, between two stages, or aside, on another core while the network continues. auto "
            "measures both and uses aside if it is 5 % faster."
        ),
    ] = Lookups.AUTO,
    seed: Seed = 0,
    json_file: JsonFile = None,
) -> None:
    """Recalibrate the thresholds of a model's learned caches, for another fidelity or on data closer to your traffic.

    Example: `latebind calibrate models --model resnet56 --data recent.npz --fidelity 0.99`
    """
    with reporting():
        promised.promise()
        (path,) = find_models(repository, [model])
        from latebind.cli.building import calibrate_model

        calibrate_model(path, data, data_option, promised, backend, threads, lookups, seed=seed, json_file=json_file)
