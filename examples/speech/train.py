"""Trains the network on spoken commands: `python -m examples.speech.train --data FOLDER --out weights.safetensors`."""

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from examples.speech.data import Clips, alter, learned_clips, standardized, unseen_clips
from examples.speech.model import SpeechVgg, vgg
from latebind.cli.console import console, progress
from latebind.learned.train import Kernels

BATCH = 64
EPOCHS = 10
LEARNING_RATE, WEIGHT_DECAY = 4e-3, 1e-2  # of what is not a kernel
WARM_UP, COOL_DOWN = 0.1, 0.7  # shares of the steps
SMOOTHING = 0.1


def main(arguments: list[str]) -> None:
    """Train, tell the accuracy on speakers that it has not heard and write the weights."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of the features")
    parser.add_argument("--out", type=Path, required=True, help="the .safetensors file to write")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    torch.set_num_threads(os.cpu_count() or 1)
    learned, unseen = learned_clips(given.data), unseen_clips(given.data)
    with progress(f"training on {len(learned.labels)} clips") as on_progress:
        network = train(learned, epochs=given.epochs, seed=given.seed, on_progress=on_progress)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in network.state_dict().items()}, given.out)
    console.print(f"accuracy on what it learned: {accuracy(network, learned):.2%} of {len(learned.labels)} clips")
    console.print(f"accuracy on unseen speakers: {accuracy(network, unseen):.2%} of {len(unseen.labels)} clips")


def train(clips: Clips, *, epochs: int, seed: int, on_progress: Callable[[str, float], None]) -> SpeechVgg:
    """Return a network trained on altered clips: kernels under Muon, the rest under AdamW, in bfloat16 where it can."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    network = vgg()
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    kernels = Kernels([weight for weight in network.parameters() if weight.dim() == 4])
    others = [weight for weight in network.parameters() if weight.dim() != 4]
    optimizer = torch.optim.AdamW(others, lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    each = len(clips.labels) // BATCH
    for epoch in range(epochs):
        order = torch.randperm(len(clips.labels), generator=generator)[: each * BATCH]
        sounds = standardized(alter(clips.features, generator))
        for number, rows in enumerate(torch.split(order, BATCH)):
            done = (epoch * each + number + 1) / (epochs * each)
            pace = min(1.0, done / WARM_UP, (1.0 - done) / COOL_DOWN)
            optimizer.param_groups[0]["lr"] = LEARNING_RATE * pace
            network.zero_grad()
            _loss(network, sounds[rows], clips.labels[rows]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            kernels.step(pace)
            on_progress(f"epoch {epoch + 1} of {epochs}", done)
    return network.eval()


@torch.inference_mode()
def accuracy(network: nn.Module, clips: Clips) -> float:
    """Return the share of clips that the network is right on."""
    answers = [network(part).argmax(dim=1) for part in torch.split(standardized(clips.features), BATCH)]
    return float((torch.cat(answers) == clips.labels).float().mean())


def _loss(network: nn.Module, sounds: Tensor, labels: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        answers = network(sounds)
    return functional.cross_entropy(answers.float(), labels, label_smoothing=SMOOTHING)


if __name__ == "__main__":
    main(sys.argv[1:])
