"""Page-locked memory for slots, which a device copies from and to while the processor does something else.

The slots are page-locked in place. If the driver refuses that, as some do for shared memory, each row gets a
page-locked copy beside it, as many as there are slots.
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
    """Holds the bytes of all slots page-locked; `held` is False if that failed. On the CPU no lock is needed."""

    def __init__(self, memory: NDArray[np.uint8], device: torch.device) -> None:
        self._address = memory.ctypes.data
        self._registers = device.type == "cuda"
        self.held = not self._registers or self._register(memory, device)

    def release(self) -> None:
        """Unlock the pages."""
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
    """The rows of one tensor in all slots. `locked` `(slots, *shape)` is what a device copies from or to."""

    def __init__(self, slots: Tensor, locked: Tensor) -> None:
        self._slots = slots
        self.locked = locked

    @classmethod
    def in_place(cls, slots: Tensor) -> "Rows":
        """Return the rows of slots that are page-locked themselves."""
        return cls(slots, slots)

    @classmethod
    def beside(cls, slots: Tensor, device: torch.device) -> "Rows":
        """Return the rows of slots with a page-locked copy beside each."""
        return cls(slots, torch.empty(slots.shape, dtype=slots.dtype, pin_memory=device.type == "cuda"))

    def copy_in(self, slot: int) -> None:
        """Make `locked` hold what is in the slot."""
        if self.locked is not self._slots:
            self.locked[slot] = self._slots[slot]

    def copy_back(self, slots: Sequence[int]) -> None:
        """Make these slots hold what is in `locked`."""
        if self.locked is not self._slots:
            for slot in slots:
                self._slots[slot] = self.locked[slot]


def _forget_last_error(device: torch.device) -> None:
    """Clear this thread's last CUDA error, which would otherwise be reported by the next, unrelated launch."""
    try:
        torch.zeros(1, device=device)
    except RuntimeError:
        return
