"""Decodes generated tokens to text, whole or in pieces: joined, the pieces are the text of all tokens."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from latebind.domain.errors import RepositoryError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Part = Mapping[str, Any]  # of a tokenizer file: how tokens are joined

MOST_CHARACTERS = 1 << 12  # of one token
CUT = "\N{REPLACEMENT CHARACTER}"  # stands for an incomplete character, if tokens are bytes
# Parts that derive the text of a token from that token alone, or also from whether it is the first one.
BY_TOKEN = frozenset({"Metaspace", "WordPiece", "Replace", "Strip"})
# Parts that look at all tokens, or at the last one: their text is known at the end.
AT_THE_END = frozenset({"BPEDecoder", "CTC"})
BYTES, BYTE, JOIN = "ByteLevel", "ByteFallback", "Fuse"


class TextDecoder:
    """Decodes tokens to text with a tokenizer; special ones are left out.

    Several threads may call it at once. Raises `RepositoryError` for a tokenizer whose texts are unbounded.
    """

    def __init__(self, tokenizer: "Tokenizer") -> None:
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        self._special = {number for number, token in added.items() if token.special}
        found = tokenizer.decoder
        parts = list(_parts(None if found is None else json.loads(found.__getstate__())))
        self._check(parts)
        names = [part["type"] for part in parts]
        self._by_byte = BYTE in names
        self._cuts = BYTES in names
        self._at_the_end = not _is_settled(names)

    def text(self, tokens: Sequence[int]) -> str:
        """Return the text of all tokens."""
        return self._tokenizer.decode(tokens, skip_special_tokens=True)

    def settled(self, tokens: Sequence[int]) -> str:
        """Return how the text of these tokens begins, whatever follows them.

        What may still change are the bytes of an incomplete character, and consecutive bytes that are tokens of their
        own: only after the last of them is it known whether they form characters.
        """
        if self._at_the_end:
            return ""
        end = len(tokens)
        while self._by_byte and end and self._may_go_on(tokens[end - 1]):
            end -= 1
        text = self.text(tokens[:end])
        return text[:-1] if self._cuts and text.endswith(CUT) else text

    def _may_go_on(self, token: int) -> bool:
        """Return whether a sequence of bytes may go on after this token: it is one of them, or left out."""
        text = None if token in self._special else self._tokenizer.id_to_token(token)
        return text is None or (text.startswith("<0x") and text.endswith(">"))

    def _check(self, parts: Sequence[Part]) -> None:
        """Raise `RepositoryError` for unknown parts, and if a token may become longer than any word."""
        more = 1
        for part in parts:
            kind, pattern = part["type"], part.get("pattern", {})
            if kind not in {*BY_TOKEN, *AT_THE_END, BYTES, BYTE, JOIN} or part.get("stop") or "Regex" in pattern:
                raise RepositoryError(
                    f"the tokenizer joins tokens by {json.dumps(part)[:200]}, which is not known: build with another"
                )
            more *= 1 + len(part.get("content", "")) if kind == "Replace" else 1
        token = max(map(len, self._tokenizer.get_vocab(with_added_tokens=True)), default=0)
        if (token + 1) * more > MOST_CHARACTERS:
            raise RepositoryError(
                f"a token of the tokenizer, of {token} characters, may become a text of more than {MOST_CHARACTERS}: "
                "build with another"
            )


class TextPieces:
    """The text of one answer, piece by piece as its tokens are written."""

    def __init__(self, decoder: TextDecoder) -> None:
        self._decoder = decoder
        self._tokens: list[int] = []
        self._emitted = 0  # characters

    def add(self, tokens: Sequence[int], *, complete: bool) -> str:
        """Return the text after the previous pieces once these tokens are added; all of the rest if `complete`.

        All tokens are decoded each time: how a token is joined may depend on the first one. For 100 tokens that takes
        a small part of the time of a network's step.
        """
        self._tokens += tokens
        text = self._decoder.text(self._tokens) if complete else self._decoder.settled(self._tokens)
        piece = text[self._emitted :]
        self._emitted = max(self._emitted, len(text))
        return piece


def _parts(part: Part | None) -> Iterator[Part]:
    """Yield the parts of a decoder in order."""
    if part is None:
        return
    if part["type"] == "Sequence":
        for one in part["decoders"]:
            yield from _parts(one)
    else:
        yield part


def _is_settled(names: Sequence[str]) -> bool:
    """Return whether the text of some tokens, except what `settled` removes, is a prefix of the text of more.

    It is if each part sees a token by itself, and, once all have been joined, only the start of the text is cut.
    """
    joined = False
    for name in names:
        if name in AT_THE_END or (joined and name not in {"Strip", JOIN}):
            return False
        joined = joined or name in {JOIN, BYTES}
    return True
