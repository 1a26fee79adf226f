"""Figures of the machine: its processor and memory, and the GPU that the engine computes on.

GPU figures come from NVIDIA's own library (NVML), which comes with the driver. What NVML does not know, as for a part
of a GPU, is left out.
"""

from collections.abc import Mapping
from ctypes import CDLL, Structure, byref, c_char_p, c_uint, c_ulonglong, c_void_p
from pathlib import Path

PROC = Path("/proc")
IDLE = slice(3, 5)  # positions in /proc/stat: idle, and waiting for a disk
GUEST = 8  # times from this position on are counted elsewhere too
KIBIBYTE = 1024
LIBRARY = "libnvidia-ml.so.1"

Figures = Mapping[str, float]


class Processor:
    """The cores and the memory of this machine."""

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._before = 0, 0

    def figures(self) -> Figures:
        """Return the share of time that the cores were busy since the last call, and bytes of memory."""
        times = [int(time) for time in (self._proc / "stat").read_text().split("\n", 1)[0].split()[1 : 1 + GUEST]]
        whole, idle = sum(times), sum(times[IDLE])
        passed, rested = whole - self._before[0], idle - self._before[1]
        self._before = whole, idle
        lines = [line.split() for line in (self._proc / "meminfo").read_text().splitlines()]
        memory = {line[0]: int(line[1]) * KIBIBYTE for line in lines if len(line) > 1}
        return {
            "utilization": (passed - rested) / passed if passed > 0 else 0.0,
            "memory_total_bytes": memory["MemTotal:"],
            "memory_used_bytes": memory["MemTotal:"] - memory["MemAvailable:"],
        }


class _Use(Structure):
    _fields_ = [("gpu", c_uint), ("memory", c_uint)]


class _Memory(Structure):
    _fields_ = [("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong)]


class Gpu:
    """One GPU, by its UUID (`GPU-...`). Raises `OSError` if there is no such GPU, or no driver."""

    def __init__(self, uuid: str) -> None:
        self.uuid = uuid
        self._library = CDLL(LIBRARY)
        self._device = c_void_p()
        self._library.nvmlInit_v2()
        if self._library.nvmlDeviceGetHandleByUUID(c_char_p(uuid.encode()), byref(self._device)):
            raise OSError(f"NVML knows no GPU {uuid}")

    def figures(self) -> Figures:
        """Return utilisation (a share), watts, joules and bytes. A call may take milliseconds."""
        found: dict[str, float] = {}
        use, memory, number, energy = _Use(), _Memory(), c_uint(), c_ulonglong()
        if self._told("nvmlDeviceGetUtilizationRates", use):
            found["utilization"] = use.gpu / 100
        if self._told("nvmlDeviceGetMemoryInfo", memory):
            found |= {"memory_total_bytes": memory.total, "memory_used_bytes": memory.used}
        if self._told("nvmlDeviceGetPowerUsage", number):
            found["power_usage"] = number.value / 1e3
        if self._told("nvmlDeviceGetEnforcedPowerLimit", number):
            found["power_limit"] = number.value / 1e3
        if self._told("nvmlDeviceGetTotalEnergyConsumption", energy):
            found["energy_consumption"] = energy.value / 1e3
        return found

    def _told(self, question: str, answer: Structure | c_uint | c_ulonglong) -> bool:
        status: int = getattr(self._library, question)(self._device, byref(answer))
        return status == 0


class Machine:
    """Processor, memory and GPU, for `/metrics`."""

    def __init__(self) -> None:
        self._processor = Processor()
        self._gpu: Gpu | None = None

    def figures(self, gpu: str | None) -> dict[str, Figures]:
        """Return the figures of the `cpu` and, if `gpu` is the UUID of one here, of the `gpu`."""
        found = {"cpu": self._processor.figures()}
        if gpu is not None and (self._gpu is None or self._gpu.uuid != gpu):
            try:
                self._gpu = Gpu(gpu)
            except (OSError, AttributeError):  # no driver, or one that knows no such question
                self._gpu = None
        if gpu is not None and self._gpu is not None:
            found["gpu"] = self._gpu.figures()
        return found
