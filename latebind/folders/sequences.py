"""T5, BART and Marian as sequence models: encoder and step around the weights of transformers' networks.

Answers are token for token those of `generate(num_beams=1, do_sample=False)`. Keys and values are cached: those of the
input are computed once, those of each token when it is written, and a step takes no more of them than its longest row
has. A transformers network keeps its rows at one position and grows its caches by copying; here each row has its own
position, and caches are not copied.
"""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, scaled_dot_product_attention

from latebind.domain.errors import ConfigError
from latebind.sequence.greedy import Rules
from latebind.sequence.state import WRITTEN

Foreign = Any  # an object of transformers
State = dict[str, Tensor]

LEAST = torch.finfo(torch.float32).min  # added to the scores of padding, whose weight becomes 0
USUAL_ANSWER = 20  # tokens, if a folder gives no limit: `generate` stops there too
DRAWN = 16  # rows
POSITIONS = 512  # of inputs, if positions are relative and a folder gives no limit
# Settings of `generate` that change the probabilities and are not supported here, with their neutral values.
NOT_FOLLOWED: dict[str, tuple[object, ...]] = {
    "num_beams": (None, 1),
    "do_sample": (None, False),
    "repetition_penalty": (None, 1.0),
    "encoder_repetition_penalty": (None, 1.0),
    "encoder_no_repeat_ngram_size": (None, 0),
    "begin_suppress_tokens": (None, []),
    "exponential_decay_length_penalty": (None,),
    "guidance_scale": (None, 1.0),
    "penalty_alpha": (None,),
    "sequence_bias": (None,),
    "stop_strings": (None,),
    "watermarking_config": (None,),
}


def _joined(layers: Sequence[Foreign], scale: float) -> nn.Linear:
    """Return one layer whose output concatenates those of these layers; that of the first one is scaled."""
    with_bias = layers[0].bias is not None
    found = nn.Linear(layers[0].in_features, sum(layer.out_features for layer in layers), bias=with_bias)
    first, *others = layers
    with torch.no_grad():
        found.weight.copy_(torch.cat([first.weight * scale, *(layer.weight for layer in others)]))
        if with_bias:
            found.bias.copy_(torch.cat([first.bias * scale, *(layer.bias for layer in others)]))
    return found


class Attention(nn.Module):
    """Self-attention with `heads`: of all tokens of an input, or of one token that is written."""

    def __init__(self, query: Foreign, key: Foreign, value: Foreign, out: Foreign, *, heads: int, scale: float) -> None:
        super().__init__()
        self.heads = heads
        self.all = _joined((query, key, value), scale)
        self.out = out

    def forward(self, given: Tensor, bias: Tensor) -> Tensor:
        """Return `(B, L, width)` for what is `given`; `bias` `(B, 1 or heads, 1 or L, L)` is added to scores."""
        query, key, value = self.all(given).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind()
        found = scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=1.0)
        attended: Tensor = self.out(found.transpose(1, 2).flatten(2))
        return attended

    def write(self, given: Tensor, keys: Tensor, values: Tensor, *, bias: Tensor, own_bias: Tensor) -> list[Tensor]:
        """Attend from one token `(B, width)` to those before it and to itself; return the output, its key, its value.

        `keys` and `values` are `(B, heads, T, size)`, `bias` `(B, 1 or heads, 1, T)`, and `own_bias` `(1 or heads, 1)`
        is that of the token for itself. Writing its key to its place first would copy all of the others.
        """
        query, key, value = self.all(given).unflatten(1, (3, self.heads, 1, -1)).unbind(1)
        before = torch.matmul(query, keys.transpose(2, 3)) + bias
        own = (query * key).sum(dim=3, keepdim=True) + own_bias[:, :, None]
        weights = torch.softmax(torch.cat((before, own), dim=3), dim=3)
        found = torch.matmul(weights[..., :-1], values) + weights[..., -1:] * value
        return [self.out(found.flatten(1)), key[:, :, 0], value[:, :, 0]]


class Across(nn.Module):
    """Cross-attention of a token that is written to the input."""

    def __init__(self, query: Foreign, key: Foreign, value: Foreign, out: Foreign, *, heads: int, scale: float) -> None:
        super().__init__()
        self.heads = heads
        self.query = _joined((query,), scale)
        self.both = _joined((key, value), 1.0)
        self.out = out

    def memory(self, read: Tensor) -> tuple[Tensor, ...]:
        """Return keys and values `(B, heads, L, size)` of the input `(B, L, width)`."""
        found: tuple[Tensor, ...] = self.both(read).unflatten(2, (2, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind()
        return found

    def forward(self, given: Tensor, keys: Tensor, values: Tensor, bias: Tensor) -> Tensor:
        """Return `(B, width)` for a token `(B, width)`; `bias` is `(B, 1, 1, L)`."""
        query = self.query(given).unflatten(1, (self.heads, 1, -1))
        weights = torch.softmax(torch.matmul(query, keys.transpose(2, 3)) + bias, dim=3)
        found: Tensor = self.out(torch.matmul(weights, values).flatten(1))
        return found


class Layer(nn.Module):
    """A layer of encoder or decoder: self-attention, cross-attention (in a decoder) and a feed-forward part.

    Each part adds to its input, and has a norm, `first` or after the sum.
    """

    def __init__(self, own: Attention, feed: nn.Module, norms: Sequence[nn.Module], across: Across | None) -> None:
        super().__init__()
        self.own, self.feed, self.across = own, feed, across
        self.norms = nn.ModuleList(norms)
        self.first = False

    def _added(self, part: int, given: Tensor, call: Callable[[Tensor], Tensor]) -> Tensor:
        norm = self.norms[part]
        found: Tensor = given + call(norm(given)) if self.first else norm(given + call(given))
        return found

    def read(self, given: Tensor, bias: Tensor) -> Tensor:
        """Return `(B, L, width)`."""
        return self._added(-1, self._added(0, given, lambda one: self.own(one, bias)), self.feed)

    def write(self, given: Tensor, kept: Sequence[Tensor], bias: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Return `(B, width)` of a token, its key and its value.

        `kept` are keys and values of earlier tokens, and of the input; `bias` is that of earlier tokens, of the token
        for itself, and of the input.
        """
        assert self.across is not None, "an encoder does not generate"
        keys, values, read_keys, read_values = kept
        of_tokens, of_itself, of_read = bias
        made: list[Tensor] = []

        def attended(one: Tensor) -> Tensor:
            found, *own = self.own.write(one, keys, values, bias=of_tokens, own_bias=of_itself)
            made.extend(own)
            return found

        across = self.across
        given = self._added(0, given, attended)
        given = self._added(1, given, lambda one: across(one, read_keys, read_values, of_read))
        key, value = made
        return self._added(2, given, self.feed), key, value


class Side(nn.Module):
    """Encoder or decoder: embeddings of words and positions, layers, and a score bias for each distance.

    `distances` `(distances, heads)` begin, in an encoder, with that of the furthest token ahead (`ahead` places).
    """

    def __init__(
        self,
        words: Tensor,
        layers: Sequence[Layer],
        *,
        scale: float = 1.0,
        places: Tensor | None = None,
        distances: Tensor | None = None,
        before: nn.Module | None = None,
        after: nn.Module | None = None,
        first: bool = False,
    ) -> None:
        super().__init__()
        self.register_buffer("words", words.detach())
        self.register_buffer("places", None if places is None else places.detach())
        self.register_buffer("distances", None if distances is None else distances.detach())
        self.scale = scale
        self.layers = nn.ModuleList(layers)
        self.before, self.after = before or nn.Identity(), after or nn.Identity()
        for layer in layers:
            layer.first = first

    def begin(self, tokens: Tensor, places: Tensor) -> Tensor:
        """Return the input of the first layer, `(..., width)`, for tokens `(...)` at these places."""
        given = embedding(tokens, self.get_buffer("words"))
        if self.scale != 1.0:
            given = given * self.scale
        if self.places is not None:
            given = given + embedding(places, self.get_buffer("places"))
        found: Tensor = self.before(given)
        return found


class SequenceNetwork(nn.Module):
    """A network that `latebind.sequence` takes: `encode`, `step`, and the attributes that it needs.

    `longest_input` is the most tokens that it reads. `notes` name settings of the folder that are not followed.
    """

    def __init__(self, reader: Side, writer: Side, answer: nn.Linear, *, scale: float, longest_input: int) -> None:
        super().__init__()
        self.reader, self.writer, self.answer, self.scale = reader, writer, answer, scale
        self.longest_input = longest_input
        self.start = self.end = self.padding = self.longest_output = 0
        self.rules, self.notes = Rules(), tuple[str, ...]()
        own = [layer.own for layer in self._layers(writer)]
        shapes = [(one.heads, WRITTEN, one.all.out_features // (3 * one.heads)) for one in own]
        self.blank = {f"{name}_{number}": shape for number, shape in enumerate(shapes) for name in ("keys", "values")}

    def encode(self, tokens: Tensor, length: Tensor) -> State:
        """Return the state for tokens `(B, L)`, of which the first `length` `(B,)` count."""
        side, places = self.reader, torch.arange(tokens.shape[1])
        bias = _hidden(places >= length[:, None])
        if side.distances is not None:
            ahead = places - places[:, None] + self.longest_input - 1
            bias = bias + embedding(ahead, side.get_buffer("distances")).permute(2, 0, 1)
        given = side.begin(tokens, places)
        for layer in self._layers(side):
            given = layer.read(given, bias)
        read, state = side.after(given), {"length": length}
        for number, layer in enumerate(self._layers(self.writer)):
            assert layer.across is not None
            state[f"read_keys_{number}"], state[f"read_values_{number}"] = layer.across.memory(read)
        return state

    def step(self, token: Tensor, position: Tensor, **state: Tensor) -> State:
        """Return the logits `(B, words)` after `token` `(B,)` at `position` `(B,)`, and its keys and values."""
        side = self.writer
        places, read = (torch.arange(state[name].shape[2]) for name in ("keys_0", "read_keys_0"))
        of_read = _hidden(read >= state["length"][:, None])
        of_tokens, of_itself = _hidden(places >= position[:, None]), torch.zeros(1, 1)
        if side.distances is not None:
            distances = side.get_buffer("distances")
            back = (position[:, None] - places).clamp(min=0)
            of_tokens = of_tokens + embedding(back, distances).transpose(1, 2)[:, :, None]
            of_itself = distances[0][:, None]
        given, changed = side.begin(token, position), State()
        for number, layer in enumerate(self._layers(side)):
            kept = [state[f"{name}_{number}"] for name in ("keys", "values", "read_keys", "read_values")]
            given, changed[f"keys_{number}"], changed[f"values_{number}"] = layer.write(
                given, kept, (of_tokens, of_itself, of_read)
            )
        given = side.after(given)
        return {"logits": self.answer(given if self.scale == 1.0 else given * self.scale), **changed}

    @staticmethod
    def _layers(side: Side) -> list[Layer]:
        return [layer for layer in side.layers if isinstance(layer, Layer)]


def _hidden(places: Tensor) -> Tensor:
    """Return what to add to scores, `(B, 1, 1, L)`, to hide all but these `places` `(B, L)` bool."""
    return (places.float() * LEAST)[:, None, None]


# The families ---------------------------------------------------------------------------------------------------------


def _t5(network: Foreign, longest_input: int, longest_output: int) -> SequenceNetwork:
    """T5, mT5 and Flan-T5: positions count by their distance, norms come first, scores are not scaled."""

    def side(stack: Foreign, distances: Tensor) -> Side:
        layers = []
        for block in stack.block:
            own, *others = block.layer
            across = _of_t5(Across, others[0].EncDecAttention) if len(others) > 1 else None
            norms = [part.layer_norm for part in block.layer]
            layers.append(Layer(_of_t5(Attention, own.SelfAttention), others[-1].DenseReluDense, norms, across))
        own = stack.block[0].layer[0].SelfAttention
        buckets = own._relative_position_bucket(
            distances,
            bidirectional=not own.is_decoder,
            num_buckets=own.relative_attention_num_buckets,
            max_distance=own.relative_attention_max_distance,
        )
        table = own.relative_attention_bias.weight[buckets]
        return Side(stack.embed_tokens.weight, layers, distances=table, after=stack.final_layer_norm, first=True)

    reader = side(network.encoder, torch.arange(1 - longest_input, longest_input))
    writer = side(network.decoder, -torch.arange(longest_output))
    scaled = getattr(network.config, "scale_decoder_outputs", False)
    scale = network.config.d_model**-0.5 if scaled else 1.0
    return SequenceNetwork(reader, writer, network.lm_head, scale=scale, longest_input=longest_input)


def _of_t5(kind: type[Any], made: Foreign) -> Any:
    return kind(made.q, made.k, made.v, made.o, heads=made.n_heads, scale=1.0)


def _bart(network: Foreign, longest_input: int, longest_output: int) -> SequenceNetwork:
    """BART, mBART and Marian: a vector for each position, scores scaled by the size of a head.

    Norms come after the sums, but first in mBART.
    """
    del longest_output
    config, inner = network.config, network.model

    def side(stack: Foreign) -> Side:
        layers = []
        for layer in stack.layers:
            across = getattr(layer, "encoder_attn", None)
            between = [] if across is None else [layer.encoder_attn_layer_norm]
            layers.append(
                Layer(
                    _of_bart(Attention, layer.self_attn),
                    nn.Sequential(layer.fc1, layer.activation_fn, layer.fc2),
                    [layer.self_attn_layer_norm, *between, layer.final_layer_norm],
                    None if across is None else _of_bart(Across, across),
                )
            )
        places = stack.embed_positions
        return Side(
            stack.embed_tokens.weight,
            layers,
            scale=config.d_model**0.5 if config.scale_embedding else 1.0,
            places=places.weight[getattr(places, "offset", 0) :],
            before=getattr(stack, "layernorm_embedding", None),
            after=getattr(stack, "layer_norm", None),
            first=config.model_type == "mbart",
        )

    answer = nn.Linear(config.d_model, network.lm_head.out_features)
    answer.weight, answer.bias = network.lm_head.weight, nn.Parameter(network.final_logits_bias[0].detach().clone())
    return SequenceNetwork(side(inner.encoder), side(inner.decoder), answer, scale=1.0, longest_input=longest_input)


def _of_bart(kind: type[Any], made: Foreign) -> Any:
    parts = made.q_proj, made.k_proj, made.v_proj, made.out_proj
    return kind(*parts, heads=made.num_heads, scale=made.scaling)


FAMILIES: dict[str, Callable[[Foreign, int, int], SequenceNetwork]] = {
    "t5": _t5,
    "mt5": _t5,
    "bart": _bart,
    "mbart": _bart,
    "marian": _bart,
}


def sequence_of(
    network: Foreign, shown: str, *, longest_input: int | None = None, longest_output: int | None = None
) -> SequenceNetwork:
    """Return a transformers network as a sequence model; `shown` is the folder's name for users.

    It reads at most `longest_input` tokens, as far as it has positions for them, and writes at most `longest_output`,
    by default as many as `generate` does. It keeps the weights of `network`. Raises `ConfigError`, in one sentence,
    for what cannot be served.
    """
    config = network.config
    family = FAMILIES.get(config.model_type)
    if family is None:
        known = "T5, mT5, BART, mBART and Marian"
        raise ConfigError(f"{shown} is a {config.model_type} network, and text is generated only by those of {known}")
    places = getattr(config, "max_position_embeddings", None)
    wished = _wishes(network.generation_config, shown, longest_output)
    read = longest_input or places or getattr(config, "n_positions", None) or POSITIONS
    read, written = (size if places is None else min(size, places) for size in (read, wished.longest))
    if read < 2 or written < 2:
        raise ConfigError(f"{shown} reads {read} tokens and writes {written}: both must be 2 or more")
    network = network.float().eval().requires_grad_(False)
    with torch.no_grad():
        found = family(network, read, written)
    found.start, found.end, found.padding, found.longest_output = wished.start, wished.end, wished.padding, written
    found.rules, found.notes = wished.rules, wished.notes
    return found.eval().requires_grad_(False)


def example_tokens(module: SequenceNetwork, rows: Sequence[Sequence[int]] = ()) -> Tensor:
    """Return rows to build on, `(N, longest input)`: these, cut off or padded, or random ones if there are none."""
    longest, words = module.longest_input, len(module.reader.get_buffer("words"))
    if rows:
        return torch.tensor([[*row[:longest], *[module.padding] * (longest - len(row))] for row in rows])
    drawn = torch.randint(words, (DRAWN, longest), generator=torch.Generator().manual_seed(0))
    return torch.where(drawn == module.padding, (module.padding + 1) % words, drawn)


# What a folder's settings ask for -------------------------------------------------------------------------------------


class Wishes(NamedTuple):
    """The contents of `generation_config.json` that matter for greedy answers."""

    start: int
    end: int
    padding: int
    longest: int
    rules: Rules
    notes: tuple[str, ...]


def _wishes(given: Foreign, shown: str, longest: int | None) -> Wishes:
    """Return the contents of a `GenerationConfig`. Raises `ConfigError`."""

    def setting(name: str) -> Any:
        return getattr(given, name, None)

    def tokens(name: str) -> list[int]:
        found = setting(name)
        return [] if found is None else [int(one) for one in (found if isinstance(found, list | tuple) else [found])]

    start = tokens("decoder_start_token_id") or tokens("bos_token_id")
    ends, padding = tokens("eos_token_id"), tokens("pad_token_id")
    lacking = {"decoder_start_token_id": start, "eos_token_id": ends, "pad_token_id": padding}
    if missing := [name for name, found in lacking.items() if not found]:
        raise ConfigError(f"{shown}: its generation_config.json has no {missing[0]}: add the number of that token")
    notes = [
        f"{name}={setting(name)!s:.60} is not followed: answers are greedy"
        for name, neutral in NOT_FOLLOWED.items()
        if setting(name) not in neutral
    ]
    if longest is None:
        if (most := setting("max_new_tokens")) is None and (whole := setting("max_length")) is not None:
            most = whole - 1  # which counts the token before the answer
        longest = USUAL_ANSWER if most is None else most
        if most is None:
            notes.append(
                f"answers have at most {USUAL_ANSWER} tokens, because generation_config.json has no max_length"
            )
    bad = setting("bad_words_ids") or []
    if any(len(one) > 1 for one in bad):
        notes.append("bad_words_ids of several tokens are not followed")
    never = {*chain.from_iterable(one for one in bad if len(one) == 1)} - {*ends} | {*tokens("suppress_tokens")}
    least = setting("min_new_tokens")
    rules = Rules(
        ends=tuple(ends[1:]),
        first=next(iter(tokens("forced_bos_token_id")), None),
        last=min(tokens("forced_eos_token_id"), default=None),
        never=tuple(sorted(never)),
        shortest=min(max((setting("min_length") or 0) - 1, 0) if least is None else least, longest),
        unlike=min(setting("no_repeat_ngram_size") or 0, longest + 1),
    )
    return Wishes(start[0], ends[0], padding[0], longest, rules, tuple(notes))
