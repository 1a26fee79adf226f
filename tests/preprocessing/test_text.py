"""Rows equal what transformers' fast tokenizers make of the same file."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from latebind.domain.errors import InvalidRequest, RepositoryError
from latebind.domain.model import Media, RawInput
from latebind.preprocessing import text
from latebind.preprocessing.preprocessor import CUT, Prepared, Reading
from latebind.preprocessing.settings import Role, TextSettings
from latebind.preprocessing.text import TextPreprocessor
from latebind.preprocessing.tokenizer import read_tokenizer
from tests.preprocessing.making import FAMILIES, HARD, SENTENCES, bert, llama3, marian, roberta, words

ALL = {
    Role.IDS: "input_ids",
    Role.MASK: "attention_mask",
    Role.TYPES: "token_type_ids",
    Role.POSITIONS: "position_ids",
}


def opened(tokenizer: Tokenizer, *, spans: bool = False, longest: int = 24, **more: Any) -> TextPreprocessor:
    settings = TextSettings(ALL, longest, **more)
    return TextPreprocessor(settings, read_tokenizer(tokenizer.to_str().encode()), spans=spans)


def reference(tokenizer: Tokenizer, longest: int, **more: Any) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=longest,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        **more,
    )


def same(made: Sequence[Prepared], wanted: Any) -> None:
    assert len(made) == len(wanted["input_ids"])
    for place, row in enumerate(made):
        assert set(row.tensors) == set(ALL.values())
        for name in ("input_ids", "attention_mask", "token_type_ids"):
            tensor = row.tensors[name]
            assert tensor.dtype == np.int64
            assert tensor.tolist() == wanted[name][place]
        assert row.tensors["position_ids"].tolist() == list(range(row.used))
        assert row.used == len(row.tensors["input_ids"])


def texts_with_tokens(tokenizer: Tokenizer) -> list[str]:
    return [given for given in HARD if tokenizer.encode(given).ids]


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_equal_the_reference(family: str) -> None:
    tokenizer = FAMILIES[family]()
    given = texts_with_tokens(tokenizer)
    made = opened(tokenizer, longest=10_000).prepare({"text": given})
    same(made, reference(tokenizer, 10_000)(given))
    assert all(row.cut == 0 for row in made)


@pytest.mark.parametrize("kept", ["start", "end"])
@pytest.mark.parametrize("longest", [5, 24])
@pytest.mark.parametrize("family", FAMILIES)
def test_rows_that_are_cut_equal_the_reference(family: str, longest: int, kept: Any) -> None:
    tokenizer = FAMILIES[family]()
    given = texts_with_tokens(tokenizer)
    made = opened(tokenizer, longest=longest, kept=kept).prepare({"text": given}, CUT)
    other = opened(tokenizer, longest=longest, kept="end" if kept == "start" else "start")
    for one, named in zip(made, other.prepare({"text": given}, Reading(truncate=True, kept=kept)), strict=True):
        assert {name: values.tolist() for name, values in one.tensors.items()} == {
            name: values.tolist() for name, values in named.tensors.items()
        }
    side = {"start": "right", "end": "left"}[kept]
    same(made, reference(tokenizer, longest, truncation_side=side)(given, truncation=True))
    whole = opened(tokenizer, longest=10_000).prepare({"text": given})
    assert [row.used + row.cut for row in made] == [row.used for row in whole]
    assert any(row.cut for row in made)


@pytest.mark.parametrize("kept", ["start", "end"])
@pytest.mark.parametrize("longest", [7, 8, 24, 10_000])
@pytest.mark.parametrize("family", FAMILIES)
def test_rows_of_two_texts_equal_the_reference(family: str, longest: int, kept: Any) -> None:
    tokenizer = FAMILIES[family]()
    pairs = [(first, second) for first in HARD for second in HARD[::3] if tokenizer.encode(first, second).ids]
    firsts, seconds = [first for first, _ in pairs], [second for _, second in pairs]
    made = opened(tokenizer, longest=longest, pair=True, kept=kept).prepare({"text": firsts, "text_pair": seconds}, CUT)
    side = {"start": "right", "end": "left"}[kept]
    same(made, reference(tokenizer, longest, truncation_side=side)(firsts, seconds, truncation=True))


def test_only_the_inputs_that_the_model_has_are_made() -> None:
    settings = TextSettings({Role.IDS: "ids", Role.MASK: "mask"}, 64)
    preprocessor = TextPreprocessor(settings, read_tokenizer(bert().to_str().encode()))
    (row,) = preprocessor.prepare({"text": [SENTENCES[0]]})
    assert set(row.tensors) == {"ids", "mask"} == preprocessor.makes
    assert preprocessor.raw == (RawInput("text", Media.TEXT),)


def test_bytes_are_utf8() -> None:
    preprocessor = opened(bert(), longest=64)
    as_text, as_bytes = (preprocessor.prepare({"text": [given]}) for given in (SENTENCES[3], SENTENCES[3].encode()))
    assert as_text[0].tensors["input_ids"].tolist() == as_bytes[0].tensors["input_ids"].tolist()


@pytest.mark.parametrize("given", [b"\xff\xfe", b"ok \xc3", "half \ud83d", b"\xed\xa0\x80"])
def test_what_is_no_unicode_is_refused_by_its_place(given: str | bytes) -> None:
    with pytest.raises(InvalidRequest, match=r"element 1 of 'text' is not valid UTF-8"):
        opened(bert()).prepare({"text": ["good", given]})


def test_a_text_beyond_the_model_is_refused_with_its_tokens_unless_it_may_be_cut() -> None:
    preprocessor = opened(bert(), longest=8)
    with pytest.raises(InvalidRequest, match=r"element 2 of 'text' has \d+ tokens, and the model takes 8"):
        preprocessor.prepare({"text": ["a", "b", "a long sentence " * 9]})
    (row,) = preprocessor.prepare({"text": ["a " * 30]}, CUT)
    assert (row.used, row.cut) == (8, 24)


def test_a_text_is_bounded_in_bytes_before_it_is_read() -> None:
    preprocessor = opened(bert(), longest=8)
    for given in ("a" * ((1 << 16) + 1), b"a" * ((1 << 16) + 1), "ü" * (1 << 15) + "a"):
        with pytest.raises(InvalidRequest, match=r"element 0 of 'text' has at least \d+ bytes, more than the 65536"):
            preprocessor.prepare({"text": [given]}, CUT)
    assert preprocessor.prepare({"text": ["a" * (1 << 16)]}, CUT)[0].used == 3


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({}, "'text' is missing"),
        ({"text_pair": ["a"]}, "'text' is missing"),
        ({"text": ["a"], "image": [b""]}, "no input 'image'"),
        ({"text": ["a"], "text_pair": []}, "different numbers"),
    ],
)
def test_inputs_must_be_the_model_s(given: dict[str, list[str]], reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        opened(bert(), pair=True).prepare(given)


def test_a_second_text_is_refused_where_the_model_takes_one() -> None:
    with pytest.raises(InvalidRequest, match="no input 'text_pair'"):
        opened(bert()).prepare({"text": ["a"], "text_pair": ["b"]})


def test_no_texts_are_no_rows() -> None:
    assert opened(bert()).prepare({"text": []}) == []


def test_a_text_without_tokens_is_refused_where_the_tokenizer_adds_none() -> None:
    with pytest.raises(InvalidRequest, match="element 0 of 'text' has no tokens"):
        opened(words()).prepare({"text": ["  "]})


def test_prompts_are_put_before_the_first_text_by_their_names() -> None:
    prompts = {"query": "query: ", "passage": "passage: "}
    preprocessor = opened(bert(), longest=64, prompts=prompts, prompt="query", pair=True)
    plain = opened(bert(), longest=64, pair=True)

    def ids(of: TextPreprocessor, *given: str, prompt: str | None = None) -> list[int]:
        named = dict(zip(("text", "text_pair"), ([one] for one in given), strict=False))
        found: list[int] = of.prepare(named, Reading(prompt=prompt))[0].tensors["input_ids"].tolist()
        return found

    assert ids(preprocessor, "cake") == ids(plain, "query: cake")
    assert ids(preprocessor, "cake", prompt="passage") == ids(plain, "passage: cake")
    assert ids(preprocessor, "cake", prompt="") == ids(plain, "cake")
    assert ids(preprocessor, "cake", "egg") == ids(plain, "query: cake", "egg")
    with pytest.raises(InvalidRequest, match="no prompt 'other': this model has passage, query"):
        ids(preprocessor, "cake", prompt="other")


@pytest.mark.parametrize("make", [bert, roberta, llama3, marian])
def test_spans_say_which_characters_a_token_is_of(make: Any) -> None:
    tokenizer = make()
    given = ["Ünïcode 我想 the café", SENTENCES[1]]
    made = opened(tokenizer, longest=9, spans=True, prompts={"p": "say: "}, prompt="p").prepare({"text": given}, CUT)
    wanted = reference(tokenizer, 9)(["say: " + one for one in given], truncation=True, return_offsets_mapping=True)
    for row, offsets in zip(made, wanted["offset_mapping"], strict=True):
        assert row.spans is not None
        assert row.spans.dtype == np.int32
        assert row.spans.tolist() == [[max(begin - 5, 0), max(end - 5, 0)] for begin, end in offsets]
    assert opened(tokenizer).prepare({"text": ["a"]})[0].spans is None


def test_many_texts_are_read_in_parts_and_come_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    given = [f"{SENTENCES[place % 8]} {place}" for place in range(200)]
    whole = opened(bert(), longest=200).prepare({"text": given})
    monkeypatch.setattr(text, "PART_BYTES", 300)
    monkeypatch.setattr(text, "PART_ROWS", 3)
    parts = opened(bert(), longest=200).prepare({"text": given})
    assert [row.tensors["input_ids"].tolist() for row in parts] == [row.tensors["input_ids"].tolist() for row in whole]


def test_what_the_library_cannot_read_is_refused_by_its_place() -> None:
    tokenizer = Tokenizer(models.Unigram([("a", -1.0)]))  # it has no token for what is unknown
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    with pytest.raises(InvalidRequest, match="element 2 of 'text' cannot be read by this model's tokenizer"):
        opened(tokenizer).prepare({"text": ["a", "aa", "b"]})


def test_a_tokenizer_that_leaves_no_room_for_a_text_is_refused() -> None:
    with pytest.raises(RepositoryError, match="adds 2 tokens to each text, and the model takes 2"):
        opened(bert(), longest=2)


def test_several_threads_may_prepare_at_once() -> None:
    from concurrent.futures import ThreadPoolExecutor

    preprocessor = opened(roberta(), longest=64)
    wanted = [row.tensors["input_ids"].tolist() for row in preprocessor.prepare({"text": SENTENCES})]
    with ThreadPoolExecutor(4) as threads:
        for made in threads.map(lambda _: preprocessor.prepare({"text": SENTENCES}), range(50)):
            assert [row.tensors["input_ids"].tolist() for row in made] == wanted


def test_rows_of_tokens_are_taken_as_they_are() -> None:
    preprocessor = opened(bert(), longest=4)
    (row,) = preprocessor.rows_of([[2, 7, 3]])
    made = {name: tensor.tolist() for name, tensor in row.tensors.items()}
    assert made == {
        "input_ids": [2, 7, 3], "token_type_ids": [0, 0, 0], "attention_mask": [1, 1, 1], "position_ids": [0, 1, 2],
    }  # fmt: skip
    assert all(tensor.dtype == np.int64 for tensor in row.tensors.values())
    assert (row.used, row.cut) == (3, 0)
    for tokens in ([], [1] * 5):
        with pytest.raises(InvalidRequest, match=f"element 1 has {len(tokens)} tokens: send 1 to 4"):
            preprocessor.rows_of([[1], tokens])
    with pytest.raises(InvalidRequest, match="element 0 has a token of more than 64 bits"):
        preprocessor.rows_of([[1 << 70]])
