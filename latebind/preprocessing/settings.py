"""`preprocessing.json`: how the raw inputs of a model are read, as a build found it in the model's folder."""

from enum import StrEnum

import msgspec

from latebind.preprocessing.preprocessor import Kept
from latebind.repository.directory import ModelDirectory

PREPROCESSING = "preprocessing.json"
TOKENIZER = "tokenizer.json"
FORMAT = 1


def reads_as(directory: ModelDirectory) -> str:
    """Return a key that is equal for directories whose models read raw inputs alike; "" if they read none."""
    if PREPROCESSING not in directory.files:
        return ""
    return " ".join([directory.files[name].sha256 for name in (PREPROCESSING, TOKENIZER) if name in directory.files])


class Role(StrEnum):
    """What an input of a model that reads texts is."""

    IDS = "ids"
    MASK = "mask"  # 1 for each token
    TYPES = "types"  # which of two texts a token is of
    POSITIONS = "positions"  # of each token, from 0


class TextSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="text"):
    """Texts by `tokenizer.json`. `inputs` are the model's by their role, `(L,) int64` each; `longest` counts tokens,
    special ones too.

    `prompts` are what may be put before a text, by name; `prompt` is the default one. If a text is cut, its `kept` end
    stays.
    """

    inputs: dict[Role, str]
    longest: int
    pair: bool = False  # whether rows may have two texts
    prompts: dict[str, str] = msgspec.field(default_factory=dict)
    prompt: str = ""
    kept: Kept = "start"


class PictureSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="picture"):
    """Pictures for the model's `input` `(3, H, W) float32`, with the steps in this order; None: the step is left out.

    A picture is resized so that its shorter side has `shortest` pixels (its longer one at most `longest`; both sides a
    multiple of `multiple`, downwards), or to `size` (height, width), with the filter `resample` (Pillow's number); its
    middle is cropped to `crop` (height, width), padded with zeros if it has fewer. Values are multiplied by `scale`;
    then `mean` is subtracted from each channel, which is divided by `deviation`.
    """

    input: str
    size: tuple[int, int] | None = None
    shortest: int | None = None
    longest: int | None = None
    resample: int = 2
    crop: tuple[int, int] | None = None
    scale: float = 1 / 255
    mean: tuple[float, ...] | None = None
    deviation: tuple[float, ...] | None = None
    mask: str = ""  # an input (H, W) int64 that is 1 everywhere, if the model takes one
    multiple: int = 1


class SoundSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="sound"):
    """Sounds for the model's `input` `(T,) float32`: one channel at `rate` samples a second, -1 to 1.

    If `normalized`, each has a mean of 0 and a deviation of 1.
    """

    input: str
    rate: int
    longest: int  # samples
    normalized: bool = False
    mask: str = ""  # an input (T,) int64 that is 1 everywhere, if the model takes one


class Stored(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file: its format, and how the inputs are read."""

    format: int
    reads: TextSettings | PictureSettings | SoundSettings


def inputs_of(reads: PictureSettings | SoundSettings) -> list[str]:
    """Return the names of the model's inputs that are made: the values and, if it takes one, their mask."""
    return [reads.input, reads.mask] if reads.mask else [reads.input]
