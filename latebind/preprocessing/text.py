"""Converts texts to a model's token ids with the `tokenizers` library, like transformers' fast tokenizers."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from latebind.domain.errors import InvalidRequest, RepositoryError
from latebind.domain.model import Media, RawInput
from latebind.preprocessing.decoding import TextDecoder
from latebind.preprocessing.preprocessor import USUAL, Array, Given, Kept, Prepared, Raw, Reading, columns
from latebind.preprocessing.settings import Role, TextSettings
from latebind.preprocessing.tokenizer import TokenizerFile, is_of_library, load_tokenizer

if TYPE_CHECKING:
    from tokenizers import Encoding

TEXT, PAIR = "text", "text_pair"
LEAST_BYTES, MOST_BYTES = 1 << 16, 1 << 18  # the range of a model's limit on the bytes of a text
BYTES_PER_TOKEN = 16  # far more than any language needs
PART_BYTES, PART_ROWS = 1 << 20, 1_024  # passed to the library at once: what it returns takes much more memory

Row: TypeAlias = str | tuple[str, str]


def most_bytes(settings: TextSettings) -> int:
    """Return how many bytes a text may have, with its prompt, however much of it may be cut off."""
    return min(max(BYTES_PER_TOKEN * settings.longest, LEAST_BYTES), MOST_BYTES)


class TextPreprocessor:
    """Converts one text a row, or two, to ids, mask, types and positions, `(L,) int64` each.

    `raw` says whether the second text is required; by default it is optional. If the model `writes`, `decoder` decodes
    its tokens.

    Raises `RepositoryError` for a tokenizer that the library refuses or that leaves no room for a text.
    """

    def __init__(
        self,
        settings: TextSettings,
        file: TokenizerFile,
        *,
        spans: bool = False,
        raw: tuple[RawInput, ...] = (),
        writes: bool = False,
    ) -> None:
        self._settings, self._spans = settings, spans
        pair = (RawInput(PAIR, Media.TEXT, optional=True),) if settings.pair else ()
        self._raw = raw or (RawInput(TEXT, Media.TEXT), *pair)
        self._tokenizer = load_tokenizer(file)
        self.decoder = TextDecoder(self._tokenizer) if writes else None
        self._most_bytes = most_bytes(settings)
        # The fast one, without character positions, treats two texts as one if nothing is put between them.
        whole = spans or self._tokenizer.post_processor is None
        self._encode = self._tokenizer.encode_batch if whole else self._tokenizer.encode_batch_fast
        added = max(self._tokenizer.num_special_tokens_to_add(pair) for pair in {False, settings.pair})
        if added >= settings.longest:
            raise RepositoryError(
                f"tokenizer.json adds {added} tokens to each text, and the model takes {settings.longest} in all: "
                "build the model again from a folder whose files go together"
            )

    @property
    def raw(self) -> tuple[RawInput, ...]:
        """`text`, and `text_pair` if rows may have two."""
        return self._raw

    @property
    def makes(self) -> frozenset[str]:
        """The names of the model's inputs."""
        return frozenset(self._settings.inputs.values())

    @property
    def ids(self) -> str:
        """The model's input that has the tokens."""
        return self._settings.inputs[Role.IDS]

    def prepare(self, given: Given, how: Reading = USUAL) -> list[Prepared]:
        """Return the ids of each text, cut to the model's longest if `how` allows it, of two the longer one.

        Raises `InvalidRequest`, which names the element.
        """
        found = columns(self.raw, given)
        before, kept_end = self._prompt(how.prompt), how.kept or self._settings.kept
        firsts = [self._text(raw, TEXT, place, before) for place, raw in enumerate(found[TEXT])]
        rows: Sequence[Row] = firsts
        if PAIR in found:
            seconds = [self._text(raw, PAIR, place, "") for place, raw in enumerate(found[PAIR])]
            rows = list(zip(firsts, seconds, strict=True))
        prepared = list[Prepared]()
        for first, part in _parts(rows):
            for place, encoding in enumerate(self._encoded(part, first), first):
                prepared.append(self._row(encoding, place, kept=kept_end if how.truncate else None, before=len(before)))
        return prepared

    def rows_of(self, tokens: Sequence[Sequence[int]]) -> list[Prepared]:
        """Return rows for tokens that a client has made itself, special ones included.

        Raises `InvalidRequest` for a row without tokens, or with more than the model takes.
        """
        rows, longest = list[Prepared](), self._settings.longest
        for place, row in enumerate(tokens):
            if not 1 <= len(row) <= longest:
                raise InvalidRequest(f"element {place} has {len(row)} tokens: send 1 to {longest}")
            try:
                ids = np.array(row, np.int64)
            except OverflowError as error:
                raise InvalidRequest(f"element {place} has a token of more than 64 bits") from error
            rows.append(Prepared(self._tensors(ids, np.zeros_like(ids)), len(ids)))
        return rows

    def _prompt(self, name: str | None) -> str:
        prompts = self._settings.prompts
        name = self._settings.prompt if name is None else name
        if name and name not in prompts:
            known = ", ".join(sorted(prompts)) or "none"
            raise InvalidRequest(f"there is no prompt {name[:100]!r}: this model has {known}")
        return prompts[name] if name else ""

    def _text(self, raw: Raw, name: str, place: int, before: str) -> str:
        """Return a text, checked to be valid Unicode and not too long, with its prompt."""
        if len(raw) > self._most_bytes:  # a character has at least a byte
            raise self._too_large(name, place, len(raw))
        try:
            text = before + (raw if isinstance(raw, str) else raw.decode())
            size = len(text.encode())  # raises for lone surrogates, which JSON strings may contain
        except UnicodeError as error:
            raise InvalidRequest(f"element {place} of {name!r} is not valid UTF-8") from error
        if size > self._most_bytes:
            raise self._too_large(name, place, size)
        return text

    def _too_large(self, name: str, place: int, size: int) -> InvalidRequest:
        return InvalidRequest(
            f"element {place} of {name!r} has at least {size} bytes, more than the {self._most_bytes} that a text may "
            "have: send parts of it"
        )

    def _encoded(self, rows: Sequence[Row], first: int) -> "list[Encoding]":
        try:
            return self._encode(rows)
        except BaseException as error:
            if not is_of_library(error):
                raise
            if len(rows) > 1:  # find which one it is
                return [encoding for place, row in enumerate(rows) for encoding in self._encoded([row], first + place)]
            raise InvalidRequest(f"element {first} of {TEXT!r} cannot be read by this model's tokenizer") from error

    def _row(self, encoding: "Encoding", place: int, *, kept: Kept | None, before: int) -> Prepared:
        """Return a row; if its texts are too long, the `kept` end stays (None: they may not be cut)."""
        ids = np.array(encoding.ids, np.int64)
        longest = self._settings.longest
        if not len(ids):
            raise InvalidRequest(f"element {place} of {TEXT!r} has no tokens: send a text that is not empty")
        places: Any = slice(None)
        if len(ids) > longest:
            if kept is None:
                raise InvalidRequest(
                    f"element {place} of {TEXT!r} has {len(ids)} tokens, and the model takes {longest}: shorten it, or "
                    "ask for it to be truncated"
                )
            places = self._kept(encoding, kept)
        types = np.array(encoding.type_ids if Role.TYPES in self._settings.inputs else ids, np.int64)
        tensors = self._tensors(ids[places], types[places])
        used = len(ids[places])
        spans = self._spans_of(encoding, before)[places] if self._spans else None
        return Prepared(tensors, used, len(ids) - used, spans)

    def _tensors(self, ids: Array, types: Array) -> dict[str, Array]:
        """Return the model's inputs `(L,) int64` for tokens and their types (which text each belongs to)."""
        mask, positions = np.ones(len(ids), np.int64), np.arange(len(ids))
        made = {Role.IDS: ids, Role.TYPES: types, Role.MASK: mask, Role.POSITIONS: positions}
        return {name: made[role] for role, name in self._settings.inputs.items()}

    def _kept(self, encoding: "Encoding", end: Kept) -> Array:
        """Return the places of the tokens that stay: all special ones, and the texts' first ones (or last).

        Of two texts the longer one is cut until they are equal, then both, as the library's `longest_first` does.
        """
        of = np.array([-1 if text is None else text for text in encoding.sequence_ids])
        room = self._settings.longest - int((of < 0).sum())
        first, second = int((of == 0).sum()), int((of == 1).sum())
        if not second:
            lengths = (room, 0)
        else:
            short = min(first, second)
            long = short if short > room else max(short, room - short)
            if short + long > room:
                short, long = room // 2, room - room // 2
            lengths = (short, long) if first <= second else (long, short)
        kept = of < 0
        for text, length in enumerate(lengths):
            places = np.flatnonzero(of == text)
            kept[places[:length] if end == "start" else places[max(len(places) - length, 0) :]] = True
        return np.flatnonzero(kept)

    def _spans_of(self, encoding: "Encoding", before: int) -> Array:
        """Return the characters of each token `(L, 2) int32`, not counting those put `before` the first text."""
        spans = np.array(encoding.offsets, np.int32).reshape(-1, 2)
        if before:
            first = np.array([text == 0 for text in encoding.sequence_ids])
            spans[first] = np.maximum(spans[first] - before, 0)
        return spans


def _parts(rows: Sequence[Row]) -> Iterator[tuple[int, Sequence[Row]]]:
    """Yield the rows in parts that are passed to the library at once, each with the place of its first row."""
    begin = size = 0
    for place, row in enumerate(rows):
        length = len(row) if isinstance(row, str) else sum(map(len, row))
        if place > begin and (size + length > PART_BYTES or place - begin == PART_ROWS):
            yield begin, rows[begin:place]
            begin, size = place, 0
        size += length
    if rows:
        yield begin, rows[begin:]
