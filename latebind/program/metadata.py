"""A model directory's description of its model and its costs: `model.json` and `profile.json`, read without torch."""

import os
import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from math import inf, log2, prod
from pathlib import Path

from latebind.domain.costs import Curve, Grid, ModelCosts, are_seconds, at_any_length, in_turn
from latebind.domain.errors import RepositoryError
from latebind.domain.model import ITEM_BYTES, LENGTH, NOTHING_KNOWN, About, ModelSpec, StageKind, TensorSpec
from latebind.domain.sizes import Dim, make_sense
from latebind.repository.directory import MODEL, NAME, PROFILE, VERSION, ModelDirectory, read_manifest

FORMAT = 1
MOST_BYTES = 64 << 30  # for the largest batch of one input or output
LARGEST_BATCH = 1 << 16
MOST_WEIGHT_BYTES = 1 << 50
WHOLE, SOME = range(-(1 << 63), 1 << 63), range(1, 1 << 63)  # values of int64, numbers of something
MOST_LENGTHS = 12  # of a profile


def profiled_sizes(dims: Sequence[Dim]) -> list[dict[str, int]]:
    """Return sizes of the named dimensions from the smallest to the largest, each about twice as long as the last.

    Without named dimensions there is one, of length 1.
    """
    if not dims:
        return [{}]
    octaves = sum(log2(dim.most / dim.least) for dim in dims)
    points = max(3, min(MOST_LENGTHS, 1 + round(octaves)))
    found: dict[int, dict[str, int]] = {}
    for point in range(points):
        each = {dim.name: dim.near(dim.least * (dim.most / dim.least) ** (point / (points - 1))) for dim in dims}
        found.setdefault(prod(each.values()), each)
    return [found[length] for length in sorted(found)]


def profiled_batches(max_batch: int) -> tuple[int, ...]:
    """Return 1, 2, 4, ... up to `max_batch`, which is always the last."""
    powers = [1 << i for i in range(max_batch.bit_length()) if 1 << i < max_batch]
    return (*powers, max_batch)


@dataclass(frozen=True, slots=True)
class Hardware:
    """What a latency depends on besides the program."""

    cpu: str
    cores: int
    threads: int
    torch: str
    openvino: str


@dataclass(frozen=True, slots=True)
class Profile:
    """Latencies of each stage by batch size and length, seconds to load, bytes of weights.

    For `output_steps` see `ModelCosts`.
    """

    hardware: Hardware
    backend: str
    stages: tuple[Grid, ...]
    weight_bytes: int
    load_seconds: float
    output_steps: tuple[int, ...] = (1,)

    def matches_this_machine(self, *, threads: int, backend: str) -> bool:
        """Return whether the figures are valid for this machine, this number of threads and this backend.

        OpenVINO takes as long with another version of torch, or without it.
        """
        here, there = this_hardware(threads), self.hardware
        if backend.startswith("openvino"):
            here = replace(here, torch=there.torch)
        return self.backend == backend and there == here

    def costs(self) -> ModelCosts:
        """Return the figures in the scheduler's form."""
        return ModelCosts(
            stages=self.stages,
            weight_bytes=self.weight_bytes,
            load_seconds=self.load_seconds,
            output_steps=self.output_steps,
        )


def this_hardware(threads: int) -> Hardware:
    """Return the description of this machine, with `threads` threads for a program."""
    return Hardware(_cpu_name(), os.cpu_count() or 1, threads, _version("torch"), _version("openvino"))


def _cpu_name() -> str:
    file = Path("/proc/cpuinfo")
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines() if file.is_file() else []
    found = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return found or platform.processor() or platform.machine()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


@dataclass(frozen=True, slots=True)
class StoredModel:
    """`model.json`: the model's name, where it is cut, and its fastest backend.

    `cuts` names the activations that end each stage but the last; the first may be the input (an empty stage). `kinds`
    says how often each stage runs; empty if all run once. For `dims`, `pads` and `about` see `ModelSpec`; if it
    `packs`, rows of different lengths run without their padding (`packing`).
    """

    format: int
    name: str
    version: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    cuts: tuple[str, ...]
    backend: str
    tolerance: float | None
    max_batch: int
    kinds: tuple[StageKind, ...] = ()
    dims: tuple[Dim, ...] = ()
    pads: bool = False
    packs: bool = False
    about: About = NOTHING_KNOWN

    @property
    def entry(self) -> bool:
        """Whether the first stage is empty."""
        return bool(self.cuts) and self.cuts[0] in {spec.name for spec in self.inputs}

    def boundaries(self, *, entry: bool) -> tuple[str, ...]:
        """Return the names of the activations after each stage but the last, with or without an empty first stage."""
        cuts = self.cuts[1:] if self.entry else self.cuts
        return (self.inputs[0].name, *cuts) if entry else cuts

    def spec(self) -> ModelSpec:
        """Return the model's specification for clients and the scheduler, without learned caches."""
        named = self.name, self.version, self.inputs, self.outputs
        stages = len(self.kinds) or len(self.cuts) + 1
        rows = self.dims, self.pads, self.packs, self.about
        return ModelSpec(*named, stages, self.max_batch, (), self.kinds, (), *rows)


def read_model(directory: ModelDirectory) -> StoredModel:
    """Return `model.json`; raises `RepositoryError` if it is corrupt or of another format."""
    model = directory.read_json(MODEL, StoredModel)
    if model.format != FORMAT:
        raise RepositoryError(f"{directory.path / MODEL} has format {model.format}, this version reads {FORMAT}")
    model = _with_length(model)
    _check(model, directory.path / MODEL)
    return model


def read_texts(models: Sequence[Path]) -> bool:
    """Return whether there are model directories here and all of them read texts. Raises `RepositoryError`."""
    return bool(models) and all(_about(path).reads_texts for path in models)


def _about(path: Path) -> About:
    try:  # the rest is verified when it is loaded
        return read_model(ModelDirectory(path, read_manifest(path).files)).about
    except (RepositoryError, OSError):  # an interrupted change, which is finished here, or an error
        return read_model(ModelDirectory.open(path)).about


def _with_length(model: StoredModel) -> StoredModel:
    """Return a sequence model that was written before its length had a name, as it would be written now."""
    taken = model.inputs[:1]
    if not model.kinds or model.dims or not taken or len(taken[0].shape) != 1:
        return model
    dims = (Dim(LENGTH, 1, taken[0].shape[0]),)
    return replace(model, inputs=(replace(taken[0], sizes=(LENGTH,)), *model.inputs[1:]), dims=dims, pads=True)


def _check(model: StoredModel, path: Path) -> None:
    """Raise `RepositoryError` for what no build writes: invalid names, or tensors too large for any memory."""

    def faults() -> Iterator[str]:
        if not NAME.fullmatch(model.name) or not VERSION.fullmatch(model.version):
            yield f"the name {model.name!r:.100} and version {model.version!r:.40}"
        if not 1 <= model.max_batch <= LARGEST_BATCH:
            yield f"max_batch {model.max_batch}, not 1 to {LARGEST_BATCH}"
        if model.tolerance is not None and not 0.0 <= model.tolerance < inf:
            yield f"the tolerance {model.tolerance}"
        for specs in (model.inputs, model.outputs):
            if not specs or len({spec.name for spec in specs}) < len(specs):
                yield "no inputs or outputs, or two of one name"
        names = [*(spec.name for spec in model.inputs), *(each.name for each in model.about.raw)]
        if len(set(names)) < len(names) or not all(NAME.fullmatch(each.name) for each in model.about.raw):
            yield "raw inputs without a name, or with that of another input"
        if not make_sense(model.dims):
            yield "invalid named dimensions"
        for spec in (*model.inputs, *model.outputs):
            padding, limit = spec.padding or 0, spec.limit or 1
            if padding not in WHOLE or not 0 < limit <= WHOLE.stop:
                yield f"{spec.name!r:.100} with an invalid padding or limit"
            elif spec.dtype not in ITEM_BYTES or any(size < 0 for size in spec.shape):
                yield f"the tensor {spec.name!r:.100} with an invalid dtype or shape"
            elif spec.sizes and not _is_largest(spec, model.dims):
                yield f"the tensor {spec.name!r:.100} with sizes that its dimensions cannot have"
            elif spec.row_bytes * model.max_batch > MOST_BYTES:
                yield f"batches of {spec.name!r:.100} of more than {MOST_BYTES >> 30} GiB"

    for fault in faults():
        raise RepositoryError(f"{path} has {fault}: build it again")


def _is_largest(spec: TensorSpec, dims: Sequence[Dim]) -> bool:
    """Return whether the shape of a tensor is that of its largest row."""
    try:
        return spec.shape == spec.shape_of({dim.name: dim.most for dim in dims})
    except ValueError:
        return False


def read_spec_and_costs(directory: ModelDirectory) -> tuple[ModelSpec, ModelCosts]:
    """Return what a simulation needs of a model, without its weights."""
    spec, profile = read_model(directory).spec(), read_profile(directory)
    if len(profile.stages) != spec.stages:
        raise RepositoryError(
            f"{directory.path / PROFILE} has {len(profile.stages)} stages, the model {spec.stages}: take a new profile"
        )
    return spec, profile.costs()


@dataclass(frozen=True, slots=True)
class _Layout:
    """Tells the two layouts of profiles apart."""

    stages: tuple[dict[str, object], ...]


@dataclass(frozen=True, slots=True)
class _Sloped:
    """A profile in the old form, where each stage had a curve, and a slope for each further step of its input."""

    hardware: Hardware
    backend: str
    stages: tuple[Curve, ...]
    weight_bytes: int
    load_seconds: float
    slopes: dict[int, Curve] = field(default_factory=dict)
    output_steps: tuple[int, ...] = (1,)

    def profile(self, path: Path) -> Profile:
        """Return it with grids: a slope becomes one over lengths 1 and 2."""
        stages = list(at_any_length(*self.stages))
        for stage, slope in self.slopes.items():
            if not 0 <= stage < len(stages) or not self.stages[stage].makes_sense or not slope.makes_sense:
                raise RepositoryError(f"{path} has the slope of a stage that does not exist: build the model again")
            stages[stage] = Grid((1, 2), (self.stages[stage], in_turn([self.stages[stage], slope])))
        return Profile(
            self.hardware, self.backend, tuple(stages), self.weight_bytes, self.load_seconds, self.output_steps
        )


def read_profile(directory: ModelDirectory) -> Profile:
    """Return `profile.json`; raises `RepositoryError` if it is corrupt."""
    path = directory.path / PROFILE
    if any("lengths" not in stage for stage in directory.read_json(PROFILE, _Layout).stages):
        profile = directory.read_json(PROFILE, _Sloped).profile(path)
    else:
        profile = directory.read_json(PROFILE, Profile)
    if not profile.stages or not all(grid.makes_sense for grid in profile.stages):
        raise RepositoryError(f"{path} has no stages, or an invalid grid: build the model again")
    if not are_seconds(profile.load_seconds) or not 0 <= profile.weight_bytes <= MOST_WEIGHT_BYTES:
        raise RepositoryError(f"{path} has invalid seconds to load or bytes of weights: build the model again")
    lengths = profile.output_steps
    if not lengths or lengths[0] < 1 or list(lengths) != sorted(lengths) or lengths[-1] not in SOME:
        raise RepositoryError(f"{path} has invalid lengths of answers: take a new profile")
    return profile
