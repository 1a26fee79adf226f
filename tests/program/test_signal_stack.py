"""What is left of OpenVINO in a thread that has compiled with it."""

import ctypes
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import nn

from latebind.program.export import export
from latebind.program.load import compile_graph
from tests.program.test_backends import usable


class SignalStack(ctypes.Structure):
    """`stack_t` of Linux."""

    _fields_ = (("start", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


def own_signal_stack() -> int | None:
    """Return where the stack for signals of this thread begins, if it has one."""
    found = SignalStack()
    assert ctypes.CDLL(None).sigaltstack(None, ctypes.byref(found)) == 0
    start: int | None = found.start
    return start


def is_mapped(address: int) -> bool:
    spans = (line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines())
    return any(int(start, 16) <= address < int(end, 16) for start, end in spans)


def test_a_thread_that_has_compiled_and_let_go_can_still_be_signalled() -> None:
    def compiled_and_let_go() -> int | None:
        exported = export(nn.Linear(4, 4).eval(), (torch.randn(2, 4),))
        stages = [
            compile_graph(exported.graph, exported.weights, backend=usable("openvino"), threads=1) for _ in range(3)
        ]
        while stages:
            stages.pop(0)
        return own_signal_stack()

    with ThreadPoolExecutor(1) as thread:  # a thread ends with its stack for signals
        left = thread.submit(compiled_and_let_go).result()
    assert left is None or is_mapped(left)
