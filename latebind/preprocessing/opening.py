"""Makes the preprocessor that a model directory's `preprocessing.json` describes, as data that may be hostile."""

import math
from collections.abc import Iterable

from latebind.domain.errors import RepositoryError
from latebind.domain.model import About, Media, Task
from latebind.preprocessing.pictures import IMAGE, PicturePreprocessor
from latebind.preprocessing.preprocessor import Preprocessor
from latebind.preprocessing.settings import (
    FORMAT,
    PREPROCESSING,
    TOKENIZER,
    PictureSettings,
    Role,
    SoundSettings,
    Stored,
    TextSettings,
    inputs_of,
)
from latebind.preprocessing.sounds import SOUND, SoundPreprocessor
from latebind.preprocessing.text import PAIR, TEXT, TextPreprocessor, most_bytes
from latebind.preprocessing.tokenizer import MOST_BYTES, check_tokenizer
from latebind.repository.directory import ModelDirectory

MOST_LENGTH = 1 << 20  # tokens
MOST_PROMPTS, MOST_PROMPT_BYTES = 256, 1 << 13
MOST_SIDE = 1 << 12  # pixels that a side of a resized picture may have
MOST_SECONDS = 3_600  # of a sound
RATES = (4_000, 192_000)  # samples a second


def open_preprocessor(directory: ModelDirectory, about: About) -> Preprocessor:
    """Return the preprocessor from the model's `raw` inputs to its own.

    A tokenizer is first tried in a process with limits, which takes about a second. Raises `RepositoryError` for
    hostile or corrupt files, `ConfigError` for a library that is not installed.
    """
    stored = directory.read_json(PREPROCESSING, Stored)
    if stored.format != FORMAT:
        raise _bad(f"has format {stored.format}, this version reads {FORMAT}")
    check_settings(stored.reads)
    return _opened(directory, stored.reads, about)


def _opened(
    directory: ModelDirectory, reads: TextSettings | PictureSettings | SoundSettings, about: About
) -> Preprocessor:
    """Open it, after checking that it reads the inputs in model.json."""
    match reads:
        case TextSettings():
            _check_raw(about, Media.TEXT, TEXT, *([PAIR] if reads.pair else []))
            data = directory.read(TOKENIZER, most=MOST_BYTES)
            file = check_tokenizer(data, longest_text=most_bytes(reads))
            return TextPreprocessor(
                reads, file, spans=about.task is Task.TAG, raw=about.raw, writes=about.task is Task.GENERATE
            )
        case PictureSettings():
            _check_raw(about, Media.PICTURE, IMAGE)
            return PicturePreprocessor(reads)
        case SoundSettings():
            _check_raw(about, Media.SOUND, SOUND)
            return SoundPreprocessor(reads)


def _check_raw(about: About, media: Media, *names: str) -> None:
    if [(one.name, one.media) for one in about.raw] != [(name, media) for name in names]:
        raise _bad(f"reads {', '.join(names)}, which does not match model.json")


def check_settings(reads: TextSettings | PictureSettings | SoundSettings) -> None:
    """Raise `RepositoryError` for settings that no preprocessor can have."""
    match reads:
        case TextSettings():
            _check_text(reads)
        case PictureSettings():
            _check_picture(reads)
        case SoundSettings():
            _within("rate", reads.rate, *RATES)
            _within("longest", reads.longest, 1, MOST_SECONDS * reads.rate)
            _check_inputs(inputs_of(reads))


def _check_text(reads: TextSettings) -> None:
    _within("longest", reads.longest, 2, MOST_LENGTH)
    _check_inputs(reads.inputs.values())
    if Role.IDS not in reads.inputs:
        raise _bad("names no input for the ids")
    _within("prompts", len(reads.prompts), 0, MOST_PROMPTS)
    for name, prompt in reads.prompts.items():
        _within(f"bytes of the prompt {name[:60]!r}", len(prompt.encode()), 0, MOST_PROMPT_BYTES)
    if reads.prompt and reads.prompt not in reads.prompts:
        raise _bad(f"names the prompt {reads.prompt[:60]!r}, which it does not have")


def _check_picture(reads: PictureSettings) -> None:
    _check_inputs(inputs_of(reads))
    if reads.size is not None and reads.shortest is not None:
        raise _bad("gives a size and a shortest side, of which only one can be")
    if reads.longest is not None and reads.shortest is None:
        raise _bad("gives a longest side without a shortest one")
    for name, sides in (("size", reads.size), ("crop", reads.crop)):
        for side in sides or ():
            _within(name, side, 1, MOST_SIDE)
    if reads.shortest is not None:
        _within("shortest", reads.shortest, 1, MOST_SIDE)
    if reads.longest is not None:
        _within("longest", reads.longest, reads.shortest or 1, MOST_SIDE)
    _within("multiple", reads.multiple, 1, 256)
    _within("resample", reads.resample, 0, 5)
    if not math.isfinite(reads.scale) or not 0 < reads.scale <= 1e6:
        raise _bad(f"scales by {reads.scale:g}")
    for name, values in (("mean", reads.mean), ("deviation", reads.deviation)):
        if values is not None and (len(values) != 3 or not all(map(math.isfinite, values))):
            raise _bad(f"has a {name} that is not of three channels")
    if (reads.mean is None) != (reads.deviation is None) or 0.0 in (reads.deviation or ()):
        raise _bad("has a mean without a deviation, or one of 0")


def _check_inputs(names: Iterable[str]) -> None:
    names = list(names)
    if not all(names) or len(set(names)) != len(names):
        raise _bad("names an input of the model twice, or by nothing")


def _within(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise _bad(f"has {name} {value}, which must be from {least} to {most}")


def _bad(what: str) -> RepositoryError:
    return RepositoryError(f"{PREPROCESSING} {what}: build the model again")
