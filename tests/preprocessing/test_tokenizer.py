"""Tokenizer files that attack, each refused before the library reads it, or in a process with limits."""

import base64
import json
from collections.abc import Callable
from copy import deepcopy
from functools import cache
from typing import Any

import numpy as np
import pytest
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from latebind.domain.errors import RepositoryError
from latebind.preprocessing import tokenizer as checked
from latebind.preprocessing.tokenizer import check_tokenizer, load_tokenizer, read_tokenizer, try_tokenizer
from tests.preprocessing.making import FAMILIES, SENTENCES, bert, bytes_of, json_of, roberta, t5

Content = dict[str, Any]


@pytest.fixture(scope="module")
def files() -> dict[str, Content]:
    return {name: json_of(make()) for name, make in FAMILIES.items()}


def refused(content: Any, *, reason: str) -> None:
    with pytest.raises(RepositoryError, match=r"tokenizer\.json") as error:
        read_tokenizer(content if isinstance(content, bytes) else bytes_of(content))
    assert reason in str(error.value)
    assert len(str(error.value)) < 500


@pytest.mark.parametrize("name", FAMILIES)
def test_files_of_all_families_pass_and_read_as_before(name: str, files: dict[str, Content]) -> None:
    before = Tokenizer.from_str(json.dumps(files[name]))
    after = load_tokenizer(read_tokenizer(bytes_of(files[name])))
    for sentence in SENTENCES:
        assert after.encode(sentence).ids == before.encode(sentence).ids


def test_padding_and_truncation_of_the_file_are_switched_off(files: dict[str, Content]) -> None:
    tokenizer = Tokenizer.from_str(json.dumps(files["bert"]))
    tokenizer.enable_truncation(5)
    tokenizer.enable_padding(length=9)
    loaded = load_tokenizer(read_tokenizer(tokenizer.to_str().encode()))
    assert loaded.truncation is None
    assert loaded.padding is None


def test_a_model_without_a_type_is_read_as_first_versions_did(files: dict[str, Content]) -> None:
    for name in ("bert", "roberta", "t5", "words"):
        content = deepcopy(files[name])
        kind = content["model"].pop("type")
        assert json.loads(read_tokenizer(bytes_of(content)).json)["model"]["type"] == kind


def test_of_a_doubled_key_the_library_reads_what_was_checked() -> None:
    good = json.dumps(json_of(bert()))
    bad = '{"normalizer": {"type": "Unknown"}, ' + good[1:]
    assert "Unknown" not in read_tokenizer(bad.encode()).json


def put(*path: str | int, value: Any) -> Callable[[Content], None]:
    """Return what puts a value where a path leads."""

    def change(content: Content) -> None:
        place: Any = content
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = value

    return change


def replacing(pattern: Content, content: str) -> Content:
    return {"type": "Replace", "pattern": pattern, "content": content}


def splitting(pattern: str) -> Content:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def charsmap(replacement: bytes, tree: bytes = bytes(4)) -> str:
    return base64.b64encode(len(tree).to_bytes(4, "little") + tree + replacement + b"\0").decode()


ATTACKS: dict[str, tuple[str, Callable[[Content], None], str]] = {
    "a component of one's own": ("bert", put("normalizer", value={"type": "Python", "code": "x"}), "not known"),
    "a component without a type": ("bert", put("pre_tokenizer", value={}), "not known"),
    "a component that is a list": ("bert", put("pre_tokenizer", value=[]), "not known"),
    "a field that nobody knows": ("bert", put("model", "run", value="x"), "not known"),
    "a field of the file that nobody knows": ("bert", put("run", value="x"), "not known"),
    "another version": ("bert", put("version", value="2.0"), "version"),
    "no model": ("bert", put("model", value=None), "no model"),
    "a model that is a text": ("bert", put("model", value="BPE"), "not an object"),
    "no vocabulary": ("bert", put("model", "vocab", value={}), "tokens"),
    "a vocabulary that is null": ("t5", put("model", "vocab", value=None), "without a vocabulary"),
    "a vocabulary of texts": ("bert", put("model", "vocab", value={"a": "b"}), "number"),
    "a number below 0": ("bert", put("model", "vocab", "zz", value=-1), "number"),
    "a number beyond memory": ("bert", put("model", "vocab", "zz", value=4_000_000_000), "number"),
    "true for a number": ("bert", put("model", "vocab", "zz", value=True), "number"),
    "a token of a megabyte": ("bert", put("model", "vocab", "z" * (1 << 20), value=7), "token of more than"),
    "a word without end": ("bert", put("model", "max_input_chars_per_word", value=1 << 30), "whole number"),
    "a long prefix of each word": ("bert", put("model", "continuing_subword_prefix", value="#" * 5_000), "bytes"),
    "dropout": ("roberta", put("model", "dropout", value=0.5), "dropout"),
    "merges that are no pairs": ("roberta", put("model", "merges", 0, value=["a", "b", "c"]), "pair"),
    "merges of numbers": ("roberta", put("model", "merges", value=[1, 2]), "pair"),
    "a score that is none": ("t5", put("model", "vocab", 3, value=["a", None]), "score"),
    "a score beyond numbers": ("t5", put("model", "vocab", 3, value=["a", 1e300]), "score"),
    "a piece without end": ("t5", put("model", "vocab", 3, value=["a" * 5_000, -1.0]), "token of more than"),
    "an unknown token that is not there": ("t5", put("model", "unk_id", value=1 << 20), "unknown"),
    "too many added tokens": (
        "bert", put("added_tokens", value=[{"id": i, "content": f"t{i}"} for i in range(30_000)]), "at most",
    ),
    "an added token without a text": ("bert", put("added_tokens", 0, "content", value=""), "without a text"),
    "an added token of a megabyte": ("bert", put("added_tokens", 0, "content", value="z" * (1 << 20)), "bytes"),
    "nested loops": ("roberta", put("pre_tokenizer", value=splitting("(a+)+b")), "several ways"),
    "loops in a row": ("roberta", put("pre_tokenizer", value=splitting("a*a*a*b")), "several loops"),
    "a back reference": ("roberta", put("pre_tokenizer", value=splitting(r"(.*)\1x")), "harmless"),
    "a loop that looks around": ("roberta", put("pre_tokenizer", value=splitting(r"(?=.*x)a")), "looks around"),
    "loops where texts are cleaned": (
        "bert", put("normalizer", value=replacing({"Regex": "(?:x+x+)+y"}, "")), "several ways",
    ),
    "loops where texts are put together": (
        "t5", put("decoder", value=replacing({"Regex": "(?:x+x+)+y"}, "")), "several ways",
    ),
    "two patterns in one": (
        "bert", put("normalizer", value=replacing({"String": "a", "Regex": "b"}, "")), "one pattern",
    ),
    "one byte to a thousand": ("bert", put("normalizer", value=replacing({"String": "a"}, "b" * 1_000)), "one byte of"),
    "one byte to many, in steps": (
        "bert",
        put("normalizer", value={
            "type": "Sequence", "normalizers": [replacing({"String": "a"}, "aaaa") for _ in range(12)],
        }),
        "one byte of",
    ),
    "something for nothing": ("bert", put("normalizer", value=replacing({"Regex": "x*"}, "b" * 800)), "one byte of"),
    "something before each part": ("bert", put("normalizer", value={"type": "Prepend", "prepend": "b" * 999}), "bytes"),
    "a table that replaces by much": (
        "t5", put("normalizer", value={"type": "Precompiled", "precompiled_charsmap": charsmap(b"x" * 5_000)}), "5000",
    ),
    "a table that is none": (
        "t5", put("normalizer", value={"type": "Precompiled", "precompiled_charsmap": "////"}), "not a table",
    ),
    "a table that is not a text": (
        "t5", put("normalizer", value={"type": "Precompiled", "precompiled_charsmap": [1]}), "not a table",
    ),
    "a table that says it is larger": (
        "t5",
        put("normalizer", value={
            "type": "Precompiled", "precompiled_charsmap": base64.b64encode(b"\xfc\xff\xff\xff" + bytes(8)).decode(),
        }),
        "not a table",
    ),
    "too many components": (
        "bert", put("normalizer", value={"type": "Sequence", "normalizers": [{"type": "NFC"}] * 100}), "components",
    ),
    "words of no length": ("bert", put("pre_tokenizer", value={"type": "FixedLength", "length": 0}), "whole number"),
    "a template without the text": ("bert", put("post_processor", "single", 1, value={
        "SpecialToken": {"id": "[SEP]", "type_id": 0}}), "each text once"),
    "a template with the text twice": ("bert", put("post_processor", "single", 0, value={
        "Sequence": {"id": "A", "type_id": 0}}), "each text once"),
    "a template of thousands": ("bert", put("post_processor", "single", value=[
        {"SpecialToken": {"id": "[SEP]", "type_id": 0}}] * 5_000), "at most"),
    "a token that is thousands": ("bert", put("post_processor", "special_tokens", "[CLS]", "ids", value=[
        101] * 5_000), "at most"),
    "a text of another kind": ("bert", put("post_processor", "single", 1, value={
        "Sequence": {"id": "A", "type_id": 77}}), "whole number"),
}  # fmt: skip


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_refused_before_it_is_loaded(name: str, files: dict[str, Content]) -> None:
    family, change, reason = ATTACKS[name]
    content = deepcopy(files[family])
    change(content)
    refused(content, reason=reason)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[]", "not an object"),
        (b"null", "not an object"),
        (b"{}", "no model"),
        (b"[" * 100_000, "not JSON"),
        (b'{"a":' * 100_000, "not JSON"),
        (b'{"padding":' + b"[" * 50_000 + b"]" * 50_000 + b"}", "not JSON"),
        (b'{"model": "\\ud800"}', "not JSON"),
        (b'{"version": NaN}', "not JSON"),
    ],
)
def test_what_is_no_tokenizer_at_all_is_refused(data: bytes, reason: str) -> None:
    refused(data, reason=reason)


def test_a_file_beyond_the_bound_is_not_even_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checked, "MOST_BYTES", 100)
    refused(b" " * 101, reason="more than 100")


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_files_of_all_families_pass_their_trial(name: str, files: dict[str, Content]) -> None:
    check_tokenizer(bytes_of(files[name]))


def test_a_file_that_has_passed_is_not_tried_again_but_for_longer_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = list[int]()

    def trying(file: checked.TokenizerFile, *, longest_text: int) -> None:
        tried.append(longest_text)
        try_tokenizer(file, longest_text=longest_text)

    monkeypatch.setattr(checked, "try_tokenizer", trying)
    monkeypatch.setattr(checked, "_passed", cache(set[tuple[bytes, int]]))
    content = json_of(bert())
    for longest in (100, 100, 200):
        check_tokenizer(bytes_of(content), longest_text=longest)
    assert tried == [100, 200]
    content["model"]["vocab"]["another"] = len(content["model"]["vocab"])
    check_tokenizer(bytes_of(content), longest_text=100)
    content["pre_tokenizer"] = splitting("(?s:a)")
    for _ in range(2):  # what has failed is tried each time
        with pytest.raises(RepositoryError, match="did not pass"):
            check_tokenizer(bytes_of(content), longest_text=100)
    assert tried == [100, 200, 100, 100, 100]
    monkeypatch.setattr(checked, "MOST_PASSED", 1)
    check_tokenizer(bytes_of(json_of(bert())), longest_text=300)
    check_tokenizer(bytes_of(json_of(bert())), longest_text=100)  # which made room
    assert tried[5:] == [300, 100]


def test_a_file_that_breaks_the_library_does_so_in_the_process_with_limits() -> None:
    """The prefix of a merge's second part is cut off by its length, though the part is shorter: a panic."""
    content = json_of(roberta())
    content["model"]["continuing_subword_prefix"] = "#" * 12
    file = read_tokenizer(bytes_of(content))
    with pytest.raises(RepositoryError, match="did not pass its trial"):
        try_tokenizer(file, longest_text=100)
    with pytest.raises(RepositoryError, match="cannot be loaded"):
        load_tokenizer(file)


def test_a_file_that_the_library_refuses_is_refused_with_its_reason() -> None:
    content = json_of(bert())
    content["pre_tokenizer"] = splitting("(?s:a)")  # an option that its expressions do not have
    with pytest.raises(RepositoryError, match="cannot be loaded"):
        load_tokenizer(read_tokenizer(bytes_of(content)))
    with pytest.raises(RepositoryError, match="did not pass"):
        check_tokenizer(bytes_of(content))


@pytest.mark.slow
def test_a_file_that_takes_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """An expression that may pass, on a text of one line's worth of what it looks for: quadratic time."""
    tokenizer = t5()
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("q+z"), "isolated")
    monkeypatch.setattr(checked, "TEXT_SECONDS", 0.5)
    with pytest.raises(RepositoryError, match=r"took more than 0\.5 s"):
        check_tokenizer(tokenizer.to_str().encode())


def test_a_trial_may_not_take_all_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checked, "MOST_TRIAL_BYTES", 1 << 25)
    with pytest.raises(RepositoryError, match="did not pass"):
        try_tokenizer(read_tokenizer(bytes_of(json_of(bert()))), longest_text=1 << 16)


def test_a_trial_ends_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checked, "PATIENCE", 0.001)
    with pytest.raises(RepositoryError, match="did not finish"):
        try_tokenizer(read_tokenizer(bytes_of(json_of(bert()))), longest_text=1 << 16)


def test_a_trial_runs_nothing_from_where_the_server_was_started(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tokenizers.py").write_text("raise SystemExit('taken over')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    try_tokenizer(read_tokenizer(bytes_of(json_of(bert()))), longest_text=100)


def test_a_table_of_characters_is_used() -> None:
    """Its tree is an array: from the root by 256 and a byte to a node, and from there by 1 to where its text begins."""
    tree = np.zeros(512, "<u4")
    tree[0] = 256 << 10
    tree[256 ^ ord("A")] = ord("A") | 1 << 8 | 1 << 10
    content = json_of(t5())
    content["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": charsmap(b"bb", tree.tobytes())}
    file = read_tokenizer(bytes_of(content))
    assert load_tokenizer(file).normalizer.normalize_str("xAx") == "xbbx"
    try_tokenizer(file, longest_text=1_000)


def test_a_table_that_leads_nowhere_breaks_in_the_process_with_limits() -> None:
    content = json_of(t5())
    nowhere = np.full(4, 0x00FFFC00, "<u4").tobytes()
    content["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": charsmap(b"", nowhere)}
    file = read_tokenizer(bytes_of(content))
    with pytest.raises(RepositoryError, match="did not pass its trial"):
        try_tokenizer(file, longest_text=100)


def test_expansion_within_the_bound_passes() -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    read_tokenizer(tokenizer.to_str().encode())
