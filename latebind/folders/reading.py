"""How a folder's own processor reads texts, pictures and sounds, as settings for serving without its code.

The processor of transformers is the reference: on trial inputs the settings must give the same results.
"""

import io
import wave
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from latebind.domain.errors import ConfigError
from latebind.domain.model import Media, RawInput, Task
from latebind.domain.sizes import Dim, Size
from latebind.folders.files import CONFIG, PAIR, TEXT, Taken
from latebind.folders.networks import Network, quietly
from latebind.folders.tasks import MASK
from latebind.preprocessing.pictures import picture_settings
from latebind.preprocessing.preprocessor import Given, Raw
from latebind.preprocessing.settings import (
    TOKENIZER,
    PictureSettings,
    Role,
    SoundSettings,
    TextSettings,
)
from latebind.preprocessing.sounds import sound_settings
from latebind.preprocessing.tokenizer import check_tokenizer

Foreign = Any  # an object of transformers or tokenizers
Rows = list[dict[str, Tensor]]  # each `(1, ...)`, by input

IDS, TYPES, PIXELS, SOUND = "input_ids", "token_type_ids", "pixel_values", "input_values"
LENGTH, HEIGHT, WIDTH, SAMPLES = "L", "H", "W", "T"  # the dimensions that vary
USUAL_LENGTH = 512  # if neither network nor tokenizer limits the length of a text
LONGEST_TEXT = 2_048  # tokens unless more are asked for: a build tries the longest, whose attention is a square of it
SECONDS = 10  # of a sound at most, unless more samples are asked for
LEAST_SIDE, MOST_SIDE = 33, 1_333  # of pictures of any size; the least leaves 2 places after strides of 32
SHORTEST = (1, 2, 3, 4, 6, 8, 16, 32, 64)  # lengths from which a network may take texts
CODED = ("marian",)  # families whose own tokenizer is code in transformers: their tokenizer.json is used unchanged
LIMITS = (  # of sentence-transformers, named after the network
    "sentence_bert_config.json", "sentence_roberta_config.json", "sentence_distilbert_config.json",
    "sentence_camembert_config.json", "sentence_albert_config.json", "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
)  # fmt: skip

TEXTS = (
    "The capital of France is Paris.",
    "how many calories are in two slices of bread?",
    "A man is eating food, while a woman plays the violin -- loudly!",
    "UPPER case, lower case, and CamelCaseWords; e-mail@example.org, https://example.org/a?b=c#d",
    "Don't, can't, won't: it's 3.14159 or 1,000,000 (50% of $2e6).",
    "Die Größe der Straße überrascht niemanden in Köln.",
    "L'été dernier, nous étions à l'hôtel; ça coûte 20 €.",
    "Cafe\u0301 and caf\u00e9 are written in two ways.",
    "\u4eca\u5929\u5929\u6c14\u5f88\u597d\uff0c\u6211\u4eec\u53bb\u516c\u56ed\u5427\u3002",
    "\u0421\u044a\u0435\u0448\u044c \u0435\u0449\u0451 \u044d\u0442\u0438\u0445 \u0431\u0443\u043b\u043e\u043a.",
    "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645",
    "\U0001f600 emoji \U0001f468\u200d\U0001f469\u200d\U0001f467 and \u2192 arrows \u2260 words",
    "  spaces   before,\tbetween\nand after  ",
    "a",
    "?",
    "one two three four five six seven eight nine ten eleven twelve " * 60,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Reading:
    """How the inputs of a network are read: settings for serving, and the folder's own processor as `reference`.

    `inputs` are rows of two, to export the network with; `dims` and `sizes` say what varies in them. `trials` are raw
    inputs to compare on.
    """

    settings: TextSettings | PictureSettings | SoundSettings
    raw: tuple[RawInput, ...]
    inputs: dict[str, Tensor]
    dims: tuple[Dim, ...]
    sizes: Mapping[str, Sequence[Size]]
    reference: Callable[[Given], Rows]
    trials: Given
    files: Mapping[str, bytes] = field(default_factory=dict)


def reading_of(network: Network, taken: Taken, wanted: Mapping[str, Dim]) -> Reading:
    """Return how a network's inputs are read; `wanted` dimensions may narrow or extend the default ranges.

    Raises `ConfigError` for a folder whose inputs are read in a way that is not served.
    """
    media = network.kind.media
    main = {Media.TEXT: IDS, Media.PICTURE: PIXELS, Media.SOUND: SOUND}[media]
    if main not in network.takes:
        takes = ", ".join(network.takes[:3])
        raise ConfigError(f"{taken.shown} reads {takes}, not {main}: {network.kind.seen} are served")
    beside = [name for name in (PIXELS, SOUND, "decoder_input_ids") if name in network.takes and name != main]
    if network.task is Task.EMBED and beside:
        raise ConfigError(
            f"{taken.shown} reads {beside[0]} beside {main}: save the part that reads one of them by itself"
        )
    found = {Media.TEXT: _texts, Media.PICTURE: _pictures, Media.SOUND: _sounds}[media](network, taken, wanted)
    for name in wanted:
        if name not in {dim.name for dim in found.dims}:
            varies = ", ".join(dim.name for dim in found.dims) or "nothing"
            raise ConfigError(f"--dim {name}: what varies in the inputs of {taken.shown} is {varies}")
    return found


def tokenizer_of(taken: Taken) -> tuple[Foreign, bytes]:
    """Return the folder's tokenizer and, as `tokenizer.json`, the same without truncation and padding.

    Raises `ConfigError` for one that is code.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerFast  # noqa: PLC0415  (an extra)

    coded = taken.own(CONFIG).get("model_type") in CODED
    if (taken.network / TOKENIZER).is_file():
        check_tokenizer((taken.network / TOKENIZER).read_bytes())
    elif coded:
        raise ConfigError(
            f"{taken.shown} has SentencePiece models and no {TOKENIZER}, and what reads them in transformers is code: "
            f"put a {TOKENIZER} beside them, such as scripts/extra/marian.py of transformers.js makes "
            "(generate_tokenizer_json), with which Xenova's opus-mt models at the hub were made"
        )
    auto = PreTrainedTokenizerFast if coded else AutoTokenizer
    with quietly(taken, "its tokenizer cannot be read"):
        tokenizer = auto.from_pretrained(taken.network, trust_remote_code=False, local_files_only=True)
    if not tokenizer.is_fast:
        raise ConfigError(f"{taken.shown} has a tokenizer that is code ({type(tokenizer).__name__}), not {TOKENIZER}")
    backend = tokenizer.backend_tokenizer
    if _limits(taken).get("do_lower_case"):
        _lower_case(backend)
    backend.no_truncation()
    backend.no_padding()
    return tokenizer, backend.to_str().encode()  # checked when it is opened


def _limits(taken: Taken) -> dict[str, Any]:
    return next((found for name in LIMITS if (found := taken.own(name))), {})


def _texts(network: Network, taken: Taken, wanted: Mapping[str, Dim]) -> Reading:
    """Texts, by the folder's tokenizer."""
    limits, (tokenizer, data) = _limits(taken), tokenizer_of(taken)
    pair = network.task in {Task.CLASSIFY, Task.RERANK}
    names = {Role.IDS: IDS, Role.MASK: MASK}
    if _uses_types(network, tokenizer, pair=pair):
        names[Role.TYPES] = TYPES
    dim = _length(network, tokenizer, limits, list(names.values()), wanted.get(LENGTH), taken)
    prompts, prompt = _prompts(taken)

    def reference(given: Given) -> Rows:
        before = prompts[prompt] if prompt else ""
        texts = [before + text for text in given[TEXT] if isinstance(text, str)]
        seconds: Sequence[Raw | None] = given[PAIR] if PAIR in given else [None] * len(texts)
        rows = []
        for text, second in zip(texts, seconds, strict=True):
            made = tokenizer(text, second, truncation=True, max_length=dim.most, return_tensors="pt")
            rows.append({name: made[name] for name in names.values()})
        return rows

    trials: dict[str, Sequence[Raw]] = {TEXT: TEXTS, PAIR: TEXTS[::-1]} if pair else {TEXT: TEXTS}
    typical = reference({name: texts[1:2] for name, texts in trials.items()})[0]
    return Reading(
        TextSettings(
            inputs=names,
            longest=dim.most,
            pair=pair,
            prompts=prompts,
            prompt=prompt,
            kept="end" if tokenizer.truncation_side == "left" else "start",
        ),
        (RawInput(TEXT, Media.TEXT), *([RawInput(PAIR, Media.TEXT, optional=True)] * pair)),
        {name: _fitted(row, dim).repeat(2, 1) for name, row in typical.items()},
        (dim,),
        dict.fromkeys(names.values(), (LENGTH,)),
        reference,
        trials,
        {TOKENIZER: data},
    )


def _fitted(row: Tensor, dim: Dim) -> Tensor:
    """Return tokens `(1, L)` cut or repeated to an allowed length."""
    length = dim.near(row.shape[1])
    return row[:, torch.arange(length) % row.shape[1]]


def _lower_case(backend: Foreign) -> None:
    """Make a tokenizer lower-case texts first, as sentence-transformers does if its settings say so."""
    from tokenizers.normalizers import Lowercase, Sequence  # noqa: PLC0415

    before = backend.normalizer
    backend.normalizer = Lowercase() if before is None else Sequence([Lowercase(), before])


def _uses_types(network: Network, tokenizer: Foreign, *, pair: bool) -> bool:
    """Return whether a network needs the type of each token, such as which of two texts it belongs to.

    Without that input all are 0, as they are for a single text with most tokenizers.
    """
    takes = TYPES in network.takes and TYPES in tokenizer.model_input_names
    if not takes or getattr(network.config, "type_vocab_size", 2) < 2:
        return False
    return pair or any(tokenizer(TEXTS[0])[TYPES])


def _length(
    network: Network,
    tokenizer: Foreign,
    limits: Mapping[str, Any],
    names: Sequence[str],
    wanted: Dim | None,
    taken: Taken,
) -> Dim:
    """Return how long texts may be, in tokens: `wanted`, else what the network and the saved limits allow."""
    config = network.config
    most = [LONGEST_TEXT]
    positions = getattr(config, "max_position_embeddings", None)
    if isinstance(positions, int) and positions > 0:
        most.append(positions - _offset(network.module))
    saved = (limits.get("max_seq_length"), tokenizer.model_max_length)
    most += [number for number in saved if isinstance(number, int) and number < 1 << 30]
    longest = wanted.most if wanted else min(most) if len(most) > 1 else USUAL_LENGTH
    filler = {name: int(name == MASK) for name in names}
    filler[IDS] = next(number for number in (tokenizer.unk_token_id, tokenizer.eos_token_id, 0) if number is not None)

    def fails(length: int) -> str:
        try:
            with torch.inference_mode():
                network.module(**{name: torch.full((1, length), number) for name, number in filler.items()})
        except Exception as error:  # raised by a network for a length that it does not take
            return f"{type(error).__name__}: {' '.join(str(error).split())}"
        return ""

    for length in (longest, wanted.least) if wanted else (longest,):
        if why := fails(max(length, 1)):
            raise ConfigError(f"{taken.shown} does not take a text of {length} tokens: {why[:200]}")
    if wanted:
        return wanted
    least = next((length for length in SHORTEST if length < longest and not fails(length)), longest)
    if least >= longest:
        raise ConfigError(f"{taken.shown} takes texts of {longest} tokens only, which is not served")
    return Dim(LENGTH, least, longest)


def _offset(module: nn.Module) -> int:
    """Return how many entries of a table of positions no token uses, as in RoBERTa: those up to the padding's."""
    for name, part in module.named_modules():
        if name.rpartition(".")[2] == "position_embeddings" and isinstance(part, nn.Embedding):
            return 0 if part.padding_idx is None else part.padding_idx + 1
    return 0


def _prompts(taken: Taken) -> tuple[dict[str, str], str]:
    """Return the prompts that may precede a text, by name, and the name of the default one."""
    config = taken.json("config_sentence_transformers.json")
    prompts, usual = config.get("prompts") or {}, config.get("default_prompt_name") or ""
    if not isinstance(prompts, dict) or any(not isinstance(text, str) for text in prompts.values()):
        raise ConfigError(f"{taken.shown} has prompts that are not texts (config_sentence_transformers.json)")
    if usual and usual not in prompts:
        raise ConfigError(f"{taken.shown} puts the prompt {usual!r:.80} before every text, and has none of that name")
    return prompts, usual


def _pictures(network: Network, taken: Taken, wanted: Mapping[str, Dim]) -> Reading:
    """Pictures, by the folder's processor."""
    from PIL import Image  # noqa: PLC0415
    from transformers import AutoImageProcessor  # noqa: PLC0415

    with quietly(taken, "its image processor cannot be read"):
        processor = AutoImageProcessor.from_pretrained(
            taken.network, backend="pil", trust_remote_code=False, local_files_only=True
        )
    settings = picture_settings(_saved(taken, "image_processor"), input=PIXELS)  # a mask would be 1 everywhere
    fixed = settings.crop or settings.size
    step = settings.multiple
    sides: tuple[Dim, ...] = ()
    if fixed is None:
        most = settings.longest or settings.shortest or MOST_SIDE
        usual = [Dim(name, -(-LEAST_SIDE // step) * step, most // step * step, step) for name in (HEIGHT, WIDTH)]
        sides = tuple(wanted.get(dim.name, dim) for dim in usual)
    trials = {"image": [_as_file(*each) for each in ((48, 64), (97, 51), (200, 200), (333, 120))]}

    def reference(given: Given) -> Rows:
        rows = []
        for data in given["image"]:
            assert isinstance(data, bytes)
            with Image.open(io.BytesIO(data)) as picture:
                made = processor(images=picture.convert("RGB"), return_tensors="pt")
            rows.append({PIXELS: made[PIXELS]})
        return rows

    typical = reference({"image": trials["image"][:1]})[0][PIXELS]
    return Reading(
        settings,
        (RawInput("image", Media.PICTURE),),
        {PIXELS: typical.repeat(2, 1, 1, 1)},
        sides,
        {PIXELS: (3, HEIGHT, WIDTH)} if sides else {},
        reference,
        trials,
    )


def _saved(taken: Taken, part: str) -> dict[str, Any]:
    """Return the settings of a processor in the folder: in a file of their own, or among those of others."""
    found = taken.json("preprocessor_config.json") or taken.json("processor_config.json").get(part)
    if not isinstance(found, dict) or not found:
        raise ConfigError(f"{taken.shown} has no preprocessor_config.json: save its processor beside the network")
    return found


def _as_file(height: int, width: int) -> bytes:
    """Return a picture of waves and noise as PNG."""
    from PIL import Image  # noqa: PLC0415

    rows, columns = np.mgrid[:height, :width]
    waves = [np.sin(rows / 9 + shift) + np.cos(columns / 7 - shift) for shift in (0.0, 1.0, 2.0)]
    noise = np.random.default_rng(height * width).normal(0, 20, (height, width, 3))
    values = np.clip(np.stack(waves, -1) * 60 + 128 + noise, 0, 255).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(values).save(file, "PNG")
    return file.getvalue()


def _sounds(network: Network, taken: Taken, wanted: Mapping[str, Dim]) -> Reading:
    """Sounds, by the folder's processor."""
    from transformers import AutoFeatureExtractor  # noqa: PLC0415

    with quietly(taken, "its sound processor cannot be read"):
        processor = AutoFeatureExtractor.from_pretrained(taken.network, trust_remote_code=False, local_files_only=True)
    if type(processor).__name__ != "Wav2Vec2FeatureExtractor":
        made = type(processor).__name__
        raise ConfigError(f"{taken.shown} reads spectrograms ({made}): served are networks that read samples")
    config, rate = network.config, int(processor.sampling_rate)
    least = 2  # outputs of the convolutions: an export would fix a single one
    for kernel, stride in zip(reversed(config.conv_kernel), reversed(config.conv_stride), strict=True):
        least = (least - 1) * stride + kernel
    dim = wanted.get(SAMPLES) or Dim(SAMPLES, least, SECONDS * rate)
    settings = sound_settings(_saved(taken, "feature_extractor"), longest=dim.most, input=SOUND)

    def reference(given: Given) -> Rows:
        rows = []
        for data in given["sound"]:
            assert isinstance(data, bytes)
            with wave.open(io.BytesIO(data)) as opened:
                samples = np.frombuffer(opened.readframes(opened.getnframes()), "<i2").astype(np.float32) / 32768
            made = processor(samples, sampling_rate=rate, return_tensors="pt")
            rows.append({SOUND: made[SOUND]})
        return rows

    trials = {"sound": [_as_wave(rate, count) for count in (dim.near(rate / 2), dim.near(rate / 3), dim.near(least))]}
    typical = reference({"sound": trials["sound"][:1]})[0]
    return Reading(
        settings,
        (RawInput("sound", Media.SOUND),),
        {SOUND: typical[SOUND].repeat(2, 1)},
        (dim,),
        {SOUND: (SAMPLES,)},
        reference,
        trials,
    )


def _as_wave(rate: int, count: int) -> bytes:
    """Return `count` samples of a rising tone and noise as WAV."""
    times = np.arange(count) / rate
    values = 0.4 * np.sin(2 * np.pi * (200 + 400 * times) * times) + np.random.default_rng(count).normal(0, 0.05, count)
    file = io.BytesIO()
    with wave.open(file, "wb") as opened:
        opened.setnchannels(1)
        opened.setsampwidth(2)
        opened.setframerate(rate)
        opened.writeframes((values * 32000).clip(-32768, 32767).astype("<i2").tobytes())
    return file.getvalue()
