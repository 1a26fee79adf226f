"""The folder of an exploration, beside its model: networks that are trained, checkpoints, activations for a while.

Everything in it was made by `latebind build` from one model, one set of samples and one seed, and is only read by it.
"""

import hashlib
import shutil
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import quote

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from latebind.learned.samples import Samples
from latebind.learned.train import FORMAT
from latebind.repository.directory import GRAPH, WEIGHTS, ModelDirectory, json_bytes, write_bytes
from latebind.repository.tensors import tensor_bytes

ABOUT = "explored.json"


@dataclass(frozen=True, slots=True)
class Origin:
    """What networks were trained from. Those of another origin are of no use.

    It says nothing of cuts or of the backend, which measurement chooses and may choose otherwise the next time: a
    boundary is known by the activation there, and all backends agree on that within the model's tolerance.
    """

    format: int
    graph: str
    weights: str
    samples: str
    seed: int
    presentations: int

    @classmethod
    def of(cls, directory: ModelDirectory, samples: Samples, *, seed: int, presentations: int) -> "Origin":
        """Return the origin of what is trained for a model on `samples`, whose inputs are a tuple."""
        graph, weights = directory.files[GRAPH].sha256, directory.files[WEIGHTS].sha256
        return cls(FORMAT, graph, weights, fingerprint(samples), seed, presentations)


@dataclass(frozen=True, slots=True)
class Exploration:
    """The folder, opened for one origin."""

    folder: Path

    @classmethod
    def open(cls, folder: Path, origin: Origin) -> "Exploration":
        """Take up what is there; what came of another origin is deleted."""
        about = json_bytes(asdict(origin))
        if not _says(folder / ABOUT, about):
            forget_explored(folder)
        for part in ("networks", "checkpoints", "activations"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        write_bytes(folder / ABOUT, about)
        return cls(folder)

    def network(self, boundary: str, kind: str) -> dict[str, Tensor] | None:
        """Return a trained network, or None if it is not there."""
        try:
            return load_file(self._network(boundary, kind))
        except (OSError, SafetensorError):
            return None

    def keep_network(self, boundary: str, kind: str, tensors: Mapping[str, Tensor]) -> None:
        """Keep a trained network; its checkpoint goes."""
        write_bytes(self._network(boundary, kind), tensor_bytes(tensors))
        self.checkpoint(boundary, kind).unlink(missing_ok=True)

    def checkpoint(self, boundary: str, kind: str) -> Path:
        """Return where a training that is under way leaves how far it is."""
        return self.folder / "checkpoints" / f"{_file(boundary, kind)}.safetensors"

    def activations(self, boundary: str) -> Path:
        """Return where the activations at a boundary lie, without an ending."""
        return self.folder / "activations" / _file(boundary)

    def recorded_bytes(self) -> int:
        """Return what all activations take now."""
        return sum(path.stat().st_size for path in (self.folder / "activations").iterdir())

    def forget_all_but(self, boundaries: Collection[str]) -> None:
        """Delete the activations at other boundaries."""
        wanted = {self.activations(boundary) for boundary in boundaries}
        for path in (self.folder / "activations").iterdir():
            if path.with_suffix("") not in wanted:
                path.unlink()

    def clear(self) -> None:
        """Delete what only a training needs that is under way; networks stay."""
        for part in ("checkpoints", "activations"):
            for path in (self.folder / part).iterdir():
                path.unlink()

    def _network(self, boundary: str, kind: str) -> Path:
        return self.folder / "networks" / f"{_file(boundary, kind)}.safetensors"


def explored_folder(model: Path) -> Path:
    """Return where the exploration of a model directory lies: beside it, hidden."""
    return model.parent / f".explored-{model.name}"


def forget_explored(folder: Path) -> None:
    """Delete an exploration, so that the next one trains all anew."""
    shutil.rmtree(folder, ignore_errors=True)


def fingerprint(samples: Samples) -> str:
    """Return a sha256 of inputs and labels; the inputs are a tuple (`Samples.ordered`)."""
    assert isinstance(samples.inputs, tuple)
    labels = () if samples.labels is None else (samples.labels,)
    found = hashlib.sha256()
    for tensor in (*samples.inputs, *labels):
        found.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        for part in _pieces(tensor):
            found.update(part.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def _pieces(tensor: Tensor) -> Iterator[Tensor]:
    yield from torch.split(tensor, 1024)


def _file(*parts: str) -> str:
    """Return a file name; names of activations and networks may hold what a path must not, or dots."""
    return ".".join(quote(part, safe="").replace(".", "%2E") for part in parts)


def _says(path: Path, wanted: bytes) -> bool:
    try:
        return bool(msgspec.json.decode(path.read_bytes()) == msgspec.json.decode(wanted))
    except (OSError, msgspec.MsgspecError):
        return False
