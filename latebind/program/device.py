"""Where stages compute: on the CPU, or on a CUDA device of this machine."""

import torch
from torch import Tensor

from latebind.domain.errors import ConfigError

HOST = torch.device("cpu")


def find_device(name: str) -> torch.device:
    """Return the device named "cpu", "cuda" (the current one) or "cuda:1"; raises `ConfigError` if it does not exist.

    On CUDA this sets convolutions to compute in float32 and not in TF32, as exact backends require.
    """
    if name == HOST.type:
        return HOST
    if not torch.cuda.is_available():
        why = "torch finds no GPU: see nvidia-smi" if torch.version.cuda else "this torch is built for CPUs alone"
        raise ConfigError(f"the device {name!r} is not there, {why}. Install a torch with CUDA, or use cpu")
    number = int(name.partition(":")[2] or torch.cuda.current_device())
    there = [f"cuda:{one}" for one in range(torch.cuda.device_count())]
    if number >= len(there):
        raise ConfigError(f"the device {name!r} is not there: choose from {', '.join(there)} and cpu")
    torch.backends.cudnn.allow_tf32 = False
    return torch.device("cuda", number)


def identity(name: str) -> str | None:
    """Return the driver's name of a CUDA device, `GPU-...`; None for the CPU. Raises `ConfigError`."""
    device = find_device(name)
    return None if device == HOST else f"GPU-{torch.cuda.get_device_properties(device).uuid}"


def synchronize(outputs: object) -> None:
    """Wait until `outputs`, a tensor or a tuple of tensors, are computed; on the CPU they always are."""
    for one in outputs if isinstance(outputs, tuple) else (outputs,):
        if isinstance(one, Tensor) and one.is_cuda:
            torch.cuda.current_stream(one.device).synchronize()
