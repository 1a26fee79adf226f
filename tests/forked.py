"""One fork server for all tests of a process: what they start need not import torch each time."""

import os
import tempfile

from latebind.forks.client import ForkServer

FORKS = ForkServer()


def printed_by(module: str, *words: str) -> str:
    """Return what a process prints that calls `main` of a module with these words. Nothing else has run in it."""
    with open(os.devnull, "rb") as nothing, tempfile.TemporaryFile() as out:
        process = FORKS.fork(module, words, name="a-test", standard=(nothing.fileno(), out.fileno(), 2))
        try:
            assert process.ended(200.0)
        finally:
            process.kill()
        out.seek(0)
        return out.read().decode()
