"""The measured costs of a program, with the hardware that they were measured on; elsewhere they are not valid."""

import os
import platform
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from latebind.domain.costs import Curve, ModelCosts


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
    """Latencies of each stage by batch size, seconds to load, bytes of weights.

    For `slopes` and `output_steps` see `ModelCosts`.
    """

    hardware: Hardware
    backend: str
    stages: tuple[Curve, ...]
    weight_bytes: int
    load_seconds: float
    slopes: dict[int, Curve] = field(default_factory=dict)
    output_steps: tuple[int, ...] = (1,)

    def matches_this_machine(self, *, threads: int, backend: str) -> bool:
        """Return whether the figures are valid for this machine, this number of threads and this backend."""
        return self.backend == backend and self.hardware == this_hardware(threads)

    def costs(self) -> ModelCosts:
        """Return the figures in the scheduler's form."""
        return ModelCosts(
            stages=self.stages,
            weight_bytes=self.weight_bytes,
            load_seconds=self.load_seconds,
            slopes=self.slopes,
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
