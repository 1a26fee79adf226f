"""The folder of an exploration, beside its model: trained networks and, meanwhile, activations.

`latebind build` makes everything in it, from one model, one set of samples and one seed, and nothing else reads it.
Activations of a boundary are in a flat file in bfloat16, which halves them, mapped into memory. The rows were shuffled
once before they were recorded.
"""

import hashlib
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from urllib.parse import quote

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from latebind.domain.errors import ConfigError
from latebind.learned.activations import in_shape
from latebind.learned.samples import Samples
from latebind.learned.train import FORMAT
from latebind.repository.directory import GRAPH, WEIGHTS, ModelDirectory, json_bytes, write_bytes
from latebind.repository.tensors import tensor_bytes

ABOUT = "explored.json"
HALF_BYTES = 2


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
        try:
            same = msgspec.json.decode((folder / ABOUT).read_bytes()) == msgspec.json.decode(about)
        except (OSError, msgspec.MsgspecError):
            same = False
        if not same:
            delete_exploration(folder)
        for part in ("networks", "activations"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        write_bytes(folder / ABOUT, about)
        return cls(folder)

    def network(self, boundary: str, kind: str) -> dict[str, Tensor] | None:
        """Return the tensors of a trained network, or None if there is none."""
        return _read(self.folder / "networks" / f"{_file(boundary, kind)}.safetensors")

    def keep_network(self, boundary: str, kind: str, tensors: Mapping[str, Tensor]) -> None:
        """Write a trained network."""
        write_bytes(self.folder / "networks" / f"{_file(boundary, kind)}.safetensors", tensor_bytes(tensors))

    def allocate_activations(self, boundary: str, rows: int, shape: tuple[int, ...]) -> Tensor:
        """Allocate a file for activations and return it, mapped, as `(rows, *shape) bfloat16` to be filled.

        Raises `ConfigError` if the disk has no room. Without allocation, a write to the mapped file would kill the
        process.
        """
        path = self.folder / "activations" / _file(boundary)
        try:
            with path.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, rows * row_bytes(shape))
        except OSError as error:
            path.unlink(missing_ok=True)
            raise ConfigError(f"{path} cannot be written ({error}): make room there") from None
        flat = torch.from_file(str(path), shared=True, size=rows * prod(shape), dtype=torch.bfloat16)
        return in_shape(flat, shape)

    def delete_activations(self) -> None:
        """Delete all activations, which only a running training needs; trained networks stay."""
        for path in (self.folder / "activations").iterdir():
            path.unlink()


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
    each = [[part] if isinstance(part, Tensor) else part for part in (*samples.inputs, *labels)]
    for tensor in (tensor for tensors in each for tensor in tensors):
        found.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        for part in torch.split(tensor, 1024):  # a view of all rows as bytes could take as much memory again
            found.update(part.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def row_bytes(shape: tuple[int, ...]) -> int:
    """Return the bytes that one row of activations takes on disk."""
    return HALF_BYTES * prod(shape)


def _read(path: Path) -> dict[str, Tensor] | None:
    """Return the tensors in a file; None if it is missing or truncated."""
    try:
        return load_file(path)
    except (OSError, SafetensorError):
        return None


def _file(*parts: str) -> str:
    """Return a file name for names of activations and networks, which may hold characters that paths may not."""
    return ".".join(quote(part, safe="").replace(".", "%2E") for part in parts)
