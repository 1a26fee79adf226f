"""How inputs get from slots to stages and outputs back: on the CPU, and on CUDA devices.

On the CPU nothing is staged: stages read the slots themselves. For a device, inputs are copied as they arrive, and
outputs back: Ebird's GPU resident memory pool (section V).

A row of a model's pool holds one request's input (InDevPtr). InStream copies it as soon as the engine reads the
request, and records the row's InEvent. Workers compute on streams of their own; on the device, they wait for the
InEvent of their batch that was recorded last: InStream copies in order, so the others have come too. OutStream copies
outputs to the slots' output rows (OutCpuPtr), and requests are reported as answered after waiting for the OutEvent.
InMutex is held while copying in, by the listener and by threads that have written the inputs of a query's step. Threads
that wait for an event hold neither Python's lock (torch releases it in `synchronize`) nor a core (events are made to
block).

Slots are page-locked, so that the device copies from and to them while the processor does something else. If the
driver refuses that, as some do for shared memory, copies are the same, and the thread that starts one waits for it.

A row is reused when its request has ended. The next input is written by InStream too, so it comes after any copy still
under way for the previous request, which may have been cancelled at once.
"""

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from itertools import count
from threading import Lock
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from latebind.domain.actions import Run
from latebind.domain.events import Arrived
from latebind.engine.slots import ModelSlots, SlotMemory

logger = logging.getLogger(__name__)

AT_ONCE = nullcontext()
PORTABLE = 1  # cudaHostRegisterPortable: page-locked for all devices

Event = Any  # `torch.cuda.Event`, or that of `torch.cpu`, whose streams are synchronous


class HostStaging:
    """Staging on the CPU. A batch is a view of contiguous slots, else a copy of their rows.

    It is its own stream, one worker's stream of execution: a thread computes what it calls. `tracks_requests` says
    whether it needs to be told when requests, and steps of queries, arrive and end; both from any thread.
    """

    tracks_requests = False

    def __init__(self, models: Sequence[str], memory: SlotMemory) -> None:
        self._inputs = {name: tensors_of(memory.by_name[name].inputs) for name in models}
        self._outputs = {name: tensors_of(memory.by_name[name].outputs) for name in models}

    def arrived(self, event: Arrived) -> None:
        """Handle the arrival of a model's requests, whose inputs are in their slots, before the scheduler does."""

    def ended(self, request: int) -> None:
        """Handle the end of a request, if it is one, before its slot is reused."""

    def stream(self) -> "HostStaging":
        """Return a stream of execution for another worker."""
        return self

    def close(self) -> None:
        """Release all resources; nothing runs any more."""

    def running(self) -> AbstractContextManager[object]:
        """Compute on this stream within the context; when it is left, everything has been computed."""
        return AT_ONCE

    def wait(self) -> None:
        """Return when everything launched on this stream has been computed."""

    def inputs(self, action: Run) -> tuple[Tensor, ...]:
        """Return the inputs of the requests of `action`, each `(B, *shape)`; they stay valid while these run."""
        slots = index_of(action.slots)
        return tuple([rows[slots] for rows in self._inputs[action.model]])

    def answer(self, model: str, slots: Sequence[int], results: Sequence[Tensor], places: Sequence[int]) -> None:
        """Copy row `places[i]` of each of the `results` `(B, *shape)` into slot `slots[i]`; it is there on return."""
        if slots:
            to, of = index_of(slots), index_of(places)
            for rows, result in zip(self._outputs[model], results, strict=True):
                rows[to] = result[of]


class Pool:
    """The rows of one model: as many as slots, those of query steps included, so that every live request has one.

    Ebird recommends several times MaxInf, the number of requests that run; slots also bound those that wait. Rows are
    given out in order, those still held skipped, so that requests that arrive together get contiguous rows (V-A). Only
    one thread at a time may take rows; any thread may give back rows it was given.
    """

    def __init__(self, slots: ModelSlots, device: torch.device) -> None:
        self.inputs, self.outputs = tensors_of(slots.inputs), tensors_of(slots.outputs)
        self.rows = tuple(torch.empty_like(rows, device=device) for rows in self.inputs)
        self.events = tuple(_event(device) for _ in range(len(self.inputs[0])))
        self._held = bytearray(len(self.events))
        self._next = 0

    @property
    def held(self) -> int:
        """How many rows are held."""
        return sum(self._held)

    def take(self) -> int:
        """Return the next free row. There is one for each slot, so one is free."""
        row = self._held.find(0, self._next)
        if row < 0:
            row = self._held.index(0)
        self._held[row] = 1
        self._next = row + 1
        return row

    def give_back(self, row: int) -> None:
        """Make a row free again."""
        self._held[row] = 0


@dataclass(frozen=True, slots=True)
class Staged:
    """Where the input of a request is; `number` counts copies in their order."""

    pool: Pool
    row: int
    number: int


class DeviceStaging:
    """The pools of an engine's models on one device, and the streams that fill and empty them."""

    tracks_requests = True

    def __init__(self, models: Sequence[str], memory: SlotMemory, device: torch.device) -> None:
        self.device = device
        self.runtime: Any = torch.get_device_module(device)
        self.runtime.set_device(device)  # otherwise memory is page-locked in a context on device 0, which costs memory
        self.runtime.synchronize(device)  # weights and compiled code were made on another stream
        self._locked = memory.whole.ctypes.data if self._lock_pages(memory.whole) else None
        self._pools = {name: Pool(memory.by_name[name], device) for name in models}
        self._in_stream = self.runtime.Stream(device)
        self._out_stream = self.runtime.Stream(device)
        self._copying = Lock()  # InMutex: guards the order of InStream and the taking of rows
        self._numbers = count()
        self._staged: dict[int, Staged] = {}

    def arrived(self, event: Arrived) -> None:
        """Start copying the inputs. A request whose input cannot be copied fails when it is to run."""
        pool = self._pools[event.model]
        try:
            with self._copying, self.runtime.stream(self._in_stream):
                for request, slot in zip(event.requests, event.slots, strict=True):
                    self._staged[request] = self._copy_in(pool, slot)
        except RuntimeError:
            logger.exception("inputs of requests %s did not get to %s", event.requests, self.device)
            self.exit_if_lost()

    def ended(self, request: int) -> None:
        """Give the request's row back."""
        staged = self._staged.pop(request, None)
        if staged is not None:
            staged.pool.give_back(staged.row)

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
            logger.critical("%s is lost to this engine, which ends for another to take over", self.device)
            os._exit(1)  # a normal exit would clean up on the device

    def staged(self, requests: Sequence[int]) -> list[Staged]:
        """Return where the inputs of these requests are; raises `KeyError` for one that was not copied."""
        return [self._staged[request] for request in requests]

    def copy_out(
        self, model: str, slots: Sequence[int], results: Sequence[Tensor], places: Sequence[int], done: Event
    ) -> None:
        """Copy computed rows of `results` into slots and return when they are there; `done` is the OutEvent.

        The caller holds the results until then, so their memory is not reused.
        """
        with self.runtime.stream(self._out_stream):
            for rows, result in zip(self._pools[model].outputs, results, strict=True):
                if slots and are_contiguous(slots) and are_contiguous(places):  # one copy
                    rows[index_of(slots)].copy_(result[index_of(places)], non_blocking=True)
                    continue
                for slot, place in zip(slots, places, strict=True):
                    rows[slot].copy_(result[place], non_blocking=True)
            done.record(self._out_stream)
        done.synchronize()

    def _lock_pages(self, memory: NDArray[np.uint8]) -> bool:
        """Page-lock the bytes of all slots; return whether they are. The CPU needs no lock."""
        if self.device.type != "cuda":
            return False
        runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        error = int(runtime.cudaHostRegister(memory.ctypes.data, memory.nbytes, PORTABLE))
        if error:
            logger.warning("slots cannot be page-locked (CUDA error %d): copies to and from it are waited for", error)
            with suppress(RuntimeError):  # this thread's last error would be reported by the next, unrelated launch
                torch.zeros(1, device=self.device)
        return error == 0

    def _copy_in(self, pool: Pool, slot: int) -> Staged:
        row = pool.take()
        for rows, source in zip(pool.rows, pool.inputs, strict=True):
            rows[row].copy_(source[slot], non_blocking=True)
        pool.events[row].record(self._in_stream)
        return Staged(pool, row, next(self._numbers))


class DeviceStream:
    """A worker's stream on a device."""

    def __init__(self, staging: DeviceStaging) -> None:
        self._staging = staging
        self._runtime = staging.runtime
        self._stream = self._runtime.Stream(staging.device)
        self._computed, self._copied = _event(staging.device), _event(staging.device)

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

    def inputs(self, action: Run) -> tuple[Tensor, ...]:
        """Return a view if the rows are contiguous, as they are when requests run in order of arrival, else copies."""
        staged = self._staging.staged(action.requests)
        pool, last = staged[0].pool, max(staged, key=lambda one: one.number)
        pool.events[last.row].wait(self._stream)
        places = [one.row for one in staged]
        if are_contiguous(places):
            return tuple([rows[index_of(places)] for rows in pool.rows])
        locked = torch.tensor(places, pin_memory=self._staging.device.type == "cuda")
        index = locked.to(self._staging.device, non_blocking=True)
        return tuple([rows.index_select(0, index) for rows in pool.rows])

    def answer(self, model: str, slots: Sequence[int], results: Sequence[Tensor], places: Sequence[int]) -> None:
        """Wait until computed, then copy on OutStream, so that no worker's outputs queue behind another's launches."""
        self.wait()
        self._staging.copy_out(model, slots, results, places, self._copied)


Staging: TypeAlias = HostStaging | DeviceStaging
Stream: TypeAlias = HostStaging | DeviceStream


def tensors_of(arrays: Sequence[NDArray[np.generic]]) -> tuple[Tensor, ...]:
    """Return tensors that share the arrays' memory."""
    return tuple(torch.from_numpy(rows) for rows in arrays)


def are_contiguous(rows: Sequence[int]) -> bool:
    """Return whether each row directly follows the one before it."""
    if isinstance(rows, range):
        return rows.step == 1
    first, count = rows[0], len(rows)
    return count == 1 or (rows[-1] - first == count - 1 and tuple(rows) == tuple(range(first, first + count)))


def index_of(rows: Sequence[int]) -> slice | list[int]:
    """Return what takes these rows, at least one, out of an array: a slice, which copies nothing, if it can be one."""
    return slice(rows[0], rows[-1] + 1) if are_contiguous(rows) else list(rows)


def _event(device: torch.device) -> Event:
    runtime: Any = torch.get_device_module(device)
    return runtime.Event(blocking=True) if device.type == "cuda" else runtime.Event()
