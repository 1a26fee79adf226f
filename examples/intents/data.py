"""What people ask of a phone, and what for: CLINC150 (Larson et al. 2019) where it lies, else texts made here."""

import gzip
import json
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from random import Random

from latebind.domain.errors import ConfigError

OUT_OF_SCOPE = "oos"  # the label of texts that ask for none of the intents
TRAIN, VAL, TEST = "train", "val", "test"
PARTS = (TRAIN, VAL, TEST)

Text = tuple[str, str]  # a text, and its label
Texts = Mapping[str, Sequence[Text]]  # by part

# Texts in place of CLINC150: every way of asking for every thing, behind every opening.
OPENINGS = ("", "hey, ", "please, ", "one more thing: ")
MADE = {
    "alarm": (
        ("wake me {}", "set an alarm for {}", "i have to get up {}", "please ring {}", "can you wake me up {}"),
        ("at six", "tomorrow morning", "at half past seven", "in an hour", "on sunday", "before sunrise"),
    ),
    "balance": (
        ("how much is in my {}", "what is my {} at", "check the {} for me", "is there money in the {}", "show my {}"),
        ("savings account", "checking account", "bank account", "joint account", "holiday fund", "business account"),
    ),
    "directions": (
        ("how do i get to {}", "show me the way to {}", "what is the fastest road to {}", "navigate to {}", "find {}"),
        ("the station", "the airport", "grandma's house", "the nearest pharmacy", "the zoo", "city hall"),
    ),
    "music": (
        ("play {}", "i want to hear {}", "put on {}", "turn up {}", "could you play some {} for me"),
        ("jazz", "the new album", "a song by the beatles", "my running playlist", "quiet piano music", "the radio"),
    ),
    "recipe": (
        ("how do i cook {}", "give me a recipe for {}", "what is in {}", "how do you bake {}", "help me with {}"),
        ("lasagna", "a chocolate cake", "chicken soup", "pancakes", "potato salad", "fresh bread"),
    ),
    "translate": (
        ("how do you say {} in french", "translate {}", "what is {} in spanish", "{} in german", "say {} in thai"),
        ("good morning", "thank you", "where is the bathroom", "i am lost", "see you later", "how much is it"),
    ),
    "weather": (
        ("will it rain {}", "what is the weather {}", "do i need a coat {}", "how hot is it {}", "is it windy {}"),
        ("today", "in paris", "on saturday", "tonight", "at the beach", "this weekend"),
    ),
    OUT_OF_SCOPE: (
        ("who invented {}", "why are {} so popular", "tell me about {}", "are {} expensive", "how old are {}"),
        ("zippers", "volcanoes", "crossword puzzles", "the pyramids", "submarines", "violins"),
    ),
}  # fmt: skip


def read(data: Path | None = None) -> dict[str, list[Text]]:
    """Return texts and labels of three parts: `train`, `val` and `test`.

    `data` is `data_full.json` as CLINC150 publishes it, or a folder of `clinc150_train.tsv.gz` and so on with a label,
    a tab and a text in each line; without it texts are made. Raises `ConfigError` for what is neither.
    """
    if data is None:
        return _made()
    if data.is_dir():
        return {part: _lines(data / f"clinc150_{part}.tsv.gz") for part in PARTS}
    try:
        said = json.loads(data.read_bytes())
        return {
            part: [(str(text), str(label)) for name in (part, f"oos_{part}") for text, label in said.get(name, ())]
            for part in PARTS
        }
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise ConfigError(f"{data} is no data_full.json of CLINC150 ({error}): the README says what it holds") from None


def _lines(path: Path) -> list[Text]:
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            found = [line.rstrip("\n").partition("\t") for line in file]
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error}; the README says what it must hold") from error
    return [(text, label) for label, _, text in found]


def _made() -> dict[str, list[Text]]:
    """Return the texts of `MADE`: of each label half to learn from, and a quarter in each of the other parts."""
    found: dict[str, list[Text]] = {part: [] for part in PARTS}
    for label, (ways, things) in MADE.items():
        texts = [opening + way.format(thing) for opening, way, thing in product(OPENINGS, ways, things)]
        Random(label).shuffle(texts)
        half, quarter = len(texts) // 2, len(texts) // 4
        for part, some in zip(PARTS, (texts[:half], texts[half:-quarter], texts[-quarter:]), strict=True):
            found[part] += [(text, label) for text in some]
    return found
