"""`tokenizer.json` as data that may be hostile: what it may hold, and a test of it in a process with limits.

A file that passes is serialized again before it is loaded, so that the library reads what was checked, however it
treats duplicate keys. Its own padding and truncation are left out.
"""

import base64
import binascii
import hashlib
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from latebind.domain.errors import ConfigError, RepositoryError
from latebind.preprocessing import trial
from latebind.preprocessing.expressions import Explosive, check_expression

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TAKES_TOKENIZERS = (
    "reading texts needs the tokenizers library: pip install tokenizers, or, for everything that model folders need, "
    "pip install 'latebind[hf]'"
)
MOST_BYTES = 1 << 26  # of the file: those of the largest vocabularies have 35 MB
MOST_TOKENS = 2_000_000  # of a vocabulary; merges are twice as many
MOST_ID = 1 << 24
MOST_ADDED = 20_000  # added tokens
MOST_TOKEN_BYTES = 1_024
MOST_PIECE_BYTES = 256  # of a token of a unigram model, which looks for all that begin at each place
MOST_PARTS = 32  # of a sequence of components, nested ones too
MOST_SPECIAL = 64  # tokens that a template adds to a row
MOST_WORD = 200  # characters of a word that a WordPiece model splits, in quadratic time
MOST_EXPANSION = 512  # bytes that one byte of a text may become before it is split into tokens
MOST_REPLACEMENT = 40  # bytes of a replacement in a table of Unicode; those of SentencePiece have 33 at most
MOST_AFFIX = 16  # bytes that are put before or after each word

# Address space that a trial may have: vocabularies of 250,000 tokens take 100 times their file while they are loaded.
TRIAL_BYTES, TRIAL_TIMES, MOST_TRIAL_BYTES = 1 << 30, 128, 4 << 30
TRIAL_SECONDS = 60  # of processor time for all texts
TEXT_SECONDS = 2.0  # of processor time for a text of `USUAL_BYTES`, and in proportion for a longer one
USUAL_BYTES = 1 << 16
PATIENCE = 60.0  # seconds that a trial may take on a busy machine
MOST_PASSED = 1_000  # files that are remembered

Fields: TypeAlias = Mapping[str, Callable[["_Checker", Any, str], None]]


@dataclass(frozen=True, slots=True)
class TokenizerFile:
    """A checked file, serialized again as `json`; `nasty` are pieces of texts that are likely to be slow with it."""

    json: str
    nasty: tuple[str, ...]


def read_tokenizer(data: bytes) -> TokenizerFile:
    """Check the contents of a `tokenizer.json` without loading it; raises `RepositoryError` with what is wrong."""
    if len(data) > MOST_BYTES:
        raise _bad(f"has {len(data)} bytes, more than {MOST_BYTES}")
    try:
        content = msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _bad(f"is not JSON ({error})") from error
    checker = _Checker()
    checker.file(content)
    content |= {"padding": None, "truncation": None}
    return TokenizerFile(msgspec.json.encode(content).decode(), checker.nasty())


def load_tokenizer(file: TokenizerFile) -> "Tokenizer":
    """Return the tokenizer; raises `RepositoryError` if the library refuses it, `ConfigError` without the library."""
    try:
        from tokenizers import Tokenizer  # noqa: PLC0415  # it is optional
    except ImportError as error:
        raise ConfigError(TAKES_TOKENIZERS) from error
    try:
        return Tokenizer.from_str(file.json)
    except BaseException as error:
        if not is_of_library(error):
            raise
        raise _bad(f"cannot be loaded ({str(error)[:300]})") from error


def is_of_library(error: BaseException) -> bool:
    """Return whether the library raised it: an `Exception`, or the `BaseException` of a panic in it."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def check_tokenizer(data: bytes, *, longest_text: int = USUAL_BYTES) -> TokenizerFile:
    """Check the contents of a `tokenizer.json`, and try it on texts of `longest_text` bytes in a process with limits.

    A file that has passed in this process passes again: models of one repository often share a tokenizer, and a trial
    takes a second. Raises `RepositoryError` if its contents are not allowed, it fails, or takes too long or too much
    memory.
    """
    file, passed = read_tokenizer(data), _passed()
    tried = hashlib.sha256(file.json.encode()).digest(), longest_text
    if tried not in passed:
        try_tokenizer(file, longest_text=longest_text)
        if len(passed) >= MOST_PASSED:
            passed.clear()
        passed.add(tried)
    return file


@cache
def _passed() -> set[tuple[bytes, int]]:
    """The files that have passed in this process, by their sums, with the longest text."""
    return set()


def try_tokenizer(file: TokenizerFile, *, longest_text: int) -> None:
    """Load a file and read texts of `longest_text` bytes with it in a process with limits; raises `RepositoryError`."""
    try:
        import tokenizers  # noqa: PLC0415  # it is optional
    except ImportError as error:
        raise ConfigError(TAKES_TOKENIZERS) from error
    of_text = TEXT_SECONDS * max(longest_text / USUAL_BYTES, 1)
    space = min(TRIAL_BYTES + TRIAL_TIMES * len(file.json), MOST_TRIAL_BYTES)
    words = [str(number) for number in (space, TRIAL_SECONDS, of_text)]
    place = Path(tokenizers.__path__[0]).parent
    given = [file.json.encode(), *_texts(file.nasty, longest_text)]
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", trial.__file__, str(place), *words],
            input=b"".join(len(part).to_bytes(8, "little") + part for part in given),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"},
            cwd=os.sep,
            timeout=PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise _bad(f"did not finish its trial within {PATIENCE:g} s") from error
    answer = done.stdout.decode(errors="replace").strip()
    if done.returncode in {-signal.SIGXCPU, -signal.SIGKILL}:
        answer = f"a text of {longest_text} bytes took more than {of_text:g} s, or all more than {TRIAL_SECONDS}"
    if done.returncode or answer != trial.PASSED:
        raise _bad(f"did not pass its trial: {answer[:300] or f'the process ended with {done.returncode}'}")


# Scripts and marks that tokenizers treat specially: spaces, line ends, letters, digits, signs, ideographs, accents
# beside and on letters, characters that Unicode decomposes into many, joined emoji, invisible characters.
_EVERYWHERE = (
    "a",
    " ",
    "\n",
    " \r\n\t",
    "1",
    "!",
    "中",
    "e\u0301",
    "\u0301",
    "ﷺ",
    "👩\u200d👩\u200d👧",
    "\u00ad",
    "Qz7_ ",
    "e" * 99 + " ",
)


def _texts(nasty: Iterable[str], longest: int) -> Iterator[bytes]:
    """Return texts of about `longest` bytes, each a repetition of one piece; two are of words."""
    for piece in dict.fromkeys((*_EVERYWHERE, *nasty)):
        yield (piece * (longest // len(piece.encode()) or 1)).encode()
    yield b" ".join(b"%x" % (number * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFF) for number in range(longest // 13))
    yield (
        ("".join(map(chr, range(0x20, 0xD800))) * (1 + longest // 150_000))
        .encode()[:longest]
        .decode(errors="ignore")
        .encode()
    )


def _bad(what: str) -> RepositoryError:
    return RepositoryError(f"tokenizer.json {what}: take it from another source, or build the model again")


@dataclass(slots=True)
class _Checker:
    """Goes through one file. `expansion` is how many bytes one byte may become."""

    expansion: int = 1
    parts: int = 0
    characters: set[str] = field(default_factory=set)  # of regular expressions
    tokens: list[str] = field(default_factory=list)
    beside: list[str] = field(default_factory=list)  # tokens whose match depends on the characters beside them

    def file(self, content: Any) -> None:
        known: Fields = {
            "version": _is_version, "truncation": _is_anything, "padding": _is_anything, "added_tokens": _are_added,
            "normalizer": _component(_NORMALIZERS), "pre_tokenizer": _component(_PRE_TOKENIZERS),
            "post_processor": _component(_POST_PROCESSORS), "decoder": _is_decoder, "model": _is_model,
        }  # fmt: skip
        self.fields(content, known, "the file")
        if not isinstance(content.get("model"), dict):
            raise _bad("has no model")
        self.bounded()

    def fields(self, content: Any, known: Fields, place: str) -> None:
        """Check an object: it has only known fields, each valid; null ones are left out."""
        if not isinstance(content, dict):
            raise _bad(f"has {place} that is not an object")
        for name, value in content.items():
            if value is None:
                continue
            if name not in known:
                raise _bad(f"has {str(name)[:60]!r} in {place}, which is not known")
            known[name](self, value, f"{name!r} in {place}")

    def bounded(self) -> None:
        if self.expansion > MOST_EXPANSION:
            raise _bad(f"turns one byte of a text into up to {self.expansion}, more than {MOST_EXPANSION}")

    def part(self) -> None:
        self.parts += 1
        if self.parts > MOST_PARTS:
            raise _bad(f"has more than {MOST_PARTS} components")

    def nasty(self) -> tuple[str, ...]:
        longest = sorted(set(self.tokens), key=len)[-2:]
        beginnings = [token[:1] for token in longest]
        return (*sorted(self.characters), *self.beside[:4], *longest, *beginnings)


def _is_anything(checker: _Checker, value: Any, place: str) -> None:
    """Padding and truncation of the file are not used."""


def _is_version(checker: _Checker, value: Any, place: str) -> None:
    if value != "1.0":
        raise _bad(f"has version {str(value)[:20]!r}, not 1.0")


def _is_flag(checker: _Checker, value: Any, place: str) -> None:
    if not isinstance(value, bool):
        raise _bad(f"has {place} that is neither true nor false")


def _is_text(most: int) -> Callable[[_Checker, Any, str], None]:
    def check(checker: _Checker, value: Any, place: str) -> None:
        if not isinstance(value, str):
            raise _bad(f"has {place} that is not a text")
        if len(value.encode()) > most:
            raise _bad(f"has {place} of more than {most} bytes")

    return check


def _is_whole(least: int, most: int) -> Callable[[_Checker, Any, str], None]:
    def check(checker: _Checker, value: Any, place: str) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise _bad(f"has {place} that is not a whole number from {least} to {most}")

    return check


def _is_one_of(*words: str) -> Callable[[_Checker, Any, str], None]:
    def check(checker: _Checker, value: Any, place: str) -> None:
        if value not in words:
            raise _bad(f"has {place} that is none of {', '.join(words)}")

    return check


def _is_character(checker: _Checker, value: Any, place: str) -> None:
    if not isinstance(value, str) or len(value) != 1:
        raise _bad(f"has {place} that is not one character")


def _component(known: Mapping[str, Fields]) -> Callable[[_Checker, Any, str], None]:
    """Return a check of a component: its type must be known, and so must its fields."""

    def check(checker: _Checker, value: Any, place: str) -> None:
        checker.part()
        kind = value.get("type") if isinstance(value, dict) else None
        if not isinstance(kind, str) or kind not in known:
            raise _bad(f"has {place} of the type {str(kind)[:60]!r}, which is not known")
        checker.fields(value, {"type": _is_text(MOST_TOKEN_BYTES), **known[kind]}, f"{kind} as {place[:60]}")
        if kind in _EXPANDS:
            checker.expansion *= _EXPANDS[kind](value)

    return check


def _sequence(known: Mapping[str, Fields]) -> Callable[[_Checker, Any, str], None]:
    check_one = _component(known)

    def check(checker: _Checker, value: Any, place: str) -> None:
        if not isinstance(value, list):
            raise _bad(f"has {place} that is not a list")
        for part in value:
            check_one(checker, part, place[:60])

    return check


def _is_pattern(checker: _Checker, value: Any, place: str) -> None:
    checker.fields(value, {"String": _is_text(MOST_TOKEN_BYTES), "Regex": _is_expression}, place)
    if len(value) != 1:
        raise _bad(f"has {place} that is not one pattern")


def _is_expression(checker: _Checker, value: Any, place: str) -> None:
    if not isinstance(value, str):
        raise _bad(f"has {place} that is not a text")
    try:
        checker.characters |= check_expression(value)
    except Explosive as error:
        raise _bad(f"has a regular expression that may take too long: {value[:80]!r} {error}") from error


def _is_charsmap(checker: _Checker, value: Any, place: str) -> None:
    """SentencePiece's table: the bytes of a tree, the tree, and the texts that it leads to, each ending in a zero."""
    try:
        table = base64.b64decode(value, validate=True) if isinstance(value, str) else b""
    except (binascii.Error, ValueError):
        table = b""
    size = int.from_bytes(table[:4], "little")
    if len(table) < 4 or size % 4 or 4 + size > len(table):
        raise _bad(f"has {place} that is not a table of characters")
    longest = max(map(len, table[4 + size :].split(b"\0")))
    if longest > MOST_REPLACEMENT:
        raise _bad(f"has {place} that replaces by {longest} bytes, more than {MOST_REPLACEMENT}")
    checker.expansion *= max(longest, 1)


def _expands_by_replacing(value: Mapping[str, Any]) -> int:
    content = len(str(value.get("content") or "").encode())
    pattern = value.get("pattern") or {}
    if "Regex" in pattern:
        return 1 + content  # it may match nothing, between any two characters
    return max(1, math.ceil(content / max(len(str(pattern.get("String") or "").encode()), 1)))


# How many bytes one byte may become. For Unicode's own forms that is fixed by Unicode: 3 bytes become 33.
_EXPANDS: Mapping[str, Callable[[Mapping[str, Any]], int]] = {
    "Replace": _expands_by_replacing,
    "Prepend": lambda value: 1 + len(str(value.get("prepend") or "").encode()),  # to each part between added tokens
    "Metaspace": lambda value: len(str(value.get("replacement") or "").encode()) or 1,
    "ByteLevel": lambda value: 2,
    "BertNormalizer": lambda value: 3,
    "NFD": lambda value: 3,
    "NFKD": lambda value: 11,
    "NFKC": lambda value: 11,
}

_REPLACES: Fields = {"pattern": _is_pattern, "content": _is_text(MOST_TOKEN_BYTES)}
_BYTES: Fields = {"add_prefix_space": _is_flag, "trim_offsets": _is_flag, "use_regex": _is_flag}
_SPACES: Fields = {
    "replacement": _is_character, "str_rep": _is_text(MOST_AFFIX), "add_prefix_space": _is_flag, "split": _is_flag,
    "prepend_scheme": _is_one_of("always", "never", "first"),
}  # fmt: skip
_BEHAVIOR = _is_one_of("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous")

_NORMALIZERS: dict[str, Fields] = {
    "BertNormalizer": dict.fromkeys(("clean_text", "handle_chinese_chars", "strip_accents", "lowercase"), _is_flag),
    "Strip": {"strip_left": _is_flag, "strip_right": _is_flag},
    "Precompiled": {"precompiled_charsmap": _is_charsmap},
    "Replace": _REPLACES,
    "Prepend": {"prepend": _is_text(MOST_AFFIX)},
    "ByteLevel": _BYTES,
    **{name: {} for name in ("StripAccents", "NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Nmt")},
}
_NORMALIZERS["Sequence"] = {"normalizers": _sequence(_NORMALIZERS)}

_PRE_TOKENIZERS: dict[str, Fields] = {
    "ByteLevel": _BYTES,
    "CharDelimiterSplit": {"delimiter": _is_character},
    "Metaspace": _SPACES,
    "Split": {"pattern": _is_pattern, "behavior": _BEHAVIOR, "invert": _is_flag},
    "Punctuation": {"behavior": _BEHAVIOR},
    "Digits": {"individual_digits": _is_flag},
    "FixedLength": {"length": _is_whole(1, MOST_WORD)},
    **{name: {} for name in ("BertPreTokenizer", "Whitespace", "WhitespaceSplit", "UnicodeScripts")},
}
_PRE_TOKENIZERS["Sequence"] = {"pretokenizers": _sequence(_PRE_TOKENIZERS)}

_DECODERS: dict[str, Fields] = {
    "BPEDecoder": {"suffix": _is_text(MOST_AFFIX)},
    "ByteLevel": _BYTES,
    "WordPiece": {"prefix": _is_text(MOST_AFFIX), "cleanup": _is_flag},
    "Metaspace": _SPACES,
    "CTC": {"pad_token": _is_text(64), "word_delimiter_token": _is_text(64), "cleanup": _is_flag},
    "Replace": _REPLACES,
    "Strip": {"content": _is_character, "start": _is_whole(0, 64), "stop": _is_whole(0, 64)},
    "Fuse": {},
    "ByteFallback": {},
}
_DECODERS["Sequence"] = {"decoders": _sequence(_DECODERS)}


def _is_decoder(checker: _Checker, value: Any, place: str) -> None:
    of_texts, checker.expansion = checker.expansion, 1
    _component(_DECODERS)(checker, value, place)
    checker.bounded()
    checker.expansion = of_texts


def _is_marked(checker: _Checker, value: Any, place: str) -> None:
    if not isinstance(value, list) or len(value) != 2:
        raise _bad(f"has {place} that is not a token and its number")
    _is_text(MOST_TOKEN_BYTES)(checker, value[0], place)
    _is_whole(0, MOST_ID)(checker, value[1], place)


def _is_template(checker: _Checker, value: Any, place: str) -> None:
    if not isinstance(value, list) or len(value) > MOST_SPECIAL:
        raise _bad(f"has {place} that is not a list of at most {MOST_SPECIAL} parts")
    names = list[Any]()
    for piece in value:
        kind = next(iter(piece), None) if isinstance(piece, dict) and len(piece) == 1 else None
        if kind not in {"SpecialToken", "Sequence"}:
            raise _bad(f"has {place} with a part that is neither a text nor a token")
        known = {"id": _is_text(MOST_TOKEN_BYTES), "type_id": _is_whole(0, 1)}
        checker.fields(piece[kind], known, place)
        if kind == "Sequence":
            names.append(piece[kind].get("id"))
    # A text that occurred twice would be cut differently from how the library does it.
    if sorted(map(str, names)) != (["A"] if place.startswith("'single'") else ["A", "B"]):
        raise _bad(f"has {place} that does not have each text once")


def _are_specials(checker: _Checker, value: Any, place: str) -> None:
    if not isinstance(value, dict) or len(value) > MOST_SPECIAL:
        raise _bad(f"has {place} that is not an object of at most {MOST_SPECIAL} tokens")
    known: Fields = {
        "id": _is_text(MOST_TOKEN_BYTES),
        "ids": _list_of(_is_whole(0, MOST_ID)),
        "tokens": _list_of(_is_text(MOST_TOKEN_BYTES)),
    }
    for special in value.values():
        checker.fields(special, known, place)


def _list_of(check_one: Callable[[_Checker, Any, str], None]) -> Callable[[_Checker, Any, str], None]:
    def check(checker: _Checker, value: Any, place: str) -> None:
        if not isinstance(value, list) or len(value) > MOST_SPECIAL:
            raise _bad(f"has {place} that is not a list of at most {MOST_SPECIAL}")
        for one in value:
            check_one(checker, one, place)

    return check


_POST_PROCESSORS: dict[str, Fields] = {
    "BertProcessing": {"sep": _is_marked, "cls": _is_marked},
    "RobertaProcessing": {
        "sep": _is_marked, "cls": _is_marked, "trim_offsets": _is_flag, "add_prefix_space": _is_flag,
    },
    "ByteLevel": _BYTES,
    "TemplateProcessing": {"single": _is_template, "pair": _is_template, "special_tokens": _are_specials},
}  # fmt: skip
_POST_PROCESSORS["Sequence"] = {"processors": _sequence(_POST_PROCESSORS)}

_ADDED: Fields = {
    "id": _is_whole(0, MOST_ID), "content": _is_text(MOST_TOKEN_BYTES),
    **dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), _is_flag),
}  # fmt: skip


def _are_added(checker: _Checker, value: Any, place: str) -> None:
    if not isinstance(value, list) or len(value) > MOST_ADDED:
        raise _bad(f"has {place} that is not a list of at most {MOST_ADDED} tokens")
    for token in value:
        checker.fields(token, _ADDED, place)
        checker.tokens.append(token.get("content") or "")
        if not checker.tokens[-1]:
            raise _bad(f"has {place} without a text")
        if token.get("lstrip") or token.get("rstrip") or token.get("single_word"):
            checker.beside.append(checker.tokens[-1])


def _is_model(checker: _Checker, value: Any, place: str) -> None:
    if not isinstance(value, dict):
        raise _bad(f"has {place} that is not an object")
    kind = value.get("type") or _kind_of(value)
    if not isinstance(kind, str) or kind not in _MODELS:
        raise _bad(f"has a model of the type {str(kind)[:60]!r}, which is not known")
    value["type"] = kind
    checker.fields(value, {"type": _is_text(64), **_MODELS[kind]}, place)
    if value.get("vocab") is None:
        raise _bad("has a model without a vocabulary")
    if kind == "Unigram" and (value.get("unk_id") or 0) >= len(value["vocab"]):
        raise _bad("has a token for unknown words that is not in its vocabulary")


def _kind_of(model: Mapping[str, Any]) -> str:
    """Return the type of a model in files of the first versions, which do not name it."""
    if "merges" in model:
        return "BPE"
    if isinstance(model.get("vocab"), list):
        return "Unigram"
    return "WordPiece" if "max_input_chars_per_word" in model else "WordLevel"


def _is_vocabulary(checker: _Checker, value: Any, place: str) -> None:
    if not isinstance(value, dict) or not 0 < len(value) <= MOST_TOKENS:
        raise _bad(f"has {place} that is not an object of 1 to {MOST_TOKENS} tokens")
    if set(map(type, value.values())) != {int} or min(value.values()) < 0 or max(value.values()) > MOST_ID:
        raise _bad(f"has {place} with a number that is not from 0 to {MOST_ID}")
    _are_short(checker, value, MOST_TOKEN_BYTES, place)


def _are_short(checker: _Checker, tokens: Iterable[str], most: int, place: str) -> None:
    longest = max(tokens, key=len)
    if len(longest) > most:
        raise _bad(f"has {place} with a token of more than {most} characters")
    checker.tokens.append(longest)


def _are_pieces(checker: _Checker, value: Any, place: str) -> None:
    if not isinstance(value, list) or not 0 < len(value) <= MOST_TOKENS:
        raise _bad(f"has {place} that is not a list of 1 to {MOST_TOKENS} tokens")
    for piece in value:
        if not (
            isinstance(piece, list)
            and len(piece) == 2
            and isinstance(piece[0], str)
            and type(piece[1]) in {int, float}
            and abs(piece[1]) < 1e9
        ):
            raise _bad(f"has {place} with something that is not a token and its score")
    _are_short(checker, [piece[0] for piece in value], MOST_PIECE_BYTES, place)


def _are_merges(checker: _Checker, value: Any, place: str) -> None:
    if not isinstance(value, list) or len(value) > 2 * MOST_TOKENS:
        raise _bad(f"has {place} that is not a list of at most {2 * MOST_TOKENS} pairs")
    for pair in value:
        parts = pair.split(" ") if isinstance(pair, str) else pair
        if not isinstance(parts, list) or len(parts) != 2 or not all(isinstance(part, str) for part in parts):
            raise _bad(f"has {place} with something that is not a pair of tokens")
    if value:
        _are_short(checker, map("".join, value), MOST_TOKEN_BYTES, place)


def _is_dropout(checker: _Checker, value: Any, place: str) -> None:
    if value != 0:
        raise _bad("has a dropout, with which a text is read differently each time")


_UNKNOWN = {"unk_token": _is_text(MOST_TOKEN_BYTES)}
_MODELS: Mapping[str, Fields] = {
    "BPE": {
        **_UNKNOWN, "vocab": _is_vocabulary, "merges": _are_merges, "dropout": _is_dropout,
        "continuing_subword_prefix": _is_text(MOST_AFFIX), "end_of_word_suffix": _is_text(MOST_AFFIX),
        "fuse_unk": _is_flag, "byte_fallback": _is_flag, "ignore_merges": _is_flag,
    },
    "WordPiece": {
        **_UNKNOWN, "vocab": _is_vocabulary, "continuing_subword_prefix": _is_text(MOST_AFFIX),
        "max_input_chars_per_word": _is_whole(1, MOST_WORD),
    },
    "WordLevel": {**_UNKNOWN, "vocab": _is_vocabulary},
    "Unigram": {"vocab": _are_pieces, "unk_id": _is_whole(0, MOST_TOKENS), "byte_fallback": _is_flag},
}  # fmt: skip
