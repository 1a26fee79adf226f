"""`latebind build` and `latebind calibrate`: a model directory of a module, with learned caches if there is data."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
import typer
from torch import Tensor, nn

from latebind.cli.console import console, progress, reporting, save, show, show_pairs
from latebind.cli.options import DataOption, JsonFile, Seed, Threads, in_bytes
from latebind.cli.sources import (
    check_batch,
    example_inputs,
    load_module,
    load_rows,
    load_samples,
    read_dims,
    samples_for,
)
from latebind.domain.errors import ConfigError
from latebind.domain.model import Task, TensorSpec
from latebind.folders.build import NO_DATA, build_folder, build_near, check_fidelity, data_of, read_folder
from latebind.folders.files import is_folder
from latebind.folders.hub import folder_name
from latebind.folders.rows import LABEL, TEXT
from latebind.learned.build import CANDIDATES, PRESENTATIONS, build_caches, recalibrate
from latebind.learned.exploration_folder import delete_exploration, explored_folder
from latebind.learned.networks import EVERY, check_kinds
from latebind.learned.promise import ANSWERS, CACHE_BYTES, Fidelity, Promise
from latebind.learned.samples import Samples, check_task, doubt
from latebind.learned.vectors import DECLARE, certify
from latebind.program.build import MAX_OVERHEAD, MIN_STAGE_SECONDS, Settings, build_program
from latebind.program.lengths import input_specs
from latebind.program.measure import with_batch
from latebind.program.metadata import read_model
from latebind.repository.directory import ModelDirectory
from latebind.repository.listing import Repository, find_models
from latebind.sequence.build import build_sequence
from latebind.sequence.export import TOKENS, is_sequence
from latebind.server.limits import too_large_a_row

ALL = "all"
FULL = "full: no backend of lower precision is quicker here and stays as near, so every vector is the network's own"


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
        float, typer.Option(help="The most megabytes for the learned caches in use; inf sets no limit.")
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

    def kinds(self) -> tuple[str, ...]:
        """Return the kinds to train, each once. Raises `ConfigError` for one that there is not."""
        named = [one for kind in self.kind or () for one in (EVERY if kind == ALL else (kind,))]
        check_kinds(named)
        return tuple(dict.fromkeys(named))


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
    threads: Threads = 1


@dataclass(frozen=True, slots=True)
class Building:
    """What one build was asked for, checked: groups of options, and what of them goes to `build_program`.

    `stages` say where to cut, which a sequence model is not.
    """

    made: Made
    rows: Rows
    training: Training
    promised: Promised
    stages: dict[str, Any]
    how: dict[str, Any]
    seed: int

    @property
    def title(self) -> str:
        """The model's name."""
        return str(self.how["name"])

    def add_caches(self, samples: tuple[Samples, Samples], task: str) -> dict[str, object]:
        """Train learned caches for the model that was built, if it is a classifier, and return figures of them."""
        path: Path = self.how["directory"]
        if unknown := doubt(ModelDirectory.open(path), samples, task):
            show_pairs("no learned caches", [("why", unknown)])
            return {}
        training, promise = self.training, self.promised.promise()
        with progress("learning caches") as tell, warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=__name__)  # the table says it
            if training.fresh:
                delete_exploration(explored_folder(path))
            learned = build_caches(
                ModelDirectory.open(path),
                *samples,
                fidelity=promise.fidelity,
                confidence=promise.confidence,
                presentations=training.lessons,
                kinds=training.kinds(),
                candidates=0 if ALL in (training.kind or ()) else CANDIDATES,
                explored=explored_folder(path),
                cache_bytes=promise.cache_bytes,
                answers=promise.answers,
                task=task,
                threads=self.how["threads"],
                seed=self.seed,
                progress=tell,
            )
        show_pairs(f"learned caches for fidelity {promise.fidelity:g}", learned.rows())
        if learned.tried:
            show("all networks explored, each alone at the target", learned.variants())
        return {"caches": learned.rows(), "variants": learned.variants()}


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
        # Whatever options no build can take is told before a module is made.
        from_folder = is_folder(made.module)
        _check_options(made, rows, from_folder=from_folder)
        title = made.name or (folder_name(made.module) if from_folder else made.module.rpartition(":")[2])
        path = Repository(made.repository).path_for(title, made.version)
        if not compiled.min_stage_ms >= 0:
            raise ConfigError(f"--min-stage-ms {compiled.min_stage_ms:g}: give 0 or more")
        stages: dict[str, Any] = {
            "min_stage_seconds": compiled.min_stage_ms / 1e3,
            "min_stage_bytes": in_bytes("--min-stage-mb", compiled.min_stage_mb, 1e6),
            "max_overhead": MAX_OVERHEAD if compiled.min_stage_ms else None,
        }
        how: dict[str, Any] = {
            "max_batch": compiled.max_batch,
            "backends": compiled.backend,
            "tolerance": compiled.tolerance,
            "threads": compiled.threads,
        }
        promised.promise()
        declared = compiled.tolerance or promised.asked().tolerance  # a distance allows what a tolerance does
        Settings.checked(title, made.version, **(how | {"tolerance": declared}))
        training.kinds()
        how |= {"directory": path, "name": title, "version": made.version}
        building = Building(made, rows, training, promised, stages, how, seed)
        figures = _folder(building) if from_folder else _module(building)
        console.print(f"serve it with: latebind serve {made.repository}")
        save(json_file, figures)


def _module(building: Building) -> dict[str, object]:
    """Build what a function returns, with learned caches where there is data."""
    made, rows, title = building.made, building.rows, building.title
    check_task(rows.task)
    if building.promised.asked().cosine is not None:
        raise ConfigError(
            f"--fidelity {building.promised.asked()}: a cosine is promised of embeddings in folders as Hugging Face "
            "saves them; build another module that answers with vectors with --tolerance, then run `latebind calibrate`"
        )
    network = load_module(made.module, made.weights)
    examples, varying = example_inputs(made.inputs or (), made.dims or (), seed=building.seed)
    given = {name: (str(some.dtype).removeprefix("torch."), some.shape[1:]) for name, some in examples.items()}
    specs = input_specs(given, *varying)
    _check_size(title, specs, building.how["max_batch"])
    if is_sequence(network):
        return _sequence(network, examples, building)
    samples = load_samples(rows.data, rows.data_option, seed=building.seed, inputs=specs) if rows.data else None
    # before anything is made, and a former model replaced
    ordered = [part.ordered(specs, varying.dims) for part in samples or ()]
    data = ordered[0].typical() if ordered else None
    if data is not None and varying.dims:  # what is measured is then as long as what comes
        examples = dict(zip(examples, with_batch(data, 2), strict=True))
    with progress(f"building {title}") as tell:
        built = build_program(
            network,
            examples,
            dims=varying.dims,
            sizes=varying.sizes,
            outputs=made.outputs,
            data=data,
            progress=tell,
            **building.stages,
            **building.how,
        )
    show_pairs(f"{title} version {made.version}", built.rows())
    figures: dict[str, object] = {"program": built.rows(), "caches": None, "variants": None, "composition": None}
    if samples is not None:
        figures |= building.add_caches(samples, rows.task)
    return figures


def _check_size(title: str, specs: Sequence[TensorSpec], most: int) -> None:
    """Say what a request may not have, and raise `ConfigError` for batches that no memory holds."""
    check_batch(specs, most)
    if told := too_large_a_row(specs):
        console.print(f"{title}: {told}", markup=False, highlight=False)


def _check_options(made: Made, rows: Rows, *, from_folder: bool) -> None:
    """Raise `ConfigError` for options that are missing, or that a build of this kind has no use for."""
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


def _folder(building: Building) -> dict[str, object]:
    """Build a folder as Hugging Face saves it, with learned caches where there is data."""
    made, rows, title = building.made, building.rows, building.title
    with progress(f"building {title}") as tell:
        tell("reading the folder", 0.0)
        folder = read_folder(made.module, task=rows.task, dims=tuple(read_dims(made.dims or ()).values()))
        about, fidelity = folder.about, building.promised.asked()
        embeds = about.task is Task.EMBED
        check_fidelity(folder, fidelity, has_data=bool(rows.data))
        _check_size(title, folder.specs(), building.how["max_batch"])
        data = NO_DATA
        if rows.data:
            tell("reading the data", 0.0)
            columns = {"text_column": rows.text_column, "label_column": rows.label_column}
            data = data_of(folder, Path(rows.data), **columns, seed=building.seed)
        making = {"data": data, "progress": tell, **building.stages, **building.how}
        near, refused = None, ""
        if fidelity.cosine is None:
            built = build_folder(folder, **making)
        else:
            built, near, refused = build_near(folder, fidelity=fidelity, promise=building.promised.promise(), **making)
    takes = ", ".join(each.name + " (optional)" * each.optional for each in about.raw)
    said = [
        ("task", f"{about.task}, of {takes}"),
        *(("note", line) for line in (*folder.told, *data.told)),
        *built.rows(),
    ]
    show_pairs(f"{title} version {made.version}", said)
    figures: dict[str, object] = {"program": said, "caches": None, "variants": None, "composition": None}
    if embeds and data.samples is not None:
        shown = near.rows() if near is not None else [("precision", DECLARE if fidelity.cosine is None else FULL)]
        shown += [("warning", refused)] if refused else []
        show_pairs(f"vectors for fidelity {fidelity}", shown)
        return figures | {"vectors": shown}
    if data.samples is not None:
        figures |= building.add_caches(data.samples, Task.CLASSIFY)
    return figures


def _sequence(network: nn.Module, examples: dict[str, Tensor], building: Building) -> dict[str, object]:
    """Build a sequence model, on rows like those to come if there are any."""
    made, rows, title = building.made, building.rows, building.title
    if made.outputs:
        raise ConfigError(f"--output {made.outputs[0]}: a sequence model has one output, {TOKENS}: leave --output out")
    if made.dims:
        raise ConfigError(
            f"--dim {made.dims[0]}: rows of a sequence model are of any length already: give the longest as a number"
        )
    tokens = next(iter(examples.values()))
    if rows.data:
        arrays = list(load_rows(rows.data, rows.data_option)[0].values())
        if len(examples) != 1 or len(arrays) != 1 or arrays[0].shape[1:] != tokens.shape[1:]:
            raise ConfigError(
                f"--data {rows.data!r} must give one array of rows like --input {' '.join(made.inputs or ())}"
            )
        tokens = torch.from_numpy(arrays[0])
    with progress(f"building {title}") as tell:
        built = build_sequence(network, tokens, measured_lengths=bool(rows.data), progress=tell, **building.how)
    show_pairs(f"{title} version {made.version}", built.rows())
    return {"program": built.rows()}


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
    threads: Threads = 1,
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
    with reporting(), progress("calibrating") as tell:
        promise, fidelity = promised.promise(), promised.asked()
        directory = ModelDirectory.open(*find_models(repository, [model]))
        _, held_out = samples_for(directory, data, data_option, seed=seed)
        if fidelity.cosine is not None or read_model(directory).about.task is Task.EMBED:
            _, near = certify(directory, held_out, fidelity, promise, threads=threads)
            if near is not None and not near.kept:
                raise ConfigError(f"{model}: {near.said}: nothing was changed; build it again, or ask for less")
            shown = near.rows() if near is not None else [("precision", FULL)]
            show_pairs(f"vectors for fidelity {fidelity}", shown)
            save(json_file, shown)
            return
        report = recalibrate(
            directory,
            held_out,
            fidelity=promise.fidelity,
            confidence=promise.confidence,
            threads=threads,
            backend=backend,
            seed=seed,
            cache_bytes=promise.cache_bytes,
            aside=None if lookups is Lookups.AUTO else lookups is Lookups.ASIDE,
            answers=promise.answers,
            progress=tell,
        )
    show_pairs(f"learned caches for fidelity {promise.fidelity:g}", report.rows())
    save(json_file, report.rows())
