"""Folders of T5-small, BART-base and a Marian, at their real shapes, with drawn weights and a tokenizer for some texts.

Nothing is downloaded. What networks compute takes as long whatever their weights are, as long as answers differ.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

Foreign = Any  # of transformers or tokenizers

PIECES = 8000  # that are learnt of the texts; the others of a vocabulary are never read
SPREAD = 6.0  # of logits: with the vectors of the words, as they are drawn, an answer would be one word again and again
SPECIAL = {"eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}


@dataclass(frozen=True, slots=True)
class Writer:
    """A network of transformers: its configuration's class and sizes, and where its special tokens are."""

    config: str
    words: int
    sizes: dict[str, Any]
    special: dict[str, int]
    louder: float = (
        1.0  # vectors of words: else T5's decoder hears what was read alone, and says one word again and again
    )


def _bart(width: int, heads: int, positions: int) -> dict[str, Any]:
    sides = {name: {"layers": 6, "attention_heads": heads, "ffn_dim": 4 * width} for name in ("encoder", "decoder")}
    layers = {f"{side}_{what}": size for side, sizes in sides.items() for what, size in sizes.items()}
    said = {"normalize_before": False, "normalize_embedding": True}  # as folders have it, for ctranslate2 asks
    return {"d_model": width, "max_position_embeddings": positions, **layers, **said}


WRITERS = {
    "t5-small": Writer(
        "T5Config",
        32128,
        {"d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 6, "num_heads": 8},
        {"pad": 0, "eos": 1, "unk": 2, "decoder_start": 0},
        louder=4.0,
    ),
    "bart-base": Writer("BartConfig", 50265, _bart(768, 12, 1024), {"pad": 1, "eos": 2, "unk": 3, "decoder_start": 2}),
    "opus-mt": Writer(
        "MarianConfig",
        58101,
        {**_bart(512, 8, 512), "scale_embedding": True, "activation_function": "swish"},
        {"pad": 58100, "eos": 0, "unk": 1, "decoder_start": 58100},
    ),
}


def write_folder(folder: Path, writer: Writer, texts: Iterable[str], *, longest: int, seed: int) -> None:
    """Write a network that answers every text with `longest` tokens, and a tokenizer that is taught on these texts."""
    import transformers  # noqa: PLC0415  (an extra)

    special = writer.special
    tokenizer = _tokenizer(writer, texts)
    tokenizer.save_pretrained(folder)
    marks = {f"{name}_token_id": place for name, place in special.items() if name != "unk"}
    config = getattr(transformers, writer.config)(
        vocab_size=writer.words, tie_word_embeddings=False, forced_eos_token_id=None, **marks, **writer.sizes
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = transformers.AutoModelForSeq2SeqLM.from_config(config).eval().requires_grad_(False)
        for module in network.modules():
            if isinstance(module, torch.nn.Embedding) and module.num_embeddings == writer.words:
                module.weight.mul_(writer.louder)
                module.weight[special["pad"]] = 0.0  # as every folder has it: ctranslate2 begins a Marian's answers so
        answer = network.lm_head.weight
        answer.copy_(SPREAD * config.d_model**-0.5 * torch.randn(answer.shape))
    wishes = network.generation_config
    wishes.update(max_length=None, max_new_tokens=longest, min_new_tokens=longest, **marks)
    wishes.forced_eos_token_id, wishes.bad_words_ids = None, [[special["pad"]]]
    network.save_pretrained(folder)


def _tokenizer(writer: Writer, texts: Iterable[str]) -> Foreign:
    """Return a tokenizer with as many pieces as the network has words."""
    import tokenizers  # noqa: PLC0415  (an extra)
    import transformers  # noqa: PLC0415

    learnt = tokenizers.Tokenizer(tokenizers.models.Unigram())
    learnt.normalizer = tokenizers.normalizers.NFKC()
    learnt.pre_tokenizer, learnt.decoder = tokenizers.pre_tokenizers.Metaspace(), tokenizers.decoders.Metaspace()
    trainer = tokenizers.trainers.UnigramTrainer(vocab_size=PIECES, show_progress=False)
    learnt.train_from_iterator(texts, trainer)
    said = json.loads(learnt.to_str())
    pieces = [(piece, score) for piece, score in said["model"]["vocab"]][: writer.words - len(SPECIAL)]
    pieces += [(f"\u2581word{number}", -100.0) for number in range(writer.words - len(SPECIAL) - len(pieces))]
    for name in sorted(SPECIAL, key=lambda name: writer.special[name.removesuffix("_token")]):
        pieces.insert(writer.special[name.removesuffix("_token")], (SPECIAL[name], 0.0))
    learnt.model = tokenizers.models.Unigram(pieces, unk_id=writer.special["unk"])
    learnt.add_special_tokens([*SPECIAL.values()])
    learnt.post_processor = tokenizers.processors.TemplateProcessing(
        "$A </s>", "$A $B </s>", [("</s>", writer.special["eos"])]
    )
    names = {"model_input_names": ["input_ids", "attention_mask"], "bos_token": SPECIAL["eos_token"], **SPECIAL}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=learnt, **names)
