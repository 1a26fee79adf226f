"""A process that serves a module, as the script of somebody would."""

from collections.abc import Sequence

import torch

import latebind


def main(words: Sequence[str]) -> None:
    """Serve a module until the process is told to end."""
    del words
    latebind.serve(torch.nn.Linear(8, 3), torch.zeros(2, 8), port=0, backends=("eager",))
