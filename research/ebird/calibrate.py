"""Calibrates the constants of the simulated card by short measurements on the one that is here."""

from collections.abc import Callable
from time import perf_counter

import torch
from torch import nn

from latebind.domain.errors import ConfigError
from research.hardware.chip import TITAN_RTX, Chip

TIMES = 50  # as Ebird calls its convolution (section VI-B)
LARGE, SMALL = 1 << 26, 1 << 12  # bytes


def calibrated() -> Chip:
    """Return the constants of the CUDA device here; `ConfigError` where there is none.

    What a server needs between two batches beside copying is not measured: that is a property of no card.
    """
    if not torch.cuda.is_available():
        raise ConfigError("there is no CUDA device to measure: leave out --calibrated for the constants of a Titan RTX")
    with torch.inference_mode():
        large, small = _copy_seconds(LARGE), _copy_seconds(SMALL)
        return Chip(
            flops=_flops(),
            reached=1.0,
            memory=_memory_rate(),
            least=_least_of_a_layer(),
            multiprocessors=torch.cuda.get_device_properties(0).multi_processor_count,
            pcie=(LARGE - SMALL) / (large - small),
            copy=small,
            host=_host_rate(),
            launch=TITAN_RTX.launch,
        )


def _seconds(run: Callable[[], object]) -> float:
    """Return the mean seconds of a call on the device, after one that does not count."""
    run()
    begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begun.record()
    for _ in range(TIMES):
        run()
    ended.record()
    ended.synchronize()
    return float(begun.elapsed_time(ended)) / 1e3 / TIMES


def _copy_seconds(size: int) -> float:
    pinned = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    there = torch.empty(size, dtype=torch.uint8, device="cuda")
    return _seconds(lambda: there.copy_(pinned, non_blocking=True))


def _memory_rate() -> float:
    """Return bytes a second, of which a copy reads and writes each."""
    rows = torch.empty(4 * LARGE, dtype=torch.uint8, device="cuda")
    other = torch.empty_like(rows)
    return 2 * rows.numel() / _seconds(lambda: other.copy_(rows))


def _flops() -> float:
    """Return what a large convolution reaches, in torch's default precision."""
    width, side, batch = 256, 28, 32
    layer = nn.Conv2d(width, width, 3, padding=1, bias=False).cuda()
    images = torch.randn(batch, width, side, side, device="cuda")
    return 2 * 9 * width * width * side * side * batch / _seconds(lambda: layer(images))


def _least_of_a_layer() -> float:
    """Return the seconds of a convolution with normalisation and activation that has almost nothing to do."""
    layer = nn.Sequential(nn.Conv2d(8, 8, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU()).cuda().eval()
    image = torch.randn(1, 8, 7, 7, device="cuda")
    return _seconds(lambda: layer(image))


def _host_rate() -> float:
    """Return bytes a second of one thread that copies 32 inputs into one tensor."""
    inputs = [torch.randn(3, 224, 224) for _ in range(32)]
    batch = torch.stack(inputs)
    begun = perf_counter()
    for _ in range(TIMES):
        torch.stack(inputs, out=batch)
    return TIMES * batch.numel() * batch.element_size() / (perf_counter() - begun)
