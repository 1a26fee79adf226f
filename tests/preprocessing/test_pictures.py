"""Values equal what transformers' image processors make with Pillow: to the last bit, for they round alike."""

import struct
import zlib
from collections.abc import Callable
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps
from transformers.models.beit.image_processing_pil_beit import BeitImageProcessorPil
from transformers.models.bit.image_processing_pil_bit import BitImageProcessorPil
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.conditional_detr.image_processing_pil_conditional_detr import (
    ConditionalDetrImageProcessorPil,
)
from transformers.models.convnext.image_processing_pil_convnext import ConvNextImageProcessorPil
from transformers.models.deit.image_processing_pil_deit import DeiTImageProcessorPil
from transformers.models.detr.image_processing_pil_detr import DetrImageProcessorPil
from transformers.models.mobilenet_v2.image_processing_pil_mobilenet_v2 import MobileNetV2ImageProcessorPil
from transformers.models.pvt.image_processing_pil_pvt import PvtImageProcessorPil
from transformers.models.rt_detr.image_processing_pil_rt_detr import RTDetrImageProcessorPil
from transformers.models.segformer.image_processing_pil_segformer import SegformerImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil
from transformers.models.yolos.image_processing_pil_yolos import YolosImageProcessorPil

from latebind.domain.errors import ConfigError, InvalidRequest
from latebind.preprocessing import pictures
from latebind.preprocessing.opening import check_settings
from latebind.preprocessing.pictures import PicturePreprocessor, picture_settings
from latebind.preprocessing.preprocessor import Reading
from latebind.preprocessing.settings import PictureSettings

Processor = Callable[..., Any]
PROCESSORS: dict[str, Callable[[], Any]] = {
    "ViT": ViTImageProcessorPil,
    "ViT of another size": lambda: ViTImageProcessorPil(size={"height": 48, "width": 64}, resample=3),
    "ViT without means": lambda: ViTImageProcessorPil(do_normalize=False),
    "ViT without a scale": lambda: ViTImageProcessorPil(do_rescale=False),
    "Swin": lambda: ViTImageProcessorPil(image_mean=[0.485, 0.456, 0.406], image_std=[0.229, 0.224, 0.225], resample=3),
    "DeiT": DeiTImageProcessorPil,
    "DeiT that cuts more than there is": lambda: DeiTImageProcessorPil(
        size={"height": 20, "width": 31}, crop_size={"height": 25, "width": 26}
    ),
    "ConvNext": ConvNextImageProcessorPil,
    "ResNet": lambda: ConvNextImageProcessorPil(size={"shortest_edge": 224}, crop_pct=0.875),
    "CLIP": CLIPImageProcessorPil,
    "CLIP, small": lambda: CLIPImageProcessorPil(size={"shortest_edge": 33}, crop_size={"height": 30, "width": 31}),
    "DINOv2": lambda: BitImageProcessorPil(size={"shortest_edge": 256}),
    "Siglip": SiglipImageProcessorPil,
    "Pvt": PvtImageProcessorPil,
    "Beit": BeitImageProcessorPil,
    "Segformer": SegformerImageProcessorPil,
    "MobileNetV2": MobileNetV2ImageProcessorPil,
    "DETR": DetrImageProcessorPil,
    "DETR, small": lambda: DetrImageProcessorPil(size={"shortest_edge": 64, "longest_edge": 90}),
    "DETR of old": lambda: DetrImageProcessorPil(size=70, max_size=100),
    "Conditional DETR": ConditionalDetrImageProcessorPil,
    "YOLOS": lambda: YolosImageProcessorPil(size={"shortest_edge": 96, "longest_edge": 150}),
    "RT-DETR": RTDetrImageProcessorPil,
}
SHAPES = [(60, 80), (80, 60), (50, 50), (37, 211), (300, 41), (64, 64)]  # height, width


def drawn(height: int, width: int, mode: str = "RGB", seed: int = 0) -> Image.Image:
    """A picture with smooth parts, edges and noise."""
    generator = np.random.default_rng((seed, height, width))
    rows, columns = np.mgrid[0:height, 0:width]
    smooth = np.stack([rows * 255 / height, columns * 255 / width, (rows + columns) % 256], -1)
    noisy = np.clip(smooth + generator.normal(0, 25, smooth.shape), 0, 255).astype(np.uint8)
    return Image.fromarray(noisy).convert(mode)


def file_of(image: Image.Image, kind: str = "PNG", **more: Any) -> bytes:
    written = BytesIO()
    image.save(written, kind, **more)
    return written.getvalue()


def opened(**settings: Any) -> PicturePreprocessor:
    return PicturePreprocessor(PictureSettings("pixel_values", **settings))


@pytest.mark.parametrize("name", PROCESSORS)
def test_values_equal_the_reference(name: str) -> None:
    processor = PROCESSORS[name]()
    settings = picture_settings(processor.to_dict(), mask="pixel_mask")
    check_settings(settings)
    preprocessor = PicturePreprocessor(settings)
    for height, width in SHAPES:
        image = drawn(height, width)
        wanted = processor(image, return_tensors="np")
        (row,) = preprocessor.prepare({"image": [file_of(image)]})
        made = row.tensors["pixel_values"]
        assert made.dtype == np.float32
        assert made.flags.c_contiguous
        np.testing.assert_array_equal(made, wanted["pixel_values"][0].astype(np.float32))
        if "pixel_mask" in row.tensors and "pixel_mask" in wanted:
            np.testing.assert_array_equal(row.tensors["pixel_mask"], wanted["pixel_mask"][0])


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        ({"feature_extractor_type": "ViTFeatureExtractor", "size": 384}, {"size": (384, 384)}),
        ({"image_processor_type": "ViTImageProcessorFast"}, {"size": (224, 224)}),
        ({"image_processor_type": "CLIPImageProcessor", "size": 224, "crop_size": 224}, {"shortest": 224}),
        ({"image_processor_type": "DetrImageProcessor", "size": 800, "max_size": 1333}, {"longest": 1333}),
        ({"image_processor_type": "ConvNextImageProcessor", "size": 224}, {"shortest": 256, "crop": (224, 224)}),
        ({"image_processor_type": "ViTImageProcessor", "size": [10, 20]}, {"size": (10, 20)}),
        ({"image_processor_type": "ViTImageProcessor", "do_resize": False}, {"size": None}),
        ({"image_processor_type": "ViTImageProcessor", "image_mean": 0.5, "image_std": 0.25}, {"mean": (0.5,) * 3}),
    ],
)
def test_files_of_former_years_are_read(config: dict[str, Any], wanted: dict[str, Any]) -> None:
    settings = picture_settings(config)
    check_settings(settings)
    assert {name: getattr(settings, name) for name in wanted} == wanted


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"image_processor_type": "OwlViTImageProcessor"},
        {"image_processor_type": "DPTImageProcessor"},
        {"image_processor_type": "__import__"},
        {"image_processor_type": "ViTImageProcessor", "do_flip_channel_order": True},
        {"image_processor_type": "ViTImageProcessor", "auto_map": {"AutoImageProcessor": "code.Processor"}},
        {"image_processor_type": "ViTImageProcessor", "size": "large"},
        {"image_processor_type": "ViTImageProcessor", "size": {"longest_edge": 9}},
        {"image_processor_type": "ViTImageProcessor", "image_mean": [0.5]},
        {"image_processor_type": "ViTImageProcessor", "resample": "best"},
        {"image_processor_type": "ViTImageProcessor", "rescale_factor": []},
        {"image_processor_type": "CLIPImageProcessor", "crop_size": {"shortest_edge": 9}},
        {"image_processor_type": "ConvNextImageProcessor", "size": {"height": 9, "width": 9}},
        {"image_processor_type": "ConvNextImageProcessor", "size": 224, "crop_pct": 0},
        {"image_processor_type": "ViTImageProcessor", "size": float("inf")},
        {"image_processor_type": "DetrImageProcessor", "pad_size": {"height": 900, "width": 900}},
    ],
)
def test_what_cannot_be_done_exactly_is_refused_in_a_sentence(config: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as refused:
        picture_settings(config)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "P", "CMYK", "1", "LA", "I;16"])
def test_all_kinds_of_pictures_are_read_as_pipelines_do(kind: str, mode: str) -> None:
    try:
        image = drawn(20, 30, "L").convert("I;16") if mode == "I;16" else drawn(20, 30, mode)
        data = file_of(image, kind)
    except (OSError, ValueError):
        pytest.skip(f"{kind} has no {mode}")
    (row,) = opened(scale=1.0).prepare({"image": [data]})
    with Image.open(BytesIO(data)) as again:
        wanted = np.asarray(ImageOps.exif_transpose(again).convert("RGB"), np.float32)
    np.testing.assert_array_equal(row.tensors["pixel_values"], np.moveaxis(wanted, -1, 0))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_pictures_are_turned_upright(orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = file_of(drawn(20, 30), "JPEG", exif=exif)
    (row,) = opened(scale=1.0).prepare({"image": [data]})
    assert row.tensors["pixel_values"].shape == ((3, 20, 30) if orientation < 5 else (3, 30, 20))
    with Image.open(BytesIO(data)) as image:
        wanted = np.asarray(ImageOps.exif_transpose(image).convert("RGB"), np.float32)
    np.testing.assert_array_equal(row.tensors["pixel_values"], np.moveaxis(wanted, -1, 0))


def png(width: int, height: int, *chunks: tuple[bytes, bytes]) -> bytes:
    """A PNG that says it has this size, with whatever else."""
    header = (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        for name, body in (header, *chunks, (b"IEND", b""))
    )


HOSTILE: dict[str, tuple[Callable[[], bytes], str]] = {
    "nothing": (lambda: b"", "not a readable JPEG, PNG or WebP"),
    "noise": (lambda: np.random.default_rng(0).bytes(5_000), "not a readable JPEG, PNG or WebP"),
    "a text": (lambda: b"<svg xmlns='http://www.w3.org/2000/svg'/>", "not a readable JPEG, PNG or WebP"),
    "GIF": (lambda: file_of(drawn(9, 9), "GIF"), "not a readable JPEG, PNG or WebP"),
    "TIFF": (lambda: file_of(drawn(9, 9), "TIFF"), "not a readable JPEG, PNG or WebP"),
    "BMP": (lambda: file_of(drawn(9, 9), "BMP"), "not a readable JPEG, PNG or WebP"),
    "a JPEG cut off": (lambda: file_of(drawn(90, 90), "JPEG")[:-900], "broken or cut off"),
    "a PNG cut off": (lambda: file_of(drawn(90, 90), "PNG")[:-900], "broken or cut off"),
    "a WebP cut off": (lambda: file_of(drawn(90, 90), "WEBP")[:-900], "cut off|readable"),
    "a bomb that says so": (lambda: png(30_000, 30_000, (b"IDAT", zlib.compress(bytes(9)))), "pixels"),
    "a bomb beyond all": (lambda: png(2**31 - 1, 2**31 - 1, (b"IDAT", b"")), "pixels"),
    "a bomb": (lambda: png(9_000, 9_000, (b"IDAT", zlib.compress(bytes(9_000 * 27_001)))), "9000 x 9000 pixels"),
    "a bomb in WebP": (
        lambda: b"RIFF" + struct.pack("<I", 22) + b"WEBPVP8X" + struct.pack("<I", 10) + bytes(4) + b"\xff\x3f\0" * 2,
        "pixels",
    ),
    "a bomb in WebP without loss": (
        lambda: b"RIFF" + struct.pack("<I", 30) + b"WEBPVP8L" + struct.pack("<I", 10) + b"\x2f" + b"\xff" * 9, "pixels",
    ),
    "a comment that explodes": (
        lambda: png(9, 9, (b"zTXt", b"a\0\0" + zlib.compress(bytes(1 << 26))), (b"IDAT", zlib.compress(bytes(9 * 28)))),
        "readable|broken",
    ),
    "a thread": (lambda: file_of(drawn(1, 9_000)), "more usual shape"),
    "no pixels": (lambda: png(0, 0, (b"IDAT", b"")), "readable|usual shape"),
    "moving pictures in WebP": (
        lambda: file_of(drawn(9, 9), "WEBP", save_all=True, append_images=[drawn(9, 9, seed=1)]), "animated",
    ),
    "moving pictures in PNG": (
        lambda: file_of(drawn(9, 9), "PNG", save_all=True, append_images=[drawn(9, 9, seed=1)]), "animated",
    ),
    "a JPEG that goes over the picture again and again": (
        lambda: file_of(drawn(9, 9), "JPEG", progressive=True).replace(b"\xff\xd9", b"\xff\xda" * 99), "scans",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused_by_their_place(name: str) -> None:
    make, reason = HOSTILE[name]
    with pytest.raises(InvalidRequest, match=f"element 1 of 'image' .*({reason})"):
        opened(shortest=224).prepare({"image": [file_of(drawn(9, 9)), make()]})


def test_a_photo_with_further_views_is_read_by_its_first() -> None:
    """As some phones write them: MPO, a JPEG with more of them behind it."""
    data = file_of(drawn(20, 30), "MPO", save_all=True, append_images=[drawn(20, 30, seed=1)])
    (row,) = opened(scale=1.0).prepare({"image": [data]})
    with Image.open(BytesIO(data)) as image:
        wanted = np.asarray(image.convert("RGB"), np.float32)
    np.testing.assert_array_equal(row.tensors["pixel_values"], np.moveaxis(wanted, -1, 0))


@pytest.mark.parametrize("at", ["open", "convert"])
def test_that_memory_ran_out_is_not_said_of_the_picture(at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: object, **__: object) -> None:
        raise MemoryError

    data = file_of(drawn(9, 9))
    monkeypatch.setattr(*(Image, "open") if at == "open" else (Image.Image, "convert"), none_left)
    with pytest.raises(MemoryError):
        opened().prepare({"image": [data]})


def test_a_file_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "MOST_BYTES", 100)
    with pytest.raises(InvalidRequest, match="element 0 of 'image' has 101 bytes, more than 100"):
        opened().prepare({"image": [bytes(101)]})


def test_a_text_is_no_picture() -> None:
    with pytest.raises(InvalidRequest, match="element 0 of 'image' is a text"):
        opened().prepare({"image": ["cat"]})
    with pytest.raises(InvalidRequest, match="no prompt"):
        opened().prepare({"image": []}, Reading(prompt="query"))


@pytest.mark.parametrize("more", [{}, {"lossless": True}, {"exif": b"Exif\0\0MM\0*\0\0\0\x08\0\0"}])
def test_the_head_of_a_webp_file_tells_its_pixels(more: dict[str, Any]) -> None:
    data = file_of(drawn(20, 31), "WEBP", **more)
    assert pictures._webp_pixels(data) == 620
    assert opened().prepare({"image": [data]})[0].tensors["pixel_values"].shape == (3, 20, 31)
