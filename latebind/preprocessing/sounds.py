"""Converts sounds in WAV and FLAC files to a model's samples, like `Wav2Vec2FeatureExtractor`."""

from collections.abc import Callable, Mapping
from io import BytesIO
from math import gcd
from typing import Any

import numpy as np

from latebind.domain.errors import ConfigError, InvalidRequest
from latebind.domain.model import Media, RawInput
from latebind.preprocessing.preprocessor import USUAL, Array, Given, Prepared, Raw, Reading, columns
from latebind.preprocessing.settings import SoundSettings, inputs_of

SOUND = "sound"
MOST_BYTES = 1 << 25  # of a file
MOST_CHANNELS = 16
MOST_VALUES = 1 << 25  # samples of all channels together
MOST_SIZE = 1e6  # of a sample, which should be from -1 to 1; the square of much larger ones overflows
LEAST_RATE, MOST_RATE = 4_000, 192_000  # samples a second
SPARE_SECONDS = 600  # of a file beyond what the model takes, which are read before they are cut off

_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE


class _Unreadable(ValueError):
    """A file that cannot be read; the message says why."""


class SoundPreprocessor:
    """Converts WAV and FLAC to samples `(T,) float32`, and a mask if the model takes one.

    Several channels are averaged; another rate is converted to the model's with `scipy.signal.resample_poly`.
    """

    def __init__(self, settings: SoundSettings) -> None:
        from scipy.signal import resample_poly  # noqa: PLC0415  # it is slow to import, and texts do not need it

        self._settings, self._resample = settings, resample_poly

    @property
    def raw(self) -> tuple[RawInput, ...]:
        """`sound`."""
        return (RawInput(SOUND, Media.SOUND),)

    @property
    def makes(self) -> frozenset[str]:
        """The names of the model's inputs."""
        return frozenset(inputs_of(self._settings))

    def prepare(self, given: Given, how: Reading = USUAL) -> list[Prepared]:
        """Return the samples of each sound, cut at the model's longest if `how` allows it.

        Raises `InvalidRequest`, which names the element; `ConfigError` for FLAC if soundfile is not installed.
        """
        if how.prompt is not None or how.kept is not None:
            raise InvalidRequest("sounds take no prompt, nor a direction in which they are cut")
        found = columns(self.raw, given)[SOUND]
        return [self._row(raw, f"element {place} of {SOUND!r}", how.truncate) for place, raw in enumerate(found)]

    def _row(self, raw: Raw, which: str, truncate: bool) -> Prepared:
        settings = self._settings
        if isinstance(raw, str):
            raise InvalidRequest(f"{which} is a text: send the bytes of a WAV or FLAC file")
        if len(raw) > MOST_BYTES:
            raise InvalidRequest(f"{which} has {len(raw)} bytes, more than {MOST_BYTES}: send a shorter sound")
        most = settings.longest / settings.rate + SPARE_SECONDS
        try:
            samples, rate = read_flac(raw, most) if raw.startswith(b"fLaC") else read_wav(raw, most)
        except _Unreadable as error:
            raise InvalidRequest(f"{which} {error}: send a WAV or FLAC file") from error
        samples = self._resampled(samples, rate)
        cut = len(samples) - settings.longest
        if cut > 0:
            if not truncate:
                raise InvalidRequest(
                    f"{which} lasts {len(samples) / settings.rate:.1f} s, and the model takes "
                    f"{settings.longest / settings.rate:.1f} s: shorten it, or ask for it to be truncated"
                )
            samples = samples[: settings.longest]
        if settings.normalized:
            samples = (samples - samples.mean()) / np.sqrt(samples.var() + 1e-7)
        tensors = {settings.input: np.ascontiguousarray(samples, np.float32)}
        if settings.mask:
            tensors[settings.mask] = np.ones(len(samples), np.int64)
        return Prepared(tensors, len(samples), max(cut, 0))

    def _resampled(self, samples: Array, rate: int) -> Array:
        if rate == self._settings.rate:
            return samples
        common = gcd(rate, self._settings.rate)
        made: Array = self._resample(samples, self._settings.rate // common, rate // common)
        return made.astype(np.float32)


def read_wav(data: bytes, most_seconds: float) -> tuple[Array, int]:
    """Return the samples `(T,) float32` of a WAV file, the mean of its channels, and the sampling rate."""
    if data[:4] != b"RIFF" or data[8:12] != b"WAVE":
        raise _Unreadable("is neither WAV nor FLAC")
    chunks, place = dict[bytes, bytes](), 12
    while place + 8 <= len(data) and b"data" not in chunks:
        size = int.from_bytes(data[place + 4 : place + 8], "little")
        body = data[place + 8 : place + 8 + size]
        if len(body) < size:
            raise _Unreadable("is cut off, or does not know its length")
        chunks.setdefault(data[place : place + 4], body)
        place += 8 + size + size % 2
    header, sound = chunks.get(b"fmt ", b""), chunks.get(b"data")
    if len(header) < 16 or sound is None:
        raise _Unreadable("is a WAV file without a sound")
    kind, channels = int.from_bytes(header[:2], "little"), int.from_bytes(header[2:4], "little")
    rate, bits = int.from_bytes(header[4:8], "little"), int.from_bytes(header[14:16], "little")
    if kind == _EXTENSIBLE and len(header) >= 26:
        kind = int.from_bytes(header[24:26], "little")
    _check(channels, rate)
    frame = channels * bits // 8
    if (kind, bits) not in _READS or not frame:
        raise _Unreadable(f"is a WAV file of the kind {kind} with {bits} bits, not PCM or float")
    frames = len(sound) // frame
    _check_length(frames, channels, rate, most_seconds)
    values = _READS[kind, bits](sound[: frames * frame])
    return _mixed(values.reshape(frames, channels)), rate


def _whole_24(sound: bytes) -> Array:
    """Return samples of three bytes, least significant first, as the upper three of four-byte whole numbers."""
    wide = np.zeros((len(sound) // 3, 4), np.uint8)
    wide[:, 1:] = np.frombuffer(sound, np.uint8).reshape(-1, 3)
    return wide.view("<i4")[:, 0] / np.float32(1 << 31)


_READS: Mapping[tuple[int, int], Callable[[bytes], Array]] = {
    (_PCM, 8): lambda sound: (np.frombuffer(sound, np.uint8).astype(np.float32) - 128) / 128,
    (_PCM, 16): lambda sound: np.frombuffer(sound, "<i2").astype(np.float32) / (1 << 15),
    (_PCM, 24): _whole_24,
    (_PCM, 32): lambda sound: np.frombuffer(sound, "<i4") / np.float32(1 << 31),
    (_FLOAT, 32): lambda sound: np.frombuffer(sound, "<f4"),
    (_FLOAT, 64): lambda sound: np.frombuffer(sound, "<f8"),
}


def read_flac(data: bytes, most_seconds: float) -> tuple[Array, int]:
    """Return the samples `(T,) float32` of a FLAC file, the mean of its channels, and the sampling rate."""
    try:
        import soundfile  # noqa: PLC0415  # it is optional
    except (ImportError, OSError) as error:  # OSError: its own library is missing
        raise ConfigError("reading FLAC takes the soundfile library: pip install 'latebind[hf]'") from error
    try:
        with soundfile.SoundFile(BytesIO(data)) as file:
            if file.format != "FLAC":
                raise _Unreadable("is neither WAV nor FLAC")
            _check(file.channels, file.samplerate)
            _check_length(file.frames, file.channels, file.samplerate, most_seconds)
            values: Array = file.read(file.frames, dtype="float32", always_2d=True)
            if len(values) != file.frames:
                raise _Unreadable("is cut off")
            return _mixed(values), file.samplerate
    except (soundfile.SoundFileError, ValueError, TypeError) as error:
        raise error if isinstance(error, _Unreadable) else _Unreadable("is a broken FLAC file") from error


def _check(channels: int, rate: int) -> None:
    if not 1 <= channels <= MOST_CHANNELS:
        raise _Unreadable(f"has {channels} channels, not 1 to {MOST_CHANNELS}")
    if not LEAST_RATE <= rate <= MOST_RATE:
        raise _Unreadable(f"has {rate} samples a second, not {LEAST_RATE} to {MOST_RATE}")


def _check_length(frames: int, channels: int, rate: int, most_seconds: float) -> None:
    if frames < 1:
        raise _Unreadable("has no samples")
    if frames > most_seconds * rate:
        raise _Unreadable(f"lasts {frames / rate:.0f} s, more than {most_seconds:.0f}")
    if frames * channels > MOST_VALUES:
        raise _Unreadable(f"has {frames * channels} samples, more than {MOST_VALUES}")


def _mixed(values: Array) -> Array:
    """Return the mean of the channels `(T, channels)`; raises if a sample is not a number, or implausibly large."""
    with np.errstate(over="ignore", invalid="ignore"):
        mixed: Array = (values[:, 0] if values.shape[1] == 1 else values.mean(axis=1)).astype(np.float32)
    if not (np.abs(mixed) <= MOST_SIZE).all():  # NaN fails this too
        raise _Unreadable(f"has samples that are not numbers from -{MOST_SIZE:g} to {MOST_SIZE:g}")
    return mixed


_BESIDE = frozenset({
    "feature_extractor_type", "processor_class", "return_attention_mask", "padding_side", "feature_size",
    "padding_value", "model_input_names",
})  # fmt: skip


def sound_settings(
    config: Mapping[str, Any],
    *,
    longest: int,
    input: str = "input_values",
    mask: str = "",
) -> SoundSettings:
    """Return how sounds are read, from the contents of a `preprocessor_config.json`; `longest` counts samples.

    Raises `ConfigError`, one sentence, for what cannot be done exactly as the extractor does it.
    """
    name = str(config.get("feature_extractor_type") or "an extractor without a name")
    if name != "Wav2Vec2FeatureExtractor":
        raise ConfigError(f"sounds cannot be read as {name[:100]} does")
    for key, value in config.items():
        if key not in _BESIDE | {"sampling_rate", "do_normalize"} and value not in (None, False):
            raise ConfigError(f"sounds cannot be read as {name} does with {str(key)[:60]!r}")
    if config.get("feature_size", 1) != 1:
        raise ConfigError(f"sounds of several channels cannot be read as {name} does")
    rate = config.get("sampling_rate", 16_000)
    if not isinstance(rate, int) or not LEAST_RATE <= rate <= MOST_RATE:
        raise ConfigError(f"the file of {name} has a sampling_rate that is not from {LEAST_RATE} to {MOST_RATE}")
    return SoundSettings(input, rate, longest, bool(config.get("do_normalize", True)), mask)
