"""The folder of an exploration, beside its model: trained networks, checkpoints, and, meanwhile, activations.

`latebind build` makes everything in it, from one model, one set of samples and one seed, and nothing else reads it.
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
    """What the networks in a folder were trained from. Networks of another origin are not reused.

    Cuts and backend are not part of it, since they are chosen by measurement and may differ the next time. A boundary
    is identified by its activation, on which all backends agree within the model's tolerance.
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
class ExplorationFolder:
    """The folder, opened for one origin."""

    folder: Path

    @classmethod
    def open(cls, folder: Path, origin: Origin) -> "ExplorationFolder":
        """Open the folder and keep what is in it, or empty it if it is of another origin."""
        about = json_bytes(asdict(origin))
        if not _says(folder / ABOUT, about):
            delete_exploration(folder)
        for part in ("networks", "checkpoints", "activations"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        write_bytes(folder / ABOUT, about)
        return cls(folder)

    def network(self, boundary: str, kind: str) -> dict[str, Tensor] | None:
        """Return the tensors of a trained network, or None if there is none."""
        try:
            return load_file(self._network(boundary, kind))
        except (OSError, SafetensorError):
            return None

    def keep_network(self, boundary: str, kind: str, tensors: Mapping[str, Tensor]) -> None:
        """Write a trained network and delete its checkpoint."""
        write_bytes(self._network(boundary, kind), tensor_bytes(tensors))
        self.checkpoint(boundary, kind).unlink(missing_ok=True)

    def checkpoint(self, boundary: str, kind: str) -> Path:
        """Return the path of a running training's checkpoint."""
        return self.folder / "checkpoints" / f"{_file(boundary, kind)}.safetensors"

    def activations(self, boundary: str) -> Path:
        """Return the path of the activations at a boundary, without a suffix."""
        return self.folder / "activations" / _file(boundary)

    def recorded_bytes(self) -> int:
        """Return the bytes that all recorded activations take now."""
        return sum(path.stat().st_size for path in (self.folder / "activations").iterdir())

    def delete_activations_except(self, boundaries: Collection[str]) -> None:
        """Delete the activations of all other boundaries."""
        wanted = {self.activations(boundary) for boundary in boundaries}
        for path in (self.folder / "activations").iterdir():
            if path.with_suffix("") not in wanted:
                path.unlink()

    def clear(self) -> None:
        """Delete checkpoints and activations, which only a running training needs; trained networks stay."""
        for part in ("checkpoints", "activations"):
            for path in (self.folder / part).iterdir():
                path.unlink()

    def _network(self, boundary: str, kind: str) -> Path:
        return self.folder / "networks" / f"{_file(boundary, kind)}.safetensors"


def explored_folder(model: Path) -> Path:
    """Return the exploration folder of a model directory: a hidden folder beside it."""
    return model.parent / f".explored-{model.name}"


def delete_exploration(folder: Path) -> None:
    """Delete an exploration, so that the next one trains everything again."""
    shutil.rmtree(folder, ignore_errors=True)


def fingerprint(samples: Samples) -> str:
    """Return the SHA-256 of inputs and labels; the inputs must be a tuple (`Samples.ordered`)."""
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
    """Return a file name for names of activations and networks, which may hold dots and what no path may."""
    return ".".join(quote(part, safe="").replace(".", "%2E") for part in parts)


def _says(path: Path, wanted: bytes) -> bool:
    try:
        return bool(msgspec.json.decode(path.read_bytes()) == msgspec.json.decode(wanted))
    except (OSError, msgspec.MsgspecError):
        return False
