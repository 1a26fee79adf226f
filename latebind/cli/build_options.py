"""The options of `latebind build`, in groups. The methods of a group turn its options into what a build step takes."""

from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Annotated, ClassVar

import torch
import typer
from torch import Tensor

from latebind.cli.lookups import Lookups, LookupsOption
from latebind.cli.numbers import in_bytes
from latebind.cli.promised import Promised, answers_of
from latebind.cli.sources import check_inputs, example_inputs, load_rows, load_samples
from latebind.domain.errors import ConfigError
from latebind.learned.build import CANDIDATES, DISK, PRESENTATIONS
from latebind.learned.networks import EVERY, check_kinds
from latebind.learned.promise import CACHE_BYTES, Promise
from latebind.learned.samples import Samples, Task
from latebind.program.build import MAX_OVERHEAD, MIN_STAGE_SECONDS, Settings
from latebind.repository.listing import Repository

ALL = "all"
DEFAULT_MS = MIN_STAGE_SECONDS * 1e3


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """The module, and the name, version and tensors of the model that it becomes."""

    module: Annotated[
        str, typer.Argument(help="The function that returns the module, without arguments: package.module:function.")
    ]
    repository: Annotated[Path, typer.Option("--out", help="The folder of models to write into.")] = Path("models")
    name: Annotated[str, typer.Option(help="The model's name. Default: that of the function.")] = ""
    version: Annotated[str, typer.Option(help="The model's version, a number.")] = "1"
    weights: Annotated[Path | None, typer.Option(help="Fill the module from this .safetensors file.")] = None
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", help="An input as name=dtype:3x32x32, batch left out; repeat it in their order."),
    ] = None
    outputs: Annotated[
        list[str] | None,
        typer.Option("--output", help="An output to serve, of a module that returns a dictionary. Default: all."),
    ] = None

    @property
    def title(self) -> str:
        """The model's name."""
        return self.name or self.module.rpartition(":")[2]

    def path(self) -> Path:
        """Return the model's directory. Raises `ConfigError`, also if no input is described."""
        if not self.inputs:
            raise ConfigError(
                "--input is missing: describe each input as name=dtype:shape, such as image=float32:3x32x32"
            )
        return Repository(self.repository).path_for(self.title, self.version)

    def examples(self, seed: int) -> dict[str, Tensor]:
        """Return a batch of two for each input. Raises `ConfigError`."""
        return example_inputs(self.inputs or (), seed=seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Data like the requests to come."""

    PANEL: ClassVar = "Data"

    data: Annotated[
        str, typer.Option(help="Data for learned caches: an .npz file or package.module:function. Default: no caches.")
    ] = ""
    data_option: Annotated[
        list[str] | None,
        typer.Option(help="An argument key=value for the function that --data names; may be repeated."),
    ] = None
    task: Annotated[
        Task | None,
        typer.Option(
            help="What the output means. classify: scores of classes, the largest is the answer. Needed for learned "
            "caches where the data has no labels and the network does not end in a softmax."
        ),
    ] = None

    def samples(self, examples: dict[str, Tensor], seed: int) -> tuple[Samples, Samples] | None:
        """Return samples to fit on and to calibrate on, None without data. Raises `ConfigError` if they do not fit."""
        if not self.data:
            return None
        samples = load_samples(self.data, self.data_option, seed=seed)
        for rows in samples:
            check_inputs(rows, examples)
        return samples

    def tokens(self, made: Made, seed: int) -> tuple[Tensor, bool]:
        """Return rows `(N, longest)` for a sequence model, and whether they are real data."""
        examples = list(made.examples(seed).values())
        if not self.data:
            return examples[0], False
        rows = [torch.from_numpy(array) for array in load_rows(self.data, self.data_option)[0].values()]
        if len(examples) != 1 or len(rows) != 1 or rows[0].shape[1:] != examples[0].shape[1:]:
            inputs = " ".join(made.inputs or ())
            raise ConfigError(f"--data {self.data!r} must give one array of rows like --input {inputs}")
        return rows[0], True


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """Which predictors are trained, at which boundaries, and for how long."""

    PANEL: ClassVar = "Training learned caches"

    lessons: Annotated[int, typer.Option(help="Rows that each predictor sees; more make better exits.")] = PRESENTATIONS
    kind: Annotated[
        list[str] | None,
        typer.Option(
            help="Train this predictor wherever its time may pay: residual, deep, light, plain, fc(256), pool(256), "
            "conv(3,1) with any numbers, or all of these; may be repeated. Default: the most able of the first four. "
            "slim is a smaller residual; bytes adds the network itself in eight bits, for what no other answers."
        ),
    ] = None
    boundaries: Annotated[str, typer.Option(help="How many places for learned caches to try, or all.")] = str(
        CANDIDATES
    )
    disk: Annotated[float, typer.Option(help="The most gigabytes that activations take while training.")] = round(
        DISK / 1e9, 1
    )
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Train everything again, including what an earlier build trained.")
    ] = False

    def places(self) -> int:
        """Return how many boundaries to try; 0 means all. Raises `ConfigError`."""
        if self.boundaries == ALL:
            return 0
        if not self.boundaries.isdecimal():
            raise ConfigError(f"--boundaries {self.boundaries!r}: give a number, or all")
        return int(self.boundaries)

    def disk_bytes(self) -> int:
        """Return how many bytes activations may take. Raises `ConfigError`."""
        return in_bytes("--disk", self.disk, 1e9)

    def kinds(self) -> tuple[str, ...]:
        """Return the kinds to train, each once."""
        named = [one for kind in self.kind or () for one in (EVERY if kind == ALL else (kind,))]
        return tuple(dict.fromkeys(named))

    def check(self) -> None:
        """Raise `ConfigError` for unknown boundaries and kinds, and for activations without a size."""
        self.places()
        self.disk_bytes()
        check_kinds(self.kinds())


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What learned caches may cost, and whether lookups run in line or aside."""

    PANEL: ClassVar = "What learned caches may cost"

    memory: Annotated[
        float, typer.Option(help="The most megabytes for the learned caches in use; inf sets no limit.")
    ] = CACHE_BYTES / 1e6
    tail: Annotated[
        float | None,
        typer.Option(
            help="How many times the base model's latency an input may take that no cache answers. Default: 1.05, "
            "unless that makes the mean 1.25 times longer; 100 sets no limit."
        ),
    ] = None
    lookups: LookupsOption = Lookups.AUTO

    @property
    def cache_bytes(self) -> int:
        """Bytes for the caches in use. Raises `ConfigError`."""
        return in_bytes("--memory", self.memory, 1e6)

    def check(self, promised: Promised) -> None:
        """Raise `ConfigError` for limits and promises that cannot be kept."""
        tail, answers = inf if self.tail is None else self.tail, answers_of(promised.answers)
        Promise(promised.fidelity, promised.confidence, self.cache_bytes, tail, self.lookups.aside, answers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Where the network is cut."""

    PANEL: ClassVar = "Cutting"

    min_stage_ms: Annotated[float, typer.Option(help="The least time that a stage takes; 0 cuts everywhere.")] = (
        DEFAULT_MS
    )
    min_stage_mb: Annotated[
        float,
        typer.Option(help="The fewest megabytes of weights of a stage; with --min-stage-ms 0 this alone decides."),
    ] = 0.0
    overhead: Annotated[
        float, typer.Option(help="Share of the uncut model's time that cutting may cost; 0 sets no limit.")
    ] = MAX_OVERHEAD

    def stage_bytes(self) -> int:
        """Return the fewest bytes of weights of a stage. Raises `ConfigError`."""
        return in_bytes("--min-stage-mb", self.min_stage_mb, 1e6)

    def most_overhead(self) -> float | None:
        """Return the share of the uncut model's time that cutting may cost; None sets no limit."""
        return self.overhead if 0.0 < self.overhead < inf else None

    def check(self) -> None:
        """Raise `ConfigError` for what is not 0 or more."""
        for option, value in (("--min-stage-ms", self.min_stage_ms), ("--overhead", self.overhead)):
            if not value >= 0:
                raise ConfigError(f"{option} {value:g}: give 0 or more")
        self.stage_bytes()


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """The backend, batch and threads that stages are compiled for."""

    PANEL: ClassVar = "Backends"

    backend: Annotated[list[str] | None, typer.Option(help="Try only this backend; may be repeated.")] = None
    tolerance: Annotated[
        float | None, typer.Option(help="Largest relative error; stating one allows bf16 backends. Default: 1e-5.")
    ] = None
    max_batch: Annotated[int, typer.Option(help="The largest batch to profile and run.")] = 16
    threads: Annotated[int, typer.Option(help="Threads that a worker will have.")] = 1
    trust_timings: Annotated[
        bool,
        typer.Option(
            "--trust-timings",
            help="Build although the machine is too busy to tell which backend is the quickest. Without it, such a "
            "build ends with an error and writes nothing.",
        ),
    ] = False

    def check(self, made: Made) -> None:
        """Raise `ConfigError`, before anything is built, for options that no build can take."""
        Settings.checked(
            made.title,
            made.version,
            max_batch=self.max_batch,
            backends=self.backend,
            tolerance=self.tolerance,
            threads=self.threads,
        )
