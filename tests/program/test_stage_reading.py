"""Stages that are read of files: in which order, and how many at a time."""

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from threading import Barrier
from typing import Any

from latebind.program.arrays import pass_through
from latebind.program.stage_files import read_all
from tests.program.test_backends import usable


def test_stages_are_read_two_at_a_time_and_come_in_order() -> None:
    both = Barrier(2, timeout=30.0)  # passed by two that wait at the same time

    def read(stage: Callable[..., Any]) -> Callable[..., Any]:
        both.wait()
        return stage

    stages = [partial(pass_through) for _ in range(6)]
    assert all(
        made is stage for made, stage in zip(read_all([partial(read, one) for one in stages]), stages, strict=True)
    )
    assert read_all([lambda: pass_through]) == [pass_through]
    assert read_all([]) == []


TWO_ASK = """
import os, sys
from threading import Barrier, Thread
import latebind.program.openvino, openvino

sys.setswitchinterval(1e-6)
both = Barrier(2)

def ask():
    both.wait()
    openvino.Type.i64.to_dtype()

threads = [Thread(target=ask, daemon=True) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join(30.0)
os._exit(sum(thread.is_alive() for thread in threads))
"""


def test_two_threads_that_are_the_first_to_ask_openvino_for_a_dtype_both_get_it() -> None:
    usable("openvino")
    done = subprocess.run([sys.executable, "-c", TWO_ASK], timeout=120.0, check=False)
    assert done.returncode == 0, f"{done.returncode} of two threads wait for each other"
