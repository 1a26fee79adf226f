"""Inputs on the device as soon as they arrive, answers back from there: Ebird's GPU resident memory pool (section V).

A row of a model's pool is one request's input (InDevPtr). InStream copies each as soon as the engine hears of it and
records the row's InEvent; workers compute on streams of their own and wait, on the device, for the InEvent that was
recorded last of their batch: InStream copies in order, so all others have come. OutStream copies answers to the rows
that slots have of them (OutCpuPtr), and whoever reports them as answered has waited for the OutEvent. Whoever listens,
and whoever has written the inputs of a query's step, copies in under InMutex. Threads that wait for an event hold
neither Python's lock (torch lets go of it in `synchronize`) nor a core (events are made to block).

A row is used again when its request has ended, and what is written into it then is written by InStream, behind
whatever it still copied for the request before, which may have been cancelled at once.
"""

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from latebind.domain.actions import Run
from latebind.domain.events import Arrived
from latebind.engine.page_locked import PageLock, Rows
from latebind.engine.ring import Ring
from latebind.engine.slots import ModelSlots, SlotMemory
from latebind.engine.staging import follow_each_other, tensors_of

logger = logging.getLogger(__name__)

Event = Any  # `torch.cuda.Event`, or that of `torch.cpu`, whose streams do all at once


class Pool:
    """The rows of one model: as many as slots, those of steps too, so that whoever may be alive has one.

    Ebird recommends several times MaxInf, the number of those that have begun; slots bound those that wait too.
    """

    def __init__(self, slots: ModelSlots, device: torch.device, *, in_place: bool) -> None:
        inputs, outputs = tensors_of(slots.inputs), tensors_of(slots.outputs)
        self.inputs = tuple(Rows.in_place(rows) if in_place else Rows.beside(rows, device) for rows in inputs)
        self.outputs = tuple(Rows.in_place(rows) if in_place else Rows.beside(rows, device) for rows in outputs)
        self.rows = tuple(torch.empty_like(rows, device=device) for rows in inputs)
        self.events = tuple(_event(device) for _ in range(len(inputs[0])))
        self.ring = Ring(len(self.events))


@dataclass(frozen=True, slots=True)
class Staged:
    """Where the input of a request lies; `number` counts all that were copied, in their order."""

    pool: Pool
    row: int
    number: int


class DeviceStaging:
    """The pools of an engine's models on one device, and the streams that fill and empty them.

    Where not `in_place`, slots are not page-locked, and their rows are copied through others that are.
    """

    hears = True

    def __init__(
        self, models: Sequence[str], memory: SlotMemory, device: torch.device, *, in_place: bool = True
    ) -> None:
        self.device = device
        self.runtime: Any = torch.get_device_module(device)
        self.runtime.set_device(device)  # or memory is page-locked in a context of the first device, which takes some
        self.runtime.synchronize(device)  # weights and what was compiled were made on another stream
        self._lock = PageLock(memory.whole, device) if in_place else None
        held = self._lock is not None and self._lock.held
        self._pools = {name: Pool(memory.by_name[name], device, in_place=held) for name in models}
        self._in_stream = self.runtime.Stream(device)
        self._out_stream = self.runtime.Stream(device)
        self._copying = Lock()  # InMutex: guards the order of InStream and who takes a row
        self._numbers = count()
        self._staged: dict[int, Staged] = {}

    def arrived(self, event: Arrived) -> None:
        """Begin to copy the inputs; a request whose input cannot be copied fails when it is to run."""
        pool = self._pools[event.model]
        try:
            with self._copying, self.runtime.stream(self._in_stream):
                for request, slot in zip(event.requests, event.slots, strict=True):
                    self._staged[request] = self._copy_in(pool, slot)
        except RuntimeError:
            logger.exception("inputs of requests %s did not get to %s", event.requests, self.device)
            self.leave_if_lost()

    def ended(self, request: int) -> None:
        """Let others have the row."""
        staged = self._staged.pop(request, None)
        if staged is not None:
            staged.pool.ring.give_back(staged.row)

    def stream(self) -> "DeviceStream":
        """Return a stream of its own on this device."""
        return DeviceStream(self)

    def close(self) -> None:
        """Wait for the device and let the pages of the slots go."""
        self.runtime.synchronize(self.device)
        if self._lock is not None:
            self._lock.release()

    def leave_if_lost(self) -> None:
        """End this process if the device answers it nothing any more, as after a kernel's assertion: no launch works.

        Another engine takes over, and the model that ran counts as one with which an engine died.
        """
        try:
            self.runtime.synchronize(self.device)
        except torch.AcceleratorError:
            logger.critical("%s is lost to this engine, which ends for another to take over", self.device)
            os._exit(1)  # whatever is cleaned up otherwise would ask the device

    def where(self, requests: Sequence[int]) -> list[Staged]:
        """Return where the inputs of these requests lie; raises `KeyError` for one that did not get here."""
        return [self._staged[request] for request in requests]

    def copy_out(
        self, model: str, slots: Sequence[int], results: Sequence[Tensor], places: Sequence[int], done: Event
    ) -> None:
        """Copy rows of `results`, which are computed, into slots; `done` is the OutEvent. Returns when they are there.

        Until then somebody holds the results, so nothing else is put into their memory.
        """
        outputs = self._pools[model].outputs
        with self.runtime.stream(self._out_stream):
            for rows, result in zip(outputs, results, strict=True):
                _copy_rows(rows.locked, slots, result, places)
            done.record(self._out_stream)
        done.synchronize()
        for rows in outputs:
            rows.fetch(slots)

    def _copy_in(self, pool: Pool, slot: int) -> Staged:
        row = pool.ring.take()
        for rows, source in zip(pool.rows, pool.inputs, strict=True):
            source.bring(slot)
            rows[row].copy_(source.locked[slot], non_blocking=True)
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
        """Launch on this stream; whoever leaves, by an error too, has waited, so that slots may have new owners."""
        with self._runtime.stream(self._stream):
            try:
                try:
                    yield
                finally:
                    self.wait()
            except torch.AcceleratorError:
                self._staging.leave_if_lost()
                raise

    def wait(self) -> None:
        """Wait for an event behind the last launch: other streams go on."""
        self._computed.record(self._stream)
        self._computed.synchronize()

    def inputs(self, action: Run) -> tuple[Tensor, ...]:
        """Return a view of rows that follow each other, as they do if requests run in order of arrival, else copies."""
        staged = self._staging.where(action.requests)
        pool, last = staged[0].pool, max(staged, key=lambda one: one.number)
        pool.events[last.row].wait(self._stream)
        places = [one.row for one in staged]
        if follow_each_other(places):
            return tuple([rows[places[0] : places[0] + len(places)] for rows in pool.rows])
        locked = torch.tensor(places, pin_memory=self._staging.device.type == "cuda")
        index = locked.to(self._staging.device, non_blocking=True)
        return tuple([rows.index_select(0, index) for rows in pool.rows])

    def answer(self, model: str, slots: Sequence[int], results: Sequence[Tensor], places: Sequence[int]) -> None:
        """Copy out on OutStream, once computed: so no worker's answers stand behind another's launches."""
        self.wait()
        self._staging.copy_out(model, slots, results, places, self._copied)


def _copy_rows(rows: Tensor, slots: Sequence[int], result: Tensor, places: Sequence[int]) -> None:
    """Begin to copy rows of `result` on the current stream: one copy if they and their slots follow each other."""
    if slots and follow_each_other(slots) and follow_each_other(places):
        batch = result[places[0] : places[0] + len(places)]
        rows[slots[0] : slots[0] + len(slots)].copy_(batch, non_blocking=True)
        return
    for slot, place in zip(slots, places, strict=True):
        rows[slot].copy_(result[place], non_blocking=True)


def _event(device: torch.device) -> Event:
    runtime: Any = torch.get_device_module(device)
    return runtime.Event(blocking=True) if device.type == "cuda" else runtime.Event()
