"""Tensors in a model directory: safetensors files, which hold numbers and nothing else. Apart, for it needs torch."""

from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load, save, save_file
from torch import Tensor

from latebind.domain.errors import RepositoryError
from latebind.repository.directory import ModelDirectory, Writer


def read_tensors(directory: ModelDirectory, name: str) -> dict[str, Tensor]:
    """Return all tensors of a listed safetensors file; raises `RepositoryError` if it is none."""
    try:
        return load(directory.read(name))
    except (SafetensorError, KeyError) as error:
        raise RepositoryError(f"{directory.path / name} is no safetensors file ({error}): build it again") from error


def tensor_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """Return the tensors as a safetensors file."""
    return save({name: tensor.detach().contiguous() for name, tensor in tensors.items()})


def tensor_file(tensors: Mapping[str, Tensor]) -> Writer:
    """Return what writes the tensors as a safetensors file from where they lie, without another copy in memory."""

    def write(path: Path) -> None:
        save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, path)
        path.chmod(0o644)  # like all files of a model; it is made for its owner alone

    return write
