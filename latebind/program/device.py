"""Where stages compute: on the CPU, or on a CUDA device of this machine, for which torch is imported."""

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from latebind.domain.config import AdaptationConfig
from latebind.domain.errors import ConfigError

if TYPE_CHECKING:
    import torch

HOST = "cpu"
OPENVINO = ("openvino", "openvino-bf16", "openvino-int8")
IMPORTS = {**dict.fromkeys(OPENVINO, "openvino"), "eager": "torch", "compile": "torch"}  # by backend
NO_TORCH = "torch is not installed: pip install 'latebind[torch]'"


def without_torch(what: object, backend: str) -> str:
    """Return the error for a model, `what`, that is to run on this backend while torch is not installed."""
    if backend in OPENVINO:
        return f"{what} was built without the files that OpenVINO reads by itself, and {NO_TORCH}, or build it again"
    return f"{what} runs on the backend {backend}, which is torch's, and {NO_TORCH}"


def check_adaptation(config: AdaptationConfig) -> None:
    """Raise `ConfigError` if adaptation is wanted, which needs torch, and torch is not installed."""
    if config.on and not has_torch():
        raise ConfigError(f"--adapt trains learned caches, which torch does, and {NO_TORCH}, or leave it out")


def kind_of(device: "str | torch.device") -> str:
    """Return the kind of a device: "cpu" or "cuda"."""
    return str(device).partition(":")[0]


def find_device(name: str) -> str:
    """Return the device named "cpu", "cuda" (the current one) or "cuda:1"; raises `ConfigError` if it does not exist.

    On CUDA this sets convolutions to compute in float32 and not in TF32, as exact backends require.
    """
    if name == HOST:
        return HOST
    if not has_torch():
        raise ConfigError(f"the device {name!r} needs torch, and {NO_TORCH}, or use cpu")
    import torch  # noqa: PLC0415

    if not torch.cuda.is_available():
        why = "torch finds no GPU: see nvidia-smi" if torch.version.cuda else "this torch is built for CPUs alone"
        raise ConfigError(f"the device {name!r} is not there, {why}. Install a torch with CUDA, or use cpu")
    number = int(name.partition(":")[2] or torch.cuda.current_device())
    there = [f"cuda:{one}" for one in range(torch.cuda.device_count())]
    if number >= len(there):
        raise ConfigError(f"the device {name!r} is not there: choose from {', '.join(there)} and cpu")
    torch.backends.cudnn.allow_tf32 = False
    return there[number]


def identity(name: str) -> str | None:
    """Return the driver's name of a CUDA device, `GPU-...`; None for the CPU. Raises `ConfigError`."""
    device = find_device(name)
    if device == HOST:
        return None
    import torch  # noqa: PLC0415

    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"


def synchronize(outputs: object) -> None:
    """Wait until `outputs`, a tensor or a tuple of tensors, are computed; on the CPU they always are."""
    for one in outputs if isinstance(outputs, tuple) else (outputs,):
        if getattr(one, "is_cuda", False):
            import torch  # noqa: PLC0415

            torch.cuda.current_stream(one.device).synchronize()


def has_torch() -> bool:
    """Return whether torch is installed."""
    try:
        return find_spec("torch") is not None
    except (ImportError, ValueError):  # something in its place
        return False


@cache
def processor_flags() -> frozenset[str]:
    """Return the processor's flags as Linux lists them, such as "avx512_vnni"; none on other systems."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines() if file.is_file() else []
    return frozenset(next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), []))
