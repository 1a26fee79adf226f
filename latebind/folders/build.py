"""Builds a folder as Hugging Face saves it into a model directory, and tests the result with raw inputs."""

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from latebind.domain.errors import ConfigError, ExportError
from latebind.domain.model import About, Media, Task, TensorSpec
from latebind.domain.sizes import Dim
from latebind.folders.files import CONFIG, LABEL, TEXT, Taken, taken
from latebind.folders.hub import local_folder
from latebind.folders.networks import Network, configuration, kind_of, load_network, quietly, task_of
from latebind.folders.reading import Reading, reading_of
from latebind.folders.rows import Labeled, parts_of, read_labeled, read_samples, read_texts
from latebind.folders.sequences import SequenceNetwork, example_tokens
from latebind.folders.tasks import LOGITS, activation_of, around, labels_of
from latebind.folders.writing import tokens_of, writing_of
from latebind.learned.metadata import Nearness
from latebind.learned.promise import Fidelity, Promise
from latebind.learned.samples import Samples
from latebind.learned.vectors import certify, summary
from latebind.preprocessing.opening import open_preprocessor
from latebind.preprocessing.preprocessor import CUT, Preprocessor
from latebind.preprocessing.settings import FORMAT, PREPROCESSING, Stored
from latebind.program.backends import BACKENDS
from latebind.program.build import BuildReport, build_program
from latebind.program.export import runner
from latebind.program.exported import dtype_name
from latebind.program.lengths import input_specs
from latebind.program.load import load_program
from latebind.program.measure import with_batch
from latebind.program.verify import DEFAULT_TOLERANCE, relative_error
from latebind.repository.directory import ModelDirectory, json_bytes
from latebind.sequence.build import build_sequence

SAME = 1e-3  # by which an answer to a raw input may differ from the network's own, relative to its largest number
CLOSE = 1e-4  # by which a number made from a picture or a sound may differ
OF_STAGES = ("min_stage_seconds", "min_stage_bytes", "max_overhead")  # a sequence model is not cut


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder that was read: the module for its task, how its inputs are read, and what it is for.

    `notes` are lines for the report. `preprocessor` converts raw inputs to tensors as a server will; a build has only
    one, because testing a tokenizer takes a second or two.
    """

    shown: str
    module: nn.Module
    reading: Reading
    about: About
    notes: tuple[str, ...]
    preprocessor: Preprocessor

    def specs(self) -> tuple[TensorSpec, ...]:
        """Return the inputs of its module."""
        reading = self.reading
        given = {name: (dtype_name(row.dtype, name), row.shape[1:]) for name, row in reading.inputs.items()}
        return input_specs(given, reading.dims, reading.sizes)

    def files(self) -> dict[str, bytes]:
        """Return the files of a model directory that say how raw inputs are read."""
        return files_of(self.reading)

    def answers(self, rows: dict[str, Tensor]) -> tuple[Tensor, ...]:
        """Return what the network itself answers."""
        return runner(self.module, rows)(*rows.values())


@dataclass(frozen=True, slots=True)
class Data:
    """Rows like those to be served: `samples` to fit and calibrate learned caches, or `tokens` of texts to read.

    `notes` are lines for the report.
    """

    samples: tuple[Samples, Samples] | None = None
    tokens: Sequence[Sequence[int]] = ()
    notes: tuple[str, ...] = ()


NO_DATA = Data()


def files_of(reading: Reading) -> dict[str, bytes]:
    """Return the files of a model directory that say how raw inputs are read."""
    return {PREPROCESSING: json_bytes(Stored(FORMAT, reading.settings)), **reading.files}


def read_folder(source: str, *, task: str = "", dims: Sequence[Dim] = ()) -> Folder:
    """Read the folder that `source` names, or `hf:ORG/NAME`, for its task or another that it can be built for.

    `dims` replace the ranges of what varies. The folder's own processor and the server's are compared on trial inputs.
    Raises `ConfigError`, in a sentence, for a folder that is not served.
    """
    with taken(local_folder(source), source) as found, quietly(found, "it cannot be read"):
        saved = found.own(CONFIG)
        kind = kind_of(saved, source, embeds=any(part.kind == "Pooling" for part in found.modules))
        config, wanted = configuration(found), {dim.name: dim for dim in dims}
        network = load_network(found, kind, task_of(kind, config, task, source), config)
        module: nn.Module
        if network.task is Task.GENERATE:
            writer, reading = writing_of(network, found, wanted)
            module, notes, about = writer, list(writer.notes), About(network.task, reading.raw)
        else:
            module, notes = around(network, found)
            module.eval()
            reading = reading_of(network, found, wanted)
            about = _about(network, found, module, reading)
        with tempfile.TemporaryDirectory(prefix="latebind-") as place:
            preprocessor = open_preprocessor(ModelDirectory.create(Path(place) / "1", files_of(reading)), about)
        folder = Folder(source, module, reading, about, tuple(notes), preprocessor)
        _check_preprocessing(folder)
    return folder


def _about(network: Network, found: Taken, module: nn.Module, reading: Reading) -> About:
    """Return what a network is for, from its answers to the examples."""
    with torch.inference_mode():
        answer = module(**reading.inputs)
    logits = answer.get(LOGITS)
    classes = 0 if logits is None else logits.shape[1 if network.task is Task.SEGMENT else -1]
    labels = labels_of(network, classes)
    if labels and len(labels) != classes:
        raise ConfigError(f"{found.shown} names {len(labels)} classes (id2label), and answers for {classes}")
    return About(network.task, reading.raw, labels, activation_of(network, found, classes))


def _check_preprocessing(folder: Folder) -> None:
    """Raise `ConfigError` if a server would read trial inputs differently from the folder's own processor."""
    reading, found = folder.reading, folder.preprocessor.prepare(folder.reading.trials, CUT)
    for place, (row, wanted) in enumerate(zip(found, reading.reference(reading.trials), strict=True)):
        for name, tensor in wanted.items():
            own, there = torch.from_numpy(row.tensors[name]), tensor[0]
            exact = not there.is_floating_point()
            same = own.shape == there.shape and own.dtype == there.dtype
            if not same or not (torch.equal(own, there) if exact else torch.allclose(own, there, rtol=0, atol=CLOSE)):
                shown = next(iter(reading.trials.values()))[place]
                what = f"the text {shown!r:.60}" if isinstance(shown, str) else f"trial input {place}"
                raise ConfigError(
                    f"{folder.shown}: its own processor and the server's make different {name} of {what}, "
                    f"{_begin(there)} and {_begin(own)}: this folder is not served"
                )


def _begin(tensor: Tensor) -> str:
    values = ", ".join(f"{value:.4g}" for value in tensor.flatten()[:6].tolist())
    return f"{list(tensor.shape)} {values}"


def build_folder(
    folder: Folder,
    *,
    directory: Path,
    data: Data = NO_DATA,
    **how: Any,
) -> BuildReport:
    """Build a folder that was read into the model directory `directory`, on rows of `data` too if there are any.

    At the end the result is run on the trial inputs. For `how` see `build_program`. Raises `ExportError` and
    `ConfigError` as that does, and if an answer is not the network's own; nothing is left in the directory then.
    """
    if isinstance(folder.module, SequenceNetwork):
        return build_sequence(
            folder.module,
            example_tokens(folder.module, data.tokens),
            directory=directory,
            measured_lengths=bool(data.tokens),
            about=folder.about,
            files=folder.files(),
            **{name: value for name, value in how.items() if name not in OF_STAGES},
        )
    inputs, dims, rows = folder.reading.inputs, folder.reading.dims, None
    if data.samples is not None:
        rows = data.samples[0].ordered(folder.specs(), dims).typical()
        if dims:  # measured rows are then as long as served ones
            inputs = dict(zip(inputs, with_batch(rows, 2), strict=True))
    report = build_program(
        folder.module,
        inputs,
        data=rows,
        directory=directory,
        dims=dims,
        sizes=folder.reading.sizes or None,
        about=folder.about,
        files=folder.files(),
        **how,
    )
    error = worst_error(folder, report.directory)
    if not error <= max(SAME, how.get("tolerance") or 0.0):
        shutil.rmtree(report.directory.path)
        raise ExportError(f"{folder.shown}: what was built differs from the network by {error:.1e} on trial inputs")
    return report


def check_fidelity(folder: Folder, fidelity: Fidelity, *, has_data: bool) -> None:
    """Raise `ConfigError` if a cosine is asked for that cannot be promised."""
    if fidelity.cosine is None:
        return
    if folder.about.task is not Task.EMBED:
        message = f"a cosine is promised only for embeddings, and {folder.shown} is for {folder.about.task}"
    elif not has_data:
        message = "a cosine is tested on texts like those to be served: give a file of them (--data)"
    else:
        return
    raise ConfigError(f"fidelity {fidelity}: {message}")


def build_near(
    folder: Folder, *, data: Data, fidelity: Fidelity, promise: Promise, **how: Any
) -> tuple[BuildReport, Nearness | None, str]:
    """Build an embedding on the fastest backend on which its vectors are shown to stay as near as `fidelity` says.

    Backends of lower precision are tried too. If the rows of `data` do not show that the chosen one keeps `fidelity`,
    others are tried. Returns what was shown, None in full precision, and why a backend was not taken, "" if none was
    refused. Raises what `build_folder` raises.
    """
    assert data.samples is not None
    named = tuple(how.pop("backends", None) or BACKENDS)
    asked, refused = how.pop("tolerance", None), list[str]()
    while True:
        report = build_folder(folder, data=data, backends=named, tolerance=asked or fidelity.tolerance, **how)
        after, found = certify(report.directory, data.samples[1], fidelity, promise, threads=how.get("threads", 1))
        close = report.error <= (asked or DEFAULT_TOLERANCE)  # an exact one is granted no tolerance
        if found.kept if found is not None else close:
            return replace(report, directory=after), found, "; ".join(refused)
        why = summary(found) if found is not None else f"relative error {report.error:.1e} in full precision"
        refused.append(f"{report.backend} is not taken: {why}")
        named = tuple(name for name in named if name != report.backend)
        if not named:
            shutil.rmtree(report.directory.path)
            raise ExportError(f"{folder.shown}: {refused[-1]}: ask for less, or leave --backend out")


def worst_error(folder: Folder, directory: ModelDirectory) -> float:
    """Return by how much answers to the trial inputs differ from those of network and processor of the folder."""
    trials = folder.reading.trials
    program, worst = load_program(directory), 0.0
    for row, wanted in zip(folder.preprocessor.prepare(trials, CUT), folder.reading.reference(trials), strict=True):
        tensors = [torch.from_numpy(row.tensors[spec.name])[None] for spec in program.spec.inputs]
        worst = max(worst, relative_error(program.run(*tensors), folder.answers(wanted)))
    return worst


def data_of(folder: Folder, path: Path, *, text_column: str = TEXT, label_column: str = LABEL, seed: int = 0) -> Data:
    """Return a file's rows for a folder: labeled ones for learned caches, or texts to write answers to.

    The rows are those to fit on and those to calibrate on, in a random order (`rows.parts_of`). Raises `LatebindError`
    for what cannot be read, and `ConfigError` for a folder that has no use for data.
    """
    about = folder.about
    if about.task is Task.GENERATE:
        tokens, cut = tokens_of(folder.preprocessor, read_texts(path, text_column=text_column))
        return Data(None, tokens, (cut,) if cut else ())
    if about.task is Task.EMBED and about.raw[0].media is Media.TEXT:
        some = Labeled({about.raw[0].name: read_texts(path, text_column=text_column)})
        samples, cut = read_samples(folder.preprocessor, some, list(folder.reading.inputs))
        return Data(samples.halves(seed), (), (cut,) if cut else ())
    if about.task is not Task.CLASSIFY:
        raise ConfigError(
            f"--data is only for classifiers and for embeddings of texts, and {folder.shown} is for {about.task} "
            f"of {about.raw[0].media}"
        )
    labeled = read_labeled(path, about.raw[0].media, about.labels, text_column=text_column, label_column=label_column)
    samples, cut = read_samples(folder.preprocessor, labeled, list(folder.reading.inputs))
    return Data(parts_of(samples, labeled, seed=seed), (), (cut,) if cut else ())
