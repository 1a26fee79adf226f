"""Networks of transformers, unchanged and small, of many families. Their outputs are dataclasses of that library."""

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import nn

from examples.architectures.catalogue import ROWS, Architecture, Rows, images, words

KNOWN = 200  # words
NARROW: dict[str, Any] = {
    "vocab_size": KNOWN,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 128,
}


def of(
    model: str,
    config: str,
    rows: Callable[[], Rows],
    *,
    outputs: tuple[str, ...] = (),
    refused: str = "",
    **settings: Any,
) -> Architecture:
    """Return the architecture of the class `model`, made with the class `config` and these settings."""

    def make() -> nn.Module:
        made: nn.Module = getattr(transformers, model)(getattr(transformers, config)(**settings))
        return made

    return Architecture(make, rows, refused, outputs)


def _sounds() -> Rows:
    return {"input_values": torch.randn(ROWS, 4000)}


def _mels() -> Rows:
    return {"input_features": torch.randn(ROWS, 80, 100)}


def _pages() -> Rows:
    corners = torch.randint(0, 500, (ROWS, 16, 2))
    return {**words()(), "bbox": torch.cat([corners, corners + 100], 2)}


def _pairs() -> Rows:
    rows = words()()
    return {**rows, "decoder_input_ids": torch.randint(3, KNOWN, (ROWS, 5))}


def _shown() -> Rows:
    return {**words()(), "pixel_values": torch.randn(ROWS, 3, 32, 32)}


_pixels = images(name="pixel_values")
_tower: dict[str, Any] = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
_t5: dict[str, Any] = {"vocab_size": KNOWN, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4}
_hear: dict[str, Any] = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}

ARCHITECTURES = {
    "bert": of("BertForSequenceClassification", "BertConfig", words(), **NARROW),
    "bert_model": of("BertModel", "BertConfig", words(), **NARROW),
    "bert_tokens": of("BertForTokenClassification", "BertConfig", words(), **NARROW),
    "bert_answers": of("BertForQuestionAnswering", "BertConfig", words(), **NARROW),
    "distilbert": of(
        "DistilBertForSequenceClassification",
        "DistilBertConfig",
        words(),
        vocab_size=KNOWN,
        dim=64,
        n_layers=3,
        n_heads=4,
        hidden_dim=128,
    ),
    "roberta": of("RobertaForSequenceClassification", "RobertaConfig", words(), **NARROW),
    "xlm_roberta": of("XLMRobertaForSequenceClassification", "XLMRobertaConfig", words(), **NARROW),
    "modernbert": of("ModernBertForSequenceClassification", "ModernBertConfig", words(), pad_token_id=0, **NARROW),
    "albert": of("AlbertForSequenceClassification", "AlbertConfig", words(), embedding_size=32, **NARROW),
    "electra": of("ElectraForSequenceClassification", "ElectraConfig", words(), **NARROW),
    "deberta_v2": of(
        "DebertaV2ForSequenceClassification",
        "DebertaV2Config",
        words(),
        relative_attention=True,
        pos_att_type=["p2c", "c2p"],
        **NARROW,
    ),
    "mpnet": of("MPNetForSequenceClassification", "MPNetConfig", words(), **NARROW),
    "mobilebert": of(
        "MobileBertForSequenceClassification",
        "MobileBertConfig",
        words(),
        embedding_size=32,
        intra_bottleneck_size=64,
        **NARROW,
    ),
    "layoutlm": of("LayoutLMForSequenceClassification", "LayoutLMConfig", _pages, **NARROW),
    "t5_encoder": of("T5EncoderModel", "T5Config", words(), **_t5),
    "t5": of("T5Model", "T5Config", _pairs, outputs=("last_hidden_state",), **_t5),
    "bart": of(
        "BartForSequenceClassification",
        "BartConfig",
        lambda: {
            **words()(),
            "input_ids": torch.cat([torch.randint(3, KNOWN, (ROWS, 15)), torch.full((ROWS, 1), 2)], 1),
        },
        outputs=("logits",),
        refused="unique_consecutive",
        vocab_size=KNOWN,
        d_model=64,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=128,
        decoder_ffn_dim=128,
    ),
    "gpt2": of(
        "GPT2ForSequenceClassification",
        "GPT2Config",
        words(),
        outputs=("logits",),
        vocab_size=KNOWN,
        n_embd=64,
        n_layer=3,
        n_head=4,
        pad_token_id=0,
    ),
    "gpt2_lm": of(
        "GPT2LMHeadModel",
        "GPT2Config",
        words(),
        refused="--output logits",
        vocab_size=KNOWN,
        n_embd=64,
        n_layer=3,
        n_head=4,
    ),
    "opt": of(
        "OPTModel", "OPTConfig", words(), outputs=("last_hidden_state",), ffn_dim=128, word_embed_proj_dim=64, **NARROW
    ),
    "llama": of(
        "LlamaForSequenceClassification", "LlamaConfig", words(), outputs=("logits",), pad_token_id=0, **NARROW
    ),
    "qwen2": of("Qwen2Model", "Qwen2Config", words(), outputs=("last_hidden_state",), num_key_value_heads=2, **NARROW),
    "mamba": of(
        "MambaModel",
        "MambaConfig",
        words(mask=False),
        outputs=("last_hidden_state",),
        vocab_size=KNOWN,
        hidden_size=64,
        num_hidden_layers=2,
    ),
    "whisper_encoder": Architecture(
        lambda: transformers.WhisperModel(
            transformers.WhisperConfig(
                vocab_size=KNOWN,
                d_model=64,
                encoder_layers=2,
                decoder_layers=1,
                encoder_attention_heads=4,
                decoder_attention_heads=4,
                encoder_ffn_dim=128,
                decoder_ffn_dim=128,
                max_source_positions=50,
                pad_token_id=0,
                bos_token_id=1,
                eos_token_id=2,
                decoder_start_token_id=1,
            )
        ).get_encoder(),
        _mels,
    ),
    "wav2vec2": of(
        "Wav2Vec2ForSequenceClassification",
        "Wav2Vec2Config",
        _sounds,
        conv_dim=(32,) * 7,
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4,
        **_hear,
    ),
    "wav2vec2_ctc": of(
        "Wav2Vec2ForCTC",
        "Wav2Vec2Config",
        _sounds,
        conv_dim=(32,) * 7,
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4,
        **_hear,
    ),
    "ast": of(
        "ASTForAudioClassification",
        "ASTConfig",
        lambda: {"input_values": torch.randn(ROWS, 64, 32)},
        max_length=64,
        num_mel_bins=32,
        **_tower,
    ),
    "vit": of("ViTForImageClassification", "ViTConfig", _pixels, image_size=64, **_tower),
    "dinov2": of("Dinov2Model", "Dinov2Config", _pixels, image_size=64, patch_size=16, **_tower),
    "segformer": of(
        "SegformerForSemanticSegmentation",
        "SegformerConfig",
        _pixels,
        depths=[1, 1, 1, 1],
        hidden_sizes=[16, 32, 64, 64],
    ),
    "clip_vision": of("CLIPVisionModel", "CLIPVisionConfig", _pixels, image_size=64, patch_size=16, **_tower),
    "clip_text": of(
        "CLIPTextModel",
        "CLIPTextConfig",
        words(),
        vocab_size=KNOWN,
        eos_token_id=199,
        max_position_embeddings=16,
        **_tower,
    ),
    "clip": of(
        "CLIPModel",
        "CLIPConfig",
        _shown,
        outputs=("text_embeds", "image_embeds"),
        text_config={"vocab_size": KNOWN, "max_position_embeddings": 16, "eos_token_id": 199, **_tower},
        vision_config={"image_size": 32, "patch_size": 8, **_tower},
    ),
    "convbert": of("ConvBertForSequenceClassification", "ConvBertConfig", words(), embedding_size=64, **NARROW),
    "detr": of(
        "YolosForObjectDetection", "YolosConfig", _pixels, image_size=[64, 64], num_detection_tokens=10, **_tower
    ),
    "time_series": of(
        "PatchTSTForPrediction",
        "PatchTSTConfig",
        lambda: {"past_values": torch.randn(ROWS, 64, 3)},
        num_input_channels=3,
        context_length=64,
        patch_length=8,
        patch_stride=8,
        prediction_length=8,
        num_hidden_layers=2,
        d_model=32,
        num_attention_heads=4,
        ffn_dim=64,
    ),
}
