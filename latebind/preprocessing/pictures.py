"""Converts pictures to a model's values with Pillow, like transformers' image processors with Pillow."""

from collections.abc import Mapping, Sequence
from io import BytesIO
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np

from latebind.domain.errors import ConfigError, InvalidRequest
from latebind.domain.model import Media, RawInput
from latebind.preprocessing.preprocessor import USUAL, Array, Given, Prepared, Raw, Reading, columns
from latebind.preprocessing.settings import PictureSettings, inputs_of

if TYPE_CHECKING:
    from PIL.Image import Image

IMAGE = "image"
FORMATS = ("JPEG", "PNG", "WEBP")
MOST_BYTES = 1 << 25  # of a file
MOST_PIXELS = 50_000_000  # of a picture; 4 bytes each while it is read
MOST_MADE = 4_000_000  # pixels that a picture may become
MOST_SCANS = 64  # of a JPEG, each of which covers the whole picture


class PicturePreprocessor:
    """Converts JPEG, PNG and WebP to values `(3, H, W) float32`, and a mask if the model takes one.

    A picture is rotated by its EXIF data; colors are converted to RGB, and transparency is dropped, as transformers'
    pipelines do. Raises `ConfigError` if Pillow is not installed.
    """

    def __init__(self, settings: PictureSettings) -> None:
        try:
            from PIL import Image, ImageOps  # noqa: PLC0415  # it is optional
        except ImportError as error:
            raise ConfigError("reading pictures takes Pillow: pip install 'latebind[hf]'") from error
        self._settings, self._library, self._upright = settings, Image, ImageOps.exif_transpose
        self._values_of = _table(settings)

    @property
    def raw(self) -> tuple[RawInput, ...]:
        """`image`."""
        return (RawInput(IMAGE, Media.PICTURE),)

    @property
    def makes(self) -> frozenset[str]:
        """The names of the model's inputs."""
        return frozenset(inputs_of(self._settings))

    def prepare(self, given: Given, how: Reading = USUAL) -> list[Prepared]:
        """Return the values of each picture. Raises `InvalidRequest`, which names the element."""
        if how.prompt is not None or how.kept is not None:
            raise InvalidRequest("pictures take no prompt, nor a direction in which they are cut")
        found = columns(self.raw, given)[IMAGE]
        return [self._row(raw, f"element {place} of {IMAGE!r}") for place, raw in enumerate(found)]

    def _row(self, raw: Raw, which: str) -> Prepared:
        values = self._values(self._read(raw, which), which)
        tensors = {self._settings.input: values}
        if self._settings.mask:
            tensors[self._settings.mask] = np.ones(values.shape[1:], np.int64)
        return Prepared(tensors)

    def _read(self, raw: Raw, which: str) -> "Image":
        """Return the picture in a file, upright and in RGB, after checking its declared size."""
        if isinstance(raw, str):
            raise InvalidRequest(f"{which} is a text: send the bytes of a JPEG, PNG or WebP file")
        if len(raw) > MOST_BYTES:
            raise InvalidRequest(f"{which} has {len(raw)} bytes, more than {MOST_BYTES}: send a smaller picture")
        if _webp_pixels(raw) > MOST_PIXELS:  # Pillow allocates them when it opens the file
            raise InvalidRequest(f"{which} has more than {MOST_PIXELS} pixels: send a smaller one")
        try:
            image = self._library.open(BytesIO(raw), formats=FORMATS)
        except self._library.DecompressionBombError as error:
            raise InvalidRequest(f"{which} has more than {MOST_PIXELS} pixels: send a smaller one") from error
        except MemoryError:  # of the server, not a fault of the file
            raise
        except Exception as error:  # decoders raise anything for a broken file
            raise InvalidRequest(f"{which} is not a readable JPEG, PNG or WebP file") from error
        width, height = image.size
        if width * height > MOST_PIXELS:
            raise InvalidRequest(f"{which} has {width} x {height} pixels, more than {MOST_PIXELS}: send a smaller one")
        if image.format != "MPO" and getattr(image, "is_animated", False):  # MPO: a photo and further views of it
            raise InvalidRequest(f"{which} is animated: send one of its pictures")
        if image.format in {"JPEG", "MPO"} and raw.count(b"\xff\xda") > MOST_SCANS:
            raise InvalidRequest(f"{which} is a JPEG of more than {MOST_SCANS} scans: save it in the usual way")
        self._made_size(height, width, which)
        try:
            return self._upright(image).convert("RGB")
        except MemoryError:
            raise
        except Exception as error:
            raise InvalidRequest(f"{which} is broken or cut off: it cannot be read to its end") from error

    def _made_size(self, height: int, width: int, which: str) -> tuple[int, int]:
        """Return height and width that a picture is resized to."""
        settings = self._settings
        made = (height, width) if settings.shortest is None else _size_by_sides(height, width, settings)
        made = settings.size or made
        if min(made) < 1 or made[0] * made[1] > MOST_MADE:
            raise InvalidRequest(
                f"{which} has {width} x {height} pixels and would become {made[1]} x {made[0]} for this model: send a "
                "picture of a more usual shape"
            )
        return made

    def _values(self, image: "Image", which: str) -> Array:
        """Resize, cut, scale and normalize."""
        settings = self._settings
        height, width = self._made_size(image.height, image.width, which)
        if settings.size is not None or settings.shortest is not None:
            image = image.resize((width, height), resample=settings.resample)
        pixels = np.asarray(image)
        if settings.crop is not None:
            pixels = _cropped(pixels, *settings.crop)
        values = np.empty((3, *pixels.shape[:2]), np.float32)
        for channel, values_of in enumerate(self._values_of):
            np.take(values_of, pixels[..., channel], out=values[channel], mode="clip")  # "raise" would copy
        return values


def _webp_pixels(raw: bytes) -> int:
    """Return the number of pixels in the header of a WebP file; 0 for other files."""
    if raw[:4] != b"RIFF" or raw[8:12] != b"WEBP":
        return 0
    if raw[12:16] == b"VP8X":
        width, height = (1 + int.from_bytes(raw[place : place + 3], "little") for place in (24, 27))
    elif raw[12:16] == b"VP8L":
        both = int.from_bytes(raw[21:25], "little")
        width, height = 1 + (both & 0x3FFF), 1 + (both >> 14 & 0x3FFF)
    else:
        width, height = (int.from_bytes(raw[place : place + 2], "little") & 0x3FFF for place in (26, 28))
    return width * height


def _table(settings: PictureSettings) -> Array:
    """Return the result for each value that a channel can have `(3, 256) float32`, rounded as in the reference."""
    values = np.tile((np.arange(256).astype(np.float64) * settings.scale).astype(np.float32), (3, 1))
    if settings.mean is not None and settings.deviation is not None:
        mean, deviation = (np.array(of, np.float32)[:, None] for of in (settings.mean, settings.deviation))
        values = (values - mean) / deviation
    return values


def _size_by_sides(height: int, width: int, settings: PictureSettings) -> tuple[int, int]:
    """Return height and width by the shorter side, as in the reference: the longer one is truncated, not rounded."""
    assert settings.shortest is not None
    short, long = min(height, width), max(height, width)
    shortest: int = settings.shortest
    exact = float(shortest)
    if settings.longest is not None and long / short * shortest > settings.longest:
        exact = settings.longest * short / long
        shortest = round(exact)
    if short == shortest:
        made = (height, width)
    elif width < height:
        made = (int(exact * height / width), shortest)
    else:
        made = (shortest, int(exact * width / height))
    return made[0] - made[0] % settings.multiple, made[1] - made[1] % settings.multiple


def _cropped(pixels: Array, height: int, width: int) -> Array:
    """Return the middle of pixels `(H, W, 3)`, padded with zeros if there are fewer."""
    given_height, given_width = pixels.shape[:2]
    whole = np.zeros((max(height, given_height), max(width, given_width), 3), pixels.dtype)
    above, left = ceil((whole.shape[0] - given_height) / 2), ceil((whole.shape[1] - given_width) / 2)
    whole[above : above + given_height, left : left + given_width] = pixels
    top, begin = (given_height - height) // 2 + above, (given_width - width) // 2 + left
    return whole[max(top, 0) : top + height, max(begin, 0) : begin + width]


_HALF, _IMAGENET = ((0.5, 0.5, 0.5),) * 2, ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))


def _defaults(size: Any, *, resample: int, colors: tuple[tuple[float, ...], ...], **more: Any) -> dict[str, Any]:
    return {"size": size, "resample": resample, "image_mean": colors[0], "image_std": colors[1], **more}


_SIDES = {"shortest_edge": 800, "longest_edge": 1333}
_CLIP_LIKE = _defaults({"shortest_edge": 224}, resample=3, colors=_CLIP, square=False, do_center_crop=True)
_DETR_LIKE = _defaults(_SIDES, resample=2, colors=_IMAGENET, square=False, masked=True)
# The defaults of each processor. Only processors whose behavior is fully known are listed.
_PROCESSORS: Mapping[str, Mapping[str, Any]] = {
    "ViT": _defaults(224, resample=2, colors=_HALF),
    "DeiT": _defaults(256, resample=3, colors=_HALF, do_center_crop=True),
    "ConvNext": _defaults({"shortest_edge": 384}, resample=3, colors=_HALF, square=False, crop_pct=224 / 256),
    "CLIP": _CLIP_LIKE,
    "Bit": _CLIP_LIKE,
    "Siglip": _defaults(224, resample=3, colors=_HALF),
    "Pvt": _defaults(224, resample=3, colors=_IMAGENET),
    "Beit": _defaults(224, resample=3, colors=_HALF),
    "Segformer": _defaults(512, resample=2, colors=_IMAGENET),
    "MobileNetV2": _defaults({"shortest_edge": 256}, resample=2, colors=_HALF, square=False, do_center_crop=True),
    "Detr": _DETR_LIKE,
    "ConditionalDetr": _DETR_LIKE,
    "Yolos": {**_DETR_LIKE, "multiple": 16},
    "RTDetr": _defaults(640, resample=2, colors=_IMAGENET, do_normalize=False, masked=True),
}
# These do not affect the values of a picture: labels, boxes, who made the file, and where it is computed.
_BESIDE = frozenset({
    "image_processor_type", "feature_extractor_type", "processor_class", "format", "do_convert_annotations",
    "do_convert_rgb", "do_reduce_labels", "reduce_labels", "do_pad", "pad_and_return_pixel_mask", "data_format",
    "input_data_format", "device", "disable_grouping", "return_tensors", "default_to_square", "model_input_names",
    "_valid_processor_keys", "image_seq_length", "return_segmentation_masks", "annotations", "masks_path",
})  # fmt: skip
_KNOWN = frozenset({
    "do_resize", "size", "max_size", "resample", "do_center_crop", "crop_size", "do_rescale", "rescale_factor",
    "do_normalize", "image_mean", "image_std", "crop_pct", "use_square_size",
})  # fmt: skip


def picture_settings(config: Mapping[str, Any], *, input: str = "pixel_values", mask: str = "") -> PictureSettings:
    """Return how pictures are read, from the contents of a `preprocessor_config.json`.

    Raises `ConfigError`, one sentence, for what cannot be done exactly as the processor does it.
    """
    name = str(config.get("image_processor_type") or config.get("feature_extractor_type") or "")
    short = (
        name.removesuffix("Fast").removesuffix("Pil").removesuffix("ImageProcessor").removesuffix("FeatureExtractor")
    )
    if short not in _PROCESSORS:
        raise ConfigError(f"pictures cannot be read as {name[:100] or 'a processor without a name'} does")
    defaults = _PROCESSORS[short]
    for key, value in config.items():
        if key not in _BESIDE | _KNOWN and value not in (None, False):
            raise ConfigError(f"pictures cannot be read as {name} does with {str(key)[:60]!r}")
    if config.get("pad_size"):
        raise ConfigError(f"pictures cannot be padded to one size as {name} does with 'pad_size'")
    given = {**defaults, **{key: value for key, value in config.items() if key in _KNOWN and value is not None}}
    try:
        return _settings_of(short, given, input, mask)
    except (TypeError, ValueError, KeyError, AttributeError, ArithmeticError) as error:
        raise ConfigError(f"the file of {name} has an invalid setting ({error})") from error


def _settings_of(short: str, config: Mapping[str, Any], name: str, mask: str) -> PictureSettings:
    size, shortest, longest = _sizes(config["size"], config, square=config.get("square", True))
    crop = None
    if config.get("do_center_crop"):
        crop, side, _ = _sizes(config.get("crop_size", 224), {}, square=True)
        if side is not None or short == "ConvNext":
            raise ValueError("its crop_size needs height and width")
    if not config.get("do_resize", True):
        size = shortest = longest = None
    elif short == "ConvNext":
        if shortest is None:
            raise ValueError("its size needs a shortest_edge")
        if shortest < 384:  # it resizes to more and crops
            crop, shortest = (shortest, shortest), int(shortest / float(config["crop_pct"]))
        else:
            size, shortest = (shortest, shortest), None
    normalized = config.get("do_normalize", True)
    return PictureSettings(
        name,
        size,
        shortest,
        longest,
        int(config["resample"]),
        crop,
        float(config.get("rescale_factor", 1 / 255)) if config.get("do_rescale", True) else 1.0,
        _colors(config["image_mean"]) if normalized else None,
        _colors(config["image_std"]) if normalized else None,
        mask if config.get("masked") else "",
        config.get("multiple", 1) if shortest is not None else 1,
    )


def _sizes(
    size: Any, config: Mapping[str, Any], *, square: bool
) -> tuple[tuple[int, int] | None, int | None, int | None]:
    """Return size, shortest and longest side from a size in any of the forms that files have used over the years."""
    if config.get("use_square_size") and isinstance(size, Mapping) and "shortest_edge" in size:
        return (int(size["shortest_edge"]),) * 2, None, None
    if isinstance(size, Mapping):
        if "height" in size and "width" in size:
            return (int(size["height"]), int(size["width"])), None, None
        longest = size.get("longest_edge")
        return None, int(size["shortest_edge"]), None if longest is None else int(longest)
    if isinstance(size, Sequence) and not isinstance(size, str):
        height, width = size
        return (int(height), int(width)), None, None
    if square:
        return (int(size), int(size)), None, None
    return None, int(size), int(config.get("max_size", 1333)) if config.get("masked") else None


def _colors(values: Any) -> tuple[float, ...]:
    found = (float(values),) * 3 if isinstance(values, int | float) else tuple(map(float, values))
    if len(found) != 3:
        raise ValueError("it does not have three channels")
    return found
