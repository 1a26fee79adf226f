"""Networks that read a query of twenty words: BERT, RoBERTa, XLNet, GPT-2, T5. All say something of the whole query.

All twenty are always there, so blocks are called without the masks that the models make for missing ones, and positions
are constants: between two blocks goes one tensor. Heads are small and share no weights with the words.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2Model,
    RobertaConfig,
    RobertaForSequenceClassification,
    T5Config,
    T5Model,
    XLNetConfig,
    XLNetModel,
)
from transformers.models.t5.modeling_t5 import T5LayerNorm

from examples.zoo.size import BENCH, Size

QUERY = 20  # words
LABELS = 16


class Bert(nn.Module):
    """`google-bert/bert-base-uncased` (Devlin et al. 2018) with a head for classes."""

    def __init__(self, size: Size = BENCH) -> None:
        super().__init__()
        config = BertConfig(
            vocab_size=size.words(30_522),
            hidden_size=size.width(768),
            num_hidden_layers=size.blocks(12),
            num_attention_heads=12,
            intermediate_size=size.width(3072),
            num_labels=LABELS,
        )
        self.body: Any = BertForSequenceClassification(config)
        self.register_buffer("segments", torch.zeros(1, QUERY, dtype=torch.int64), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map `(B, 20) int64` to logits `(B, labels)`."""
        bert = self.body.bert
        read = bert.embeddings(tokens, token_type_ids=self.segments)
        for block in bert.encoder.layer:
            read = block(read)
        logits: Tensor = self.body.classifier(bert.pooler(read))
        return logits


class Roberta(nn.Module):
    """`FacebookAI/roberta-large` (Liu et al. 2019) with a head for classes."""

    def __init__(self, size: Size = BENCH) -> None:
        super().__init__()
        config = RobertaConfig(
            vocab_size=size.words(50_265),
            hidden_size=size.width(1024),
            num_hidden_layers=size.blocks(24),
            num_attention_heads=16,
            intermediate_size=size.width(4096),
            max_position_embeddings=514,
            type_vocab_size=1,
            num_labels=LABELS,
        )
        self.body: Any = RobertaForSequenceClassification(config)
        first = config.pad_token_id + 1  # the model would count the words that are no padding
        self.register_buffer("places", torch.arange(first, first + QUERY)[None], persistent=False)
        self.register_buffer("segments", torch.zeros(1, QUERY, dtype=torch.int64), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map `(B, 20) int64` to logits `(B, labels)`."""
        roberta = self.body.roberta
        read = roberta.embeddings(tokens, token_type_ids=self.segments, position_ids=self.places)
        for block in roberta.encoder.layer:
            read = block(read)
        logits: Tensor = self.body.classifier(read)
        return logits


class XLNet(nn.Module):
    """`xlnet/xlnet-large-cased` (Yang et al. 2019) with a head for classes on its last word.

    Its blocks want the batch in the second dimension; between them it is in the first. What a block makes of the
    distances between words is the same for every query, and becomes a constant where the network is exported.
    """

    def __init__(self, size: Size = BENCH) -> None:
        super().__init__()
        config = XLNetConfig(
            vocab_size=size.words(32_000),
            d_model=size.width(1024),
            n_layer=size.blocks(24),
            n_head=16,
            d_inner=size.width(4096),
        )
        self.body: Any = XLNetModel(config)
        self.head = nn.Linear(size.width(1024), LABELS)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map `(B, 20) int64` to logits `(B, labels)`."""
        read: Tensor = self.body.word_embedding(tokens)
        distances = self.body.relative_positional_encoding(QUERY, QUERY)
        for block in self.body.layer:
            after, _ = block(read.transpose(0, 1), None, None, None, distances, None)
            read = after.transpose(0, 1).contiguous()
        logits: Tensor = self.head(read[:, -1])
        return logits


class Gpt2(nn.Module):
    """`openai-community/gpt2-medium` (Radford et al. 2019) with a head for classes in place of the words to come."""

    def __init__(self, size: Size = BENCH) -> None:
        super().__init__()
        config = GPT2Config(
            vocab_size=size.words(50_257),
            n_embd=size.width(1024),
            n_layer=size.blocks(24),
            n_head=16,
            bos_token_id=None,
            eos_token_id=None,
        )
        self.body: Any = GPT2Model(config)
        self.head = nn.Linear(size.width(1024), LABELS, bias=False)
        self.register_buffer("places", torch.arange(QUERY), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map `(B, 20) int64` to logits `(B, labels)`."""
        read = self.body.wte(tokens) + self.body.wpe(self.places)
        for block in self.body.h:
            read = block(read)
        logits: Tensor = self.head(self.body.ln_f(read)[:, -1])
        return logits


class T5(nn.Module):
    """`google-t5/t5-large` (Raffel et al. 2020): reads the query and says its first word, of few.

    What the encoder read is needed by every block of the decoder. It goes through them behind the decoder's own state,
    in one tensor `(B, 1 + 20, width)`, so that the network can be cut between any two blocks.
    """

    def __init__(self, size: Size = BENCH) -> None:
        super().__init__()
        config = T5Config(
            vocab_size=size.words(32_128),
            d_model=size.width(1024),
            d_kv=size.width(64),
            d_ff=size.width(4096),
            num_layers=size.blocks(24),
            num_heads=16,
        )
        self.body: Any = with_rms_norms(T5Model(config))
        self.head = nn.Linear(size.width(1024), LABELS, bias=False)
        self.register_buffer("start", torch.zeros(1, 1, dtype=torch.int64), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map `(B, 20) int64` to logits `(B, labels)`."""
        begun = self.body.shared(self.start).expand(tokens.shape[0], -1, -1)
        both = torch.cat([begun, self._read(tokens)], 1)
        decoder = self.body.decoder
        distances = decoder.block[0].layer[0].SelfAttention.compute_bias(1, 1)
        for block in decoder.block:
            said, read = both[:, :1], both[:, 1:]
            said = block(said, position_bias=distances, encoder_hidden_states=read)[0]
            both = torch.cat([said, read], 1)
        logits: Tensor = self.head(decoder.final_layer_norm(both[:, 0]))
        return logits

    def _read(self, tokens: Tensor) -> Tensor:
        encoder = self.body.encoder
        distances = encoder.block[0].layer[0].SelfAttention.compute_bias(QUERY, QUERY)
        read = self.body.shared(tokens)
        for block in encoder.block:
            read = block(read, position_bias=distances)[0]
        found: Tensor = encoder.final_layer_norm(read)
        return found


def with_rms_norms(body: nn.Module) -> nn.Module:
    """Put torch's norm, which is one operator, in the place of T5's, which computes the same by five."""
    for part in list(body.modules()):
        for name, norm in part.named_children():
            if isinstance(norm, T5LayerNorm):
                setattr(part, name, nn.RMSNorm(norm.weight.shape, eps=norm.variance_epsilon))
    return body
