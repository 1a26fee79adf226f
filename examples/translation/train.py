"""Trains a translator: `python -m examples.translation.train transformer --data FOLDER --out weights.safetensors`."""

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_model
from torch import Tensor, nn
from torch.nn import functional

from examples.translation.data import Pairs, pairs, shifted
from examples.translation.model import PADDING, lstm, transformer
from latebind.cli.console import console, progress

MODELS = {"lstm": lstm, "transformer": transformer}
BATCH = 64
LEARNING_RATE = {"lstm": 2e-3, "transformer": 1.5e-3}
WARM_UP = 0.1  # share of the steps
SMOOTHING = 0.1
POOL = 50  # batches' worth of pairs among which those of like length go together


def main(arguments: list[str]) -> None:
    """Train, tell how well it guesses each next word of unseen sentences, and write the weights."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--data", type=Path, required=True, help="folder of the sentences")
    parser.add_argument("--out", type=Path, required=True, help="the .safetensors file to write")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    torch.set_num_threads(given.threads)
    learned, unseen = (pairs(given.data, f"multi30k.{part}") for part in ("train", "val"))
    torch.manual_seed(given.seed)
    model = MODELS[given.model]()
    with progress(f"training on {len(learned.lengths)} pairs") as on_progress:
        train(
            model,
            learned,
            epochs=given.epochs,
            rate=LEARNING_RATE[given.model],
            seed=given.seed,
            on_progress=on_progress,
        )
    given.out.parent.mkdir(parents=True, exist_ok=True)
    save_model(model, str(given.out))
    console.print(f"next word right on unseen sentences: {accuracy(model, unseen):.2%}")


def train(
    model: nn.Module, learned: Pairs, *, epochs: int, rate: float, seed: int, on_progress: Callable[[str, float], None]
) -> None:
    """Teach the model to say each next word, given those before it, in bfloat16 where it can."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=1e-4)
    model.train()
    for epoch in range(epochs):
        batches = of_like_length(learned.lengths, generator)
        for number, rows in enumerate(batches):
            done = (epoch * len(batches) + number + 1) / (epochs * len(batches))
            optimizer.param_groups[0]["lr"] = rate * min(done / WARM_UP, 1.0 - done + 1e-3)
            optimizer.zero_grad()
            inputs, outputs, lengths = trimmed(learned, rows)
            with torch.autocast("cpu", torch.bfloat16):
                logits = model(inputs, lengths, shifted(outputs))
            loss = functional.cross_entropy(
                logits.float().flatten(0, 1), outputs.flatten(), ignore_index=PADDING, label_smoothing=SMOOTHING
            )
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            on_progress(f"epoch {epoch + 1} of {epochs}, loss {loss:.2f}", done)
    model.eval()


def of_like_length(lengths: Tensor, generator: torch.Generator) -> list[Tensor]:
    """Return batches of row numbers, in any order, with inputs of about one length in each."""
    order = torch.randperm(len(lengths), generator=generator)
    pools = [pool[lengths[pool].argsort()] for pool in torch.split(order, POOL * BATCH)]
    batches = [rows for pool in pools for rows in torch.split(pool, BATCH)]
    return [batches[place] for place in torch.randperm(len(batches), generator=generator)]


def trimmed(found: Pairs, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return inputs, outputs and lengths of these rows without columns that are padding for all."""
    outputs = found.outputs[rows]
    longest = int((outputs != PADDING).sum(dim=1).max())
    return found.inputs[rows, : int(found.lengths[rows].max())], outputs[:, :longest], found.lengths[rows]


@torch.inference_mode()
def accuracy(model: nn.Module, found: Pairs) -> float:
    """Return the share of words that the model would have said next."""
    right = total = 0
    for rows in torch.split(torch.arange(len(found.lengths)), BATCH):
        inputs, outputs, lengths = trimmed(found, rows)
        said = model(inputs, lengths, shifted(outputs)).argmax(dim=2)
        counts = outputs != PADDING
        right += int((said == outputs)[counts].sum())
        total += int(counts.sum())
    return right / total


if __name__ == "__main__":
    main(sys.argv[1:])
