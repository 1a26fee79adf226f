"""Samples equal what `Wav2Vec2FeatureExtractor` makes of the same ones."""

import struct
import wave
from importlib.util import find_spec
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from scipy.io import wavfile
from transformers import Wav2Vec2FeatureExtractor

from latebind.domain.errors import ConfigError, InvalidRequest
from latebind.preprocessing import sounds
from latebind.preprocessing.preprocessor import CUT, Reading
from latebind.preprocessing.settings import SoundSettings
from latebind.preprocessing.sounds import SoundPreprocessor, sound_settings

RATE = 16_000


def tone(seconds: float = 0.1, rate: int = RATE, hertz: float = 440.0, size: float = 0.4) -> Any:
    return size * np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate)


def file_of(samples: Any, rate: int = RATE) -> bytes:
    """Samples `(T,)` or `(T, channels)` of any dtype, written by SciPy."""
    written = BytesIO()
    wavfile.write(written, rate, samples)
    return written.getvalue()


def pcm24(samples: Any) -> bytes:
    written = BytesIO()
    with wave.open(written, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(3)
        file.setframerate(RATE)
        whole = np.round(samples * (1 << 23)).astype("<i4")
        file.writeframes(whole.view(np.uint8).reshape(-1, 4)[:, :3].tobytes())
    return written.getvalue()


def opened(**more: Any) -> SoundPreprocessor:
    return SoundPreprocessor(SoundSettings(**{"input": "input_values", "rate": RATE, "longest": RATE, **more}))


def read(data: bytes, **more: Any) -> Any:
    return opened(**more).prepare({"sound": [data]})[0].tensors["input_values"]


@pytest.mark.parametrize("normalized", [True, False])
def test_samples_equal_the_reference(normalized: bool) -> None:
    extractor = Wav2Vec2FeatureExtractor(do_normalize=normalized, return_attention_mask=True)
    settings = sound_settings(extractor.to_dict(), longest=RATE, mask="attention_mask")
    samples = tone().astype(np.float32)
    wanted = extractor(samples, sampling_rate=RATE)
    (row,) = SoundPreprocessor(settings).prepare({"sound": [file_of(samples)]})
    np.testing.assert_array_equal(row.tensors["input_values"], np.float32(wanted["input_values"][0]))
    np.testing.assert_array_equal(row.tensors["attention_mask"], wanted["attention_mask"][0])
    assert row.tensors["input_values"].dtype == np.float32
    assert (row.used, row.cut) == (1_600, 0)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (file_of(np.round(tone() * 128 + 128).astype(np.uint8)), 1 / 256),
        (file_of(np.round(tone() * (1 << 15)).astype(np.int16)), 1 / (1 << 16)),
        (pcm24(tone()), 1 / (1 << 23)),
        (file_of(np.round(tone() * (1 << 31)).astype(np.int32)), 1e-7),
        (file_of(tone().astype(np.float32)), 1e-7),
        (file_of(tone()), 1e-7),
    ],
    ids=["8 bits", "16 bits", "24 bits", "32 bits", "float", "double"],
)
def test_samples_of_all_widths_are_read(data: bytes, error: float) -> None:
    np.testing.assert_allclose(read(data), tone(), atol=error * 1.01)


def test_the_mean_is_taken_of_channels() -> None:
    both = np.stack([tone(), 0.5 * tone(hertz=700)], -1).astype(np.float32)
    np.testing.assert_allclose(read(file_of(both)), both.mean(-1), atol=1e-7)


@pytest.mark.parametrize("rate", [8_000, 22_050, 44_100, 48_000])
def test_other_rates_become_the_model_s(rate: int) -> None:
    made = read(file_of(tone(0.5, rate).astype(np.float32), rate))
    assert len(made) == RATE // 2
    inner = slice(500, -500)  # at the ends the filter sees silence
    np.testing.assert_allclose(made[inner], tone(0.5)[inner], atol=2e-3)


def test_a_file_of_several_parts_is_read() -> None:
    plain = file_of(tone().astype(np.float32))
    data = plain[:12] + b"LIST" + struct.pack("<I", 3) + b"abc\0" + plain[12:] + b"LIST" + bytes(4)
    np.testing.assert_array_equal(read(data), read(plain))


def extensible(kind: int) -> bytes:
    body: bytes = np.round(tone() * (1 << 15)).astype("<i2").tobytes()
    header = struct.pack("<HHIIHHHHIH", 0xFFFE, 1, RATE, 2 * RATE, 2, 16, 22, 16, 4, kind) + bytes(14)
    chunks = b"fmt " + struct.pack("<I", len(header)) + header + b"data" + struct.pack("<I", len(body)) + body
    return b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks


def test_a_file_in_the_form_that_can_be_extended_is_read() -> None:
    np.testing.assert_allclose(read(extensible(1)), tone(), atol=2e-5)
    with pytest.raises(InvalidRequest, match="kind 85"):
        read(extensible(85))


def test_a_sound_beyond_the_model_is_refused_unless_it_may_be_cut() -> None:
    data = file_of(tone(1.5).astype(np.float32))
    with pytest.raises(InvalidRequest, match=r"element 0 of 'sound' lasts 1\.5 s, and the model takes 1\.0 s"):
        opened().prepare({"sound": [data]})
    (row,) = opened().prepare({"sound": [data]}, CUT)
    assert (row.used, row.cut) == (RATE, RATE // 2)
    np.testing.assert_array_equal(row.tensors["input_values"], tone(1.5).astype(np.float32)[:RATE])


def with_header(**changes: int) -> bytes:
    fields = {"kind": 1, "channels": 1, "rate": RATE, "second": 2 * RATE, "frame": 2, "bits": 16} | changes
    header = struct.pack("<HHIIHH", *fields.values())
    body = bytes(200)
    chunks = b"fmt " + struct.pack("<I", 16) + header + b"data" + struct.pack("<I", len(body)) + body
    return b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "neither WAV nor FLAC"),
        (b"ID3" + bytes(100), "neither WAV nor FLAC"),
        (b"RIFF\0\0\0\0WAVE", "without a sound"),
        (b"RIFF\0\0\0\0AVI " + bytes(50), "neither WAV nor FLAC"),
        (file_of(tone())[:-10], "cut off"),
        (with_header(channels=0), "0 channels"),
        (with_header(channels=60_000), "60000 channels"),
        (with_header(rate=0), "0 samples a second"),
        (with_header(rate=4_000_000_000), "samples a second"),
        (with_header(bits=0), "not PCM or float"),
        (with_header(bits=13), "not PCM or float"),
        (with_header(kind=7, bits=8), "not PCM or float"),
        (with_header(kind=3, bits=16), "not PCM or float"),
        (file_of(np.zeros(0, np.int16)), "no samples"),
        (file_of(np.full(100, np.nan, np.float32)), "not numbers"),
        (file_of(np.full(100, np.inf)), "not numbers"),
        (file_of(np.full(100, 1e30)), "not numbers"),
        (b"fLaC" + bytes(50), "broken FLAC|soundfile"),
    ],
)
def test_hostile_files_are_refused_by_their_place(data: bytes, reason: str) -> None:
    with pytest.raises((InvalidRequest, ConfigError), match=reason) as refused:
        opened().prepare({"sound": [file_of(tone()), data]})
    if isinstance(refused.value, InvalidRequest):
        assert "element 1 of 'sound'" in str(refused.value)


def test_a_file_is_bounded_in_bytes_and_in_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sounds, "SPARE_SECONDS", 1)
    with pytest.raises(InvalidRequest, match="lasts 3 s, more than 2"):
        opened().prepare({"sound": [file_of(np.zeros(3 * RATE, np.uint8))]}, CUT)
    monkeypatch.setattr(sounds, "MOST_VALUES", 100)
    with pytest.raises(InvalidRequest, match="has 1600 samples, more than 100"):
        read(file_of(tone()))
    monkeypatch.setattr(sounds, "MOST_BYTES", 100)
    with pytest.raises(InvalidRequest, match="has 101 bytes"):
        read(bytes(101))


def test_a_text_is_no_sound() -> None:
    with pytest.raises(InvalidRequest, match="element 0 of 'sound' is a text"):
        opened().prepare({"sound": ["hello"]})
    with pytest.raises(InvalidRequest, match="no prompt"):
        opened().prepare({"sound": []}, Reading(prompt="query"))


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"feature_extractor_type": "WhisperFeatureExtractor"},
        {"feature_extractor_type": "Wav2Vec2FeatureExtractor", "feature_size": 80},
        {"feature_extractor_type": "Wav2Vec2FeatureExtractor", "sampling_rate": "fast"},
        {"feature_extractor_type": "Wav2Vec2FeatureExtractor", "sampling_rate": 1},
        {"feature_extractor_type": "Wav2Vec2FeatureExtractor", "auto_map": {"AutoFeatureExtractor": "code.X"}},
    ],
)
def test_what_cannot_be_done_exactly_is_refused_in_a_sentence(config: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as refused:
        sound_settings(config, longest=RATE)
    assert "\n" not in str(refused.value)


def has_flac() -> bool:
    return find_spec("soundfile") is not None


def flac(samples: Any) -> bytes:
    import soundfile

    written = BytesIO()
    soundfile.write(written, samples, RATE, format="FLAC", subtype="PCM_24")
    return written.getvalue()


@pytest.mark.skipif(not has_flac(), reason="soundfile is not installed")
def test_flac_is_read() -> None:
    both = np.stack([tone(), 0.5 * tone(hertz=700)], -1)
    data = flac(both)
    np.testing.assert_allclose(read(data), both.mean(-1), atol=1e-6)
    for broken in (data[:100], data[: len(data) // 2], data[:200] + bytes(300) + data[500:]):
        with pytest.raises(InvalidRequest, match=r"FLAC|cut off"):
            read(broken)
