"""Text of tokens: the pieces of an answer, joined, are the text of all of its tokens, whatever these are."""

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from latebind.domain.errors import RepositoryError
from latebind.preprocessing.decoding import MOST_CHARACTERS, TextDecoder, TextPieces

SENTENCES = (
    "The quick brown fox isn't lazy, is it? No.",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.",
    "Съешь же ещё этих мягких французских булок",
    "色は匂へど 散りぬるを 🙂👩‍👩‍👧",
    "x  two  blanks   and \n a line",
)


def byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    tokenizer.add_tokens(["<new>", " ö\ufffd"])
    return tokenizer


def unigram() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=150, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    return tokenizer


def word_piece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=200, special_tokens=["[UNK]", "[SEP]"], show_progress=False)
    tokenizer.train_from_iterator(SENTENCES, trainer)
    return tokenizer


def byte_fallback() -> Tokenizer:
    """A tokenizer as Llama's: a byte that no token has is a token by itself."""
    words = ["<s>", "</s>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁a", "b", "▁ö", "é", " c"]
    tokenizer = Tokenizer(models.BPE({word: number for number, word in enumerate(words)}, [], byte_fallback=True))
    tokenizer.add_special_tokens(["<s>", "</s>"])
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(parts)
    return tokenizer


def with_ends() -> Tokenizer:
    """A tokenizer whose words end with a suffix, which is a blank but behind the last one."""
    words = ["a</w>", "b", "c</w>", "</w>d</w>", "</w>"]
    tokenizer = Tokenizer(models.BPE({word: number for number, word in enumerate(words)}, []))
    tokenizer.decoder = decoders.BPEDecoder()
    return tokenizer


def plain() -> Tokenizer:
    return Tokenizer(models.WordLevel({"one": 0, "two": 1, "[UNK]": 2}, unk_token="[UNK]"))


TOKENIZERS = {made.__name__: made() for made in (byte_level, unigram, word_piece, byte_fallback, with_ends, plain)}
LONGEST = 64


def pieces_of(decoder: TextDecoder, tokens: Sequence[int], cuts: Sequence[int]) -> list[str]:
    """Return the pieces of an answer whose tokens come in several parts."""
    pieces, ends = TextPieces(decoder), [*sorted(cuts), len(tokens)]
    begins = [0, *ends[:-1]]
    return [
        pieces.add(tokens[begin:end], complete=place == len(ends) - 1)
        for place, (begin, end) in enumerate(zip(begins, ends, strict=True))
    ]


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_pieces_join_to_the_text_of_all_tokens(name: str, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[name]
    decoder = TextDecoder(tokenizer)
    numbers = st.integers(0, tokenizer.get_vocab_size() + 2)  # some are no tokens
    words = st.sampled_from(SENTENCES).map(lambda text: tokenizer.encode(text).ids[:20])
    tokens = data.draw(st.lists(numbers | words.flatmap(st.sampled_from) if name != "with_ends" else numbers))[:LONGEST]
    cuts = data.draw(st.lists(st.integers(0, len(tokens)), max_size=LONGEST))
    whole = tokenizer.decode(tokens, skip_special_tokens=True)
    assert decoder.text(tokens) == whole
    assert "".join(pieces_of(decoder, tokens, cuts)) == whole
    assert "".join(pieces_of(decoder, tokens, range(len(tokens)))) == whole


@pytest.mark.parametrize("name", ["byte_level", "unigram", "word_piece"])
@pytest.mark.parametrize("text", SENTENCES)
def test_text_comes_as_its_tokens_come(name: str, text: str) -> None:
    tokenizer = TOKENIZERS[name]
    tokens = tokenizer.encode(text).ids
    pieces = pieces_of(TextDecoder(tokenizer), tokens, range(1, len(tokens)))
    assert sum(bool(piece) for piece in pieces) > len(pieces) / 3
    assert not any("\ufffd" in piece for piece in pieces)


def test_what_is_not_certain_yet_waits() -> None:
    tokenizer = TOKENIZERS["byte_level"]
    first, second, third = numbers_of(tokenizer, "âĤ¬")  # the bytes of a euro sign
    assert pieces_of(TextDecoder(tokenizer), [first, second, third], [1, 2]) == ["", "", "€"]
    assert pieces_of(TextDecoder(tokenizer), [first, second], [1, 2]) == ["", "", "\ufffd"]
    tokenizer = TOKENIZERS["byte_fallback"]
    a, invalid, end, b = numbers_of(tokenizer, ("<0x41>", "<0xFF>", "</s>", "b"))
    assert pieces_of(TextDecoder(tokenizer), [a, end, a, b], [1, 2, 3]) == ["", "", "", "AAb"]
    assert pieces_of(TextDecoder(tokenizer), [a, end, invalid, b], [1, 2, 3]) == ["", "", "", "\ufffd\ufffdb"]


def test_special_tokens_are_left_out_and_words_that_were_added_are_not() -> None:
    tokenizer = TOKENIZERS["byte_level"]
    tokens = numbers_of(tokenizer, ("<s>", "x", "<new>", "</s>"))
    assert TextDecoder(tokenizer).text(tokens) == "x<new>"


def numbers_of(tokenizer: Tokenizer, tokens: Sequence[str]) -> list[int]:
    return [tokenizer.get_vocab()[token] for token in tokens]


def strips_the_end() -> Tokenizer:
    tokenizer = unigram()
    tokenizer.decoder = decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 0, 1)])
    return tokenizer


def searches() -> Tokenizer:
    tokenizer = unigram()
    tokenizer.decoder = decoders.Replace(Regex("(a+)+$"), "")
    return tokenizer


def repeats() -> Tokenizer:
    tokenizer = unigram()
    tokenizer.decoder = decoders.Sequence([decoders.Replace("a", "b" * 999), decoders.Replace("b", "c" * 999)])
    return tokenizer


def has_a_long_word() -> Tokenizer:
    tokenizer = unigram()
    tokenizer.add_tokens([AddedToken("x" * MOST_CHARACTERS, normalized=False)])
    return tokenizer


@pytest.mark.parametrize("made", [strips_the_end, searches, repeats, has_a_long_word])
def test_tokenizers_whose_texts_are_not_bounded_are_refused(made: Callable[[], Tokenizer]) -> None:
    with pytest.raises(RepositoryError, match="build with another"):
        TextDecoder(made())
