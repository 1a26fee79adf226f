"""The slots as memory that a device copies from and to by itself, while the processor does something else.

They are page-locked where they lie. Where the driver refuses that, as some do for shared memory, there is a copy of
each row beside them that is, as many as there are slots and no more.
"""

import logging
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

logger = logging.getLogger(__name__)

PORTABLE = 1  # cudaHostRegisterPortable: page-locked for all devices


class PageLock:
    """Holds the bytes of all slots page-locked; where that fails, `held` is False. The CPU needs no lock."""

    def __init__(self, memory: NDArray[np.uint8], device: torch.device) -> None:
        self._address = memory.ctypes.data
        self._registers = device.type == "cuda"
        self.held = not self._registers or self._register(memory, device)

    def release(self) -> None:
        """Let the pages go."""
        if self.held and self._registers:
            torch.cuda.cudart().cudaHostUnregister(self._address)  # type: ignore[no-untyped-call]
        self.held = False

    def _register(self, memory: NDArray[np.uint8], device: torch.device) -> bool:
        runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        error = int(runtime.cudaHostRegister(self._address, memory.nbytes, PORTABLE))
        if error:
            logger.warning("slots cannot be page-locked (CUDA error %d): rows are copied once more each way", error)
            _forget_last_error(device)
        return error == 0


class Rows:
    """The rows that slots have of one tensor; `locked` `(slots, *shape)` is what a device copies from or to."""

    def __init__(self, slots: Tensor, locked: Tensor) -> None:
        self._slots = slots
        self.locked = locked

    @classmethod
    def in_place(cls, slots: Tensor) -> "Rows":
        """Return slots that are page-locked themselves."""
        return cls(slots, slots)

    @classmethod
    def beside(cls, slots: Tensor, device: torch.device) -> "Rows":
        """Return slots with a page-locked row beside each."""
        return cls(slots, torch.empty(slots.shape, dtype=slots.dtype, pin_memory=device.type == "cuda"))

    def bring(self, slot: int) -> None:
        """Have what lies in the slot in `locked`."""
        if self.locked is not self._slots:
            self.locked[slot] = self._slots[slot]

    def fetch(self, slots: Sequence[int]) -> None:
        """Have what lies in `locked` in these slots."""
        if self.locked is not self._slots:
            for slot in slots:
                self._slots[slot] = self.locked[slot]


def _forget_last_error(device: torch.device) -> None:
    """Have CUDA report the last error of this thread now: it would come with the next launch, which is not to blame."""
    try:
        torch.zeros(1, device=device)
    except RuntimeError:
        return
