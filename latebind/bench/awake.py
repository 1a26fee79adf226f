"""Keeps idle cores from sleeping while a benchmark runs (`--awake`).

A core that has slept for a millisecond takes half as long again for a short stage. A process that holds
`/dev/cpu_dma_latency` open can set how many microseconds waking up may take (Linux, PM quality of service); with 0,
idle cores spin.
"""

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from latebind.domain.errors import ConfigError

DEVICE = Path("/dev/cpu_dma_latency")


@contextmanager
def kept_awake(wanted: bool = True, *, device: Path = DEVICE) -> Iterator[None]:
    """Keep all cores of the machine awake within this context, if `wanted`. Raises `ConfigError` if not permitted."""
    if not wanted:
        yield
        return
    try:
        file = device.open("r+b", buffering=0)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(
            f"cores cannot be kept awake, {device} cannot be opened ({reason}): give this user the right to write to "
            "it, or leave --awake out"
        ) from None
    with file:
        file.write(struct.pack("=i", 0))
        yield
