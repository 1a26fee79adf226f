"""Two small translators: an LSTM encoder-decoder with attention (after GNMT), a Transformer with keys and values kept.

Each is what latebind serves as a sequence model: `encode` reads the input and makes the state of a request, `step` says
from the last word what comes next and what has changed of the state. Rows of a batch need not be at the same position.
"""

from math import sqrt
from typing import cast

import torch
from torch import Tensor, nn

PADDING, START, END, UNKNOWN = range(4)
LONGEST_INPUT = 40  # words; longer sentences are cut off
LONGEST_OUTPUT = 40
WORDS_IN, WORDS_OUT = 6144, 8192  # at most, the four above included
WIDTH = 256
LAYERS = 2
HEADS = 4

State = dict[str, Tensor]


def in_order(rows: Tensor, places: Tensor) -> Tensor:
    """Return `(B, M, width)`: of `rows` `(B, L, width)` those at `places` `(B, M)`."""
    return torch.gather(rows, 1, places[:, :, None].expand(-1, -1, rows.shape[2]))


class LstmTranslator(nn.Module):
    """A bidirectional layer and one above it read; two layers with attention write."""

    start, end, padding = START, END, PADDING
    longest_output = LONGEST_OUTPUT

    def __init__(self, words_in: int = WORDS_IN, words_out: int = WORDS_OUT, width: int = WIDTH) -> None:
        super().__init__()
        self.words_in = nn.Embedding(words_in, width)
        self.words_out = nn.Embedding(words_out, width)
        self.forwards, self.backwards = (nn.LSTM(width, width // 2, batch_first=True) for _ in range(2))
        self.above = nn.LSTM(width, width, batch_first=True)
        self.first, self.second = nn.LSTMCell(2 * width, width), nn.LSTMCell(2 * width, width)
        self.ask = nn.Linear(width, width, bias=False)
        self.join = nn.Linear(2 * width, width)
        self.answer = nn.Linear(width, words_out)
        self.drop = nn.Dropout(0.2)
        self.blank = {"cell_1": (width,), "hidden_2": (width,), "cell_2": (width,)}

    def encode(self, tokens: Tensor, length: Tensor) -> State:
        """Return the state for `tokens` `(B, L)`, of which the first `length` `(B,)` count."""
        given = self.drop(self.words_in(tokens))
        back = (length[:, None] - 1 - torch.arange(tokens.shape[1])).clamp(min=0)
        read_back = in_order(self.backwards(in_order(given, back))[0], back)
        both = torch.cat((self.forwards(given)[0], read_back), dim=2)
        memory = self.above(self.drop(both))[0] + given
        last = in_order(memory, (length - 1)[:, None])[:, 0]
        return {"length": length, "memory": memory, "hidden_1": torch.tanh(last), "context": last}

    def step(self, token: Tensor, position: Tensor, **state: Tensor) -> State:
        """Return the logits `(B, words)` behind `token` `(B,)` and the state as it is then."""
        del position
        read, changed = self.advance(self.words_out(token), state)
        return {"logits": self.answer(read), **changed}

    def advance(self, word: Tensor, state: State) -> tuple[Tensor, State]:
        """Return what the logits are made of, `(B, width)`, and the state that has changed."""
        given = torch.cat((self.drop(word), state["context"]), dim=1)
        hidden_1, cell_1 = self.first(given, (state["hidden_1"], state["cell_1"]))
        given = torch.cat((self.drop(hidden_1), state["context"]), dim=1)
        hidden_2, cell_2 = self.second(given, (state["hidden_2"], state["cell_2"]))
        memory = state["memory"]
        scores = torch.matmul(memory, self.ask(hidden_2)[:, :, None])[:, :, 0] / sqrt(memory.shape[2])
        unseen = torch.arange(memory.shape[1]) >= state["length"][:, None]
        weights = torch.softmax(scores.masked_fill(unseen, -torch.inf), dim=1)
        context = torch.matmul(weights[:, None], memory)[:, 0]
        read = torch.tanh(self.join(torch.cat((hidden_2 + hidden_1, context), dim=1)))
        changed = {"hidden_1": hidden_1, "cell_1": cell_1, "hidden_2": hidden_2, "cell_2": cell_2, "context": context}
        return self.drop(read), changed

    def forward(self, tokens: Tensor, length: Tensor, written: Tensor) -> Tensor:
        """Return the logits `(B, T, words)` behind each of the words `written` `(B, T)`: for training."""
        nothing = torch.zeros(len(tokens), self.join.out_features)
        state = {**self.encode(tokens, length), **dict.fromkeys(self.blank, nothing)}
        found = []
        for word in self.words_out(written).unbind(dim=1):
            read, changed = self.advance(word, state)
            state |= changed
            found.append(read)
        logits: Tensor = self.answer(torch.stack(found, dim=1))
        return logits


class LstmStep(nn.Module):
    """One step of the LSTM as a model by itself: its callers keep the state, and each call is one step of a sentence.

    For measurements of how single steps are batched.
    """

    def __init__(self, translator: LstmTranslator) -> None:
        super().__init__()
        self.translator = translator

    def forward(
        self,
        token: Tensor,
        length: Tensor,
        memory: Tensor,
        hidden_1: Tensor,
        cell_1: Tensor,
        hidden_2: Tensor,
        cell_2: Tensor,
        context: Tensor,
    ) -> tuple[Tensor, ...]:
        """Return the logits `(B, words)` behind `token` `(B,)`, then the state, each `(B, width)` and in its order.

        `memory` `(B, L, width)` is what was read, of which the first `length` `(B,)` count.
        """
        state = {"hidden_1": hidden_1, "cell_1": cell_1, "hidden_2": hidden_2, "cell_2": cell_2, "context": context}
        after = self.translator.step(token, token, length=length, memory=memory, **state)
        return after["logits"], *(after[name] for name in state)


class Attention(nn.Module):
    """Queries, keys, values and what is made of them, of several heads."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def apart(self, tensor: Tensor) -> Tensor:
        """Return `(B, L, width)` as `(B, heads, L, width / heads)`."""
        return tensor.view(tensor.shape[0], -1, self.heads, tensor.shape[2] // self.heads).transpose(1, 2)

    def weighed(self, scores: Tensor, unseen: Tensor) -> Tensor:
        """Return the weights `(B, heads, L, M)`, none where `unseen`."""
        return torch.softmax(scores.masked_fill(unseen, -torch.inf), dim=-1)

    def forward(self, given: Tensor, keys: Tensor, values: Tensor, unseen: Tensor) -> Tensor:
        """Return `(B, L, width)` for queries from `given`, over `keys` and `values` `(B, heads, M, width / heads)`."""
        queries = self.apart(self.query(given)) / sqrt(keys.shape[3])
        weights = self.weighed(torch.matmul(queries, keys.transpose(2, 3)), unseen)
        found: Tensor = self.out(torch.matmul(weights, values).transpose(1, 2).flatten(2))
        return found

    def stepping(self, given: Tensor, keys: Tensor, values: Tensor, unseen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Attend from one word to those before it and to itself; return that and its own key and value.

        `given` is `(B, 1, width)`, `keys` and `values` are of the words before it.
        """
        own_key, own_value = self.apart(self.key(given)), self.apart(self.value(given))
        queries = self.apart(self.query(given)) / sqrt(keys.shape[3])
        before = torch.matmul(queries, keys.transpose(2, 3)).masked_fill(unseen, -torch.inf)
        own = (queries * own_key).sum(dim=3, keepdim=True)
        weights = torch.softmax(torch.cat((before, own), dim=3), dim=3)
        found = torch.matmul(weights[..., :-1], values) + weights[..., -1:] * own_value
        return self.out(found.transpose(1, 2).flatten(2)), own_key[:, :, 0], own_value[:, :, 0]


def feed_forward(width: int, dropout: float) -> nn.Module:
    """Return the two layers behind an attention."""
    return nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Dropout(dropout), nn.Linear(4 * width, width))


class Reader(nn.Module):
    """One layer of the encoder."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention = Attention(width, heads)
        self.feed = feed_forward(width, dropout)
        self.before_attention, self.before_feed = nn.LayerNorm(width), nn.LayerNorm(width)
        self.drop = nn.Dropout(dropout)

    def forward(self, given: Tensor, unseen: Tensor) -> Tensor:
        """Return `(B, L, width)`."""
        normal = self.before_attention(given)
        keys = self.attention.apart(self.attention.key(normal))
        values = self.attention.apart(self.attention.value(normal))
        given = given + self.drop(self.attention(normal, keys, values, unseen))
        found: Tensor = given + self.drop(self.feed(self.before_feed(given)))
        return found


class Writer(nn.Module):
    """One layer of the decoder."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.own, self.across = Attention(width, heads), Attention(width, heads)
        self.feed = feed_forward(width, dropout)
        self.before_own, self.before_across, self.before_feed = (nn.LayerNorm(width) for _ in range(3))
        self.drop = nn.Dropout(dropout)

    def memory(self, read: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values of what was read, `(B, L, width)`."""
        return self.across.apart(self.across.key(read)), self.across.apart(self.across.value(read))

    def rest(self, given: Tensor, keys: Tensor, values: Tensor, unread: Tensor) -> Tensor:
        """Return `(B, T, width)`: what follows the attention to the words written."""
        given = given + self.drop(self.across(self.before_across(given), keys, values, unread))
        found: Tensor = given + self.drop(self.feed(self.before_feed(given)))
        return found

    def forward(self, given: Tensor, unwritten: Tensor, read: Tensor, unread: Tensor) -> Tensor:
        """Return `(B, T, width)` for all words at once: for training."""
        normal = self.before_own(given)
        keys, values = self.own.apart(self.own.key(normal)), self.own.apart(self.own.value(normal))
        given = given + self.drop(self.own(normal, keys, values, unwritten))
        return self.rest(given, *self.memory(read), unread)


class TransformerTranslator(nn.Module):
    """Pre-norm, learned positions; the output layer shares its weights with the words."""

    start, end, padding = START, END, PADDING
    longest_output = LONGEST_OUTPUT

    def __init__(
        self, words_in: int = WORDS_IN, words_out: int = WORDS_OUT, width: int = WIDTH, layers: int = LAYERS
    ) -> None:
        super().__init__()
        self.words_in, self.words_out = nn.Embedding(words_in, width), nn.Embedding(words_out, width)
        self.places_in, self.places_out = nn.Embedding(LONGEST_INPUT, width), nn.Embedding(LONGEST_OUTPUT, width)
        for embedding in (self.words_in, self.words_out, self.places_in, self.places_out):
            nn.init.normal_(embedding.weight, std=width**-0.5)
        self.readers = nn.ModuleList(Reader(width, HEADS, 0.1) for _ in range(layers))
        self.writers = nn.ModuleList(Writer(width, HEADS, 0.1) for _ in range(layers))
        self.after_reading, self.after_writing = nn.LayerNorm(width), nn.LayerNorm(width)
        self.answer = nn.Linear(width, words_out)
        self.answer.weight = self.words_out.weight
        self.drop = nn.Dropout(0.1)
        written = (HEADS, LONGEST_OUTPUT, width // HEADS)
        self.blank = {f"{name}_{number}": written for name in ("keys", "values") for number in range(layers)}

    def encode(self, tokens: Tensor, length: Tensor) -> State:
        """Return the state for `tokens` `(B, L)`, of which the first `length` `(B,)` count."""
        unread = torch.arange(tokens.shape[1]) >= length[:, None, None, None]
        read = self._read(tokens, unread)
        state = {"length": length}
        for number, writer in enumerate(self._layers()):
            state[f"read_keys_{number}"], state[f"read_values_{number}"] = writer.memory(read)
        return state

    def step(self, token: Tensor, position: Tensor, **state: Tensor) -> State:
        """Return the logits `(B, words)` behind `token` `(B,)` at `position` `(B,)`, and its keys and values."""
        given = (self.words_out(token) + self.places_out(position))[:, None]
        unwritten = torch.arange(LONGEST_OUTPUT) >= position[:, None, None, None]
        unread = torch.arange(state["read_keys_0"].shape[2]) >= state["length"][:, None, None, None]
        changed = {}
        for number, writer in enumerate(self._layers()):
            keys, values = state[f"keys_{number}"], state[f"values_{number}"]
            found, changed[f"keys_{number}"], changed[f"values_{number}"] = writer.own.stepping(
                writer.before_own(given), keys, values, unwritten
            )
            given = writer.rest(given + found, state[f"read_keys_{number}"], state[f"read_values_{number}"], unread)
        return {"logits": self.answer(self.after_writing(given)[:, 0]), **changed}

    def forward(self, tokens: Tensor, length: Tensor, written: Tensor) -> Tensor:
        """Return the logits `(B, T, words)` behind each of the words `written` `(B, T)`: for training."""
        unread = torch.arange(tokens.shape[1]) >= length[:, None, None, None]
        read = self._read(tokens, unread)
        places = torch.arange(written.shape[1])
        unwritten = places > places[:, None]
        given = self.drop(self.words_out(written) + self.places_out(places))
        for writer in self._layers():
            given = writer(given, unwritten, read, unread)
        logits: Tensor = self.answer(self.after_writing(given))
        return logits

    def _layers(self) -> list[Writer]:
        return cast(list[Writer], list(self.writers))

    def _read(self, tokens: Tensor, unread: Tensor) -> Tensor:
        given = self.drop(self.words_in(tokens) + self.places_in(torch.arange(tokens.shape[1])))
        for reader in self.readers:
            given = reader(given, unread)
        read: Tensor = self.after_reading(given)
        return read


def lstm() -> LstmTranslator:
    """Return the LSTM for the words of `data`."""
    return LstmTranslator()


def lstm_step() -> LstmStep:
    """Return one step of the LSTM, untrained."""
    torch.manual_seed(0)
    return LstmStep(LstmTranslator()).eval()


def transformer() -> TransformerTranslator:
    """Return the Transformer for the words of `data`."""
    return TransformerTranslator()
