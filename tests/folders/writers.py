"""Small networks of transformers that write, with drawn weights, and what `generate` writes with them."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

transformers = pytest.importorskip("transformers")

WORDS, LONGEST, ROWS = 96, 24, 100
Network = Any  # of transformers


def t5(words: int = WORDS, **more: Any) -> Network:
    config = transformers.T5Config(
        vocab_size=words,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=14,
        decoder_start_token_id=0,
        **more,
    )
    return drawn(transformers.T5ForConditionalGeneration, config)


def flan() -> Network:
    return t5(feed_forward_proj="gated-gelu", tie_word_embeddings=False)


def mt5() -> Network:
    config = transformers.MT5Config(
        vocab_size=WORDS, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, decoder_start_token_id=0
    )
    return drawn(transformers.MT5ForConditionalGeneration, config)


SHAPE: dict[str, Any] = {
    "vocab_size": WORDS,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 40,
    "init_std": 0.3,
}


def bart(words: int = WORDS) -> Network:
    config = transformers.BartConfig(**SHAPE | {"vocab_size": words})
    return drawn(transformers.BartForConditionalGeneration, config)


def mbart() -> Network:
    config = transformers.MBartConfig(**SHAPE, scale_embedding=True)
    network = drawn(transformers.MBartForConditionalGeneration, config)
    network.generation_config.decoder_start_token_id, network.generation_config.forced_bos_token_id = 7, 9
    return network


def marian(words: int = WORDS) -> Network:
    last = words - 1
    config = transformers.MarianConfig(
        **SHAPE | {"vocab_size": words},
        scale_embedding=True,
        activation_function="swish",
        pad_token_id=last,
        decoder_start_token_id=last,
        eos_token_id=0,
    )
    network = drawn(transformers.MarianMTModel, config)
    network.generation_config.bad_words_ids, network.generation_config.forced_eos_token_id = [[last], [17]], 0
    return network


FAMILIES = {"t5": t5, "flan": flan, "mt5": mt5, "bart": bart, "mbart": mbart, "marian": marian}


def drawn(kind: Any, config: Any) -> Network:
    """Return a network with weights with which answers differ, and end sooner or later."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return _drawn(kind(config))


def _drawn(network: Network) -> Network:
    network.eval().requires_grad_(False)
    for parameter in network.parameters():
        if parameter.dim() == 1:
            parameter.add_(0.1 * torch.randn(parameter.shape))
    spread = (
        6 / network.config.d_model**0.5
    )  # with the vectors of the words, an answer would be one word again and again
    network.lm_head.weight = torch.nn.Parameter(spread * torch.randn(network.lm_head.weight.shape), requires_grad=False)
    if hasattr(network, "final_logits_bias"):
        network.final_logits_bias.normal_(std=0.3)
    wishes = network.generation_config
    wishes.max_length, wishes.eos_token_id = 19, None
    said = Counter(token for row in generated(network, some_rows()) for token in set(row))
    wishes.eos_token_id = min(said, key=lambda token: abs(said[token] - ROWS // 2))  # in half of the answers
    return network


def some_rows(count: int = ROWS, seed: int = 0, words: int = WORDS) -> list[list[int]]:
    """Return rows of tokens of different lengths."""
    generator = np.random.default_rng(seed)
    return [generator.integers(3, words - 1, generator.integers(1, LONGEST + 1)).tolist() for _ in range(count)]


def filled(rows: Sequence[Sequence[int]], padding: int, width: int = LONGEST) -> Tensor:
    return torch.tensor([[*row, *[padding] * (width - len(row))] for row in rows])


def generated(network: Network, rows: Sequence[Sequence[int]], **more: Any) -> list[list[int]]:
    """Return the tokens that transformers writes for each row, without the one that they begin behind."""
    padding, found = network.generation_config.pad_token_id, list[list[int]]()
    for begin in range(0, len(rows), 25):
        some = rows[begin : begin + 25]
        width = max(map(len, some))
        mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in some])
        answers = network.generate(
            filled(some, padding, width), attention_mask=mask, num_beams=1, do_sample=False, **more
        )
        found += [without_padding(row, padding) for row in answers[:, 1:].tolist()]
    return found


def without_padding(row: Sequence[int], padding: int) -> list[int]:
    count = len(row)
    while count and row[count - 1] == padding:
        count -= 1
    return list(row[:count])
