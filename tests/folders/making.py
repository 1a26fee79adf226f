"""Folders of small networks with drawn weights as `save_pretrained` writes them, and tokenizers for them."""

import io
import json
import os
import wave
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from inspect import signature
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from latebind.domain.model import Activation, Task
from latebind.domain.sizes import Dim
from latebind.folders.build import build_folder, read_folder
from tests.building import made_once

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")
Image = pytest.importorskip("PIL.Image")

SENTENCES = (
    "The quick brown fox jumps over the lazy dog.",
    "how much money do i have in my bank account?",
    "Please book a table for two at seven, near the station.",
    "A man is playing a guitar; a woman sings.",
    "What's the weather like in Köln today? 21 degrees!",
    "Transfer $1,000 to my savings, and don't tell anyone.",
    "It was the best of times, it was the worst of times.",
    "Caf\u00e9 au lait and na\u00efve r\u00e9sum\u00e9s.",
)
WORDS = tuple(word for sentence in SENTENCES for word in sentence.split())
KNOWN = 300  # tokens
LAYERS = 2 if os.environ.get("HYPOTHESIS_PROFILE") == "thorough" else 1  # two take twice as long to export
LONGEST = 48
NARROW: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": LONGEST,
}
SMALL: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": LAYERS, "num_attention_heads": 2, "intermediate_size": 64,
}  # fmt: skip
CLASSES = {0: "no", 1: "yes", 2: "perhaps"}


def word_piece(**given: Any) -> Any:
    """A tokenizer as BERT's."""
    made = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token="[UNK]"))
    made.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = tokenizers.trainers.WordPieceTrainer(vocab_size=KNOWN, special_tokens=special, show_progress=False)
    made.train_from_iterator(SENTENCES, trainer)
    made.post_processor = tokenizers.processors.TemplateProcessing(
        "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", [("[CLS]", 2), ("[SEP]", 3)]
    )
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), special, strict=True))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, **names, **given)


def byte_pairs(**given: Any) -> Any:
    """A tokenizer as RoBERTa's: pairs of bytes."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=KNOWN, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(SENTENCES, trainer)
    made.post_processor = tokenizers.processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    names = dict(zip(("cls_token", "pad_token", "sep_token", "unk_token", "mask_token"), special, strict=True))
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, **names, model_input_names=["input_ids", "attention_mask"], **given
    )


def unigrams(**given: Any) -> Any:
    """A tokenizer as XLM-RoBERTa's: pieces of words with their likelihoods."""
    made = tokenizers.Tokenizer(tokenizers.models.Unigram())
    made.normalizer = tokenizers.normalizers.NFKC()
    made.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    trainer = tokenizers.trainers.UnigramTrainer(
        vocab_size=150, special_tokens=special, unk_token="<unk>", show_progress=False
    )
    made.train_from_iterator(SENTENCES, trainer)
    made.post_processor = tokenizers.processors.TemplateProcessing(
        "<s> $A </s>", "<s> $A </s> </s> $B </s>", [("<s>", 0), ("</s>", 2)]
    )
    names = dict(zip(("cls_token", "pad_token", "sep_token", "unk_token"), special, strict=True))
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, **names, model_input_names=["input_ids", "attention_mask"], **given
    )


@dataclass(frozen=True, slots=True)
class Case:
    """A folder to make, and what is to be found in it.

    `reader` makes its tokenizer or is the class of its processor with its settings; `pooling` is that of
    sentence-transformers, for a folder of theirs; `dense` whether a linear layer follows.
    """

    model: str
    config: str
    task: Task
    reader: Callable[..., Any]
    settings: dict[str, Any] = field(default_factory=dict)
    activation: Activation | None = None
    pooling: str = ""
    dense: bool = False
    labels: int = 0
    dims: tuple[Dim, ...] = ()
    reads: dict[str, Any] = field(default_factory=dict)

    @property
    def of(self) -> str:
        """What clients send."""
        return {"input_ids": "text", "pixel_values": "image", "input_values": "sound"}[
            getattr(transformers, self.model).main_input_name
        ]


def _processor(name: str) -> Any:
    return getattr(transformers, name)


def _named(count: int) -> dict[str, Any]:
    names = {number: CLASSES.get(number, f"class {number}") for number in range(count)}
    return {"id2label": names, "label2id": {name: number for number, name in names.items()}}


_classes: dict[str, Any] = {"settings": {**NARROW, **_named(3)}, "labels": 3, "activation": Activation.SOFTMAX}
_side = {"height": 32, "width": 32}
_hears: dict[str, Any] = {
    "conv_dim": (16,) * 3,
    "conv_kernel": (10, 3, 3),
    "conv_stride": (5, 2, 2),
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
    "classifier_proj_size": 16,
    **SMALL,
}
CASES = {
    "bert_mean": Case("BertModel", "BertConfig", Task.EMBED, word_piece, NARROW, pooling="mean"),
    "mpnet": Case("MPNetModel", "MPNetConfig", Task.EMBED, byte_pairs, {**NARROW, "pad_token_id": 1}),
    "xlm_roberta_cls": Case(
        "XLMRobertaModel",
        "XLMRobertaConfig",
        Task.EMBED,
        unigrams,
        {**NARROW, "type_vocab_size": 1},
        pooling="cls",
        dense=True,
    ),
    "electra_max": Case("ElectraModel", "ElectraConfig", Task.EMBED, word_piece, NARROW, pooling="max"),
    "bert": Case("BertForSequenceClassification", "BertConfig", Task.CLASSIFY, word_piece, **_classes),
    "roberta_many": Case(
        "RobertaForSequenceClassification",
        "RobertaConfig",
        Task.CLASSIFY,
        byte_pairs,
        {**NARROW, **_named(3), "type_vocab_size": 1, "problem_type": "multi_label_classification"},
        Activation.SIGMOID,
        labels=3,
    ),
    "distilbert": Case(
        "DistilBertForSequenceClassification",
        "DistilBertConfig",
        Task.CLASSIFY,
        word_piece,
        {
            "dim": 32,
            "n_layers": LAYERS,
            "n_heads": 2,
            "hidden_dim": 64,
            "max_position_embeddings": LONGEST,
            **_named(3),
        },
        Activation.SOFTMAX,
        labels=3,
    ),
    "albert": Case(
        "AlbertForSequenceClassification",
        "AlbertConfig",
        Task.CLASSIFY,
        word_piece,
        {**NARROW, **_named(3), "embedding_size": 16},
        Activation.SOFTMAX,
        labels=3,
    ),
    "deberta_v2": Case(
        "DebertaV2ForSequenceClassification",
        "DebertaV2Config",
        Task.CLASSIFY,
        word_piece,
        {**NARROW, **_named(3), "relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
        Activation.SOFTMAX,
        labels=3,
    ),
    "cross_encoder": Case(
        "BertForSequenceClassification",
        "BertConfig",
        Task.RERANK,
        word_piece,
        {**NARROW, "num_labels": 1},
        Activation.SIGMOID,
    ),
    "tags": Case("BertForTokenClassification", "BertConfig", Task.TAG, word_piece, **_classes),
    "modernbert_tags": Case(
        "ModernBertForTokenClassification",
        "ModernBertConfig",
        Task.TAG,
        word_piece,
        {**NARROW, **_named(3), "num_hidden_layers": 2, "pad_token_id": 0, "local_attention": 16},
        Activation.SOFTMAX,
        labels=3,
    ),
    "vit": Case(
        "ViTForImageClassification",
        "ViTConfig",
        Task.CLASSIFY,
        _processor("ViTImageProcessorPil"),
        {**SMALL, **_named(3), "image_size": 32, "patch_size": 8},
        Activation.SOFTMAX,
        labels=3,
        reads={"size": _side},
    ),
    "resnet": Case(
        "ResNetForImageClassification",
        "ResNetConfig",
        Task.CLASSIFY,
        _processor("ConvNextImageProcessorPil"),
        {**_named(3), "embedding_size": 8, "hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1]},
        Activation.SOFTMAX,
        labels=3,
        reads={"size": {"shortest_edge": 64}, "crop_pct": 0.875},
    ),
    "dinov2": Case(
        "Dinov2Model",
        "Dinov2Config",
        Task.EMBED,
        _processor("BitImageProcessorPil"),
        {**SMALL, "image_size": 32, "patch_size": 8},
        reads={"size": {"shortest_edge": 40}, "crop_size": _side},
    ),
    "yolos": Case(
        "YolosForObjectDetection",
        "YolosConfig",
        Task.DETECT,
        _processor("YolosImageProcessorPil"),
        {**SMALL, **_named(3), "image_size": [32, 48], "patch_size": 8, "num_detection_tokens": 5},
        Activation.SOFTMAX,
        labels=4,
        reads={"size": {"height": 32, "width": 48}},
    ),
    "detr": Case(
        "DetrForObjectDetection",
        "DetrConfig",
        Task.DETECT,
        _processor("DetrImageProcessorPil"),
        {
            **{f"{side}_layers": 1 for side in ("encoder", "decoder")},
            **{f"{side}_attention_heads": 2 for side in ("encoder", "decoder")},
            **{f"{side}_ffn_dim": 32 for side in ("encoder", "decoder")},
            **_named(3),
            "d_model": 32,
            "num_queries": 5,
            "backbone_config": {
                "model_type": "resnet",
                "embedding_size": 8,
                "hidden_sizes": [8, 16, 16, 32],
                "depths": [1, 1, 1, 1],
                "out_features": ["stage4"],
            },
        },
        Activation.SOFTMAX,
        labels=4,
        reads={"size": {"shortest_edge": 48, "longest_edge": 64}},
    ),
    "segformer": Case(
        "SegformerForSemanticSegmentation",
        "SegformerConfig",
        Task.SEGMENT,
        _processor("SegformerImageProcessorPil"),
        {**_named(3), "depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 16, 32], "decoder_hidden_size": 16},
        Activation.SOFTMAX,
        labels=3,
        reads={"size": {"height": 64, "width": 64}},
    ),
    "wav2vec2": Case(
        "Wav2Vec2ForSequenceClassification",
        "Wav2Vec2Config",
        Task.CLASSIFY,
        _processor("Wav2Vec2FeatureExtractor"),
        {**_hears, **_named(3)},
        Activation.SOFTMAX,
        labels=3,
        reads={"do_normalize": True},
        dims=(Dim("T", 60, 2_400),),
    ),
    "hubert": Case(
        "HubertForSequenceClassification",
        "HubertConfig",
        Task.CLASSIFY,
        _processor("Wav2Vec2FeatureExtractor"),
        {**_hears, **_named(3)},
        Activation.SOFTMAX,
        labels=3,
        reads={"do_normalize": False},
        dims=(Dim("T", 60, 2_400),),
    ),
}


def make_folder(name: str, folder: Path, *, seed: int = 0) -> Path:
    """Write the folder of a case, and return it."""
    case = CASES[name]
    settings = dict(case.settings)
    reader = case.reader(**case.reads)
    if case.of == "text":
        settings["vocab_size"] = len(reader)
    save(case.model, case.config, settings, folder, seed=seed)
    reader.save_pretrained(folder)
    if case.pooling:
        add_modules(folder, case.pooling, dense=case.dense)
    return folder


def made_case(factory: pytest.TempPathFactory, name: str) -> Path:
    """Return where `folder` is that of a case and `models` has the model of its name, built once for a whole run."""

    def make(place: Path) -> None:
        read = read_folder(str(make_folder(name, place / "folder")), dims=CASES[name].dims)
        directory = place / "models" / name / "1"
        build_folder(read, directory=directory, name=name, backends=["eager"], max_batch=2, max_overhead=None)

    return made_once(factory, f"case-{name}", make)


def save(model: str, config: str, settings: dict[str, Any], folder: Path, *, seed: int = 0, **how: Any) -> None:
    """Write a network with drawn weights, larger than they begin with: so that answers differ."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = getattr(transformers, model)(getattr(transformers, config)(**settings))
        with torch.no_grad():
            for parameter in made.parameters():
                if parameter.dim() > 1:
                    parameter.mul_(3)
    made.save_pretrained(folder, **how)


def add_modules(folder: Path, pooling: str, *, dense: bool = False, longest: int = 24) -> None:
    """Make it a folder of sentence-transformers, which cuts texts at `longest` tokens."""
    kinds = ["Transformer", "Pooling", *["Dense"] * dense, "Normalize"]
    listed = [
        {"idx": place, "name": str(place), "path": f"{place}_{kind}" if place else ""}
        | {"type": f"sentence_transformers.models.{kind}"}
        for place, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": longest, "do_lower_case": False}))
    (folder / "1_Pooling").mkdir()
    modes: dict[str, Any] = {f"pooling_mode_{kind}": False for kind in ("cls_token", "mean_tokens", "max_tokens")}
    ends = {"cls": "cls_token", "mean": "mean_tokens", "max": "max_tokens"}
    modes[f"pooling_mode_{ends[pooling]}"] = True
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 32, **modes}))
    if dense:
        (folder / "2_Dense").mkdir()
        told: dict[str, Any] = {"in_features": 32, "out_features": 8, "bias": True}
        told |= {"activation_function": "torch.nn.modules.activation.Tanh"}
        (folder / "2_Dense" / "config.json").write_text(json.dumps(told))
        generator = torch.Generator().manual_seed(3)
        weights = {"linear.weight": torch.randn(8, 32, generator=generator), "linear.bias": torch.ones(8)}
        save_file(weights, folder / "2_Dense" / "model.safetensors")


def texts(count: int, *, seed: int = 0) -> list[str]:
    """Return texts of 1 to 40 words, some of them longer than a model reads."""
    random = Random(seed)
    return [" ".join(random.choices(WORDS, k=random.randint(1, 40))) for _ in range(count)]


def pictures(count: int, *, seed: int = 0) -> list[bytes]:
    """Return pictures of many sizes, as PNG and JPEG, in colors and grey."""
    random, numbers = Random(seed), np.random.default_rng(seed)
    found = list[bytes]()
    for place in range(count):
        height, width = random.randint(20, 120), random.randint(20, 120)
        rows, columns = np.mgrid[:height, :width]
        waves = np.stack([np.sin(rows / random.uniform(3, 20)) + np.cos(columns / 9 + shift) for shift in range(3)], -1)
        noise = numbers.normal(0, 10, (height, width, 3))
        made = Image.fromarray(np.clip(waves * 60 + 128 + noise, 0, 255).astype(np.uint8))
        file = io.BytesIO()
        made.convert("L" if place % 5 == 4 else "RGB").save(file, "JPEG" if place % 2 else "PNG")
        found.append(file.getvalue())
    return found


def sounds(count: int, *, seed: int = 0, rate: int = 16_000) -> list[bytes]:
    """Return sounds of a hundredth to a tenth of a second, as WAV."""
    random, numbers = Random(seed), np.random.default_rng(seed)
    found = list[bytes]()
    for _ in range(count):
        values = numbers.normal(0, 0.2, random.randint(rate // 100, rate // 10))
        file = io.BytesIO()
        with wave.open(file, "wb") as opened:
            opened.setnchannels(1)
            opened.setsampwidth(2)
            opened.setframerate(rate)
            opened.writeframes((values * 32767).clip(-32768, 32767).astype("<i2").tobytes())
        found.append(file.getvalue())
    return found


def samples_in(sound: bytes) -> Any:
    """Return the samples of a WAV file, -1 to 1."""
    with wave.open(io.BytesIO(sound)) as opened:
        return np.frombuffer(opened.readframes(opened.getnframes()), "<i2").astype(np.float32) / 32768


def reference(name: str, folder: Path) -> Callable[[Sequence[Any], Sequence[str]], list[tuple[torch.Tensor, ...]]]:
    """Return the folder's own pipeline: processor and network of transformers, without anything of ours.

    It takes raw inputs, and second texts (none: no pairs); of each it returns the outputs.
    """
    case = CASES[name]
    model = getattr(transformers, case.model).from_pretrained(folder, attn_implementation="eager").eval()
    if case.of == "text":
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        longest = LONGEST - 2 if case.model.startswith(("Roberta", "XLMRoberta", "MPNet")) else LONGEST
        longest = 24 if case.pooling else longest
    elif case.of == "image":
        processor = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
    else:
        extractor = transformers.AutoFeatureExtractor.from_pretrained(folder)

    def read(raw: Any, second: str | None) -> Any:
        if case.of == "text":
            return tokenizer(raw, second, truncation=True, max_length=longest, return_tensors="pt")
        if case.of == "image":
            made = processor(images=Image.open(io.BytesIO(raw)).convert("RGB"), return_tensors="pt")
            return {"pixel_values": made["pixel_values"]}
        made = extractor(samples_in(raw), sampling_rate=16_000, return_tensors="pt")
        return {"input_values": made["input_values"]}

    @torch.inference_mode()
    def ask(raw: Sequence[Any], seconds: Sequence[str]) -> list[tuple[torch.Tensor, ...]]:
        answers, known = list[tuple[torch.Tensor, ...]](), frozenset(signature(model.forward).parameters)
        for place, one in enumerate(raw):
            rows = read(one, seconds[place] if seconds else None)
            taken = {key: rows[key] for key in rows if key in known}
            found = model(**taken)
            if case.task is not Task.EMBED:
                answers.append((found.logits, found.pred_boxes) if case.task is Task.DETECT else (found.logits,))
            elif case.of == "image":
                answers.append((found.pooler_output,))
            else:
                answers.append((_embedded(case, found.last_hidden_state, folder),))
        return answers

    return ask


def _embedded(case: Case, hidden: torch.Tensor, folder: Path) -> torch.Tensor:
    """Return the embedding of one text without padding, `(1, L, D)` to `(1, D)`."""
    vector = {"cls": hidden[:, 0], "max": hidden.amax(1)}.get(case.pooling, hidden.mean(1))
    if case.dense:
        weights = load_file(folder / "2_Dense" / "model.safetensors")
        vector = torch.tanh(vector @ weights["linear.weight"].T + weights["linear.bias"])
    return vector / vector.norm(dim=1, keepdim=True) if case.pooling else vector
