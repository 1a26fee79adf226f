"""How inputs get from slots to stages on a CUDA device, and outputs back: Ebird's GPU resident memory pool (section V).

Inputs are copied as they arrive, and outputs when they are computed.

The device has a row for each slot, those of query steps included; one that holds a request's input is its InDevPtr.
Requests that arrive together have slots that follow each other (`claims.Claims`), and so rows that do (V-A). InStream
copies a row as soon as the engine reads the request, and records the row's InEvent. Workers compute on streams of their
own; on the device, they wait for the InEvent of their batch that was recorded last: InStream copies in order, so the
other inputs are there too. OutStream copies outputs to the slots' output rows (OutCpuPtr), and requests are reported as
answered after waiting for the OutEvent. InMutex is held while copying in, by the listener and by threads that have
written the inputs of a query's step. Threads that wait for an event hold neither Python's lock (torch releases it in
`synchronize`) nor a core (events are made to block).

Slots are page-locked, so that the device copies from and to them while the processor does something else. If the
driver refuses that, as some do for shared memory, copies still work, but the thread that starts one waits for it.
Rows that differ in size are not page-locked, because their pages come and go (`slots.Extents`), and have none here.

A row is reused with its slot. The next input is written by InStream too, so it comes after any copy still under way for
the previous request, which may have been cancelled at once.
"""

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from threading import Lock
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from latebind.domain.actions import Run
from latebind.domain.model import ModelSpec, TensorSpec
from latebind.engine.slots import ModelSlots, SlotMemory
from latebind.engine.staging import are_contiguous, index_of
from latebind.program.arrays import array_of, tensors_over

logger = logging.getLogger(__name__)

PORTABLE = 1  # cudaHostRegisterPortable: page-locked for all devices
NOT_COPIED = -1

Event = Any  # `torch.cuda.Event`, or that of `torch.cpu`, whose streams are synchronous


class DeviceRows:
    """The rows of one model on a device, one for each slot; `copied` numbers the copies in their order, by row."""

    def __init__(self, slots: ModelSlots, spec: ModelSpec, device: torch.device) -> None:
        self.inputs = tensors_over(slots.inputs, spec.inputs)
        self.outputs = tensors_over(slots.outputs, spec.outputs)
        self.rows = tuple(torch.empty_like(rows, device=device) for rows in self.inputs)
        self.events = tuple(_event(device) for _ in range(len(self.inputs[0])))
        self.copied = [NOT_COPIED] * len(self.events)


class DeviceStaging:
    """The rows of an engine's models on one device, and the streams that fill and empty them."""

    copies = True

    def __init__(self, models: Sequence[str], memory: SlotMemory, device: str) -> None:
        self.device = torch.device(device)
        self.runtime: Any = torch.get_device_module(self.device)
        self.runtime.set_device(device)  # otherwise memory is page-locked in a context on device 0, which costs memory
        self.runtime.synchronize(device)  # weights and compiled code were made on another stream
        self._locked = memory.arrays.ctypes.data if self._lock_pages(memory.arrays) else None
        slots = {name: memory.by_name[name] for name in models}
        self.models = {
            name: DeviceRows(rows, memory.specs[name], self.device)
            for name, rows in slots.items()
            if rows.sized is None
        }
        self._in_stream = self.runtime.Stream(device)
        self.out_stream = self.runtime.Stream(device)
        self._copying = Lock()  # InMutex: guards the order of InStream
        self._numbers = count()

    def copy_in(self, model: str, slots: Sequence[int]) -> None:
        """Start copying inputs from their slots. A request whose input cannot be copied fails when it is to run.

        Rows that differ in size are copied as a batch, once it is known which rows share one (`there`).
        """
        device_rows = self.models.get(model)
        if device_rows is None:
            return
        try:
            with self._copying, self.runtime.stream(self._in_stream):
                for slot in slots:
                    device_rows.copied[slot] = NOT_COPIED
                    for rows, source in zip(device_rows.rows, device_rows.inputs, strict=True):
                        rows[slot].copy_(source[slot], non_blocking=True)
                    device_rows.events[slot].record(self._in_stream)
                    device_rows.copied[slot] = next(self._numbers)
        except RuntimeError:
            logger.exception("inputs of %s in slots %s could not be copied to %s", model, slots, self.device)
            self.exit_if_lost()

    def stream(self) -> "DeviceStream":
        """Return a new stream on this device."""
        return DeviceStream(self)

    def close(self) -> None:
        """Wait for the device and unlock the pages of the slots."""
        self.runtime.synchronize(self.device)
        if self._locked is not None:
            torch.cuda.cudart().cudaHostUnregister(self._locked)  # type: ignore[no-untyped-call]
            self._locked = None

    def exit_if_lost(self) -> None:
        """End this process if the device no longer works, as after a failed assertion in a kernel: every launch fails.

        Another engine takes over, and the crash is counted for the model that ran.
        """
        try:
            self.runtime.synchronize(self.device)
        except torch.AcceleratorError:
            logger.critical("this engine has lost %s and ends, so that another takes over", self.device)
            os._exit(1)  # a normal exit would clean up on the device

    def _lock_pages(self, memory: NDArray[np.uint8]) -> bool:
        """Page-lock the bytes of all slots; return whether they are. The CPU needs no lock."""
        if self.device.type != "cuda":
            return False
        runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        error = int(runtime.cudaHostRegister(memory.ctypes.data, memory.nbytes, PORTABLE))
        if error:
            logger.warning("slots cannot be page-locked (CUDA error %d): threads wait for copies to and from it", error)
            with suppress(RuntimeError):  # this thread's last error would be reported by the next, unrelated launch
                torch.zeros(1, device=self.device)
        return error == 0


class DeviceStream:
    """A worker's stream on a device."""

    def __init__(self, staging: DeviceStaging) -> None:
        self._staging = staging
        self._runtime = staging.runtime
        self._stream = self._runtime.Stream(staging.device)
        self._computed, self._answered = _event(staging.device), _event(staging.device)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Launch on this stream within the context. On leaving, by an error too, wait, so that slots can be reused."""
        with self._runtime.stream(self._stream):
            try:
                try:
                    yield
                finally:
                    self.wait()
            except torch.AcceleratorError:
                self._staging.exit_if_lost()
                raise

    def wait(self) -> None:
        """Wait for an event recorded after the last launch; other streams go on."""
        self._computed.record(self._stream)
        self._computed.synchronize()

    def there(self, arrays: Sequence[NDArray[np.generic]], specs: Sequence[TensorSpec]) -> tuple[Tensor, ...]:
        """Copy inputs `(B, ...)` to the device."""
        return tuple([tensor.to(self._staging.device) for tensor in tensors_over(arrays, specs)])

    def back(self, results: Sequence[Tensor]) -> Sequence[NDArray[np.generic]]:
        """Wait until computed, then copy on OutStream."""
        self.wait()
        with self._runtime.stream(self._staging.out_stream):
            return [array_of(result.cpu()) for result in results]

    def inputs(self, action: Run) -> tuple[Tensor, ...]:
        """Return a view if the rows are contiguous, as they are when requests run in order of arrival, else copies."""
        device_rows, slots = self._staging.models[action.model], action.slots
        if any(device_rows.copied[slot] == NOT_COPIED for slot in slots):
            raise RuntimeError(f"an input of {action.model} was not copied to {self._staging.device}")
        device_rows.events[max(slots, key=device_rows.copied.__getitem__)].wait(self._stream)
        if are_contiguous(slots):
            return tuple([rows[index_of(slots)] for rows in device_rows.rows])
        locked = torch.tensor(slots, pin_memory=self._staging.device.type == "cuda")
        index = locked.to(self._staging.device, non_blocking=True)
        return tuple([rows.index_select(0, index) for rows in device_rows.rows])

    def answer(self, model: str, slots: Sequence[int], results: Sequence[Tensor], places: Sequence[int]) -> None:
        """Wait until computed, then copy on OutStream, so that no worker's outputs queue behind another's launches.

        This holds the results until they are in their slots, so their memory is not reused.
        """
        self.wait()
        stream = self._staging.out_stream
        with self._runtime.stream(stream):
            for rows, result in zip(self._staging.models[model].outputs, results, strict=True):
                if slots and are_contiguous(slots) and are_contiguous(places):  # one copy
                    rows[index_of(slots)].copy_(result[index_of(places)], non_blocking=True)
                    continue
                for slot, place in zip(slots, places, strict=True):
                    rows[slot].copy_(result[place], non_blocking=True)
            self._answered.record(stream)  # the OutEvent
        self._answered.synchronize()


def _event(device: torch.device) -> Event:
    runtime: Any = torch.get_device_module(device)
    return runtime.Event(blocking=True) if device.type == "cuda" else runtime.Event()
