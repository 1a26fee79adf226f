"""Teaches an encoder of texts the intents of CLINC150, beginning with the weights of a MiniLM.

`python -m examples.intents.train --data FOLDER --minilm FOLDER --out weights.safetensors`. The second folder has the
files `model.safetensors` and `tokenizer.json`.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

from examples.intents.data import read, together
from examples.intents.model import Intents, begin_with, intents
from latebind.cli.console import console, progress
from latebind.learned.samples import Samples

BATCH = 48
EPOCHS = 2
RATE, LAST_RATE = 1.5e-4, 2e-3  # of the encoder, and of the layer to intents
WARM_UP = 0.1  # share of the steps


def main(arguments: list[str]) -> None:
    """Train, tell the accuracy on texts that it has not read and write the weights."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of clinc150_train.tsv.gz and the others")
    parser.add_argument("--minilm", type=Path, required=True, help="folder of model.safetensors and tokenizer.json")
    parser.add_argument("--out", type=Path, required=True, help="the .safetensors file to write")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    torch.set_num_threads(given.threads)
    learned, rest = (read(given.data, given.minilm / "tokenizer.json", parts) for parts in (("train",), ("val",)))
    torch.manual_seed(given.seed)
    network = intents()
    begin_with(network, given.minilm / "model.safetensors")
    with progress(f"training on {len(learned)} texts") as tell:
        train(network, learned, epochs=given.epochs, seed=given.seed, tell=tell)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in network.state_dict().items()}, given.out)
    console.print(f"accuracy on texts it has not read: {accuracy(network, rest):.2%} of {len(rest)}")


def train(network: Intents, learned: Samples, *, epochs: int, seed: int, tell: Callable[[str, float], None]) -> None:
    """Train on batches of about the same length, so that little is padding, in an order that is drawn."""
    texts, labels = _texts(learned)
    generator = torch.Generator().manual_seed(seed)
    last = {id(weight) for weight in network.answer.parameters()}
    groups = [
        {"params": list(network.answer.parameters()), "lr": LAST_RATE, "most": LAST_RATE},
        {"params": [w for w in network.parameters() if id(w) not in last], "lr": RATE, "most": RATE},
    ]
    optimizer = torch.optim.AdamW(groups, fused=True)
    each = len(texts) // BATCH
    network.train()
    for epoch in range(epochs):
        lengths = torch.tensor([float(len(text)) for text in texts])
        order = (lengths + 2.0 * torch.rand(len(texts), generator=generator)).argsort()
        batches = list(order[: each * BATCH].view(each, BATCH))
        for number, place in enumerate(torch.randperm(each, generator=generator).tolist()):
            done = (epoch * each + number + 1) / (epochs * each)
            for group in optimizer.param_groups:
                group["lr"] = group["most"] * min(1.0, done / WARM_UP, (1.0 - done) / (1.0 - WARM_UP))
            rows = batches[place]
            loss = functional.cross_entropy(network(**together([texts[row] for row in rows])), labels[rows])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            tell(f"epoch {epoch + 1} of {epochs}", done)
    network.eval()


@torch.inference_mode()
def accuracy(network: Intents, samples: Samples) -> float:
    """Return the share of texts whose intent the network names."""
    texts, labels = _texts(samples)
    order = torch.tensor([len(text) for text in texts]).argsort()
    right = 0
    for rows in torch.split(order, BATCH):
        right += int((network(**together([texts[row] for row in rows])).argmax(1) == labels[rows]).sum())
    return right / len(texts)


def _texts(samples: Samples) -> tuple[list[Tensor], Tensor]:
    assert isinstance(samples.inputs, dict)
    assert samples.labels is not None
    return list(samples.inputs["input_ids"]), samples.labels


if __name__ == "__main__":
    main(sys.argv[1:])
