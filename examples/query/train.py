"""Trains the seven networks of a query: `python -m examples.query.train --data FOLDER --out DIR`; a quarter of an hour.

Without `--data` it is handwritten digits, and seconds. What is there already is not trained again.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from examples.query.scenes import Pictures, Scene, scene, shortened
from latebind.cli.console import console, percent, progress, show

BATCH = 128
PEAK, MOMENTUM, WEIGHT_DECAY = 0.2, 0.9, 5e-4
SMOOTHING = 0.1
CORES = 2  # networks that are trained side by side, on one thread each

OnProgress = Callable[[str, float], None]


def main(arguments: Sequence[str]) -> None:
    """Train what is missing and tell how often each network is right on pictures that it has not learned from."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="folder of CIFAR-10 as in examples/cifar10; default: digits")
    parser.add_argument("--out", type=Path, default=Path("out/query/weights"), help="folder of weights")
    parser.add_argument("--model", action="append", help="only this one; may be repeated")
    parser.add_argument("--cores", type=int, default=CORES, help="networks that are trained side by side")
    parser.add_argument("--quick", action="store_true", help="a third of the training: minutes, and worse answers")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    pictures = shortened(scene(given.data)) if given.quick else scene(given.data)
    unknown = [model for model in given.model or () if model not in pictures.models]
    if unknown:
        parser.error(f"there is no model {unknown[0]!r}: take some of {', '.join(pictures.models)}")
    with progress("training") as on_progress:
        train_missing(pictures, given.out, given.model or pictures.models, given.cores, given.seed, on_progress)
    rows = [
        {"model": model, "right on unseen pictures": percent(accuracy_in(given.out, model))}
        for model in trained(given.out, pictures)
    ]
    show(str(given.out), rows)
    options = f"{f' --data {given.data}' if given.data else ''}{' --quick' if given.quick else ''}"
    console.print(f"next: python -m examples.query.build{options} --weights {given.out}")


def train_missing(
    pictures: Scene, folder: Path, models: Sequence[str], cores: int, seed: int, on_progress: OnProgress
) -> None:
    """Train the models that are not in the folder, several side by side, and write each as soon as it is done."""
    folder.mkdir(parents=True, exist_ok=True)
    missing = [model for model in models if not weights_of(folder, model).exists()]
    done = dict.fromkeys(missing, 0.0)

    def train_one(model: str, network: nn.Module) -> None:
        def on_share(share: float) -> None:
            done[model] = share
            on_progress(
                ", ".join(name for name, share in done.items() if 0 < share < 1), sum(done.values()) / len(done)
            )

        _train_and_keep(pictures, model, network, weights_of(folder, model), seed, on_share)

    made = [_drawn(pictures, model, seed) for model in missing]  # one after another: torch has one seed for all
    with ThreadPoolExecutor(cores, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        list(pool.map(train_one, missing, made))


def train(
    network: nn.Module,
    pictures: Pictures,
    *,
    epochs: int,
    alter: Callable[[Tensor, torch.Generator], Tensor],
    seed: int,
    on_share: Callable[[float], None],
) -> nn.Module:
    """Return the network, trained on altered views of pictures with a learning rate of one cycle."""
    generator = torch.Generator().manual_seed(seed)
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    steps = epochs * -(-len(pictures) // BATCH)
    optimizer = torch.optim.SGD(
        network.parameters(), lr=PEAK, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY, nesterov=True
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, PEAK, total_steps=steps, pct_start=0.25)
    for step, rows in enumerate(_batches(len(pictures), epochs, generator)):
        views = alter(pictures.inputs[rows], generator).contiguous(memory_format=torch.channels_last)
        loss = functional.cross_entropy(network(views), pictures.labels[rows], label_smoothing=SMOOTHING)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        schedule.step()
        on_share((step + 1) / steps)
    network.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    return network.eval()


@torch.inference_mode()
def accuracy(network: nn.Module, pictures: Pictures) -> float:
    """Return the share of pictures that the network is right on."""
    answers = [network(part).argmax(dim=1) for part in torch.split(pictures.inputs, BATCH)]
    return float((torch.cat(answers) == pictures.labels).float().mean())


def weights_of(folder: Path, model: str) -> Path:
    """Return where the weights of a model are."""
    return folder / f"{model}.safetensors"


def trained(folder: Path, pictures: Scene) -> list[str]:
    """Return the models that are there."""
    return [model for model in pictures.models if weights_of(folder, model).exists()]


def accuracy_in(folder: Path, model: str) -> float:
    """Return how often a model was right on pictures that it had not learned from, as noted beside its weights."""
    with safe_open(weights_of(folder, model), "pt") as file:
        return float(file.metadata()["accuracy"])


def restored(pictures: Scene, folder: Path, model: str) -> nn.Module:
    """Return a model with its weights."""
    network = pictures.networks[pictures.size_of(model)]()
    network.load_state_dict(load_file(weights_of(folder, model)))
    return network.eval()


def _batches(count: int, epochs: int, generator: torch.Generator) -> Iterator[Tensor]:
    for _ in range(epochs):
        yield from torch.split(torch.randperm(count, generator=generator), BATCH)


def _drawn(pictures: Scene, model: str, seed: int) -> nn.Module:
    """Return a network with weights drawn from a seed."""
    torch.manual_seed(seed)
    return pictures.networks[pictures.size_of(model)]()


def _train_and_keep(
    pictures: Scene, model: str, network: nn.Module, path: Path, seed: int, on_share: Callable[[float], None]
) -> None:
    lessons = pictures.about(model, pictures.learned)
    epochs = pictures.epochs[pictures.size_of(model)]
    train(network, lessons, epochs=epochs, alter=pictures.alter, seed=seed, on_share=on_share)
    right = accuracy(network, pictures.about(model, pictures.measured))
    part = path.with_suffix(".part")
    state = {name: tensor.contiguous() for name, tensor in network.state_dict().items()}
    save_file(state, part, {"accuracy": f"{right:.4f}"})
    part.rename(path)


if __name__ == "__main__":
    main(sys.argv[1:])
